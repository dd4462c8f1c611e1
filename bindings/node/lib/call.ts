// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions that run(), runSync() and start() share.

import { isMainThread } from 'node:worker_threads';
import { AbortError, failed, isFailure, succeeded, Unsupported } from './errors';
import { expect, forget, NATIVE, queue, type NativeExit, type NativeFailure, type NativeJob, type Outcome } from './native';
import { RunResult, type Result } from './result';

/** A program and its arguments. Items are strings, or bytes if they are not UTF-8. */
export type Argv = readonly (string | Uint8Array)[];

/** The option of every asynchronous call. */
export interface Abortable {
  /** Ends the program and its process tree when it is aborted; the call then fails with an AbortError. */
  signal?: AbortSignal;
}

/** @internal */
export function checkedArgv(argv: unknown): Argv {
  if (!Array.isArray(argv)) {
    const instead = typeof argv === 'string' ? '; for a shell command line pass sh(command)' : '';
    throw new TypeError(`argv must be an array of the program and its arguments${instead}`);
  }
  return argv as Argv;
}

/** @internal */
export function checkedSignal(signal: unknown): AbortSignal | undefined {
  // The class may be that of a polyfill, or of another realm.
  const { aborted, addEventListener, removeEventListener } = (signal ?? {}) as Partial<AbortSignal>;
  const isSignal =
    typeof aborted === 'boolean' &&
    typeof addEventListener === 'function' &&
    typeof removeEventListener === 'function';
  if (signal !== undefined && !isSignal) {
    throw new TypeError('signal must be an AbortSignal');
  }
  return signal as AbortSignal | undefined;
}

const listeners = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `stop` once a signal is aborted. Returns a function that removes the listener. All calls share one listener of
 * the signal, because Node 20 warns of many. The call that began last is stopped first: one that waits for a limiter
 * must not get the place of one that this signal ends.
 *
 * @internal
 */
export function onAbort(signal: AbortSignal, stop: () => void): () => void {
  let stops = listeners.get(signal);
  if (!stops) {
    const all = new Set<() => void>();
    stops = all;
    listeners.set(signal, all);
    const stopAll = (): void => [...all].reverse().forEach((stop) => stop());
    signal.addEventListener('abort', stopAll, { once: true });
    removals.set(all, () => signal.removeEventListener('abort', stopAll));
  }
  stops.add(stop);
  return () => {
    stops.delete(stop);
    if (stops.size === 0 && listeners.get(signal) === stops) {
      listeners.delete(signal);
      removals.get(stops)?.();
    }
  };
}

/** For each set, the function that removes its listener from the signal. */
const removals = new WeakMap<Set<() => void>, () => void>();

/** @internal */
export function isExit(outcome: Outcome): outcome is NativeExit {
  const isObject = typeof outcome === 'object' && outcome !== null;
  return isObject && 'code' in outcome && !isFailure(outcome) && !('stdout' in outcome);
}

/**
 * Begins a native call that the queue answers, and that an AbortSignal ends. `settled` gets the outcome.
 *
 * @internal
 */
export function begin(
  call: (key: number) => NativeFailure | null,
  options: Abortable,
  settled: (outcome: Outcome, aborted: AbortSignal | undefined) => void,
): void {
  checkPermission();
  const signal = checkedSignal(options.signal);
  if (signal?.aborted) {
    throw new AbortError(signal.reason);
  }
  let removeListener: (() => void) | undefined;
  const key = expect((outcome) => {
    removeListener?.();
    settled(outcome, signal?.aborted ? signal : undefined);
  });
  try {
    succeeded(() => call(key));
  } catch (error) {
    forget(key);
    throw error;
  }
  removeListener = signal && onAbort(signal, () => queue.stop(key));
}

/**
 * Begins a native call whose outcome is a result.
 *
 * @internal
 */
export function result(call: (key: number) => NativeFailure | null, options: Abortable): Promise<Result> {
  return new Promise((resolve, reject) => {
    begin(call, options, (outcome, aborted) => {
      if (typeof outcome !== 'object' || outcome === null || isFailure(outcome) || !('stdout' in outcome)) {
        const isAborted = aborted && isFailure(outcome) && outcome.code === 'ECANCELED';
        reject(isAborted ? new AbortError(aborted.reason) : failed(outcome as NativeFailure));
        return;
      }
      const result = new RunResult(outcome) as Result;
      if (aborted && result.stop === 'cancelled') {
        reject(new AbortError(aborted.reason, result));
      } else {
        resolve(result);
      }
    });
  });
}

/**
 * Begins a native call with another outcome.
 *
 * @internal
 */
export function answer<T extends Outcome>(call: (key: number) => NativeFailure | null): Promise<T> {
  return new Promise((resolve, reject) => {
    begin(call, {}, (outcome) => (isFailure(outcome) ? reject(failed(outcome)) : resolve(outcome as T)));
  });
}

/**
 * Begins a native call whose outcome is a job. Throws a TypeError and Unsupported at once.
 *
 * @internal
 */
export function launch(call: (key: number) => NativeFailure | null, options: Abortable): Promise<NativeJob> {
  let settle!: (job: NativeJob) => void;
  let fail!: (error: unknown) => void;
  const launched = new Promise<NativeJob>((resolve, reject) => ([settle, fail] = [resolve, reject]));
  try {
    begin(call, options, (outcome, aborted) => {
      if (typeof outcome === 'object' && outcome !== null && 'takeEvents' in outcome) {
        settle(outcome);
      } else {
        fail(aborted ? new AbortError(aborted.reason) : failed(outcome as NativeFailure));
      }
    });
  } catch (error) {
    if (error instanceof TypeError || error instanceof Unsupported) {
      throw error;
    }
    fail(error);
  }
  return launched;
}

/**
 * Native code sees the environment of the main thread of Node, and no other.
 *
 * @internal
 */
export const seesEnvironment = isMainThread && process.versions.bun === undefined;

/**
 * Throws if Node's permission model denies child processes. It denies them to child_process, and does not know this library.
 *
 * @internal
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

const OBJECTS = ['env', 'limiter', 'actions', 'sandbox', 'warm'];

/**
 * The options for the native half, with the objects of the native half.
 *
 * @internal
 */
export function nativeObjects(options: object): Record<string, unknown> {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError('options must be an object');
  }
  const { signal: _signal, ...given } = options as Record<string, unknown>;
  for (const name of OBJECTS.filter((name) => name in given)) {
    given[name] = nativeValue(given[name]);
  }
  return given;
}

/**
 * The options for the native half, with the environment.
 *
 * @internal
 */
export function nativeOptions(options: object): Record<string, unknown> {
  const given = nativeObjects(options);
  if (given.env === undefined && !seesEnvironment) {
    given.env = { ...process.env };
  }
  return given;
}
