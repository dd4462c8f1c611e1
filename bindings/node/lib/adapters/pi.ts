// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * The operations of the bash tool of pi, a coding agent.
 *
 * @packageDocumentation
 */

import { AbortError } from '../errors';
import { start } from '../job';
import { stopLine, type CommandOptions } from './options';

/** Options of each command. Output that `onData` gets is not bounded, except by `outputLimit`. */
export interface BashOptions extends CommandOptions {
  /**
   * The shell, which gets `-c` and the command.
   * @defaultValue `bash`
   */
  shell?: string;
}

/** The interface `BashOperations` of pi. */
export interface BashOperations {
  exec(
    command: string,
    cwd: string,
    options: {
      onData: (data: Buffer) => void;
      signal?: AbortSignal | undefined;
      timeout?: number | undefined;
      env?: NodeJS.ProcessEnv | undefined;
    },
  ): Promise<{ exitCode: number | null }>;
}

/**
 * Returns operations that start each command with this library: a timeout and an abort end its whole process tree, and a
 * background process does not block the result.
 *
 * A command that a signal ends has the exit code 128 + the signal. The errors of a timeout and of an abort have the
 * messages that pi expects.
 */
export function bashOperations({ shell = 'bash', ...options }: BashOptions = {}): BashOperations {
  return {
    async exec(command, cwd, { onData, signal, timeout = 0, env }) {
      const job = start([shell, '-c', command], {
        ...options,
        cwd,
        timeout: timeout > 0 ? timeout * 1000 : null,
        // pi keeps the output itself.
        keep: [0, 0],
        ...(env && { env }),
        ...(signal && { signal }),
      });
      try {
        for await (const { data } of job.events()) {
          if (data) {
            onData(data);
          }
        }
        const result = await job.wait();
        if (result.stop === 'timeout') {
          throw new Error(`timeout:${timeout}`);
        }
        if (result.stop !== 'exited') {
          onData(Buffer.from(stopLine(result)));
        }
        return { exitCode: result.code ?? (result.signal === null ? null : 128 + result.signal) };
      } catch (error) {
        throw error instanceof AbortError ? new Error('aborted', { cause: error }) : error;
      } finally {
        await job[Symbol.asyncDispose]();
      }
    },
  };
}
