// @ts-check
// Draws a zone on the picture of a camera, and writes its lines of configuration.

import { h, svg } from './dom.js';
import { copyable, replace } from './parts.js';

const CORNERS_MAX = 64;
// The first corners without a pointer.
const FIRST = [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const share = (value) => Number(Math.min(1, Math.max(0, value)).toFixed(3));
const percent = (value) => `${Number((value * 100).toFixed(1))}%`;

// The checks of `ledge config check`, in its order and words.

const side = ([ax, ay], [bx, by], [x, y]) => (bx - ax) * (y - ay) - (by - ay) * (x - ax);
const isSame = (a, b) => a[0] === b[0] && a[1] === b[1];
const isOn = (a, b, point) => side(a, b, point) === 0
  && [0, 1].every((axis) => point[axis] >= Math.min(a[axis], b[axis]) && point[axis] <= Math.max(a[axis], b[axis]));
const crosses = (a, b, c, d) => side(a, b, c) * side(a, b, d) < 0;
const touch = ([a, b], [c, d]) => (crosses(a, b, c, d) && crosses(c, d, a, b)) || isOn(a, b, c) || isOn(a, b, d) || isOn(c, d, a) || isOn(c, d, b);
const foldsBack = ([a, b], [c, d]) => (isSame(b, c) ? isOn(a, b, d) || isOn(c, d, a) : isOn(a, b, c) || isOn(c, d, b));

/** What is wrong with corners; `null` for nothing. */
function mistake(corners) {
  const count = corners.length;
  if (count < 3 || count > CORNERS_MAX) return `expected 3 to ${CORNERS_MAX} corners, got ${count}`;
  const edges = corners.map((corner, index) => [corner, corners[(index + 1) % count]]);
  const pairs = edges.flatMap((_, one) => edges.map((__, other) => [one, other]).slice(one + 1));
  const same = pairs.find(([one, other]) => isSame(corners[one], corners[other]));
  if (same) return `the corners ${same[0] + 1} and ${same[1] + 1} are at the same place`;
  if (corners.every((corner) => side(...edges[0], corner) === 0)) return 'all corners are on one line';
  const bad = pairs.find(([one, other]) =>
    (other === one + 1 || other - one === count - 1 ? foldsBack : touch)(edges[one], edges[other]));
  return bad ? `the edges after the corners ${bad[0] + 1} and ${bad[1] + 1} cross or touch: give the corners in their order around the zone` : null;
}

function misnamed(name, labels, camera) {
  if (/^\.|[^\w.-]/.test(name)) return 'A name has A-Z a-z 0-9 . _ - and does not begin with a dot.';
  if (name === 'everywhere') return '"everywhere" is the whole picture: use another name';
  if (camera.zones.some((zone) => zone.name === name)) return `${name} is the name of two zones`;
  const foreign = labels.find((label) => camera.labels.length && !camera.labels.includes(label));
  return foreign && `"${foreign}" is not among the labels of the camera`;
}

/** The editor for a zone of a camera, over the element of its picture. */
export function editor(camera, still) {
  let corners = [];
  let isClosed = false;
  let chosen = 0;
  let drag = null;
  const shape = h('div', { class: 'shape', on: { pointerdown: press, pointermove: move, pointerup: release, pointercancel: release } });
  const canvas = h('div', { class: 'canvas' }, still, shape);
  const input = (id) => h('input', { id, type: 'text', autocomplete: 'off', spellcheck: 'false', maxlength: '128', on: { input: render } });
  const [name, labels] = [input('zone-name'), input('zone-labels')];
  const state = h('p', { role: 'status' });
  const result = h('div', { class: 'result' });
  const control = (words, act) => h('button', { type: 'button', class: 'small', on: { click: act } }, words);
  const removal = control('', remove);

  function choose(index) {
    // The focus goes back to the corner that had it, which chooses that one.
    render();
    chosen = Math.max(0, Math.min(index, corners.length - 1));
    tell();
    shape.querySelector(`[data-action="corner ${chosen}"]`)?.focus();
  }

  function insert(corner) {
    corners.push(corner);
    choose(corners.length - 1);
  }

  function add() {
    const [first, last] = [corners[0], corners.at(-1)];
    if (corners.length < CORNERS_MAX) insert(FIRST[corners.length] ?? first.map((value, axis) => share((value + last[axis]) / 2)));
  }

  function remove() {
    const index = chosen;
    corners.splice(index, 1);
    close(isClosed);
    choose(index);
  }

  function close(isWanted) {
    isClosed = isWanted && corners.length >= 3;
    render();
  }

  function placeOf({ clientX, clientY }) {
    const { left, top, width, height } = shape.getBoundingClientRect();
    return [share((clientX - left) / width), share((clientY - top) / height)];
  }

  function press(event) {
    if (event.button || drag) return;
    event.preventDefault();
    const index = event.target.dataset.action?.split(' ')[1];
    const isNew = !index && !isClosed && corners.length < CORNERS_MAX;
    if (isNew) insert(placeOf(event));
    else if (index) choose(Number(index));
    else return;
    drag = { pointer: event.pointerId, x: event.clientX, y: event.clientY, isMoved: isNew };
    shape.setPointerCapture(event.pointerId);
  }

  function move(event) {
    if (drag?.pointer !== event.pointerId) return;
    drag.isMoved ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 3;
    if (drag.isMoved) corners[chosen] = placeOf(event);
    render();
  }

  function release(event) {
    if (drag?.pointer !== event.pointerId) return;
    // A click on the first corner closes the zone.
    if (!drag.isMoved && chosen === 0) close(true);
    drag = null;
  }

  function key(event) {
    const way = ARROWS[event.key];
    if (way) corners[chosen] = corners[chosen].map((value, axis) => share(value + way[axis] * (event.shiftKey ? 0.001 : 0.01)));
    if (way) render();
    else if (event.key === 'Delete' || event.key === 'Backspace') remove();
    else if (event.key === 'Enter' && chosen === 0) close(true);
    else return;
    event.preventDefault();
  }

  function drawn() {
    const outline = (kind, all, isWhole = true) => svg(isWhole ? 'polygon' : 'polyline', { class: kind, points: all.map((corner) => corner.join()).join(' ') });
    return svg('svg', null,
      svg('svg', { viewBox: '0 0 1 1', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        // A picture has them already.
        still.querySelector('img') ? [] : camera.zones.map((zone) => outline('other', zone.points)),
        outline('under', corners, isClosed), outline(isClosed ? 'whole' : '', corners, isClosed)),
      corners.map(([x, y], index) => svg('circle', {
        class: 'corner', cx: percent(x), cy: percent(y), r: 6, tabindex: 0, role: 'button', 'data-action': `corner ${index}`,
        'aria-label': `Corner ${index + 1}, ${percent(x)} from the left, ${percent(y)} from the top. Arrow keys move it, Delete removes it${index ? '' : ', Enter closes the zone'}.`,
        on: { keydown: key, focus: () => { chosen = index; tell(); } },
      })));
  }

  function tell() {
    removal.hidden = !corners.length;
    removal.textContent = `Remove corner ${chosen + 1}`;
  }

  function render() {
    const [named, counted] = [name.value.trim(), labels.value.split(',').map((label) => label.trim()).filter(Boolean)];
    const wrong = (corners.length >= 3 && mistake(corners)) || misnamed(named, counted, camera);
    replace(shape, drawn());
    tell();
    state.className = wrong ? 'error' : 'hint';
    const words = wrong || (corners.length < 3 ? 'Click on the picture: each click is a corner of the zone, and it has at least three.'
      : !isClosed ? 'Click on the first corner to close the zone.' : !named ? 'Give the zone a name.' : 'Drag a corner to move it.');
    // The same words are not said again.
    if (state.textContent !== words) state.textContent = words;
    // A string of JSON is one of TOML.
    const list = (all, of) => `[${all.map(of).join(', ')}]`;
    const lines = wrong || !isClosed || !named ? '' : [
      '[[camera.zones]]', `name = "${named}"`, `points = ${list(corners, (corner) => list(corner, String))}`,
      counted.length && `labels = ${list(counted, JSON.stringify)}`].filter(Boolean).join('\n');
    if (result.dataset.lines === lines) return;
    result.dataset.lines = lines;
    replace(result, lines && [copyable('Lines of the zone', lines), h('p', { class: 'hint' },
      `Put them below the lines of ${camera.name} in the configuration, above the next [[camera]]. Then run `, h('code', null, 'ledge config check && systemctl restart ledge'), '.')]);
  }

  const element = h('div', { class: 'panes drawing' }, h('div', { class: 'pane' }, canvas, state, result),
    h('div', { class: 'pane input' }, h('label', { for: 'zone-name' }, 'Name of the zone'), name,
      h('label', { for: 'zone-labels' }, 'Labels that count, with commas'), labels,
      h('p', { class: 'hint' }, `Without any: ${camera.labels.join(', ') || 'all that the model finds'}.`),
      h('div', { class: 'row' }, control('Add a corner', add), removal, control('Start again', () => { corners = []; close(false); }))));
  render();
  return { element, resize: (wide, high) => { canvas.style.aspectRatio = `${wide} / ${high}`; render(); } };
}
