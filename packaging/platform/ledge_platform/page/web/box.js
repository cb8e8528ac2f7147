// One box: what is wrong with it, and its last report.

import { bytes, h, number, withCommands } from './dom.js';
import { cell, figure, list, row, scrolled, title } from './table.js';
import { STATES, ago, badge, findings, moment, named, own, packageText, pairs, percent, short, standing, whole } from './words.js';

const content = h('div');
const name = h('h1', { id: 'box-title', tabindex: '-1' });
const back = h('a', { href: '#boxes' }, 'All boxes');
let data = null;
let shown = null;

export function build(section) {
  section.append(h('p', { class: 'back' }, back), h('div', { class: 'section-head' }, name), content);
}

export function update(next) {
  data = next;
  draw();
}

/** The box of that name; `way` leads back to the table `place` as it was. */
export function show(device, way, place) {
  shown = device;
  back.setAttribute('href', way);
  back.textContent = place;
  draw();
}

function draw() {
  if (!data || shown === null) return;
  const box = data.boxes.find((one) => one.device === shown);
  name.replaceChildren(named(box?.name ?? 'No such box'));
  if (!box) {
    content.replaceChildren(h('p', { class: 'empty' }, 'No box of this name is known. It may have been removed from the broker.'));
    return;
  }
  content.replaceChildren(...[wrong(box), head(box), box.rollouts?.length && releases(box), models(box), machine(box), log(box), answer(box), membership(box)].filter(Boolean));
}

function wrong({ findings: list }) {
  return h('div', { class: 'findings' }, h('h2', null, list.length ? 'What needs a look' : 'Nothing is wrong'), list.length > 0 && findings(list, withCommands));
}

function panel(text, ...children) {
  return h('section', { class: 'panel' }, h('h2', null, text), children);
}

/** The last answer to `ledge-platform box ask`: words and numbers, no texts of the box. */
function answer(box) {
  if (!box.answer) return null;
  const worst = { failure: 0, warning: 1, ok: 2 };
  const checks = [...box.answer.checks].sort((one, other) => worst[one.level] - worst[other.level]);
  const numbers = (check) => [
    check.free_bytes !== undefined && `${bytes(check.free_bytes)} free`,
    check.seconds_left !== undefined && `certificate ends in ${Math.floor(check.seconds_left / 86400)} d`,
  ].filter(Boolean).join(', ') || '–';
  const level = { ok: 'ok', warning: 'warn', failure: 'fail' };
  return panel('Last answer', pairs([['Answered', ago(box.answer.at, data.at)], ['Ledge', box.answer.ledge]]),
    scrolled(list(`Checks of ${box.name}`, ['Check', 'Level', 'Count', 'Numbers'], checks.map((check) => row(
      title(named(check.check.replaceAll('_', ' '))),
      cell('Level', badge(check.level, level[check.level])),
      cell('Count', number(check.count)),
      cell('Numbers', numbers(check)))))));
}

function head(box) {
  const { load = {}, requests = {} } = box;
  const connected = { true: 'connected', false: 'not connected' }[box.online];
  if (!box.at) return panel('Report', h('p', { class: 'quiet' }, 'No report has come from it yet.'));
  const isFree = load.free !== null && load.memory;
  return panel('Report', pairs([
    ['Last report', [ago(box.at, data.at), connected && `, ${connected}`]],
    ['Health', box.health && badge(box.health, box.health === 'ok' ? 'ok' : 'fail')],
    ['Fleet', named(box.fleet)],
    ['Group', box.group && named(box.group)],
    ['Ledge', box.ledge],
    ['Note', box.notes?.length > 0 && named(box.notes.join('; '))],
    ['Started', box.started && ago(box.started, data.at)],
    ['Processor', load.cpu !== null && load.cores ? `${percent(load.cpu)} of ${load.cores} cores` : null],
    ['Memory', isFree ? `${bytes(load.memory - load.free)} of ${bytes(load.memory)}` : null],
    ['Memory of Ledge', load.ledge === null ? null : bytes(load.ledge)],
    ['Calls since the start', requests.ok === null ? null
      : `${number(requests.ok, 4)} answered, ${number(requests.failed)} failed, ${number(requests.refused)} of them refused`],
    ['Looked for updates', box.updates && (box.updates.checked ? ago(box.updates.checked, data.at) : 'not yet')],
  ]));
}

