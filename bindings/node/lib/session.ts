// SPDX-License-Identifier: MIT OR Apache-2.0

import {
  begin,
  checkedArgv,
  checkedSignal,
  checkPermission,
  launch,
  nativeObjects,
  nativeOptions,
  onAbort,
  result,
  type Abortable,
  type Argv,
} from './call';
import { AbortError, checked, failed, isFailure, succeeded } from './errors';
import { checkSize, Job, type TerminalSize } from './job';
import {
  expect,
  native,
  queue,
  type NativeCommandText,
  type NativeFailure,
  type NativeJob,
  type NativeSession,
} from './native';
import type { CommandOptions, RunOptions, SessionOptions } from './options';
import type { Result } from './result';

/** A process of a session. */
export interface SessionProcess {
  pid: number;
  name: string;
}

/** Creates the native half of a session. */
type Prepare = (argv: Argv, options: SessionOptions) => NativeSession | NativeFailure;

const prepareHere: Prepare = (argv, options) => native.session(argv, nativeOptions(options));

/** The options that a program beside the shell does not have. */
const OF_SHELL = ['cwd', 'env', 'actions', 'arg0', 'sandbox', 'warm'] as const;

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
export class Session<Processes = SessionProcess[]> {
  readonly #native: NativeSession;
  readonly #queues: boolean;
  readonly #hasTerminal: boolean;
  /** The start of a shell that is not ready yet. */
  #starting: Promise<void> | undefined;
  /** Resolves when the commands so far have ended, if commands wait for each other. */
  #turns: Promise<void> = Promise.resolve();
  /** The native calls that close() ends: starts of shells and of commands. */
  readonly #calls = new Set<number>();
  #closing: Promise<void> | undefined;

  /**
   * Prepares a session; its first command starts the shell.
   *
   * @param shell - The shell, or an array of the shell and its arguments. Without arguments, bash reads no startup files.
   * @throws {TypeError} An argument is not valid.
   */
  constructor(shell?: string | Argv, options?: SessionOptions);
  /** @internal */
  constructor(shell: string | Argv, options: SessionOptions, prepare: Prepare);
  constructor(shell: string | Argv = 'bash', options: SessionOptions = {}, prepare = prepareHere) {
    checkPermission();
    const argv = typeof shell === 'string' ? [shell] : checkedArgv(shell);
    this.#queues = options.queue === true;
    this.#hasTerminal = options.terminal != null;
    this.#native = succeeded(() => prepare(argv, options));
  }

  /**
   * Opens a session, and waits until its shell has read its startup files.
   *
   * @throws {SpawnError} The shell cannot be started. `ESRCH`: it exited, or was not ready within `startupTimeout`.
   */
  static async open(shell: string | Argv = 'bash', options: SessionOptions & Abortable = {}): Promise<Session> {
    const { signal, ...rest } = options;
    checkedSignal(signal);
    const session = new Session(shell, rest);
    try {
      await unlessAborted(session.#ensureShell(), signal);
    } catch (error) {
      session.#native.stop(0);
      await session.close();
      throw error;
    }
    return session;
  }

  /** Starts a shell if the session needs one, and waits until the shell is ready. */
  async #ensureShell(text?: NativeCommandText): Promise<void> {
    this.#checkOpen();
    if (this.#starting || this.#native.needsShell) {
      this.#starting ??= this.#openShell(text).finally(() => (this.#starting = undefined));
      await this.#starting.finally(() => this.#checkOpen());
    }
  }

