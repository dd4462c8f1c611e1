import { type MessagePort } from 'node:worker_threads';
import type { NativeFailure } from '../native';
import type { PortableLimiter } from './limiter';
import type { Ended } from './program';
import type { Request } from './request';
/** What the worker gets. */
export interface Task {
    request: Request;
    port: MessagePort;
    /** Becomes 1 once the port has the answer. */
    isDone: Int32Array;
}
export type Answer = {
    ended: Ended;
} | {
    failure: NativeFailure;
};
export declare function runInWorker(request: Request, limiter: PortableLimiter | null): Answer;
