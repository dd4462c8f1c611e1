// SPDX-License-Identifier: MIT OR Apache-2.0
// Checks the arguments of a call, with the texts of src/request.rs.

import { Unsupported } from '../errors';
import type { Given, NativeArgv } from '../native';
import { PortableEnv } from './env';
import { PortableLimiter } from './limiter';
import { OPTIONS, type OptionSpec } from './options';
import { object, optionValue, shown, text, wrong } from './values';

export interface SpillOptions {
  maxBytes: number;
  dir: string | null;
  persist: boolean;
}

/** The checked arguments of a call. Times are in milliseconds. The object can be copied to a worker. */
export interface Request {
  program: string;
  args: string[];
  arg0: string | null;
  cwd: string | null;
  env: Record<string, string>;
  stdin: string | number;
  stdout: string | number;
  stderr: string | number;
  input: Uint8Array | null;
  timeout: number | null;
  idleTimeout: number | null;
  grace: number;
  drain: number;
  leftovers: string;
  keep: [head: number, tail: number];
  marker: string | null;
  spill: SpillOptions | null;
  outputLimit: number | null;
  window: number;
}

type Call = 'run' | 'start';

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

const INSTEAD: Record<string, string> = {
  shell: '; for a shell command line pass sh(command) as argv',
  stdio: '; see stdin, stdout and stderr',
  maxBuffer: '; see keep, outputLimit and spill',
  killSignal: '; see grace',
  encoding: '; the result has bytes and text',
};

function find(name: string, call: Call): OptionSpec {
  const found = OPTIONS.filter((option) => option.name === name);
  const option = found.find(({ calls }) => calls.includes(call));
  if (option) {
    return option;
  }
  const similar = OPTIONS.find((option) => option.calls.includes(call) && snakeCase(option.name) === snakeCase(name));
  if (similar) {
    throw wrong(`unexpected option ${JSON.stringify(name)}; its name is ${similar.name}`);
  }
  const other = found.length > 0 ? `; ${call === 'run' ? 'start' : 'run'}() accepts it` : '';
  throw wrong(`unexpected option ${JSON.stringify(name)}${INSTEAD[name] ?? other}`);
}

function checkedValue(option: OptionSpec, value: unknown, call: Call): unknown {
  const { name } = option;
  if (value === null && option.kind === 'Object') {
    return null;
  }
  switch (name) {
    case 'env':
      return value instanceof PortableEnv ? value : new PortableEnv(value);
    case 'limiter':
      if (!(value instanceof PortableLimiter)) {
        throw wrong(`limiter must be a Limiter, got ${shown(value)}`);
      }
      return value;
    case 'limits':
    case 'spill':
      return checkedValues(object(value, name, 'an object'), call, `${name}.`);
    default:
      return optionValue(option, name, value);
  }
}

/** The values of the options whose names begin with `prefix`: those that the caller gives, or else the defaults. */
function checkedValues(given: Given, call: Call, prefix = ''): Given {
  const options = OPTIONS.filter(({ name, calls }) => calls.includes(call) && name.startsWith(prefix));
  const values: Given = Object.fromEntries(options.map((option) => [option.name.slice(prefix.length), option.default]));
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined) {
      values[name] = checkedValue(find(`${prefix}${name}`, call), value, call);
    }
  }
  return values;
}

/** The options that work only with the native half, unless they have one of these values. */
const NATIVE_ONLY: Record<string, readonly unknown[]> = {
  actions: [],
  combined: [false],
  leftovers: ['kill', 'detach'],
  limits: [],
  sandbox: [],
  terminal: [],
  tree: ['group', 'auto'],
  warm: [],
};

function checkSupported(name: string, value: unknown): void {
  const accepted = NATIVE_ONLY[name];
  if (accepted && value !== null && !accepted.includes(value)) {
    throw new Unsupported(typeof value === 'string' ? `${name}: '${value}'` : `the option ${name}`);
  }
}

/** The checked arguments of a call. The limiter stays in the calling thread. */
export interface CheckedCall {
  request: Request;
  limiter: PortableLimiter | null;
}

/** Checks the arguments of a call. */
export function checkedRequest(argv: NativeArgv, given: Given, call: Call): CheckedCall {
  const [program, ...args] = argv.map((item, index) => text(item, `argv[${index}]`));
  if (program === undefined) {
    throw wrong('argv must not be empty; its first item names the program');
  }
  if (program === '') {
    throw wrong('argv[0] must not be empty; it names the program');
  }
  const { env, limiter, ...values } = checkedValues(given, call);
  if (values.input !== null && values.stdin !== 'null') {
    throw wrong('input cannot be combined with stdin');
  }
  if (/[\n\r\0]/.test((values.marker as string | null) ?? '')) {
    throw wrong('the marker must not contain a line break or a NUL character');
  }
  for (const [name, value] of Object.entries(values)) {
    checkSupported(name, value);
  }
  // The environment of this moment: a limiter may delay the start.
  const variables = ((env as PortableEnv | null) ?? new PortableEnv(null)).toObject();
  const request = { ...values, program, args, env: variables } as unknown as Request;
  return { request, limiter: limiter as PortableLimiter | null };
}
