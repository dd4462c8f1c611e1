import { type ChildProcess } from 'node:child_process';
import type { NativeFailure } from '../native';
import { type Captured } from './kept';
import type { PortableLimiter } from './limiter';
import type { Request } from './request';
import { type Spilled } from './spill';
export type StreamName = 'stdout' | 'stderr';
/** How a run ended. A worker can send a copy of it. */
export interface Ended {
    program: string;
    /** The value of the option that ended the run. */
    bound: number | null;
    captured: [Captured, Captured];
    spilled: Spilled | null;
    /** Fields of the result. */
    fields: {
        code: number | null;
        signal: number | null;
        stop: string;
        wall_seconds: number;
        seen_bytes: number;
        input_refused: boolean;
        leftovers: {
            pid: number;
            name: string;
            fate: string;
        }[];
        leftovers_unknown: boolean;
        drain: string;
    };
}
/** Calls of the one that has started a program. */
export interface Observer {
    started?(program: Program): void;
    failed(failure: NativeFailure): void;
    output?(stream: StreamName, bytes: Buffer): void;
    ended(ended: Ended): void;
}
/** Starts a program once the limiter has a place. Returns a function that ends the call. */
export declare function launch(request: Request, limiter: PortableLimiter | null, observer: Observer): () => void;
export declare class Program {
    #private;
    readonly pid: number;
    constructor(child: ChildProcess, pid: number, request: Request, observer: Observer);
    get stdin(): ChildProcess['stdin'];
    /** Stops reading, so that the program blocks. The end of the program ends the pause. */
    pause(): void;
    resume(): void;
    /** Ends the program and its process tree: SIGTERM, and SIGKILL after `grace` milliseconds. */
    stop(reason: string, grace: number, bound?: number | null): void;
    signal(signal: number): void;
    /** Sends a signal to the process group. On Windows, kills the process tree. */
    signalTree(signal: NodeJS.Signals | number): void;
}
