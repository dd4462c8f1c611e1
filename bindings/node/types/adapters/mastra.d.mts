/**
 * A sandbox of a Mastra workspace, and its process manager. An ES module, so that its classes are those of Mastra's.
 *
 * @packageDocumentation
 */
import { MastraSandbox, ProcessHandle, SandboxProcessManager, type MastraSandboxOptions, type ProcessInfo, type SpawnProcessOptions } from '@mastra/core/workspace';
import { type CommandOptions } from './options.js';
/** Starts the commands of a sandbox, each with control of its whole process tree. */
export declare class ProcessManager extends SandboxProcessManager {
    #private;
    constructor(env: NodeJS.ProcessEnv, options: CommandOptions);
    spawn(command: string, options?: SpawnProcessOptions): Promise<ProcessHandle>;
    list(): Promise<ProcessInfo[]>;
    /** Kills all commands with their process trees, and cancels the starts that are under way. */
    killAll(): Promise<void>;
}
/**
 * Runs the commands of a workspace on this machine, in `workingDirectory`. A command gets PATH and the variables of `env`.
 * `stop()` and `destroy()` end all commands. The sandbox isolates nothing.
 */
export declare class Sandbox extends MastraSandbox {
    readonly id: string;
    readonly name = "SpawnfdSandbox";
    readonly provider = "spawnfd";
    status: MastraSandbox['status'];
    readonly processes: ProcessManager;
    /**
     * @param options - The options of Mastra, and an id.
     * @param commands - The options of each command.
     */
    constructor({ id, ...options }?: Omit<MastraSandboxOptions, 'processes'> & {
        id?: string;
    }, commands?: CommandOptions);
    start(): Promise<void>;
    stop(): Promise<void>;
    destroy(): Promise<void>;
}
