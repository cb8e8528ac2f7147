// @ts-check
// Tables.

import { h } from './dom.js';

/** The head of a table: names of texts, of figures, and of texts again. */
export function heads(texts, figures = [], more = []) {
  return h('thead', null, h('tr', null, texts.map((name) => h('th', { scope: 'col' }, name)),
    figures.map((name) => h('th', { scope: 'col', class: 'figure' }, name)), more.map((name) => h('th', { scope: 'col' }, name))));
}

/** A table that scrolls sideways where it is too wide. */
export function scrolled(table) {
  return h('div', { class: 'scrolled', tabindex: '0', role: 'region', 'aria-label': table.querySelector('caption')?.textContent ?? 'Table' }, table);
}

// The roles are said, because a table whose rows are drawn as blocks loses its own.

/** A table whose rows become blocks on a narrow screen. A column without a name has buttons; `figures` are the columns of numbers. */
export function list(caption, columns, rows, { figures = [] } = {}) {
  return h('table', { class: 'list', role: 'table' },
    h('caption', { class: 'unseen' }, caption),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, columns.map((name) =>
      h('th', { scope: 'col', role: 'columnheader', class: figures.includes(name) && 'figure' }, name || h('span', { class: 'unseen' }, 'Actions'))))),
    h('tbody', { role: 'rowgroup' }, rows));
}

/** A row of a `list`. */
export function row(...cells) {
  return h('tr', { role: 'row' }, cells);
}

/** The cell that names a row. */
export function title(name, ...more) {
  return h('th', { scope: 'row', role: 'rowheader' }, h('span', { class: 'name' }, name), more);
}

/** A cell of the column `label`. */
export function cell(label, ...children) {
  return h('td', { role: 'cell', 'data-label': label }, children);
}

export function figure(label, text) {
  return h('td', { role: 'cell', 'data-label': label, class: 'figure' }, text);
}

/** The cell of the buttons. */
export function actions(...buttons) {
  return h('td', { role: 'cell', class: 'actions' }, buttons);
}
