import type { NativeResult } from '../native';
import type { Ended } from './program';
export declare class PortableResult implements NativeResult {
    #private;
    constructor(ended: Ended);
    get stdout(): Buffer;
    get stderr(): Buffer;
    text(isStderr: boolean): string;
    part(isStderr: boolean, isTail: boolean): Buffer;
    fields(): string;
    details(): string;
    failure(): string | null;
}
