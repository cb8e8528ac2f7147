// The HTTP API of the box, with the session of the person who signed in. The session has two halves: a cookie that no script
// reads, and the token here, in the storage of this tab. Pages of other ports of this host may get the cookie, never the token.

const STORED = 'ledge-session';

let session = sessionStorage.getItem(STORED);
let refused = null;
let shared = null;
/** Set when a person did something: other requests do not extend the session. */
let isActive = true;
for (const event of ['pointerdown', 'keydown']) window.addEventListener(event, () => { isActive = true; }, { capture: true, passive: true });

/** The other tabs with this page: one that is opened later gets the session from them. */
const tabs = new BroadcastChannel(STORED);
tabs.onmessage = ({ data: { isWanted, begun, ended } }) => {
  if (isWanted && session !== null) tabs.postMessage({ begun: session });
  if (begun && session === null) keep(begun);
  else if (ended && ended === session) keep(null);
  else return;
  shared?.();
};
if (session === null) tabs.postMessage({ isWanted: true });

function keep(begun) {
  session = begun;
  if (begun === null) sessionStorage.removeItem(STORED);
  else sessionStorage.setItem(STORED, begun);
}

/** An error of the API in its own words, or of the connection. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function isSignedIn() {
  return session !== null;
}

/** Signs in with a code of `ledge login`, or with an API key. */
export async function signIn(secret) {
  const body = secret.startsWith('ledge_') ? { key: secret } : { code: secret };
  const before = session;
  session = null;
  try {
    const { session: begun } = await post('/session', body, { quiet: true });
    keep(begun);
  } catch (error) {
    session = before;
    throw error;
  }
}

/** Ends the session, here and in the other tabs. */
export async function signOut() {
  const ended = session;
  await post('/session/end', {}, { quiet: true }).catch(() => null);
  keep(null);
  tabs.postMessage({ ended });
}

/** Calls `listener` when another tab signed in or out, and when the session has ended. */
export function onShared(listener) {
  shared = listener;
}

/** Calls `listener` with the error of each answer of 401 or 403. */
export function onRefused(listener) {
  refused = listener;
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let message = text.slice(0, 500) || `the box answered with the status ${response.status}`;
  try {
    let body = JSON.parse(text);
    // Errors about features have the form of Feast: JSON in a string of JSON.
    if (typeof body === 'string') body = JSON.parse(body);
    message = body.error?.message ?? body.error ?? body.message ?? body.detail?.[0]?.msg ?? body.detail ?? message;
  } catch {
    // Not JSON: something between this page and the box answered.
  }
  return new ApiError(response.status, String(message));
}

/** Sends a request and returns the answer; an answer that is an error is thrown. `quiet` leaves the dialog closed. */
export async function send(path, { quiet = false, headers = {}, ...options } = {}) {
  const all = new Headers(headers);
  const used = session;
  if (used !== null) all.set('x-ledge-session', used);
  if (!isActive) all.set('x-ledge-background', 'true');
  isActive = false;
  let response;
  try {
    response = await fetch(path, { ...options, headers: all, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The box does not answer. It may be restarting, or the network is down.');
  }
  if (response.ok) return response;
  const failed = await errorOf(response);
  options.signal?.throwIfAborted();
  // The refusal of a session that is not in use any more says nothing about the present one.
  const isPresent = used === session;
  const hasEnded = isPresent && used !== null && failed.status === 401;
  if (hasEnded) {
    keep(null);
    shared?.();
  }
  if (!quiet && isPresent && (failed.status === 401 || failed.status === 403)) refused?.(failed);
  throw failed;
}

export async function get(path, options) {
  return (await send(path, options)).json();
}

export async function post(path, body, options) {
  const response = await send(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body ?? {}),
    ...options,
  });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}
