// SPDX-License-Identifier: MIT OR Apache-2.0
// The synchronous functions of child_process. Node's own function gets the arguments that this file does not know, and
// reports wrong ones.

import node = require('node:child_process');
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import { getSystemErrorName } from 'node:util';
import { native, type ProgramStart, type SyncLimits } from './native';
import { counts, environment, isSupported } from './process_handle';
import { signalName } from './signals';

type Options = Record<string, unknown>;
type Result = node.SpawnSyncReturns<string | Buffer>;

const nodeSpawnSync = node.spawnSync as (...args: unknown[]) => Result;
const nodeExecFileSync = node.execFileSync as (...args: unknown[]) => string | Buffer;
const nodeExecSync = node.execSync as (...args: unknown[]) => string | Buffer;

const MAJOR = Number(process.versions.node.split('.')[0]);
const DEFAULT_MAX_BUFFER = 1024 * 1024;
const IGNORE = -1;
const PIPE = -2;
/** The stdout of a program that was not started. */
const NO_OUTPUT = MAJOR < 22 ? null : undefined;

/** The arguments of a run. Undefined: only Node knows them. */
interface Run {
  start: ProgramStart;
  limits: SyncLimits;
  encoding: BufferEncoding | undefined;
}

const isAbsent = (value: unknown): value is undefined | null => value === undefined || value === null;
const isString = (value: unknown): value is string => typeof value === 'string' && !value.includes('\0');
const isInteger = (value: unknown): value is number => typeof value === 'number' && (value | 0) === value;
const isFlag = (value: unknown): boolean => isAbsent(value) || typeof value === 'boolean';
/** Whether the conversion of a value to a string runs no code of the caller. */
const isPrimitive = (value: unknown): boolean => value === null || !['object', 'function', 'symbol'].includes(typeof value);
const isObject = (value: unknown): value is Options => typeof value === 'object' && value !== null && !Array.isArray(value);

/** The arguments and the options of a call that may have only one of them. The options have no inherited properties. */
function parted(args: unknown, options: unknown): [unknown[], Options] | undefined {
  if (isObject(args)) {
    [args, options] = [[], args];
  }
  const isKnown = (isAbsent(args) || Array.isArray(args)) && (options === undefined || isObject(options));
  const own = { __proto__: null, ...(options as Options | undefined) } as unknown as Options;
  return isKnown ? [[...((args as unknown[] | null) ?? [])], own] : undefined;
}

/** What a child gets as one of its descriptors. */
function descriptorOf(item: unknown, number: number): number | undefined {
  const given = item ?? (number < 3 ? 'pipe' : 'ignore');
  switch (given) {
    case 'ignore':
      return IGNORE;
    case 'pipe':
    case 'overlapped':
      return PIPE;
    case 'inherit':
      return number;
  }
  if (isInteger(given)) {
    return given < 0 ? PIPE : given;
  }
  const { fd } = Object(given) as { fd?: unknown };
  return isInteger(fd) && fd >= 0 ? fd : undefined;
}

function descriptors(stdio: unknown): number[] | undefined {
  const items = typeof stdio === 'string' ? [stdio, stdio, stdio] : stdio || ['pipe', 'pipe', 'pipe'];
  if (!Array.isArray(items) || (typeof stdio === 'string' && !['ignore', 'pipe', 'overlapped', 'inherit'].includes(stdio))) {
    return undefined;
  }
  const all = Array.from({ length: Math.max(items.length, 3) }, (_, number) => descriptorOf(items[number], number));
  return all.every((descriptor) => descriptor !== undefined) ? (all as number[]) : undefined;
}

function signalNumber(signal: unknown): number | undefined {
  if (isAbsent(signal)) {
    return constants.signals.SIGTERM;
  }
  const known = constants.signals as Record<string, number>;
  if (typeof signal === 'number') {
    return Object.values(known).includes(signal) ? signal : undefined;
  }
  return typeof signal === 'string' && Object.hasOwn(known, signal.toUpperCase()) ? known[signal.toUpperCase()] : undefined;
}

/** The variables, as Node passes them: those of the prototypes too. */
function variables(given: Options | undefined): string[] | undefined {
  const env = { __proto__: given ?? process.env } as unknown as Options;
  const coverage = process.env.NODE_V8_COVERAGE;
  if (coverage && given && !Object.hasOwn(given, 'NODE_V8_COVERAGE')) {
    env.NODE_V8_COVERAGE = coverage;
  }
  const pairs: string[] = [];
  for (const name in env) {
    if (env[name] !== undefined) {
      pairs.push(`${name}=${env[name] as string}`);
    }
  }
  return pairs.some((pair) => pair.includes('\0')) ? undefined : pairs;
}

function inputOf(options: Options): Buffer | null | undefined {
  const { input, encoding } = options;
  if (!input) {
    return null;
  }
  if (ArrayBuffer.isView(input)) {
    return Buffer.from(input.buffer, input.byteOffset, input.byteLength);
  }
  const isKnown = isAbsent(encoding) || Buffer.isEncoding(encoding as string);
  return typeof input === 'string' && isKnown ? Buffer.from(input, (encoding ?? undefined) as BufferEncoding) : undefined;
}

/** The program and its arguments, with the shell if there is one. */
function commandLine(file: string, args: unknown[], { shell, argv0 }: Options): [string, string[]] {
  const words = args.map(String);
  if (!shell) {
    return [file, [(argv0 as string | undefined) ?? file, ...words]];
  }
  const program = typeof shell === 'string' ? shell : '/bin/sh';
  return [program, [(argv0 as string | undefined) ?? program, '-c', [file, ...words].join(' ')]];
}

