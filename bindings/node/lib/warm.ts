// SPDX-License-Identifier: MIT OR Apache-2.0

import { resolve } from 'node:path';
import { checkedArgv, checkPermission, nativeOptions, type Abortable, type Argv } from './call';
import type { Env } from './env';
import { succeeded } from './errors';
import { start, type Job } from './job';
import { NATIVE, native, type NativeWarm } from './native';
import type { RunOptions, StartOptions } from './options';
import type { Result } from './result';
import { run, runSync } from './run';
import type { Sandbox } from './sandbox';
import { Template } from './template';

/**
 * How parked processes become programs:
 * - `reserve`: each becomes one program, with its own memory layout and its own random secrets.
 * - `fork`: programs are forked from one parked process. They share its memory layout and what it read before.
 * - `auto`: the library chooses for each program. It chooses `fork` only with the option `trusted`.
 */
export type WarmMode = 'reserve' | 'fork' | 'auto';

/** The options of a Warm. Times are in milliseconds. */
export interface WarmOptions {
  /** The mode of programs whose own options do not set one. `reserve` by default. */
  mode?: WarmMode;
  /** Whether the inputs of all programs are trusted, so that mode `auto` may choose `fork`. False by default. */
  trusted?: boolean;
  /** The maximum private memory of all parked processes, in bytes. 512 MiB by default. */
  memory?: number;
  /** The maximum number of parked processes. 64 by default. */
  processes?: number;
  /** How many programs are kept warm from their first start on, without add(). 0 by default. */
  keep?: number;
  /** The time without use after which the processes of a program end. 300,000 by default. */
  idle?: number;
  /** The time between a start and the parking of the next process. 2 by default. */
  delay?: number;
  /** In mode `fork`, the number of forks after which the parent process is replaced. 1,000 by default. */
  forks?: number;
  /** In mode `fork`, the age at which the parent process is replaced. 600,000 by default, at least 100. */
  age?: number;
}

/** How to park one program. */
export interface ParkOptions {
  /** How many processes wait for starts. 2 by default. */
  depth?: number;
  /** The mode of this program; by default that of the Warm. */
  mode?: WarmMode;
  /** The leading arguments of all starts, such as an interpreter's options: `['-e']` for `node -e CODE`. */
  args?: Argv;
  /** The environment of the parked process; by default that of this process. */
  env?: Env | Readonly<Record<string, string | undefined>>;
  /** Modules that an interpreter loads before it parks. Node.js loads only its built-in modules. */
  preimport?: readonly string[];
  /** The script or module that all starts of CPython run: `tool.py`, or `-m pytest`. */
  entry?: string;
  /** A sandbox in which the process parks. It serves starts in the same sandbox. */
  sandbox?: Sandbox;
  /** With a sandbox or an entry: the directory in which the process parks. It then serves starts in this directory. */
  cwd?: string;
  /** Parks the process with no_new_privs. It serves starts with `actions.noNewPrivs()`. */
  noNewPrivs?: boolean;
  /** Parks the process inside the Landlock ruleset of this descriptor. */
  landlock?: number;
  /** Parks the process under this seccomp filter. */
  seccomp?: Uint8Array;
}

/** The counters of a Warm. Times are in milliseconds. */
export interface WarmStats {
  /** Starts from a process parked for one program. */
  reserve: number;
  /** Starts from a forked child of a parked process. */
  fork: number;
  /** Starts from a child of a zygote. */
  zygote: number;
  /** Starts from the pool of addAny(). */
  pool: number;
  /** Cold starts, by reason. */
  cold: Record<string, number>;
  /** The number of processes that are parked now. */
  parked: number;
  /** The private memory of these processes at the time of parking, in bytes. */
  memory: number;
  /** The number of processes parked so far. */
  made: number;
  /** The start-up time that warm starts have saved so far. */
  timeSaved: number;
  /** The CPU time of parking so far. */
  refillTime: number;
  /** The programs that cannot be parked, or not now, and why. */
  cannot: Record<string, string>;
}

/** How run() would start a program now. */
export interface WarmExplanation {
  /** As `started` of a result. */
  started: string;
  /** The start-up time that a warm start would save, in milliseconds. */
  saves: number;
  /** Why the start would be cold, as a sentence. */
  meaning?: string;
  /** The change that makes the start warm, as a sentence. */
  remedy?: string;
  /** All of this, as text. */
  text: string;
}

