// SPDX-License-Identifier: MIT OR Apache-2.0
// The asynchronous functions of child_process: Node's ChildProcess, with another handle.

import { AsyncResource } from 'node:async_hooks';
import node = require('node:child_process');
import { channel } from 'node:diagnostics_channel';
import { EventEmitter } from 'node:events';
import { constants } from 'node:os';
import type { Readable } from 'node:stream';
import { getSystemErrorName, promisify } from 'node:util';
import { checkPermission, isExit } from './call';
import {
  commandOf,
  copied,
  counts,
  DEFAULT_MAX_BUFFER,
  errnoError,
  isAbsent,
  isObject,
  isSize,
  isString,
  isTimeout,
  killSignalOf,
  parted,
  type Command,
  type Options,
} from './child_process_call';
import * as native from './native';
import { signalName } from './signals';

/** An item of `stdio`, as Node's ChildProcess passes it to its handle. */
interface StdioItem {
  type: string;
  fd?: number;
  /** Node's handle of this process's end of a pipe, or of a stream to inherit. */
  handle?: { fd: number; open(fd: number): number };
}

/** Node's ChildProcess#_handle. */
interface Handle {
  onexit: (code: number, signal: string) => void;
  spawn(...args: unknown[]): number;
  close(): void;
}

/** The internal properties of Node's ChildProcess. */
interface Internals {
  _handle: Handle | null;
  _closesNeeded: number;
  _closesGot: number;
  spawn(options: object): number;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };
type Own = Mutable<node.ChildProcess> & Internals;
type Callback = (error: Error | null, stdout: string | Buffer, stderr: string | Buffer) => void;

const nodeSpawn = node.spawn as (...args: unknown[]) => node.ChildProcess;
const nodeExec = node.exec as (...args: unknown[]) => node.ChildProcess;
const nodeExecFile = node.execFile as (...args: unknown[]) => node.ChildProcess;
const created = channel('child_process');
const { ESRCH, EIO } = constants.errno;

/** A command for the native half. */
export function programStart(command: Command, stdio: number[]): native.ProgramStart {
  const { file, args, cwd, envPairs, detached, uid, gid } = command;
  return { file, args, cwd, env: envPairs.join('\0'), envCount: envPairs.length, stdio, detached, uid, gid };
}

type HandleOptions = Command & { stdio: StdioItem[] };

/** The bit of the flags that Node 24 passes in place of the option `detached`. */
const FLAG_DETACHED = 1;

/** The arguments of a handle's spawn(): an object, or since Node 24 single arguments. */
function handleOptions(args: unknown[]): HandleOptions {
  if (isObject(args[0])) {
    return args[0] as unknown as HandleOptions;
  }
  const [file, argv, cwd, envPairs, stdio, flags, uid, gid] = args;
  return { file, args: argv, cwd, envPairs, stdio, detached: (Number(flags) & FLAG_DETACHED) !== 0, uid, gid } as HandleOptions;
}

/** The source of one of the child's descriptors; undefined if only Node can make it. */
function descriptorOf(item: StdioItem): number | undefined {
  const number = item.type === 'wrap' ? item.handle?.fd : item.fd;
  switch (item.type) {
    case 'ignore':
      return native.IGNORE;
    case 'pipe':
    case 'overlapped':
      return native.PIPE;
    case 'inherit':
    case 'fd':
    case 'wrap':
      return typeof number === 'number' && number >= 0 ? number : undefined;
    default:
      return undefined;
  }
}

/** Sends `close` after the end of the program and of each stream, as Node does. */
function maybeClose(child: Own): void {
  child._closesGot++;
  if (child._closesGot === child._closesNeeded) {
    child.emit('close', child.exitCode, child.signalCode);
  }
}

/** Whether Node has given a stream of this process to a child. */
function isUsedAsStdio(stream: Readable): boolean {
  return Object.getOwnPropertySymbols(stream).some((symbol) => symbol.description === 'kIsUsedAsStdio');
}

/** Reads streams that the caller does not read, so that they end. */
function flush(child: Own): void {
  for (const stream of (child.stdio ?? []) as (Readable | null)[]) {
    if (stream?.readable && !isUsedAsStdio(stream)) {
      stream.resume();
    }
  }
}

