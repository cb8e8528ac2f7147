// @ts-check
// Trying a model: a photograph, a document, a text, rows or tensors go in, and the answer is drawn. Nothing is stored.

import { get, post, send } from './api.js';
import { commands } from './commands.js';
import { failure, h, runtime } from './dom.js';
import * as drawing from './drawing.js';
import { ask, caller, may } from './key.js';
import { elapsing } from './parts.js';
import { answered, section as sectionOf } from './section.js';

const NUMBERS_MAX = 4096;
const JSON_SHOWN = 20_000;

const select = h('select', { id: 'try-model' });
const about = h('p', { class: 'quiet' });
const input = h('div', { class: 'input' });
const result = h('div', { class: 'result', role: 'region', 'aria-label': 'Answer' });
// Read aloud: the answer itself is long.
const said = h('p', { class: 'unseen', role: 'status' });
/** The model whose form is shown, and the name of the last one that was chosen. */
let model = null;
let chosen = '';
/** The caller whose models are listed; `undefined` before the first. */
let loaded;
/** Aborted when another model is chosen or something else is asked: only the newest answer is drawn. */
let turn = new AbortController();
let camera = null;
let pictureUrl = null;

export const section = sectionOf({
  build(element) {
    select.addEventListener('change', () => { location.hash = `#try/${encodeURIComponent(select.value)}`; });
    element.append(
      h('div', { class: 'section-head' }, h('h1', { id: 'try-title' }, 'Try'),
        h('p', { class: 'quiet' }, 'What you send goes to this box and is not stored.')),
      h('div', { class: 'panes' },
        h('div', { class: 'pane' }, h('label', { for: 'try-model' }, 'Model'), select, about, input),
        h('div', { class: 'pane' }, said, result)));
  },
  /** Lists the models, which may be others than at the last look. */
  show: () => answered(async () => (may('view') ? post('/v2/repository/index', { ready: true }) : null),
    (index) => listed(index ? [...new Set(index.map((row) => row.name))] : caller?.models ?? []),
    (error) => { if (loaded !== caller) result.replaceChildren(failure(error, () => ask())); }),
  hide: stopCamera,
  reset() {
    loaded = undefined;
    chosen = '';
    select.replaceChildren();
    empty();
  },
});

/** The model that the address names. */
function wanted() {
  const [section, name = ''] = location.hash.slice(1).split('/');
  try {
    return section === 'try' ? decodeURIComponent(name) : '';
  } catch {
    return name;
  }
}

/** Offers the models. The form stays while its model is there. */
async function listed(names) {
  const isNew = loaded !== caller;
  loaded = caller;
  select.replaceChildren(...names.map((name) => h('option', { value: name }, name)));
  select.disabled = names.length === 0;
  const asked = wanted();
  if (asked && !names.includes(asked)) {
    empty();
    chosen = '';
    select.selectedIndex = -1;
    const may_ = may('view') ? ' Its state is among the models.' : '';
    result.replaceChildren(failure({ message: `No model “${asked}” is ready on this box.${may_} ${names.length ? 'Choose another one.' : ''}` }));
    return;
  }
  const name = [asked, chosen].find((one) => names.includes(one)) ?? names[0];
  if (!name) {
    empty();
    about.textContent = 'No model is ready.';
    return;
  }
  // The address names what is shown, so that it can be kept and sent.
  if (!asked) history.replaceState(null, '', `#try/${encodeURIComponent(name)}`);
  select.value = name;
  if (isNew || name !== chosen) await choose(name);
}

/** Begins something new; an answer to what was before is not drawn any more. */
function next() {
  turn.abort();
  turn = new AbortController();
  result.removeAttribute('aria-busy');
  said.textContent = '';
  return turn.signal;
}

