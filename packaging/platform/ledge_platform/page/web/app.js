// The fleet page: its data, one view at a time by the fragment of the address, and how old it is.

import { byId, h, withCommands } from './dom.js';
import { boxes } from './boxes.js';
import { build as buildBox, show as showBox, update as updateBox } from './box.js';
import { inventory } from './inventory.js';
import { build as buildRollouts, update as updateRollouts } from './rollouts.js';
import { day, span } from './words.js';

const LOOK_MS = 60_000;
const AGE_MS = 10_000;
const STALE_S = 600;

let data = JSON.parse(byId('data').textContent);
let trouble = '';

const TABLES = { boxes, inventory };
// The table that was shown last: a box leads back to it.
let table = 'boxes';

function view() {
  const [name, rest] = location.hash.slice(1).split(/[/?](.*)/s);
  const known = name === 'box' && rest ? 'box' : name === 'rollouts' || Object.hasOwn(TABLES, name) ? name : 'boxes';
  if (Object.hasOwn(TABLES, known)) {
    table = known;
    TABLES[known].show(rest ?? '');
  }
  if (known === 'box') showBox(decoded(rest), TABLES[table].address(), table === 'inventory' ? 'Inventory' : 'All boxes');
  for (const one of ['boxes', 'inventory', 'box', 'rollouts']) byId(`view-${one}`).hidden = one !== known;
  for (const one of ['boxes', 'inventory', 'rollouts']) {
    if (one === known || (one === table && known === 'box')) byId(`to-${one}`).setAttribute('aria-current', one === known ? 'page' : 'true');
    else byId(`to-${one}`).removeAttribute('aria-current');
  }
  return known;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function age() {
  const seconds = (Date.now() - Date.parse(data.at)) / 1000;
  byId('age').textContent = `as of ${day(data.at)}, ${span(seconds)} old`;
  let words = trouble;
  if (!words && seconds > STALE_S) {
    words = data.by === 'watch'
      ? `This page is of ${day(data.at)}: no watcher has written it since. \`ledge-platform page\` writes it by hand.`
      : `This page is of ${day(data.at)}: it was written by hand. \`ledge-platform watch --page\`, or a cron line with \`ledge-platform page\`, keeps it current.`;
  }
  // A status is read aloud when it changes, so it has no age.
  const place = byId('stale');
  if (place.textContent !== words.replaceAll('`', '')) {
    place.replaceChildren(...(words ? [h('p', { class: 'notice late' }, withCommands(words))] : []));
  }
}

function take(next) {
  data = next;
  boxes.update(data);
  inventory.update(data);
  updateBox(data);
  updateRollouts(data);
  age();
}

/** A page that a server gave gets new data from there. One from a disk cannot, and is loaded again by hand. */
async function look() {
  try {
    const answer = await fetch('fleet.json', { cache: 'no-cache' });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const next = await answer.json();
    trouble = next.script === data.script ? '' : 'This page has a new version: reload it.';
    if (!trouble && next.at !== data.at) take(next);
  } catch (error) {
    trouble = `New data did not come: ${error.message}.`;
  }
  age();
}

byId('reload').addEventListener('click', () => location.reload());
document.querySelector('.skip').addEventListener('click', (event) => {
  // The fragment names the view.
  event.preventDefault();
  byId('main').focus();
});
window.addEventListener('hashchange', () => {
  byId(`${view()}-title`).focus({ preventScroll: true });
  window.scrollTo(0, 0);
});

// No element has the name of a fragment: the browser would scroll to it.
boxes.build(byId('view-boxes'));
inventory.build(byId('view-inventory'));
buildBox(byId('view-box'));
buildRollouts(byId('view-rollouts'));
take(data);
view();
setInterval(age, AGE_MS);
if (location.protocol.startsWith('http')) {
  setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
}
