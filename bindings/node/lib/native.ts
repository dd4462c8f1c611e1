// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads the native half, and delivers its outcomes to promises.

import type { Piece } from './result';
import type { WarmExplanation } from './warm';

export interface NativeFailure {
  message: string;
  detail: string;
  code: string;
  errno: number;
  stage: string;
  syscall: string;
  action?: number;
}

export interface NativeResult {
  readonly code: number | null;
  readonly signal: number | null;
  readonly stop: string;
  readonly where: string | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  /** Creates the pieces at each access. Null without the option `combined`. */
  readonly output: Piece[] | null;
  text(isStderr: boolean): string;
  part(isStderr: boolean, isTail: boolean): Buffer;
  /** JSON. */
  fields(): string;
  /** JSON, without the output. */
  details(): string;
  failure(): string | null;
}

export interface NativeEvent {
  stream?: 'stdout' | 'stderr';
  data?: Buffer;
  partial: boolean;
  lost: number;
}

export interface NativeJob {
  readonly pid: number;
  wait(queue: NativeQueue, key: number, awaited: Awaited): void;
  result(): NativeResult | NativeFailure | null;
  takeEvents(max: number): NativeEvent[];
  setLines(max?: number): void;
  hold(hold: boolean): void;
  read(since: number): { data: Buffer; next: number; lost: number };
  write(data: string | Uint8Array): number | NativeFailure;
  closeStdin(): void;
  stop(grace?: number): void;
  signal(signal: number, tree: boolean): void;
  resize(rows: number, columns: number): void;
}

/** A program without supervision. */
export interface NativeChild {
  readonly pid: number;
  /** 0, or the negative errno of a start that failed. */
  readonly errno: number;
  takePipe(number: number): number | null;
  signal(signal: number): number;
}

/** `code` is an exit code, or a negative errno if the status is lost. `signal` is 0, or a number. */
export interface NativeExit {
  code: number;
  signal: number;
}

/** Sources of a child's descriptor that are no descriptor of this process: /dev/null, and a new pipe. */
export const IGNORE = -1;
export const PIPE = -2;

/** The arguments of a start by child_process. All properties are the object's own, so none comes from Object.prototype. */
export interface ProgramStart {
  file: string;
  args: string[];
  cwd: string | undefined;
  /** The variables, joined by NUL bytes. */
  env: string | undefined;
  envCount: number;
  /** For each of the child's descriptors, one of this process, or IGNORE, or PIPE. */
  stdio: number[];
  detached: boolean;
  uid: number | undefined;
  gid: number | undefined;
}

export interface SyncLimits {
  timeout: number;
  maxBuffer: number;
  killSignal: number;
  /** The input of a program whose standard input is a pipe. */
  input: Buffer | null;
}

export interface SyncResult extends NativeExit {
  pid: number;
  errno: number;
  output: (Buffer | null | undefined)[];
}

export interface NativeQueue {
  take(): [number, Outcome][];
  stop(key: number): void;
}

export interface NativeEnv {
  keepOnly(patterns: string[]): NativeEnv;
  deny(patterns: string[]): NativeEnv;
  set(variables: object): NativeEnv;
  noninteractive(): NativeEnv;
  get(name: string): string | null;
  entries(): [string, string][];
}

export interface NativeLimiter {
  limit: number;
  readonly running: number;
  readonly waiting: number;
}

export interface NativeTemplate {
  revalidate(): NativeFailure | null;
  readonly path: string | null;
  readonly name: string;
  readonly interpreters: string[];
}

export interface NativeWarm {
  add(program: unknown, options: Given): NativeFailure | null;
  addAny(options: Given): NativeFailure | null;
  fill(waited: number): boolean | null;
  template(template: NativeTemplate): NativeTemplate | NativeFailure;
  stats(): object;
  readonly closed: boolean;
  close(): void;
}

/** Has no methods: only other native functions use it. */
export interface NativeSandbox {
  readonly isSandbox?: never;
}

/** Has no methods: only a session uses it. */
export interface NativeCommandText {
  readonly isCommandText?: never;
}

export interface NativeProcess {
  pid: number;
  name: string;
}

