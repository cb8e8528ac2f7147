// Pieces that several sections have.

import { byId, failure, h, keyButton, withCommands } from './dom.js';
import { ask, may } from './key.js';

/** The length of a list from which it can be searched. */
const FINDER_MIN = 8;

/**
 * `show` and `hide` of a section whose content is loaded again each `milliseconds` while it is shown, and by `reload`.
 * `load` gets a signal that is aborted when the section is left or the caller changes: what comes afterwards is not
 * drawn. One load runs at a time.
 */
export function refreshed(milliseconds, load) {
  let stop = null;
  let again = () => {};
  return {
    /** That of the loads; `undefined` while the section is not shown. */
    get signal() {
      return stop?.signal;
    },
    show() {
      if (stop) return;
      stop = new AbortController();
      const { signal } = stop;
      let isLoading = false;
      let isOutdated = false;
      const run = async () => {
        if (isLoading) return;
        isLoading = true;
        try {
          do {
            isOutdated = false;
            await load(signal);
          } while (isOutdated && !signal.aborted);
        } finally {
          isLoading = false;
        }
      };
      again = () => {
        // A load that runs may have asked before the change.
        isOutdated = true;
        return run();
      };
      run();
      const timer = setInterval(() => { if (!document.hidden) run(); }, milliseconds);
      signal.addEventListener('abort', () => clearInterval(timer));
    },
    hide() {
      stop?.abort();
      stop = null;
    },
    reload() {
      return stop ? again() : undefined;
    },
  };
}

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

/** Says why a part of a section could not be loaded. A refusal is said where the section shows what needs the same permission. */
export function sayUnlessRefused(place, error) {
  const isRefused = error.status === 401 || error.status === 403;
  say(place, !isRefused && failure(error, () => ask()));
}

/** What a section shows a caller that may not see it; `null` for one that may. */
export function refusal(permission, message) {
  return may(permission) ? null : failure({ status: 401, message }, () => ask());
}

/** Fills a place by `load`, or with the reason why it cannot be; with nothing once the signal is aborted. */
export async function filled(place, what, load, signal) {
  try {
    const refused = refusal('view', `${what} needs the role viewer, operator, auditor or admin.`);
    if (refused) say(place, refused);
    else await load(signal);
  } catch (error) {
    if (!signal?.aborted) say(place, failure(error, () => ask()));
  }
}

/** Names with their values, in a row. */
export function facts(values) {
  return h('dl', { class: 'times' }, Object.entries(values).map(([name, value]) => h('div', null, h('dt', null, name), h('dd', { class: 'long' }, value))));
}

/** A field for a name or a number. */
export function field(name, more) {
  return h('input', { type: 'text', name, spellcheck: 'false', autocapitalize: 'none', autocomplete: 'off', ...more });
}

/**
 * Puts new content into an element. The focus stays on what has the same `data-action`, or else on the first that acts on
 * the same subject; opened details stay open.
 */
export function replace(place, ...content) {
  const { action: focused, subject } = place.contains(document.activeElement) ? document.activeElement.dataset : {};
  const opened = new Set([...place.querySelectorAll('details[open]')].map((one) => one.dataset.action));
  place.replaceChildren(...content.flat(Infinity).filter(Boolean));
  for (const one of place.querySelectorAll('details')) {
    if (one.dataset.action && opened.has(one.dataset.action)) one.open = true;
  }
  if (!focused) return;
  const all = [...place.querySelectorAll('[data-action]')];
  (all.find((one) => one.dataset.action === focused) ?? all.find((one) => subject && one.dataset.subject === subject))?.focus();
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
