import type { SpillOptions } from './request';
export interface Spilled {
    path: string | null;
    persist: boolean;
    bytes: number;
    end: 'whole' | 'capped' | 'failed';
    errno?: string;
}
export declare class Spill {
    #private;
    constructor(options: SpillOptions);
    /** Takes output. `isKept`: whether memory still keeps all of it. */
    take(bytes: Buffer, isKept: boolean): void;
    finish(): Spilled | null;
}
/** Removes the file with the last reference to `owner`, or when this process exits. */
export declare function removeWith(owner: object, path: string): void;
