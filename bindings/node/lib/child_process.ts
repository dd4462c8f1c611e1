// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * The functions of `node:child_process`, whose programs this library starts.
 *
 * @packageDocumentation
 */

import node = require('node:child_process');
import { syncBuiltinESMExports } from 'node:module';
import { promisify } from 'node:util';
import * as sync from './child_process_sync';
import { counts, isSupported, replace, startingBy, type DelegationReason } from './process_handle';

export type * from 'node:child_process';
export type { DelegationReason } from './process_handle';

type Call = (...args: never[]) => unknown;

/** The same function, whose programs this library starts. */
function replaced<F extends Call>(call: F): F {
  const own = (...args: never[]): unknown => startingBy(() => call(...args));
  Object.defineProperty(own, 'name', { value: call.name });
  const promised = (call as { [promisify.custom]?: Call })[promisify.custom];
  if (promised) {
    Object.defineProperty(own, promisify.custom, { value: replaced(promised) });
  }
  return own as F;
}

export const spawn = replaced(node.spawn);
export const exec = replaced(node.exec);
export const execFile = replaced(node.execFile);
export const spawnSync = sync.spawnSync;
export const execFileSync = sync.execFileSync;
export const execSync = sync.execSync;
/** Node's own: a forked Node has an IPC channel. */
export const fork = node.fork;
/** Node's own class. */
export const ChildProcess = node.ChildProcess;
export type ChildProcess = node.ChildProcess;

const SYNC = ['spawnSync', 'execFileSync', 'execSync'] as const;
const builtin = node as { -readonly [K in keyof typeof node]: (typeof node)[K] };
const originals = Object.fromEntries(SYNC.map((name) => [name, node[name]]));

/**
 * Lets this library start all programs of `node:child_process` in this thread, from now on. Imported names change too.
 * Calling it again has no effect.
 *
 * @throws {Error} The runtime is not Node.
 */
export function install(): void {
  if (!isSupported) {
    throw new Error('install() needs Node: this runtime has its own child_process');
  }
  replace(true);
  Object.assign(builtin, Object.fromEntries(SYNC.map((name) => [name, sync[name]])));
  syncBuiltinESMExports();
}

/** Undoes `install()`. Programs that run are not affected. */
export function uninstall(): void {
  replace(false);
  for (const name of SYNC) {
    // Another library may have replaced the function since.
    if (builtin[name] === sync[name]) {
      Object.assign(builtin, { [name]: originals[name] });
    }
  }
  syncBuiltinESMExports();
}

/** The starts of this thread since the import. */
export interface Stats {
  /** Programs that this library started. */
  started: number;
  /**
   * Starts that Node made itself: because of an IPC channel, of unusual or wrong arguments, or because the library
   * cannot make this start.
   */
  delegated: Readonly<Record<DelegationReason, number>>;
}

/** Returns how many programs this library has started, and how many Node has. */
export function stats(): Stats {
  return { started: counts.started, delegated: { ...counts.delegated } };
}
