import { type Abortable, type Argv } from './call';
import { type Job } from './job';
import { NATIVE, type NativeTemplate } from './native';
import type { RunOptions, StartOptions } from './options';
import type { Result } from './result';
import type { Warm } from './warm';
/**
 * A pinned executable: starts execute exactly the recorded file, or fail with StaleTemplate.
 *
 * A template records the file's identity, size, mode, owner and times, and its creator's credentials. Every start compares
 * them again right before exec. The other calls of this package make templates themselves, and renew stale ones.
 */
export declare class Template {
    #private;
    /** For this package. */
    readonly [NATIVE]: NativeTemplate;
    /**
     * @param program - An absolute path, or a name to search once in PATH.
     * @param options - `path`: the directories to search, in the format of PATH. `warm`: a Warm whose parked processes start
     * the program; the template adds itself to it if necessary.
     * @throws {SpawnError} `ENOENT`: the program does not exist. `EACCES`: it may not be executed.
     * @throws {TypeError} An argument is not valid, or the path is relative.
     */
    constructor(program: string | Uint8Array, options?: {
        path?: string;
        warm?: Warm;
    });
    /** The absolute path. */
    get path(): string | null;
    /** The name that the template was created with, which is the default `argv[0]`. */
    get name(): string;
    /** The interpreters of a script, outermost last; empty for a binary. */
    get interpreters(): string[];
    /**
     * Compares the executable and the credentials with the recorded ones, as each start does.
     *
     * @throws {StaleTemplate} The file was replaced or has changed.
     * @throws {SpawnError} `EACCES`: the credentials differ from the creator's.
     */
    revalidate(): void;
    /** Runs the program with these arguments, as `run()` does. */
    run(args?: Argv, options?: RunOptions & Abortable): Promise<Result>;
    /** Runs the program with these arguments, as `runSync()` does. */
    runSync(args?: Argv, options?: RunOptions): Result;
    /** Starts the program with these arguments, as `start()` does. */
    start(args?: Argv, options?: StartOptions & Abortable): Job;
}
