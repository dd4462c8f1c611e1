// SPDX-License-Identifier: MIT OR Apache-2.0

import { checked } from './errors';
import { NATIVE, native, type NativeLimiter } from './native';

/** Bounds how many programs run at once. Pass it to calls as the option `limiter`; they wait for a place in order. */
export class Limiter {
  /** For this package. */
  readonly [NATIVE]: NativeLimiter;

  /**
   * @param limit - How many programs may run at once.
   * @throws {TypeError} `limit` is not a whole number above 0.
   */
  constructor(limit: number) {
    this[NATIVE] = checked(() => new native.NativeLimiter(limit));
  }

  /** How many programs may run at once. If it is lowered, running programs go on. */
  get limit(): number {
    return this[NATIVE].limit;
  }
  set limit(limit: number) {
    checked(() => (this[NATIVE].limit = limit));
  }
  /** How many programs run. */
  get running(): number {
    return this[NATIVE].running;
  }
  /** How many calls wait for a place. */
  get waiting(): number {
    return this[NATIVE].waiting;
  }
}
