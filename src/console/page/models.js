// The models: versions, states, statistics, load and unload.

import { get, post } from './api.js';
import { bytes, failure, h, number, runtime, time } from './dom.js';
import { ask, may } from './key.js';

const REFRESH_MS = 10_000;

let timer = null;
let busy = null;
const told = h('div', { role: 'status', 'aria-live': 'polite' });
const place = h('div');

export function build(section) {
  section.append(
    h('div', { class: 'section-head' }, h('h1', { id: 'models-title' }, 'Models'),
      h('button', { type: 'button', class: 'small', on: { click: () => load() } }, 'Refresh')),
    told, place);
}

export function show() {
  if (timer) return;
  load();
  timer = setInterval(() => { if (!document.hidden && !busy) load(); }, REFRESH_MS);
}

export function hide() {
  clearInterval(timer);
  timer = null;
}

export function changed() {
  hide();
  told.replaceChildren();
  place.replaceChildren();
}

async function load() {
  if (!may('view')) {
    const error = { status: 401, message: 'The list of models needs the role viewer, operator, auditor or admin.' };
    place.replaceChildren(failure(error, () => ask()));
    return;
  }
  try {
    const [index, { model_stats: statistics }] = await Promise.all([
      post('/v2/repository/index'), get('/v2/models/stats', { quiet: true })]);
    const ready = [...new Set(index.filter((row) => row.state === 'READY').map((row) => row.name))];
    const metadata = await Promise.all(ready.map((name) => get(`/v2/models/${encodeURIComponent(name)}`, { quiet: true }).catch(() => null)));
    const known = new Map(metadata.filter(Boolean).map((one) => [one.name, one]));
    // A button that is being used stays where it is.
    if (!busy) render(index, statistics, known);
  } catch (error) {
    place.replaceChildren(failure(error, () => ask()));
  }
}

const COLUMNS = ['Model', 'Version', 'State', 'Runtime', 'Calls', 'Failed', 'Mean time', 'Memory', ''];

function render(index, statistics, known) {
  if (!index.length) {
    place.replaceChildren(h('p', { class: 'notice' }, 'There is no model in the repository.'));
    return;
  }
  const focused = document.activeElement?.dataset?.action;
  const rows = index.map((row) => {
    const of = statistics.find((one) => one.name === row.name && one.version === row.version);
    return modelRow(row, of, known.get(row.name));
  });
  place.replaceChildren(h('table', { class: 'models', role: 'table' },
    h('caption', { class: 'unseen' }, 'Every model and version that the box knows'),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, COLUMNS.map((name) =>
      h('th', { scope: 'col', role: 'columnheader' }, name || h('span', { class: 'unseen' }, 'Actions'))))),
    h('tbody', { role: 'rowgroup' }, rows)));
  if (focused) [...place.querySelectorAll('button')].find((one) => one.dataset.action === focused)?.focus();
}

function modelRow(row, statistics, metadata) {
  const calls = statistics?.inference_stats;
  const mean = calls?.success.count ? calls.success.ns / calls.success.count / 1e9 : null;
  const memory = statistics?.memory_usage?.[0]?.byte_size;
  const isReady = row.state === 'READY';
  const kind = metadata?.properties?.pipeline;
  const cell = (label, ...children) => h('td', { role: 'cell', 'data-label': label }, children);
  const figure = (label, text) => h('td', { role: 'cell', 'data-label': label, class: 'figure' }, text);
  const state = { READY: 'ok', LOADING: 'warn', UNLOADING: 'warn', UNAVAILABLE: row.reason === 'unloaded' ? 'off' : 'fail' }[row.state] ?? 'off';
  return h('tr', { role: 'row' },
    h('th', { scope: 'row', role: 'rowheader' }, h('span', { class: 'model-name' }, row.name),
      kind && h('span', { class: 'quiet' }, kind.replaceAll('_', ' ')),
      row.reason && row.reason !== 'unloaded' && h('p', { class: isReady ? 'note' : 'reason' }, row.reason)),
    figure('Version', row.version ?? '–'),
    cell('State', h('span', { class: `badge ${state}` }, row.reason === 'unloaded' ? 'unloaded' : row.state.toLowerCase())),
    cell('Runtime', metadata && isReady ? h('span', { class: 'unbroken' }, runtime(metadata.platform)) : '–'),
    figure('Calls', calls ? number(calls.success.count + calls.fail.count) : '–'),
    figure('Failed', calls ? number(calls.fail.count) : '–'),
    figure('Mean time', time(mean)),
    figure('Memory', memory ? bytes(memory) : '–'),
    h('td', { role: 'cell', class: 'actions' },
      isReady && h('a', { class: 'button small', href: `#try/${encodeURIComponent(row.name)}` }, 'Try'),
      isReady ? action(row.name, 'unload') : action(row.name, 'load')));
}

function action(name, verb) {
  const isAllowed = may('operate');
  const reason = 'needs the role operator or admin';
  const title = verb === 'load' ? 'Load' : 'Unload';
  return h('button', {
    type: 'button', class: 'small', disabled: !isAllowed, title: isAllowed ? null : `${title} ${reason}`,
    'aria-label': `${title} ${name}${isAllowed ? '' : `, ${reason}`}`, 'data-action': `${name} ${verb}`,
    on: { click: (event) => change(event.currentTarget, name, verb) },
  }, title);
}

async function change(button, name, verb) {
  busy = name;
  button.disabled = true;
  button.textContent = verb === 'load' ? 'Loading' : 'Unloading';
  try {
    await post(`/v2/repository/models/${encodeURIComponent(name)}/${verb}`);
    told.replaceChildren(h('p', { class: 'notice good' }, `${name} is ${verb}ed.`));
  } catch (error) {
    told.replaceChildren(failure(error, () => ask()));
  }
  busy = null;
  load();
}
