// @ts-check
// Lists that are drawn again and again: what stays the same is left where it is, with its focus, selection and open details.

import { list } from './table.js';

/** Makes `nodes` the children of an element. Those that it has stay, and only those in another order move. */
export function arrange(parent, nodes) {
  const kept = new Set(nodes);
  const focused = parent.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  for (const one of [...parent.childNodes]) if (!kept.has(one)) one.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    // A newer browser moves an element with its state.
    else if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, at);
    else parent.insertBefore(node, at);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus();
}

/**
 * What is open in an element, and what has the focus, for the content that takes its place: the focus goes to what has the
 * same `data-action`, or else to the first that acts on the same subject.
 */
export function stateOf(place) {
  const { action: focused, subject } = place.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset : {};
  const opened = new Set([...place.querySelectorAll('details[open]')].map((one) => one.dataset.action));
  return (next) => {
    for (const one of next.querySelectorAll('details')) {
      if (one.dataset.action && opened.has(one.dataset.action)) one.open = true;
    }
    if (!focused || next.contains(document.activeElement)) return;
    const all = [...next.querySelectorAll('[data-action]')];
    (all.find((one) => one.dataset.action === focused) ?? all.find((one) => subject && one.dataset.subject === subject))?.focus();
  };
}

/**
 * Keeps an element for each item by its key. Returns `update(items)`, which makes an element by `make(item)` where the item
 * is new or its `printOf` is another, and keeps all others.
 */
export function keyed(parent, keyOf, make, printOf = JSON.stringify) {
  let kept = new Map();
  return (items) => {
    const next = new Map();
    for (const item of items) {
      let key = String(keyOf(item));
      while (next.has(key)) key += '+';
      const [print, before] = [printOf(item), kept.get(key)];
      if (before?.print === print) {
        next.set(key, before);
        continue;
      }
      const element = make(item);
      next.set(key, { print, element });
      if (!before) continue;
      const restore = stateOf(before.element);
      before.element.replaceWith(element);
      restore(element);
    }
    kept = next;
    arrange(parent, [...next.values()].map(({ element }) => element));
  };
}

/**
 * A table of keyed rows.
 * @param {string} caption
 * @param {string[]} columns
 * @param {(item: any) => any} keyOf
 * @param {(item: any) => Element} make
 * @param {{ printOf?: (item: any) => string, figures?: string[] }} [options]
 */
export function keyedTable(caption, columns, keyOf, make, { printOf = undefined, ...options } = {}) {
  const element = list(caption, columns, [], options);
  return { element, update: keyed(element.tBodies[0], keyOf, make, printOf) };
}
