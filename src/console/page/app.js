// @ts-check
// The page: one section at a time, by the fragment of the address. A section's module is loaded at the first look at it.

import { byId, failure } from './dom.js';
import { ask, caller, identify, start } from './key.js';
import { untell } from './parts.js';

const MODULES = {
  now: () => import('./now.js'),
  try: () => import('./try.js'),
  models: () => import('./models.js'),
  cameras: () => import('./cameras.js'),
  features: () => import('./features.js'),
  jobs: () => import('./jobs.js'),
  updates: () => import('./updates.js'),
  audit: () => import('./audit.js'),
  keys: () => import('./keys.js'),
};

/** The sections that were looked at, by name. */
const built = new Map();
/** The section that is shown. */
let shown = null;

function current() {
  const [name] = location.hash.slice(1).split('/');
  return Object.hasOwn(MODULES, name) ? name : 'now';
}

async function show() {
  const wanted = current();
  if (wanted !== shown) untell();
  shown = wanted;
  document.title = [byId(`to-${wanted}`).textContent, caller?.device, 'Ledge'].filter(Boolean).join(' – ');
  for (const name of Object.keys(MODULES)) {
    const isShown = name === wanted;
    byId(name).hidden = !isShown;
    const link = byId(`to-${name}`);
    if (isShown) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    if (!isShown) built.get(name)?.hide();
  }

  try {
    const { section } = await MODULES[wanted]();
    if (!built.has(wanted)) {
      built.set(wanted, section);
      byId(wanted).replaceChildren();
      section.build(byId(wanted));
    }
    if (wanted === current()) section.show();
  } catch (error) {
    if (built.has(wanted)) throw error;
    const message = 'A file of this page did not come: the box may be restarting, or the network is down. Reload the page.';
    byId(wanted).replaceChildren(failure({ message }, () => ask()));
  }
}

document.querySelector('.skip').addEventListener('click', (event) => {
  // The fragment names the section.
  event.preventDefault();
  byId('main').focus();
});
window.addEventListener('hashchange', () => {
  const before = shown;
  show();
  // Another model or camera of the same section leaves the page where it is.
  if (before !== shown) window.scrollTo(0, 0);
});
// A file that is dropped beside the place for it must not replace the page.
for (const name of ['dragover', 'drop']) {
  window.addEventListener(name, (/** @type {any} */ event) => {
    if (event.defaultPrevented || event.target.closest?.('input') || !event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = 'none';
  });
}
start(() => {
  untell();
  for (const section of built.values()) section.changed();
  show();
});
identify();
