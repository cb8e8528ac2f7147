// @ts-check
// The audit log: its state, its records and their verification by this page; and what left the box.

import { get, send } from './api.js';
import { bytes, failure, h, number, withCommands } from './dom.js';
import { ask, may } from './key.js';
import { keyedTable } from './keyed.js';
import { facts, field, replace, say } from './parts.js';
import * as report from './report.js';
import { answered, part, section as sectionOf } from './section.js';
import { cell, figure, list, row, title } from './table.js';
import { Fault, fromBase64, Log, openHead, readKey, toBase64 } from './verify.js';

const ROWS = 25;
// A search that finds little stops after so many bundles of 256 records.
const BUNDLES_AT_ONCE = 40;
// The next question waits for the answer to the one before.
const ANSWER_MS = 60_000;
const FILTERS = { event: 'model_loaded', model: '', caller: 'local, key or a tag', outcome: 'ok, failed, refused', text: '' };
const FROM_BOX = 'The box itself says that this is its key: the check proves that the log agrees with itself and with what this page saw before, not that nobody replaced all of it. For that, paste the key that you noted elsewhere, from `ledge audit key` or the platform.';

let status = null;
/** The verifier key that was pasted, and the number of the log that was chosen. */
let pasted = null;
let chosen = null;
/** The newest head and what is wrong with it; the heads that this page saw, by the number of their log. */
let head = null;
const seen = new Map();
/** The first key that the box named, and the highest number of a log: for as long as the page is open. */
let knownKey = null;
let knownLog = 0;
/** The records that are listed; the walk through all of them. */
let shown = null;
let walk = null;
/** Aborted when the caller, the key or the log changes: later answers to earlier questions are dropped. */
let turn = new AbortController();

const told = h('div');
const troubles = h('div');
const state = h('div');
const check = h('div');
const verdict = h('div', { role: 'status' });
const form = h('form', { class: 'filters', hidden: true, on: { change: () => relist(), submit: (event) => event.preventDefault() } },
  Object.entries(FILTERS).map(([name, placeholder]) => h('label', null, name[0].toUpperCase() + name.slice(1), field(name, { placeholder }))));
const records = h('div', { class: 'stack' });
// A record of a log does not change.
const table = keyedTable('Records, the newest first', ['Record', 'Time (UTC)', 'Event', 'Caller'], ({ seq }) => seq, recordRow, { printOf: ({ hash }) => toBase64(hash) });
const log = h('div', { class: 'stack' }, told, troubles, state, check, form, records);
const egress = h('div', { class: 'stack', hidden: true });

const timed = (path, signal) => get(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]) });

const followed = part({
  every: 5000,
  place: told,
  needs: ['view', 'The audit log needs the role viewer, operator, auditor or admin.'],
  load: (signal) => timed('/audit/status', signal),
  async draw(answer, signal) {
    status = answer;
    told.replaceChildren();
    drawState();
    await answered(follow, undefined, (error) => { throw error; }, AbortSignal.any([signal, turn.signal]));
  },
  reset() {
    forget();
    [status, form.hidden] = [null, true];
    for (const one of [troubles, state, records]) one.replaceChildren();
  },
});

const left = part({
  every: 5000,
  place: egress,
  needs: ['view', 'What left the box needs the role viewer, operator, auditor or admin.'],
  load: (signal) => timed('/egress', signal),
  draw: drawEgress,
});

export const section = sectionOf({
  build(element) {
    const choice = (name, text, isShown) => [h('input', { type: 'radio', name: 'audit-part', id: `audit-${name}`, checked: isShown, on: { change: () => {
      [log.hidden, egress.hidden] = [!isShown, isShown];
      section.show();
    } } }), h('label', { for: `audit-${name}` }, text)];
    element.append(h('div', { class: 'section-head' }, h('h1', { id: 'audit-title' }, 'Audit'),
      h('fieldset', { class: 'segments' }, h('legend', { class: 'unseen' }, 'Shown'), choice('log', 'Log', true), choice('egress', 'What left the box', false))), report.element, log, egress);
  },
  show() {
    report.refresh();
    const [wanted, other] = log.hidden ? [left, followed] : [followed, left];
    other.hide();
    wanted.show();
  },
  hide() {
    followed.hide();
    left.hide();
  },
  reset() {
    followed.changed();
    left.changed();
    report.refresh();
  },
});

