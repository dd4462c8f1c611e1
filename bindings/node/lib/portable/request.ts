// SPDX-License-Identifier: MIT OR Apache-2.0
// Checks the arguments of a call, with the texts of src/request.rs.

import { isUtf8 } from 'node:buffer';
import { Unsupported } from '../errors';
import type { Given, NativeArgv } from '../native';
import { PortableEnv } from './env';
import { PortableLimiter } from './limiter';
import { OPTIONS, type OptionSpec } from './options';
import { data, object, optionValue, shown, wrong } from './values';

export interface SpillOptions {
  maxBytes: number;
  dir: string | null;
  persist: boolean;
}

/** The checked arguments of a call. Times are in milliseconds. The object can be copied to a worker. */
export interface Request {
  program: string;
  args: string[];
  arg0: string | undefined;
  cwd: string | undefined;
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

function text(value: unknown, name: string): string {
  const bytes = data(value, name);
  if (!isUtf8(bytes)) {
    throw new Unsupported(`${name} that is not UTF-8`);
  }
  if (bytes.includes(0)) {
    throw wrong(`${name} contains a NUL byte`);
  }
  return bytes.toString();
}

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

/** The fields of an option that is an object, by their name. */
function fields(name: string, value: unknown, call: Call): Record<string, unknown> {
  const given = Object.entries(object(value, name, 'an object')).filter(([, field]) => field !== undefined);
  return Object.fromEntries(
    given.map(([field, value]) => [field, optionValue(find(`${name}.${field}`, call), `${name}.${field}`, value)]),
  );
}

function checkedValue(option: OptionSpec, value: unknown, call: Call): unknown {
  const { name } = option;
  if (value === null && option.kind === 'Object') {
    return null;
  }
  switch (name) {
    case 'env':
      return value === null ? null : value instanceof PortableEnv ? value : new PortableEnv(value);
    case 'limiter':
      if (!(value instanceof PortableLimiter)) {
        throw wrong(`limiter must be a Limiter, got ${shown(value)}`);
      }
      return value;
    case 'limits':
    case 'spill':
      return fields(name, value, call);
    default:
      return optionValue(option, name, value);
  }
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

function defaults(call: Call): Given {
  return Object.fromEntries(OPTIONS.filter(({ calls }) => calls.includes(call)).map((each) => [each.name, each.default]));
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
  const values: Given = {};
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined) {
      values[name] = checkedValue(find(name, call), value, call);
    }
  }
  if (values.input != null && values.stdin != null) {
    throw wrong('input cannot be combined with stdin');
  }
  if (/[\n\r\0]/.test((values.marker as string | undefined) ?? '')) {
    throw wrong('the marker must not contain a line break or a NUL character');
  }
  for (const [name, value] of Object.entries(values)) {
    checkSupported(name, value);
  }
  const path = (value: unknown, name: string): string | undefined => (value == null ? undefined : text(value, name));
  const all = { ...defaults(call), ...values };
  const spilled = values.spill as Record<string, unknown> | null | undefined;
  const spill = spilled && {
    maxBytes: all['spill.maxBytes'],
    persist: all['spill.persist'],
    ...spilled,
    dir: path(spilled.dir, 'spill.dir') ?? null,
  };
  const request = {
    ...all,
    program,
    args,
    arg0: path(values.arg0, 'arg0'),
    cwd: path(values.cwd, 'cwd'),
    // The environment of this moment: a limiter may delay the start.
    env: ((values.env as PortableEnv | null | undefined) ?? new PortableEnv(null)).toObject(),
    stdin: values.stdin ?? 'null',
    stdout: values.stdout ?? 'capture',
    stderr: values.stderr ?? 'separate',
    spill: spill ?? null,
    limiter: null,
  } as unknown as Request;
  return { request, limiter: (values.limiter as PortableLimiter | null | undefined) ?? null };
}
