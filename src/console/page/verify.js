// @ts-check
// Verifies an audit log (C2SP tlog-tiles, signed notes) with a verifier key. `files(path)` gives the bytes of a file, or
// `null`. The signature proves the root, the root the hashes at the right edge of the tree, and a proven hash the tile or
// record below it: so each change is found in its own place.

const TILE = 256;
const HASH = 32;
const FAULTS_MAX = 100;
const AT_A_TIME = 8;

/**
 * What is wrong. `kind`: `tampered`, `missing`, `fork`, or `input`, which is no fault of the log. `isGone`: a bundle of
 * records is not there, as after its removal by the box.
 */
export class Fault extends Error {
  constructor(kind, message, isGone = false) {
    super(message);
    this.kind = kind;
    this.isGone = isGone;
  }
}

/** For `catch`: a fault is `null`. A request that failed says nothing about the log. */
function noFault(error) {
  if (error instanceof Fault) return null;
  throw error;
}

export function fromBase64(text) {
  try {
    const binary = atob(text);
    // A value has one text: none can be changed without being noticed.
    return btoa(binary) === text ? Uint8Array.from(binary, (one) => one.charCodeAt(0)) : null;
  } catch {
    return null;
  }
}

export const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));
const equal = (one, other) => one?.length === other?.length && one.every((byte, at) => byte === other[at]);
const range = (length, make) => Array.from({ length }, (_, at) => make(at));
const down = Math.floor;

async function sha256(...parts) {
  const bytes = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
}

// RFC 6962, 2.1.
const leaf = (record) => sha256([0], record);
const node = (left, right) => sha256([1], left, right);

/** The hash over hashes whose number is a power of two. */
async function subtree(hashes) {
  let level = hashes;
  while (level.length > 1) level = await Promise.all(range(level.length / 2, (at) => node(level[2 * at], level[2 * at + 1])));
  return level[0];
}

/** The partial tiles of a tree, each with its level, index and width. */
function edge(size) {
  const tiles = [];
  for (let [level, rest] = [0, size]; rest > 0; level += 1) {
    const index = down(rest / TILE);
    if (rest % TILE) tiles.push({ level, index, width: rest % TILE });
    rest = index;
  }
  return tiles;
}

/** The root over `size` records. `hashes[level]` begins with those of its partial tile. */
async function rootOf(size, hashes) {
  const complete = [];
  for (const { level, width } of edge(size).reverse()) {
    for (let at = 0; at < width;) {
      const count = 2 ** down(Math.log2(width - at));
      complete.push(await subtree(hashes[level].slice(at, at + count)));
      at += count;
    }
  }
  let root = complete.pop();
  while (complete.length) root = await node(complete.pop(), root);
  return root;
}

const keyId = async (name, key) => [...(await sha256(new TextEncoder().encode(`${name}\n`), key)).slice(0, 4)];

/** Reads a verifier key. */
export async function readKey(text) {
  const [, name, id, encoded] = text.trim().match(/^([^\s+]+)\+([0-9a-f]{8})\+(\S+)$/) ?? [];
  const bytes = fromBase64(encoded ?? '');
  const made = bytes && (await keyId(name, bytes)).map((byte) => byte.toString(16).padStart(2, '0')).join('');
  // The first byte is the type: Ed25519.
  if (bytes?.length !== 1 + HASH || bytes[0] !== 1 || made !== id) {
    throw new Fault('input', 'This is not a verifier key, or a character is wrong. Expected NAME+ID+KEY, as `ledge audit key` prints it.');
  }
  return { name, bytes, text: text.trim() };
}

async function isSigned(key, signature, text) {
  try {
    const imported = await crypto.subtle.importKey('raw', key.bytes.slice(1), 'Ed25519', false, ['verify']);
    return await crypto.subtle.verify('Ed25519', imported, signature, text);
  } catch (error) {
    if (error.name !== 'NotSupportedError') return false;
    throw new Fault('input', 'This browser cannot check Ed25519 signatures. Use a newer one, or `ledge audit verify`.');
  }
}

