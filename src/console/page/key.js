// The dialog in which a person signs in, and the caller in the header.

import { ApiError, get, isSignedIn, onRefused, onShared, signIn, signOut } from './api.js';
import { byId, withCommands } from './dom.js';

const NO_COOKIE = 'This browser does not keep a sign-in on a page with http://. Use the https:// address of the box.';

let changed = () => {};
// Set once the dialog was closed without a sign-in: from then on errors are shown where they belong.
let dismissed = false;
// Count the secrets that were tried and the callers that were asked for: only the newest answer counts.
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
  byId('forget-key').addEventListener('click', async () => {
    dismissed = true;
    await signOut();
    identify();
  });
  onShared(() => {
    if (isSignedIn()) dialog.close();
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
    if (!dismissed && !(dialog.open && byId('key-field').value)) ask(error.message);
  });
  offerCode();
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

/** Signs in, and asks the box who this is. */
async function take(text) {
  tried += 1;
  const mine = tried;
  try {
    await signIn(text);
    const found = await get('/access', { quiet: true }).catch((error) => {
      throw error.status === 401 ? new ApiError(401, NO_COOKIE) : error;
    });
    if (mine !== tried) return;
    identified += 1;
    caller = found;
  } catch (error) {
    if (mine !== tried) return;
    ask(error.message);
    return;
  }
  byId('key-dialog').close();
  show();
  changed();
}

/** Offers a code that came in the address. Its person still has to press the button, as anybody can make such an address. */
function offerCode() {
  const code = location.hash.match(/^#sign-in=([0-9A-Za-z-]{13,20})$/)?.[1];
  if (!code) return;
  history.replaceState(null, '', location.pathname);
  ask();
  byId('key-field').value = code;
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
  byId('forget-key').hidden = !isSignedIn();
  byId('use-key').hidden = isSignedIn();
}
