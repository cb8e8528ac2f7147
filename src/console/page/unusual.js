// @ts-check
// What is unusual: the events of figures, the marks in the plots, and "this was normal".

import { get, post } from './api.js';
import { h, moment } from './dom.js';
import { keyedTable } from './keyed.js';
import { action, replace, tell } from './parts.js';
import { part } from './section.js';
import { actions, cell, row, title } from './table.js';

const INTERVAL_MS = 60_000;
const EVENTS_SHOWN = 20;
const ENDS = { usual: 'as usual again', new_normal: 'usual now', called_normal: 'called normal', limit_far: 'limit far', forgotten: 'not watched' };

let known = null;
let drawMarks = () => {};
const place = h('div');
const table = keyedTable('Unusual figures', ['Figure', 'Began', 'Ended', 'Event', ''], ({ series, column, began }) => `${series} ${column} ${began}`, drawEvent);

export const unusual = part({
  every: INTERVAL_MS,
  place,
  isQuiet: true,
  needs: ['view'],
  load: (signal) => get('/unusual', { quiet: true, signal }),
  draw(found) {
    known = found;
    draw();
    drawMarks();
  },
  reset() {
    known = null;
    table.update([]);
    drawMarks();
  },
});

/** The element of this part. `listener` runs after each change of the marks. */
export function build(listener) {
  drawMarks = listener;
  return place;
}

/** The marks of the plot of these columns of the box: what is usual in the next minute and was in the last day, and the times of events in ms. */
export function marks(columns) {
  const isOf = ({ series, column }) => series === 'box' && columns.includes(column);
  return {
    bands: known?.series.filter((one) => isOf(one) && one.band).map(({ column, band, bands }) => ({ column, ...band, past: pastOf(bands) })) ?? [],
    spans: known?.events.filter(isOf).map(({ began, ended }) => ({ begin: Date.parse(began), end: ended ? Date.parse(ended) : Infinity })) ?? [],
  };
}

/** The times in ms of usual values, with the values; null where they are not known. */
function pastOf(bands) {
  if (!bands) return [];
  const { end, interval_s: interval, low, high } = bands;
  const timeOf = (index) => Date.parse(end) - (low.length - 1 - index) * interval * 1000;
  return low.map((value, index) => ({ time: timeOf(index), low: value, high: high[index] }));
}

function draw() {
  const { series, events } = known;
  const learning = series.filter(({ needed_minutes: needed }) => needed > 0);
  const most = Math.max(0, ...learning.map(({ needed_minutes: needed }) => needed));
  const words = !series.length ? 'No figures are watched.'
    : learning.length ? `${learning.length} of ${series.length} figures are still learnt, for ${Math.ceil(most / 60)} more hours at most.`
      : `${series.length} figures are watched.`;
  table.update(events.slice(0, EVENTS_SHOWN));
  replace(place, h('h2', null, 'What was unusual'), h('p', { class: 'detail' }, words), events.length > 0 && table.element);
}

function drawEvent(event) {
  const { series, column, kind, began, ended, end, text } = event;
  const name = series === 'box' ? column : `${series.replace(/^model:/, '')} ${column}`;
  // A limit that comes near is no question of habit.
  const isTeachable = kind !== 'limit' && end !== 'called_normal' && end !== 'forgotten';
  return row(
    title(name.replaceAll('_', ' ')),
    cell('Began', moment(began)),
    cell('Ended', ended ? `${moment(ended)}, ${ENDS[end] ?? end}` : h('span', { class: 'badge warn' }, 'goes on')),
    cell('Event', text),
    actions(isTeachable && action('This was normal', `${series} ${column}`, 'operate', 'operator or admin', (button) => callNormal(button, event))));
}

function callNormal(button, { series, column }) {
  return unusual.order(button, () => post(`/unusual/${encodeURIComponent(series)}/${encodeURIComponent(column)}/normal`),
    () => tell('The same is not reported again.'));
}
