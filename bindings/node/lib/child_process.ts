// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * The functions of `node:child_process`, whose programs this library starts.
 *
 * @packageDocumentation
 */

import node = require('node:child_process');
import { syncBuiltinESMExports } from 'node:module';
import * as async from './child_process_async';
import { counts, type DelegationReason } from './child_process_call';
import * as sync from './child_process_sync';

export type * from 'node:child_process';
export type { DelegationReason } from './child_process_call';

/** Other runtimes have a ChildProcess of another kind, and their own functions stay. */
const isNode = process.versions.bun === undefined;
const ORIGINAL = {
  spawn: node.spawn,
  exec: node.exec,
  execFile: node.execFile,
  spawnSync: node.spawnSync,
  execFileSync: node.execFileSync,
  execSync: node.execSync,
};
type Functions = typeof ORIGINAL;
const REPLACED: Functions = isNode ? { ...async, ...sync } : ORIGINAL;

export const { spawn, exec, execFile, spawnSync, execFileSync, execSync } = REPLACED;
/** Node's own: a forked Node has an IPC channel. */
export const fork = node.fork;
/** Node's own class. */
export const ChildProcess = node.ChildProcess;
export type ChildProcess = node.ChildProcess;

/** Changes the functions of `node:child_process`, unless another library has changed them since. */
function replace(from: Functions, to: Functions): void {
  const builtin = node as Record<keyof Functions, unknown>;
  for (const name of Object.keys(ORIGINAL) as (keyof Functions)[]) {
    if (builtin[name] === from[name]) {
      builtin[name] = to[name];
    }
  }
  syncBuiltinESMExports();
}

/**
 * Lets this library start all programs of `node:child_process` in this thread, from now on. Imported names change too.
 * Calling it again has no effect. `fork()` and functions that another library has replaced stay as they are.
 *
 * @throws {Error} The runtime is not Node.
 */
export function install(): void {
  if (!isNode) {
    throw new Error('install() needs Node: this runtime has its own child_process');
  }
  replace(ORIGINAL, REPLACED);
}

/** Undoes `install()`. Programs that run are not affected. */
export function uninstall(): void {
  replace(REPLACED, ORIGINAL);
}

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
export function stats(): Stats {
  return { started: counts.started, delegated: { ...counts.delegated } };
}
