// @ts-check
// The models: versions, states, statistics, load and unload; `adding.js` has what adds them.

import * as adding from './adding.js';
import { get, post } from './api.js';
import { bytes, h, number, runtime, time } from './dom.js';
import { may } from './key.js';
import { keyedTable } from './keyed.js';
import { action, confirm, finder, replace, tell } from './parts.js';
import { answered, part, section as sectionOf } from './section.js';
import { actions, cell, figure, row, title } from './table.js';

const isUnloaded = (one) => one.reason === 'unloaded';
const FILTERS = {
  'All states': () => true,
  Ready: (one) => one.state === 'READY',
  'Not serving': (one) => one.state !== 'READY' && !isUnloaded(one),
  'With failed calls': (one) => one.failed > 0,
  Unloaded: isUnloaded,
};
const most = (column) => (one, other) => (other[column] ?? -1) - (one[column] ?? -1);
const ORDERS = {
  'By name': () => 0,
  'By state': (one, other) => one.state.localeCompare(other.state),
  'Most calls': most('calls'),
  'Most failed calls': most('failed'),
  'Slowest': most('mean_s'),
  'Most memory': most('memory_bytes'),
};

let known = null;
/** The loads and unloads that run: their words and when they began, by model. */
const running = new Map();
/** The profiles that were opened, by model, version and runtime. */
const profiles = new Map();
const place = h('div');
const found = finder('models', FILTERS, ORDERS, () => draw());

const models = part({
  every: 10_000,
  place,
  needs: ['view', 'The list of models needs the role viewer, operator, auditor or admin.'],
  load: (signal) => get('/models', { signal }),
  draw({ models: all }) {
    known = all;
    draw();
  },
  reset() {
    known = null;
    running.clear();
    profiles.clear();
    table.update([]);
    found.element.hidden = true;
  },
});
let ticks = null;

export const section = sectionOf({
  parts: [models, adding.catalogued],
  build(element) {
    element.append(
      h('div', { class: 'section-head' }, h('h1', { id: 'models-title' }, 'Models'),
        h('button', { type: 'button', class: 'small', on: { click: () => models.reload() } }, 'Refresh')),
      found.element, place, adding.build(() => models.reload()));
  },
  show() { ticks ??= setInterval(tick, 1000); },
  hide() {
    clearInterval(ticks);
    ticks = null;
  },
});

const COLUMNS = ['Model', 'Version', 'State', 'Runtime', 'Calls', 'Failed', 'Mean time', 'Memory', ''];
const FIGURES = ['Version', 'Calls', 'Failed', 'Mean time', 'Memory'];
const table = keyedTable('Models and versions that the box knows', COLUMNS, ({ name, version }) => `${name} ${version}`, modelRow,
  { figures: FIGURES, printOf: (one) => JSON.stringify([one, running.has(one.name), adding.mayRemove(one.name), may('operate')]) });

function draw() {
  if (!known) return;
  const shown = found.apply(known);
  table.update(shown);
  replace(place, shown.length ? table.element : h('p', { class: 'notice' }, known.length ? 'No model fits.' : 'There is no model in the repository.'));
  tick();
}

function modelRow(one) {
  const { name, version, state, reason, pipeline, calls, failed } = one;
  const isReady = state === 'READY';
  const kind = { READY: 'ok', LOADING: 'warn', UNLOADING: 'warn', UNAVAILABLE: isUnloaded(one) ? 'off' : 'fail' }[state] ?? 'off';
  return row(
    title(name, pipeline && h('span', { class: 'quiet' }, pipeline.replaceAll('_', ' ')),
      reason && !isUnloaded(one) && h('p', { class: isReady ? 'note' : 'reason' }, reason),
      isReady && profileOf(one)),
    figure('Version', version ?? '–'),
    cell('State', h('span', { class: `badge ${kind}` }, isUnloaded(one) ? 'unloaded' : state.toLowerCase())),
    cell('Runtime', one.runtime ? h('span', { class: 'unbroken' }, runtime(one.runtime)) : '–'),
    figure('Calls', calls === null ? '–' : number(calls)),
    figure('Failed', failed === null ? '–' : number(failed)),
    figure('Mean time', time(one.mean_s)),
    figure('Memory', one.memory_bytes === null
      ? isReady ? h('span', { class: 'quiet', title: 'It shares a process with others: what of that is its own is not known' }, 'shared') : '–'
      : bytes(one.memory_bytes)),
    actions(isReady && h('a', { class: 'button small', href: `#try/${encodeURIComponent(name)}` }, 'Try'),
      isReady ? action('Unload', name, 'operate', 'operator or admin', () => unload(one))
        : action('Load', name, 'operate', 'operator or admin', () => change(name, 'load')),
      adding.mayRemove(name) && action('Remove', name, 'administer', 'admin', () => adding.remove(name))));
}

/** How a model runs, and why so. It is asked for when somebody opens it. */
function profileOf({ name, version, runtime: of }) {
  const key = `${name}/${version}/${of}`;
  const details = h('details', { 'data-action': `${name} ${version} profile` }, h('summary', null, 'Profile'), profiles.get(key)?.cloneNode(true));
  details.addEventListener('toggle', async () => {
    if (!details.open || details.children.length > 1) return;
    await answered(() => get(`/v2/models/${encodeURIComponent(name)}/versions/${version}`, { quiet: true }), (metadata) => {
      profiles.set(key, profileFacts(metadata));
      details.append(profiles.get(key).cloneNode(true));
    }, (error) => details.append(h('p', { class: 'reason' }, error.message)));
  });
  return details;
}

/** @param {any} metadata */
function profileFacts({ inputs, outputs, properties = {} }) {
  const shape = (port) => `${port.name} ${port.datatype} [${port.shape.join(', ')}]`;
  const facts = [
    ['Inputs', inputs.map(shape).join('; ')], ['Outputs', outputs.map(shape).join('; ')],
    ['Cores of a run', properties.threads], ['Runs at a time', properties.instances],
    ['Choice of the runtime', properties.profile ?? 'not measured: one runtime runs it, or the configuration names one']];
  return h('dl', { class: 'facts' }, facts.filter(([, text]) => text).map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text))));
}

/** Unloads a model; one that had calls after a question, because those who call it get errors then. */
async function unload({ name, calls }) {
  if (calls > 0) {
    const details = `${name} had ${number(calls)} calls since the service started. Until it is loaded again, its callers get errors.`;
    if (!await confirm(`Unload ${name}?`, details, 'Unload')) return;
  }
  await change(name, 'unload');
}

async function change(name, verb) {
  const mine = { words: verb === 'load' ? 'Loading' : 'Unloading', began: performance.now() };
  running.set(name, mine);
  draw();
  await answered(() => post(`/v2/repository/models/${encodeURIComponent(name)}/${verb}`), () => {
    const undo = verb === 'unload' && h('button', { type: 'button', class: 'small', on: { click: () => change(name, 'load') } }, 'Undo');
    tell(`${name} is ${verb}ed.`, undo);
  });
  if (running.get(name) === mine) running.delete(name);
  models.reload();
}

/** Shows on their buttons which loads and unloads run, and for how long. */
function tick() {
  for (const [name, { words, began }] of running) {
    const seconds = Math.floor((performance.now() - began) / 1000);
    for (const button of place.querySelectorAll('button')) {
      if (button.dataset.subject !== name) continue;
      button.setAttribute('aria-disabled', 'true');
      if (/ (un)?load$/.test(button.dataset.action)) button.textContent = seconds < 2 ? words : `${words} ${seconds} s`;
    }
  }
}