/** The end of a program, or of its start: `code` is then a negative errno. */
function ended(child: Own, code: number, signal: string): void {
  if (signal) {
    child.signalCode = signal as NodeJS.Signals;
  } else {
    child.exitCode = code;
  }
  child.stdin?.destroy();
  child._handle?.close();
  child._handle = null;
  if (code < 0) {
    const { spawnfile: file, spawnargs: args } = child;
    child.emit('error', errnoError(code, `spawn ${file}`, { file, args }));
  } else {
    child.emit('exit', child.exitCode, child.signalCode);
  }
  // The caller may still begin to read now.
  process.nextTick(flush, child);
  maybeClose(child);
}

/** The handle of a ChildProcess whose program this library starts. */
class ProgramHandle implements Handle {
  pid: number | undefined;
  readonly #owner: Own;
  #child: native.NativeChild | undefined;
  #key = 0;
  onexit: Handle['onexit'];

  constructor(owner: Own) {
    this.#owner = owner;
    this.onexit = (code, signal) => ended(owner, code, signal);
  }

  /** Starts the program, with the arguments of Node's ChildProcess. Other code may have changed them since the call. */
  spawn(...args: unknown[]): number {
    const given = handleOptions(args);
    const descriptors = given.stdio.map(descriptorOf);
    const isKnown = descriptors.every((descriptor) => descriptor !== undefined);
    const errno = isKnown ? this.#start(given, descriptors as number[]) : undefined;
    if (errno === undefined) {
      counts.delegated[isKnown ? 'unsupported' : 'arguments']++;
      return this.#delegate(args);
    }
    return errno;
  }