/** Shows no model. */
function empty() {
  next();
  stopCamera();
  model = null;
  about.textContent = '';
  input.replaceChildren();
  result.replaceChildren(may('infer') ? h('p', { class: 'empty' }, 'The answer appears here.')
    : failure({ status: 401, message: 'Asking a model needs the role infer or admin.' }, () => ask()));
}

async function choose(name) {
  empty();
  chosen = name;
  about.textContent = 'Loading …';
  await answered((signal) => get(`/v2/models/${encodeURIComponent(name)}`, { signal }), (found) => {
    model = found;
    const kind = model.properties?.pipeline;
    const form = FORMS[kind] ?? tensorForm;
    about.textContent = `${kind ? kind.replaceAll('_', ' ') : 'tensors'} · version ${model.versions?.join(', ') ?? ''} · ${runtime(model.platform)}`;
    input.replaceChildren(...form(model).flat().filter(Boolean));
  }, (error) => {
    chosen = '';
    about.textContent = '';
    result.replaceChildren(failure(error, () => ask()));
  }, turn.signal);
}

const FORMS = {
  image_classification: photographForm,
  object_detection: photographForm,
  document_reading: documentForm,
  text_embedding: textForm,
  table: tableForm,
};

// A form and what it asks keep the model that they were made for.

function pathOf({ name }) {
  return `/v2/models/${encodeURIComponent(name)}/infer`;
}

function topicOf({ name }) {
  return `ledge/v1/${caller?.device ?? 'BOX'}/infer/${name}`;
}

// Files

function fileForm(words, accept, run) {
  const field = h('input', { type: 'file', id: 'try-file', class: 'file', accept });
  field.addEventListener('change', () => { if (field.files[0]) run(field.files[0]); });
  const zone = h('label', { class: 'drop', for: 'try-file' }, h('strong', null, words), h('span', null, 'Drop a file here, or choose one'), field);
  zone.addEventListener('dragover', (event) => {
    event.preventDefault();
    zone.classList.add('over-it');
  });
  zone.addEventListener('dragleave', () => zone.classList.remove('over-it'));
  zone.addEventListener('drop', (event) => {
    event.preventDefault();
    zone.classList.remove('over-it');
    const [file] = event.dataTransfer.files;
    if (file) run(file);
  });
  return zone;
}

function typeOf(file) {
  const [, ending] = /\.(\w+)$/.exec(file.name.toLowerCase()) ?? [];
  return file.type || { tif: 'image/tiff', tiff: 'image/tiff', bmp: 'image/bmp', pdf: 'application/pdf', csv: 'text/csv' }[ending] || 'application/octet-stream';
}

function photographForm(of) {
  return [fileForm('A photograph', 'image/jpeg,image/png,image/webp', (file) => photograph(of, file)), cameraButton(of)];
}

function documentForm(of) {
  return [fileForm('A receipt, an invoice or another document', 'image/jpeg,image/png,image/webp,image/gif,image/bmp,application/pdf,image/tiff', (file) => photograph(of, file)), cameraButton(of)];
}

/** Sends a photograph or a document. */
async function photograph(of, file) {
  const type = typeOf(file);
  await run(of, { body: file, type, file: file.name }, async (answer) => {
    if (pictureUrl) URL.revokeObjectURL(pictureUrl);
    pictureUrl = URL.createObjectURL(file);
    const picture = await drawing.pictureOf(pictureUrl, 'The picture that was sent');
    if (answer.detections && picture) return drawing.detections(answer.detections, picture);
    if (answer.labels) return drawing.classes(answer.labels, picture);
    if (answer.document) return drawing.pagesOf(answer.document, picture);
    return [];
  });
}

// The camera

function cameraButton(of) {
  const place = h('div', { class: 'camera' });
  const isThere = window.isSecureContext && navigator.mediaDevices?.getUserMedia;
  const button = h('button', { type: 'button', disabled: !isThere }, 'Use the camera of this device');
  button.addEventListener('click', () => startCamera(of, place));
  return h('div', null, button, !isThere && h('p', { class: 'hint' }, 'Browsers give the camera only to pages at https:// or on localhost.'), place);
}