  #checkOpen(): void {
    if (this.#closing) {
      throw new Error('the session is closed');
    }
  }

  #openShell(text?: NativeCommandText): Promise<void> {
    return new Promise((resolve, reject) => {
      let key = 0;
      const open = (given: number): NativeFailure | null => {
        this.#calls.add((key = given));
        return this.#native.open(queue, key, text);
      };
      begin(open, {}, (outcome) => {
        this.#calls.delete(key);
        isFailure(outcome) ? reject(failed(outcome)) : resolve();
      });
    });
  }

  async #launch(text: NativeCommandText, options: Abortable, turn: Promise<void>): Promise<NativeJob> {
    await unlessAborted(turn, options.signal);
    await unlessAborted(this.#ensureShell(text), options.signal);
    let key = 0;
    const start = (given: number): NativeFailure | null => {
      this.#calls.add((key = given));
      return this.#native.start(queue, key, text);
    };
    try {
      return await launch(start, options);
    } finally {
      this.#calls.delete(key);
      this.#checkOpen();
    }
  }

  /**
   * Starts a command in the shell, and returns its job at once. Ending the job ends the command, not the session.
   *
   * @param command - Text that the shell runs like lines of a script.
   * @throws {TypeError} An argument is not valid. Other errors are those of run(), from the methods of the job that wait.
   */
  start(command: string | Uint8Array, options: CommandOptions & Abortable = {}): Job {
    checkedSignal(options.signal);
    const text = checked(() => new native.NativeCommandText(command, nativeObjects(options)));
    const launched = this.#launch(text, options, this.#queues ? this.#turns : Promise.resolve());
    const job = new Job(launched, options);
    // The session, which is referenced here, lives as long as its command.
    const ended = job.wait().then(
      () => void this.#native,
      () => void this.#native,
    );
    if (this.#queues) {
      this.#turns = Promise.all([this.#turns, ended]).then(() => {});
    }
    return job;
  }

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
  run(command: string | Uint8Array, options?: CommandOptions & Abortable & { yieldAfter?: undefined }): Promise<Result>;
  run(
    command: string | Uint8Array,
    options: CommandOptions & Abortable & { yieldAfter?: number | undefined },
  ): Promise<Result | Job>;
  async run(
    command: string | Uint8Array,
    options: CommandOptions & Abortable & { yieldAfter?: number | undefined } = {},
  ): Promise<Result | Job> {
    const { yieldAfter, ...rest } = options;
    if (yieldAfter === undefined) {
      if (rest.stdin === 'stream') {
        throw new TypeError("stdin: 'stream' needs yieldAfter; to write at once use start()");
      }
      return this.start(command, rest).wait();
    }
    if (typeof yieldAfter !== 'number' || !(yieldAfter >= 0)) {
      throw new TypeError('yieldAfter must be a number of milliseconds >= 0');
    }
    const job = this.start(command, rest);
    return (await job.wait(yieldAfter)) ?? job;
  }

  /**
   * Runs a program beside the shell, also while the shell runs a command. The program has the working directory, the
   * exported variables and the umask of the last completed command, and is no process of the session. The session needs the
   * option `restart`, which saves this state.
   */
  sideCommand(argv: Argv, options: Omit<RunOptions, (typeof OF_SHELL)[number]> & Abortable = {}): Promise<Result> {
    for (const name of OF_SHELL) {
      if (name in options) {
        throw new TypeError(`unexpected option ${JSON.stringify(name)}; the program has what the session has`);
      }
    }
    return result((key) => this.#native.runBeside(queue, key, checkedArgv(argv), nativeObjects(options)), options);
  }

  /** Sends SIGINT to the running command, as Ctrl-C in a terminal does. Does not wait for the command's end. */
  interrupt(): void {
    this.#native.interrupt();
  }

  /** Changes the size of the session's terminal; its foreground process group gets SIGWINCH. */
  resize(size: TerminalSize): void {
    checkSize(size);
    if (!this.#hasTerminal) {
      throw new TypeError('resize(): the session was created without a terminal');
    }
    checked(() => this.#native.resize(size.rows, size.columns));
  }

  /** The processes of the session except its shell: those of the running command, and background jobs. */
  processes(): Processes {
    return this.#native.processes() as Processes;
  }

  /** The shell's process id; null before its start and after its end. */
  get pid(): number | null {
    return this.#native.pid;
  }

  /** Whether the session was closed. */
  get closed(): boolean {
    return this.#closing !== undefined;
  }

  /**
   * Ends the shell, waits for its end, and kills the other processes of the session.
   *
   * A running command is interrupted. The shell reads the end of its input, runs its EXIT trap and exits. If it has not
   * exited after the session's `grace`, it is killed.
   */
  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    const ended = new Promise<void>((resolve) => this.#native.close(queue, expect(() => resolve())));
    this.#calls.forEach((key) => queue.stop(key));
    const kill = (): void => checked(() => this.#native.stop(0));
    const timer = setTimeout(kill, Math.min(this.#native.grace, 0x7fffffff));
    await ended;
    clearTimeout(timer);
    kill();
  }

  /** The same as close(). */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Waits for a promise, at most until the signal is aborted. */
async function unlessAborted(promise: Promise<unknown>, signal: AbortSignal | undefined): Promise<void> {
  if (!signal) {
    await promise;
    return;
  }
  let stop!: () => void;
  const aborted = new Promise<never>((_resolve, reject) => {
    stop = (): void => reject(new AbortError(signal.reason));
  });
  const removeListener = onAbort(signal, stop);
  try {
    if (signal.aborted) {
      throw new AbortError(signal.reason);
    }
    await Promise.race([promise, aborted]);
  } finally {
    removeListener();
    promise.catch(() => {});
  }
}