/** Opens a signed head. A box that was renamed has signed with its key under another name. */
export async function openHead(bytes, key, generation) {
  const wrong = (what) => new Fault('tampered', `The checkpoint is refused: ${what}.`);
  const end = bytes.findLastIndex((byte, at) => byte === 10 && bytes[at + 1] === 10);
  const text = bytes.slice(0, end + 1);
  let signer;
  for (const line of new TextDecoder().decode(bytes.slice(end + 2)).split('\n').slice(0, -1)) {
    const [, name, encoded] = line.match(/^— ([^\s+]+) (\S+)$/) ?? [];
    const signature = fromBase64(encoded ?? '');
    if (!signature) throw wrong('the line of its signature is damaged');
    if (!equal([...signature.slice(0, 4)], await keyId(name, key.bytes))) continue;
    if (!await isSigned(key, signature.slice(4), text)) throw wrong('its text or its signature was changed');
    signer ??= name;
  }
  if (end < 0 || !signer) throw wrong(`it is not signed by this key, that of ${key.name}`);

  const [origin, size, encoded] = new TextDecoder().decode(text).split('\n');
  const root = fromBase64(encoded ?? '');
  if (!/^[1-9]\d{0,14}$/.test(size) || root?.length !== HASH) throw wrong('it has no size or no root');
  if (origin !== `${signer}/${generation}`) throw wrong(`it is that of ${origin}, not of ${signer}/${generation}`);
  return { origin, size: Number(size), root, signer };
}

/** The entries of a bundle, and whether there is nothing else in it. */
function split(bytes) {
  const entries = [];
  for (let at = 0; ;) {
    const end = at + 2 + bytes[at] * 256 + bytes[at + 1];
    if (!(end <= bytes.length)) return { entries, isWhole: at === bytes.length };
    entries.push(bytes.subarray(at + 2, end));
    at = end;
  }
}

/** A log under a head. */
export class Log {
  /** The hashes that were found changed or missing, where those below them are the signed ones. */
  faults = [];
  #edge = null;
  #kept = new Map();

  constructor(head, files) {
    this.head = head;
    this.files = files;
    this.bundles = Math.ceil(head.size / TILE);
  }

