// The audit log: its state, its records and their verification by this page; and what left the box.

import { get, send } from './api.js';
import { bytes, failure, h, number, withCommands } from './dom.js';
import { ask, may } from './key.js';
import { facts, field, filled, refreshed, replace } from './parts.js';
import { cell, figure, list, row, title } from './table.js';
import { Fault, fromBase64, Log, openHead, readKey, toBase64 } from './verify.js';

const ROWS = 25;
// A search that finds little stops after so many bundles of 256 records.
const BUNDLES_AT_ONCE = 40;
const FILTERS = { event: 'model_loaded', model: '', caller: 'local, key or a tag', outcome: 'ok, failed, refused', text: '' };
const FROM_BOX = 'The box itself says that this is its key: the check proves that the log agrees with itself and with what this page saw before, not that nobody replaced all of it. For that, paste the key that you noted elsewhere, from `ledge audit key` or the platform.';

let status = null;
/** The verifier key that was pasted, and the number of the log that was chosen. */
let pasted = null;
let chosen = null;
/** The newest head and what is wrong with it; the heads that this page saw, by origin. */
let head = null;
const seen = new Map();
/** The records that are listed; the walk through all of them. */
let shown = null;
let walk = null;

const told = h('div');
const state = h('div');
const check = h('div');
const verdict = h('div', { role: 'status' });
const form = h('form', { class: 'filters', hidden: true, on: { change: () => relist(), submit: (event) => event.preventDefault() } },
  Object.entries(FILTERS).map(([name, placeholder]) => h('label', null, name[0].toUpperCase() + name.slice(1), field(name, { placeholder }))));
const records = h('div', { class: 'stack' });
const log = h('div', { class: 'stack' }, told, state, check, form, records);
const egress = h('div', { class: 'stack', hidden: true });

export const { show, hide } = refreshed(5000, () => load());

export function build(section) {
  const part = (name, text, isShown) => [h('input', { type: 'radio', name: 'audit-part', id: `audit-${name}`, checked: isShown, on: { change: () => {
    [log.hidden, egress.hidden] = [!isShown, isShown];
    load();
  } } }), h('label', { for: `audit-${name}` }, text)];
  section.append(h('div', { class: 'section-head' }, h('h1', { id: 'audit-title' }, 'Audit'),
    h('fieldset', { class: 'segments' }, h('legend', { class: 'unseen' }, 'Shown'), part('log', 'Log', true), part('egress', 'What left the box', false))), log, egress);
}

export function changed() {
  hide();
  walk?.abort();
  [status, head, shown, form.hidden] = [null, null, null, true];
  for (const one of [told, state, check, verdict, records, egress]) one.replaceChildren();
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
      return new Uint8Array(await (await send(`/audit/logs/${of}/${path}`)).arrayBuffer());
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  };
}

const load = () => filled(log.hidden ? egress : told, 'The audit log', async () => {
  if (log.hidden) {
    drawEgress(await get('/egress'));
    return;
  }
  status = await get('/audit/status');
  told.replaceChildren();
  drawState();
  await follow();
});

function drawState() {
  const { error, alarm, origin, size, first, quota, lost, sync, copies } = status;
  const values = { Log: origin, Records: size ? many(size) : 'opening', Disk: `${bytes(status.bytes)} of ${bytes(quota)}`,
    'Lost before they were recorded': lost.calls + lost.events ? `${many(lost.calls)} calls, ${many(lost.events)} other events` : 'nothing',
    'Copy on the platform': sync ? `${many(sync.size)} records, last contact ${when(sync.at)}` : 'none' };
  if (first > 0) values['First on this box'] = many(first);
  for (const copy of copies) values[copy.name] = `${many(copy.sent)} sent to ${copy.to}, ${many(copy.lost)} lost`;
  const troubles = [error && `The log cannot be written: ${error}`, alarm && `The log before this one was not continued: ${alarm}`,
    ...[sync, ...copies].map((copy) => copy?.error && `The copy at ${copy.url ?? copy.to} waits: ${copy.error}`)];
  replace(state, troubles.map((message) => message && failure({ message })), h('div', { class: 'card' }, facts(values)));
}

