/**
 * The operations of the bash tool of pi, a coding agent.
 *
 * @packageDocumentation
 */
import { type CommandOptions } from './options';
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
    exec(command: string, cwd: string, options: {
        onData: (data: Buffer) => void;
        signal?: AbortSignal | undefined;
        timeout?: number | undefined;
        env?: NodeJS.ProcessEnv | undefined;
    }): Promise<{
        exitCode: number | null;
    }>;
}
/**
 * Returns operations that start each command with this library: a timeout and an abort end its whole process tree, and a
 * background process does not block the result.
 *
 * A command that a signal ends has the exit code 128 + the signal. The errors of a timeout and of an abort have the
 * messages that pi expects.
 */
export declare function bashOperations({ shell, ...options }?: BashOptions): BashOperations;
