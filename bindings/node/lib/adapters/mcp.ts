// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * A stdio client transport for the TypeScript SDK of the Model Context Protocol, in place of the SDK's own.
 *
 * @packageDocumentation
 */

import { Readable, type Stream, type Writable } from 'node:stream';
import { start, type Job } from '../job';
import type { StartOptions } from '../options';
import type { Result } from '../result';

/** How to start a server. The names are those of the SDK. */
export interface StdioServerParameters {
  /** The program, a path or a name to search in PATH. */
  command: string;
  /** The arguments of the program. */
  args?: readonly string[];
  /** Variables in addition to `getDefaultEnvironment()`. */
  env?: Readonly<Record<string, string>>;
  /**
   * The server's standard error. `pipe`: the property `stderr` is a stream of it. A stream, such as `process.stderr`:
   * the server writes to its descriptor. If the stream has no descriptor, the transport writes to the stream.
   * @defaultValue `inherit`
   */
  stderr?: 'inherit' | 'pipe' | 'overlapped' | 'ignore' | Stream | number;
  /** The server's working directory. */
  cwd?: string;
  /**
   * The largest message in bytes. A larger one is an error, and closes the transport.
   * @defaultValue 10485760
   */
  maxBufferSize?: number;
  /**
   * The time in milliseconds that `close()` gives the server to exit after the end of its input, and again after SIGTERM.
   * @defaultValue 2000
   */
  grace?: number;
}

/** A JSON-RPC message. The SDK's types describe the members. */
export interface Message {
  jsonrpc: '2.0';
}

const INHERITED = ['HOME', 'LOGNAME', 'PATH', 'SHELL', 'TERM', 'USER'];
const UNREAD_STDERR = 1 << 20;
const NEWLINE = 0x0a;

/** The descriptor of a stream such as process.stderr, if it has one. */
function descriptorOf(stream: Stream): number | undefined {
  const { fd } = stream as { fd?: unknown };
  return typeof fd === 'number' && fd >= 0 ? fd : undefined;
}

/** The variables of this process that every server gets, as in the SDK. Values that are shell functions are left out. */
export function getDefaultEnvironment(): Record<string, string> {
  const env: Record<string, string> = {};
  for (const name of INHERITED) {
    const value = process.env[name];
    if (value !== undefined && !value.startsWith('()')) {
      env[name] = value;
    }
  }
  return env;
}

/**
 * A client transport that starts a server and exchanges messages over its standard input and output.
 *
 * The end of the transport ends the server's process tree: by `close()`, by the server's exit, and by the end of this
 * process. A transport starts one server, once.
 */
export class StdioClientTransport {
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
  onmessage?: ((message: Message) => void) | undefined;
  /** Stdio has no sessions. */
  sessionId?: string | undefined;

  readonly #server: StdioServerParameters;
  readonly #stderr: Readable | undefined;
  /** The caller's stream that gets the server's standard error. */
  #stderrSink: Writable | undefined;
  /** The parts of a message whose end has not arrived. */
  #parts: Buffer[] = [];
  #partsSize = 0;
  #job: Job | undefined;
  #ended: Promise<void> = Promise.resolve();
  #closed: Promise<void> | undefined;
  #result: Result | undefined;

  constructor(server: StdioServerParameters) {
    this.#server = server;
    if (server.stderr === 'pipe' || server.stderr === 'overlapped') {
      this.#stderr = new Readable({ read() {} });
    }
  }

  /**
   * The server's standard error, if the parameter `stderr` is `pipe`. A server never blocks because this stream is not
   * read: the stream drops what the server writes while 1 MiB is unread. So does a stream without a descriptor that the
   * parameter gives.
   */
  get stderr(): Readable | null {
    return this.#stderr ?? null;
  }

