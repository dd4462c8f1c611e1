// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a program to its end, while the calling thread waits. A worker thread supervises the program: spawnSync() cannot end
// a process tree, and waits without end for other processes that hold a pipe.

import { join } from 'node:path';
import { MessageChannel, receiveMessageOnPort, Worker, type MessagePort } from 'node:worker_threads';
import { Unsupported } from '../errors';
import type { NativeFailure } from '../native';
import { failure } from './failure';
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

export const WorkerState = { Starting: 0, Running: 1, Done: 2, Late: 3 } as const;

/** The time that a worker thread has to begin, in milliseconds. */
const START_TIME = 10_000;

export type Answer = { ended: Ended } | { failure: NativeFailure };

export function runInWorker(request: Request, limiter: PortableLimiter | null): Answer {
  if (limiter && !limiter.tryAcquire()) {
    // The runs that have the places cannot end while this thread waits.
    throw new Unsupported('runSync() with a limiter that has no free place');
  }
  try {
    const { port1, port2 } = new MessageChannel();
    const state = new Int32Array(new SharedArrayBuffer(4));
    const task: Task = { request, port: port2, state };
    const worker = new Worker(join(__dirname, 'worker.js'), {
      workerData: task,
      transferList: [port2],
      execArgv: [],
      // Modules that NODE_OPTIONS loads can fail in a worker. The program gets the environment of the request.
      env: { ...process.env, NODE_OPTIONS: '' },
    });
    worker.unref();
    // The answer, or its absence, says that the worker has failed.
    worker.on('error', () => {});
    Atomics.wait(state, 0, WorkerState.Starting, START_TIME);
    if (Atomics.compareExchange(state, 0, WorkerState.Starting, WorkerState.Late) === WorkerState.Starting) {
      void worker.terminate();
      const time = `${START_TIME / 1000} s`;
      return { failure: failure('EAGAIN', 'start', '', `${request.program} was not started: no worker thread within ${time}`) };
    }
    Atomics.wait(state, 0, WorkerState.Running);
    const answer = receiveMessageOnPort(port1) as { message: Answer } | undefined;
    port1.close();
    return answer?.message ?? { failure: failure('EIO', 'wait', '', 'the worker thread of runSync() ended without a result') };
  } finally {
    limiter?.release();
  }
}