function runOf(file: unknown, args: unknown, given: unknown): Run | undefined {
  // The permission model changes the variables.
  if (!isSupported || (process as { permission?: unknown }).permission || process.platform !== 'linux') {
    return undefined;
  }
  const both = parted(args, given);
  if (!both || !isString(file) || file === '') {
    return undefined;
  }
  const [list, options] = both;
  const { cwd, env, uid, gid, shell, argv0, timeout, encoding } = options;
  const directory = cwd instanceof URL && cwd.protocol === 'file:' ? fileURLToPath(cwd) : cwd;
  const maxBuffer = 'maxBuffer' in options ? options.maxBuffer : DEFAULT_MAX_BUFFER;
  const [stdio, killSignal, input] = [descriptors(options.stdio), signalNumber(options.killSignal), inputOf(options)];
  const isKnown =
    list.every((argument) => isPrimitive(argument) && isString(String(argument))) &&
    (isAbsent(directory) || (isString(directory) && directory !== '')) &&
    (!env || isObject(env)) &&
    [options.detached, options.windowsHide, options.windowsVerbatimArguments].every(isFlag) &&
    [uid, gid].every((id) => isAbsent(id) || isInteger(id)) &&
    (isAbsent(shell) || typeof shell === 'boolean' || isString(shell)) &&
    (isAbsent(argv0) || isString(argv0)) &&
    (isAbsent(timeout) || (Number.isInteger(timeout) && (timeout as number) >= 0)) &&
    (isAbsent(maxBuffer) || (typeof maxBuffer === 'number' && maxBuffer >= 0)) &&
    // Node 24 warns.
    !(shell && list.length > 0 && MAJOR >= 24);
  const pairs = isKnown ? variables((env || undefined) as Options | undefined) : undefined;
  if (!pairs || !stdio || killSignal === undefined || input === undefined) {
    return undefined;
  }
  const [program, argv] = commandLine(file, list, options);
  return {
    start: {
      file: program,
      args: argv,
      cwd: (directory ?? undefined) as string | undefined,
      ...environment(pairs),
      stdio,
      detached: Boolean(options.detached),
      uid: (uid ?? undefined) as number | undefined,
      gid: (gid ?? undefined) as number | undefined,
    },
    limits: {
      timeout: Number(timeout ?? 0),
      maxBuffer: Number(maxBuffer ?? 0),
      killSignal,
      writes: stdio.map((_, number) => number === 0),
      inputs: [input],
    },
    encoding: encoding && encoding !== 'buffer' ? (encoding as BufferEncoding) : undefined,
  };
}

function spawnError(errno: number, { file, args }: ProgramStart): Error {
  const code = getSystemErrorName(errno);
  const syscall = `spawnSync ${file}`;
  const error = new Error(`${syscall} ${code}`);
  Error.captureStackTrace(error, spawnSync);
  return Object.assign(error, { errno, code, syscall, path: file, spawnargs: args.slice(1) });
}

export const spawnSync = function spawnSync(file: unknown, args: unknown, options: unknown): Result {
  const run = runOf(file, args, options);
  const outcome = run && native.runChild(run.start, run.limits);
  if (!outcome) {
    counts.delegated[run ? 'unsupported' : 'arguments']++;
    return nodeSpawnSync(file, args, options);
  }
  const { pid, errno, code, signal } = outcome;
  const isStarted = pid !== 0;
  counts.started += Number(isStarted);
  const decoded = outcome.output.map((part) => (part && run.encoding ? part.toString(run.encoding) : (part ?? null)));
  const output = isStarted ? decoded : null;
  return {
    ...(errno && { error: spawnError(errno, run.start) }),
    status: isStarted && !signal && code >= 0 ? code : null,
    signal: signal ? signalName(signal) : null,
    output,
    pid,
    stdout: output ? output[1] : NO_OUTPUT,
    stderr: output ? output[2] : NO_OUTPUT,
  } as Result;
} as typeof node.spawnSync;

/** The output of a run, or the error of one that was not ok. */
function checked(result: Result, command: string, hasStdio: boolean): string | Buffer {
  if (!hasStdio && result.stderr) {
    process.stderr.write(result.stderr);
  }
  if (result.error) {
    throw Object.assign(result.error, result);
  }
  if (result.status !== 0) {
    const details = result.stderr?.length > 0 ? `\n${result.stderr.toString()}` : '';
    throw Object.assign(new Error(`Command failed: ${command}${details}`), result);
  }
  return result.stdout;
}

export const execFileSync = function execFileSync(file: unknown, args?: unknown, options?: unknown): string | Buffer {
  const both = typeof file === 'string' ? parted(args, options ?? undefined) : undefined;
  if (!both) {
    return nodeExecFileSync(file, args, options);
  }
  const [list, given] = both;
  const result = spawnSync(file as string, list as string[], given) as Result;
  return checked(result, [given.argv0 || file, ...list].join(' '), Boolean(given.stdio));
} as typeof node.execFileSync;

export const execSync = function execSync(command: unknown, options?: unknown): string | Buffer {
  if (!isString(command) || !(isAbsent(options) || isObject(options))) {
    return nodeExecSync(command, options);
  }
  const own = { __proto__: null, ...(options as Options | undefined) } as unknown as Options;
  own.shell = typeof own.shell === 'string' ? own.shell : true;
  const result = spawnSync(command, [], own) as Result;
  return checked(result, command, Boolean(own.stdio));
} as typeof node.execSync;
