// Pieces that several sections have.

import { byId, failure, h, withCommands } from './dom.js';
import { ask, may } from './key.js';

/**
 * `show` and `hide` of a section whose content is loaded again each `milliseconds` while it is shown. `load` gets a
 * signal that is aborted when the section is left.
 */
export function refreshed(milliseconds, load) {
  let stop = null;
  return {
    show() {
      if (stop) return;
      stop = new AbortController();
      const { signal } = stop;
      load(signal);
      const timer = setInterval(() => { if (!document.hidden) load(signal); }, milliseconds);
      signal.addEventListener('abort', () => clearInterval(timer));
    },
    hide() {
      stop?.abort();
      stop = null;
    },
  };
}

/** What a section shows a caller that may not see it; `null` for one that may. */
export function refusal(permission, message) {
  return may(permission) ? null : failure({ status: 401, message }, () => ask());
}

/** Fills a place by `load`, or with the reason why it cannot be. */
export async function filled(place, what, load) {
  try {
    const refused = refusal('view', `${what} needs the role viewer, operator, auditor or admin.`);
    if (refused) place.replaceChildren(refused);
    else await load();
  } catch (error) {
    place.replaceChildren(failure(error, () => ask()));
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

/** Puts new content into an element. The focus stays on what has the same `data-action`, and opened details stay open. */
export function replace(place, ...content) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.action : undefined;
  const opened = new Set([...place.querySelectorAll('details[open]')].map((one) => one.dataset.action));
  place.replaceChildren(...content.flat(Infinity).filter(Boolean));
  for (const one of place.querySelectorAll('details')) {
    if (one.dataset.action && opened.has(one.dataset.action)) one.open = true;
  }
  if (focused) [...place.querySelectorAll('[data-action]')].find((one) => one.dataset.action === focused)?.focus();
}

/** A button of a row, which a caller without the permission sees and cannot press. `needed` names the roles. */
export function action(verb, subject, permission, needed, press) {
  const isAllowed = may(permission);
  const reason = `needs the role ${needed}`;
  return h('button', {
    type: 'button', class: 'small', disabled: !isAllowed, title: isAllowed ? null : `${verb} ${reason}`,
    'aria-label': `${verb} ${subject}${isAllowed ? '' : `, ${reason}`}`, 'data-action': `${subject} ${verb.toLowerCase()}`,
    on: { click: (event) => press(event.currentTarget) },
  }, verb);
}

/** Asks whether to do it, and returns the answer. `verb` is the text of the button, `details` says what will happen. */
export function confirm(question, details, verb) {
  const dialog = byId('confirm-dialog');
  const yes = h('button', { type: 'submit', class: 'primary', value: 'yes' }, verb);
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
    setTimeout(() => { button.textContent = 'Copy'; }, 2500);
  });
  return h('div', { class: 'command' }, h('div', { class: 'row' }, h(heading, null, name), button), code);
}
