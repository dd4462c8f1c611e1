/** Takes a line, with its line feed if it has one. `isPartial`: the line goes on in the next piece. */
type Emit = (line: Buffer, isPartial: boolean) => void;
export declare class Lines {
    #private;
    readonly max: number;
    private readonly emit;
    /** @param max - The longest line in bytes, without its end. */
    constructor(max: number, emit: Emit);
    take(bytes: Buffer): void;
    /** Emits the incomplete last line. */
    finish(): void;
}
export {};
