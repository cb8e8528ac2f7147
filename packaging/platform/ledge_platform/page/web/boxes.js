// All boxes: a table to search, filter and sort.

import { byId, h } from './dom.js';
import { cell, figure, list, row, scrolled, title } from './table.js';
import { LEVELS, STATES, ago, badge, count, level, linkTo, short, standing, whole } from './words.js';

const ROWS_AT_ONCE = 1_000;
const ROWS_FIRST = 40;
const KINDS = { all: 'All', any: 'Need a look', seen: 'Not seen', release: 'Release', audit: 'Audit', health: 'Health', member: 'Membership' };
const LEVEL_ORDER = ['fail', 'warn', 'ok'];
const STATE_ORDER = Object.keys(STATES);
const VERSIONS_SHOWN = 2;

const collator = new Intl.Collator('en', { numeric: true });
const byText = (text) => (one, other) => collator.compare(text(one), text(other));
const byNumber = (value) => (one, other) => value(one) - value(other);

const COLUMNS = {
  name: ['Box', byText((box) => box.name)],
  state: ['State', byNumber((box) => LEVEL_ORDER.indexOf(level(box)) * 100 - box.findings.length)],
  version: ['Version', byText(versionText)],
  rollout: ['Rollout', byNumber((box) => (box.rollouts?.length ? STATE_ORDER.indexOf(worst(box).state) : STATE_ORDER.length))],
  health: ['Health', byText((box) => box.health ?? '~')],
  seen: ['Last report', byNumber((box) => Date.parse(box.at ?? 0) || 0)],
  audit: ['Audit verified to', byNumber((box) => box.verified?.records ?? -1)],
};

let data = null;
let rows = new Map();
let most = ROWS_AT_ONCE;
let filling = 0;
const chosen = { q: '', show: 'all', rollout: '', fleet: '', sort: 'state', down: false };

const kinds = h('fieldset', { class: 'segments wrap' }, h('legend', { class: 'unseen' }, 'Show'));
const fleet = h('select', { id: 'of-fleet', on: { change: () => { chosen.fleet = fleet.value; changed(); } } });
const rollout = h('select', { id: 'of-rollout', on: { change: () => { chosen.rollout = rollout.value; changed(); } } });
const search = h('input', { type: 'search', id: 'search', placeholder: 'Name, group, version, reason …', autocomplete: 'off', spellcheck: 'false',
  on: { input: () => { chosen.q = search.value; changed(); } } });
const sort = h('select', { id: 'sort', on: { change: () => sortBy(sort.value, false) } },
  Object.entries(COLUMNS).map(([key, [name]]) => h('option', { value: key }, name)));
const heads = Object.fromEntries(Object.entries(COLUMNS).map(([key, [name]]) => [key,
  h('button', { type: 'button', class: 'sort', on: { click: () => sortBy(key, chosen.sort === key && !chosen.down) } }, name)]));
const table = list('All boxes', Object.values(heads), []);
const body = table.querySelector('tbody');
const place = scrolled(table);
const found = h('p', { class: 'quiet', role: 'status' });
const more = h('button', { type: 'button', on: { click: () => { most += ROWS_AT_ONCE; draw(); } } });
const filters = h('div', { class: 'filters' });
const empty = h('div', { class: 'empty' });

export function build(section) {
  // The labels of a fleet or a rollout are there only where there is a choice.
  filters.append(field('Search', search), field('Fleet', fleet), field('Rollout', rollout), field('Sort by', sort, 'narrow'));
  section.append(
    h('div', { class: 'section-head' }, h('h1', { id: 'boxes-title', tabindex: '-1' }, 'Boxes'), found),
    filters, kinds, place, empty, h('p', { class: 'row' }, more));
  table.querySelectorAll('th').forEach((head, index) => { if (Object.keys(COLUMNS)[index] === 'audit') head.className = 'figure'; });
}

function field(name, control, kind = '') {
  return h('div', { class: `field ${kind}` }, h('label', { for: control.id }, name), control);
}

/** New data. */
export function update(next) {
  data = next;
  rows = new Map();
  for (const box of data.boxes) box.text = searchText(box);
  choices();
  draw();
}

