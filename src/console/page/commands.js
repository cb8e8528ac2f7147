// @ts-check
// The commands that ask what was tried, for a shell, for Python and over MQTT. A key is `$LEDGE_KEY`, never itself.

import { hasKey } from './api.js';
import { h } from './dom.js';
import { caller } from './key.js';
import { copyable } from './parts.js';

/** A text as one word of a shell. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A text as a string of Python. JSON's are. */
const python = (text) => JSON.stringify(text);

function curl({ path, type, file, text, accept }) {
  const parts = ['curl -s', quoted(location.origin + path)];
  if (hasKey()) parts.push('-H "Authorization: Bearer $LEDGE_KEY"');
  parts.push(`-H ${quoted(`Content-Type: ${type}`)}`);
  if (accept) parts.push(`-H ${quoted(`Accept: ${accept}`)}`);
  parts.push(file ? `--data-binary ${quoted(`@${file}`)}` : `--data-raw ${quoted(text)}`);
  return parts.join(' \\\n    ');
}

function urllib({ path, type, file, text, accept }) {
  const headers = [`"Content-Type": ${python(type)}`];
  if (accept) headers.push(`"Accept": ${python(accept)}`);
  if (hasKey()) headers.push('"Authorization": "Bearer " + os.environ["LEDGE_KEY"]');
  const lines = [
    hasKey() ? 'import os' : null,
    'from urllib.request import Request, urlopen',
    '',
    file ? `body = open(${python(file)}, "rb").read()` : `body = ${python(text)}.encode()`,
    `url = ${python(location.origin + path)}`,
    `request = Request(url, body, {${headers.join(', ')}})`,
    'print(urlopen(request).read().decode())',
  ];
  return lines.filter((line) => line !== null).join('\n');
}

function mosquitto({ topic, type, file, text, mqtt }) {
  if (mqtt === null || !caller?.mqtt) return null;
  const key = hasKey() ? ' \\\n    -D publish user-property authorization "Bearer $LEDGE_KEY"' : '';
  const kind = type === 'text/plain' ? ' \\\n    -D publish content-type text/plain' : '';
  if (file && mqtt === undefined) {
    // mosquitto_rr sends no files.
    return [
      'mosquitto_sub -V 5 -C 1 -t answers/ledge & sleep 1',
      `mosquitto_pub -V 5 -q 1 -t ${quoted(topic)} -f ${quoted(file)} \\\n    -D publish response-topic answers/ledge${key}`,
      'wait',
    ].join('\n');
  }
  return `mosquitto_rr -V 5 -q 1 -t ${quoted(topic)} -e answers/ledge${kind}${key} \\\n    -m ${quoted(mqtt ?? text)}`;
}

/**
 * The commands of a request: its `path`, `type` and MQTT `topic`, and a `file` or a `text`. `mqtt` is another text for
 * the payload, or `null` where MQTT has no such call. A box without a broker has none.
 */
export function commands(request) {
  const all = [['curl', curl(request)], ['Python', urllib(request)], ['MQTT', mosquitto(request)]];
  const shown = all.filter(([, text]) => text && text.length < 20_000);
  return h('section', { class: 'commands' }, h('h3', null, 'The same from a program'),
    hasKey() && h('p', { class: 'hint' }, 'Put the key into the variable LEDGE_KEY first.'),
    shown.map(([name, text]) => copyable(name, text)));
}
