// SPDX-License-Identifier: MIT OR Apache-2.0
// Starts the programs of Node's ChildProcess. Its streams, events and IPC stay Node's own.

import { AsyncResource } from 'node:async_hooks';
import node = require('node:child_process');
import { constants } from 'node:os';
import { checkPermission, isExit, seesEnvironment } from './call';
import * as native from './native';
import { signalName } from './signals';

/** An item of `stdio`, as Node's ChildProcess passes it to its handle. */
interface StdioItem {
  type: string;
  ipc?: boolean;
  fd?: number;
  /** Node's handle of this process's end of a pipe, or of a stream to inherit. */
  handle?: { fd: number; open(fd: number): number };
}

/** The arguments of `_handle.spawn` up to Node 22. */
interface HandleOptions {
  file?: unknown;
  args?: unknown;
  cwd?: unknown;
  envPairs?: unknown;
  stdio?: unknown;
  detached?: unknown;
  uid?: unknown;
  gid?: unknown;
}

/** Node's ChildProcess#_handle. */
interface ProcessHandle {
  pid?: number;
  onexit(code: number, signal: string): void;
  spawn(...args: unknown[]): number;
  kill(signal: number): number;
  ref(): void;
  unref(): void;
  hasRef(): boolean;
  close(callback?: () => void): void;
}

/** A start by a handle of Node's. */
interface Started {
  child: native.NativeChild;
  key: number;
  isClosed: boolean;
}

/** Why Node's own code started a program. */
export type DelegationReason = 'ipc' | 'arguments' | 'unsupported';

export const counts = { started: 0, delegated: { ipc: 0, arguments: 0, unsupported: 0 } };

const IGNORE = -1;
const PIPE = -2;
/** The bit of the flags that Node 24 passes in place of the options `detached`. */
const FLAG_DETACHED = 1;
const { ESRCH, EIO } = constants.errno;

const sample = (new node.ChildProcess() as unknown as { _handle: ProcessHandle | null })._handle;
const processPrototype: ProcessHandle | null = sample && Object.getPrototypeOf(sample);

/** Whether this is Node: other runtimes have no such handle. */
export const isSupported = typeof processPrototype?.spawn === 'function' && process.versions.bun === undefined;

const nodeSpawn = processPrototype?.spawn;
const handles = new WeakMap<ProcessHandle, Started>();

function isItem(item: unknown): item is StdioItem {
  return typeof item === 'object' && item !== null;
}

/** What a child gets as one of its descriptors; undefined if only Node can make it. */
function descriptorOf(item: StdioItem): number | undefined {
  const number = item.type === 'wrap' ? item.handle?.fd : item.fd;
  switch (item.type) {
    case 'ignore':
      return IGNORE;
    case 'pipe':
    case 'overlapped':
      return typeof item.handle?.open === 'function' ? PIPE : undefined;
    case 'inherit':
    case 'fd':
    case 'wrap':
      return typeof number === 'number' && number >= 0 ? number : undefined;
    default:
      return undefined;
  }
}

function isId(id: unknown): id is number | undefined | null {
  return id === undefined || id === null || (typeof id === 'number' && (id | 0) === id);
}

/** The environment for the native half. */
export function environment(pairs: readonly string[] | undefined): Pick<native.ProgramStart, 'env' | 'envCount'> {
  const all = pairs ?? (seesEnvironment ? undefined : Object.entries(process.env).map(([name, value]) => `${name}=${value}`));
  return { env: all?.join('\0'), envCount: all?.length ?? 0 };
}

/** Node's arguments for the native half, or the reason why Node has to start the program. */
function startOf(args: unknown[]): native.ProgramStart | DelegationReason {
  // Node 24 passes single arguments in place of an object.
  const given: HandleOptions =
    typeof args[0] === 'object' && args[0] !== null
      ? args[0]
      : {
          file: args[0],
          args: args[1],
          cwd: args[2],
          envPairs: args[3],
          stdio: args[4],
          detached: (Number(args[5]) & FLAG_DETACHED) !== 0,
          uid: args[6],
          gid: args[7],
        };
  const { file, args: argv, cwd, envPairs, stdio, uid, gid } = given;
  const isKnown =
    typeof file === 'string' &&
    Array.isArray(argv) &&
    (envPairs === undefined || Array.isArray(envPairs)) &&
    Array.isArray(stdio) &&
    stdio.every(isItem) &&
    isId(uid) &&
    isId(gid);
  if (!isKnown) {
    return 'arguments';
  }
  if (stdio.some((item) => item.ipc)) {
    return 'ipc';
  }
  const descriptors = stdio.map(descriptorOf);
  if (!descriptors.every((descriptor) => descriptor !== undefined)) {
    return 'arguments';
  }
  return {
    file,
    args: argv.map(String),
    cwd: typeof cwd === 'string' && cwd !== '' ? cwd : undefined,
    ...environment(envPairs?.map(String)),
    stdio: descriptors as number[],
    detached: given.detached === true,
    uid: uid ?? undefined,
    gid: gid ?? undefined,
  };
}

