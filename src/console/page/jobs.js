// @ts-check
// Jobs: files and tables that are answered when there is time, with their progress, and the order to remove one.

import { get, post } from './api.js';
import { h, moment, withCommands } from './dom.js';
import { keyedTable } from './keyed.js';
import { action, confirm, replace, tell } from './parts.js';
import { part, section as sectionOf } from './section.js';
import { actions, cell, figure, row, title } from './table.js';

const KINDS = { running: 'ok', done: 'ok', paused: 'warn', stuck: 'fail', failed: 'fail' };

const place = h('div', { class: 'stack' });
const table = keyedTable('Jobs and their progress', ['Job', 'State', 'Done', 'Failed', 'Added', ''], ({ id }) => id, drawJob, { figures: ['Done', 'Failed'] });

const jobs = part({
  every: 5000,
  place,
  needs: ['view', 'The list of jobs needs the role viewer, operator, auditor or admin.'],
  load: (signal) => get('/jobs', { signal }),
  draw({ jobs: all }) {
    table.update(all);
    replace(place, all.length ? table.element : h('p', { class: 'notice' }, withCommands('There are no jobs. `ledge jobs add` adds one.')));
  },
  reset: () => table.update([]),
});

export const section = sectionOf({
  parts: [jobs],
  build(element) {
    element.append(h('div', { class: 'section-head' }, h('h1', { id: 'jobs-title' }, 'Jobs')), place);
  },
});

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
  await jobs.order(button, () => post(`/jobs/${job.id}/remove`), () => tell('The job is removed.'));
}
