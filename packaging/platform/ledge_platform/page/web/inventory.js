// The inventory: what each box is, by its last report.

import { boxTable, byNumber, byText, fleetsOf, selection } from './boxtable.js';
import { bytes, h } from './dom.js';
import { cell, figure, row, title } from './table.js';
import { badge, below, count, day, level, linkTo, own, packageText, placeOf } from './words.js';

const MODELS_SHOWN = 3;
const NOTHING = 'none';
// A comparison puts what is not known last.
const UNKNOWN_TEXT = '~';

const counts = h('p', { class: 'counts' });
const download = h('p', { class: 'row' }, h('a', { href: 'inventory.csv', download: 'inventory.csv' }, 'Download as CSV'));

/** The version of the package; `none` for a program from no package, null where nothing is known. */
function versionOf({ inventory }) {
  return inventory ? inventory.package?.version ?? NOTHING : null;
}

/** [version, number of boxes], the most frequent first. */
function versions(list) {
  const found = new Map();
  for (const box of list) {
    const version = versionOf(box);
    if (version) found.set(version, (found.get(version) ?? 0) + 1);
  }
  return [...found].sort(([one, many], [other, few]) => few - many || (one < other ? -1 : 1));
}

function versionName(version) {
  return version === NOTHING ? 'without a package' : version;
}

/** "41 boxes 0.2.0, 9 boxes 0.1.0", of the boxes that fit. */
function showCounts(fits) {
  counts.replaceChildren(...versions(fits).flatMap(([version, number], index) =>
    [index ? ', ' : '', h('b', null, count(number, 'box', 'boxes')), ' ', h('bdi', null, versionName(version))]));
  counts.hidden = !counts.childNodes.length;
  download.hidden = !fits.length;
}

function until(box) {
  return box.inventory?.certificate?.until ?? box.membership?.until;
}

export const inventory = boxTable({
  name: 'inventory', heading: 'Inventory', id: 'inventory-', placeholder: 'Name, hardware, system, model …', sorted: 'name',
  columns: {
    name: ['Box', byText((box) => box.name)],
    hardware: ['Hardware', byText((box) => box.inventory?.model ?? box.inventory?.cpu ?? UNKNOWN_TEXT)],
    system: ['System', byText((box) => box.inventory?.os ?? UNKNOWN_TEXT)],
    package: ['Package', byText((box) => packageText(box.inventory?.package) ?? UNKNOWN_TEXT)],
    models: ['Own models', byNumber((box) => -own(box).length)],
    memory: ['Memory free', byNumber((box) => box.load?.free ?? Infinity), true],
    disk: ['Room', byNumber((box) => box.inventory?.disk?.free ?? Infinity), true],
    certificate: ['Certificate until', byNumber((box) => Date.parse(until(box) ?? '') || Infinity)],
  },
  filters: [
    selection({ key: 'fleet', name: 'Fleet', all: 'All fleets', least: 2, fits: (box, value) => box.fleet === value,
      entries: (data) => fleetsOf(data.boxes).map((name) => [name, name]) }),
    selection({ key: 'version', name: 'Version of the package', all: 'All versions', least: 2, fits: (box, value) => versionOf(box) === value,
      entries: (data) => versions(data.boxes).map(([version, number]) => [version, `${versionName(version)} (${number})`]) }),
  ],
  above: [counts, download],
  search: (box) => [box.name, box.fleet, box.group, box.ledge, box.inventory?.model, box.inventory?.cpu, box.inventory?.architecture, box.inventory?.os,
    packageText(box.inventory?.package), box.membership?.state, ...own(box), ...(box.notes ?? [])],
  makeRow,
  none: () => [h('p', null, 'No box has reported yet.')],
  drawn: showCounts,
});

function makeRow(box) {
  const { inventory: found, load = {} } = box;
  const models = own(box);
  const ending = until(box);
  return row(
    title(h('a', { href: linkTo(box.device) }, box.name), placeOf(box) && below(placeOf(box)), box.notes?.length > 0 && below(box.notes.join('; '))),
    cell('Hardware', known(found?.model, found?.cpu), below([found?.model && found.cpu, load.cores && count(load.cores, 'core', 'cores'), found?.architecture].filter(Boolean).join(', '))),
    cell('System', known(found?.os)),
    cell('Package', known(packageText(found?.package), found && 'none'), below([found?.package?.format, box.ledge && `Ledge ${box.ledge}`].filter(Boolean).join(', '))),
    cell('Own models', models.length ? models.slice(0, MODELS_SHOWN).map((name) => h('span', { class: 'line' }, name)) : found ? 'none' : '–',
      models.length > MODELS_SHOWN && below(`${models.length - MODELS_SHOWN} more`)),
    figure('Memory free', room(load.free, load.memory)),
    figure('Room', found?.disk ? [room(found.disk.free, found.disk.total), few(box)] : '–'),
    cell('Certificate until', ending ? h('time', { datetime: ending }, day(ending)) : '–'));
}

function known(...texts) {
  return h('span', { class: 'line' }, texts.find(Boolean) ?? '–');
}

function room(free, total) {
  return free === null || free === undefined || !total ? '–' : [bytes(free), below(`of ${bytes(total)}`)];
}

/** A mark on a disk that is nearly full. */
function few(box) {
  const found = box.findings.find((finding) => finding.kind === 'room');
  return found && badge(level({ findings: [found] }) === 'fail' ? 'full' : 'nearly full', found.level);
}
