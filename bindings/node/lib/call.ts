// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions that run(), runSync() and start() share.

import { isMainThread } from 'node:worker_threads';
import { AbortError, checked, failed } from './errors';
import { expect, forget, NATIVE, queue, type Native, type NativeExit, type NativeFailure, type Outcome } from './native';

/** A program and its arguments. Items are strings, or bytes if they are not UTF-8. */
export type Argv = readonly (string | Uint8Array)[];

/** The option of every asynchronous call. */
export interface Abortable {
  /** Ends the program and its process tree when it is aborted; the call then fails with an AbortError. */
  signal?: AbortSignal;
}

export function checkedArgv(argv: unknown): Argv {
  if (!Array.isArray(argv)) {
    const instead = typeof argv === 'string' ? '; for a shell command line pass sh(command)' : '';
    throw new TypeError(`argv must be an array of the program and its arguments${instead}`);
  }
  return argv as Argv;
}

function checkedSignal(signal: unknown): AbortSignal | undefined {
  // The class may be that of a polyfill, or of another realm.
  if (signal === undefined || (typeof signal === 'object' && signal !== null && 'aborted' in signal)) {
    return signal as AbortSignal | undefined;
  }
  throw new TypeError('signal must be an AbortSignal');
}

export function isFailure(outcome: Outcome): outcome is NativeFailure {
  return outcome !== null && 'stage' in outcome;
}

export function isExit(outcome: Outcome): outcome is NativeExit {
  return outcome !== null && 'code' in outcome && !isFailure(outcome) && !('stdout' in outcome);
}

/**
 * Begins a native call that the queue answers, and that an AbortSignal ends.
 *
 * @internal
 */
export function begin(
  call: Native['run'],
  argv: Argv,
  options: Abortable,
  settled: (outcome: Outcome, aborted: AbortSignal | undefined) => void,
): void {
  checkPermission();
  const signal = checkedSignal(options.signal);
  if (signal?.aborted) {
    throw new AbortError(signal.reason);
  }
  const stop = (): void => queue.stop(key);
  const key = expect((outcome) => {
    signal?.removeEventListener('abort', stop);
    settled(outcome, signal?.aborted ? signal : undefined);
  });
  let failure: NativeFailure | null;
  try {
    failure = checked(() => call(queue, key, checkedArgv(argv), nativeOptions(options)));
  } catch (error) {
    forget(key);
    throw error;
  }
  if (failure) {
    forget(key);
    throw failed(failure);
  }
  signal?.addEventListener('abort', stop, { once: true });
}

// Native code sees the environment of the main thread of Node, and no other.
export const seesEnvironment = isMainThread && process.versions.bun === undefined;

/**
 * Throws if Node's permission model denies child processes. It denies them to child_process, and does not know this library.
 */
export function checkPermission(): void {
  const { permission } = process as { permission?: { has(scope: string): boolean } };
  if (permission && !permission.has('child')) {
    const error = new Error('Access to this API has been restricted. Use --allow-child-process to manage permissions.');
    throw Object.assign(error, { code: 'ERR_ACCESS_DENIED', permission: 'ChildProcess' });
  }
}

function nativeValue(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(nativeValue);
  }
  return typeof value === 'object' && value !== null && NATIVE in value ? value[NATIVE] : value;
}

/** The options for the native half. */
export function nativeOptions(options: object): Record<string, unknown> {
  const { signal: _signal, ...given } = options as Record<string, unknown>;
  for (const name of ['env', 'limiter', 'actions']) {
    if (name in given) {
      given[name] = nativeValue(given[name]);
    }
  }
  if (given.env === undefined && !seesEnvironment) {
    given.env = { ...process.env };
  }
  return given;
}
