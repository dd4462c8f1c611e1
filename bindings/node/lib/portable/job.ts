// SPDX-License-Identifier: MIT OR Apache-2.0
// Jobs: programs whose output the caller can read while they run.

import { Unsupported } from '../errors';
import { Awaited, type NativeEvent, type NativeFailure, type NativeJob } from '../native';
import { failure } from './failure';
import { Ring } from './kept';
import { Lines } from './lines';
import type { Program, StreamName } from './program';
import type { PortableQueue } from './queue';
import type { Request } from './request';
import { PortableResult } from './result';
import { data, duration, wrong } from './values';

/** The number of bytes of events that may always be pending. */
const SMALLEST_WINDOW = 1 << 16;

interface Pending {
  stream: StreamName;
  bytes: Buffer;
}

export class PortableJob implements NativeJob {
  readonly #program: Program;
  readonly #grace: number;
  readonly #window: number;
  readonly #hasInput: boolean;
  /** How to answer the callers that wait. No state changes between a caller's check of it and its wait. */
  readonly #waits = new Map<Awaited, () => void>();
  readonly #latest: Ring;
  #seen = 0;
  #result: PortableResult | null = null;
  /** Output that has not become events yet. */
  readonly #pending: Pending[] = [];
  #pendingBytes = 0;
  readonly #ready: NativeEvent[] = [];
  #lost = 0;
  #lines: Record<StreamName, Lines> | undefined;
  #holds = true;
  #isPaused = false;
  #isInputClosed = false;

  constructor(program: Program, request: Request) {
    this.#program = program;
    this.#grace = request.grace;
    this.#window = Math.max(request.window, SMALLEST_WINDOW);
    this.#latest = new Ring(request.window);
    this.#hasInput = request.stdin === 'stream';
    for (const event of ['drain', 'close', 'error']) {
      program.stdin?.on(event, () => this.#answer(Awaited.Writable));
    }
    for (const event of ['close', 'error']) {
      program.stdin?.on(event, () => (this.#isInputClosed = true));
    }
  }

  get pid(): number {
    return this.#program.pid;
  }

  /** Takes output of the program. */
  take(stream: StreamName, bytes: Buffer): void {
    this.#seen += bytes.length;
    this.#latest.push(bytes);
    this.#pending.push({ stream, bytes });
    this.#pendingBytes += bytes.length;
    if (this.#pendingBytes > this.#window) {
      this.#limitPending();
    }
    this.#answer(Awaited.Event);
  }

  #limitPending(): void {
    if (this.#holds) {
      this.#isPaused = true;
      this.#program.pause();
      return;
    }
    while (this.#pendingBytes > this.#window) {
      const { bytes } = this.#pending.shift()!;
      this.#pendingBytes -= bytes.length;
      this.#lost += bytes.length;
    }
  }

  end(result: PortableResult): void {
    this.#result = result;
    [Awaited.Result, Awaited.Event, Awaited.Writable].forEach((awaited) => this.#answer(awaited));
  }

  wait(queue: PortableQueue, key: number, awaited: Awaited): void {
    this.#waits.set(awaited, () => queue.push(key, null));
  }

  /** Answers the caller that waits for a state, if there is one. */
  #answer(awaited: Awaited): void {
    const answer = this.#waits.get(awaited);
    this.#waits.delete(awaited);
    answer?.();
  }

  result(): PortableResult | null {
    return this.#result;
  }

  takeEvents(max: number): NativeEvent[] {
    while (this.#ready.length < max && this.#advance()) {}
    const taken = this.#ready.splice(0, max);
    if (this.#isPaused && this.#pendingBytes <= this.#window / 2) {
      this.#resume();
    }
    return taken;
  }

  /** Makes events of the next output. Returns false if there is none, or after the last event. */
  #advance(): boolean {
    if (this.#lost > 0) {
      this.#finishLines();
      this.#ready.push({ partial: false, lost: this.#lost });
      this.#lost = 0;
      return true;
    }
    const next = this.#pending.shift();
    if (next) {
      this.#pendingBytes -= next.bytes.length;
      if (this.#lines) {
        this.#lines[next.stream].take(next.bytes);
      } else {
        this.#ready.push({ stream: next.stream, data: next.bytes, partial: false, lost: 0 });
      }
      return true;
    }
    if (this.#result) {
      this.#finishLines();
      this.#ready.push({ partial: false, lost: 0 });
    }
    return false;
  }

  #resume(): void {
    this.#isPaused = false;
    this.#program.resume();
  }

  setLines(max?: number): void {
    if (this.#lines?.stdout.max === max) {
      return;
    }
    this.#finishLines();
    const lines = (stream: StreamName): Lines =>
      new Lines(max!, (data, partial) => this.#ready.push({ stream, data, partial, lost: 0 }));
    this.#lines = max === undefined ? undefined : { stdout: lines('stdout'), stderr: lines('stderr') };
  }

  #finishLines(): void {
    this.#lines?.stdout.finish();
    this.#lines?.stderr.finish();
  }

  hold(hold: boolean): void {
    this.#holds = hold;
    if (!hold && this.#isPaused) {
      this.#resume();
    }
  }

  read(since: number): { data: Buffer; next: number; lost: number } {
    const begin = this.#seen - this.#latest.length;
    return {
      data: this.#latest.bytes().subarray(Math.max(since - begin, 0)),
      next: Math.max(this.#seen, since),
      lost: Math.max(begin - since, 0),
    };
  }

  write(input: unknown): number | NativeFailure {
    const bytes = data(input, 'data');
    const { stdin } = this.#program;
    if (!this.#hasInput || !stdin) {
      return failure('EBADF', 'stdin', 'write', "the program's input is not a stream");
    }
    if (this.#isInputClosed || this.#result) {
      return failure('EPIPE', 'stdin', 'write', 'the program reads no more input');
    }
    if (stdin.writableNeedDrain) {
      return 0;
    }
    stdin.write(bytes);
    return bytes.length;
  }

  closeStdin(): void {
    if (this.#hasInput) {
      this.#isInputClosed = true;
      this.#program.stdin?.end();
    }
  }

  stop(grace?: number): void {
    this.#program.stop('cancelled', grace == null ? this.#grace : duration(grace, 'grace'));
  }

  signal(signal: number, tree: boolean): void {
    if (this.#result) {
      return;
    }
    try {
      tree ? this.#program.signalTree(signal) : this.#program.signal(signal);
    } catch {
      throw wrong(`there is no signal ${signal}`);
    }
  }

  resize(): void {
    throw new Unsupported('a terminal');
  }
}
