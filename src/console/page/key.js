// @ts-check
// The dialog that asks for an API key, and the caller in the header.

import { get, hasKey, onRefused, useKey } from './api.js';
import { byId, withCommands } from './dom.js';

let changed = () => {};
// Set once the dialog was closed without a key: from then on errors are shown where they belong.
let dismissed = false;
// Count the keys that were tried and the callers that were asked for: only the newest answer counts.
let tried = 0;
let identified = 0;

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
  byId('key-cancel').addEventListener('click', () => {
    // The event of the closing comes later.
    tried += 1;
    dialog.close();
  });
  dialog.addEventListener('close', () => {
    byId('key-field').value = '';
    dismissed = true;
    tried += 1;
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

/** Tries a key, which is used once the box has accepted it. */
async function take(text) {
  tried += 1;
  const mine = tried;
  let found;
  try {
    found = await get('/access', { quiet: true, key: text });
  } catch (error) {
    if (mine === tried) ask(error.message);
    return;
  }
  if (mine !== tried) return;

  identified += 1;
  useKey(text);
  caller = found;
  byId('key-dialog').close();
  show();
  changed();
}

/** Asks the box who this is. */
export async function identify() {
  identified += 1;
  const mine = identified;
  const found = await get('/access').catch(() => null);
  if (mine !== identified) return;

  caller = found;
  show();
  changed();
}

function show() {
  byId('device').textContent = caller?.device ?? '';
  const who = byId('caller');
  who.textContent = caller ? `${caller.name} · ${caller.roles.join(', ') || 'no role'}` : 'not let in';
  who.title = caller ? `Permissions: ${caller.permissions.join(', ') || 'none'}` : '';
  byId('forget-key').hidden = !hasKey();
  byId('use-key').hidden = hasKey();
}
