// @ts-check
// Signed updates: the state of each subject, its rollout step by step, and the orders of the administrator.

import { get, post } from './api.js';
import { failure, h, moment, time, withCommands } from './dom.js';
import { keyed } from './keyed.js';
import { action, confirm, facts, replace, say, tell } from './parts.js';
import { part, section as sectionOf } from './section.js';
import { cell, list, row, title } from './table.js';

const STAGES = {
  downloading: 'its files are fetched',
  verified: 'its files are those that were signed; it is tried in a process of its own',
  staged: 'it is loaded next to the live version and timed against it',
  shadow: 'a share of the requests is run on it too, and nobody gets its answers',
  canary: 'a share of the requests is answered by it',
  active: 'it answers every request, and the version before is kept for a rollback',
  committed: '',
};
const UNCONFIGURED = 'This box gets no updates. To get them from a platform, which signs models and says where they run, set `updates.repository`, `updates.root_file` and an entry of `[[egress.allow]]`. `ledge config check` says what is missing.';
const TRIAL_MS = 2000;
const IDLE_MS = 5000;
// Metadata is renewed well before.
const EXPIRES_SOON_MS = 24 * 3600 * 1000;

let pause = IDLE_MS;
const trouble = h('div');
const place = h('div', { class: 'stack' });
const rollouts = h('div', { class: 'stack' });
const drawSubjects = keyed(rollouts, ({ subject }) => subject, drawSubject);

const updates = part({
  every: () => pause,
  place,
  needs: ['view', 'The state of updates needs the role viewer, operator, auditor or admin.'],
  load: (signal) => get('/updates', { signal }).catch((error) => { if (error.status !== 409) throw error; }),
  draw(state) {
    if (state) draw(state);
    else replace(place, h('p', { class: 'notice' }, withCommands(UNCONFIGURED)));
  },
  reset() {
    trouble.replaceChildren();
    drawSubjects([]);
  },
});

export const section = sectionOf({
  parts: [updates],
  build(element) {
    element.append(h('div', { class: 'section-head' }, h('h1', { id: 'updates-title' }, 'Updates')), trouble, place);
  },
});

function draw({ repository, checked, error, published, roles, subjects }) {
  pause = subjects.some((one) => one.trial) ? TRIAL_MS : IDLE_MS;
  const values = { Repository: repository, 'Last check that succeeded': moment(checked), 'Rollouts published': moment(published) };
  const role = ([name, { version, expires }]) => {
    const left = expires ? Date.parse(expires) - Date.now() : Infinity;
    return row(title(name), cell('Version', version), cell('Valid until', expires ? moment(expires) : 'not known yet',
      left < EXPIRES_SOON_MS && h('span', { class: `badge ${left < 0 ? 'fail' : 'warn'}` }, left < 0 ? 'expired' : 'within a day')));
  };
  drawSubjects(subjects);
  say(trouble, error && failure({ message: `The last check failed: ${error}` }));
  replace(place,
    h('div', { class: 'card' }, h('div', { class: 'row' }, facts(values),
      action('Check now', 'for updates', 'operate', 'operator or admin', (button) => order(button, '/updates/check', 'Check for updates now?',
        `The box asks ${repository} for new rollouts, and tries at once what waits for its next attempt.`, 'Check now', 'The check has succeeded.')))),
    subjects.length ? rollouts : h('p', { class: 'notice' }, 'No rollout is for this box yet.'),
    h('details', { class: 'card', 'data-action': 'trust' }, h('summary', null, 'Trust: who signed, and until when'), list('Roles of the signed metadata', ['Role', 'Version', 'Valid until'], Object.entries(roles).map(role))));
}

/** The stages as a line. */
function steps(at, isFailed) {
  const names = Object.keys(STAGES);
  const place_ = names.indexOf(at);
  const isEnd = at === 'committed';
  return h('ol', { class: 'steps' }, names.map((name, index) => {
    const state = index < place_ || isEnd ? 'done' : index > place_ ? null : isFailed ? 'failed' : 'now';
    return h('li', { class: state, 'aria-current': state === 'now' && 'step' }, name, h('span', { class: 'unseen' }, { done: ' (done)', failed: ' (failed here)' }[state]));
  }));
}

function drawSubject(one) {
  const { subject, version, previous, pinned, trial, waiting, error, last, stage } = one;
  const isModel = subject.startsWith('models/');
  const before = previous ? `version ${previous}` : isModel ? 'the model in your own repository' : 'what was before';
  const canReturn = version && (!trial || stage === 'active');
  const live = version ? `Version ${version} is live.${canReturn ? ` A rollback would return to ${before}.` : ''}` : isModel ? 'No version of the platform is live: the model in your own repository answers, if there is one.' : 'No version of the platform is live.';
  const isBack = last?.result === 'rolled_back';
  const button = (verb, path, question, details, done) => action(verb, subject, 'operate', 'operator or admin',
    (pressed) => order(pressed, `/updates/${subject}/${path}`, question, details, verb, done));
  return h('article', { class: 'card stack', 'aria-label': subject },
    h('div', { class: 'row' }, h('h2', null, subject), pinned && h('span', { class: 'badge warn' }, 'pinned'),
      h('span', { class: `badge ${trial ? 'warn' : isBack ? (last.cause === 'operator' ? 'off' : 'fail') : 'ok'}` }, trial ? `version ${trial.version} on trial` : isBack ? 'rolled back' : 'idle')),
    h('p', null, live),
    trial && [steps(stage), h('p', null, `Version ${trial.version} of the rollout ${trial.rollout}, ${time(trial.since_s)} in the stage ${stage}: ${STAGES[stage]}.`),
      trial.held && h('p', { class: 'reason' }, `It stands still: ${trial.held}`),
      trial.fault && h('p', { class: 'reason' }, `${trial.fault.reason}. Attempts: ${trial.fault.attempts}, since ${moment(trial.fault.since)}; the next is due ${moment(trial.fault.next)}.`)],
    error && error !== trial?.fault?.reason && h('p', { class: 'reason' }, error),
    waiting && waiting.rollout !== trial?.rollout && h('p', null, `Version ${waiting.version} of the rollout ${waiting.rollout} waits: ${waiting.reason}.`),
    last && [!trial && steps(isBack ? last.stage : 'committed', isBack),
      h('p', { class: isBack ? 'reason' : 'note' }, isBack ? `Version ${last.version} of the rollout ${last.rollout} was rolled back in the stage ${last.stage} (${last.cause}): ${last.detail}`
        : `Version ${last.version} of the rollout ${last.rollout} passed every stage.`)],
    h('div', { class: 'row' },
      pinned ? button('Unpin', 'unpin', `Unpin ${subject}?`, 'It takes new rollouts again, from the next check on.', 'It takes new rollouts again.')
        : button('Pin', 'pin', `Keep ${subject} as it is?`, 'It takes nothing new until it is unpinned. A version that the platform revokes is taken back all the same.', 'It stays as it is.'),
      canReturn && button('Roll back', 'rollback', `Roll ${subject} back?`, `From now on ${before} answers, and version ${version} of this rollout is not tried again on this box.`, `It goes back to ${before}.`),
      trial && stage !== 'active' && button('Cancel the trial', 'cancel', `Cancel the trial of version ${trial.version}?`, 'The version that was live before the trial answers everything, and this rollout is not tried again on this box.', 'The trial has ended.')));
}

async function order(button, path, question, details, verb, done) {
  if (!await confirm(question, details, verb)) return;
  await updates.order(button, () => post(path), (state) => {
    tell(done);
    draw(state);
  });
}
