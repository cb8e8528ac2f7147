// The page: one section at a time, by the fragment of the address.

import { byId } from './dom.js';
import { identify, start } from './key.js';
import * as models from './models.js';
import * as now from './now.js';
import * as tries from './try.js';

const SECTIONS = { now, try: tries, models };

function current() {
  const [name] = location.hash.slice(1).split('/');
  return name in SECTIONS ? name : 'now';
}

function show() {
  for (const [name, section] of Object.entries(SECTIONS)) {
    const isShown = name === current();
    byId(name).hidden = !isShown;
    const link = byId(`to-${name}`);
    if (isShown) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    if (isShown) section.show();
    else section.hide();
  }
}

for (const [name, section] of Object.entries(SECTIONS)) section.build(byId(name));
document.querySelector('.skip').addEventListener('click', (event) => {
  // The fragment names the section.
  event.preventDefault();
  byId('main').focus();
});
window.addEventListener('hashchange', () => {
  show();
  window.scrollTo(0, 0);
});
start(() => {
  for (const section of Object.values(SECTIONS)) section.changed();
  show();
});
identify();
