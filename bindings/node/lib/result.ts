// SPDX-License-Identifier: MIT OR Apache-2.0

import { ExitError } from './errors';
import type { NativeResult } from './native';
import type { Stop } from './options';

/** The number of bytes of a stream that were not kept, and where they begin. */
export interface Omitted {
  bytes: number;
  offset: number;
}

/** A piece of a combined run's output. */
export interface Piece {
  stream: 'stdout' | 'stderr';
  text: string;
  /** The bytes that are omitted here, if the piece is the marker line. */
  omitted?: number;
}

/** A process that outlived the program. */
export interface Leftover {
  pid: number;
  name: string;
  fate: string;
}

interface Details {
  started: string;
  wall_seconds: number;
  cpu_seconds: number;
  max_rss_bytes: number;
  limit?: string;
  omitted_bytes: number;
  omitted: { stdout: Omitted; stderr: Omitted };
  seen_bytes: number;
  spill_path: string | null;
  spilled?: { bytes: number; end: 'whole' | 'capped' | 'failed'; errno?: string };
  input_refused: boolean;
  tree: string;
  tree_complete: boolean;
  limits: Record<string, string>;
  leftovers: Leftover[];
  leftovers_unknown: boolean;
  drain: string;
  status_lost: boolean;
  cwd?: string;
  shell_exited?: boolean;
  shell_code?: number;
}

/**
 * The outcome of a run: exit status, captured output and resource usage.
 *
 * A nonzero exit code, a timeout and truncated output are results, not exceptions. `check()` throws for a result that is
 * not ok. Times are milliseconds.
 */
export class RunResult<S extends Stop = Stop> {
  readonly #native: NativeResult;
  #details: Details | undefined;
  #stdout: Buffer | undefined;
  #stderr: Buffer | undefined;
  #output: Piece[] | null | undefined;

  /** Why the run ended. `exited`: the program ended by itself. */
  readonly stop: S;
  /** The exit code; null if a signal ended the program, or its status is lost. */
  readonly code: number | null;
  /** The number of the signal that ended the program; null if it exited, or its status is lost. */
  readonly signal: number | null;

  /** @internal */
  constructor(native: NativeResult) {
    this.#native = native;
    this.stop = native.stop as S;
    this.code = native.code;
    this.signal = native.signal;
  }

  /** Where a `Remote` has run the program: the host name and the transport. Null for a program of this machine. */
  get where(): string | null {
    return this.#native.where;
  }

  get #all(): Details {
    return (this.#details ??= JSON.parse(this.#native.details()) as Details);
  }

