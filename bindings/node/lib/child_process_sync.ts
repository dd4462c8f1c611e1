// SPDX-License-Identifier: MIT OR Apache-2.0
// The synchronous functions of child_process.

import node = require('node:child_process');
import {
  commandOf,
  copied,
  counts,
  DEFAULT_MAX_BUFFER,
  errnoError,
  isAbsent,
  isInteger,
  isObject,
  isSize,
  isString,
  isTimeout,
  killSignalOf,
  MAJOR,
  parted,
  type Options,
} from './child_process_call';
import { programStart } from './child_process_async';
import { IGNORE, native, PIPE, type ProgramStart, type SyncLimits } from './native';
import { signalName } from './signals';

type Result = node.SpawnSyncReturns<string | Buffer>;

const nodeSpawnSync = node.spawnSync as (...args: unknown[]) => Result;
const nodeExecFileSync = node.execFileSync as (...args: unknown[]) => string | Buffer;
const nodeExecSync = node.execSync as (...args: unknown[]) => string | Buffer;

/** The stdout of a program that was not started. */
const NO_OUTPUT = MAJOR < 22 ? null : undefined;

interface Run {
  start: ProgramStart;
  limits: SyncLimits;
  encoding: BufferEncoding | undefined;
}

/** The source of one of the child's descriptors. */
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

/** The run of a call. Undefined: only Node knows the arguments, or reports them. */
function runOf(file: unknown, args: unknown, given: unknown): Run | undefined {
  const both = parted(args, given);
  if (!both) {
    return undefined;
  }
  const [list, options] = both;
  const { timeout, encoding } = options;
  const maxBuffer = 'maxBuffer' in options ? options.maxBuffer : DEFAULT_MAX_BUFFER;
  const [stdio, killSignal, input] = [descriptors(options.stdio), killSignalOf(options.killSignal), inputOf(options)];
  const isKnown = isTimeout(timeout) && isSize(maxBuffer) && stdio && killSignal !== undefined && input !== undefined;
  const command = isKnown ? commandOf(file, list, options) : undefined;
  if (!isKnown || !command) {
    return undefined;
  }
  return {
    start: programStart(command, stdio),
    limits: {
      timeout: Number(timeout ?? 0),
      maxBuffer: Number(maxBuffer ?? 0),
      killSignal,
      input,
    },
    encoding: encoding && encoding !== 'buffer' ? (encoding as BufferEncoding) : undefined,
  };
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
    ...(errno && { error: errnoError(errno, `spawnSync ${run.start.file}`, run.start) }),
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
  const own = copied(options);
  own.shell = typeof own.shell === 'string' ? own.shell : true;
  const result = spawnSync(command, [], own) as Result;
  return checked(result, command, Boolean(own.stdio));
} as typeof node.execSync;