/** The part of the address behind `#boxes?`. */
export function show(query) {
  const given = new URLSearchParams(query);
  chosen.q = given.get('q') ?? '';
  chosen.show = Object.hasOwn(KINDS, given.get('show')) ? given.get('show') : 'all';
  chosen.rollout = given.get('rollout') ?? '';
  chosen.fleet = given.get('fleet') ?? '';
  chosen.sort = Object.hasOwn(COLUMNS, given.get('sort')) ? given.get('sort') : 'state';
  chosen.down = given.has('down');
  search.value = chosen.q;
  choices();
  draw();
}

export function address() {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(chosen)) {
    if (value && value !== { show: 'all', sort: 'state' }[name]) given.set(name, value === true ? '' : value);
  }
  return given.size ? `#boxes?${given}` : '#boxes';
}

/** The choice is in the address: the way back from a box leads to it. */
function changed() {
  most = ROWS_AT_ONCE;
  history.replaceState(null, '', address());
  draw();
}

function sortBy(key, down) {
  chosen.sort = key;
  chosen.down = down;
  changed();
}

function searchText(box) {
  return [box.name, box.fleet, box.group, box.ledge, box.health, versionText(box), box.membership?.state, ...(box.rollouts ?? []).map((one) => `${one.rollout} ${one.stage ?? ''}`),
    ...box.findings.map((finding) => finding.text)].filter(Boolean).join('\n').toLowerCase();
}

function versionText(box) {
  return (box.updates?.subjects ?? []).map((one) => `${one.subject} ${one.version ?? ''}`).join('\n');
}

/** That of the rollouts of a box which needs a person most. */
function worst(box) {
  return box.rollouts.toSorted(byNumber((one) => STATE_ORDER.indexOf(one.state)))[0];
}

function isOf(box, kind) {
  return kind === 'all' || (kind === 'any' ? box.findings.length > 0 : box.findings.some((finding) => finding.kind === kind));
}

function isIn(box, key) {
  const [id, state] = key.split(':');
  return (box.rollouts ?? []).some((one) => `${box.fleet}/${one.rollout}` === id && (!state || one.state === state));
}

/** What can be chosen: kinds of trouble with their numbers, fleets, rollouts with their states. */
function choices() {
  const focused = kinds.contains(document.activeElement) && document.activeElement.value;
  kinds.replaceChildren(kinds.firstChild, ...Object.entries(KINDS).flatMap(([kind, name]) => [
    h('input', { type: 'radio', name: 'show', id: `show-${kind}`, value: kind, checked: kind === chosen.show,
      on: { change: () => { chosen.show = kind; changed(); } } }),
    h('label', { for: `show-${kind}` }, `${name} `, h('b', null, whole(data.boxes.filter((box) => isOf(box, kind)).length)))]));
  if (focused) byId(`show-${focused}`).focus();

  options(fleet, 'All fleets', [...new Set(data.boxes.map((box) => box.fleet).filter(Boolean))].sort(collator.compare).map((name) => [name, name]), chosen.fleet, 2);
  const states = data.rollouts.filter((one) => one.state !== 'ended').flatMap(({ fleet: of, id }) => {
    const key = `${of}/${id}`;
    const inIt = STATE_ORDER.map((state) => [state, data.boxes.filter((box) => isIn(box, `${key}:${state}`)).length]).filter(([, number]) => number);
    return [[key, `${id}: all`], ...inIt.map(([state, number]) => [`${key}:${state}`, `${id}: ${STATES[state][0]} (${number})`])];
  });
  options(rollout, 'Any', states, chosen.rollout, 1);
}

function options(select, all, entries, value, least) {
  select.replaceChildren(h('option', { value: '' }, all), ...entries.map(([key, name]) => h('option', { value: key }, name)));
  select.value = value;
  if (select.value !== value) {
    // It is gone, and filters all the same: the address may say so.
    select.append(h('option', { value }, value));
    select.value = value;
  }
  select.closest('.field').hidden = entries.length < least && !value;
}