  /** Whether the program ended by itself with exit code 0. */
  get ok(): boolean {
    return this.stop === 'exited' && this.code === 0;
  }
  /** Captured standard output: head, marker line if bytes are omitted, tail. */
  get stdout(): Buffer {
    return (this.#stdout ??= this.#native.stdout);
  }
  /** Captured standard error, as `stdout`. Empty if merged into standard output. */
  get stderr(): Buffer {
    return (this.#stderr ??= this.#native.stderr);
  }
  /** `stdout` decoded as UTF-8; invalid bytes become U+FFFD. A character that is split by omitted output is dropped. */
  get text(): string {
    return this.#native.text(false);
  }
  /** `stderr` decoded as UTF-8. */
  get stderrText(): string {
    return this.#native.text(true);
  }
  /** The kept bytes of standard output before omitted bytes; all bytes if none is omitted. */
  get stdoutHead(): Buffer {
    return this.#native.part(false, false);
  }
  /** The kept bytes of standard output after omitted bytes; empty if none is omitted. */
  get stdoutTail(): Buffer {
    return this.#native.part(false, true);
  }
  /** The kept bytes of standard error before omitted bytes. */
  get stderrHead(): Buffer {
    return this.#native.part(true, false);
  }
  /** The kept bytes of standard error after omitted bytes. */
  get stderrTail(): Buffer {
    return this.#native.part(true, true);
  }
  /** The output of both streams in order of arrival; null without the option `combined`. */
  get output(): Piece[] | null {
    return (this.#output ??= this.#native.output);
  }
  /** The limit that was reached, and its enforcer, such as `memory (cgroup)`. */
  get limit(): S extends 'limit' ? string : null {
    return (this.#all.limit ?? null) as S extends 'limit' ? string : null;
  }
  /** The enforcer of each of the run's limits: `cgroup`, `rlimit`, `watch` or `unenforced`. */
  get limits(): Record<string, string> {
    return this.#all.limits;
  }
  /** How the program was started: `clone`, `reserve`, `fork`, `kernel`, or `cold: ` and why not warm. */
  get started(): string {
    return this.#all.started;
  }
  /** The time from start to end, in milliseconds. */
  get wall(): number {
    return this.#all.wall_seconds * 1000;
  }
  /** The CPU time of the program and the children that it has waited for, in milliseconds. */
  get cpu(): number {
    return this.#all.cpu_seconds * 1000;
  }
  /** The peak memory of the program in bytes. */
  get maxRss(): number {
    return this.#all.max_rss_bytes;
  }
  /** How many bytes of each stream were not kept, and where they begin. */
  get omitted(): { stdout: Omitted; stderr: Omitted } {
    return this.#all.omitted;
  }
  /** How many bytes of both streams together were not kept. */
  get omittedBytes(): number {
    return this.#all.omitted_bytes;
  }
  /** How many bytes the program wrote to both streams. */
  get seenBytes(): number {
    return this.#all.seen_bytes;
  }
  /** The file with all of the output, or null. It is removed with the last reference to the result, unless persistent. */
  get spillPath(): string | null {
    return this.#all.spill_path;
  }
  /** The length of the spill file, and whether it is complete. */
  get spilled(): { bytes: number; end: 'whole' | 'capped' | 'failed'; errno?: string } | null {
    return this.#all.spilled ?? null;
  }
  /** Whether the program ended, or closed its standard input, before it had read all of it. */
  get inputRefused(): boolean {
    return this.#all.input_refused;
  }
  /** The mechanism that controlled the process tree: `cgroup`, `pidns`, `subreaper`, `guard` or `group`. */
  get tree(): string {
    return this.#all.tree;
  }
  /** Whether no process of the tree can have escaped. */
  get treeComplete(): boolean {
    return this.#all.tree_complete;
  }
  /** The processes that outlived the program, and what was done with them. */
  get leftovers(): Leftover[] {
    return this.#all.leftovers;
  }
  /** Whether there may have been more leftovers than are listed. */
  get leftoversUnknown(): boolean {
    return this.#all.leftovers_unknown;
  }
  /** How the reading of output ended. */
  get drain(): string {
    return this.#all.drain;
  }
  /** Whether the exit status is unknown, because other code has taken it. The result is then not ok. */
  get statusLost(): boolean {
    return this.#all.status_lost;
  }

  /** False; a `Job` has true while it runs. This tells what a session's run() has returned. */
  get running(): false {
    return false;
  }
  /** The working directory of a session's shell after the command; null for other runs, and if the shell has exited. */
  get cwd(): string | null {
    return this.#all.cwd ?? null;
  }
  /** Whether a session's shell exited during the command. The status of the command is then lost. */
  get shellExited(): boolean {
    return this.#all.shell_exited ?? false;
  }
  /** The exit code of a session's shell that has exited, or the negative number of the signal that ended it. */
  get shellCode(): number | null {
    return this.#all.shell_code ?? null;
  }

  /**
   * Returns this result if it is ok.
   *
   * @throws {ExitError} The run was not ok. The message has the last lines of standard error.
   */
  check(): this {
    const message = this.#native.failure();
    if (message !== null) {
      throw new ExitError(message, this as unknown as Result);
    }
    return this;
  }

  /** The fields of `spawnfd run --json`, for JSON.stringify(). */
  toJSON(): Record<string, unknown> {
    return JSON.parse(this.#native.fields()) as Record<string, unknown>;
  }
}

/** The outcome of a run. A comparison of `stop` narrows the type. */
export type Result = { [S in Stop]: RunResult<S> }[Stop];
