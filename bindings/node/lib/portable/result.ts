// SPDX-License-Identifier: MIT OR Apache-2.0
// The result of a run.

import type { NativeResult } from '../native';
import { signalName } from '../signals';
import { bytesOf, textsOf, type Captured } from './kept';
import type { Ended } from './program';
import { removeWith } from './spill';

/** The limits of the output in the text of an ExitError. */
const SHOWN_LINES = 10;
const SHOWN_BYTES = 2048;

export class PortableResult implements NativeResult {
  readonly #ended: Ended;

  constructor(ended: Ended) {
    this.#ended = ended;
    if (ended.spilled?.path && !ended.spilled.persist) {
      removeWith(this, ended.spilled.path);
    }
  }

  get code(): number | null {
    return this.#ended.fields.code;
  }
  get signal(): number | null {
    return this.#ended.fields.signal;
  }
  get stop(): string {
    return this.#ended.fields.stop;
  }
  /** A connection to another machine needs the native half. */
  get where(): null {
    return null;
  }
  get stdout(): Buffer {
    return bytesOf(this.#captured(false));
  }
  get stderr(): Buffer {
    return bytesOf(this.#captured(true));
  }
  /** The option `combined` needs the native half. */
  get output(): null {
    return null;
  }

  #captured(isStderr: boolean): Captured {
    return this.#ended.captured[isStderr ? 1 : 0];
  }

  text(isStderr: boolean): string {
    return textsOf(this.#captured(isStderr)).join('');
  }
  part(isStderr: boolean, isTail: boolean): Buffer {
    const { head, tail } = this.#captured(isStderr);
    return Buffer.from(isTail ? tail : head);
  }

  fields(): string {
    return JSON.stringify({ ...this.#details, stdout: this.text(false), stderr: this.text(true) });
  }

  details(): string {
    return JSON.stringify(this.#details);
  }

  get #details(): Record<string, unknown> {
    const { fields, captured, spilled } = this.#ended;
    const [stdout, stderr] = captured.map(({ head, omitted }) => ({
      bytes: omitted,
      offset: omitted > 0 ? head.length : 0,
    }));
    return {
      ok: fields.stop === 'exited' && fields.code === 0,
      ...fields,
      started: 'child_process',
      // child_process does not report the resources of one child.
      cpu_seconds: 0,
      max_rss_bytes: 0,
      omitted_bytes: stdout!.bytes + stderr!.bytes,
      omitted: { stdout, stderr },
      spill_path: spilled?.path ?? null,
      ...(spilled && {
        spilled: { bytes: spilled.bytes, end: spilled.end, ...(spilled.errno && { errno: spilled.errno }) },
      }),
      tree: 'group',
      tree_complete: false,
      limits: {},
      status_lost: false,
    };
  }

  failure(): string | null {
    const { program, fields } = this.#ended;
    if (fields.stop === 'exited' && fields.code === 0) {
      return null;
    }
    const how = [this.#reason(), this.#end()].filter((part) => part !== null);
    const lines = lastLines(this.text(true));
    const message = `${program} ${how.join(' and ')}`;
    if (lines.length > 1) {
      return `${message}; the last lines of its standard error:\n  ${lines.join('\n  ')}`;
    }
    return lines.length === 1 ? `${message}: ${lines[0]}` : message;
  }

  #reason(): string | null {
    const { bound, fields } = this.#ended;
    switch (fields.stop) {
      case 'timeout':
        return `timed out after ${bound! / 1000} s`;
      case 'idle_timeout':
        return `wrote no output for ${bound! / 1000} s`;
      case 'output_limit':
        return `exceeded its output limit of ${bound} bytes`;
      case 'cancelled':
        return 'was cancelled';
      default:
        return null;
    }
  }

  #end(): string {
    const { code, signal, leftovers } = this.#ended.fields;
    if (code !== null) {
      return `exited with status ${code}`;
    }
    return signal === null
      ? `still runs as process ${leftovers[0]?.pid}, because SIGKILL had no effect`
      : `was killed by ${signalName(signal) || `signal ${signal}`}`;
  }
}

/** The last lines of a text, without blank lines at the end. */
function lastLines(text: string): string[] {
  const end = text.trimEnd().slice(-SHOWN_BYTES);
  return end === '' ? [] : end.split('\n').slice(-SHOWN_LINES).map((line) => line.replace(/\r+$/, '').split('\r').at(-1)!);
}
