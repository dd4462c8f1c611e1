// SPDX-License-Identifier: MIT OR Apache-2.0

import type { NativeFailure } from './native';
import type { Result } from './result';

/** A program could not be found, started, supervised or waited for. A failed start leaves no process. */
export class SpawnError extends Error {
  override readonly name = 'SpawnError';
  /** Stage, system call and errno, in the notation of strace. */
  readonly detail: string;
  /** The name of the errno, such as `ENOENT`. */
  readonly code: string;
  /** The negative errno, as in the errors of Node. */
  readonly errno: number;
  /** The system call that failed, with its arguments. */
  readonly syscall: string;
  /** The step that failed: `template`, `exec`, `cwd`, `action`, … */
  readonly stage: string;
  /** The index of the failed action, or `undefined`. */
  readonly action: number | undefined;

  /** @internal */
  constructor(failure: NativeFailure) {
    const subject = failure.action === undefined ? '' : `actions[${failure.action}]: `;
    super(`${subject}${failure.message}${failure.detail ? ` [${failure.detail}]` : ''}`);
    this.detail = failure.detail;
    this.code = failure.code;
    this.errno = failure.errno;
    this.syscall = failure.syscall;
    this.stage = failure.stage;
    this.action = failure.action;
  }
}

/** The executable of a template was replaced or has changed. `code` is `ESTALE`. */
export class StaleTemplate extends SpawnError {}

/** A run was not ok; `Result.check()` throws this. */
export class ExitError extends Error {
  override readonly name = 'ExitError';
  readonly result: Result;

  /** @internal */
  constructor(message: string, result: Result) {
    super(message);
    this.result = result;
  }
}

/** The `signal` of a call was aborted. `result` has the output until then, if the program had started. */
export class AbortError extends Error {
  override readonly name = 'AbortError';
  readonly code = 'ABORT_ERR';
  readonly result: Result | undefined;

  /** @internal */
  constructor(reason: unknown, result?: Result) {
    super('the operation was aborted', { cause: reason });
    this.result = result;
  }
}

/** This system cannot do what the call asks for: without Linux, `child_process` starts the programs. */
export class Unsupported extends Error {
  override readonly name = 'Unsupported';
  readonly code = 'ERR_UNSUPPORTED';

  /** @internal */
  constructor(feature: string) {
    super(`${feature} is not supported on ${process.platform}`);
  }
}

function invalid(message: string): TypeError {
  return Object.assign(new TypeError(message), { code: 'ERR_INVALID_ARG_VALUE' });
}

/**
 * The error of a start that failed. If the library refused an argument, it is a TypeError.
 *
 * @internal
 */
export function failed(failure: NativeFailure): SpawnError | TypeError {
  if (failure.stage === 'validate' && failure.code === 'EINVAL') {
    return invalid(failure.message);
  }
  return failure.code === 'ESTALE' ? new StaleTemplate(failure) : new SpawnError(failure);
}

/** @internal */
export function isFailure(outcome: unknown): outcome is NativeFailure {
  return typeof outcome === 'object' && outcome !== null && 'stage' in outcome;
}

/**
 * Calls the native half, which returns a failure in place of an object.
 *
 * @internal
 */
export function succeeded<T extends object | null>(call: () => T | NativeFailure): T {
  const outcome = checked(call);
  if (isFailure(outcome)) {
    throw failed(outcome);
  }
  return outcome;
}

/**
 * Calls the native half. Its exception for a wrong argument becomes a TypeError.
 *
 * @internal
 */
export function checked<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    const isInvalid = error instanceof Error && (error as NodeJS.ErrnoException).code === 'InvalidArg';
    throw isInvalid ? invalid(error.message) : error;
  }
}
