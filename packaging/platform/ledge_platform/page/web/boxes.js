// All boxes: their state.

import { boxTable, byNumber, byText, fleetsOf, selection } from './boxtable.js';
import { byId, h } from './dom.js';
import { cell, figure, row, title } from './table.js';
import { LEVELS, STATES, ago, badge, below, level, linkTo, placeOf, short, standing, whole } from './words.js';

const KINDS = { all: 'All', any: 'Need a look', seen: 'Not seen', release: 'Release', audit: 'Audit', health: 'Health', room: 'Room', member: 'Membership' };
const LEVEL_ORDER = ['fail', 'warn', 'ok'];
const STATE_ORDER = Object.keys(STATES);
const VERSIONS_SHOWN = 2;

/** The kinds of findings, each with the number of boxes that have one. */
function kinds(id, changed) {
  const element = h('fieldset', { class: 'segments wrap' }, h('legend', { class: 'unseen' }, 'Show'));
  return {
    key: 'show', element, fits: isOf, usual: 'all',
    known: (value) => (Object.hasOwn(KINDS, value) ? value : 'all'),
    fill(data, value) {
      const focused = element.contains(document.activeElement) && document.activeElement.value;
      element.replaceChildren(element.firstChild, ...Object.entries(KINDS).flatMap(([kind, name]) => [
        h('input', { type: 'radio', name: 'show', id: `show-${kind}`, value: kind, checked: kind === value, on: { change: () => changed(kind) } }),
        h('label', { for: `show-${kind}` }, `${name} `, h('b', null, whole(data.boxes.filter((box) => isOf(box, kind)).length)))]));
      if (focused) byId(`show-${focused}`).focus();
      element.hidden = !data.boxes.length;
    },
  };
}

function isOf(box, kind) {
  return kind === 'all' || (kind === 'any' ? box.findings.length > 0 : box.findings.some((finding) => finding.kind === kind));
}

/** The rollouts, and the states in which boxes are. */
function rolloutStates(data) {
  return data.rollouts.filter((one) => one.state !== 'ended').flatMap(({ fleet, id }) => {
    const key = `${fleet}/${id}`;
    const inIt = STATE_ORDER.map((state) => [state, data.boxes.filter((box) => isIn(box, `${key}:${state}`)).length]).filter(([, number]) => number);
    return [[key, `${id}: all`], ...inIt.map(([state, number]) => [`${key}:${state}`, `${id}: ${STATES[state][0]} (${number})`])];
  });
}

function isIn(box, key) {
  const [id, state] = key.split(':');
  return (box.rollouts ?? []).some((one) => `${box.fleet}/${one.rollout}` === id && (!state || one.state === state));
}

const table = boxTable({
  name: 'boxes', heading: 'Boxes', id: '', placeholder: 'Name, group, version, reason …', sorted: 'state',
  columns: {
    name: ['Box', byText((box) => box.name)],
    state: ['State', byNumber((box) => LEVEL_ORDER.indexOf(level(box)) * 100 - box.findings.length)],
    version: ['Version', byText(versionText)],
    rollout: ['Rollout', byNumber((box) => (box.rollouts?.length ? STATE_ORDER.indexOf(worst(box).state) : STATE_ORDER.length))],
    health: ['Health', byText((box) => box.health ?? '~')],
    seen: ['Last report', byNumber((box) => Date.parse(box.at ?? 0) || 0)],
    audit: ['Audit verified to', byNumber((box) => box.verified?.records ?? -1), true],
  },
  filters: [
    selection({ key: 'fleet', name: 'Fleet', all: 'All fleets', least: 2, fits: (box, value) => box.fleet === value,
      entries: (data) => fleetsOf(data.boxes).map((name) => [name, name]) }),
    selection({ key: 'rollout', name: 'Rollout', all: 'Any', least: 1, fits: isIn, entries: rolloutStates }),
    kinds,
  ],
  search: (box) => [box.name, box.fleet, box.group, box.ledge, box.health, versionText(box), box.membership?.state,
    ...(box.rollouts ?? []).map((one) => `${one.rollout} ${one.stage ?? ''}`), ...box.findings.map((finding) => finding.text)],
  makeRow,
  none: () => [h('p', null, 'No box has reported yet.'),
    h('p', null, 'A box reports when ', h('code', null, '[mqtt]'), ' in its ', h('code', null, 'ledge.toml'), ' names your broker. ',
      h('code', null, 'ledge doctor'), ' on the box says what is missing.')],
});

export const boxes = table;

function versionText(box) {
  return (box.updates?.subjects ?? []).map((one) => `${one.subject} ${one.version ?? ''}`).join('\n');
}

/** That of the rollouts of a box which needs a person most. */
function worst(box) {
  return box.rollouts.toSorted(byNumber((one) => STATE_ORDER.indexOf(one.state)))[0];
}

// Rows have few nodes: a thousand of them are laid out at once. Each foreign text is a block of its own, so that none can
// turn the direction of another.

function makeRow(box, data) {
  const state = level(box);
  const subjects = box.updates?.subjects ?? [];
  const hidden = subjects.length - VERSIONS_SHOWN;
  const top = box.rollouts?.length ? worst(box) : null;
  const place = placeOf(box);
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
    auditCell(box, data));
}

/** True if nothing is wrong with a box that is no member: it is expected, or revoked. */
function standsOut({ membership, findings }) {
  return membership && membership.state !== 'member' && !findings.length;
}

function auditCell({ verified, audit }, data) {
  const records = verified?.log ? whole(verified.records) : '–';
  const behind = verified?.log && audit?.records > verified.records ? `of ${whole(audit.records)}` : '';
  const why = behind || (verified || !data.logs_known ? '' : 'not enrolled');
  return figure('Audit verified to', why ? [records, below(why)] : records);
}
