// @ts-check
// The section "Keys": who may do what, the ways in, API keys; create and revoke.

import { get, post, useKey } from './api.js';
import { failure, h, moment, withCommands } from './dom.js';
import { ask, caller, identify, may } from './key.js';
import { keyedTable } from './keyed.js';
import { confirm, copyable, action, replace, tell, tellFailure, untell } from './parts.js';
import { answered, part as partOf, section as sectionOf } from './section.js';
import { actions, cell, list, row, title } from './table.js';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const SOON_MS = 30 * DAY_MS;
// A page with more rows is slow. The command line lists them all.
const ROWS_MAX = 300;
const LIFETIMES = [['1d', 'a day'], ['30d', '30 days'], ['90d', '90 days'], ['52w', 'a year (52 weeks)'], ['', 'a date'], ['never', 'never']];

const desk = h('div');
const place = h('div');
const create = h('button', { type: 'button', class: 'primary', on: { click: openForm } }, 'New key');
let roles = [];
const [valid, ended] = ['Valid keys', 'Keys that are over'].map((caption) =>
  keyedTable(caption, ['Holder', 'State', 'Roles', 'For', 'Limits', 'Last used', ''], ({ key }) => key.id, keyRow));

// A key for single models cannot administer the box.
const isAdmin = () => may('administer') && !caller.models && !caller.feature_views;

const keys = partOf({
  every: 30_000,
  place,
  load(signal) {
    create.hidden = !isAdmin();
    if (!caller) throw Object.assign(new Error('What you may do is shown once you use an API key.'), { status: 401 });
    return Promise.all([get('/roles', { quiet: true, signal }), isAdmin() && get('/keys', { quiet: true, signal })]);
  },
  draw([all, found]) {
    ({ roles } = all);
    replace(place, found ? [keysPart(found), waysPart(found.access)] : selfPart(), rolesPart());
  },
});

export const section = sectionOf({
  parts: [keys],
  build(element) {
    element.append(
      h('div', { class: 'section-head' }, h('h1', { id: 'keys-title' }, 'Keys'), create), desk, place);
    // Also where the browser keeps the page to come back to.
    window.addEventListener('pagehide', () => put());
  },
  reset() {
    valid.update([]);
    ended.update([]);
  },
  // A key that is shown is gone from the page with the section.
  hide: () => put(),
});

/** Puts the form, or the key that it made, above the list, or nothing. */
function put(...content) {
  desk.replaceChildren(...content);
  create.disabled = content.length > 0;
}

function part(heading, ...content) {
  return h('section', { class: 'part' }, h('h2', null, heading), content);
}

const names = (list, all, none) => (!list || list[0] === '*' ? all : list.join(', ') || none);

const covered = (models, views) => h('span', null, names(models, 'all models', 'no model'), h('br'),
  h('span', { class: 'quiet' }, names(views, 'all feature views', 'no feature view')));

// The caller, and the roles that there are

function selfPart() {
  return [
    h('p', { class: 'notice' }, 'To see, create and revoke keys, you need the role admin, for all models and feature views. ',
      h('button', { type: 'button', class: 'small', on: { click: () => ask() } }, 'Use an API key')),
    part('You', h('p', null, h('b', null, caller.name), h('br'), `Roles: ${names(caller.roles, '', 'none')}`, h('br'),
      `Permissions: ${names(caller.permissions, '', 'none').replaceAll('_', ' ')}`, h('br'),
      `For ${names(caller.models, 'all models', 'no model')} and ${names(caller.feature_views, 'all feature views', 'no feature view')}`))];
}

function rolesPart() {
  return part('Who may do what', list('The roles and what each may do', ['Role', 'May'], roles.map((one) => row(
    title(one.name, caller.roles.includes(one.name) && h('span', { class: 'badge ok' }, 'yours')),
    h('td', { role: 'cell', class: 'sentence' }, withCommands(one.may))))));
}

function waysPart({ loopback, socket, users, certificates, mqtt }) {
  const way = (name, setting, found) => row(
    title(name, h('p', { class: 'note code' }, setting)), cell('Roles', names(found.roles, '', 'no role')),
    cell('For', covered(found.models, found.feature_views ?? (found.models && found.models[0] !== '*' ? [] : null))));
  return part('Ways in without a key', list('Callers who need no key', ['Way in', 'Roles', 'For'], [
    way('Programs and browsers on this box', 'access.loopback', { roles: loopback }),
    way('The Unix socket', 'access.socket', { roles: socket }),
    way('Root and the user of the service, over the socket', 'always', { roles: ['admin'] }),
    users.map((one) => way(`The user ${one.user}, over the socket`, 'access.users', one)),
    certificates.map((one) => way(`The certificate ${one.name}`, 'access.certificates', one)),
    way('MQTT', 'access.mqtt', mqtt)]));
}

