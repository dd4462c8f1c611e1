import { Readable, Writable } from 'node:stream';
import { type Abortable, type Argv } from './call';
import type { StartOptions } from './options';
import { type Result } from './result';
/** Output of a job: bytes of one stream in order of arrival, or the number of bytes that were dropped. */
export type OutputEvent = {
    stream: 'stdout' | 'stderr';
    data: Buffer;
    lost: 0;
} | {
    stream: null;
    data: null;
    lost: number;
};
/** A line of a job's output. */
export interface Line {
    stream: 'stdout' | 'stderr';
    /** The line without its end, decoded as UTF-8. */
    text: string;
    /** Whether the line goes on in the next item, because it exceeds `maxLine` bytes. */
    partial: boolean;
    /** The bytes that were dropped just before this line, because the caller read too slowly. */
    lost: number;
}
/** Output from a position on. */
export interface Chunk {
    data: Buffer;
    /** `data` decoded as UTF-8. */
    readonly text: string;
    /** The position to read from next. */
    next: number;
    /** The bytes from the requested position on that the window no longer has. */
    lost: number;
}
/** The size of a terminal. */
export interface TerminalSize {
    rows: number;
    columns: number;
}
/**
 * A running program. `start()` returns it.
 *
 * The job keeps the event loop alive until it has its result. `await using job = start(…)` ends the program and its process
 * tree when the block is left.
 */
export declare class Job {
    #private;
    /** The process id, for printing; undefined until the program has started. */
    get pid(): number | undefined;
    /**
     * Waits until the process exists. It may still fail to become the program, for example because `cwd` does not exist; then
     * wait() throws the error.
     *
     * @throws {SpawnError} The program could not be started.
     */
    started(): Promise<this>;
    /** Waits for the result. */
    wait(): Promise<Result>;
    /** Waits for the result, at most `timeout` milliseconds; then returns null, and the program runs on. */
    wait(timeout: number): Promise<Result | null>;
    /** Whether the job has its result. */
    get done(): boolean;
    /** Whether the job has no result yet. A `Result` has false, so this tells what a session's run() has returned. */
    get running(): boolean;
    /**
     * The output of both streams in order of arrival. While the caller does not take the next event, the program blocks
     * once the window is full. Leaving the loop lets the program run on; then the oldest output is dropped when the window
     * is full. The same holds for a reader that begins after the program has started, unless the option `hold` is set.
     */
    events(): AsyncGenerator<OutputEvent, void, undefined>;
    /**
     * The lines of both streams in order of arrival.
     *
     * @param options - `maxLine`: the longest line in bytes, 64 KiB by default. A longer one is split.
     */
    lines(options?: {
        maxLine?: number;
    }): AsyncGenerator<Line, void, undefined>;
    /** The events of this job, as `events()`. */
    [Symbol.asyncIterator](): AsyncGenerator<OutputEvent, void, undefined>;
    /**
     * Standard output as a stream of Node, in place of `events()` and `lines()`. A program that writes to a stream that is
     * open and not read blocks, as one of child_process does. Output to a stream that has not been opened is only in the
     * result.
     */
    get stdout(): Readable;
    /** Standard error as a stream of Node. See `stdout`. */
    get stderr(): Readable;
    /** Standard input as a stream of Node, for a job that was started with `stdin: 'stream'`. */
    get stdin(): Writable;
    /**
     * Writes to the program's input, and waits until all of it is queued. Several writes at once keep their order.
     *
     * @throws {SpawnError} `EPIPE`: the program reads no more. `EBADF`: the input is not a stream.
     */
    write(data: string | Uint8Array): Promise<void>;
    /** Ends the program's input: it reads the end of the file after what has been written. */
    closeStdin(): Promise<void>;
    /**
     * The output of both streams from a position on, as far as the window still has it. Does not wait.
     *
     * @param since - A number of bytes of both streams in order of arrival: 0, or the `next` of an earlier chunk.
     */
    read(since?: number): Chunk;
    /**
     * Ends the program and its process tree, and waits for the result: SIGTERM, and SIGKILL after `grace` milliseconds. By
     * default it is the option `grace`.
     */
    stop(grace?: number): Promise<Result>;
    /**
     * Sends a signal to the program, or with `tree` to its whole process tree.
     *
     * @throws {TypeError} There is no such signal.
     */
    kill(signal?: NodeJS.Signals | number, options?: {
        tree?: boolean;
    }): Promise<void>;
    /** Changes the size of the terminal; the foreground process group gets SIGWINCH. */
    resize(size: TerminalSize): Promise<void>;
    /** Ends the program and its process tree, if it still runs, and waits for its end. */
    [Symbol.asyncDispose](): Promise<void>;
}
/**
 * Starts a program, and returns at once. Another thread starts the program; if it cannot, the methods of the job that wait
 * fail with a SpawnError.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 */
export declare function start(argv: Argv, options?: StartOptions & Abortable): Job;
