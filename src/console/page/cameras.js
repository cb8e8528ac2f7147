// @ts-check
// The cameras: state, last pictures, counts and events.

import { get, send } from './api.js';
import { bytes, clock, h, time, withCommands } from './dom.js';
import { pictureOf } from './drawing.js';
import { may } from './key.js';
import { arrange, keyed } from './keyed.js';
import { copyable, finder, replace } from './parts.js';
import { part, section as sectionOf } from './section.js';
import { editor } from './zones.js';

const EVENTS_SHOWN = 25;
const WHOLE = 'everywhere';
const STATES = { waiting: ['off', 'no picture yet'], online: ['ok', 'online'], failing: ['fail', 'failing'],
  frozen: ['fail', 'frozen'], away: ['fail', 'away'] };
const EVENTS = { appeared: 'appeared', gone: 'is gone', count: 'more or fewer' };
const LINES = `[[camera]]
name = "yard"
url = "http://<address>/<path of a picture>"
labels = ["person", "car"]

[[egress.allow]]
host = "<address>:80"
region = "lan"
send = ["requests"]`;

const seen = ({ counts }) => Object.values(counts?.[WHOLE] ?? {}).reduce((sum, one) => sum + one, 0);
const FILTERS = {
  'All states': () => true,
  Online: ({ state }) => state === 'online',
  'Not online': ({ state }) => state !== 'online',
  'Something is there': (camera) => seen(camera) > 0,
};
const ORDERS = {
  'By name': (one, other) => one.name.localeCompare(other.name),
  'As configured': () => 0,
  'Most objects': (one, other) => seen(other) - seen(one),
  'Longest in its state': (one, other) => Date.parse(one.since ?? 0) - Date.parse(other.since ?? 0),
};
const heading = h('h1', { id: 'cameras-title', tabindex: '-1' });
const back = h('a', { class: 'button small', href: '#cameras' }, 'All cameras');
const place = h('div');
const [grid, happened] = [h('div', { class: 'cameras' }), h('section', { class: 'pane' })];
const found = finder('cameras', FILTERS, ORDERS, () => render());
const happenings = h('ul', { class: 'events' });
const drawEvents = keyed(happenings, ({ at, camera, zone, label }) => `${at} ${camera} ${zone} ${label}`, ({ at, camera, event, zone, label, count }) => h('li', null,
  h('span', { class: 'quiet' }, clock(at)), h('b', null, camera), h('span', null, `${label} ${EVENTS[event]}${zone === WHOLE ? '' : ` in ${zone}`}`),
  event !== 'gone' && h('span', { class: 'quiet' }, `${count} there`)));
/** The cards by camera; and the editor of zones, with its camera. */
const cards = new Map();
let drawing = null;
let known = null;

const watched = part({
  every: 3000,
  place,
  needs: ['view', 'Cameras need the role viewer, camera-viewer, operator, auditor or admin.'],
  load: (signal) => Promise.all([get('/cameras', { signal }), get('/cameras/events', { signal, quiet: true })]),
  async draw([cameras, events], signal) {
    known = { ...cameras, ...events };
    render();
    for (const { still } of drawing ? [drawing] : cards.values()) await still.update(signal);
  },
  reset() {
    known = drawing = null;
    cards.clear();
    drawEvents([]);
    grid.replaceChildren();
  },
});

export const section = sectionOf({
  parts: [watched],
  build(element) {
    element.append(h('div', { class: 'section-head' }, heading, back), place);
  },
  show() {
    const isOther = (drawing?.name ?? '') !== wanted();
    render();
    if (!isOther) return;
    heading.focus();
    // The picture of the editor is one that was not looked at.
    if (known) watched.reload();
  },
});

/** The camera in the address, of which a zone is drawn. */
function wanted() {
  return location.hash.split('/')[1] ?? '';
}

function render() {
  const name = wanted();
  heading.textContent = name ? `Draw a zone: ${name}` : 'Cameras';
  back.hidden = !name;
  if (drawing?.name !== name) drawing = null;
  if (!known) return;
  const { cameras, events } = known;
  for (const [gone, { element }] of cards) {
    if (cameras.some((camera) => camera.name === gone)) continue;
    element.remove();
    cards.delete(gone);
  }
  if (name) edit(name, cameras.find((camera) => camera.name === name));
  else if (cameras.length) all(cameras, events);
  else replace(place, none());
}

function edit(name, camera) {
  if (!camera) {
    replace(place, h('p', { class: 'notice' }, `There is no camera ${name}.`));
    return;
  }
  if (!drawing) {
    const still = stillOf();
    drawing = { name, still, ...editor(camera, still.element) };
  }
  // A refresh that failed put its reason there.
  if (drawing.element.parentElement !== place) place.replaceChildren(drawing.element);
  drawing.still.camera = camera;
  drawing.resize(camera.picture?.width ?? 16, camera.picture?.height ?? 9);
}

