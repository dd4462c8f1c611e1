import { type MessagePort } from 'node:worker_threads';
import type { NativeFailure } from '../native';
import type { PortableLimiter } from './limiter';
import type { Ended } from './program';
import type { Request } from './request';
/** The data of the worker. */
export interface Task {
    request: Request;
    port: MessagePort;
    /** A WorkerState, which the worker and the thread that waits change. */
    state: Int32Array;
}
export declare const WorkerState: {
    readonly Starting: 0;
    readonly Running: 1;
    readonly Done: 2;
    readonly Late: 3;
};
export type Answer = {
    ended: Ended;
} | {
    failure: NativeFailure;
};
export declare function runInWorker(request: Request, limiter: PortableLimiter | null): Answer;