  /** Returns 0, or a negative errno. Undefined: Node has to start the program. */
  #start(given: HandleOptions, descriptors: number[]): number | undefined {
    // The listeners of the child's events run in the context of the start, and an exception of one does not affect others.
    const resource = new AsyncResource('PROCESSWRAP');
    this.#key = native.expect((outcome) => {
      process.nextTick(() => {
        const [code, signal] = isExit(outcome) ? [outcome.code, signalName(outcome.signal)] : [-EIO, ''];
        resource.runInAsyncScope(() => this.onexit(code, signal));
      });
    });
    const child = native.native.startChild(native.queue, this.#key, programStart(given, descriptors));
    if (!child || child.errno) {
      native.forget(this.#key);
    }
    if (!child) {
      return undefined;
    }
    // Node's streams have the pipes also if the start has failed.
    let failed = child.errno;
    given.stdio.forEach((item, number) => {
      const fd = child.takePipe(number);
      if (fd !== null) {
        const opened = item.handle!.open(fd);
        failed ||= opened;
      }
    });
    if (child.errno === 0) {
      counts.started++;
      this.#child = child;
      this.pid = child.pid;
    }
    return failed;
  }

  /** Lets a handle of Node's start the program. */
  #delegate(args: unknown[]): number {
    const handle = (new node.ChildProcess() as unknown as Own)._handle!;
    handle.onexit = (code, signal) => this.onexit(code, signal);
    this.#owner._handle = handle;
    return handle.spawn(...args);
  }

  kill(signal: number): number {
    return this.#child ? this.#child.signal(signal) : -ESRCH;
  }

  ref(): void {
    native.setReferenced(this.#key, true);
  }

  unref(): void {
    native.setReferenced(this.#key, false);
  }

  hasRef(): boolean {
    return native.isReferenced(this.#key);
  }

  close(): void {
    native.forget(this.#key);
    this.#child = undefined;
  }
}

/** Starts a program as a ChildProcess. */
function start(command: Command, options: Options): Own {
  checkPermission();
  // The class's function would make a handle of Node's, which nothing frees if it starts no program.
  const child = Object.create(node.ChildProcess.prototype) as Own;
  (EventEmitter as unknown as { call(self: object): void }).call(child);
  Object.assign(child, {
    _closesNeeded: 1,
    _closesGot: 0,
    connected: false,
    signalCode: null,
    exitCode: null,
    killed: false,
    spawnfile: null,
    _handle: new ProgramHandle(child),
  });
  if (created.hasSubscribers) {
    created.publish({ process: child });
  }
  child.spawn(Object.assign(options, command));
  return child;
}

function abort(child: node.ChildProcess, killSignal: number, reason: unknown): void {
  try {
    if (child.kill(killSignal)) {
      const error = new Error('The operation was aborted', { cause: reason });
      child.emit('error', Object.assign(error, { name: 'AbortError', code: 'ABORT_ERR' }));
    }
  } catch (error) {
    child.emit('error', error);
  }
}

/** Ends a program after a time, and when a signal is aborted. */
function limit(child: node.ChildProcess, timeout: number, killSignal: number, signal: AbortSignal | undefined): void {
  if (timeout > 0) {
    const timer = setTimeout(() => {
      try {
        child.kill(killSignal);
      } catch (error) {
        child.emit('error', error);
      }
    }, timeout);
    child.once('exit', () => clearTimeout(timer));
  }
  if (signal) {
    const onAbort = (): void => abort(child, killSignal, signal.reason);
    if (signal.aborted) {
      process.nextTick(onAbort);
    } else {
      signal.addEventListener('abort', onAbort, { once: true });
      child.once('exit', () => signal.removeEventListener('abort', onAbort));
    }
  }
}

const isAbortSignal = (value: unknown): value is AbortSignal | undefined =>
  value === undefined || (typeof value === 'object' && value !== null && 'aborted' in value);

/** Starts a program. Undefined: only Node knows the arguments, or reports them. */
function started(file: unknown, args: unknown, given: unknown): node.ChildProcess | undefined {
  const both = parted(args, given);
  if (!both) {
    return undefined;
  }
  const [list, options] = both;
  const { timeout, signal } = options;
  const killSignal = killSignalOf(options.killSignal);
  const isKnown = isTimeout(timeout) && isAbortSignal(signal) && killSignal !== undefined;
  const hasChannel = Array.isArray(options.stdio) && options.stdio.includes('ipc');
  const command = isKnown && !hasChannel ? commandOf(file, list, options) : undefined;
  if (!isKnown || !command) {
    counts.delegated[hasChannel ? 'ipc' : 'arguments']++;
    return undefined;
  }
  const child = start(command, options);
  if (child.pid !== undefined) {
    limit(child, Number(timeout ?? 0), killSignal, signal);
  }
  return child;
}

export const spawn = function spawn(file: unknown, args?: unknown, options?: unknown): node.ChildProcess {
  return started(file, args, options) ?? nodeSpawn(file, args, options);
} as typeof node.spawn;

/** The output of one stream for the callback of execFile. */
class Collected {
  readonly #chunks: (string | Buffer)[] = [];
  readonly #stream: Readable | null;
  readonly #encoding: BufferEncoding | null;
  #length = 0;

  constructor(stream: Readable | null, encoding: BufferEncoding | null, maxBuffer: number, exceeded: () => void) {
    this.#stream = stream;
    this.#encoding = encoding;
    if (encoding) {
      stream?.setEncoding(encoding);
    }
    stream?.on('data', (chunk: string | Buffer) => {
      // The caller may have set an encoding.
      const length = typeof chunk === 'string' ? Buffer.byteLength(chunk, stream.readableEncoding!) : chunk.length;
      this.#length += length;
      const isExceeded = this.#length > maxBuffer;
      this.#chunks.push(isExceeded ? chunk.slice(0, maxBuffer - (this.#length - length)) : chunk);
      if (isExceeded) {
        exceeded();
      }
    });
  }

  get value(): string | Buffer {
    const isText = this.#encoding ?? this.#stream?.readableEncoding;
    return isText ? this.#chunks.join('') : Buffer.concat(this.#chunks as Buffer[]);
  }
}

/** Calls back with the output once a program has ended. */
function collect(child: node.ChildProcess, command: string, options: Options, callback: Callback | undefined): void {
  const given = options.encoding;
  const encoding = given !== 'buffer' && Buffer.isEncoding(given as string) ? (given as BufferEncoding) : null;
  let error: Error | undefined;
  let [isKilled, isOver] = [false, false];
  let timer: NodeJS.Timeout | undefined;
  const over = (code?: number | null, signal?: NodeJS.Signals | null): void => {
    if (isOver) {
      return;
    }
    isOver = true;
    clearTimeout(timer);
    if (!callback) {
      return;
    }
    const [out, err] = [stdout.value, stderr.value];
    if (!error && code === 0 && signal === null) {
      callback(null, out, err);
      return;
    }
    error ??= Object.assign(new Error(`Command failed: ${command}\n${err.toString()}`), {
      code: typeof code === 'number' && code < 0 ? getSystemErrorName(code) : code,
      killed: child.killed || isKilled,
      signal,
    });
    callback(Object.assign(error, { cmd: command }), out, err);
  };
  const end = (): void => {
    child.stdout?.destroy();
    child.stderr?.destroy();
  };
  const kill = (): void => {
    end();
    isKilled = true;
    try {
      child.kill(killSignalOf(options.killSignal)!);
    } catch (failure) {
      error = failure as Error;
      over();
    }
  };
  const collected = (name: 'stdout' | 'stderr'): Collected =>
    new Collected(child[name], encoding, Number(options.maxBuffer ?? Infinity), () => {
      const exceeded = new RangeError(`${name} maxBuffer length exceeded`);
      error = Object.assign(exceeded, { code: 'ERR_CHILD_PROCESS_STDIO_MAXBUFFER' });
      kill();
    });
  const [stdout, stderr] = [collected('stdout'), collected('stderr')];
  if (Number(options.timeout) > 0) {
    timer = setTimeout(kill, Number(options.timeout));
  }
  child.on('close', over);
  child.on('error', (failure) => {
    error = failure;
    end();
    over();
  });
}

const EXEC_DEFAULTS = { encoding: 'utf8', timeout: 0, maxBuffer: DEFAULT_MAX_BUFFER, killSignal: 'SIGTERM', cwd: null, env: null };

/** The options that a program started by execFile has. */
const PASSED = ['cwd', 'env', 'gid', 'shell', 'signal', 'uid', 'windowsHide', 'windowsVerbatimArguments'];

export const execFile = withPromise(function execFile(file: unknown, ...rest: unknown[]): node.ChildProcess {
  const left = [...rest];
  const args = Array.isArray(left[0]) || isAbsent(left[0]) ? left.shift() : undefined;
  const given = typeof left[0] === 'function' ? undefined : left.shift();
  const callback = typeof given === 'function' ? given : left[0];
  const options = copied({ ...EXEC_DEFAULTS, ...(given as Options | undefined) });
  const isKnown =
    isString(file) &&
    (isAbsent(given) || isObject(given)) &&
    (isAbsent(callback) || typeof callback === 'function') &&
    // Node ignores argv0 here, after it has checked it.
    isAbsent(options.argv0) &&
    isTimeout(options.timeout) &&
    isSize(options.maxBuffer) &&
    killSignalOf(options.killSignal) !== undefined;
  const passed = copied(Object.fromEntries(PASSED.map((name) => [name, options[name]])));
  passed.windowsHide = Boolean(passed.windowsHide);
  passed.windowsVerbatimArguments = Boolean(passed.windowsVerbatimArguments);
  const child = isKnown ? started(file, args, passed) : undefined;
  if (!child) {
    counts.delegated.arguments += isKnown ? 0 : 1;
    return nodeExecFile(file, ...rest);
  }
  const words = [file, ...((args as unknown[] | undefined | null) ?? [])];
  collect(child, words.join(' '), options, (callback ?? undefined) as Callback | undefined);
  return child;
} as typeof node.execFile);

export const exec = withPromise(function exec(command: unknown, ...rest: unknown[]): node.ChildProcess {
  const [given, callback] = typeof rest[0] === 'function' ? [undefined, rest[0]] : rest;
  if (!isString(command) || !(isAbsent(given) || isObject(given))) {
    counts.delegated.arguments++;
    return nodeExec(command, ...rest);
  }
  const options = copied(given);
  options.shell = typeof options.shell === 'string' ? options.shell : true;
  return (execFile as (...args: unknown[]) => node.ChildProcess)(command, options, callback);
} as typeof node.exec);

/** Adds the function that util.promisify() returns. */
function withPromise<F extends typeof node.exec | typeof node.execFile>(call: F): F {
  const promised = (...args: unknown[]): unknown => {
    let settle!: Callback;
    const promise = new Promise((resolve, reject) => {
      settle = (error, stdout, stderr) =>
        error ? reject(Object.assign(error, { stdout, stderr })) : resolve({ stdout, stderr });
    });
    return Object.assign(promise, { child: (call as (...args: unknown[]) => node.ChildProcess)(...args, settle) });
  };
  Object.defineProperty(promised, 'name', { value: call.name });
  return Object.defineProperty(call, promisify.custom, { value: promised });
}
