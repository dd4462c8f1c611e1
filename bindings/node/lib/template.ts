// SPDX-License-Identifier: MIT OR Apache-2.0

import { checkedArgv, type Abortable, type Argv } from './call';
import { checked, failed, succeeded } from './errors';
import { start, type Job } from './job';
import { NATIVE, native, type NativeTemplate } from './native';
import type { RunOptions, StartOptions } from './options';
import type { Result } from './result';
import { run, runSync } from './run';
import type { Warm } from './warm';

/**
 * A pinned executable: starts execute exactly the recorded file, or fail with StaleTemplate.
 *
 * A template records the file's identity, size, mode, owner and times, and its creator's credentials. Every start compares
 * them again right before exec. The other calls of this package make templates themselves, and renew stale ones.
 */
export class Template {
  /** For this package. */
  readonly [NATIVE]: NativeTemplate;

  /**
   * @param program - An absolute path, or a name to search once in PATH.
   * @param options - `path`: the directories to search, in the format of PATH. `warm`: a Warm whose parked processes start
   * the program; the template adds itself to it if necessary.
   * @throws {SpawnError} `ENOENT`: the program does not exist. `EACCES`: it may not be executed.
   * @throws {TypeError} An argument is not valid, or the path is relative.
   */
  constructor(program: string | Uint8Array, options: { path?: string; warm?: Warm } = {}) {
    const { path, warm, ...others } = options;
    const [unknown] = Object.keys(others);
    if (unknown !== undefined) {
      throw new TypeError(`unexpected option ${JSON.stringify(unknown)}`);
    }
    if (warm && !(NATIVE in warm)) {
      throw new TypeError('warm must be a Warm');
    }
    const template = succeeded(() => native.template(program, path ?? process.env.PATH));
    this[NATIVE] = warm ? succeeded(() => warm[NATIVE].template(template)) : template;
  }

  /** The absolute path. */
  get path(): string | null {
    return this[NATIVE].path;
  }
  /** The name that the template was created with, which is the default `argv[0]`. */
  get name(): string {
    return this[NATIVE].name;
  }
  /** The interpreters of a script, outermost last; empty for a binary. */
  get interpreters(): string[] {
    return this[NATIVE].interpreters;
  }

  /**
   * Compares the executable and the credentials with the recorded ones, as each start does.
   *
   * @throws {StaleTemplate} The file was replaced or has changed.
   * @throws {SpawnError} `EACCES`: the credentials differ from the creator's.
   */
  revalidate(): void {
    const failure = checked(() => this[NATIVE].revalidate());
    if (failure) {
      throw failed(failure);
    }
  }

  /** The argv of a call. The native half accepts a template as its first item. */
  #argv(args: Argv): Argv {
    return [this[NATIVE], ...checkedArgv(args)] as unknown as Argv;
  }

  /** Runs the program with these arguments, as `run()` does. */
  async run(args: Argv = [], options: RunOptions & Abortable = {}): Promise<Result> {
    return run(this.#argv(args), options);
  }

  /** Runs the program with these arguments, as `runSync()` does. */
  runSync(args: Argv = [], options: RunOptions = {}): Result {
    return runSync(this.#argv(args), options);
  }

  /** Starts the program with these arguments, as `start()` does. */
  start(args: Argv = [], options: StartOptions & Abortable = {}): Job {
    return start(this.#argv(args), options);
  }
}
