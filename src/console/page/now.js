// @ts-check
// What the box does: plots of the last hour and day, and what is wrong.

import { get } from './api.js';
import { bytes, clock, failure, h, number, time, withCommands } from './dom.js';
import { ask, may } from './key.js';
import { keyed, keyedTable } from './keyed.js';
import { replace, say } from './parts.js';
import { plot } from './plot.js';
import { part, section as sectionOf } from './section.js';
import { cell, figure, row, title } from './table.js';
import { build as buildUnusual, marks, unusual } from './unusual.js';

// The first two are kept current by each sample; the others are read from the history.
const PERIODS = {
  hour: { name: 'Hour', words: 'the last hour', rows: 720 },
  day: { name: '24 hours', words: 'the last 24 hours', rows: 1440 },
  month: { name: '30 days', words: 'the last 30 days', rows: 720, isHistory: true },
  year: { name: 'Year', words: 'the last year', rows: 8760, isHistory: true },
};
const HOUR_S = 3600;
// A box that started just now shows what there is, in some width.
const ROWS_SHOWN_MIN = 60;
// A box has a new sample that often. Nothing is kept open: a browser has six connections to a server without TLS, for all
// its tabs together.
const SAMPLE_MS = 5000;
const FINDINGS_MS = 65_000;
const HISTORY_MS = 300_000;
const CAPACITY_MS = 60_000;

/** @param {number | null} value */
const celsius = (value) => (value === null ? '–' : `${number(value)} °C`);

const PLOTS = [
  { title: 'Calls a second', series: [
    { column: 'calls_per_s', name: 'all', line: 'one', filled: true },
    { column: 'failed_per_s', name: 'failed', line: 'bad', isQuietAtZero: true },
    { column: 'refused_per_s', name: 'refused', line: 'warn', isQuietAtZero: true }], format: number },
  { title: 'Time to the answer', series: [
    { column: 'p50_s', name: 'half within', line: 'one' },
    { column: 'p99_s', name: '99 % within', line: 'two' }], format: time, least: 0.001, log: true },
  { title: 'Cores busy', series: [
    { column: 'cores_busy', name: 'whole machine', line: 'two' },
    { column: 'ledge_cores', name: 'Ledge', line: 'one', filled: true }], format: number },
  { title: 'Memory', series: [
    { column: 'ledge_memory_bytes', name: 'Ledge', line: 'one', filled: true },
    { column: 'memory_available_bytes', name: 'free on the machine', line: 'two' }], format: bytes, least: 1 << 20, binary: true },
  { title: 'Calls that wait', series: [{ column: 'queue', name: 'in queues', line: 'one', filled: true }], format: number },
  { title: 'Temperature', series: [{ column: 'temperature_celsius', name: 'warmest sensor', line: 'one' }], format: celsius, least: 40 },
];

let figures = null;
/** The rings of the periods that are read from the history. */
let long = {};
let period = 'hour';
const drawn = PLOTS.map((one) => plot(one));
const cards = h('div', { class: 'cards' }, drawn.map((one) => one.element));
const trouble = h('div');
const status = h('span', { class: 'live', role: 'status' });
const findings = h('div', { class: 'findings' });
const [wrongList, fineList] = [h('ul'), h('ul')];
const [drawWrong, drawFine] = [wrongList, fineList].map((place) => keyed(place, ({ name }) => name, finding));
const capacity = h('div');
const room = keyedTable('Work and its headroom', ['Work', 'Now', 'Room for', 'Then it ends by'], ({ kind, model }) => `${kind} ${model}`, capacityRow, { figures: ['Now', 'Room for'] });

/** Keeps the figures current: all of them first, then those since the last sample. */
const followed = part({
  every: SAMPLE_MS,
  place: trouble,
  needs: ['view', 'Figures and findings need the role viewer, operator, auditor or admin.'],
  async load(signal) {
    // A box that started just now has no sample yet.
    const since = figures?.hour.end;
    return { since, news: await get(since ? `/figures?after=${since}` : '/figures', { signal, quiet: Boolean(since) }) };
  },
  draw({ since, news }) {
    if (since) for (const name of Object.keys(figures)) add(figures[name], news[name], PERIODS[name].rows);
    else figures = news;
    trouble.replaceChildren();
    told('live');
    draw();
  },
  failed(error) {
    say(trouble, failure(error, () => ask()));
    told(error.status === 401 || error.status === 403 ? '' : 'reconnecting', true);
  },
  reset() {
    figures = null;
    long = {};
    told('');
    draw();
  },
});

/** Reads the hours of the chosen period. */
const remembered = part({
  every: HISTORY_MS,
  place: trouble,
  isQuiet: true,
  needs: ['view'],
  async load(signal) {
    const { rows, isHistory } = PERIODS[period];
    const of = period;
    const from = new Date(Date.now() - rows * HOUR_S * 1000).toISOString();
    return isHistory && { of, from, ...await get(`/figures/history?resolution=1h&from=${from}`, { quiet: true, signal }) };
  },
  draw(found) {
    if (!found) return;
    const { of, from, begin, interval_s: interval, columns } = found;
    const end = Date.parse(begin ?? from) + columns.queue.length * interval * 1000;
    long[of] = { interval_s: interval, end: new Date(end).toISOString(), columns };
    draw();
  },
});

