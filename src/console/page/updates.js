// The section "Updates".

import { h } from './dom.js';

export function build(section) {
  section.append(h('div', { class: 'section-head' }, h('h1', { id: 'updates-title' }, 'Updates')));
}

/** The section is looked at. */
export function show() {}

/** Another section is looked at. */
export function hide() {}

/** The caller is another one. */
export function changed() {}
