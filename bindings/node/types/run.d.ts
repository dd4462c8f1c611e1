import { type Abortable, type Argv } from './call';
import type { RunOptions } from './options';
import { type Result } from './result';
/** Returns the argv that runs a command line in /bin/sh. The shell interprets the whole line: quote inserted values. */
export declare function sh(command: string): string[];
/**
 * Runs a program to its end, without blocking the event loop. Another thread starts the program.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 * @returns The result, also for a nonzero exit code and for a timeout.
 * @throws {SpawnError} The program could not be started. `code` is `ENOENT` if it does not exist.
 * @throws {TypeError} An argument is not valid.
 * @throws {AbortError} `options.signal` was aborted. The program and its process tree have been ended.
 */
export declare function run(argv: Argv, options?: RunOptions & Abortable): Promise<Result>;
/**
 * Runs a program to its end. The thread waits for it.
 *
 * @throws {SpawnError} The program could not be started.
 * @throws {TypeError} An argument is not valid.
 */
export declare function runSync(argv: Argv, options?: RunOptions): Result;