const quiet = (path, every, place, draw_) =>
  part({ every, place, isQuiet: true, needs: ['view'], load: (signal) => get(path, { quiet: true, signal }), draw: draw_ });

export const section = sectionOf({
  parts: [followed, quiet('/findings', FINDINGS_MS, findings, showFindings), remembered, quiet('/capacity', CAPACITY_MS, capacity, drawCapacity), unusual],
  build,
});

function build(element) {
  const choice = h('fieldset', { class: 'segments' }, h('legend', { class: 'unseen' }, 'Period'),
    Object.entries(PERIODS).map(([name, { name: text }]) => [
      h('input', { type: 'radio', name: 'period', id: `period-${name}`, value: name, checked: name === period,
        on: { change: () => { period = name; draw(); remembered.reload(); } } }),
      h('label', { for: `period-${name}` }, text)]));
  element.append(
    h('div', { class: 'section-head' }, h('h1', { id: 'now-title' }, 'Now'), status, choice),
    findings, trouble, cards, buildUnusual(draw), capacity);
}

function told(words, isLate = false) {
  if (status.textContent !== words) status.textContent = words;
  status.classList.toggle('late', isLate);
}

/** Adds new samples to those that are known. Those that nobody took, while the box was away, are gaps. */
function add(ring, news, rows) {
  if (!news.end) return;
  const since = ring.end ? Math.round((Date.parse(news.end) - Date.parse(ring.end)) / 1000 / news.interval_s) : Infinity;
  const fresh = Math.min(since, news.columns.queue.length);
  const missed = since === Infinity ? 0 : Math.min(since - fresh, rows);
  for (const [column, list] of Object.entries(ring.columns)) {
    for (let gap = 0; gap < missed; gap += 1) list.push(null);
    if (fresh > 0) list.push(...news.columns[column].slice(-fresh));
    list.splice(0, list.length - rows);
  }
  ring.end = news.end;
}

function draw() {
  const ring = PERIODS[period].isHistory ? long[period] : figures?.[period];
  const length = ring ? ring.columns.queue.length : 0;
  const data = length ? { columns: ring.columns, interval: ring.interval_s, end: Date.parse(ring.end), length,
    rows: Math.min(PERIODS[period].rows, Math.max(length, ROWS_SHOWN_MIN)), period: PERIODS[period].words } : null;
  drawn.forEach((one, index) => one.update(data, marks(PLOTS[index].series.map(({ column }) => column))));
  const last = drawn.at(-1);
  const isWarm = length && ring.columns.temperature_celsius.some((value) => value !== null);
  // Most virtual machines have no sensor.
  last.element.hidden = Boolean(length) && !isWarm;
  cards.classList.toggle('five', last.element.hidden);
}

function drawCapacity({ work, words }) {
  const known = work.filter(({ headroom }) => headroom !== null);
  room.update(known);
  replace(capacity, h('h2', null, 'Room for more work'),
    known.length > 0 && room.element,
    // The first sentences, one for each kind of work, are in the table.
    words.slice(work.length).map((line) => h('p', { class: 'detail' }, line)));
}

function capacityRow({ kind, model, now, headroom, first, source }) {
  const per = { calls: ['calls a second', 1], documents: ['documents an hour', 3600], cameras: ['cameras', 1] }[kind];
  const amount = (value) => number(value * per[1]);
  const name = model ? `${model}: ${per[0]}` : per[0];
  return row(title(name, source === 'reference' && h('p', { class: 'detail' }, 'not measured here')),
    figure('Now', amount(now)), figure('Room for', amount(headroom)), cell('Then it ends by', first.replaceAll('_', ' ')));
}

function finding({ name, status: state, detail, advice }) {
  const words = { ok: 'fine', info: 'note', warn: 'warning', fail: 'failure' };
  return h('li', { class: `finding ${state}` },
    h('span', { class: `badge ${state}` }, words[state] ?? state),
    h('div', null, h('strong', null, name), h('p', { class: 'detail' }, detail), advice && h('p', { class: 'advice' }, withCommands(advice))));
}

function showFindings({ checks, at }) {
  const isFine = ({ status: state }) => state === 'ok' || state === 'info';
  const wrong = checks.filter((check) => !isFine(check)).sort((one, other) => (one.status < other.status ? -1 : 1));
  const fine = checks.filter(isFine);
  drawWrong(wrong);
  drawFine(fine);
  const things = wrong.length === 1 ? '1 thing needs a look' : `${wrong.length} things need a look`;
  replace(findings,
    h('div', { class: 'findings-head' },
      h('h2', null, wrong.length ? things : 'Nothing is wrong'),
      h('span', { class: 'quiet' }, `as of ${clock(at)}`)),
    wrong.length > 0 && wrongList,
    h('details', { 'data-action': 'fine' }, h('summary', null, fine.length === 1 ? '1 thing is fine' : `${fine.length} things are fine`),
      fineList));
}
