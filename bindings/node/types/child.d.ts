import type { Readable, Writable } from 'node:stream';
import { type Argv } from './call';
import type { SpawnOptions } from './options';
/** How a program ended. If other code of this process has taken its status, both are null. */
export interface Exit {
    /** The exit code, or null if a signal ended the program. */
    code: number | null;
    /** The signal that ended the program, or null. A signal without a name is a number. */
    signal: NodeJS.Signals | number | null;
}
/**
 * A program that runs without supervision. Its end is that of the program alone: the program may outlive this process, and
 * its own children may outlive it.
 */
export declare class Child {
    #private;
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
    /**
     * Sends a signal to the program, and to no other process. It has no effect once the program has ended.
     *
     * @throws {TypeError} There is no such signal.
     * @throws {Error} `code` is `EPERM`: the program runs under other ids.
     */
    kill(signal?: NodeJS.Signals | number): void;
    /** Keeps the event loop alive until the program has ended, which is the default. */
    ref(): this;
    /** Lets the event loop end while the program runs. A pipe keeps it alive on its own. */
    unref(): this;
}
/**
 * Starts a program without supervision. The calling thread starts it: about 0.1 ms, whatever the size of the process.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 * @throws {SpawnError} The program could not be started. `code` is `ENOENT` if it does not exist.
 * @throws {TypeError} An argument is not valid.
 */
export declare function spawn(argv: Argv, options?: SpawnOptions): Child;
