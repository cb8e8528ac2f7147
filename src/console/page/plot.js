// @ts-check
// Line plots, drawn as SVG.

import { h, svg } from './dom.js';

const HEIGHT = 132;
const LEFT = 58;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
/** The minutes between two times of the axis. */
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10080];
const DAY_MINUTES = 1440;
/** No usual values and no unusual times. */
const UNMARKED = { bands: [], spans: [] };

/** Round steps that divide 0 to `most` into about three. */
function step(most) {
  const rough = most / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough) ?? rough;
}

/** Steps of bytes, in powers of two. */
function binaryStep(most) {
  return 2 ** Math.ceil(Math.log2(most / 4));
}

/** An axis from 0: its ticks, and the share of the height at which a figure lies. */
function linear(known, least, binary) {
  const highest = Math.max(least, ...known);
  const each = binary ? binaryStep(highest) : step(highest);
  const count = Math.ceil(highest / each - 1e-9);
  return { ticks: Array.from({ length: count + 1 }, (_, index) => index * each), share: (value) => value / (count * each) };
}

/** An axis of powers of ten, for figures that differ by thousands. */
function logarithmic(known, least) {
  const positive = known.filter((value) => value > 0);
  const low = Math.floor(Math.log10(Math.min(least, ...positive)));
  const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(least, ...positive))));
  const ticks = Array.from({ length: high - low + 1 }, (_, index) => 10 ** (low + index));
  return { ticks, share: (value) => Math.max(0, (Math.log10(value) - low) / (high - low)) };
}

function clock(date) {
  return date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });
}

function day(date) {
  return date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
}

/**
 * A card with a plot. `series` has for each line its column, its name and its class, and if it is not drawn where it is 0. `format` writes a figure, `unit` is
 * spoken. `least` is the lowest top of the axis, or of a logarithmic one a figure on it.
 * @param {{ title: string, unit?: string, series: any[], format: (value: any) => string, least?: number, binary?: boolean, log?: boolean }} options
 */
