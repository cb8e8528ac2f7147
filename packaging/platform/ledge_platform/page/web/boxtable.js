// A table of boxes to search, filter and sort. What is chosen is in the address.

import { h } from './dom.js';
import { list, scrolled } from './table.js';
import { count, whole } from './words.js';

const ROWS_AT_ONCE = 1_000;
const ROWS_FIRST = 40;

const collator = new Intl.Collator('en', { numeric: true });
export const byText = (text) => (one, other) => collator.compare(text(one), text(other));
export const byNumber = (value) => (one, other) => value(one) - value(other);

/** The fleets of these boxes, by their names. */
export function fleetsOf(boxes) {
  return [...new Set(boxes.map((box) => box.fleet).filter(Boolean))].sort(collator.compare);
}

/**
 * A filter by a select. `entries` makes [value, name] of the data; with fewer than `least` it is hidden. `fits` decides
 * about a box.
 */
export function selection({ key, name, all, least, entries, fits }) {
  return (id, changed) => {
    const select = h('select', { id: `${id}of-${key}`, on: { change: () => changed(select.value) } });
    const element = field(name, select);
    return {
      key, element, fits, usual: '',
      known: (value) => value ?? '',
      fill(data, value) {
        const found = entries(data);
        select.replaceChildren(h('option', { value: '' }, all), ...found.map(([one, text]) => h('option', { value: one }, text)));
        select.value = value;
        if (select.value !== value) {
          // It is gone, and filters all the same: the address may say so.
          select.append(h('option', { value }, value));
          select.value = value;
        }
        element.hidden = found.length < least && !value;
      },
    };
  };
}

function field(name, control, kind = '') {
  return h('div', { class: `field ${kind}` }, h('label', { for: control.id }, name), control);
}

/**
 * The view `name` with its `heading`. `columns` are [name, comparison, is a figure] by their keys, `filters` are made by
 * `selection` or are like it, `above` are elements between them and the table. `search` is a text of all that is searched
 * in a box, `makeRow` its row, `drawn` is called with the boxes that fit.
 */
export function boxTable({ name, heading, id, placeholder, columns, sorted, filters: makers, above = [], search: textOf, makeRow, none, drawn }) {
  let data = null;
  let view = null;
  let rows = new Map();
  let texts = new Map();
  let most = ROWS_AT_ONCE;
  let filling = 0;
  const filters = makers.map((make) => make(id, (value) => { chosen[make.key] = value; changed(); }));
  makers.forEach((make, index) => { make.key = filters[index].key; });
  const usual = { q: '', sort: sorted, down: false, ...Object.fromEntries(filters.map((filter) => [filter.key, filter.usual])) };
  const chosen = { ...usual };

  const search = h('input', { type: 'search', id: `${id}search`, placeholder, autocomplete: 'off', spellcheck: 'false',
    on: { input: () => { chosen.q = search.value; changed(); } } });
  const sort = h('select', { id: `${id}sort`, on: { change: () => sortBy(sort.value, false) } },
    Object.entries(columns).map(([key, [label]]) => h('option', { value: key }, label)));
  const heads = Object.fromEntries(Object.entries(columns).map(([key, [label]]) => [key,
    h('button', { type: 'button', class: 'sort', on: { click: () => sortBy(key, chosen.sort === key && !chosen.down) } }, label)]));
  const table = list(`All boxes: ${heading}`, Object.values(heads), []);
  const body = table.querySelector('tbody');
  const place = scrolled(table);
  const found = h('p', { class: 'quiet', role: 'status' });
  const more = h('button', { type: 'button', on: { click: () => { most += ROWS_AT_ONCE; draw(); } } });
  const fields = h('div', { class: 'filters' });
  const empty = h('div', { class: 'empty' });

  function build(section) {
    view = section;
    fields.append(field('Search', search), ...filters.map((filter) => filter.element).filter((element) => element.classList.contains('field')),
      field('Sort by', sort, 'narrow'));
    section.append(
      h('div', { class: 'section-head' }, h('h1', { id: `${name}-title`, tabindex: '-1' }, heading), found),
      fields, ...filters.map((filter) => filter.element).filter((element) => !element.classList.contains('field')), ...above,
      place, empty, h('p', { class: 'row' }, more));
    table.querySelectorAll('th').forEach((head, index) => { if (Object.values(columns)[index][2]) head.className = 'figure'; });
  }

  /** New data. A view that is not shown is drawn once it is. */
  function update(next) {
    data = next;
    rows = new Map();
    texts = new Map();
    if (!view.hidden) redraw();
  }

  /** The part of the address behind `#name?`. */
  function show(query) {
    const given = new URLSearchParams(query);
    chosen.q = given.get('q') ?? '';
    chosen.sort = Object.hasOwn(columns, given.get('sort')) ? given.get('sort') : sorted;
    chosen.down = given.has('down');
    for (const filter of filters) chosen[filter.key] = filter.known(given.get(filter.key));
    search.value = chosen.q;
    redraw();
  }

  function address() {
    const given = new URLSearchParams();
    for (const [key, value] of Object.entries(chosen)) {
      if (value && value !== usual[key]) given.set(key, value === true ? '' : value);
    }
    return given.size ? `#${name}?${given}` : `#${name}`;
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

  function redraw() {
    if (!data) return;
    for (const filter of filters) filter.fill(data, chosen[filter.key]);
    draw();
  }

  function text(box) {
    if (!texts.has(box)) texts.set(box, textOf(box).filter(Boolean).join('\n').toLowerCase());
    return texts.get(box);
  }

  function draw() {
    if (!data) return;
    const words = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
    const [, compare] = columns[chosen.sort];
    const turn = chosen.down ? -1 : 1;
    const fits = data.boxes
      .filter((box) => filters.every((filter) => !chosen[filter.key] || filter.fits(box, chosen[filter.key])) && words.every((word) => text(box).includes(word)))
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
    fields.hidden = !data.boxes.length;
    empty.hidden = Boolean(fits.length);
    empty.replaceChildren(...(data.boxes.length
      ? [h('p', null, 'No box fits.'), h('p', null, h('a', { href: `#${name}` }, 'Show all boxes'))] : none()));
    drawn?.(fits, data);
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

  function rowOf(box) {
    if (!rows.has(box)) rows.set(box, makeRow(box, data));
    return rows.get(box);
  }

  return { build, update, show, address };
}
