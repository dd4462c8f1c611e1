// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a program to its end, while the calling thread waits. A worker thread supervises the program: spawnSync() cannot end
// a process tree, and waits without end for other processes that hold a pipe.

import { join } from 'node:path';
import { MessageChannel, receiveMessageOnPort, Worker, type MessagePort } from 'node:worker_threads';
import { Unsupported } from '../errors';
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

export type Answer = { ended: Ended } | { failure: NativeFailure };

export function runInWorker(request: Request, limiter: PortableLimiter | null): Answer {
  if (limiter && !limiter.tryAcquire()) {
    // The runs that have the places cannot end while this thread waits.
    throw new Unsupported('runSync() with a limiter that has no free place');
  }
  try {
    const { port1, port2 } = new MessageChannel();
    const isDone = new Int32Array(new SharedArrayBuffer(4));
    const task: Task = { request, port: port2, isDone };
    const worker = new Worker(join(__dirname, 'worker.js'), { workerData: task, transferList: [port2], execArgv: [] });
    worker.unref();
    Atomics.wait(isDone, 0, 0);
    const { message } = receiveMessageOnPort(port1) as { message: Answer };
    port1.close();
    return message;
  } finally {
    limiter?.release();
  }
}
