// SPDX-License-Identifier: MIT OR Apache-2.0

import { checkedArgv, checkPermission, nativeOptions, result, type Abortable, type Argv } from './call';
import { succeeded } from './errors';
import { native, queue } from './native';
import type { RunOptions } from './options';
import { RunResult, type Result } from './result';

/** Returns the argv that runs a command line in /bin/sh. The shell interprets the whole line: quote inserted values. */
export function sh(command: string): string[] {
  if (typeof command !== 'string') {
    throw new TypeError(`command must be a string, got ${typeof command}`);
  }
  return ['/bin/sh', '-c', command];
}

/**
 * Runs a program to its end, without blocking the event loop. Another thread starts the program.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 * @returns The result, also for a nonzero exit code and for a timeout.
 * @throws {SpawnError} The program could not be started. `code` is `ENOENT` if it does not exist.
 * @throws {TypeError} An argument is not valid.
 * @throws {AbortError} `options.signal` was aborted. The program and its process tree have been ended.
 */
export function run(argv: Argv, options: RunOptions & Abortable = {}): Promise<Result> {
  return result((key) => native.run(queue, key, checkedArgv(argv), nativeOptions(options)), options);
}

/**
 * Runs a program to its end. The thread waits for it.
 *
 * @throws {SpawnError} The program could not be started.
 * @throws {TypeError} An argument is not valid.
 */
export function runSync(argv: Argv, options: RunOptions = {}): Result {
  checkPermission();
  return new RunResult(succeeded(() => native.runSync(checkedArgv(argv), nativeOptions(options)))) as Result;
}
