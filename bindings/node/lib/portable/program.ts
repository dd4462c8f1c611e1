// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that child_process has started, and the end of its process tree.

import { spawn, type ChildProcess, type StdioOptions } from 'node:child_process';
import { constants } from 'node:os';
import type { Readable } from 'node:stream';
import type { NativeFailure } from '../native';
import { failure, startFailure } from './failure';
import { KeptOutput, type Captured } from './kept';
import type { PortableLimiter } from './limiter';
import type { Request } from './request';
import { Spill, type Spilled } from './spill';

const isWindows = process.platform === 'win32';
/** The time that SIGKILL has to take effect, in milliseconds. */
const KILL_TIME = 1000;
/** The time between two checks for other processes of the group, in milliseconds. */
const CHECK_INTERVAL = 5;
const LONGEST_TIMER = 0x7fffffff;

export type StreamName = 'stdout' | 'stderr';

/** How a run ended. A worker can send a copy of it. */
export interface Ended {
  program: string;
  /** The value of the option that ended the run. */
  bound: number | null;
  captured: [Captured, Captured];
  spilled: Spilled | null;
  /** Fields of the result. */
  fields: {
    code: number | null;
    signal: number | null;
    stop: string;
    wall_seconds: number;
    seen_bytes: number;
    input_refused: boolean;
    leftovers: { pid: number; name: string; fate: string }[];
    leftovers_unknown: boolean;
    drain: string;
  };
}

/** Calls of the one that has started a program. */
export interface Observer {
  started?(program: Program): void;
  failed(failure: NativeFailure): void;
  output?(stream: StreamName, bytes: Buffer): void;
  ended(ended: Ended): void;
}

/** The programs that run. */
const live = new Set<Program>();
const endAll = (): void => live.forEach((program) => program.signalTree('SIGKILL'));

function stdio({ stdin, stdout, stderr, input }: Request): StdioOptions {
  const words: Record<string, 'pipe' | 'ignore' | 'inherit'> = {
    capture: 'pipe', separate: 'pipe', merge: 'pipe', stream: 'pipe', null: 'ignore', inherit: 'inherit',
  };
  const form = (value: string | number): 'pipe' | 'ignore' | 'inherit' | number =>
    typeof value === 'number' ? value : words[value]!;
  const output = form(stdout);
  const isMerged = stderr === 'merge' && output !== 'pipe';
  return [input === null ? form(stdin) : 'pipe', output, isMerged ? (output === 'inherit' ? 1 : output) : form(stderr)];
}

/** Starts a program once the limiter has a place. Returns a function that ends the call. */
export function launch(request: Request, limiter: PortableLimiter | null, observer: Observer): () => void {
  let program: Program | undefined;
  const start = (): void => {
    const release = (): void => limiter?.release();
    const fail = (error: NodeJS.ErrnoException): void => {
      release();
      observer.failed(startFailure(error, request));
    };
    let child: ChildProcess;
    try {
      child = spawn(request.program, request.args, {
        cwd: request.cwd ?? undefined,
        env: request.env,
        argv0: request.arg0 ?? undefined,
        stdio: stdio(request),
        // A session and a process group of its own.
        detached: !isWindows,
        windowsHide: true,
      });
    } catch (error) {
      fail(error as NodeJS.ErrnoException);
      return;
    }
    if (child.pid === undefined) {
      child.once('error', fail);
      return;
    }
    program = new Program(child, child.pid, request, {
      ...observer,
      ended(ended) {
        release();
        observer.ended(ended);
      },
    });
    observer.started?.(program);
  };
  const leaveQueue = limiter?.acquire(start);
  if (!leaveQueue) {
    start();
  }
  return () => {
    if (leaveQueue?.()) {
      observer.failed(failure('ECANCELED', 'start', '', `${request.program} was not started: the call was cancelled`));
    } else {
      program?.stop('cancelled', request.grace);
    }
  };
}

export class Program {
  readonly #child: ChildProcess;
  readonly #request: Request;
  readonly #observer: Observer;
  readonly #began = performance.now();
  readonly #kept: [KeptOutput, KeptOutput];
  readonly #spill: Spill | undefined;
  readonly #open = new Set<Readable>();
  readonly #timers = new Set<NodeJS.Timeout>();
  #idle: NodeJS.Timeout | undefined;
  #stop: { reason: string; bound: number | null } | undefined;
  #isKilled = false;
  #status: { code: number | null; signal: number | null } | undefined;
  #isDone = false;
  #inputFailed = false;

  constructor(child: ChildProcess, readonly pid: number, request: Request, observer: Observer) {
    this.#child = child;
    this.#request = request;
    this.#observer = observer;
    this.#kept = [new KeptOutput(request.keep), new KeptOutput(request.keep)];
    this.#spill = request.spill ? new Spill(request.spill) : undefined;
    if (live.size === 0) {
      process.on('exit', endAll);
    }
    live.add(this);
    child.on('error', () => {});
    child.once('exit', (code, signal) => this.#exited(code, signal && constants.signals[signal]));
    this.#read(child.stdout, 'stdout');
    this.#read(child.stderr, request.stderr === 'merge' ? 'stdout' : 'stderr');
    child.stdin?.on('error', () => (this.#inputFailed = true));
    if (request.input !== null) {
      child.stdin?.end(request.input);
    }
    this.#bound(request.timeout, 'timeout');
    this.#idle = this.#bound(request.idleTimeout, 'idle_timeout');
  }

  get stdin(): ChildProcess['stdin'] {
    return this.#child.stdin;
  }

  #after(time: number, call: () => void): NodeJS.Timeout | undefined {
    if (time > LONGEST_TIMER) {
      return undefined;
    }
    const timer = setTimeout(call, time);
    this.#timers.add(timer);
    return timer;
  }

  #clearTimers(): void {
    this.#timers.forEach(clearTimeout);
    this.#timers.clear();
    this.#idle = undefined;
  }

  #bound(time: number | null, reason: string): NodeJS.Timeout | undefined {
    return time === null ? undefined : this.#after(time, () => this.stop(reason, this.#request.grace, time));
  }