// Keys

function keysPart(found) {
  const now = Date.parse(found.at);
  const table = (rows, of) => {
    of.update(rows.slice(0, ROWS_MAX).map((key) => ({ key, hours: Math.floor(((key.expires ? Date.parse(key.expires) : now) - now) / HOUR_MS) })));
    return rows.length > 0 && [of.element,
    rows.length > ROWS_MAX && h('p', { class: 'hint' }, withCommands(`${rows.length - ROWS_MAX} more: \`ledge keys list\` shows all.`))];
  };
  const newest = [...found.keys].reverse();
  const over = newest.filter((key) => key.state !== 'valid');
  return part('API keys',
    found.is_half_full && h('p', { class: 'notice' }, 'The store of keys is more than half full. Revoked keys stay in it.'),
    table(newest.filter((key) => key.state === 'valid'), valid) || h('p', { class: 'notice' }, 'There is no valid key. Create one for each caller, so that each can be revoked on its own.'),
    over.length > 0 && h('details', { 'data-action': 'over' }, h('summary', null, `${over.length} revoked or expired`), table(over, ended)));
}

const day = (time) => new Date(time).toLocaleDateString('en-CA');

function keyRow({ key, hours }) {
  const left = key.expires ? hours * HOUR_MS : Infinity;
  const isSoon = key.state === 'valid' && left < SOON_MS;
  const days = Math.floor(left / DAY_MS);
  const badge = isSoon ? `ends in ${days < 1 ? 'hours' : `${days} d`}` : key.state;
  const kind = isSoon ? 'warn' : { valid: 'ok', expired: 'fail' }[key.state] ?? '';
  const end = key.revoked ? `on ${day(key.revoked)}` : key.expires ? `until ${day(key.expires)}` : 'no end';
  const limits = [key.max_rate > 0 && `${key.max_rate}/s`, key.max_concurrent > 0 && `${key.max_concurrent} at a time`].filter(Boolean);
  return row(
    title(key.name, h('span', { class: 'quiet code' }, key.id), key.is_caller && [' ', h('span', { class: 'badge' }, 'this page uses it')]),
    cell('State', h('span', null, h('span', { class: `badge ${kind}` }, badge), h('br'), h('span', { class: 'note unbroken' }, end))),
    cell('Roles', key.roles.join(', ')), cell('For', covered(key.models, key.feature_views)),
    cell('Limits', limits.join(', ') || '–'),
    cell('Last used', key.last_used ? moment(key.last_used) : h('span', { title: 'Not since the service started' }, '–')),
    actions(!key.revoked && action('Revoke', key.name, 'administer', 'admin', () => revoke(key))));
}

async function revoke(key) {
  const own = key.is_caller ? ' It is the key that this page uses: afterwards the page forgets it, and needs another one.' : '';
  if (!await confirm(`Revoke the key ${key.name}?`, `Its holder is refused at once. This cannot be undone, and no other key can have this name.${own}`, 'Revoke')) return;
  await keys.order(null, () => post(`/keys/${key.id}/revoke`), async (revoked) => {
    if (revoked.is_caller) {
      useKey(null);
      await identify();
    }
    tell(`The key ${key.name} is revoked.`);
  });
}

// A new key

/** A choice and, for "only", the names to check. */
function scope(legend, name, choices, known) {
  const choose = (type, group, value, text) => h('label', null, h('input', { type, name: group, value, checked: value === 'all' }), text);
  return h('fieldset', null, h('legend', null, legend),
    h('div', { class: 'choices' }, choices.map(([value, text]) => choose('radio', `${name}-for`, value, text))),
    h('div', { class: 'choices', hidden: true, 'data-only': `${name}-for` }, known.map((one) => choose('checkbox', name, one, one))));
}

