// @ts-check
// Pieces that several sections have.

import { byId, failure, h, keyButton, withCommands } from './dom.js';
import { ask, may } from './key.js';
import { arrange, stateOf } from './keyed.js';

/** The length of a list from which it can be searched. */
const FINDER_MIN = 8;

function put(kind, content, buttons) {
  const close = h('button', { type: 'button', class: 'small', on: { click: untell } }, 'Close');
  byId('messages').replaceChildren(h('div', { class: `message ${kind}`, role: kind === 'error' && 'alert' }, h('p', null, content), buttons, close));
}

/** Tells what was done, at the fixed place of messages: nothing that somebody is about to press moves. It stays until the next one, or until its section is left. */
export function tell(text, ...buttons) {
  put('good', text, buttons);
}

/** Tells of an error in the same place. */
export function tellFailure(error) {
  put('error', withCommands(error.message), keyButton(error, () => ask()));
}

/** Takes the message away. */
export function untell() {
  byId('messages').replaceChildren();
}

/** Shows the time since now in an element each second, until `signal` is aborted. */
export function elapsing(element, signal) {
  const began = performance.now();
  const show = () => { element.textContent = `${Math.floor((performance.now() - began) / 1000)} s`; };
  const timer = setInterval(show, 1000);
  signal.addEventListener('abort', () => clearInterval(timer));
  show();
}

/**
 * A search, a filter and an order for a list of things with `name`. `filters` and `orders` have their functions by the words
 * for them; the first is used at first. `changed` runs after each choice. A short list has none of these.
 */
export function finder(things, filters, orders, changed) {
  const choice = (words, options) => h('select', { 'aria-label': words, on: { change: changed } }, Object.keys(options).map((name) => h('option', null, name)));
  const search = h('input', { type: 'search', 'aria-label': `Search ${things}`, placeholder: `Search ${things}`, autocomplete: 'off', spellcheck: 'false', on: { input: changed } });
  const [filter, order] = [choice('Show', filters), choice('Sort by', orders)];
  const count = h('span', { class: 'quiet', role: 'status' });
  const element = h('div', { class: 'finder', hidden: true }, search, filter, order, count);
  return {
    element,
    /** Those of `all` to show, in their order. */
    apply(all) {
      element.hidden = all.length < FINDER_MIN;
      if (element.hidden) return all;
      const words = search.value.trim().toLowerCase();
      const found = all.filter((one) => one.name.toLowerCase().includes(words) && filters[filter.value](one));
      const text = found.length === all.length ? `${all.length} ${things}` : `${found.length} of ${all.length} ${things}`;
      if (count.textContent !== text) count.textContent = text;
      // A stable order: those that are alike stay as they came, by name.
      return found.toSorted(orders[order.value]);
    },
  };
}

/** Shows a message, or none. One with the same text stays, because a screen reader would read a new one aloud again. */
export function say(place, message) {
  if (place.textContent !== (message ? message.textContent : '')) place.replaceChildren(message || '');
}

/** Names with their values, in a row. */
export function facts(values) {
  return h('dl', { class: 'times' }, Object.entries(values).map(([name, value]) => h('div', null, h('dt', null, name), h('dd', { class: 'long' }, value))));
}

/** A field for a name or a number. */
export function field(name, more) {
  return h('input', { type: 'text', name, spellcheck: 'false', autocapitalize: 'none', autocomplete: 'off', ...more });
}

/** Puts new content into an element. Elements that it has already stay; the focus and opened details survive. */
export function replace(place, ...content) {
  const restore = stateOf(place);
  arrange(place, content.flat(Infinity).filter(Boolean));
  restore(place);
}

/**
 * A button of a row, which a caller without the permission sees and cannot press. `needed` names the roles. While its
 * work runs it is `aria-disabled`: a disabled one would lose the focus.
 */
export function action(verb, subject, permission, needed, press) {
  const isAllowed = may(permission);
  const reason = `needs the role ${needed}`;
  return h('button', {
    type: 'button', class: 'small', disabled: !isAllowed, title: isAllowed ? null : `${verb} ${reason}`,
    'aria-label': `${verb} ${subject}${isAllowed ? '' : `, ${reason}`}`, 'data-action': `${subject} ${verb.toLowerCase()}`, 'data-subject': subject,
    // The second click of a double click meets what the first one has put there.
    on: { click: ({ currentTarget: button, detail }) => { if (detail < 2 && button.getAttribute('aria-disabled') !== 'true') press(button); } },
  }, verb);
}

/** Asks whether to do it, and returns the answer. `verb` is the text of the button, `details` says what will happen. */
export function confirm(question, details, verb) {
  const dialog = byId('confirm-dialog');
  // The second click of a double click on what opened the dialog is no answer.
  const once = { click: (event) => { if (event.detail > 1) event.preventDefault(); } };
  const yes = h('button', { type: 'submit', class: 'primary', value: 'yes', on: once }, verb);
  const no = h('button', { type: 'submit', value: 'no', autofocus: true }, 'Cancel');
  dialog.returnValue = 'no';
  dialog.replaceChildren(h('form', { method: 'dialog' }, h('h2', { id: 'confirm-title' }, question),
    h('p', null, withCommands(details)), h('div', { class: 'row end' }, no, yes)));
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener('close', () => answer(dialog.returnValue === 'yes'), { once: true });
  });
}

/** A text to copy, with a button, below a heading of the level that fits there. */
export function copyable(name, text, heading = 'h4') {
  const code = h('pre', { tabindex: '0', 'aria-label': name }, h('code', null, text));
  const button = h('button', { type: 'button', class: 'small copy' }, 'Copy');
  const said = h('span', { class: 'unseen', role: 'status' });
  button.setAttribute('aria-label', `Copy: ${name}`);
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      // Only a page at https:// or on this machine may write there.
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = 'Marked: press Ctrl+C';
    }
    said.textContent = button.textContent;
    setTimeout(() => {
      button.textContent = 'Copy';
      said.textContent = '';
    }, 2500);
  });
  return h('div', { class: 'command' }, h('div', { class: 'row' }, h(heading, null, name), button, said), code);
}
