// Words and small pieces that all views of the fleet share.

import { h } from './dom.js';

const UNITS = [['d', 86_400], ['h', 3_600], ['min', 60]];

/** The states of a box in a rollout: the words, and the class of the badge. The first needs a person most. */
export const STATES = {
  failed: ['rolled back', 'fail'],
  nothing: ['not begun', ''],
  waiting: ['waits', ''],
  paused: ['paused', 'warn'],
  trial: ['on trial', ''],
  fetching: ['fetches', ''],
  pinned: ['kept by owner', ''],
  later: ['later wave', ''],
  ended: ['ended', ''],
  committed: ['committed', 'ok'],
};

/** Seconds for people: the largest unit of which there are two. */
export function span(seconds) {
  const found = UNITS.find(([, size]) => seconds >= 2 * size);
  return found ? `${Math.floor(seconds / found[1])} ${found[0]}` : `${Math.max(0, Math.floor(seconds))} s`;
}

// One for all, because it takes as long to make as a row of the table.
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });

const WHOLE = new Intl.NumberFormat('en');

export function day(text) {
  return DAY.format(new Date(text));
}

/** A moment, by its distance from another: that at which the page was written. */
export function ago(text, now) {
  if (!text) return 'never';
  return h('time', { datetime: text, title: day(text) }, `${span((Date.parse(now) - Date.parse(text)) / 1000)} ago`);
}

export function moment(text) {
  return text ? h('time', { datetime: text }, day(text)) : '–';
}

export function badge(text, level) {
  return h('span', { class: `badge ${level}` }, text);
}

/** How a box stands with a rollout. */
export function standing({ state, late }) {
  const [words, level] = STATES[state] ?? [state, ''];
  return badge(late ? `${words}, late` : words, late && level !== 'fail' ? 'warn' : level);
}

/** The worst that is wrong with a box. */
export function level({ findings }) {
  return findings.length ? findings[0].level : 'ok';
}

export const LEVELS = { fail: 'failure', warn: 'warning', ok: 'fine' };

/** A name from outside, which cannot turn the text around it. */
export function named(text) {
  return h('bdi', null, text);
}

/** `models/wine` is a model; settings and runtimes say what they are. */
export function short(subject) {
  return subject.replace(/^models\//, '').replace(/^configurations\//, 'settings ').replace(/^runtimes\//, 'runtime ');
}

/** A quiet line below a text of a cell. */
export function below(text) {
  return text ? h('span', { class: 'below' }, text) : null;
}

/** The group and the fleet of a box. */
export function placeOf(box) {
  return [box.group, box.fleet === 'default' ? null : box.fleet].filter(Boolean).join(', ');
}

/** The models that the owner of a box brought. */
export function own(box) {
  return (box.models ?? []).filter((model) => model.origin === 'own' || model.origin === 'added').map((model) => model.name ?? '?');
}

/** The name and the version of a package. */
export function packageText(found) {
  return found ? `${found.name} ${found.version}` : null;
}

export function percent(share) {
  return `${Number((100 * share).toFixed(1))} %`;
}

/** A number of boxes or records. */
export function whole(value) {
  return value === null || value === undefined ? '–' : WHOLE.format(Math.round(value));
}

export function count(value, one, many) {
  return `${whole(value)} ${value === 1 ? one : many}`;
}

export function linkTo(name) {
  return `#box/${encodeURIComponent(name)}`;
}

/** Pairs of names and values, without those that have none. */
export function pairs(entries) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined && value !== '' && value !== false);
  return h('dl', { class: 'pairs' }, shown.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
}

/** What is wrong with a box, and what to do. */
export function findings(list, asCommands) {
  return h('ul', null, list.map(({ level: state, text, advice }) => h('li', { class: `finding ${state}` },
    badge(LEVELS[state] ?? state, state),
    h('div', null, h('p', null, named(text)), advice && h('p', { class: 'advice' }, asCommands(advice))))));
}
