/**
 * The functions of `node:child_process`, whose programs this library starts.
 *
 * @packageDocumentation
 */
import node = require('node:child_process');
import { type DelegationReason } from './child_process_call';
export type * from 'node:child_process';
export type { DelegationReason } from './child_process_call';
export declare const spawn: typeof node.spawn, exec: typeof node.exec, execFile: typeof node.execFile, spawnSync: typeof node.spawnSync, execFileSync: typeof node.execFileSync, execSync: typeof node.execSync;
/** Node's own: a forked Node has an IPC channel. */
export declare const fork: typeof node.fork;
/** Node's own class. */
export declare const ChildProcess: typeof node.ChildProcess;
export type ChildProcess = node.ChildProcess;
/**
 * Lets this library start all programs of `node:child_process` in this thread, from now on. Imported names change too.
 * Calling it again has no effect. `fork()` and functions that another library has replaced stay as they are.
 *
 * @throws {Error} The runtime is not Node.
 */
export declare function install(): void;
/** Undoes `install()`. Programs that run are not affected. */
export declare function uninstall(): void;
/** The starts of this thread since the import. */
export interface Stats {
    /** Programs that this library started. */
    started: number;
    /**
     * Starts that Node made itself: because of an IPC channel, of unusual or wrong arguments, or because the library
     * cannot make this start. `fork()` does not count.
     */
    delegated: Readonly<Record<DelegationReason, number>>;
}
/** Returns how many programs this library has started, and how many Node has. */
export declare function stats(): Stats;
