import type { Given, NativeArgv } from '../native';
import { PortableLimiter } from './limiter';
export interface SpillOptions {
    maxBytes: number;
    dir: string | null;
    persist: boolean;
}
/** The checked arguments of a call. Times are in milliseconds. The object can be copied to a worker. */
export interface Request {
    program: string;
    args: string[];
    arg0: string | null;
    cwd: string | null;
    env: Record<string, string>;
    stdin: string | number;
    stdout: string | number;
    stderr: string | number;
    input: Uint8Array | null;
    timeout: number | null;
    idleTimeout: number | null;
    grace: number;
    drain: number;
    leftovers: string;
    keep: [head: number, tail: number];
    marker: string | null;
    spill: SpillOptions | null;
    outputLimit: number | null;
    window: number;
}
type Call = 'run' | 'start';
/** The checked arguments of a call. The limiter stays in the calling thread. */
export interface CheckedCall {
    request: Request;
    limiter: PortableLimiter | null;
}
/** Checks the arguments of a call. */
export declare function checkedRequest(argv: NativeArgv, given: Given, call: Call): CheckedCall;
export {};
