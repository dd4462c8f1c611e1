// SPDX-License-Identifier: MIT OR Apache-2.0
// The worker thread of one runSync().

import { workerData } from 'node:worker_threads';
import { launch } from './program';
import type { Answer, Task } from './sync';

const { request, port, isDone } = workerData as Task;

function answer(message: Answer): void {
  port.postMessage(message);
  port.close();
  Atomics.store(isDone, 0, 1);
  Atomics.notify(isDone, 0);
}

launch(request, null, {
  failed: (failure) => answer({ failure }),
  ended: (ended) => answer({ ended }),
});
