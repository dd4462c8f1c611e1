// SPDX-License-Identifier: MIT OR Apache-2.0

import type { NativeQueue, Outcome } from '../native';

/** The outcomes of calls, in batches, and how to end the calls that are active. */
export class PortableQueue implements NativeQueue {
  #outcomes: [number, Outcome][] = [];
  readonly #stops = new Map<number, () => void>();
  readonly #notify: () => void;

  constructor(notify: () => void) {
    this.#notify = notify;
  }

  /** Registers how to end the call under `key`. */
  begin(key: number, stop: () => void): void {
    this.#stops.set(key, stop);
  }

  push(key: number, outcome: Outcome): void {
    this.#stops.delete(key);
    this.#outcomes.push([key, outcome]);
    if (this.#outcomes.length === 1) {
      queueMicrotask(this.#notify);
    }
  }

  take(): [number, Outcome][] {
    return this.#outcomes.splice(0);
  }

  stop(key: number): void {
    this.#stops.get(key)?.();
  }
}