export interface NativeSession {
  readonly needsShell: boolean;
  readonly grace: number;
  readonly pid: number | null;
  open(queue: NativeQueue, key: number, command?: NativeCommandText): NativeFailure | null;
  start(queue: NativeQueue, key: number, command: NativeCommandText): NativeFailure | null;
  runBeside(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeFailure | null;
  interrupt(): void;
  resize(rows: number, columns: number): void;
  processes(): NativeProcess[];
  close(queue: NativeQueue, key: number): void;
  stop(grace: number): void;
}

/** A session on another machine. The server knows its processes, and no program runs beside its shell. */
export interface NativeRemoteSession extends Omit<NativeSession, 'processes' | 'runBeside'> {
  processes(queue: NativeQueue, key: number): NativeFailure | null;
}

export interface NativeRemote {
  readonly where: string;
  giveUp(): void;
  ready(queue: NativeQueue, key: number): NativeFailure | null;
  ping(queue: NativeQueue, key: number): NativeFailure | null;
  run(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeFailure | null;
  runSync(argv: NativeArgv, options: Given): NativeResult | NativeFailure;
  start(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeFailure | null;
  session(argv: NativeArgv, options: Given): NativeRemoteSession;
  close(queue: NativeQueue, key: number): void;
}

/** The native object of a public one. */
export const NATIVE = Symbol('native');

/** A state of a job to wait for. The native half has the same numbers. */
export const enum Awaited {
  Result,
  Event,
  Writable,
}

export type Outcome = NativeResult | NativeJob | NativeExit | NativeFailure | NativeProcess[] | number | null;
/** The first item may be a template. */
export type NativeArgv = readonly (string | Uint8Array | NativeTemplate)[];
export type Given = Record<string, unknown>;

export interface Native {
  Queue: new (notify: () => void) => NativeQueue;
  NativeEnv: new (variables: object | null, isInherited?: boolean) => NativeEnv;
  NativeLimiter: new (limit: number) => NativeLimiter;
  NativeCommandText: new (text: string | Uint8Array, options: Given) => NativeCommandText;
  sandbox(argv: readonly (string | Uint8Array)[], fds: object): NativeSandbox | NativeFailure;
  session(argv: NativeArgv, options: Given): NativeSession | NativeFailure;
  remote(argv: NativeArgv, options: Given, lease: unknown, connectTimeout: unknown): NativeRemote | NativeFailure;
  template(program: string | Uint8Array, path: unknown): NativeTemplate | NativeFailure;
  warm(options: Given): NativeWarm | NativeFailure;
  turnOffWarm(): void;
  explain(warm: NativeWarm, argv: NativeArgv, options: Given): WarmExplanation | NativeFailure;
  run(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeFailure | null;
  runSync(argv: NativeArgv, options: Given): NativeResult | NativeFailure;
  printedActions(actions: unknown): string[];
  start(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeFailure | null;
  spawn(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): NativeChild | NativeFailure;
  startChild(queue: NativeQueue, key: number, start: ProgramStart): NativeChild | null;
  runChild(start: ProgramStart, limits: SyncLimits): SyncResult | null;
}

/**
 * Whether child_process starts the programs, and not the native half. On Linux only a test of this package sets
 * SPAWNFD_PORTABLE.
 */
const isPortable = process.platform !== 'linux' || process.env.SPAWNFD_PORTABLE === '1';

/** The package with the native half for this process. A report takes Node 20 ms, so a usual load asks for none. */
function fittingPackage(): string {
  const report = process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined;
  return `@spawnfd/linux-${process.arch}-${report?.header?.glibcVersionRuntime ? 'gnu' : 'musl'}`;
}

/** Why there is no native half, and the remedy. The package.json of a release lists the packages that have one. */
function missing(cause: unknown): Error {
  const name = fittingPackage();
  const { optionalDependencies } = require('../package.json') as { optionalDependencies?: object };
  let remedy = `install the package ${name}, and do not omit optional dependencies`;
  if (isInstalled(name)) {
    remedy = `the package ${name} cannot be loaded: ${(cause as Error).message}`;
  } else if (optionalDependencies !== undefined && !(name in optionalDependencies)) {
    remedy = `there are only ${Object.keys(optionalDependencies).join(', ')}`;
  }
  return new Error(`spawnfd has no native binding for ${name.slice('@spawnfd/'.length)}: ${remedy}`, { cause });
}

function isInstalled(name: string): boolean {
  try {
    require.resolve(name);
    return true;
  } catch {
    return false;
  }
}

function load(): Native {
  if (isPortable) {
    return (require('./portable/index.js') as { portable: Native }).portable;
  }
  // A build in the repository takes precedence over installed packages.
  if (isInstalled('./spawnfd.node')) {
    return require('./spawnfd.node') as Native;
  }
  // Some package managers ignore the libc, and install two packages.
  const target = `@spawnfd/linux-${process.arch}`;
  const [found, other] = [`${target}-gnu`, `${target}-musl`].filter(isInstalled);
  const name = found !== undefined && other === undefined ? found : fittingPackage();
  try {
    return require(name) as Native;
  } catch (cause) {
    throw missing(cause);
  }
}

export const native = load();

const pending = new Map<number, (outcome: Outcome) => void>();
let lastKey = 0;

// The calls for which the process does not stay alive.
const unreferenced = new Set<number>();

// The queue itself does not keep the event loop alive. While a call is pending, this timer does.
const keepAlive = setInterval(() => {}, 0x7fffffff);
keepAlive.unref();

function updateKeepAlive(): void {
  if (pending.size > unreferenced.size) {
    keepAlive.ref();
  } else {
    keepAlive.unref();
  }
}

export const queue = new native.Queue(() => {
  for (const [key, outcome] of queue.take()) {
    const settled = pending.get(key);
    forget(key);
    try {
      settled?.(outcome);
    } catch (error) {
      // The other calls get their outcomes.
      process.nextTick(() => {
        throw error;
      });
    }
  }
});

/** Registers a call, and returns its key. `settled` gets the outcome, and does not throw. */
export function expect(settled: (outcome: Outcome) => void): number {
  do {
    lastKey = (lastKey + 1) >>> 0;
  } while (pending.has(lastKey));
  pending.set(lastKey, settled);
  updateKeepAlive();
  return lastKey;
}

/** Cancels the registration of a call. */
export function forget(key: number): void {
  pending.delete(key);
  unreferenced.delete(key);
  updateKeepAlive();
}

/** Sets whether a pending call keeps the process alive. */
export function setReferenced(key: number, isReferenced: boolean): void {
  if (isReferenced) {
    unreferenced.delete(key);
  } else if (pending.has(key)) {
    unreferenced.add(key);
  }
  updateKeepAlive();
}

/** Whether a call is pending and keeps the process alive. */
export function isReferenced(key: number): boolean {
  return pending.has(key) && !unreferenced.has(key);
}
