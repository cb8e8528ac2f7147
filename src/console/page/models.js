// The models: versions, states, statistics, load and unload; `adding.js` has what adds them.

import * as adding from './adding.js';
import { get, post } from './api.js';
import { bytes, failure, h, number, runtime, time } from './dom.js';
import { ask, caller, may } from './key.js';
import { action, refreshed, refusal, replace, say } from './parts.js';
import { actions, cell, figure, list, row, title } from './table.js';

// The loads and unloads that run.
let busy = 0;
const told = h('div', { role: 'status', 'aria-live': 'polite' });
const place = h('div');

const models = refreshed(10_000, async (signal) => { if (!busy) await load(signal); });

export function show() {
  models.show();
  if (may('view')) adding.show();
}

export function hide() {
  models.hide();
  adding.hide();
}

export function build(section) {
  section.append(
    h('div', { class: 'section-head' }, h('h1', { id: 'models-title' }, 'Models'),
      h('button', { type: 'button', class: 'small', on: { click: () => models.reload() } }, 'Refresh')),
    told, place, adding.build(() => models.reload()));
}

export function changed() {
  hide();
  busy = 0;
  adding.changed();
  told.replaceChildren();
  place.replaceChildren();
}

async function load(signal) {
  const refused = refusal('view', 'The list of models needs the role viewer, operator, auditor or admin.');
  if (refused) {
    say(place, refused);
    return;
  }
  try {
    const [index, { model_stats: statistics }] = await Promise.all([
      post('/v2/repository/index', {}, { signal }), get('/v2/models/stats', { quiet: true, signal })]);
    const ready = [...new Set(index.filter((one) => one.state === 'READY').map((one) => one.name))];
    const metadata = await Promise.all(ready.map((name) => get(`/v2/models/${encodeURIComponent(name)}`, { quiet: true, signal }).catch(() => null)));
    const known = new Map(metadata.filter(Boolean).map((one) => [one.name, one]));
    // A button that is being used stays where it is.
    if (!busy && !signal.aborted) render(index, statistics, known);
  } catch (error) {
    if (!signal.aborted) say(place, failure(error, () => ask()));
  }
}

const COLUMNS = ['Model', 'Version', 'State', 'Runtime', 'Calls', 'Failed', 'Mean time', 'Memory', ''];
const FIGURES = ['Version', 'Calls', 'Failed', 'Mean time', 'Memory'];

function render(index, statistics, known) {
  if (!index.length) {
    place.replaceChildren(h('p', { class: 'notice' }, 'There is no model in the repository.'));
    return;
  }
  const rows = index.map((one) => {
    const of = statistics.find((other) => other.name === one.name && other.version === one.version);
    return modelRow(one, of, known.get(one.name));
  });
  replace(place, list('Every model and version that the box knows', COLUMNS, rows, { figures: FIGURES }));
}

function modelRow(one, statistics, metadata) {
  const calls = statistics?.inference_stats;
  const mean = calls?.success.count ? calls.success.ns / calls.success.count / 1e9 : null;
  const memory = statistics?.memory_usage?.[0]?.byte_size;
  const isReady = one.state === 'READY';
  const kind = metadata?.properties?.pipeline;
  const state = { READY: 'ok', LOADING: 'warn', UNLOADING: 'warn', UNAVAILABLE: one.reason === 'unloaded' ? 'off' : 'fail' }[one.state] ?? 'off';
  const verb = isReady ? 'Unload' : 'Load';
  return row(
    title(one.name, kind && h('span', { class: 'quiet' }, kind.replaceAll('_', ' ')),
      one.reason && one.reason !== 'unloaded' && h('p', { class: isReady ? 'note' : 'reason' }, one.reason),
      metadata && isReady && profile(metadata, one.name)),
    figure('Version', one.version ?? '–'),
    cell('State', h('span', { class: `badge ${state}` }, one.reason === 'unloaded' ? 'unloaded' : one.state.toLowerCase())),
    cell('Runtime', metadata && isReady ? h('span', { class: 'unbroken' }, runtime(metadata.platform)) : '–'),
    figure('Calls', calls ? number(calls.success.count + calls.fail.count) : '–'),
    figure('Failed', calls ? number(calls.fail.count) : '–'),
    figure('Mean time', time(mean)),
    figure('Memory', memory ? bytes(memory) : '–'),
    actions(isReady && h('a', { class: 'button small', href: `#try/${encodeURIComponent(one.name)}` }, 'Try'),
      action(verb, one.name, 'operate', 'operator or admin', (button) => change(button, one.name, verb.toLowerCase())),
      adding.mayRemove(one.name) && action('Remove', one.name, 'administer', 'admin', () => adding.remove(one.name))));
}

/** How a model runs, and why so. */
function profile({ inputs, outputs, properties = {} }, name) {
  const shape = (port) => `${port.name} ${port.datatype} [${port.shape.join(', ')}]`;
  const facts = [
    ['Inputs', inputs.map(shape).join('; ')], ['Outputs', outputs.map(shape).join('; ')],
    ['Cores of a run', properties.threads], ['Runs at a time', properties.instances],
    ['Choice of the runtime', properties.profile ?? 'not measured: one runtime runs it, or the configuration names one']];
  return h('details', { 'data-action': `${name} profile` }, h('summary', null, 'Profile'),
    h('dl', { class: 'facts' }, facts.filter(([, text]) => text).map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text)))));
}

async function change(button, name, verb) {
  const by = caller;
  busy += 1;
  button.setAttribute('aria-disabled', 'true');
  button.textContent = verb === 'load' ? 'Loading' : 'Unloading';
  try {
    await post(`/v2/repository/models/${encodeURIComponent(name)}/${verb}`);
    if (by !== caller) return;
    told.replaceChildren(h('p', { class: 'notice good' }, `${name} is ${verb}ed.`));
  } catch (error) {
    if (by !== caller) return;
    told.replaceChildren(failure(error, () => ask()));
  }
  busy -= 1;
  models.reload();
}
