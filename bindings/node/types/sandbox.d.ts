import type { Argv } from './call';
import { NATIVE, type NativeSandbox } from './native';
/**
 * A command that confines the program which it starts, such as `bwrap … --`. Pass it to calls as the option `sandbox`.
 *
 * Each start runs the command with the program's argv behind its own arguments.
 */
export declare class Sandbox {
    /** For this package. */
    readonly [NATIVE]: NativeSandbox;
    /**
     * @param argv - The command and its arguments. The command is an absolute path, or a name that is searched now in the
     * PATH of this process.
     * @param options - `fds`: descriptors that the command gets, by their number in the command (3 or more). They are copied
     * now. Each start opens a readable regular file again, at the position that the descriptor has now.
     * @throws {SpawnError} `ENOENT`: the command does not exist.
     * @throws {TypeError} An argument is not valid.
     */
    constructor(argv: Argv, options?: {
        fds?: Readonly<Record<number, number>>;
    });
}
