// @ts-check
// Elements, made without markup: a text never becomes an element.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. `on` among its attributes holds listeners; texts among its children become text nodes. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** @returns {any} An element of the kind that has this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A number for people: four digits, and no more than it has. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value !== 0 && Math.abs(value) < 0.001) return digits > 3 || value < 0 ? value.toExponential(1) : '< 0.001';
  const whole = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : digits - 1;
  return value.toLocaleString('en', { maximumFractionDigits: whole });
}

/** A time in seconds for people. */
export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  if (seconds === 0) return '0';
  if (seconds >= 1) return `${number(seconds)} s`;
  if (seconds >= 0.001) return `${number(seconds * 1000)} ms`;
  return `${number(seconds * 1e6)} µs`;
}

/** A number of bytes for people. */
export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value)} ${units[unit]}`;
}

/** A moment of the API for people, in their own time zone. */
export function moment(text) {
  // The Swedish form is year, month, day.
  return text ? new Date(text).toLocaleString('sv') : '–';
}

/** The same without the day where that is today. */
export function clock(text) {
  const [day, time_] = moment(text).split(' ');
  return time_ && day === moment(new Date()).split(' ')[0] ? time_ : moment(text);
}

/** A text in which commands stand between backticks. */
export function withCommands(text) {
  return text.split('`').map((part, index) => (index % 2 ? h('code', null, part) : part));
}

/** The name of a runtime, by its own or that of its platform in the protocol. */
export function runtime(name) {
  return { onnxruntime: 'ONNX Runtime', openvino: 'OpenVINO', onnxruntime_onnx: 'ONNX Runtime' }[name] ?? name;
}

/** A button for another key, where one may help against an error. */
export function keyButton(error, useKey) {
  const mayHelp = (error.status === 401 || error.status === 403) && useKey;
  return mayHelp && h('button', { type: 'button', class: 'small', on: { click: useKey } }, 'Use an API key');
}

/** The message of an error, with that button. */
export function failure(error, useKey) {
  return h('div', { class: 'error', role: 'alert' },
    h('p', null, withCommands(error.message)),
    keyButton(error, useKey));
}