/** Checks the newest head, and that it continues the one before. */
async function follow() {
  const refused = !may('audit') ? { status: 403, message: 'To read and verify the records, use a key with the role auditor or admin.' }
    : !crypto.subtle && { message: 'Browsers check signatures only on pages at https:// and on the box itself. Open the page there, or run `ledge audit verify`.' };
  if (refused) check.replaceChildren(failure(refused, () => ask()));
  // A log that is being opened has no key yet.
  if (refused || walk || !status.verifier_key) return;
  const of = chosen ?? newest();
  const [file, key] = [files(of), pasted ?? await readKey(status.verifier_key)];
  const note = await file('checkpoint');
  const id = `${of} ${key.text} ${note && toBase64(note)}`;
  if (head?.id === id) return;
  const next = { id, of, key, first: of === newest() ? status.first : 0 };
  try {
    if (!note) throw new Fault('missing', 'There is no checkpoint: nothing in this log is signed.');
    const signed = await openHead(note, key, of);
    next.log = new Log(signed, file);
    next.earlier = seen.get(signed.origin);
    await next.log.contains(signed);
    if (next.earlier) await next.log.contains(next.earlier);
    seen.set(signed.origin, { ...signed, at: new Date() });
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    next.fault = error;
  }
  head = next;
  drawCheck();
  if (head.log && shown?.of !== of) await relist();
  else if (shown) drawRecords();
}

const faultList = (faults) => faults.length > 0 && h('ul', { class: 'error', role: 'alert' }, faults.map((one) => h('li', null, withCommands(one.message))));

function again() {
  walk?.abort();
  [head, shown] = [null, null];
  verdict.replaceChildren();
  check.replaceChildren();
  load();
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
  const of = head;
  const { signal } = walk = new AbortController();
  const bar = h('progress', { max: of.log.head.size, value: 0, 'aria-label': 'Records verified' });
  const cancel = button('cancel', 'Cancel', () => walk?.abort());
  verdict.replaceChildren(h('div', { class: 'row' }, bar, cancel));
  cancel.focus();
  let pruned = 0;
  let lost = 0;
  const each = (record) => {
    const { event } = parse(record);
    if (event.action === 'records_pruned') pruned = Math.max(pruned, event.below);
    if (event.action === 'records_lost') lost += event.calls + event.events;
  };
  try {
    const { faults, checked, first } = await of.log.verify({ first: of.first, each, signal, progress: (done) => { bar.value = done; } });
    const notes = [];
    if (first > 0) notes.push(`Records before ${first} are no longer on this box; the hashes above them lead to the signed root.`);
    if (lost) notes.push(`The log says that ${many(lost)} calls and events never became records.`);
    if (!signal.aborted && of.of === newest() && (of.first > pruned || first > status.first)) faults.push(new Fault('missing', `No record says that the box removed those before ${first}.`));
    if (!signal.aborted && of.of < newest()) {
      await compareWithNext(of).then((note) => notes.push(note)).catch((error) => { if (error instanceof Fault) faults.push(error); else throw error; });
    }
    const words = faults.length ? 'Refused. Records that are those that were signed:' : signal.aborted ? 'Cancelled. Verified so far:' : 'Whole. Every record is the one that was signed:';
    if (head === of) verdict.replaceChildren(h('div', { class: `notice ${faults.length ? 'plain' : signal.aborted ? '' : 'good'}` },
      h('p', null, `${words} ${many(checked)}. `, notes.join(' ')), faultList(faults)));
  } catch (error) {
    verdict.replaceChildren(failure(error, () => ask()));
  }
  walk = null;
  if (head !== of) load();
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
  const { event: action, model, caller, outcome, text } = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
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

/** The first record that is still there: a box that is short of room removes old ones meanwhile. */
const firstOf = (of) => (of.of === newest() ? status.first : of.first);
const isEnd = (of) => !of.kept.length && of.next < Math.floor(firstOf(of) / 256);

/** Reads back until there are more rows, or enough was read. */
async function more() {
  const of = shown;
  if (of.isBusy) return;
  of.isBusy = true;
  const wanted = of.rows.length + ROWS;
  await filled(told, 'The audit log', async () => {
    for (let read = 0; of.rows.length < wanted && read < BUNDLES_AT_ONCE && !isEnd(of); read += 1) {
      if (!of.kept.length) {
        const found = await of.log.bundle(of.next);
        if (found.isGone && of.of < newest() && of.next < of.log.bundles - 1) {
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
  });
  of.isBusy = false;
  if (of === shown) drawRecords();
}

function drawRecords() {
  const { rows, faults, next, kept } = shown;
  const first = firstOf(shown);
  const newer = head.log ? head.log.head.size - shown.log.head.size : 0;
  const back = kept.length ? kept.at(-1).seq + 1 : (next + 1) * 256;
  replace(records, faultList(faults), newer > 0 && button('newer', `Show ${many(newer)} newer`, relist),
    rows.length ? list('Records, the newest first', ['Record', 'Time (UTC)', 'Event', 'Caller'], rows.map(recordRow)) : h('p', { class: 'notice' }, 'No record fits.'),
    h('div', { class: 'row' }, !isEnd(shown) && button('more', 'Show more', more),
      h('span', { class: 'quiet' }, !isEnd(shown) ? `Read back to record ${back}.` : first > 0 ? `Records before ${first} are no longer on this box.` : 'These are all.',
        rows.length > 0 && ' Each of them is in the signed log.')));
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
