// @ts-check
// Answers, drawn: boxes over pictures, bars of scores, text over pages, tables.

import { h, number, svg } from './dom.js';
import { heads, scrolled } from './table.js';

const COLOURS = 6;

function colourOf(label) {
  let sum = 0;
  for (const character of label) sum = (sum * 31 + character.codePointAt(0)) % 997;
  return `box-${sum % COLOURS}`;
}

function score(value) {
  return value.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

function bar(value) {
  const filled = h('span');
  filled.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  return h('span', { class: 'bar', 'aria-hidden': 'true' }, filled);
}

/** The picture of a file, decoded; `null` where the browser cannot show it. */
export async function pictureOf(url, words) {
  const picture = new Image();
  picture.src = url;
  picture.alt = words;
  try {
    await picture.decode();
    return picture;
  } catch {
    return null;
  }
}

function overlaid(picture, wide, high, words, marks) {
  const over = svg('svg', { class: 'over', viewBox: `0 0 ${wide} ${high}`, role: 'img', 'aria-label': words }, marks);
  const paper = svg('svg', { class: 'paper', viewBox: `0 0 ${wide} ${high}`, 'aria-hidden': 'true' });
  return h('div', { class: 'picture' }, picture ?? paper, over);
}

/** Detections as boxes over the picture, and as a table. */
export function detections(found, picture) {
  const [wide, high] = [picture.naturalWidth, picture.naturalHeight];
  const size = Math.max(11, Math.min(wide, high) / 26);
  const marks = found.toReversed().map(({ label, score: sure, box }) => {
    const text = `${label} ${score(sure)}`;
    const top = box.y > size * 1.4 ? box.y - size * 1.35 : box.y;
    const colour = colourOf(label);
    return svg('g', { class: `mark ${colour}` },
      svg('rect', { class: 'box', x: box.x, y: box.y, width: box.width, height: box.height, 'stroke-width': size / 7 }),
      svg('rect', { class: 'plate', x: box.x, y: top, width: text.length * size * 0.58 + size * 0.6, height: size * 1.35 }),
      svg('text', { class: 'plate-text', x: box.x + size * 0.3, y: top + size, 'font-size': size }, text));
  });
  const words = found.length ? `Boxes of ${found.length}: ${found.map(({ label, score: sure }) => `${label} ${score(sure)}`).join(', ')}` : 'No boxes';
  const table = h('table', { class: 'plain' }, h('caption', { class: 'unseen' }, 'The objects that were found'),
    heads(['Object'], ['Score', 'Left', 'Top', 'Width', 'Height']),
    h('tbody', null, found.map(({ label, score: sure, box }) => h('tr', null,
      h('td', { class: 'unbroken' }, h('span', { class: `dot ${colourOf(label)}` }), label), h('td', { class: 'figure' }, bar(sure), score(sure)),
      [box.x, box.y, box.width, box.height].map((side) => h('td', { class: 'figure' }, Math.round(side)))))));
  return [
    overlaid(picture, wide, high, words, marks),
    h('p', { class: 'sum' }, found.length === 1 ? '1 object' : `${found.length} objects`),
    found.length ? scrolled(table) : h('p', { class: 'quiet' }, 'The model found nothing that it knows with enough certainty.'),
  ];
}

/** Classes with bars. */
export function classes(labels, picture) {
  const rows = labels.map(({ label, index, score: sure }) => h('tr', null,
    h('th', { scope: 'row' }, label ?? `class ${index}`), h('td', { class: 'wide' }, bar(sure)), h('td', { class: 'figure' }, score(sure))));
  return [
    picture && h('div', { class: 'picture' }, picture),
    h('table', { class: 'plain scores' }, h('caption', { class: 'unseen' }, 'The classes with the highest scores'), h('tbody', null, rows)),
  ];
}

function polygon(corners) {
  return corners.map(([x, y]) => `${x},${y}`).join(' ');
}

function page(one, picture, fields) {
  const isSame = picture && picture.naturalWidth === one.width && picture.naturalHeight === one.height;
  const marks = one.lines.map(({ text, box }) => {
    const [[x, y], [x2, y2], , [x4, y4]] = box;
    const [wide, high] = [Math.hypot(x2 - x, y2 - y), Math.hypot(x4 - x, y4 - y)];
    const degrees = (Math.atan2(y2 - y, x2 - x) * 180) / Math.PI;
    return isSame
      ? svg('polygon', { class: 'text-box', points: polygon(box), 'stroke-width': one.width / 700 }, svg('title', null, text))
      : svg('text', { class: 'page-text', x: 0, y: high * 0.8, 'font-size': high * 0.85, textLength: wide,
        lengthAdjust: 'spacingAndGlyphs', transform: `translate(${x} ${y}) rotate(${degrees})` }, text);
  });
  for (const [name, field] of fields) {
    marks.push(svg('polygon', { class: 'field-box', points: polygon(field.box), 'stroke-width': one.width / 350 }, svg('title', null, name)));
  }
  return overlaid(isSame ? picture : null, one.width, one.height, `Page ${one.page}: ${one.lines.length} lines of text`, marks);
}

function fieldValue(value) {
  if (Array.isArray(value)) return value.map(({ rate, amount }) => (rate ? `${amount} (${rate} %)` : amount)).join(', ');
  if (value && typeof value === 'object') return `${value.amount ?? ''} ${value.currency ?? ''}`.trim();
  return String(value);
}

/** The text of a field on its page, and what the XML of the file says of it. */
function onPage({ text, xml }) {
  if (xml !== undefined) return `${text} (the XML in the file says ${fieldValue(xml)})`;
  return text ?? 'only in the XML of the file';
}

/** The fields of a document, each with its name, the doubtful ones last. */
function fieldsOf({ fields, doubtful = {} }) {
  return [...Object.entries(fields), ...Object.entries(doubtful).map(([name, field]) => [`${name} (doubtful)`, field])];
}

function fieldTable(caption, found) {
  if (!found.length) return h('p', { class: 'quiet' }, `${caption}: none was found.`);
  return scrolled(h('table', { class: 'plain' }, h('caption', null, caption),
    heads(['Field', 'Value', 'On the page'], ['Confidence']),
    h('tbody', null, found.map(([name, field]) => h('tr', null, h('th', { scope: 'row' }, name), h('td', null, fieldValue(field.value)),
      h('td', null, onPage(field)), h('td', { class: 'figure' }, score(field.confidence)))))));
}

/** The fields of one of several documents. */
function partTable(part) {
  const where = part.first_page === part.last_page ? `page ${part.first_page}` : `pages ${part.first_page} to ${part.last_page}`;
  return fieldTable(`Fields of the document on ${where}`, fieldsOf(part));
}

/** The pages and fields of a document, or of several in one file. */
export function pagesOf({ pages, documents, ...whole }, picture) {
  const found = (documents ?? [whole]).flatMap(fieldsOf);
  return [
    documents ? documents.map(partTable) : fieldTable('Fields', found),
    pages.map((one) => h('section', { class: 'page' },
      pages.length > 1 && h('h3', null, `Page ${one.page}`),
      h('div', { class: 'beside' }, page(one, pages.length === 1 ? picture : null, found.filter(([, field]) => field.page === one.page)),
        h('pre', { class: 'text', tabindex: '0', 'aria-label': `Text of page ${one.page}` }, one.text)))),
  ];
}

/** Two vectors and the cosine between them, or one vector. */
export function vectors(embeddings) {
  const first = ({ embedding }) => `${embedding.slice(0, 8).map((value) => value.toFixed(4)).join(', ')}, …`;
  const rows = embeddings.map((one, index) => h('tr', null, h('th', { scope: 'row' }, `Text ${index + 1}`),
    h('td', { class: 'figure' }, one.embedding.length), h('td', { class: 'figure' }, `${one.tokens}${one.truncated ? ', cut' : ''}`),
    h('td', { class: 'code' }, first(one))));
  const cosine = embeddings.length === 2 ? similarity(embeddings[0].embedding, embeddings[1].embedding) : null;
  return [
    cosine !== null && h('div', { class: 'big' }, h('span', { class: 'big-figure' }, score(cosine)), h('div', null, h('strong', null, 'Cosine similarity'),
      bar(cosine), h('p', { class: 'quiet' }, 'Near 1: the texts mean the same. Near 0: they have nothing to do with each other.'))),
    scrolled(h('table', { class: 'plain' }, h('caption', { class: 'unseen' }, 'The vectors'),
      heads(['Text'], ['Numbers', 'Tokens'], ['The first eight']),
      h('tbody', null, rows))),
  ];
}

function similarity(one, other) {
  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
  return dot(one, other) / Math.sqrt(dot(one, one) * dot(other, other));
}

/** The records of CSV, as RFC 4180 has it. */
export function recordsOf(text) {
  const records = [[]];
  let cell = '';
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (isQuoted) {
      if (character !== '"') cell += character;
      else if (text[at + 1] === '"') { cell += '"'; at += 1; } else isQuoted = false;
    } else if (character === '"') isQuoted = true;
    else if (character === ',') { records.at(-1).push(cell); cell = ''; }
    else if (character === '\n') { records.at(-1).push(cell); cell = ''; records.push([]); }
    else if (character !== '\r') cell += character;
  }
  records.at(-1).push(cell);
  return records.filter((record) => record.length > 1 || record[0] !== '');
}

