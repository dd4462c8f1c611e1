import { NATIVE, type NativeLimiter } from './native';
/** Bounds how many programs run at once. Pass it to calls as the option `limiter`; they wait for a place in order. */
export declare class Limiter {
    /** For this package. */
    readonly [NATIVE]: NativeLimiter;
    /**
     * @param limit - How many programs may run at once.
     * @throws {TypeError} `limit` is not a whole number above 0.
     */
    constructor(limit: number);
    /** How many programs may run at once. If it is lowered, running programs go on. */
    get limit(): number;
    set limit(limit: number);
    /** How many programs run. */
    get running(): number;
    /** How many calls wait for a place. */
    get waiting(): number;
}