/** The time between two checks of fill(), in milliseconds. */
const FILL_INTERVAL = 1;

/**
 * Keeps programs warm: processes that are parked for these programs wait for starts. A start that finds none, or none that
 * equals a cold start, is cold. docs/warm.md describes what a warm start shares and when it is refused.
 *
 * Parked processes end with close(), with this object, and with this process. They do not keep the event loop alive.
 */
export class Warm {
  /** For this package. */
  readonly [NATIVE]: NativeWarm;

  /**
   * @throws {SpawnError} `EMFILE`, `ENFILE`, `ENOMEM`. `ENOSPC`: the user has too many inotify instances.
   * @throws {TypeError} An option is not valid.
   */
  constructor(options: WarmOptions = {}) {
    this[NATIVE] = succeeded(() => native.warm({ ...options }));
  }

  /**
   * Keeps a program warm. Another thread parks its processes; fill() waits for that.
   *
   * A program that cannot be parked is no error: see stats().cannot.
   *
   * @param program - A template, a name to search in PATH now, or a path.
   * @throws {SpawnError} `ENOENT`: the program does not exist.
   * @throws {TypeError} An argument is not valid, or the Warm is closed.
   */
  add(program: string | Template, options: ParkOptions = {}): void {
    checkPermission();
    const isPath = typeof program === 'string' && program.includes('/');
    const named = program instanceof Template ? program[NATIVE] : isPath ? resolve(program) : program;
    succeeded(() => this[NATIVE].add(named, nativeOptions(options)));
  }

  /**
   * Adds processes that execute any program that has no parked process of its own.
   *
   * @param options - `depth`: how many wait, 2 by default. `mode`: `fork` forks them from a zygote.
   */
  addAny(options: { depth?: number; mode?: WarmMode } = {}): void {
    checkPermission();
    succeeded(() => this[NATIVE].addAny({ ...options }));
  }

  /**
   * Waits until all processes that can be parked are parked, at most `timeout` milliseconds. Returns false after that time,
   * or if a program cannot be parked at present.
   */
  async fill(timeout = 10_000): Promise<boolean> {
    if (typeof timeout !== 'number' || !(timeout >= 0)) {
      throw new TypeError('timeout must be a number of milliseconds >= 0');
    }
    const began = performance.now();
    for (;;) {
      const waited = performance.now() - began;
      const isFilled = !this.closed && this[NATIVE].fill(waited);
      if (isFilled !== null || waited > timeout) {
        return isFilled ?? false;
      }
      await new Promise((resolve) => setTimeout(resolve, FILL_INTERVAL));
    }
  }

  /** Finds out how run() would start a program now, and starts nothing. */
  explain(argv: Argv, options: RunOptions = {}): WarmExplanation {
    return succeeded(() => native.explain(this[NATIVE], checkedArgv(argv), nativeOptions(options)));
  }

  /** Runs a program from a parked process, if there is a suitable one. See `run()`. */
  run(argv: Argv, options: RunOptions & Abortable = {}): Promise<Result> {
    return run(argv, { ...options, warm: this });
  }

  /** The blocking form of run(). */
  runSync(argv: Argv, options: RunOptions = {}): Result {
    return runSync(argv, { ...options, warm: this });
  }

  /** Starts a program from a parked process, if there is a suitable one. See `start()`. */
  start(argv: Argv, options: StartOptions & Abortable = {}): Job {
    return start(argv, { ...options, warm: this });
  }

  /** The counters and the current state. */
  stats(): WarmStats {
    return this[NATIVE].stats() as WarmStats;
  }

  /** Disables all warm starts of this process permanently, as the variable SPAWNFD_WARM=0 does. */
  static turnOff(): void {
    native.turnOffWarm();
  }

  /** Whether close() was called. A call with a closed Warm fails with a TypeError. */
  get closed(): boolean {
    return this[NATIVE].closed;
  }

  /** Ends the parked processes. Programs that have started are not affected. */
  close(): void {
    this[NATIVE].close();
  }

  /** The same as close(). */
  [Symbol.dispose](): void {
    this.close();
  }
}
