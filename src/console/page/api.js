// @ts-check
// The HTTP API of the box. The key is in a variable of this module and nowhere else.

let key = null;
let refused = null;

/** An error of the API in its own words, or of the connection. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return key !== null;
}

/** Uses a key from now on, or none for `null`. */
export function useKey(text) {
  key = text;
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

/**
 * Sends a request and returns the answer; an answer that is an error is thrown. `quiet` leaves the dialog closed; another
 * `key` is used for this request only.
 * @param {string} path
 * @param {RequestInit & { quiet?: boolean, key?: string | null }} [options]
 */
export async function send(path, { quiet = false, key: used = key, headers = {}, ...options } = {}) {
  const all = new Headers(headers);
  if (used !== null) all.set('authorization', `Bearer ${used}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers: all, cache: 'no-store', credentials: 'omit', redirect: 'error' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The box does not answer. It may be restarting, or the network is down.');
  }
  if (response.ok) return response;
  const failed = await errorOf(response);
  options.signal?.throwIfAborted();
  // The refusal of a key that is not in use any more says nothing about the present one.
  if (!quiet && used === key && (failed.status === 401 || failed.status === 403)) refused?.(failed);
  throw failed;
}

/**
 * The answer of a `GET`, of the shape that the description of the API gives it.
 * @template {string} Path
 * @param {Path} path
 * @param {RequestInit & { quiet?: boolean, key?: string | null }} [options]
 * @returns {Promise<Path extends keyof Api.Answers ? Api.Answers[Path] : any>}
 */
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
