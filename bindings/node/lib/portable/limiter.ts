// SPDX-License-Identifier: MIT OR Apache-2.0
// Limits the number of programs that run at once.

import type { NativeLimiter } from '../native';
import { wrong } from './values';

export class PortableLimiter implements NativeLimiter {
  #limit = 0;
  #running = 0;
  readonly #waiting = new Set<() => void>();

  constructor(limit: number) {
    this.limit = limit;
  }

  get limit(): number {
    return this.#limit;
  }
  set limit(limit: number) {
    if (!Number.isInteger(limit) || limit < 1 || limit > 0xffffffff) {
      throw wrong(`limit must be a whole number > 0, got ${limit}`);
    }
    this.#limit = limit;
    this.#grant();
  }
  get running(): number {
    return this.#running;
  }
  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * Calls `granted` once there is a place, at once if there is one now. Returns a function that cancels the wait,
   * and returns false if there is no wait.
   */
  acquire(granted: () => void): () => boolean {
    this.#waiting.add(granted);
    this.#grant();
    return () => this.#waiting.delete(granted);
  }

  /** Takes a place if there is one now. */
  tryAcquire(): boolean {
    const isFree = this.#running < this.#limit && this.#waiting.size === 0;
    this.#running += Number(isFree);
    return isFree;
  }

  release(): void {
    this.#running -= 1;
    this.#grant();
  }

  #grant(): void {
    for (const granted of this.#waiting) {
      if (this.#running >= this.#limit) {
        return;
      }
      this.#waiting.delete(granted);
      this.#running += 1;
      granted();
    }
  }
}