function spawn(this: ProcessHandle, ...args: unknown[]): number {
  checkPermission();
  const start = startOf(args);
  const errno = typeof start === 'string' ? start : begin(this, start, args);
  if (typeof errno === 'string') {
    counts.delegated[errno]++;
    return nodeSpawn!.apply(this, args);
  }
  return errno;
}

/** Starts a program for a handle. Returns 0, or a negative errno, or why Node has to start the program. */
function begin(handle: ProcessHandle, start: native.ProgramStart, args: unknown[]): number | DelegationReason {
  // The listeners of the child's events run in the context of the start, and an exception of one does not affect others.
  const resource = new AsyncResource('PROCESSWRAP');
  const key = native.expect((outcome) => {
    process.nextTick(() => {
      const [code, signal] = isExit(outcome) ? [outcome.code, signalName(outcome.signal)] : [-EIO, ''];
      resource.runInAsyncScope(() => handle.onexit(code, signal));
    });
  });
  const child = native.native.startChild(native.queue, key, start);
  if (!child || child.errno) {
    native.forget(key);
  }
  if (!child) {
    return 'unsupported';
  }
  Object.setPrototypeOf(handle, startedPrototype);
  handles.set(handle, { child, key, isClosed: false });
  const failed = openPipes(child, stdioOf(args));
  if (child.errno) {
    return child.errno;
  }
  counts.started++;
  handle.pid = child.pid;
  return failed;
}

function stdioOf(args: unknown[]): StdioItem[] {
  const [first] = args;
  return (typeof first === 'object' ? (first as HandleOptions).stdio : args[4]) as StdioItem[];
}

/** Gives Node's handles this process's ends of the pipes. They have them also if the start has failed. */
function openPipes(child: native.NativeChild, stdio: StdioItem[]): number {
  let failed = 0;
  stdio.forEach((item, number) => {
    const fd = child.takePipe(number);
    if (fd !== null) {
      failed ||= item.handle!.open(fd);
    }
  });
  return failed;
}

/** The methods of a handle whose program this library has started. */
const startedMethods = {
  kill(this: ProcessHandle, signal: number): number {
    const started = handles.get(this)!;
    return started.isClosed ? -ESRCH : started.child.signal(signal);
  },
  ref(this: ProcessHandle): void {
    native.setReferenced(handles.get(this)!.key, true);
  },
  unref(this: ProcessHandle): void {
    native.setReferenced(handles.get(this)!.key, false);
  },
  hasRef(this: ProcessHandle): boolean {
    return native.isReferenced(handles.get(this)!.key);
  },
  close(this: ProcessHandle, callback?: () => void): void {
    const started = handles.get(this)!;
    if (!started.isClosed) {
      started.isClosed = true;
      native.forget(started.key);
      release(this, callback);
    }
  },
};

const startedPrototype: object = Object.setPrototypeOf(startedMethods, processPrototype);

/** Frees a handle of Node's that has started nothing: only one whose start has failed can be closed. */
function release(handle: ProcessHandle, callback?: () => void): void {
  const stdio = [{ type: 'fd', fd: -1 }];
  // This start fails with EINVAL before it forks.
  if (Number(process.versions.node.split('.')[0]) < 24) {
    nodeSpawn!.call(handle, { file: '/', stdio });
  } else {
    nodeSpawn!.call(handle, '/', undefined, undefined, undefined, stdio, 0, undefined, undefined);
  }
  processPrototype!.close.call(handle, callback);
}

if (isSupported && !('permission' in process && process.permission)) {
  release(sample!);
}

/** Lets this library start all programs of ChildProcess, or Node. */
export function replace(isReplaced: boolean): void {
  if (processPrototype && nodeSpawn) {
    processPrototype.spawn = isReplaced ? spawn : nodeSpawn;
  }
}

/** Calls a function, and starts by this library what it starts. */
export function startingBy<T>(call: () => T): T {
  if (!isSupported || processPrototype!.spawn === spawn) {
    return call();
  }
  replace(true);
  try {
    return call();
  } finally {
    replace(false);
  }
}