  #read(stream: Readable | null, name: StreamName): void {
    if (!stream) {
      return;
    }
    this.#open.add(stream);
    stream.on('data', (bytes: Buffer) => this.#take(name, bytes));
    stream.on('error', () => {});
    stream.once('close', () => {
      this.#open.delete(stream);
      this.#finishIfEmpty();
    });
  }

  #take(name: StreamName, bytes: Buffer): void {
    if (this.#isDone) {
      return;
    }
    this.#idle?.refresh();
    const kept = this.#kept[name === 'stdout' ? 0 : 1];
    kept.append(bytes);
    const [head, tail] = this.#request.keep;
    this.#spill?.take(bytes, kept.seen <= head + tail);
    this.#observer.output?.(name, bytes);
    const { outputLimit } = this.#request;
    if (outputLimit !== null && this.#seen > outputLimit) {
      this.stop('output_limit', this.#request.grace, outputLimit);
    }
  }

  get #seen(): number {
    return this.#kept[0].seen + this.#kept[1].seen;
  }

  /** Stops reading, so that the program blocks. The end of the program ends the pause. */
  pause(): void {
    if (!this.#status) {
      this.#open.forEach((stream) => stream.pause());
    }
  }

  resume(): void {
    this.#open.forEach((stream) => stream.resume());
  }

  /** Ends the program and its process tree: SIGTERM, and SIGKILL after `grace` milliseconds. */
  stop(reason: string, grace: number, bound: number | null = null): void {
    if (this.#isDone) {
      return;
    }
    if (this.#status) {
      // Ends the drain. Without a group, another process may have the number.
      if (this.#hasGroup) {
        this.signalTree('SIGKILL');
      }
      return;
    }
    const isFirst = this.#stop === undefined;
    this.#stop ??= { reason, bound };
    // Windows has no signal that asks a process tree to end.
    if (grace === 0 || isWindows) {
      this.#kill();
    } else if (isFirst) {
      this.signalTree('SIGTERM');
      this.#after(grace, () => this.#kill());
    }
  }

  #kill(): void {
    if (!this.#isKilled) {
      this.#isKilled = true;
      this.signalTree('SIGKILL');
      this.#after(KILL_TIME, () => this.#finish());
    }
  }

  signal(signal: number): void {
    this.#child.kill(signal);
  }

  /** Sends a signal to the process group. On Windows, kills the process tree. */
  signalTree(signal: NodeJS.Signals | number): void {
    if (isWindows) {
      const killer = spawn('taskkill', ['/pid', `${this.pid}`, '/t', '/f'], { stdio: 'ignore', windowsHide: true });
      killer.on('error', () => this.#child.kill());
      killer.unref();
      return;
    }
    try {
      process.kill(-this.pid, signal);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ESRCH' && code !== 'EPERM') {
        throw error;
      }
    }
  }

  /** Whether the process group still has processes. Always false on Windows, which has no process groups. */
  get #hasGroup(): boolean {
    try {
      return !isWindows && process.kill(-this.pid, 0);
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === 'EPERM';
    }
  }

  #exited(code: number | null, signal: number | null): void {
    if (this.#isDone) {
      return;
    }
    this.#status = { code: signal ? null : code, signal };
    this.#clearTimers();
    this.resume();
    this.#after(this.#request.drain, () => this.#finish());
    this.#finishIfEmpty();
  }

  /** Ends the run if the program has exited, its pipes are closed, and its process group is empty. */
  #finishIfEmpty(): void {
    if (!this.#status || this.#open.size > 0 || this.#isDone) {
      return;
    }
    if (this.#hasGroup) {
      this.#after(CHECK_INTERVAL, () => this.#finishIfEmpty());
    } else {
      this.#finish();
    }
  }

  #finish(): void {
    if (this.#isDone) {
      return;
    }
    const wall = performance.now() - this.#began;
    const hasLeftovers = this.#hasGroup;
    if (hasLeftovers && (this.#stop || this.#request.leftovers === 'kill')) {
      this.signalTree('SIGKILL');
    }
    this.#isDone = true;
    this.#clearTimers();
    const isCut = this.#open.size > 0;
    this.#open.forEach((stream) => stream.destroy());
    const { stdin } = this.#child;
    const inputRefused = stdin !== null && (this.#inputFailed || (this.#request.input !== null && !stdin.writableFinished));
    stdin?.destroy();
    if (!this.#status) {
      // SIGKILL had no effect: this process does not wait for the program any longer.
      this.#child.unref();
    }
    live.delete(this);
    if (live.size === 0) {
      process.off('exit', endAll);
    }
    const { program, marker } = this.#request;
    this.#observer.ended({
      program,
      bound: this.#stop?.bound ?? null,
      captured: [this.#kept[0].finish(marker), this.#kept[1].finish(marker)],
      spilled: this.#spill?.finish() ?? null,
      fields: {
        code: this.#status?.code ?? null,
        signal: this.#status?.signal ?? null,
        stop: this.#stop?.reason ?? 'exited',
        wall_seconds: wall / 1000,
        seen_bytes: this.#seen,
        input_refused: inputRefused,
        leftovers: this.#status ? [] : [{ pid: this.pid, name: program, fate: 'uninterruptible' }],
        leftovers_unknown: hasLeftovers || isWindows,
        drain: isCut ? 'cut: ?' : 'eof',
      },
    });
  }
}