const ROWS_SHOWN = 100;

/** CSV that was sent beside CSV that came. */
export function rows(sent, came) {
  const [[head = [], ...asked], [answerHead = [], ...answers]] = [recordsOf(sent), recordsOf(came)];
  const shorter = (text) => (/^-?\d+\.\d{3,}$/.test(text) ? String(Number(Number(text).toPrecision(6))) : text);
  const table = h('table', { class: 'plain' }, h('caption', { class: 'unseen' }, 'The rows with their answers'),
    h('thead', null, h('tr', null, answerHead.map((name) => h('th', { scope: 'col', class: 'answer' }, name)), head.map((name) => h('th', { scope: 'col' }, name)))),
    h('tbody', null, answers.slice(0, ROWS_SHOWN).map((answer, index) => h('tr', null,
      answer.map((cell) => h('td', { class: 'answer figure' }, shorter(cell))), (asked[index] ?? []).map((cell) => h('td', null, cell))))));
  const save = () => {
    const href = URL.createObjectURL(new Blob([came], { type: 'text/csv' }));
    h('a', { download: 'answers.csv', href }).click();
    // The browser takes it up after the click.
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  };
  return [
    h('div', { class: 'row' }, h('p', { class: 'sum' }, answers.length === 1 ? '1 row' : `${number(answers.length)} rows`,
      answers.length > ROWS_SHOWN && `, of which the first ${ROWS_SHOWN} are shown`), h('button', { type: 'button', class: 'small', on: { click: save } }, 'Save as CSV')),
    scrolled(table),
  ];
}

