// The dialog that asks for an API key, and the caller in the header.

import { get, hasKey, onRefused, useKey } from './api.js';
import { byId, withCommands } from './dom.js';

let changed = () => {};
// Set once the dialog was closed without a key: from then on errors are shown where they belong.
let dismissed = false;

/** The caller: its name, roles, permissions; `null` when it is not let in. */
export let caller = null;

export function may(permission) {
  return caller?.permissions.includes(permission) ?? false;
}

/** Prepares the dialog. `listener` runs after each change of the caller. */
export function start(listener) {
  changed = listener;
  const dialog = byId('key-dialog');
  byId('use-key').addEventListener('click', () => ask());
  byId('forget-key').addEventListener('click', () => {
    useKey(null);
    dismissed = true;
    identify();
  });
  byId('key-cancel').addEventListener('click', () => dialog.close());
  dialog.addEventListener('close', () => {
    byId('key-field').value = '';
    dismissed = true;
  });
  byId('key-form').addEventListener('submit', (event) => {
    event.preventDefault();
    const text = byId('key-field').value.trim();
    if (!text) return;
    take(text);
  });
  onRefused((error) => {
    if (!dismissed) ask(error.message);
  });
}

/** Opens the dialog, with a reason where there is one. */
export function ask(reason) {
  const dialog = byId('key-dialog');
  const place = byId('key-reason');
  place.hidden = !reason;
  place.replaceChildren(...withCommands(reason ?? ''));
  if (!dialog.open) dialog.showModal();
  byId('key-field').focus();
}

/** Tries a key: a wrong one is not kept. */
async function take(text) {
  const goBack = useKey(text);
  try {
    caller = await get('/access', { quiet: true });
  } catch (error) {
    goBack();
    ask(error.message);
    return;
  }
  byId('key-dialog').close();
  show();
  changed();
}

/** Asks the box who this is. */
export async function identify() {
  try {
    caller = await get('/access');
  } catch {
    caller = null;
  }
  show();
  changed();
}

function show() {
  byId('device').textContent = caller?.device ?? '';
  const title = caller?.device ? `${caller.device} – Ledge` : 'Ledge';
  document.title = title;
  const who = byId('caller');
  who.textContent = caller ? `${caller.name} · ${caller.roles.join(', ') || 'no role'}` : 'not let in';
  who.title = caller ? `Permissions: ${caller.permissions.join(', ') || 'none'}` : '';
  byId('forget-key').hidden = !hasKey();
  byId('use-key').hidden = hasKey();
}