async function startCamera(of, place) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' }, audio: false });
  } catch (error) {
    place.replaceChildren(failure({ message: `The browser does not give the camera: ${error.message}` }));
    return;
  }
  stopCamera();
  camera = stream;
  // Left while the browser asked whether it may.
  if (!place.checkVisibility()) {
    stopCamera();
    return;
  }
  const shutter = h('button', { type: 'button', class: 'primary', disabled: true, on: { click: () => shoot(of, video) } }, 'Take a photograph');
  const video = h('video', { autoplay: true, playsinline: true, 'aria-label': 'The camera' });
  video.muted = true;
  // Before its first picture there is nothing to take.
  video.addEventListener('loadeddata', () => { shutter.disabled = false; });
  video.srcObject = camera;
  place.replaceChildren(video, h('div', { class: 'row' }, shutter,
    h('button', { type: 'button', on: { click: stopCamera } }, 'Turn it off')));
}

function shoot(of, video) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext('2d').drawImage(video, 0, 0);
  canvas.toBlob((blob) => { if (blob) photograph(of, new File([blob], 'camera.jpg', { type: 'image/jpeg' })); }, 'image/jpeg', 0.92);
}

function stopCamera() {
  for (const track of camera?.getTracks() ?? []) track.stop();
  camera = null;
  input.querySelector('.camera')?.replaceChildren();
}

// Texts

function textForm(of) {
  const area = (id, text, value) => [h('label', { for: id }, text), h('textarea', { id, rows: 3 }, value)];
  const [first, second] = [area('text-1', 'Text', 'How do I return shoes?'), area('text-2', 'Another text, to compare (may be empty)', 'Giving back footwear')];
  const button = h('button', { type: 'button', class: 'primary' }, 'Make vectors');
  button.addEventListener('click', () => texts(of, [first[1].value, second[1].value].filter((text) => text.trim())));
  return [first, second, button];
}

async function texts(of, all) {
  if (!all.length) return;
  await run(of, { body: all[0], type: 'text/plain', text: all[0] }, async (answer, signal) => {
    const others = await Promise.all(all.slice(1).map(async (text) => {
      const response = await send(pathOf(of), { method: 'POST', headers: { 'content-type': 'text/plain' }, body: text, signal });
      return (await response.json()).embeddings[0];
    }));
    return drawing.vectors([answer.embeddings[0], ...others]);
  });
}

// Rows

function tableForm(of) {
  // The columns of this model.
  const area = h('textarea', { id: 'rows', rows: 8, class: 'code', spellcheck: 'false', placeholder: of.properties?.columns });
  const button = h('button', { type: 'button', class: 'primary' }, 'Ask about the rows');
  button.addEventListener('click', () => table(of, area.value, null));
  const file = fileForm('A CSV file', '.csv,text/csv', async (one) => {
    const text = await one.text();
    area.value = text.length < 100_000 ? text : '';
    await table(of, text, one.name);
  });
  return [file, h('label', { for: 'rows' }, 'Or CSV here: the first line names the columns'),
    of.properties?.columns && h('p', { class: 'hint' }, 'The columns of this model: ', h('code', { class: 'long' }, of.properties.columns)), area, button];
}

async function table(of, text, file) {
  if (!text.trim()) return;
  const [head, ...records] = drawing.recordsOf(text);
  const isSmall = records.length <= 20;
  const asObject = (record) => Object.fromEntries(head.map((name, index) => [name, record[index] ?? '']).filter(([, cell]) => cell !== ''));
  const value = (cell) => ({ true: true, false: false }[cell.toLowerCase()] ?? (Number.isNaN(Number(cell)) ? cell : Number(cell)));
  const values = (record) => Object.fromEntries(Object.entries(asObject(record)).map(([name, cell]) => [name, value(cell)]));
  await run(of, { body: text, type: 'text/csv', text, file, mqtt: isSmall ? JSON.stringify(records.map(values)) : null, isText: true },
    (answer) => drawing.rows(text, answer));
}