function all(cameras, events) {
  for (const camera of cameras) {
    if (!cards.has(camera.name)) {
      cards.set(camera.name, cardOf(camera.name));
      grid.append(cards.get(camera.name).element);
    }
    cards.get(camera.name).update(camera);
  }
  const shown = found.apply(cameras);
  for (const [name, { element }] of cards) element.hidden = !shown.some((camera) => camera.name === name);
  arrange(grid, [...shown.map(({ name }) => cards.get(name).element), ...[...cards.values()].map(({ element }) => element).filter(({ hidden }) => hidden)]);
  drawEvents(events.slice(0, EVENTS_SHOWN));
  replace(happened, h('h2', null, 'Events'), events.length
    ? happenings
    : h('p', { class: 'quiet' }, 'Nothing has appeared since the service started.'));
  if (grid.parentElement !== place) place.replaceChildren(found.element, grid, happened);
}

/** What a box without cameras shows. */
function none() {
  return h('div', { class: 'pane' }, h('h2', null, 'This box watches no camera yet'),
    h('p', null, 'Ledge fetches pictures of a camera, finds objects on them and counts them by zone. A camera is some lines in /etc/ledge/ledge.toml:'),
    copyable('Lines of a camera', LINES),
    h('p', { class: 'hint' }, 'The manual of the camera has the address of a picture; docs/vision.md has common ones. Then run ',
      h('code', null, 'ledge config check && systemctl restart ledge'), '.'));
}

/** The place of a camera's last picture, which is loaded once, and only where it is looked at. */
function stillOf() {
  const element = h('div', { class: 'still' });
  let shownAt = null;

  function put(child, at = null) {
    element.replaceChildren(child);
    shownAt = at;
  }

  async function update(signal) {
    if (!element.isConnected || !element.checkVisibility()) return;
    const { name, picture } = still.camera;
    const { top, bottom } = element.getBoundingClientRect();
    const obstacle = !may('view_pictures') ? 'Pictures of cameras need the role camera-viewer or admin.'
      : !picture ? 'No picture has come since the service started.' : picture.hidden && `Not shown: ${picture.hidden}.`;
    if (obstacle) put(h('p', null, obstacle));
    else if (picture.at !== shownAt && bottom > -300 && top < innerHeight + 300) {
      try {
        const url = URL.createObjectURL(await (await send(`/cameras/${name}/picture`, { quiet: true, signal })).blob());
        const image = await pictureOf(url, `${name} at ${clock(picture.at)}`);
        URL.revokeObjectURL(url);
        signal.throwIfAborted();
        put(image ?? h('p', null, 'This browser cannot decode it.'), picture.at);
      } catch (error) {
        signal.throwIfAborted();
        put(h('p', null, error.message));
      }
    }
  }
  const still = { element, camera: null, update };
  return still;
}

function cardOf(name) {
  const still = stillOf();
  const id = `camera-${name}`;
  const [badge, about] = [h('span'), h('div', { class: 'about' })];
  const element = h('article', { class: 'card', 'aria-labelledby': id }, h('div', { class: 'card-head' }, h('h2', { id }, name), badge),
    still.element, about, h('a', { class: 'button small', href: `#cameras/${name}`, 'aria-label': `Draw a zone: ${name}` }, 'Draw a zone'));

  function update(camera) {
    still.camera = camera;
    const { state, since, reason, picture, looked_at: looked, counts, blur } = camera;
    const [kind, words] = STATES[state];
    badge.className = `badge ${kind}`;
    badge.textContent = words;
    const zones = Object.entries(counts ?? {}).filter(([, labels]) => Object.keys(labels).length);
    zones.sort(([one], [other]) => Number(other === WHOLE) - Number(one === WHOLE));
    replace(about,
      picture && h('p', { class: 'moment' }, `${clock(picture.at)} · ${picture.width} × ${picture.height} · ${bytes(picture.bytes)}`,
        Date.parse(looked) > Date.parse(picture.at) && ` · nothing new until ${clock(looked)}`),
      state !== 'online' && since && h('p', { class: 'reason' }, withCommands(`since ${clock(since)}: ${reason}`)),
      h('dl', null, zones.map(([zone, labels]) => h('div', null, h('dt', null, zone === WHOLE ? 'whole picture' : zone),
        h('dd', null, Object.entries(labels).map(([label, count]) => h('span', { class: count ? 'badge ok' : 'badge' }, `${label} ${count}`)))))),
      h('p', { class: 'hint' }, [camera.url ?? 'pictures come with calls', `every ${time(camera.interval_ms / 1000)}`, camera.model,
        blur.length ? `blurred: ${blur.join(', ')}` : 'nothing is blurred'].filter(Boolean).join(' · ')));
  }
  return { element, still, update };
}
