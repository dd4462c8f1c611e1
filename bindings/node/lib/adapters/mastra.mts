// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * A sandbox of a Mastra workspace, and its process manager. An ES module, so that its classes are those of Mastra's.
 *
 * @packageDocumentation
 */

import {
  MastraSandbox,
  ProcessHandle,
  SandboxNotReadyError,
  SandboxProcessManager,
  type CommandResult,
  type MastraSandboxOptions,
  type ProcessInfo,
  type SpawnProcessOptions,
} from '@mastra/core/workspace';
import { randomUUID } from 'node:crypto';
import { resolve } from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { sh, start, type Job } from '../index.js';
import { stopLine, type CommandOptions } from './options.js';

const OUT_OF_TIME = 124;

class JobHandle extends ProcessHandle {
  readonly pid: string;
  exitCode: number | undefined;
  readonly #job: Job;
  readonly #result: Promise<CommandResult>;

  constructor(job: Job, options: SpawnProcessOptions) {
    super(options);
    this.pid = String(job.pid);
    this.#job = job;
    this.#result = this.#follow(options.timeout).catch(async (error) => {
      // A callback may have thrown while the command runs.
      await job.stop(0).catch(() => {});
      this.exitCode = 1;
      throw error;
    });
    this.#result.catch(() => {});
  }

  async #follow(timeout: number | undefined): Promise<CommandResult> {
    const decoders = { stdout: new StringDecoder(), stderr: new StringDecoder() };
    for await (const { stream, data } of this.#job.events()) {
      if (stream) {
        this.#emit(stream, decoders[stream].write(data));
      }
    }
    this.#emit('stdout', decoders.stdout.end());
    this.#emit('stderr', decoders.stderr.end());
    const result = await this.#job.wait();
    const { stop, code, signal, wall } = result;
    const timedOut = stop === 'timeout';
    if (timedOut) {
      this.emitStderr(`\nProcess timed out after ${timeout}ms`);
    } else if (stop !== 'cancelled') {
      this.#emit('stderr', stopLine(result));
    }
    const exitCode = timedOut ? OUT_OF_TIME : (code ?? 128 + (signal ?? 0));
    this.exitCode = exitCode;
    const { stdout, stderr } = this;
    return { success: exitCode === 0, exitCode, stdout, stderr, executionTimeMs: wall, killed: signal !== null, timedOut };
  }

  #emit(stream: 'stdout' | 'stderr', text: string): void {
    if (text !== '') {
      stream === 'stdout' ? this.emitStdout(text) : this.emitStderr(text);
    }
  }

  override wait(): Promise<CommandResult> {
    return this.#result;
  }

  async kill(): Promise<boolean> {
    if (this.#job.done) {
      return false;
    }
    await this.#job.stop(0);
    return true;
  }

  sendStdin(data: string): Promise<void> {
    return this.#job.write(data);
  }

  override closeStdin(): Promise<void> {
    return this.#job.closeStdin();
  }
}

/** Starts the commands of a sandbox, each with control of its whole process tree. */
export class ProcessManager extends SandboxProcessManager {
  readonly #options: CommandOptions;
  /** The calls of spawn() that have not returned a handle yet. */
  readonly #starting = new Set<Promise<ProcessHandle>>();
  /** How to cancel the starts, which may wait for a limiter. */
  readonly #cancels = new Set<AbortController>();
  #isEnding = false;

  constructor(env: NodeJS.ProcessEnv, options: CommandOptions) {
    super({ env });
    this.#options = options;
    // Mastra's spawn() waits for the sandbox, and calls the method of this class.
    const { spawn } = this;
    this.spawn = (...call) => {
      const started = spawn(...call);
      const forget = (): void => void this.#starting.delete(started);
      this.#starting.add(started);
      started.then(forget, forget);
      return started;
    };
  }

  override async spawn(command: string, options: SpawnProcessOptions = {}): Promise<ProcessHandle> {
    if (this.#isEnding) {
      throw new SandboxNotReadyError(this.sandbox.id);
    }
    const { timeout = 0 } = options;
    const cancel = new AbortController();
    this.#cancels.add(cancel);
    try {
      const job = start(sh(command), {
        ...this.#options,
        cwd: resolve(this.sandbox.workingDirectory ?? '', options.cwd ?? ''),
        env: { ...this.env, ...options.env },
        timeout: timeout > 0 ? timeout : null,
        stdin: options.stdinMode === 'ignore' ? 'null' : 'stream',
        hold: true,
        // The handle keeps the output.
        keep: [0, 0],
        signal: cancel.signal,
      });
      await job.started();
      if (cancel.signal.aborted) {
        await job.stop(0).catch(() => {});
        throw new SandboxNotReadyError(this.sandbox.id);
      }
      const handle = new JobHandle(job, options);
      this._tracked.set(handle.pid, handle);
      return handle;
    } finally {
      this.#cancels.delete(cancel);
    }
  }

  override async list(): Promise<ProcessInfo[]> {
    return Array.from(this._tracked.values(), ({ pid, command, exitCode }) => ({
      pid,
      running: exitCode === undefined,
      ...(command !== undefined && { command }),
      ...(exitCode !== undefined && { exitCode }),
    }));
  }

  /** Kills all commands with their process trees, and cancels the starts that are under way. */
  async killAll(): Promise<void> {
    this.#isEnding = true;
    this.#cancels.forEach((cancel) => cancel.abort());
    await Promise.allSettled(this.#starting);
    this.#isEnding = false;
    await Promise.all(Array.from(this._tracked.values(), (handle) => handle.kill()));
  }
}

/**
 * Runs the commands of a workspace on this machine, in `workingDirectory`. A command gets PATH and the variables of `env`.
 * `stop()` and `destroy()` end all commands. The sandbox isolates nothing.
 */
export class Sandbox extends MastraSandbox {
  readonly id: string;
  readonly name = 'SpawnfdSandbox';
  readonly provider = 'spawnfd';
  status: MastraSandbox['status'] = 'pending';
  declare readonly processes: ProcessManager;

  /**
   * @param options - The options of Mastra, and an id.
   * @param commands - The options of each command.
   */
  constructor(
    { id = `spawnfd-${randomUUID()}`, ...options }: Omit<MastraSandboxOptions, 'processes'> & { id?: string } = {},
    commands: CommandOptions = {},
  ) {
    super({
      ...options,
      name: 'SpawnfdSandbox',
      workingDirectory: resolve(options.workingDirectory ?? ''),
      processes: new ProcessManager({ PATH: process.env.PATH }, commands),
    });
    this.id = id;
  }

  override async start(): Promise<void> {}

  override async stop(): Promise<void> {
    await this.processes.killAll();
  }

  override async destroy(): Promise<void> {
    await this.processes.killAll();
  }
}
