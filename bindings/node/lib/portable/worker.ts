// SPDX-License-Identifier: MIT OR Apache-2.0
// The worker thread of one runSync().

import { workerData } from 'node:worker_threads';
import { launch } from './program';
import { WorkerState, type Answer, type Task } from './sync';

const { request, port, state } = workerData as Task;

function finish(): void {
  Atomics.store(state, 0, WorkerState.Done);
  Atomics.notify(state, 0);
}

function answer(message: Answer): void {
  port.postMessage(message);
  port.close();
  finish();
}

// The caller waits without end from here on. It has given up if the worker is late.
if (Atomics.compareExchange(state, 0, WorkerState.Starting, WorkerState.Running) === WorkerState.Starting) {
  Atomics.notify(state, 0);
  process.on('exit', finish);
  launch(request, null, {
    failed: (failure) => answer({ failure }),
    ended: (ended) => answer({ ended }),
  });
}