function draw() {
  if (!data) return;
  const words = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
  const [, compare] = COLUMNS[chosen.sort];
  const turn = chosen.down ? -1 : 1;
  const fits = data.boxes
    .filter((box) => isOf(box, chosen.show) && (!chosen.fleet || box.fleet === chosen.fleet)
      && (!chosen.rollout || isIn(box, chosen.rollout)) && words.every((word) => box.text.includes(word)))
    .sort((one, other) => turn * compare(one, other) || collator.compare(one.name, other.name));

  fill(fits.slice(0, most));
  sort.value = chosen.sort;
  for (const [key, button] of Object.entries(heads)) {
    const head = button.closest('th');
    if (key === chosen.sort) head.setAttribute('aria-sort', chosen.down ? 'descending' : 'ascending');
    else head.removeAttribute('aria-sort');
  }
  found.textContent = fits.length === data.boxes.length ? count(fits.length, 'box', 'boxes') : `${whole(fits.length)} of ${count(data.boxes.length, 'box', 'boxes')}`;
  more.hidden = fits.length <= most;
  more.textContent = `Show more: ${whole(fits.length - most)} are left`;
  place.hidden = !fits.length;
  filters.hidden = kinds.hidden = !data.boxes.length;
  empty.hidden = Boolean(fits.length);
  empty.replaceChildren(...(data.boxes.length ? nothingFits() : nobody()));
}

/** Shows the boxes: at the top of the page those that fit on a screen first, and the others once these are painted. */
function fill(fits) {
  const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
  const first = focused || window.scrollY > 0 ? fits.length : ROWS_FIRST;
  body.replaceChildren(...fits.slice(0, first).map(rowOf));
  if (focused) [...body.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus({ preventScroll: true });

  filling += 1;
  const mine = filling;
  place.setAttribute('aria-busy', String(fits.length > first));
  if (fits.length <= first) return;
  requestAnimationFrame(() => setTimeout(() => {
    if (mine !== filling) return;
    body.append(...fits.slice(first).map(rowOf));
    place.setAttribute('aria-busy', 'false');
  }));
}

function nobody() {
  return [h('p', null, 'No box has reported yet.'),
    h('p', null, 'A box reports when ', h('code', null, '[mqtt]'), ' in its ', h('code', null, 'ledge.toml'), ' names your broker. ',
      h('code', null, 'ledge doctor'), ' on the box says what is missing.')];
}

function nothingFits() {
  return [h('p', null, 'No box fits.'),
    h('p', null, h('a', { href: '#boxes' }, 'Show all boxes'))];
}

function rowOf(box) {
  if (!rows.has(box)) rows.set(box, makeRow(box));
  return rows.get(box);
}

// Rows have few nodes: a thousand of them are laid out at once. Each foreign text is a block of its own, so that none can
// turn the direction of another.

function makeRow(box) {
  const state = level(box);
  const subjects = box.updates?.subjects ?? [];
  const hidden = subjects.length - VERSIONS_SHOWN;
  const top = box.rollouts?.length ? worst(box) : null;
  const place = [box.group, box.fleet === 'default' ? null : box.fleet].filter(Boolean).join(', ');
  return row(
    title(h('a', { href: linkTo(box.device) }, box.name), place && below(place)),
    cell('State', standsOut(box) ? badge(box.membership.state, '') : badge(LEVELS[state], state), box.findings.length > 1 && h('span', { class: 'others' }, `${box.findings.length} findings`),
      box.findings.length > 0 && h('span', { class: 'below clipped' }, box.findings[0].text)),
    cell('Version', subjects.slice(0, VERSIONS_SHOWN).map((one) =>
      h('span', { class: 'line' }, `${short(one.subject)} ${one.version ?? 'own'}${one.pinned ? ', kept by owner' : ''}`)),
    below([hidden > 0 && `${hidden} more`, box.ledge && `Ledge ${box.ledge}`].filter(Boolean).join(', ') || '–')),
    cell('Rollout', top ? [standing(top), below(`${top.rollout}${top.wave ? `, wave ${top.wave}` : ''}${top.stage ? `, ${top.stage}` : ''}`)] : '–'),
    cell('Health', box.health ? badge(box.health, box.health === 'ok' ? 'ok' : 'fail') : '–'),
    cell('Last report', ago(box.at, data.at), below({ true: 'connected', false: 'not connected' }[box.online] ?? '')),
    auditCell(box));
}

/** True if nothing is wrong with a box that is no member: it is expected, or revoked. */
function standsOut({ membership, findings }) {
  return membership && membership.state !== 'member' && !findings.length;
}

function below(text) {
  return h('span', { class: 'below' }, text);
}

function auditCell({ verified, audit }) {
  const records = verified?.log ? whole(verified.records) : '–';
  const behind = verified?.log && audit?.records > verified.records ? `of ${whole(audit.records)}` : '';
  const why = behind || (verified || !data.logs_known ? '' : 'not enrolled');
  return figure('Audit verified to', why ? [records, below(why)] : records);
}
