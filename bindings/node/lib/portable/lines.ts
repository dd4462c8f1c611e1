// SPDX-License-Identifier: MIT OR Apache-2.0
// Splits bytes that arrive in chunks into lines.

/** Takes a line, with its line feed if it has one. `isPartial`: the line goes on in the next piece. */
type Emit = (line: Buffer, isPartial: boolean) => void;

export class Lines {
  #open: Buffer = Buffer.alloc(0);

  /** @param max - The longest line in bytes, without its end. */
  constructor(readonly max: number, private readonly emit: Emit) {}

  take(bytes: Buffer): void {
    let rest = this.#open.length > 0 ? Buffer.concat([this.#open, bytes]) : bytes;
    for (;;) {
      const end = rest.indexOf(10) + 1;
      if (end === 0) {
        break;
      }
      const line = rest.subarray(0, end);
      const terminator = line.at(-2) === 13 ? 2 : 1;
      this.#emitLine(line, line.length - terminator);
      rest = rest.subarray(end);
    }
    // A "\r" at the end may be part of a terminator whose "\n" has not arrived yet.
    while (rest.length - Number(rest.at(-1) === 13) > this.max) {
      rest = this.#emitPiece(rest);
    }
    this.#open = Buffer.from(rest);
  }

  /** Emits the incomplete last line. */
  finish(): void {
    if (this.#open.length > 0) {
      this.#emitLine(this.#open, this.#open.length);
      this.#open = Buffer.alloc(0);
    }
  }

  #emitLine(line: Buffer, length: number): void {
    const terminator = line.length - length;
    while (line.length - terminator > this.max) {
      line = this.#emitPiece(line);
    }
    this.emit(line, false);
  }

  #emitPiece(line: Buffer): Buffer {
    const length = this.max - incompleteLength(line.subarray(0, this.max));
    this.emit(line.subarray(0, length), true);
    return line.subarray(length);
  }
}

/** The number of bytes at the end, 0 to 3, that begin a character which later bytes may complete. */
function incompleteLength(bytes: Buffer): number {
  for (let length = 1; length <= Math.min(bytes.length, 3); length += 1) {
    const byte = bytes[bytes.length - length]!;
    if (byte >> 6 !== 0b10) {
      const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
      return needed > length ? length : 0;
    }
  }
  return 0;
}
