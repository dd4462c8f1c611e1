// SPDX-License-Identifier: MIT OR Apache-2.0

import { Socket } from 'node:net';
import { getSystemErrorName } from 'node:util';
import { checkedArgv, checkPermission, isExit, nativeOptions, type Argv } from './call';
import { checked, failed } from './errors';
import * as native from './native';
import type { SpawnOptions } from './options';
import { signalName, signalNumber } from './signals';

/** How a program ended. If other code of this process has taken its status, both are null. */
export interface Exit {
  /** The exit code, or null if a signal ended the program. */
  code: number | null;
  /** The signal that ended the program, or null. A signal without a name is a number. */
  signal: NodeJS.Signals | number | null;
}

function exitOf(outcome: native.Outcome): Exit {
  if (!isExit(outcome) || outcome.code < 0) {
    return { code: null, signal: null };
  }
  const { code, signal } = outcome;
  return signal ? { code: null, signal: (signalName(signal) || signal) as NodeJS.Signals | number } : { code, signal: null };
}

/**
 * A program that runs without supervision. Its end is that of the program alone: the program may outlive this process, and
 * its own children may outlive it.
 */
export class Child {
  readonly #child: native.NativeChild;
  readonly #key: number;
  /** The process id. Another process may have it once the program has ended. */
  readonly pid: number;
  /** How the program ended. The promise is never rejected. */
  readonly exited: Promise<Exit>;
  /** This process's end of standard input if that is `pipe`, or null. */
  readonly stdin: Socket | null;
  /** This process's end of standard output if that is `pipe`, or null. */
  readonly stdout: Socket | null;
  /** This process's end of standard error if that is `pipe`, or null. */
  readonly stderr: Socket | null;

  /** @internal */
  constructor(argv: Argv, options: SpawnOptions) {
    checkPermission();
    let settled!: (exit: Exit) => void;
    this.exited = new Promise((resolve) => (settled = resolve));
    this.#key = native.expect((outcome) => settled(exitOf(outcome)));
    try {
      const started = checked(() => native.native.spawn(native.queue, this.#key, checkedArgv(argv), nativeOptions(options)));
      if ('stage' in started) {
        throw failed(started);
      }
      this.#child = started;
    } catch (error) {
      native.forget(this.#key);
      throw error;
    }
    this.pid = this.#child.pid;
    const pipe = (number: number): Socket | null => {
      const fd = this.#child.takePipe(number);
      return fd === null ? null : new Socket({ fd, readable: number > 0, writable: number === 0 });
    };
    [this.stdin, this.stdout, this.stderr] = [pipe(0), pipe(1), pipe(2)];
  }

  /**
   * Sends a signal to the program, and to no other process. It has no effect once the program has ended.
   *
   * @throws {TypeError} There is no such signal.
   * @throws {Error} `code` is `EPERM`: the program runs under other ids.
   */
  kill(signal: NodeJS.Signals | number = 'SIGTERM'): void {
    const errno = this.#child.signal(signalNumber(signal));
    if (errno) {
      const code = getSystemErrorName(errno);
      throw Object.assign(new Error(`kill ${code}`), { code, errno, syscall: 'kill' });
    }
  }

  /** Keeps the event loop alive until the program has ended, which is the default. */
  ref(): this {
    native.setReferenced(this.#key, true);
    return this;
  }

  /** Lets the event loop end while the program runs. A pipe keeps it alive on its own: see `Socket.unref()`. */
  unref(): this {
    native.setReferenced(this.#key, false);
    return this;
  }
}

/**
 * Starts a program without supervision. The calling thread starts it: about 0.1 ms, whatever the size of the process.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 * @throws {SpawnError} The program could not be started. `code` is `ENOENT` if it does not exist.
 * @throws {TypeError} An argument is not valid.
 */
export function spawn(argv: Argv, options: SpawnOptions = {}): Child {
  return new Child(argv, options);
}
