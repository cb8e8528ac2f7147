// Jobs: files and tables that are answered when there is time, with their progress, and the order to remove one.

import { get, post } from './api.js';
import { h, moment, withCommands } from './dom.js';
import { caller } from './key.js';
import { action, confirm, filled, refreshed, replace, tell, tellFailure } from './parts.js';
import { actions, cell, figure, list, row, title } from './table.js';

const KINDS = { running: 'ok', done: 'ok', paused: 'warn', stuck: 'fail', failed: 'fail' };

let isBusy = false;
const place = h('div', { class: 'stack' });

const followed = refreshed(5000, async (signal) => { if (!isBusy) await load(signal); });
export const { show, hide } = followed;

export function build(section) {
  section.append(h('div', { class: 'section-head' }, h('h1', { id: 'jobs-title' }, 'Jobs')), place);
}

export function changed() {
  hide();
  isBusy = false;
  place.replaceChildren();
}

const load = (loading) => filled(place, 'The list of jobs', async (signal) => {
  const { jobs } = await get('/jobs', { signal });
  if (signal.aborted || isBusy) return;
  replace(place, jobs.length
    ? list('Jobs and their progress', ['Job', 'State', 'Done', 'Failed', 'Added', ''], jobs.map(drawJob), { figures: ['Done', 'Failed'] })
    : h('p', { class: 'notice' }, withCommands('There are no jobs. `ledge jobs add` adds one.')));
}, loading);

function drawJob(job) {
  const share = job.total > 0 ? Math.floor(100 * job.done / job.total) : 100;
  const isOver = job.ended_at !== null;
  const verb = isOver ? 'Remove' : 'Cancel';
  return row(
    title(job.model, h('p', { class: 'note code' }, job.id)),
    cell('State', h('span', { class: `badge ${KINDS[job.state] ?? ''}` }, job.state), job.reason && h('p', { class: 'reason' }, job.reason),
      job.state === 'waiting' && job.window && h('p', { class: 'note' }, job.window)),
    figure('Done', `${share} %`), figure('Failed', `${job.failed}`), cell('Added', moment(job.added_at)),
    actions(action(verb, job.id, 'operate', 'operator or admin', (button) => remove(button, job, verb))));
}

async function remove(button, job, verb) {
  const details = job.results ? 'Its results in the folder stay.' : 'Its input and its result are removed.';
  if (!await confirm(`${verb} the job of ${job.model}?`, details, verb === 'Remove' ? verb : 'Cancel the job')) return;
  const by = caller;
  isBusy = true;
  button.setAttribute('aria-disabled', 'true');
  try {
    await post(`/jobs/${job.id}/remove`);
    if (by === caller) tell('The job is removed.');
  } catch (error) {
    if (by === caller) tellFailure(error);
  }
  isBusy = false;
  followed.reload();
}
