import type { NativeQueue, Outcome } from '../native';
/** The outcomes of calls, in batches, and how to end the calls that are active. */
export declare class PortableQueue implements NativeQueue {
    #private;
    constructor(notify: () => void);
    /** Registers how to end the call under `key`. */
    begin(key: number, stop: () => void): void;
    push(key: number, outcome: Outcome): void;
    take(): [number, Outcome][];
    stop(key: number): void;
}
