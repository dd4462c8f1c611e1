// SPDX-License-Identifier: MIT OR Apache-2.0

import { Readable, Writable } from 'node:stream';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { checkedArgv, launch, nativeOptions, onAbort, type Abortable, type Argv } from './call';
import { AbortError, checked, failed, isFailure } from './errors';
import { Awaited, expect, native, queue, type NativeEvent, type NativeJob } from './native';
import type { StartOptions } from './options';
import { RunResult, type Result } from './result';
import { signalNumber } from './signals';

/** Output of a job: bytes of one stream in order of arrival, or the number of bytes that were dropped. */
export type OutputEvent =
  | { stream: 'stdout' | 'stderr'; data: Buffer; lost: 0 }
  | { stream: null; data: null; lost: number };

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

/** @internal */
export function checkSize({ rows, columns }: TerminalSize): void {
  for (const [name, value] of Object.entries({ rows, columns })) {
    if (!Number.isInteger(value) || value < 0 || value > 0xffff) {
      throw new TypeError(`${name} must be a whole number up to 65535`);
    }
  }
}

const EVENTS_AT_ONCE = 64;
/** The time after which a reader of events lets the event loop go on. */
const LONGEST_TURN_MS = 10;

/**
 * A running program. `start()` returns it.
 *
 * The job keeps the event loop alive until it has its result. `await using job = start(…)` ends the program and its process
 * tree when the block is left.
 */
export class Job {
  #native: NativeJob | undefined;
  readonly #ready: Promise<NativeJob>;
  readonly #result: Promise<Result>;
  readonly #holds: boolean;
  #isRead = false;
  #isDone = false;

