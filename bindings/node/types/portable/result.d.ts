import type { NativeResult } from '../native';
import type { Ended } from './program';
export declare class PortableResult implements NativeResult {
    #private;
    constructor(ended: Ended);
    get code(): number | null;
    get signal(): number | null;
    get stop(): string;
    /** A connection to another machine needs the native half. */
    get where(): null;
    get stdout(): Buffer;
    get stderr(): Buffer;
    /** The option `combined` needs the native half. */
    get output(): null;
    text(isStderr: boolean): string;
    part(isStderr: boolean, isTail: boolean): Buffer;
    fields(): string;
    details(): string;
    failure(): string | null;
}