// Tensors

function tensorForm(of) {
  const sizes = of.inputs.map(({ shape }) => shape.map((side) => (side < 1 ? 1 : side)));
  const elements = sizes.map((shape) => shape.reduce((product, side) => product * side, 1));
  const isSmall = elements.reduce((sum, count) => sum + count, 0) <= NUMBERS_MAX;
  const element = (datatype) => ({ BYTES: 'text', BOOL: true }[datatype] ?? 1);
  const inputs = of.inputs.map(({ name, datatype }, index) => ({
    name, datatype, shape: sizes[index], data: isSmall ? Array(elements[index]).fill(element(datatype)) : [] }));
  const text = `{"inputs": [\n${inputs.map((one) => `  ${JSON.stringify(one)}`).join(',\n')}\n]}`;
  const area = h('textarea', { id: 'request', rows: 10, class: 'code', spellcheck: 'false' }, text);
  const button = h('button', { type: 'button', class: 'primary' }, 'Ask');
  button.addEventListener('click', () => run(of, { body: area.value, type: 'application/json', text: area.value },
    (answer) => drawing.tensors(answer.outputs ?? [])));
  return [h('label', { for: 'request' }, 'A request of the Open Inference Protocol'), area,
    !isSmall && h('p', { class: 'hint' }, `The inputs have ${Math.max(...elements).toLocaleString('en')} numbers, too many to begin with here: put them into data.`), button];
}

/** Sends a request, and draws its answer with its time and the commands that do the same. */
async function run(of, request, draw) {
  // A file was read or a photograph taken while another model was chosen.
  if (of !== model) return;
  const signal = next();
  const began = performance.now();
  const passed = h('span');
  const isOver = new AbortController();
  elapsing(passed, AbortSignal.any([signal, isOver.signal]));
  const cancel = () => {
    next();
    said.textContent = 'Cancelled';
    result.replaceChildren(h('p', { class: 'empty' }, `Cancelled after ${passed.textContent}.`));
  };
  result.setAttribute('aria-busy', 'true');
  result.replaceChildren(h('div', { class: 'empty' }, h('p', null, 'Asking … ', passed),
    h('button', { type: 'button', class: 'small', 'data-action': 'cancel', on: { click: cancel } }, 'Cancel')));
  said.textContent = 'Asking';
  await answered(async () => {
    const response = await send(pathOf(of), { method: 'POST', headers: { 'content-type': request.type }, body: request.body, signal });
    const answer = request.isText ? await response.text() : await response.json();
    const measured = performance.now() - began;
    return { answer, measured, drawn: await draw(answer, signal) };
  }, ({ answer, measured, drawn }) => {
    const raw = request.isText ? answer : JSON.stringify(answer, null, 1);
    result.replaceChildren(...[
      h('h2', null, 'Answer'), ...drawn,
      drawing.times(measured, answer.time_ms),
      h('details', null, h('summary', null, request.isText ? 'As CSV' : 'As JSON'), h('pre', { tabindex: '0', 'aria-label': 'The answer as it came' },
        raw.length > JSON_SHOWN ? `${raw.slice(0, JSON_SHOWN)}\n… ${(raw.length - JSON_SHOWN).toLocaleString('en')} characters more` : raw)),
      commands({ ...request, path: pathOf(of), topic: topicOf(of) }),
    ].flat(Infinity).filter(Boolean));
    said.textContent = `The answer is here. ${result.querySelector('.sum')?.textContent ?? ''}`;
  }, (error) => {
    said.textContent = '';
    // The same from a program would fail in the same way.
    result.replaceChildren(failure(error, () => ask()));
  }, signal);
  isOver.abort();
  if (signal.aborted) return;
  result.removeAttribute('aria-busy');
}
