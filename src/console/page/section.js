// @ts-check
// The life of a section, in one place: when it asks, what is drawn, and what it forgets.

import { failure } from './dom.js';
import { ask, caller, may } from './key.js';
import { say, tellFailure } from './parts.js';

/** The longest pause between two questions to a box that does not answer. */
const PAUSE_MAX_MS = 60_000;

const isRefused = (error) => error.status === 401 || error.status === 403;

/**
 * Does `work`, and hands its answer to `done` or its error to `failed`. Neither runs once the caller is another one or the
 * signal is aborted.
 */
export async function answered(work, done, failed = tellFailure, signal = undefined) {
  const by = caller;
  const isOver = () => by !== caller || signal?.aborted;
  try {
    const answer = await work(signal);
    if (!isOver()) await done?.(answer, signal);
  } catch (error) {
    if (!isOver()) failed(error);
  }
}

/**
 * A part of a section. While it is shown, `load(signal)` asks each `every` milliseconds and `draw(answer, signal)` draws the
 * answer. One load runs at a time, none in a hidden tab, and fewer while the box does not answer. An answer is dropped that
 * comes after the part was left, to another caller, or during an order.
 *
 * `place` shows the reason of a failure, with `isQuiet` none of a refusal: another part of the section says it. `failed`
 * handles failures instead. A part that is refused asks again when it is shown again. `needs` is a permission, and
 * the sentence for callers without it. `every` may be a function; `null` asks once. `reset` forgets what the part knows of a caller.
 * @template Answer
 * @param {{ every: number | (() => number | null), place?: Element, needs?: string[], isQuiet?: boolean, reset?: () => void,
 *   load: (signal: AbortSignal) => Answer | Promise<Answer>, draw: (answer: Answer, signal: AbortSignal) => unknown,
 *   failed?: (error: any) => void }} options
 */
export function part({ every, place = undefined, needs = undefined, isQuiet = false, load, draw, failed = undefined, reset = undefined }) {
  const orders = new Set();
  let stop = null;
  let again = () => {};

  function start() {
    stop = new AbortController();
    const { signal } = stop;
    if (needs && !may(needs[0])) {
      if (needs[1]) say(place, failure({ status: 401, message: needs[1] }, () => ask()));
      again = () => {};
      return;
    }
    let [timer, misses] = [0, 0];
    let [isLoading, isOutdated, isDue, isOver] = [false, false, false, false];
    const drawn = async (answer) => {
      misses = 0;
      if (!orders.size) await draw(answer, signal);
    };
    const missed = (error) => {
      misses = error.status === 0 ? misses + 1 : 0;
      isOver = isRefused(error);
      if (failed) failed(error);
      else say(place, !(isQuiet && isOver) && failure(error, () => ask()));
    };
    const run = async () => {
      clearTimeout(timer);
      if (isLoading || signal.aborted) return;
      isLoading = true;
      do {
        [isOutdated, isDue, isOver] = [false, false, false];
        if (!orders.size) await answered(load, drawn, missed, signal);
      } while (isOutdated && !signal.aborted);
      isLoading = false;
      if (signal.aborted || isOver) return;
      const pause = typeof every === 'function' ? every() : every;
      if (pause === null) return;
      timer = setTimeout(() => {
        isDue = true;
        if (!document.hidden) run();
      }, Math.max(pause, Math.min(pause * 2 ** misses, PAUSE_MAX_MS)));
    };
    again = () => {
      // A load that runs may have asked before the change.
      isOutdated = true;
      return run();
    };
    signal.addEventListener('abort', () => clearTimeout(timer));
    document.addEventListener('visibilitychange', () => { if (isDue && !document.hidden) run(); }, { signal });
    run();
  }

  function hide() {
    stop?.abort();
    stop = null;
  }

  return {
    /** That of the loads; `undefined` while the part is not shown. */
    get signal() {
      return stop?.signal;
    },
    show() {
      if (!stop) start();
    },
    hide,
    reload() {
      return stop ? again() : undefined;
    },
    /** Carries out an order of a button. Nothing is loaded or drawn meanwhile, and everything is loaded again afterwards. */
    async order(button, work, done) {
      const mine = {};
      orders.add(mine);
      button?.setAttribute('aria-disabled', 'true');
      await answered(work, done);
      button?.removeAttribute('aria-disabled');
      if (orders.delete(mine)) this.reload();
    },
    changed() {
      hide();
      orders.clear();
      place?.replaceChildren();
      reset?.();
    },
  };
}

/** A section of parts. `show` and `hide` are for what else it does while it is shown, `reset` forgets what is of a caller. */
export function section({ build, parts = [], show = undefined, hide = undefined, reset = undefined }) {
  const leave = () => {
    for (const one of parts) one.hide();
    hide?.();
  };
  return {
    build,
    show() {
      for (const one of parts) one.show();
      return show?.();
    },
    hide: leave,
    /** The caller is another one. */
    changed() {
      leave();
      for (const one of parts) one.changed();
      reset?.();
    },
  };
}
