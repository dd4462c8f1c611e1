// SPDX-License-Identifier: MIT OR Apache-2.0

import { createReadStream, createWriteStream } from 'node:fs';
import { Socket } from 'node:net';
import type { Readable, Writable } from 'node:stream';
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

// Bun's Socket has no pipes. In Node, the streams of files would occupy threads of libuv's pool.
const isBun = process.versions.bun !== undefined;

function writable(fd: number): Writable {
  return isBun ? createWriteStream('', { fd }) : new Socket({ fd, readable: false, writable: true });
}

function readable(fd: number): Readable {
  return isBun ? createReadStream('', { fd }) : new Socket({ fd, readable: true, writable: false });
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
  readonly stdin: Writable | null;
  /** This process's end of standard output if that is `pipe`, or null. */
  readonly stdout: Readable | null;
  /** This process's end of standard error if that is `pipe`, or null. */
  readonly stderr: Readable | null;

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
    const [stdin, stdout, stderr] = [0, 1, 2].map((number) => this.#child.takePipe(number));
    this.stdin = typeof stdin === 'number' ? writable(stdin) : null;
    this.stdout = typeof stdout === 'number' ? readable(stdout) : null;
    this.stderr = typeof stderr === 'number' ? readable(stderr) : null;
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

  /** Lets the event loop end while the program runs. A pipe keeps it alive on its own. */
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
