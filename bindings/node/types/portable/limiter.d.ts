import type { NativeLimiter } from '../native';
export declare class PortableLimiter implements NativeLimiter {
    #private;
    constructor(limit: number);
    get limit(): number;
    set limit(limit: number);
    get running(): number;
    get waiting(): number;
    /**
     * Calls `granted` once there is a place, at once if there is one now. Returns a function that cancels the wait,
     * and returns false if there is no wait.
     */
    acquire(granted: () => void): () => boolean;
    /** Takes a place if there is one now. */
    tryAcquire(): boolean;
    release(): void;
}
