// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * The shell of a sandbox backend of deepagents.
 *
 * @packageDocumentation
 */

import { run, sh } from '../run';
import type { RunOptions } from '../options';
import { stopLine } from './options';

/** The result of `execute()`, in the form that deepagents defines. */
export interface ExecuteResponse {
  /** Standard output and standard error in order of arrival. A marker line stands for omitted bytes. */
  output: string;
  /** The exit code: 124 after a timeout or a limit, 128 + the signal if a signal ended the command. */
  exitCode: number | null;
  /** Whether bytes are omitted from the output. */
  truncated: boolean;
}

/** The part of deepagents' `SandboxBackendProtocolV2` that runs commands. */
export interface ShellBackend {
  readonly id: string;
  execute(command: string): Promise<ExecuteResponse>;
}

const OUT_OF_TIME = 124;
let lastId = 0;

/**
 * Gives a backend a shell, or replaces the shell that it has: `withShell(new FilesystemBackend({ rootDir }), { cwd: rootDir })`.
 *
 * @param backend - A backend for files. The function adds `id` and `execute` to it.
 * @param options - The options of each command. Without `timeout`, a command has 120 seconds.
 * @returns `backend`.
 */
export function withShell<Backend extends object>(
  backend: Backend,
  options: Omit<RunOptions, 'stderr'> = {},
): Backend & ShellBackend {
  const { timeout = 120_000, ...others } = options;
  const shell: ShellBackend = {
    id: `spawnfd-${(lastId += 1)}`,
    async execute(command) {
      const result = await run(sh(command), { ...others, timeout, stderr: 'merge' });
      const status = result.code ?? (result.signal === null ? null : 128 + result.signal);
      return {
        output: result.text + stopLine(result),
        exitCode: result.stop === 'exited' ? status : OUT_OF_TIME,
        truncated: result.omittedBytes > 0,
      };
    },
  };
  return Object.defineProperties(backend, Object.getOwnPropertyDescriptors(shell)) as Backend & ShellBackend;
}
