/** The last bytes of what was pushed, up to a maximum. */
export declare class Ring {
    #private;
    readonly max: number;
    length: number;
    constructor(max: number);
    push(bytes: Buffer): void;
    bytes(): Buffer;
}
/** The kept part of one stream: head, marker line if bytes are omitted, and tail. */
export interface Captured {
    head: Uint8Array;
    marker: string;
    tail: Uint8Array;
    omitted: number;
}
/** The head and the tail of one stream. */
export declare class KeptOutput {
    #private;
    seen: number;
    constructor([head, tail]: readonly [head: number, tail: number]);
    append(bytes: Buffer): void;
    /** Ends the stream. If bytes are omitted, each cut moves to a line end that is near. */
    finish(marker: string | null): Captured;
}
export declare function bytesOf({ head, marker, tail }: Captured): Buffer;
/** Head, marker line and tail as text. A character that the omission splits is dropped. */
export declare function textsOf({ head, marker, tail, omitted }: Captured): [string, string, string];