/** Forgets what is shown of a log. */
function forget() {
  turn.abort();
  turn = new AbortController();
  walk?.abort();
  [walk, head, shown] = [null, null, null];
  table.update([]);
  for (const one of [check, verdict]) one.replaceChildren();
}

const many = (value) => value.toLocaleString('en');
const when = (time) => (time ? time.replace('T', ' ').replace(/(\.\d+)?Z$/, '') : '–');
const long = (text) => h('code', { class: 'long' }, text);
const button = (name, text, click) => h('button', { type: 'button', class: 'small', 'data-action': name, on: { click } }, text);
const newest = () => Number(status.origin.split('/').at(-1));

/** The files of a log. */
function files(of) {
  return async (path) => {
    try {
      return new Uint8Array(await (await send(`/audit/logs/${of}/${path}`, { signal: AbortSignal.timeout(ANSWER_MS) })).arrayBuffer());
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  };
}

function drawState() {
  const { error, alarm, origin, size, first: begin, quota, lost, sync, copies } = status;
  const values = { Log: origin, Records: size ? many(size) : 'opening', Disk: `${bytes(status.bytes)} of ${bytes(quota)}`,
    'Lost before they were recorded': lost.calls + lost.events ? `${many(lost.calls)} calls, ${many(lost.events)} other events` : 'nothing',
    'Copy on the platform': sync ? `${many(sync.size)} records, last contact ${when(sync.at)}` : 'none' };
  if (begin > 0) values['First on this box'] = many(begin);
  for (const copy of copies) values[copy.name] = `${many(copy.sent)} sent to ${copy.to}, ${many(copy.lost)} lost`;
  const messages = [error && `The log cannot be written: ${error}`, alarm && `The log before this one was not continued: ${alarm}`,
    ...[sync, ...copies].map((copy) => copy?.error && `The copy at ${copy.url ?? copy.to} waits: ${copy.error}`)];
  say(troubles, h('div', { class: 'stack' }, messages.map((message) => message && failure({ message }))));
  replace(state, h('div', { class: 'card' }, facts(values)));
}

/** What is wrong with the key and the log that the box names now, after those that it named before. */
function replaced(named) {
  knownKey ??= named;
  knownLog = Math.max(knownLog, newest());
  // A box that was renamed keeps its key, and begins a log with the next number. Whoever pastes a key decides which is right.
  if (!pasted && toBase64(named.bytes) !== toBase64(knownKey.bytes)) {
    return new Fault('fork', `The box names another key than before. It was ${knownKey.text}: the key was replaced, and all of the log may be, or another box answers. If you did that, reload the page.`);
  }
  return newest() < knownLog ? new Fault('fork', `The log of this box was number ${knownLog}, and now it is number ${newest()}: logs were removed, or all of them were replaced.`) : null;
}

/** Checks the newest head, and that it continues the one before. */
async function follow(signal) {
  const refused = !may('audit') ? { status: 403, message: 'To read and verify the records, use a key with the role auditor or admin.' }
    : !crypto.subtle && { message: 'Browsers check signatures only on pages at https:// and on the box itself. Open the page there, or run `ledge audit verify`.' };
  if (refused) say(check, failure(refused, () => ask()));
  // A log that is being opened has no key yet.
  if (refused || walk || !status.verifier_key) return;
  const of = chosen ?? newest();
  const next = { of, first: of === newest() ? status.first : 0 };
  const named = await readKey(status.verifier_key);
  if (signal.aborted) return;
  const fault = replaced(named);
  const [file, key] = [files(of), pasted ?? named];
  const note = await file('checkpoint');
  if (signal.aborted) return;
  Object.assign(next, { key, fault, id: `${of} ${status.origin} ${named.text} ${key.text} ${note && toBase64(note)}` });
  if (head?.id === next.id) return;
  let signed = null;
  try {
    if (!note) throw new Fault('missing', 'There is no checkpoint: nothing in this log is signed.');
    signed = await openHead(note, key, of);
    next.log = new Log(signed, file);
    next.earlier = seen.get(of);
    if (next.earlier && next.earlier.origin !== signed.origin) throw new Fault('fork', `There are two logs with the number ${of}: this page saw ${next.earlier.origin} before, and now ${signed.origin}.`);
    await next.log.contains(signed);
    if (next.earlier) await next.log.contains(next.earlier);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    next.fault ??= error;
  }
  // A walk that began meanwhile ends with its own head.
  if (signal.aborted || walk) return;
  if (next.fault) verdict.replaceChildren();
  else seen.set(of, { ...signed, at: new Date() });
  head = next;
  drawCheck();
  if (head.log && (shown?.of !== of || (shown.fault && !head.fault))) relist();
  else if (shown) drawRecords();
}

const faultList = (faults) => faults.length > 0 && h('ul', { class: 'error', role: 'alert' }, faults.map((one) => h('li', null, withCommands(one.message))));

function again() {
  forget();
  followed.reload();
}

function drawCheck() {
  const { key, of, fault, earlier } = head;
  const signed = head.log?.head;
  const faults = fault ? [fault] : head.log.faults;
  const other = field('key', { 'aria-label': 'Another verifier key', placeholder: 'NAME+ID+KEY', 'data-action': 'key' });
  other.value = check.querySelector('input')?.value ?? '';
  const problem = h('p', { class: 'reason', role: 'alert' });
  const use = async (event) => {
    event.preventDefault();
    try {
      pasted = other.value.trim() ? await readKey(other.value) : null;
      again();
    } catch (error) {
      problem.replaceChildren(...withCommands(error.message));
    }
  };
  const choose = (event) => {
    chosen = Number(event.target.value);
    again();
  };
  const isOther = key.text !== status.verifier_key;
  replace(check, h('div', { class: 'card stack' },
    h('div', { class: 'row' }, h('h2', null, 'Verification'), h('span', { class: `badge ${faults.length ? 'fail' : 'ok'}` }, faults.length ? 'refused' : 'head verified'),
      newest() > 1 && h('label', { class: 'row' }, 'Log', h('select', { 'data-action': 'log', on: { change: choose } },
        Array.from({ length: newest() }, (_, at) => h('option', { value: at + 1, selected: at + 1 === of }, at + 1))))),
    faultList(faults),
    !fault && h('p', null, `${many(signed.size)} records are signed by this key, and their hashes lead to the signed root `, long(toBase64(signed.root)), '. ',
      earlier && `They begin with the ${many(earlier.size)} that this page saw signed at ${earlier.at.toLocaleTimeString('sv')}. `,
      signed.signer !== key.name && `The box signed them under the name ${signed.signer}.`),
    h('details', { 'data-action': 'about the key', open: isOther }, h('summary', null, `Verifier key: ${pasted ? 'pasted by you' : 'named by the box'}`),
      h('p', null, long(key.text)), isOther && h('p', { class: 'reason' }, `The box names another: ${status.verifier_key}`),
      h('p', { class: 'hint' }, withCommands(pasted ? 'Whoever holds the private half of this key signed the log.' : FROM_BOX)),
      h('form', { class: 'row', on: { submit: use } }, other, h('button', { type: 'submit', class: 'small' }, pasted ? 'Use it, or none' : 'Use this key')), problem),
    signed && h('div', null, button('verify', 'Verify every record', verifyAll)), verdict));
}

/** Compares the end of a log with what the log after it says of it. */
async function compareWithNext({ log: of, of: at, key }) {
  const file = files(at + 1);
  const next = new Log(await openHead(await file('checkpoint') ?? new Uint8Array(), key, at + 1), file);
  const [begun] = (await next.bundle(0)).records;
  const previous = begun && parse(begun).event.previous;
  if (previous?.origin !== of.head.origin) return 'The next log does not say, on this box, how this one ended.';
  await of.contains({ size: previous.size, root: fromBase64(previous.root) });
  return 'The next log says the same of it.';
}

async function verifyAll() {
  if (walk) return;
  const [of, mine] = [head, new AbortController()];
  walk = mine;
  const { signal } = mine;
  const bar = h('progress', { max: of.log.head.size, value: 0, 'aria-label': 'Records verified' });
  verdict.replaceChildren(h('div', { class: 'row' }, bar, button('cancel', 'Cancel', () => mine.abort())));
  /** @type {any} */
  const found = { pruned: 0, lost: 0 };
  const each = (record) => {
    const { event } = parse(record);
    if (event.action === 'records_pruned') found.pruned = Math.max(found.pruned, event.below);
    if (event.action === 'records_lost') found.lost += event.calls + event.events;
  };
  let answer;
  try {
    Object.assign(found, await of.log.verify({ first: of.first, each, signal, progress: (done) => { bar.value = done; } }));
    // After another choice there is no answer to show.
    answer = walk === mine && await judged(of, found, signal.aborted);
  } catch (error) {
    answer = failure(error, () => ask());
  }
  if (walk !== mine) return;
  walk = null;
  const hasFocus = verdict.contains(document.activeElement);
  verdict.replaceChildren(answer);
  if (hasFocus) check.querySelector('[data-action=verify]')?.focus();
}

/** Says what a walk through all records found. */
async function judged(of, { faults, checked, first: begin, pruned, lost }, isCancelled) {
  if (of.fault && !faults.some((one) => one.message === of.fault.message)) faults.unshift(of.fault);
  const notes = [];
  if (begin > 0) notes.push(`Records before ${begin} are no longer on this box; the hashes above them lead to the signed root.`);
  if (lost) notes.push(`The log says that ${many(lost)} calls and events never became records.`);
  if (!isCancelled && begin > pruned) {
    const unsaid = unexplained(of, begin, pruned);
    if (unsaid instanceof Fault) faults.push(unsaid);
    else notes.push(unsaid);
  }
  if (!isCancelled && of.of < newest()) {
    await compareWithNext(of).then((note) => notes.push(note)).catch((error) => { if (error instanceof Fault) faults.push(error); else throw error; });
  }
  const words = faults.length ? 'Refused. Records that are those that were signed:' : isCancelled ? 'Cancelled. Verified so far:' : 'Whole. Every record is the one that was signed:';
  return h('div', { class: `notice ${faults.length ? 'plain' : isCancelled ? '' : 'good'}` },
    h('p', null, `${words} ${many(checked)}. `, withCommands(notes.join(' '))), faultList(faults));
}

/** What to say of first records that are gone, and of which no record of this log says that the box removed them. */
function unexplained(of, begin, pruned) {
  const unsaid = new Fault('missing', `No record says that the box removed those before ${begin}. A power cut right after it did looks the same.`);
  if (of.of === newest()) {
    return of.first > pruned || begin > status.first ? unsaid : 'The box removed some meanwhile; the record of that is in a later head.';
  }
  // Of an older log the box removes all but the last bundle, and says so in a later log.
  return begin < (of.log.bundles - 1) * 256 ? unsaid : 'That the box removed them is said by a record `records_pruned` of a later log.';
}

const decoder = new TextDecoder();

function parse(record) {
  try {
    return JSON.parse(decoder.decode(record.bytes));
  } catch {
    return { event: { action: 'not_a_record' }, actor: { kind: '–' } };
  }
}

function isWanted({ event, actor }, line) {
  const { event: action, model, caller, outcome, text } = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
  return event.action.startsWith(action) && (!model || event.model === model) && (!outcome || event.outcome === outcome)
    && (!caller || actor.kind === caller || actor.tag?.startsWith(caller)) && line.toLowerCase().includes(text.toLowerCase());
}

/** Lists the records again, from the newest head back. */
async function relist() {
  if (!head?.log) return;
  shown = { ...head, next: head.log.bundles - 1, kept: [], rows: [], faults: [] };
  form.hidden = false;
  await more();
}

/** The first record that is still there. A box that is short of room removes old ones meanwhile. */
const firstOf = (of) => (of.of === newest() ? status.first : of.first);
const isEnd = (of) => !of.kept.length && of.next < Math.floor(firstOf(of) / 256);

/** Reads back until there are more rows, or enough was read. */
async function more() {
  const of = shown;
  if (of.isBusy) return;
  of.isBusy = true;
  const wanted = of.rows.length + ROWS;
  await answered(async () => {
    for (let read = 0; of.rows.length < wanted && read < BUNDLES_AT_ONCE && !isEnd(of); read += 1) {
      if (!of.kept.length) {
        const found = await of.log.bundle(of.next);
        if (of !== shown) return;
        // The oldest are removed first.
        const isPruned = found.isGone && of.of < newest() && of.next < of.log.bundles - 1 && (await of.log.bundle(0)).isGone;
        if (of !== shown) return;
        if (isPruned) {
          of.first = (of.next + 1) * 256;
          break;
        }
        of.faults.push(...found.faults.filter((one) => !of.faults.some((known) => known.message === one.message)));
        [of.kept, of.next] = [found.records, of.next - 1];
      }
      while (of.kept.length && of.rows.length < wanted) {
        const record = of.kept.pop();
        const [parsed, line] = [parse(record), decoder.decode(record.bytes)];
        if (isWanted(parsed, line)) of.rows.push({ ...parsed, ...record, line });
      }
    }
  }, undefined, (error) => say(told, failure(error, () => ask())), turn.signal);
  of.isBusy = false;
  if (of === shown) drawRecords();
}

function drawRecords() {
  const { rows, faults, next, kept } = shown;
  const first = firstOf(shown);
  const newer = head.log ? head.log.head.size - shown.log.head.size : 0;
  const back = kept.length ? kept.at(-1).seq + 1 : (next + 1) * 256;
  table.update(rows);
  replace(records, faultList(faults), newer > 0 && button('newer', `Show ${many(newer)} newer`, relist),
    rows.length ? table.element : h('p', { class: 'notice' }, 'No record fits.'),
    h('div', { class: 'row' }, !isEnd(shown) && button('more', 'Show more', more),
      h('span', { class: 'quiet' }, !isEnd(shown) ? `Read back to record ${back}.` : first > 0 ? `Records before ${first} are no longer on this box.` : 'These are all.',
        rows.length > 0 && !head.fault && !shown.fault && ' Each of them is in the signed log.')));
}

function recordRow({ seq, ts, event: { action, ...fields }, actor, hash, line }) {
  const words = Object.entries(fields).filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`).join(', ')
    // Eight digits of a tag tell callers apart.
    .replace(/(\d:[0-9a-f]{8}|[0-9a-f]{12})[0-9a-f]{20,}/g, '$1…').slice(0, 300);
  const tag = actor.tag ?? '';
  return row(title(seq), cell('Time', h('span', { class: 'unbroken' }, when(ts))),
    cell('Event', h('details', { 'data-action': `record ${seq}` }, h('summary', null, h('strong', null, action), ` ${words}`),
      h('pre', { class: 'text' }, line), h('p', { class: 'hint' }, 'Hash in the log: ', long(toBase64(hash))))),
    cell('Caller', h('span', { class: 'unbroken', title: tag }, `${actor.kind} ${tag.slice(0, tag.indexOf(':') + 9)}`)));
}

function drawEgress({ destinations, contents, residency, counted_since: since, counts_were_damaged: wereDamaged, error, listens_on: listens }) {
  const sums = (sent) => Object.entries(sent).filter(([, value]) => value).map(([name, value]) => `${name} ${bytes(value)}`).join(', ') || 'nothing';
  const destination = (one) => row(
    title(one.destination, !one.allowed && h('span', { class: 'badge warn' }, 'no longer allowed'), !one.is_resident && h('span', { class: 'badge fail' }, 'outside the residency')),
    cell('Region', one.region), cell('May receive', one.allowed?.join(', ') ?? 'nothing'), cell('Sent', sums(one.sent)),
    figure('Received', bytes(one.received)), figure('Connections', number(one.connections)), figure('Failed', number(one.failures)));
  const content = (one) => h('details', { 'data-action': one.content }, h('summary', null, h('strong', null, one.content), ' ', withCommands(one.what)),
    one.messages.map((message) => [h('h4', null, message.name), h('ul', { class: 'fields' }, message.fields.map((of) => h('li', null, h('code', null, of.name), ` ${of.what}`)))]));
  replace(egress, error && failure({ message: error }),
    h('p', null, since ? `Counted since ${when(since)} UTC, across restarts. ` : 'Nothing is counted yet. ', wereDamaged && 'Earlier counts are lost: their file was damaged. ',
      residency.length > 0 && `Data may be in ${residency.join(', ')}.`),
    destinations.length ? list('Destinations', ['Destination', 'Region', 'May receive', 'Sent', 'Received', 'Connections', 'Failed'], destinations.map(destination),
      { figures: ['Received', 'Connections', 'Failed'] }) : h('p', { class: 'notice' }, 'No destination is allowed, and nothing was sent.'),
    h('div', { class: 'card' }, h('h2', null, 'All that this box can send'), contents.map(content)),
    h('p', { class: 'hint' }, `Besides that, the box answers callers that connect to it (${listens.join(', ')}). The log has those calls.`));
}
