// @ts-check
// Models that a person adds: from the signed catalogue, or as a folder of this computer.

import { get, post, send } from './api.js';
import { bytes, failure, h, moment } from './dom.js';
import { ask, may } from './key.js';
import { keyedTable } from './keyed.js';
import { action, confirm, elapsing, replace, say, tell, tellFailure } from './parts.js';
import { answered, part } from './section.js';
import { actions, cell, figure, row, title } from './table.js';

const PROGRESS_MS = 1500;
const RECORD = 512;

const place = h('div');
let catalogue = null;
let isBusy = false;
// Set while an upload runs.
let uploading = null;
let added = () => {};
const table = keyedTable('The models of the catalogue', ['Model', 'Size', 'State', ''], ({ name }) => name, modelRow,
  { figures: ['Size'], printOf: (model) => JSON.stringify([model, Boolean(catalogue.adding)]) });

/** The element of this part. `listener` runs after each change of the models. */
export function build(listener) {
  added = listener;
  return h('section', { class: 'adding', 'aria-labelledby': 'adding-title' },
    h('h2', { id: 'adding-title' }, 'Add a model'), place);
}

export const catalogued = part({
  every: () => (catalogue?.adding ? PROGRESS_MS : null),
  place,
  needs: ['view'],
  load: (signal) => get('/catalogue', { quiet: true, signal }),
  draw: take,
  // A key for single models may not see it, and needs no notice of it.
  failed: (error) => say(place, error.status !== 403 && failure(error, () => ask())),
  reset() {
    uploading?.stop.abort();
    [catalogue, isBusy, uploading] = [null, false, null];
    table.update([]);
  },
});

/** True for a model that came from a catalogue or an upload, and can be removed here. */
export function mayRemove(name) {
  return may('administer') && (catalogue?.brought.includes(name) ?? false);
}

/** Shows a state of the catalogue, and asks for the next while a model is added. */
function take(state) {
  const before = catalogue;
  catalogue = state;
  render();
  if (!state.adding && before?.adding && state.last_addition) {
    const { name, error } = state.last_addition;
    if (error) tellFailure({ message: `${name}: ${error}` });
    else tell(`${name} is added.`);
  }
  if (String(before?.brought) !== String(state.brought) || (before?.adding && !state.adding)) added();
}

function render() {
  const { address, read_at: readAt, models, adding, folder, upload_max_bytes: most } = catalogue;
  const refresh = h('button', { type: 'button', class: 'small', disabled: !may('operate') || isBusy, 'data-action': 'catalogue refresh',
    title: may('operate') ? null : 'Reading the catalogue needs the role operator or admin', on: { click: read } },
  readAt ? 'Read the catalogue again' : 'Read the catalogue');
  table.update(models);
  replace(place,
    h('div', { class: 'pane' },
      h('div', { class: 'row' }, h('h3', null, 'Catalogue'), address && refresh),
      address
        ? h('p', { class: 'quiet' }, readAt ? `${address}, read ${moment(readAt)}` : `${address}: not read yet. Nothing is sent before you ask.`)
        : h('p', { class: 'quiet' }, 'No catalogue is configured. Set ', h('code', null, '[catalogue] address'), ' to the address of one, or to the folder of a stick.'),
      adding && progress(adding),
      models.length > 0 && table.element),
    h('div', { class: 'pane' }, h('h3', null, 'A model of your own'), most ? upload(folder, most) : byHand(folder)));
}

function progress({ name, bytes: whole, fetched_bytes: fetched }) {
  return h('p', { class: 'progress' }, h('label', { for: 'adding-progress' }, `Adding ${name}: `),
    whole ? `${bytes(fetched)} of ${bytes(whole)} ` : 'reading the catalogue ',
    h('progress', { id: 'adding-progress', max: whole || null, value: whole ? fetched : null }));
}

function modelRow(model) {
  const facts = [model.license && `licence ${model.license}`, model.accuracy, model.source].filter(Boolean);
  return row(
    title(model.name, model.release && h('span', { class: 'quiet' }, model.release), model.description && h('p', null, model.description),
      facts.length > 0 && h('p', { class: 'quiet' }, facts.join(' · ')), model.problem && h('p', { class: 'reason' }, model.problem)),
    figure('Size', bytes(model.bytes)),
    cell('State', h('span', { class: `badge ${{ added: 'ok', 'not added': 'off' }[model.state] ?? 'warn'}` }, model.state)),
    actions(!model.is_added && !model.problem && !catalogue.adding
      && action('Add', model.name, 'operate', 'operator or admin', () => change(`/catalogue/models/${encodeURIComponent(model.name)}/add`))));
}

function byHand(folder) {
  return h('div', null, h('p', null, 'Copy its folder to ', h('code', null, folder), ' on this box, then run ', h('code', null, 'sudo systemctl reload ledge'), '.'),
    h('p', { class: 'hint' }, 'An administrator can upload it here once ', h('code', null, '[catalogue] upload_max_mb'), ' is set.'));
}

/** Gives an order, whose answer is the state; the next one shows its progress. */
async function change(path) {
  await answered(() => post(path), take);
  catalogued.reload();
}

async function read() {
  isBusy = true;
  render();
  await answered(() => post('/catalogue/refresh'), (state) => {
    isBusy = false;
    take(state);
  }, (error) => {
    isBusy = false;
    render();
    tellFailure(error);
  });
}

