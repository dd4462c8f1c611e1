// SPDX-License-Identifier: MIT OR Apache-2.0
// Files that get all of the output if memory does not keep it.

import { randomUUID } from 'node:crypto';
import { closeSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SpillOptions } from './request';

export interface Spilled {
  path: string | null;
  persist: boolean;
  bytes: number;
  end: 'whole' | 'capped' | 'failed';
  errno?: string;
}

export class Spill {
  readonly #options: SpillOptions;
  /** The output so far, until memory does not keep it. */
  #before: Buffer[] = [];
  #descriptor: number | undefined;
  #spilled: Spilled | null = null;

  constructor(options: SpillOptions) {
    this.#options = options;
  }

  /** Takes output. `isKept`: whether memory still keeps all of it. */
  take(bytes: Buffer, isKept: boolean): void {
    if (isKept && !this.#spilled) {
      this.#before.push(bytes);
      return;
    }
    if (!this.#spilled) {
      this.#open();
      this.#before.forEach((earlier) => this.#write(earlier));
      this.#before = [];
    }
    this.#write(bytes);
  }

  #open(): void {
    const { dir, persist } = this.#options;
    const path = join(dir ?? tmpdir(), `spawnfd-${randomUUID()}`);
    this.#spilled = { path, persist, bytes: 0, end: 'whole' };
    try {
      this.#descriptor = openSync(path, 'wx', 0o600);
    } catch (error) {
      this.#fail(error);
      this.#spilled.path = null;
    }
  }

  #write(bytes: Buffer): void {
    const spilled = this.#spilled!;
    if (spilled.end !== 'whole') {
      return;
    }
    const part = bytes.subarray(0, this.#options.maxBytes - spilled.bytes);
    try {
      for (let at = 0; at < part.length; ) {
        const written = writeSync(this.#descriptor!, part, at);
        at += written;
        spilled.bytes += written;
      }
    } catch (error) {
      this.#fail(error);
      return;
    }
    if (part.length < bytes.length) {
      spilled.end = 'capped';
    }
  }

  #fail(error: unknown): void {
    Object.assign(this.#spilled!, { end: 'failed', errno: (error as NodeJS.ErrnoException).code ?? 'EIO' });
  }

  finish(): Spilled | null {
    if (this.#descriptor !== undefined) {
      closeSync(this.#descriptor);
    }
    return this.#spilled;
  }
}

const temporary = new Set<string>();
const remove = (path: string): void => {
  temporary.delete(path);
  rmSync(path, { force: true });
};
const dropped = new FinalizationRegistry(remove);

/** Removes the file with the last reference to `owner`, or when this process exits. */
export function removeWith(owner: object, path: string): void {
  if (temporary.size === 0) {
    process.once('exit', () => temporary.forEach(remove));
  }
  temporary.add(path);
  dropped.register(owner, path);
}