const checked = (form, name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((one) => one.value);

async function openForm() {
  untell();
  create.disabled = true;
  const { signal } = keys;
  await answered(() => Promise.all([
    post('/v2/repository/index', {}, { signal }).catch(() => []), get('/feature-views', { signal }).catch(() => ({ feature_views: [] }))]),
  ([index, { feature_views: views }]) => drawForm(index, views), tellFailure, signal);
}

function drawForm(index, views) {
  const models = [...new Set(index.map((one) => one.name))].sort();
  const wrong = h('div');
  const limit = (name, text, step) => h('label', null, text, h('input', { type: 'number', name, min: '0', max: '1000000', step, value: '0', required: true }));
  const form = h('form', { class: 'pane key-form', 'aria-label': 'A new key' },
    h('h2', null, 'New key'), wrong,
    h('label', { for: 'key-name' }, 'Name of the holder'),
    h('input', { type: 'text', id: 'key-name', name: 'name', required: true, maxlength: '64', placeholder: 'till-7', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'none' }),
    h('p', { class: 'hint' }, 'Letters, digits, “.”, “_” and “-”. It is in the logs, and is never used for another key.'),
    h('fieldset', null, h('legend', null, 'Roles'), roles.map((one) => h('label', { class: 'role' }, h('input', { type: 'checkbox', name: 'roles', value: one.name }),
      h('span', null, h('b', null, one.name), h('br'), h('span', { class: 'note' }, withCommands(one.may)))))),
    scope('Models', 'models', [['all', 'all, also those to come'], ['only', 'only these']], models),
    views.length > 0 && scope('Values of feature views', 'views', [['all', 'all'], ['none', 'none'], ['only', 'only these']], views.map((one) => one.name)),
    h('div', { class: 'choices' }, h('label', { for: 'key-expires' }, 'Valid for'),
      h('select', { name: 'expires', id: 'key-expires' }, LIFETIMES.map(([value, text]) => h('option', { value, selected: value === '52w' }, text))),
      h('input', { type: 'date', name: 'date', 'aria-label': 'The last day', hidden: true, min: day(Date.now() + DAY_MS) })),
    h('details', null, h('summary', null, 'Limits'), h('div', { class: 'choices' },
      limit('rate', 'requests a second', 'any'), limit('most', 'requests at the same time', '1'), h('p', { class: 'hint' }, '0 is no limit.'))),
    h('div', { class: 'row end' }, h('button', { type: 'button', on: { click: close } }, 'Cancel'), h('button', { type: 'submit', class: 'primary' }, 'Create the key')));
  const { elements } = form;
  form.addEventListener('change', ({ target }) => {
    // As the command line: a model reads the features of its inputs for every caller.
    if (target.name === 'models-for' && views.length) elements['views-for'].value = target.value === 'only' ? 'none' : 'all';
    for (const names of form.querySelectorAll('[data-only]')) names.hidden = elements[names.dataset.only].value !== 'only';
    elements.date.hidden = elements.expires.value !== '';
    elements.date.required = !elements.date.hidden;
  });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const body = described(form);
    const button = form.querySelector('[type=submit]');
    if (button.disabled) return;
    button.disabled = true;
    try {
      if (!body.roles.length) throw new Error('Choose at least one role.');
      if (body.models?.length === 0) throw new Error('Choose at least one model, or all of them.');
      const made = await post('/keys', body);
      if (form.isConnected) shown(made);
      else tellFailure({ message: `The key ${made.name} was created and not shown: revoke it, or create another.` });
      keys.reload();
    } catch (error) {
      button.disabled = false;
      wrong.replaceChildren(failure(error, () => ask()));
      wrong.scrollIntoView({ block: 'nearest' });
    }
  });
  put(form);
  elements.name.focus();
}

/** The body of `POST /keys`. */
function described(form) {
  const { name, expires, date, rate, most, 'models-for': models, 'views-for': views } = form.elements;
  return {
    name: name.value.trim(), roles: checked(form, 'roles'), models: models.value === 'only' ? checked(form, 'models') : null,
    feature_views: { all: ['*'], none: [], only: checked(form, 'views') }[views?.value] ?? null,
    expires: expires.value || new Date(`${date.value}T23:59:59`).toISOString(), max_rate: Number(rate.value), max_concurrent: Number(most.value),
  };
}

/** Shows the key, this once. */
function shown(made) {
  const card = h('section', { class: 'pane key-form', tabindex: '-1', 'aria-label': 'The new key' },
    h('h2', null, `The key for ${made.name}`),
    h('p', { class: 'notice warn' }, h('b', null, 'It is shown only now. '), 'Give it to its holder, and store it as a secret: the box keeps only a hash of it.'),
    copyable('API key', made.key, 'h3'),
    h('p', { class: 'hint' }, withCommands('Send it as `Authorization: Bearer ledge_...`, or as `X-API-Key`.')),
    h('div', { class: 'row end' }, h('button', { type: 'button', class: 'primary', on: { click: close } }, 'I have stored it')));
  put(card);
  card.focus();
}

function close() {
  put();
  create.focus();
}
