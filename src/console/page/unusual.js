// What is unusual: the events of figures, the marks in the plots, and "this was normal".

import { get, post } from './api.js';
import { h, moment } from './dom.js';
import { caller } from './key.js';
import { action, refreshed, replace, sayUnlessRefused, tell, tellFailure } from './parts.js';
import { actions, cell, list, row, title } from './table.js';

const INTERVAL_MS = 60_000;
const EVENTS_SHOWN = 20;
const ENDS = { usual: 'as usual again', new_normal: 'usual now', called_normal: 'called normal', limit_far: 'limit far', forgotten: 'not watched' };

let known = null;
let isBusy = false;
let drawMarks = () => {};
export const place = h('div');

const followed = refreshed(INTERVAL_MS, async (signal) => { if (!isBusy) await load(signal); });
export const { show, hide } = followed;

/** Calls `draw` after each change of the marks. */
export function build(draw) {
  drawMarks = draw;
}

export function changed() {
  hide();
  isBusy = false;
  known = null;
  place.replaceChildren();
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

async function load(signal) {
  try {
    const found = await get('/unusual', { quiet: true, signal });
    if (signal.aborted || isBusy) return;
    known = found;
    draw();
    drawMarks();
  } catch (error) {
    if (!signal.aborted) sayUnlessRefused(place, error);
  }
}

function draw() {
  const { series, events } = known;
  const learning = series.filter(({ needed_minutes: needed }) => needed > 0);
  const most = Math.max(0, ...learning.map(({ needed_minutes: needed }) => needed));
  const words = !series.length ? 'No figures are watched.'
    : learning.length ? `${learning.length} of ${series.length} figures are still learnt, for ${Math.ceil(most / 60)} more hours at most.`
      : `${series.length} figures are watched.`;
  replace(place, h('h2', null, 'What was unusual'), h('p', { class: 'detail' }, words),
    events.length > 0 && list('Unusual figures', ['Figure', 'Began', 'Ended', 'Event', ''], events.slice(0, EVENTS_SHOWN).map(drawEvent)));
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

async function callNormal(button, { series, column }) {
  const by = caller;
  isBusy = true;
  button.setAttribute('aria-disabled', 'true');
  try {
    await post(`/unusual/${encodeURIComponent(series)}/${encodeURIComponent(column)}/normal`);
    if (by === caller) tell('The same is not reported again.');
  } catch (error) {
    if (by === caller) tellFailure(error);
  }
  isBusy = false;
  followed.reload();
}