  /** @internal */
  constructor(launched: Promise<NativeJob>, options: { hold?: boolean; signal?: AbortSignal }) {
    this.#holds = options.hold === true;
    this.#ready = launched.then((job) => {
      this.#native = job;
      job.hold(this.#isRead || this.#holds);
      return job;
    });
    this.#result = this.#wait(options.signal);
    // A caller that only reads events sees the error there.
    this.#ready.catch(() => {});
    this.#result.catch(() => {});
  }

  async #wait(signal: AbortSignal | undefined): Promise<Result> {
    const job = await this.#ready;
    const stop = (): void => this.#end(job);
    const removeListener = signal && onAbort(signal, stop);
    if (signal?.aborted) {
      stop();
    }
    try {
      for (;;) {
        const outcome = job.result();
        if (outcome === null) {
          await this.#change(job, Awaited.Result);
        } else if (isFailure(outcome)) {
          throw failed(outcome);
        } else {
          const result = new RunResult(outcome) as Result;
          if (signal?.aborted && result.stop === 'cancelled') {
            throw new AbortError(signal.reason, result);
          }
          return result;
        }
      }
    } finally {
      this.#isDone = true;
      removeListener?.();
    }
  }

  #end(job: NativeJob, grace?: number): void {
    checked(() => job.stop(grace));
  }

  #change(job: NativeJob, awaited: Awaited): Promise<void> {
    return new Promise((resolve) => job.wait(queue, expect(() => resolve()), awaited));
  }

  /** The process id, for printing; undefined until the program has started. */
  get pid(): number | undefined {
    return this.#native?.pid;
  }

  /**
   * Waits until the process exists. It may still fail to become the program, for example because `cwd` does not exist; then
   * wait() throws the error.
   *
   * @throws {SpawnError} The program could not be started.
   */
  async started(): Promise<this> {
    await this.#ready;
    return this;
  }

  /** Waits for the result. */
  wait(): Promise<Result>;
  /** Waits for the result, at most `timeout` milliseconds; then returns null, and the program runs on. */
  wait(timeout: number): Promise<Result | null>;
  wait(timeout?: number): Promise<Result | null> {
    if (timeout === undefined) {
      return this.#result;
    }
    if (typeof timeout !== 'number' || !(timeout >= 0)) {
      throw new TypeError('timeout must be a number of milliseconds >= 0');
    }
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<null>((resolve) => {
      timer = setTimeout(resolve, Math.min(timeout, 0x7fffffff), null);
    });
    return Promise.race([this.#result, late]).finally(() => clearTimeout(timer));
  }

  /** Whether the job has its result. */
  get done(): boolean {
    return this.#isDone;
  }

  /** Whether the job has no result yet. A `Result` has false, so this tells what a session's run() has returned. */
  get running(): boolean {
    return !this.#isDone;
  }

  async *#events(lines?: number): AsyncGenerator<NativeEvent, void, undefined> {
    if (this.#isRead) {
      throw new Error('another caller reads the output of this job');
    }
    this.#isRead = true;
    const job = await this.#ready;
    job.setLines(lines);
    job.hold(true);
    let turn = performance.now();
    try {
      for (;;) {
        const events = job.takeEvents(EVENTS_AT_ONCE);
        for (const event of events) {
          if (event.stream === undefined && event.lost === 0) {
            return;
          }
          yield event;
          // While the program writes faster than the caller reads, no wait would let timers and other callbacks run.
          if (performance.now() - turn > LONGEST_TURN_MS) {
            await nextTurn();
            turn = performance.now();
          }
        }
        if (events.length === 0) {
          await this.#change(job, Awaited.Event);
          turn = performance.now();
        }
      }
    } finally {
      this.#isRead = false;
      job.hold(this.#holds);
    }
  }

  /**
   * The output of both streams in order of arrival. While the caller does not take the next event, the program blocks
   * once the window is full. Leaving the loop lets the program run on; then the oldest output is dropped when the window
   * is full. The same holds for a reader that begins after the program has started, unless the option `hold` is set.
   */
  async *events(): AsyncGenerator<OutputEvent, void, undefined> {
    for await (const event of this.#events()) {
      yield (event.stream
        ? { stream: event.stream, data: event.data, lost: 0 }
        : { stream: null, data: null, lost: event.lost }) as OutputEvent;
    }
  }

  /**
   * The lines of both streams in order of arrival.
   *
   * @param options - `maxLine`: the longest line in bytes, 64 KiB by default. A longer one is split.
   */
  async *lines(options: { maxLine?: number } = {}): AsyncGenerator<Line, void, undefined> {
    const { maxLine = 1 << 16 } = options;
    if (!Number.isInteger(maxLine) || maxLine < 4 || maxLine > 0xffffffff) {
      throw new TypeError('maxLine must be a whole number >= 4');
    }
    let lost = 0;
    for await (const event of this.#events(maxLine)) {
      if (!event.stream) {
        lost += event.lost;
        continue;
      }
      const text = event.data!.toString().replace(/\r?\n$/, '');
      yield { stream: event.stream, text, partial: event.partial, lost };
      lost = 0;
    }
  }

  /** The events of this job, as `events()`. */
  [Symbol.asyncIterator](): AsyncGenerator<OutputEvent, void, undefined> {
    return this.events();
  }

  #stdout: Readable | undefined;
  #stderr: Readable | undefined;

  /**
   * Standard output as a stream of Node, in place of `events()` and `lines()`. A program that writes to a stream that is
   * open and not read blocks, as one of child_process does. Output to a stream that has not been opened is only in the
   * result.
   */
  get stdout(): Readable {
    return (this.#stdout ??= this.#openStream('stdout'));
  }

  /** Standard error as a stream of Node. See `stdout`. */
  get stderr(): Readable {
    return (this.#stderr ??= this.#openStream('stderr'));
  }

  readonly #streams = new Map<string, Readable>();
  /** Goes on with reading once a stream has space. */
  readonly #resume = new Map<string, () => void>();

  #openStream(name: 'stdout' | 'stderr'): Readable {
    const stream = new Readable({
      read: () => this.#resume.get(name)?.(),
      destroy: (error, done) => {
        this.#streams.delete(name);
        this.#resume.get(name)?.();
        done(error);
      },
    });
    this.#streams.set(name, stream);
    this.#pumped ??= this.#pump();
    this.#pumped.then(
      () => stream.push(null),
      // wait() has the error.
      () => stream.push(null),
    );
    return stream;
  }

  #pumped: Promise<void> | undefined;

  async #pump(): Promise<void> {
    for await (const { stream: name, data } of this.#events()) {
      const stream = name && this.#streams.get(name);
      if (stream && !stream.push(data) && !this.#isDone) {
        // Once the program has ended, a stream that is not read does not hold back the other.
        const resumed = new Promise<void>((resolve) => this.#resume.set(name, resolve));
        await Promise.race([resumed, this.#result.catch(() => {})]);
        this.#resume.delete(name);
      }
    }
  }

  #stdin: Writable | undefined;

  /** Standard input as a stream of Node, for a job that was started with `stdin: 'stream'`. */
  get stdin(): Writable {
    return (this.#stdin ??= new Writable({
      write: (data: Buffer, _encoding, done) => void this.write(data).then(() => done(), done),
      final: (done) => void this.closeStdin().then(() => done(), done),
    }));
  }

  /** The writes so far. The native half has one caller at a time that waits for space. */
  #written: Promise<unknown> = Promise.resolve();

  #afterWrites(step: () => Promise<void>): Promise<void> {
    const done = this.#written.then(step);
    this.#written = done.catch(() => {});
    return done;
  }

  /**
   * Writes to the program's input, and waits until all of it is queued. Several writes at once keep their order.
   *
   * @throws {SpawnError} `EPIPE`: the program reads no more. `EBADF`: the input is not a stream.
   */
  write(data: string | Uint8Array): Promise<void> {
    return this.#afterWrites(() => this.#write(data));
  }

  async #write(data: string | Uint8Array): Promise<void> {
    let rest = typeof data === 'string' ? Buffer.from(data) : data;
    const job = await this.#ready;
    while (rest.length > 0) {
      const accepted = checked(() => job.write(rest));
      if (typeof accepted !== 'number') {
        throw failed(accepted);
      }
      rest = rest.subarray(accepted);
      if (rest.length > 0) {
        await this.#change(job, Awaited.Writable);
      }
    }
  }

  /** Ends the program's input: it reads the end of the file after what has been written. */
  closeStdin(): Promise<void> {
    return this.#afterWrites(async () => (await this.#ready).closeStdin());
  }

  /**
   * The output of both streams from a position on, as far as the window still has it. Does not wait.
   *
   * @param since - A number of bytes of both streams in order of arrival: 0, or the `next` of an earlier chunk.
   */
  read(since = 0): Chunk {
    if (!Number.isSafeInteger(since) || since < 0) {
      throw new TypeError('since must be a whole number >= 0');
    }
    const { data, next, lost } = this.#native?.read(since) ?? { data: Buffer.alloc(0), next: since, lost: 0 };
    return {
      data,
      next,
      lost,
      get text() {
        return data.toString();
      },
    };
  }

  /**
   * Ends the program and its process tree, and waits for the result: SIGTERM, and SIGKILL after `grace` milliseconds. By
   * default it is the option `grace`.
   */
  async stop(grace?: number): Promise<Result> {
    this.#end(await this.#ready, grace);
    return this.#result;
  }

  /**
   * Sends a signal to the program, or with `tree` to its whole process tree.
   *
   * @throws {TypeError} There is no such signal.
   */
  async kill(signal: NodeJS.Signals | number = 'SIGTERM', options: { tree?: boolean } = {}): Promise<void> {
    const number = signalNumber(signal);
    const job = await this.#ready;
    checked(() => job.signal(number, options.tree ?? false));
  }

  /** Changes the size of the terminal; the foreground process group gets SIGWINCH. */
  async resize(size: TerminalSize): Promise<void> {
    checkSize(size);
    (await this.#ready).resize(size.rows, size.columns);
  }

  /** Ends the program and its process tree, if it still runs, and waits for its end. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isDone) {
      await this.#ready.then((job) => this.#end(job)).catch(() => {});
    }
    await this.#result.catch(() => {});
  }
}

/**
 * Starts a program, and returns at once. Another thread starts the program; if it cannot, the methods of the job that wait
 * fail with a SpawnError.
 *
 * @param argv - The program, a path or a name to search in PATH, and its arguments.
 */
export function start(argv: Argv, options: StartOptions & Abortable = {}): Job {
  return new Job(
    launch((key) => native.start(queue, key, checkedArgv(argv), nativeOptions(options)), options),
    options,
  );
}