/** Tensors: names, shapes, and the first elements. */
export function tensors(outputs) {
  return [scrolled(h('table', { class: 'plain' }, h('caption', { class: 'unseen' }, 'The output tensors'),
    heads(['Output', 'Type', 'Shape', 'Data']),
    h('tbody', null, outputs.map(({ name, datatype, shape, data = [] }) => h('tr', null, h('th', { scope: 'row' }, name), h('td', null, datatype),
      h('td', { class: 'code' }, `[${shape.join(', ')}]`),
      h('td', { class: 'code' }, data.slice(0, 12).map((one) => (typeof one === 'number' ? number(one, 5) : String(one))).join(', ') + (data.length > 12 ? ', …' : '')))))))];
}

/** The time of an answer by stage, and as measured here. */
export function times(measured, told) {
  const flat = (times_, prefix = '') => Object.entries(times_ ?? {}).flatMap(([name, value]) =>
    (value && typeof value === 'object' ? flat(value, '') : [[prefix + name, value]]));
  const all = [...flat(told), ['seen from this page', measured]];
  return h('dl', { class: 'times', 'aria-label': 'Time' }, all.map(([name, value]) => h('div', null, h('dt', null, name.replaceAll('_', ' ')), h('dd', null, `${number(value)} ms`))));
}
