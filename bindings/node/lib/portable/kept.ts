// SPDX-License-Identifier: MIT OR Apache-2.0
// The first and last bytes of output that is too large to keep.

import { StringDecoder } from 'node:string_decoder';

/** The last bytes of what was pushed, up to a maximum. */
export class Ring {
  #chunks: Buffer[] = [];
  length = 0;

  constructor(readonly max: number) {}

  push(bytes: Buffer): void {
    this.#chunks.push(bytes);
    this.length += bytes.length;
    while (this.length > this.max) {
      const surplus = this.length - this.max;
      const first = this.#chunks[0]!;
      if (first.length <= surplus) {
        this.#chunks.shift();
        this.length -= first.length;
      } else {
        this.#chunks[0] = first.subarray(surplus);
        this.length -= surplus;
      }
    }
  }

  bytes(): Buffer {
    return Buffer.concat(this.#chunks);
  }
}

/** The kept part of one stream: head, marker line if bytes are omitted, and tail. */
export interface Captured {
  head: Uint8Array;
  marker: string;
  tail: Uint8Array;
  omitted: number;
}

/** The head and the tail of one stream. */
export class KeptOutput {
  readonly #head: Buffer[] = [];
  #headLength = 0;
  /** The tail and the byte before it, which shows whether the tail begins a line. */
  readonly #tail: Ring;
  readonly #max: { head: number; tail: number };
  seen = 0;

  constructor([head, tail]: readonly [head: number, tail: number]) {
    this.#max = { head, tail };
    this.#tail = new Ring(tail + 1);
  }

  append(bytes: Buffer): void {
    this.seen += bytes.length;
    const space = Math.min(this.#max.head - this.#headLength, bytes.length);
    if (space > 0) {
      this.#head.push(bytes.subarray(0, space));
      this.#headLength += space;
    }
    if (space < bytes.length) {
      this.#tail.push(bytes.subarray(space));
    }
  }

  /** Ends the stream. If bytes are omitted, each cut moves to a line end that is near. */
  finish(marker: string | null): Captured {
    const head = Buffer.concat(this.#head);
    const tail = this.#tail.bytes();
    if (tail.length <= this.#max.tail) {
      return { head: Buffer.concat([head, tail]), marker: '', tail: Buffer.alloc(0), omitted: 0 };
    }
    const first = head.subarray(0, headEnd(head, Math.floor(this.#max.head / 5)));
    const last = tail.subarray(tailStart(tail, Math.floor(this.#max.tail / 5)));
    const omitted = this.seen - first.length - last.length;
    return { head: first, marker: markerLine(marker, first, omitted), tail: last, omitted };
  }
}

const LINE_FEED = 10;
const RETURN = 13;

/** Where to cut the head: after the last line feed of its last `range` bytes, otherwise at its end. */
function headEnd(head: Buffer, range: number): number {
  const start = Math.max(head.length - range, 0);
  const at = head.subarray(start).lastIndexOf(LINE_FEED);
  // The first omitted byte may be the line feed of a "\r\n".
  return at >= 0 ? start + at + 1 : head.length - Number(head.at(-1) === RETURN);
}

/** Where to begin the tail: after the first line feed in the byte before it and its first `range` bytes. */
function tailStart(tail: Buffer, range: number): number {
  const at = tail.subarray(0, 1 + Math.max(range, 1)).indexOf(LINE_FEED);
  return at >= 0 ? at + 1 : 1;
}

function markerLine(marker: string | null, head: Buffer, omitted: number): string {
  if (!marker) {
    return '';
  }
  const separator = head.length === 0 || head.at(-1) === LINE_FEED ? '' : '\n';
  const amount = `${omitted.toLocaleString('en-US')} byte${omitted === 1 ? '' : 's'}`;
  return `${separator}${marker.replaceAll('{omitted}', amount)}\n`;
}

export function bytesOf({ head, marker, tail }: Captured): Buffer {
  return Buffer.concat([head, Buffer.from(marker), tail]);
}

/** Head, marker line and tail as text. A character that the omission splits is dropped. */
export function textsOf({ head, marker, tail, omitted }: Captured): [string, string, string] {
  const [first, last] = [asBuffer(head), asBuffer(tail)];
  if (omitted === 0) {
    return [first.toString(), '', ''];
  }
  let start = 0;
  while (start < 3 && (last[start] ?? 0) >> 6 === 0b10) {
    start += 1;
  }
  return [new StringDecoder('utf8').write(first), marker, last.toString('utf8', start)];
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
}
