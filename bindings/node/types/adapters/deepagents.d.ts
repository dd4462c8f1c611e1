/**
 * The shell of a sandbox backend of deepagents.
 *
 * @packageDocumentation
 */
import type { RunOptions } from '../options';
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
/**
 * Gives a backend a shell, or replaces the shell that it has: `withShell(new FilesystemBackend({ rootDir }), { cwd: rootDir })`.
 *
 * @param backend - A backend for files. The function adds `id` and `execute` to it.
 * @param options - The options of each command. Without `timeout`, a command has 120 seconds.
 * @returns `backend`.
 */
export declare function withShell<Backend extends object>(backend: Backend, options?: Omit<RunOptions, 'stderr'>): Backend & ShellBackend;