  /** The process id of the server while it runs. */
  get pid(): number | null {
    return (this.#result ? undefined : this.#job?.pid) ?? null;
  }

  /** The result of the server once it has ended: why, its exit code, and the end of its standard error. */
  get result(): Result | undefined {
    return this.#result;
  }

  /**
   * Starts the server.
   *
   * @throws {SpawnError} The program could not be started.
   */
  async start(): Promise<void> {
    if (this.#job || this.#closed) {
      throw new Error('StdioClientTransport already started: connect() calls start() itself');
    }
    const { command, args = [], env, cwd = null, grace = 2000 } = this.#server;
    const job = start([command, ...args], {
      cwd,
      env: { ...getDefaultEnvironment(), ...env },
      stdin: 'stream',
      stderr: this.#openStderr(),
      hold: true,
      grace,
    });
    this.#job = job;
    try {
      await job.started();
    } catch (error) {
      this.#report(error);
      throw error;
    }
    this.#ended = this.#read(job);
  }

  /** Returns the option `stderr` of the server's start. */
  #openStderr(): NonNullable<StartOptions['stderr']> {
    const { stderr = 'inherit' } = this.#server;
    if (stderr === 'pipe' || stderr === 'overlapped') {
      return 'separate';
    }
    if (typeof stderr !== 'object') {
      return stderr === 'ignore' ? 'null' : stderr;
    }
    const descriptor = descriptorOf(stderr);
    if (descriptor === undefined) {
      this.#stderrSink = stderr as Writable;
    }
    return descriptor ?? 'separate';
  }

  /** Sends a message, and waits until all of it is queued for the server. */
  async send(message: Message): Promise<void> {
    if (!this.#job || this.#closed) {
      throw new Error('Not connected');
    }
    await this.#job.write(`${JSON.stringify(message)}\n`);
  }

  /**
   * Closes the server's input, and waits for its end. A server that does not exit gets SIGTERM with its process tree, and
   * then SIGKILL. Later calls wait for the same end.
   */
  close(): Promise<void> {
    return (this.#closed ??= this.#close());
  }

  async #close(): Promise<void> {
    const { grace = 2000 } = this.#server;
    const job = this.#job;
    try {
      // A server that does not read may block an earlier write, and with it the end of the input.
      void job?.closeStdin().catch(() => {});
      if (job && (await job.wait(grace)) === null) {
        await job.stop(grace);
      }
    } catch {
      // start() or the reader reports why there is no result.
    }
    await this.#ended;
  }

  async #read(job: Job): Promise<void> {
    try {
      for await (const { stream, data } of job.events()) {
        if (stream === 'stdout') {
          this.#receive(data);
        } else if (stream === 'stderr') {
          this.#takeStderr(data);
        }
      }
      this.#result = await job.wait();
    } catch (error) {
      this.#report(error);
    }
    this.#stderr?.push(null);
    this.onclose?.();
  }

  #takeStderr(data: Buffer): void {
    const [output, sink] = [this.#stderr, this.#stderrSink];
    if (output && output.readableLength < UNREAD_STDERR) {
      output.push(data);
    } else if (sink?.writable && sink.writableLength < UNREAD_STDERR) {
      sink.write(data);
    }
  }

  #receive(data: Buffer): void {
    const { maxBufferSize = 10 << 20 } = this.#server;
    let from = 0;
    for (let end; !this.#closed && (end = data.indexOf(NEWLINE, from)) >= 0; from = end + 1) {
      const line = Buffer.concat([...this.#parts, data.subarray(from, end)]).toString();
      [this.#parts, this.#partsSize] = [[], 0];
      this.#deliver(line);
    }
    if (this.#closed) {
      return;
    }
    this.#parts.push(data.subarray(from));
    this.#partsSize += data.length - from;
    if (this.#partsSize > maxBufferSize) {
      [this.#parts, this.#partsSize] = [[], 0];
      this.#report(new Error(`the server sent a message of more than maxBufferSize (${maxBufferSize}) bytes`));
      void this.close();
    }
  }

  #deliver(line: string): void {
    try {
      const message = JSON.parse(line) as Message | null;
      if (message?.jsonrpc !== '2.0') {
        throw new Error('the server sent a line that is not a JSON-RPC message');
      }
      this.onmessage?.(message);
    } catch (error) {
      this.#report(error);
    }
  }

  #report(error: unknown): void {
    this.onerror?.(error instanceof Error ? error : new Error(String(error)));
  }
}
