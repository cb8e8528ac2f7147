// The rollouts: waves, counts, and both over time with the numbers at which the watcher pauses.

import { h } from './dom.js';
import { plot } from './plot.js';
import { cell, figure, list, row, scrolled, title } from './table.js';
import { badge, count, day, moment, named, percent, short, whole } from './words.js';

const STATES = { running: ['runs', 'ok'], paused: ['paused', 'warn'], scheduled: ['begins later', ''], ended: ['over', ''] };

const PLOTS = [
  { title: 'Boxes', unit: 'boxes', series: [
    { column: 'committed', name: 'committed', line: 'one', filled: true },
    { column: 'tried', name: 'tried', line: 'two' },
    { column: 'meant', name: 'in its waves', line: 'warn' }], format: whole, least: 3 },
  { title: 'Failed', unit: 'boxes', series: [
    { column: 'failed', name: 'rolled back', line: 'bad' },
    { column: 'failed_limit', name: 'pauses at', line: 'warn' }], format: whole, least: 3 },
  { title: 'Silent', unit: 'boxes', series: [
    { column: 'silent', name: 'fell silent', line: 'one' },
    { column: 'silent_limit', name: 'pauses at', line: 'warn' }], format: whole, least: 3 },
];

const running = h('div');
const ended = h('div');
const earlier = h('details', { hidden: true }, h('summary', null, 'Rollouts that are over'), ended);
/** The plots of each rollout, which go on with new data. */
const plots = new Map();
let data = null;

export function build(section) {
  section.append(h('div', { class: 'section-head' }, h('h1', { id: 'rollouts-title', tabindex: '-1' }, 'Rollouts')), running, earlier);
}

export function update(next) {
  data = next;
  const current = data.rollouts.filter((one) => one.state !== 'ended').toReversed();
  const over = data.rollouts.filter((one) => one.state === 'ended');
  const opened = new Set([...running.querySelectorAll('details[open]')].map((one) => one.dataset.key));
  running.replaceChildren(...(current.length ? current.map(rolloutOf) : [nothing()]));
  for (const one of running.querySelectorAll('details')) one.open = opened.has(one.dataset.key);
  ended.replaceChildren(...over.map(rolloutOf));
  earlier.hidden = !over.length;
}

function nothing() {
  return h('p', { class: 'empty' }, 'No rollout runs. ', h('code', null, 'ledge-platform rollout start'), ' begins one.');
}

function rolloutOf(one) {
  const key = `${one.fleet}/${one.id}`;
  if (!plots.has(key)) plots.set(key, PLOTS.map(plot));
  const [words, level] = STATES[one.state];
  const release = one.target.split('/').slice(0, 3);
  return h('section', { class: 'panel rollout', 'aria-label': `Rollout ${one.id}` },
    h('div', { class: 'panel-head' }, h('h2', null, one.id), badge(words, level), one.withdrawn && badge('release revoked', 'fail'),
      h('span', { class: 'quiet' }, `${short(release.slice(0, 2).join('/'))} ${release[2]}, fleet ${one.fleet}`)),
    one.reason && h('p', { class: 'error' }, `The watcher paused it: ${one.reason}.`),
    facts(one),
    one.waves && waves(one),
    plotsOf(key, one),
    one.causes?.length > 0 && causes(one),
    one.guards && h('details', { 'data-key': key }, h('summary', null, 'What guards it'),
      h('p', { class: 'note' }, `The watcher pauses it for at least ${count(one.pauses.least, 'box', 'boxes')} that failed or fell silent, beyond what would be chance at a true rate of ${percent(one.pauses.failures)} failed and ${percent(one.pauses.silent)} silent. Silent is a box that is offline during its trial for ${one.pauses.silent_after}. Each box has these guards:`),
      h('pre', { tabindex: '0', role: 'region', 'aria-label': `Guards of ${one.id}` }, one.guards.join('\n'))));
}

function facts({ state, start, since, window, groups, devices, counts, fleet, id }) {
  const words = [
    [`${state === 'scheduled' ? 'begins' : 'began'} `, moment(start)],
    since && [`${state === 'ended' ? 'over' : 'paused'} since `, moment(since)],
    groups?.length > 0 && `only the groups ${groups.join(', ')}`,
    devices > 0 && `only ${count(devices, 'named box', 'named boxes')}`,
    window && `within ${window}`,
  ].filter(Boolean);
  const link = state !== 'ended' && h('a', { href: `#boxes?${new URLSearchParams({ rollout: `${fleet}/${id}` })}` }, 'Its boxes');
  return h('p', { class: 'facts' }, words.map((word) => h('span', null, word)),
    counts?.under_way > 0 && h('span', null, `${count(counts.under_way, 'box fetches', 'boxes fetch')} it`), link);
}

function waves({ waves: steps, state }) {
  const next = steps.findIndex((one) => !one.reached);
  return h('ol', { class: 'waves', 'aria-label': 'Waves' }, steps.map((one, index) =>
    h('li', { class: one.reached ? 'reached' : index === next ? 'next' : '' },
      h('b', null, percent(one.share)), h('span', null, one.reached ? 'since ' : state === 'paused' ? 'planned ' : 'from ', moment(one.at)))));
}

function plotsOf(key, { plot: given }) {
  const drawn = plots.get(key);
  const period = given && `from ${day(Date.parse(given.end) - (given.length - 1) * given.interval * 1000)} to ${day(given.end)}`;
  for (const one of drawn) one.update(given && { ...given, end: Date.parse(given.end), period });
  return h('div', { class: 'cards' }, drawn.map((one) => one.element));
}

function causes({ causes: found, id }) {
  return scrolled(list(`Why ${id} was rolled back`, ['Cause', 'Boxes', 'Such as'], found.map((one) => row(
    title(named(one.cause)), figure('Boxes', one.count), cell('Such as', named(one.example ?? '–')))), { figures: ['Boxes'] }));
}