  #width(level, index) {
    return Math.min(TILE, down(this.head.size / TILE ** level) - index * TILE);
  }

  #path(level, index, name = level) {
    const width = this.#width(level, index);
    const groups = String(index).padStart(3 * Math.ceil(String(index).length / 3), '0').match(/.{3}/g);
    return `tile/${name}/${groups.join('/').replaceAll(/\d{3}(?=\/)/g, 'x$&')}${width < TILE ? `.p/${width}` : ''}`;
  }

  async #hashes(level, index) {
    const [path, width, bytes] = [this.#path(level, index), this.#width(level, index), await this.files(this.#path(level, index))];
    if (!bytes) throw new Fault('missing', `The hashes ${path} are not there.`);
    if (bytes.length !== width * HASH) throw new Fault('tampered', `${path} has ${bytes.length} bytes, and not ${width} hashes.`);
    return range(width, (at) => bytes.subarray(at * HASH, (at + 1) * HASH));
  }

  /** The hashes of a tile that fit: as they are, or made again of what is below them. */
  async #fitting(level, index, fits) {
    const path = this.#path(level, index);
    let found = null;
    let fault = new Fault('tampered', `The hashes in ${path} are not those that were signed, nor is what is below them.`);
    try {
      found = await this.#hashes(level, index);
      if (await fits(found)) return found;
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      fault = error;
    }
    const below = level ? range(this.#width(level, index), async (at) => subtree(await this.#hashes(level - 1, index * TILE + at)))
      : (await this.#bundle(index).catch(noFault))?.entries.map(leaf);
    const made = below && await Promise.all(below).catch(noFault);
    if (!made) throw fault;
    if (!await fits(made)) throw found ? fault : new Fault('tampered', `${fault.message} What is below them is not what was signed.`);
    const at = found?.findIndex((hash, place) => !equal(hash, made[place]));
    this.faults.push(found ? new Fault('tampered', `Hash ${at} in ${path} was changed. What is below it was not.`) : fault);
    return made;
  }

  async #findEdge() {
    const { size, root } = this.head;
    const tiles = edge(size);
    const found = [];
    let fault = new Fault('tampered', `The hashes in ${tiles.map(({ level, index }) => this.#path(level, index)).join(', ')} do not lead to the signed root: this is not the history that was signed.`);
    for (const { level, index } of tiles) found[level] = await this.#hashes(level, index).catch((error) => { noFault(error); fault = error; });
    const fits = async (hashes) => tiles.every(({ level, width }) => hashes[level]?.length === width) && equal(await rootOf(size, hashes), root);
    if (await fits(found)) return found;
    for (const { level, index } of tiles) {
      const others = found.slice();
      const fit = await this.#fitting(level, index, (hashes) => { others[level] = hashes; return fits(others); }).catch(noFault);
      if (fit) return others;
    }
    throw fault;
  }

  /** The hashes of a tile that lead to the signed root. */
  proven(level, index) {
    if (this.#width(level, index) < TILE) {
      this.#edge ??= this.#answer(this.#findEdge(), () => { this.#edge = null; });
      return this.#edge.then((hashes) => hashes[level]);
    }
    const kept = this.#kept.get(level);
    if (kept?.index === index) return kept.hashes;
    const hashes = this.proven(level + 1, down(index / TILE))
      .then((above) => this.#fitting(level, index, async (one) => one.length === TILE && equal(await subtree(one), above[index % TILE])));
    // The last of a level is kept: its neighbours below are next.
    if (level) {
      this.#kept.set(level, { index, hashes });
      this.#answer(hashes, () => { if (this.#kept.get(level)?.hashes === hashes) this.#kept.delete(level); });
    }
    return hashes;
  }

  /** An answer to keep. `forget` runs when it is none, because a request failed. */
  #answer(found, forget) {
    found.catch((error) => { if (!(error instanceof Fault)) forget(); });
    return found;
  }

  /** Checks that the log begins with that of an earlier head. */
  async contains({ size, root }) {
    if (size > this.head.size) throw new Fault('tampered', `Its end was cut off: ${size} records were signed before, and now ${this.head.size}.`);
    const hashes = [];
    for (const { level, index } of edge(size)) hashes[level] = await this.proven(level, index);
    if (!equal(await rootOf(size, hashes), root)) throw new Fault('fork', `There are two histories of this log: its first ${size} records are not those that were signed before.`);
  }

  async #bundle(index) {
    const path = this.#path(0, index, 'entries');
    const bytes = await this.files(path);
    if (!bytes) throw new Fault('missing', `Records ${index * TILE} to ${index * TILE + this.#width(0, index) - 1} are not there (${path}).`, true);
    return { path, ...split(bytes) };
  }

  /** The records of a bundle that are those that were signed, and what is wrong with the others. */
  async bundle(index) {
    try {
      const { entries, isWhole, path } = await this.#bundle(index);
      const signed = await this.proven(0, index);
      const hashes = await Promise.all(entries.map(leaf));
      const isRight = (at) => equal(hashes[at], signed[at]);
      const records = entries.map((bytes, at) => ({ seq: index * TILE + at, bytes, hash: hashes[at] })).filter((_, at) => isRight(at));
      if (isWhole && records.length === signed.length && entries.length === signed.length) return { records, faults: [] };
      const wrong = signed.findIndex((_, at) => !isRight(at));
      const name = wrong < 0 ? `What is after record ${index * TILE + signed.length - 1}` : `Record ${index * TILE + wrong}`;
      const others = records.length < signed.length - 1 ? `, nor are ${signed.length - records.length - 1} others in that bundle` : '';
      return { records, faults: [new Fault('tampered', `${name} (${path}) is not what was signed${others}.`)] };
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      return { records: [], faults: [error], isGone: error.isGone };
    }
  }

  /**
   * Checks every record from `first` on, and all between it and the signature. A box removes the oldest bundles: of
   * those it checks the hashes above them. `each` gets every record, `progress` how far it is. The answer's `first` is
   * the first record that is there.
   */
  async verify({ first, signal, progress, each }) {
    const faults = new Map();
    let checked = 0;
    let begin = down(first / TILE);
    const add = (fault) => { if (faults.size < FAULTS_MAX) faults.set(fault.message, fault); };
    for (let index = begin; index < this.bundles && !signal.aborted; index += AT_A_TIME) {
      const bundles = await Promise.all(range(Math.min(AT_A_TIME, this.bundles - index), (at) => this.bundle(index + at)));
      for (const [at, { records, faults: found, isGone }] of bundles.entries()) {
        // The bundle in which the head ends is never removed.
        if (isGone && begin === index + at && begin < this.bundles - 1) begin += 1;
        else found.forEach(add);
        records.forEach(each);
        checked += records.length;
      }
      progress(Math.min((index + AT_A_TIME) * TILE, this.head.size));
      // Lets the page draw, and a press of a button count.
      await new Promise((done) => { setTimeout(done); });
    }
    for (let index = 0; index * TILE < begin; index += 1) {
      await this.proven(1, index).catch((error) => { if (error instanceof Fault) add(error); else throw error; });
    }
    this.faults.forEach(add);
    return { faults: [...faults.values()], checked, first: begin * TILE };
  }
}