function releases(box) {
  return panel('Rollouts', scrolled(list(`Rollouts of ${box.name}`, ['Release', 'Rollout', 'State', 'Wave', 'Reason'], box.rollouts.map((one) => row(
    title(named(`${short(one.subject)} ${one.version}`)),
    cell('Rollout', named(one.rollout)),
    cell('State', h('span', null, standing(one), one.stage && one.stage !== STATES[one.state][0] && h('span', { class: 'others' }, one.stage))),
    cell('Wave', one.wave ? h('span', null, `${one.wave}, `, moment(one.comes)) : 'none yet'),
    cell('Reason', one.text ? named(one.text) : '–'))))));
}

function models(box) {
  const versions = (box.models ?? []).flatMap((model) => model.versions.map((version) => [model.name, version]));
  const subjects = new Map((box.updates?.subjects ?? []).map((one) => [one.subject, one]));
  if (!versions.length && !subjects.size) return null;
  const level = { READY: 'ok', UNAVAILABLE: 'fail' };
  const others = [...subjects.values()].filter((one) => !one.subject.startsWith('models/'));
  return panel('Models',
    scrolled(list(`Models of ${box.name}`, ['Model', 'Version', 'State', 'Runtime', 'Reason'], versions.map(([model, one]) => row(
      title(named(model ?? '?'), subjects.get(`models/${model}`)?.pinned && badge('kept by owner', '')),
      figure('Version', one.version ?? '–'),
      cell('State', badge(one.reason === 'unloaded' ? 'unloaded' : (one.state ?? '?').toLowerCase(), one.reason === 'unloaded' ? '' : level[one.state] ?? '')),
      cell('Runtime', one.runtime ?? '–'),
      cell('Reason', one.reason && one.reason !== 'unloaded' ? named(one.reason) : '–'))), { figures: ['Version'] })),
    box.left_out > 0 && h('p', { class: 'note' }, `${number(box.left_out)} more versions do not fit into a report.`),
    others.length > 0 && pairs(others.map((one) => [named(short(one.subject)), `version ${one.version ?? 'of the owner'}`])));
}

function machine(box) {
  const { inventory: found, load = {} } = box;
  if (!found) return null;
  const models = own(box);
  return panel('Inventory', pairs([
    ['Hardware', found.model && named(found.model)],
    ['Processor', found.cpu && named(found.cpu)],
    ['Architecture', found.architecture && named(found.architecture)],
    ['System', found.os && named(found.os)],
    ['Package', found.package ? named(`${packageText(found.package)}${found.package.format ? `, ${found.package.format}` : ''}`) : 'none'],
    ['Models of the owner', models.length ? named(models.join(', ')) : 'none'],
    ['Memory', load.memory && bytes(load.memory)],
    ['Disk of the state folder', found.disk && `${bytes(found.disk.free)} of ${bytes(found.disk.total)} are free`],
    ['Certificate in use until', found.certificate && moment(found.certificate.until)],
  ]));
}

function membership({ membership: found }) {
  if (!found) return null;
  return panel('Membership', pairs([
    ['State', found.state],
    ['Certificate until', found.until && moment(found.until)],
    ['Last certificate', found.renewed && ago(found.renewed, data.at)],
    ['Since', moment(found.since)],
  ]));
}

function log({ verified, audit }) {
  if (!verified && !audit) return null;
  return panel('Audit log', pairs([
    ['Verified', verified?.log ? `log ${verified.log} up to record ${whole(verified.records)}` : data.logs_known ? 'never' : 'not on this machine'],
    ['Last run of verify', verified?.at && ago(verified.at, data.at)],
    ['Log of the box', audit?.log && named(audit.log)],
    ['Records on the box', audit && whole(audit.records)],
    ['Copied to the platform', audit && (audit.copied === null ? 'no copy is configured' : whole(audit.copied))],
    ['Lost', audit?.lost > 0 && whole(audit.lost)],
  ]));
}