export function plot({ title, unit, series, format, least = 1, binary = false, log = false }) {
  const values = series.map((one) => h('b', null, '–'));
  const legend = h('ul', { class: 'legend' }, series.map((one, index) =>
    h('li', null, h('span', { class: `swatch ${one.line}` }), h('span', { class: 'name' }, one.name), values[index])));
  const moment = h('span', { class: 'moment' });
  const drawing = svg('svg', { class: 'plot', role: 'img', height: HEIGHT });
  const element = h('article', { class: 'card' },
    h('div', { class: 'card-head' }, h('h3', null, title), moment), legend, drawing);

  let data = null;
  let marks = UNMARKED;
  let pointed = null;

  function width() {
    return Math.max(drawing.clientWidth || 300, 200);
  }

  function column(one) {
    return data?.columns[one.column] ?? [];
  }

  function xOf(index) {
    const inner = width() - LEFT - RIGHT;
    return LEFT + inner * (1 - (data.length - 1 - index) / (data.rows - 1));
  }

  function showValues() {
    const index = pointed ?? (data ? data.length - 1 : -1);
    series.forEach((one, place) => {
      values[place].textContent = format(column(one)[index] ?? null);
    });
    const date = pointed === null ? null : dateOf(pointed);
    moment.textContent = date ? `${isLong() ? `${day(date)} ` : ''}${clock(date)}` : '';
  }

  function minutesShown() {
    return (data.rows * data.interval) / 60;
  }

  function isLong() {
    return minutesShown() > DAY_MINUTES;
  }

  function dateOf(index) {
    return new Date(data.end - (data.length - 1 - index) * data.interval * 1000);
  }

  function spoken() {
    const words = series.map((one) => {
      const known = column(one).filter((value) => value !== null);
      if (!known.length) return `${one.name}: no figures`;
      return `${one.name}: now ${format(known.at(-1))}, lowest ${format(Math.min(...known))}, highest ${format(Math.max(...known))}`;
    });
    return `${title}${unit ? ` in ${unit}` : ''}, ${data?.period ?? ''}. ${words.join('. ')}.`;
  }

  function draw() {
    const wide = width();
    drawing.setAttribute('viewBox', `0 0 ${wide} ${HEIGHT}`);
    drawing.setAttribute('aria-label', spoken());
    const known = series.flatMap((one) => column(one).filter((value) => value !== null));
    const axis = log ? logarithmic(known, least) : linear(known, least, binary);
    const yOf = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - axis.share(value));

    const parts = [];
    for (const [index, tick] of axis.ticks.entries()) {
      const y = yOf(tick);
      parts.push(svg('line', { class: index === 0 ? 'axis' : 'grid', x1: LEFT, x2: wide - RIGHT, y1: y, y2: y }));
      parts.push(svg('text', { class: 'label', x: LEFT - 6, y: y + 3.5, 'text-anchor': 'end' }, format(tick)));
    }
    if (data?.length) {
      parts.push(...events(), ...bands(yOf));
      parts.push(...timeLabels());
      // The most important line comes last, above the others.
      for (const one of series.toReversed()) parts.push(...lines(one, yOf));
    } else {
      parts.push(svg('text', { class: 'label', x: (LEFT + wide) / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, 'No figures yet'));
    }
    drawing.replaceChildren(...parts);
    showValues();
    if (pointed !== null) point(pointed);
  }

  function timeLabels() {
    const parts = [];
    const first = new Date(data.end - (data.rows - 1) * data.interval * 1000);
    const minutes = TIME_STEPS.find((one) => minutesShown() / one <= 5) ?? TIME_STEPS.at(-1);
    const mark = new Date(first);
    // Round in the time of this place.
    mark.setHours(0, 0, 0, 0);
    mark.setMinutes(Math.ceil((first.getTime() - mark.getTime()) / 60_000 / minutes) * minutes);
    for (; mark.getTime() <= data.end; mark.setMinutes(mark.getMinutes() + minutes)) {
      const index = data.length - 1 - (data.end - mark.getTime()) / 1000 / data.interval;
      const x = xOf(index);
      if (x < LEFT + 12 || x > width() - RIGHT - 14) continue;
      parts.push(svg('line', { class: 'grid', x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
      parts.push(svg('text', { class: 'label', x, y: HEIGHT - 5, 'text-anchor': 'middle' },
        isLong() && mark.getHours() === 0 ? day(mark) : clock(mark)));
    }
    return parts;
  }

  function indexOf(time) {
    return data.length - 1 - (data.end - time) / 1000 / data.interval;
  }

  /** The times in which a figure was unusual. */
  function events() {
    const [left, right] = [LEFT, width() - RIGHT];
    return marks.spans.map(({ begin, end }) => [Math.max(xOf(indexOf(begin)), left), Math.min(end === Infinity ? right : xOf(indexOf(end)), right)])
      .filter(([from, to]) => to >= from && from <= right)
      .map(([from, to]) => svg('rect', { class: 'event', x: from, width: Math.max(to - from, 2), y: TOP, height: HEIGHT - TOP - BOTTOM }));
  }

  /** The values that are usual now, at the right edge, and those that were usual in the last day. */
  function bands(yOf) {
    const yOfUsual = (value) => Math.min(Math.max(yOf(Math.max(value, 0)), TOP), HEIGHT - BOTTOM);
    return marks.bands.flatMap(({ column: name, low, high, past }) => {
      const [top, bottom, line] = [yOfUsual(high), yOfUsual(low), series.find((one) => one.column === name).line];
      const edge = svg('rect', { class: `usual ${line}`, x: width() - RIGHT + 2, width: 5, y: top, height: Math.max(bottom - top, 1) });
      return [...pastBands(past, yOfUsual).map((points) => svg('polygon', { class: `was-usual ${line}`, points })), edge];
    });
  }

  /** The outlines of usual values, each of a time in which they were known. The first begins at the left edge. */
  function pastBands(past, yOfUsual) {
    const [left, right] = [LEFT, width() - RIGHT];
    const outlines = [];
    let run = [];
    const end = () => {
      // A value stands for the time until the next one.
      const until = Math.min(run.at(-1)?.next ?? 0, right);
      const points = run.filter(({ next }) => next > left).map(({ x, ...rest }) => ({ x: Math.max(x, left), ...rest }));
      if (points.length) {
        const last = { ...points.at(-1), x: until };
        const path = (list, bound) => list.map((one) => `${one.x.toFixed(1)},${one[bound].toFixed(1)}`);
        outlines.push([...path([...points, last], 'high'), ...path([last, ...points.toReversed()], 'low')].join(' '));
      }
      run = [];
    };
    past.forEach((one, place) => {
      if (one.low === null) {
        end();
        return;
      }
      const next = past[place + 1]?.time ?? data.end;
      const [x, after] = [xOf(indexOf(one.time)), xOf(indexOf(next))];
      if (x <= right) run.push({ x, next: after, high: yOfUsual(one.high), low: yOfUsual(one.low) });
    });
    end();
    return outlines;
  }

  function lines(one, yOf) {
    const parts = [];
    let run = [];
    const end = () => {
      if (run.length === 1) {
        const [[x, y]] = run;
        parts.push(svg('circle', { class: `dot ${one.line}`, cx: x, cy: y, r: 1.6 }));
      } else if (run.length) {
        const path = run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
        if (one.filled) {
          const base = HEIGHT - BOTTOM;
          parts.push(svg('polygon', { class: `area ${one.line}`, points: `${run[0][0].toFixed(1)},${base} ${path} ${run.at(-1)[0].toFixed(1)},${base}` }));
        }
        parts.push(svg('polyline', { class: `line ${one.line}`, points: path }));
      }
      run = [];
    };
    const figures = column(one);
    figures.forEach((value, index) => {
      // A line of nothing but zeros would look like a line of failures along the axis.
      const isQuiet = one.isQuietAtZero && !value && !figures[index - 1] && !figures[index + 1];
      if (value === null || isQuiet) end();
      else run.push([xOf(index), yOf(value)]);
    });
    end();
    return parts;
  }

  function point(index) {
    drawing.querySelector('.pointer')?.remove();
    pointed = index;
    if (index !== null && data) {
      const x = xOf(index);
      drawing.append(svg('line', { class: 'pointer', x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    showValues();
  }

  drawing.addEventListener('pointermove', (event) => {
    if (!data?.length) return;
    const box = drawing.getBoundingClientRect();
    const share = ((event.clientX - box.left) * (width() / box.width) - LEFT) / (width() - LEFT - RIGHT);
    const index = Math.round(data.length - 1 - (1 - share) * (data.rows - 1));
    point(index >= 0 && index < data.length ? index : null);
  });
  drawing.addEventListener('pointerleave', () => point(null));
  new ResizeObserver(() => draw()).observe(drawing);

  return {
    element,
    /** Draws figures: columns, the interval in seconds, the time of the last in ms, the rows of a full period; and marks, if there are any. */
    update(next, nextMarks = UNMARKED) {
      data = next;
      marks = nextMarks;
      if (pointed !== null && pointed >= (data?.length ?? 0)) pointed = null;
      draw();
    },
  };
}
