// @ts-check
// The report of a month: a page that the box makes, saved as a file.

import { send } from './api.js';
import { failure, h } from './dom.js';
import { ask, may } from './key.js';
import { say } from './parts.js';

const problem = h('div', { role: 'status' });
const month = h('input', { type: 'month', name: 'report-month', required: true });
const form = h('form', { class: 'filters', hidden: true, on: { submit: (event) => {
  event.preventDefault();
  save();
} } }, h('label', null, 'Report of', month), h('button', { type: 'submit', class: 'small', 'data-action': 'report' }, 'Save the report'));

export const element = h('div', { class: 'stack' }, form, problem);

/** Shows the form to callers that may have reports. The month is the last complete one, in UTC. */
export function refresh() {
  form.hidden = !may('administer');
  problem.hidden = form.hidden;
  if (month.value) return;
  const now = new Date();
  month.value = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - 1)).toISOString().slice(0, 7);
}

async function save() {
  const [button, name] = [form.querySelector('button'), month.value];
  button.disabled = true;
  try {
    // No limit of time: the box reads and verifies all of its log.
    const href = URL.createObjectURL(await (await send(`/report?month=${encodeURIComponent(name)}`)).blob());
    h('a', { download: `report-${name}.html`, href }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
    say(problem, null);
  } catch (error) {
    say(problem, failure(error, () => ask()));
  } finally {
    button.disabled = false;
  }
}
