import { type Abortable, type Argv } from './call';
import { Job, type TerminalSize } from './job';
import type { CommandOptions, RunOptions, SessionOptions } from './options';
import type { Result } from './result';
/** A process of a session. */
export interface SessionProcess {
    pid: number;
    name: string;
}
/** The options that a program beside the shell does not have. */
declare const OF_SHELL: readonly ["cwd", "env", "actions", "arg0", "sandbox", "warm"];
/**
 * A shell, bash or dash, that stays open and runs one command after the other.
 *
 * The shell itself runs the text of a command, so the working directory, variables, functions and options stay as a command
 * leaves them. Each command has its own streams and its own result. A timeout ends the command, not the shell.
 *
 * `await using session = await Session.open('bash', { cwd })` closes the session when the block is left. The session does
 * not keep the event loop alive; its shell ends with this process.
 *
 * `Processes` is what `processes()` returns: a promise for a session of a `Remote`.
 */
export declare class Session<Processes = SessionProcess[]> {
    #private;
    /**
     * Prepares a session; its first command starts the shell.
     *
     * @param shell - The shell, or an array of the shell and its arguments. Without arguments, bash reads no startup files.
     * @throws {TypeError} An argument is not valid.
     */
    constructor(shell?: string | Argv, options?: SessionOptions);
    /**
     * Opens a session, and waits until its shell has read its startup files.
     *
     * @throws {SpawnError} The shell cannot be started. `ESRCH`: it exited, or was not ready within `startupTimeout`.
     */
    static open(shell?: string | Argv, options?: SessionOptions & Abortable): Promise<Session>;
    /**
     * Starts a command in the shell, and returns its job at once. Ending the job ends the command, not the session.
     *
     * @param command - Text that the shell runs like lines of a script.
     * @throws {TypeError} An argument is not valid. Other errors are those of run(), from the methods of the job that wait.
     */
    start(command: string | Uint8Array, options?: CommandOptions & Abortable): Job;
    /**
     * Runs a command in the shell, and returns its result, which also has `cwd`, `shellExited` and `shellCode`.
     *
     * A command that has to end gets SIGINT, SIGTERM after half of `grace`, and SIGKILL after all of it. The shell abandons the
     * rest of the command and keeps its state.
     *
     * @param command - Text that the shell runs like lines of a script.
     * @param options - `yieldAfter`: the time in milliseconds after which the call returns the running job in place of a
     * result: `running` tells which.
     * @throws {SpawnError} `EBUSY`: another command runs, and the session has no `queue`. `ESRCH`: the shell has exited; open
     * another session, or use `restart`.
     * @throws {TypeError} An argument is not valid, or belongs to the session.
     * @throws {AbortError} `options.signal` was aborted. The command has been ended.
     */
    run(command: string | Uint8Array, options?: CommandOptions & Abortable & {
        yieldAfter?: undefined;
    }): Promise<Result>;
    run(command: string | Uint8Array, options: CommandOptions & Abortable & {
        yieldAfter?: number | undefined;
    }): Promise<Result | Job>;
    /**
     * Runs a program beside the shell, also while the shell runs a command. The program has the working directory, the
     * exported variables and the umask of the last completed command, and is no process of the session. The session needs the
     * option `restart`, which saves this state.
     */
    sideCommand(argv: Argv, options?: Omit<RunOptions, (typeof OF_SHELL)[number]> & Abortable): Promise<Result>;
    /** Sends SIGINT to the running command, as Ctrl-C in a terminal does. Does not wait for the command's end. */
    interrupt(): void;
    /** Changes the size of the session's terminal; its foreground process group gets SIGWINCH. */
    resize(size: TerminalSize): void;
    /** The processes of the session except its shell: those of the running command, and background jobs. */
    processes(): Processes;
    /** The shell's process id; null before its start and after its end. */
    get pid(): number | null;
    /** Whether the session was closed. */
    get closed(): boolean;
    /**
     * Ends the shell, waits for its end, and kills the other processes of the session.
     *
     * A running command is interrupted. The shell reads the end of its input, runs its EXIT trap and exits. If it has not
     * exited after the session's `grace`, it is killed.
     */
    close(): Promise<void>;
    /** The same as close(). */
    [Symbol.asyncDispose](): Promise<void>;
}
export {};
