// @ts-check
// The feature store: its views and services, its state, and the values of an entity.

import { get, send } from './api.js';
import { bytes, failure, h, moment, number, withCommands } from './dom.js';
import { ask, may } from './key.js';
import { facts, field, replace, say } from './parts.js';
import { answered, part, section as sectionOf } from './section.js';
import { cell, figure, list, row, title } from './table.js';

let declared = null;
const told = h('div');
const lookup = h('form', { class: 'card stack', hidden: true, on: { submit: find } });
const found = h('div', { class: 'stack', role: 'status' });
const place = h('div', { class: 'stack' });

const store = part({
  every: 10_000,
  place: told,
  needs: ['view', 'The state of the feature store needs the role viewer, operator, auditor or admin.'],
  load: (signal) => Promise.all(['/feature-views', '/feature-services', '/features/status'].map((path) => get(path, { signal }))),
  draw([{ feature_views: views }, { feature_services: services }, status]) {
    draw(views, services, status);
    const now = JSON.stringify([views, services]);
    if (views.length && declared !== now) drawLookup(views, services);
    declared = now;
  },
  reset() {
    [declared, lookup.hidden] = [null, true];
    for (const one of [place, found]) one.replaceChildren();
  },
});

export const section = sectionOf({
  parts: [store],
  build(element) {
    element.append(h('div', { class: 'section-head' }, h('h1', { id: 'features-title' }, 'Features')),
      h('div', { class: 'stack' }, told, place, lookup, found));
  },
});

/** @type {[string, number][]} */
const UNITS = [['d', 86_400], ['h', 3600], ['min', 60]];

function period(seconds) {
  const [unit, length] = UNITS.find(([, one]) => seconds % one === 0) ?? ['s', 1];
  return `${number(seconds / length)} ${unit}`;
}

/** @param {Record<string, number> | number[]} counts @returns {number} */
const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
const words = (counts) => Object.entries(counts).filter(([, one]) => one).map(([name, one]) => `${number(one)} ${name.toLowerCase().replaceAll('_', ' ')}`).join(', ') || 'none';

function draw(views, services, status) {
  say(told, views.length > 0 && status.state !== 'ready' && failure({ message: `The feature store is ${status.state}: ${status.reason ?? status.folder}` }));
  if (!views.length) {
    replace(place, h('p', { class: 'notice' }, withCommands('No feature view is declared. Declare one in `/etc/ledge/feature_views.d/NAME.toml`; `/usr/share/ledge/feature_views.d` has an example with every key.')));
    return;
  }
  const known = new Map((status.feature_views ?? []).map((view) => [view.name, view]));
  const newest = [...known.values()].map((view) => view.newest_event ?? '').sort().at(-1);
  const values = status.bytes && { State: status.state, Records: number(sum([...known.values()].map((view) => view.rows))), Disk: bytes(sum(status.bytes)),
    'Newest event pushed': moment(newest), 'Pushes refused': words(status.refused), 'Values read': words(status.cells), Encryption: status.encryption };
  const viewRow = (view) => {
    const { rows, pushed, newest_event: last } = known.get(view.name) ?? {};
    const features = [...view.schema.map((one) => [one.name, one.dtype, one.description]),
      ...view.aggregations.map((one) => [one.name, one.dtype, `${one.function} of ${one.column} over ${period(one.time_window_s)}`])];
    return row(title(view.name, view.description && h('p', { class: 'note' }, view.description)),
      cell('Entities', view.entities.join(', ')),
      cell('Features', h('ul', null, features.map(([name, type, what]) => h('li', null, name, h('span', { class: 'quiet' }, ` ${type}${what && `, ${what}`}`))))),
      cell('Valid', view.ttl_s ? period(view.ttl_s) : 'for ever'),
      figure('Records', number(rows)), cell('Rows pushed', pushed ? words(pushed) : '–'), cell('Newest event', moment(last)));
  };
  replace(place,
    values && h('div', { class: 'card' }, facts(values)),
    list('Feature views', ['View', 'Entities', 'Features', 'Valid', 'Records', 'Rows pushed', 'Newest event'], views.map(viewRow), { figures: ['Records'] }),
    services.length > 0 && list('Feature services', ['Service', 'Features'], services.map((service) => row(
      title(service.name, service.description && h('p', { class: 'note' }, service.description)), cell('Features', service.features.join(', '))))));
}

/** The form for the values of an entity, with a field for each join key of what is asked for. */
function drawLookup(views, services) {
  const viewsOf = (name) => views.filter((view) => (services.find((one) => `service ${one.name}` === name)?.features ?? [`${name}:`]).some((one) => one.startsWith(`${view.name}:`)));
  const fields = h('div', { class: 'filters' });
  const choose = () => {
    const keys = new Map(viewsOf(of.value).flatMap((view) => view.join_keys.map((key) => [key.name, key.value_type])));
    fields.replaceChildren(h('label', null, 'View or service', of), ...[...keys].map(([name, type]) => h('label', null, `${name} (${type})`,
      field(name, { required: true, 'data-type': type }))));
  };
  const of = h('select', { id: 'features-of', on: { change: choose } },
    [...views.map((one) => one.name), ...services.map((one) => `service ${one.name}`)].map((name) => h('option', null, name)));
  const isAllowed = may('read_features');
  lookup.hidden = false;
  lookup.replaceChildren(h('h2', null, 'Values of an entity'),
    h('p', { class: 'hint' }, 'Reading values needs the role infer, feature-writer or admin, and is recorded in the audit log.'), fields,
    h('div', null, h('button', { type: 'submit', class: 'primary', disabled: !isAllowed }, 'Read')));
  choose();
}

async function find(event) {
  event.preventDefault();
  const [, isService, name] = lookup.querySelector('select').value.match(/^(service )?(.*)$/);
  const entities = [...lookup.querySelectorAll('input')].map(({ name: key, value, dataset: { type } }) => {
    // As they were typed: a number of 64 bits does not fit into one of JavaScript.
    const isPlain = (/^Int/.test(type) && /^-?\d+$/.test(value)) || (type === 'Bool' && /^(true|false)$/.test(value));
    return `${JSON.stringify(key)}:[${isPlain ? value : JSON.stringify(value)}]`;
  });
  const body = `{${isService ? `"feature_service":${JSON.stringify(name)}` : `"features":[${JSON.stringify(name)}]`},"entities":{${entities.join()}}}`;
  await answered(async () => (await send('/get-online-features', { method: 'POST', headers: { 'content-type': 'application/json' }, body })).json(),
    (answer) => drawValues(answer, entities.length), (error) => found.replaceChildren(failure(error, () => ask())));
}

function drawValues({ results, metadata: { feature_names: names } }, keys) {
  const state = { PRESENT: 'ok', NULL_VALUE: 'off', NOT_FOUND: 'warn', OUTSIDE_MAX_AGE: 'warn' };
  const rows = results.map(({ values, statuses, event_timestamps: times }, at) => at >= keys && row(title(names[at]),
    cell('Value', h('span', { class: 'long' }, values[0] === null ? '–' : typeof values[0] === 'string' ? values[0] : JSON.stringify(values[0]))),
    cell('Status', h('span', { class: `badge ${state[statuses[0]]}` }, statuses[0].toLowerCase().replaceAll('_', ' '))), cell('Event time', statuses[0] === 'NOT_FOUND' ? '–' : moment(times[0]))));
  found.replaceChildren(list('Values', ['Feature', 'Value', 'Status', 'Event time'], rows.filter(Boolean)));
}
