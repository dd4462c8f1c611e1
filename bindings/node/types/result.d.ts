import type { Stop } from './options';
/** The number of bytes of a stream that were not kept, and where they begin. */
export interface Omitted {
    bytes: number;
    offset: number;
}
/** A piece of a combined run's output. */
export interface Piece {
    stream: 'stdout' | 'stderr';
    text: string;
    /** The bytes that are omitted here, if the piece is the marker line. */
    omitted?: number;
}
/** A process that outlived the program. */
export interface Leftover {
    pid: number;
    name: string;
    fate: string;
}
/**
 * The outcome of a run: exit status, captured output and resource usage.
 *
 * A nonzero exit code, a timeout and truncated output are results, not exceptions. `check()` throws for a result that is
 * not ok. Times are milliseconds.
 */
export declare class RunResult<S extends Stop = Stop> {
    #private;
    /** Why the run ended. `exited`: the program ended by itself. */
    readonly stop: S;
    /** The exit code; null if a signal ended the program, or its status is lost. */
    readonly code: number | null;
    /** The number of the signal that ended the program; null if it exited, or its status is lost. */
    readonly signal: number | null;
    /** Where a `Remote` has run the program: the host name and the transport. Null for a program of this machine. */
    get where(): string | null;
    /** Whether the program ended by itself with exit code 0. */
    get ok(): boolean;
    /** Captured standard output: head, marker line if bytes are omitted, tail. */
    get stdout(): Buffer;
    /** Captured standard error, as `stdout`. Empty if merged into standard output. */
    get stderr(): Buffer;
    /** `stdout` decoded as UTF-8; invalid bytes become U+FFFD. A character that is split by omitted output is dropped. */
    get text(): string;
    /** `stderr` decoded as UTF-8. */
    get stderrText(): string;
    /** The kept bytes of standard output before omitted bytes; all bytes if none is omitted. */
    get stdoutHead(): Buffer;
    /** The kept bytes of standard output after omitted bytes; empty if none is omitted. */
    get stdoutTail(): Buffer;
    /** The kept bytes of standard error before omitted bytes. */
    get stderrHead(): Buffer;
    /** The kept bytes of standard error after omitted bytes. */
    get stderrTail(): Buffer;
    /** The output of both streams in order of arrival; null without the option `combined`. */
    get output(): Piece[] | null;
    /** The limit that was reached, and its enforcer, such as `memory (cgroup)`. */
    get limit(): S extends 'limit' ? string : null;
    /** The enforcer of each of the run's limits: `cgroup`, `rlimit`, `watch` or `unenforced`. */
    get limits(): Record<string, string>;
    /** How the program was started: `clone`, `reserve`, `fork`, `kernel`, or `cold: ` and why not warm. */
    get started(): string;
    /** The time from start to end, in milliseconds. */
    get wall(): number;
    /** The CPU time of the program and the children that it has waited for, in milliseconds. */
    get cpu(): number;
    /** The peak memory of the program in bytes. */
    get maxRss(): number;
    /** How many bytes of each stream were not kept, and where they begin. */
    get omitted(): {
        stdout: Omitted;
        stderr: Omitted;
    };
    /** How many bytes of both streams together were not kept. */
    get omittedBytes(): number;
    /** How many bytes the program wrote to both streams. */
    get seenBytes(): number;
    /** The file with all of the output, or null. It is removed with the last reference to the result, unless persistent. */
    get spillPath(): string | null;
    /** The length of the spill file, and whether it is complete. */
    get spilled(): {
        bytes: number;
        end: 'whole' | 'capped' | 'failed';
        errno?: string;
    } | null;
    /** Whether the program ended, or closed its standard input, before it had read all of it. */
    get inputRefused(): boolean;
    /** The mechanism that controlled the process tree: `cgroup`, `pidns`, `subreaper`, `guard` or `group`. */
    get tree(): string;
    /** Whether no process of the tree can have escaped. */
    get treeComplete(): boolean;
    /** The processes that outlived the program, and what was done with them. */
    get leftovers(): Leftover[];
    /** Whether there may have been more leftovers than are listed. */
    get leftoversUnknown(): boolean;
    /** How the reading of output ended. */
    get drain(): string;
    /** Whether the exit status is unknown, because other code has taken it. The result is then not ok. */
    get statusLost(): boolean;
    /** False; a `Job` has true while it runs. This tells what a session's run() has returned. */
    get running(): false;
    /** The working directory of a session's shell after the command; null for other runs, and if the shell has exited. */
    get cwd(): string | null;
    /** Whether a session's shell exited during the command. The status of the command is then lost. */
    get shellExited(): boolean;
    /** The exit code of a session's shell that has exited, or the negative number of the signal that ended it. */
    get shellCode(): number | null;
    /**
     * Returns this result if it is ok.
     *
     * @throws {ExitError} The run was not ok. The message has the last lines of standard error.
     */
    check(): this;
    /** The fields of `spawnfd run --json`, for JSON.stringify(). */
    toJSON(): Record<string, unknown>;
}
/** The outcome of a run. A comparison of `stop` narrows the type. */
export type Result = {
    [S in Stop]: RunResult<S>;
}[Stop];