/** Removes a model that a catalogue or an upload brought. */
export async function remove(name) {
  const details = `${name} is taken out of service, and its folder is removed from the box, unless somebody changed it since it was added.`;
  if (!await confirm(`Remove ${name}?`, details, 'Remove')) return;
  await change(`/catalogue/models/${encodeURIComponent(name)}/remove`);
}

// Uploads

function upload(folder, most) {
  const isAllowed = may('administer');
  const field = h('input', { type: 'file', id: 'model-folder', class: 'file', webkitdirectory: true, disabled: !isAllowed || uploading !== null,
    on: { change: () => { if (field.files.length) begin([...field.files].map((file) => [file.webkitRelativePath, file])); } } });
  const zone = h('label', { class: 'drop', for: 'model-folder' }, h('strong', null, uploading?.words ?? 'The folder of a model'),
    h('span', null, `Drop it here, or choose it. At most ${bytes(most)}.`), field);
  zone.addEventListener('dragover', (event) => event.preventDefault());
  zone.addEventListener('drop', async (event) => {
    event.preventDefault();
    const entry = event.dataTransfer.items[0]?.webkitGetAsEntry();
    if (!isAllowed || uploading || !entry) return;
    await answered(() => filesOf(entry), (files) => begin(files, entry.name),
      (error) => tellFailure({ message: `${entry.name} cannot be read: ${error.message}` }));
  });
  const sending = uploading && h('p', { class: 'row' }, uploading.time,
    h('button', { type: 'button', class: 'small', 'data-action': 'upload cancel', on: { click: () => uploading?.stop.abort() } }, 'Cancel the upload'));
  return h('div', null, zone, sending, h('p', { class: 'hint' }, isAllowed ? 'As it lies in a model repository: ' : 'An upload needs the role admin. The folder has ',
    h('code', null, 'model.toml'), ' and ', h('code', null, '1/model.onnx'), '. It becomes ', h('code', null, `${folder}/NAME`), '.'));
}

/** The files below a dropped folder, with their paths; a dropped file alone is a folder of its own name. */
async function filesOf(entry, above = '') {
  const path = `${above}${entry.name}`;
  if (entry.isFile) return [[path, await new Promise((got, failed) => { entry.file(got, failed); })]];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((got, failed) => { reader.readEntries(got, failed); });
    if (!some.length) return found;
    for (const one of some) found.push(...await filesOf(one, `${path}/`));
  }
}

/** Uploads files of a folder, or the one file of a model. */
async function begin(files, folder) {
  if (uploading || !catalogue) return;
  if (!files.length) {
    tellFailure({ message: `${folder} is empty: a model has model.toml and 1/model.onnx.` });
    return;
  }
  const single = files.length === 1 && !files[0][0].includes('/');
  const [first] = files[0][0].split('/');
  const name = single ? first.replace(/\.\w+$/, '') : first;
  const inside = single
    ? [[`1/${first.replace(/^.*(\.\w+)$/, 'model$1')}`, files[0][1]]]
    : files.map(([path, file]) => [path.slice(first.length + 1), file]).filter(([path]) => !path.split('/').some((part) => part.startsWith('.')));
  if (!inside.length) {
    tellFailure({ message: `${name} has no file that a model could have: only names with a dot at the beginning.` });
    return;
  }
  const size = inside.reduce((sum, [, file]) => sum + file.size, 0);
  const stop = new AbortController();
  await answered(async () => {
    if (size > catalogue.upload_max_bytes) throw new Error(`${name} has ${bytes(size)}; an upload has at most ${bytes(catalogue.upload_max_bytes)}`);
    uploading = { words: `Sending ${name}, ${bytes(size)}`, stop, time: h('span', { class: 'quiet' }) };
    elapsing(uploading.time, stop.signal);
    render();
    await send(`/catalogue/models/${encodeURIComponent(name)}/upload`,
      { method: 'POST', headers: { 'content-type': 'application/x-tar' }, body: archive(inside), signal: stop.signal });
  }, () => tell(`${name} is added.`), (error) => {
    if (error.name === 'AbortError') tell(`The upload of ${name} is cancelled.`);
    else tellFailure(error);
  });
  stop.abort();
  if (uploading?.stop === stop) uploading = null;
  catalogued.reload();
}

/** A tar archive (POSIX.1-2024, ustar) of files with their paths. The browser reads the files when it sends them. */
export function archive(files) {
  const parts = [];
  for (const [path, file] of files) parts.push(header(path, file.size), file, new Uint8Array((RECORD - (file.size % RECORD)) % RECORD));
  return new Blob([...parts, new Uint8Array(2 * RECORD)]);
}

function header(path, size) {
  const block = new Uint8Array(RECORD);
  const put = (at, text) => block.set(new TextEncoder().encode(text), at);
  const name = new TextEncoder().encode(path);
  if (name.length > 100) throw new Error(`the path ${path} is too long`);
  block.set(name, 0);
  const octal = (value, digits) => `${value.toString(8).padStart(digits, '0')}\0`;
  put(100, octal(0o644, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  // Eleven digits are 8 GiB; a larger file has its size as a binary number.
  if (size < 8 ** 11) {
    put(124, octal(size, 11));
  } else {
    block[124] = 0x80;
    new DataView(block.buffer).setBigUint64(128, BigInt(size));
  }
  put(136, octal(0, 11));
  put(148, '        ');
  put(156, '0');
  put(257, 'ustar\x0000');
  put(148, `${octal(block.reduce((sum, byte) => sum + byte, 0), 6)} `);
  return block;
}
