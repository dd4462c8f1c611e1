// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of the native half that child_process can do, for systems other than Linux.

import { Unsupported } from '../errors';
import type { Given, Native, NativeArgv, NativeFailure, NativeResult } from '../native';
import { PortableEnv } from './env';
import { PortableJob } from './job';
import { PortableLimiter } from './limiter';
import { launch, type Observer } from './program';
import { PortableQueue } from './queue';
import { checkedRequest, type CheckedCall } from './request';
import { PortableResult } from './result';
import { runInWorker } from './sync';

/** Starts a program. The queue gets the failure of the start, and can end the call. */
function begin(
  queue: PortableQueue,
  key: number,
  { request, limiter }: CheckedCall,
  observer: Omit<Observer, 'failed'>,
): null {
  let stop = (): void => {};
  queue.begin(key, () => stop());
  stop = launch(request, limiter, { ...observer, failed: (failure) => queue.push(key, failure) });
  return null;
}

function run(queue: PortableQueue, key: number, argv: NativeArgv, options: Given): null {
  return begin(queue, key, checkedRequest(argv, options, 'run'), {
    ended: (ended) => queue.push(key, new PortableResult(ended)),
  });
}

function runSync(argv: NativeArgv, options: Given): NativeResult | NativeFailure {
  const { request, limiter } = checkedRequest(argv, options, 'run');
  const answer = runInWorker(request, limiter);
  return 'ended' in answer ? new PortableResult(answer.ended) : answer.failure;
}

function start(queue: PortableQueue, key: number, argv: NativeArgv, options: Given): null {
  const call = checkedRequest(argv, options, 'start');
  let job: PortableJob;
  return begin(queue, key, call, {
    started(program) {
      job = new PortableJob(program, call.request);
      queue.push(key, job);
    },
    output: (stream, bytes) => job.take(stream, bytes),
    ended: (ended) => job.end(new PortableResult(ended)),
  });
}

/** A function or class that needs the native half. */
function unsupported(name: string): () => never {
  return function () {
    throw new Unsupported(name);
  };
}

export const portable: Native = {
  Queue: PortableQueue,
  NativeEnv: PortableEnv,
  NativeLimiter: PortableLimiter,
  NativeCommandText: unsupported('Session') as unknown as Native['NativeCommandText'],
  run,
  runSync,
  start,
  sandbox: unsupported('Sandbox'),
  session: unsupported('Session'),
  remote: unsupported('Remote'),
  template: unsupported('Template'),
  warm: unsupported('Warm'),
  explain: unsupported('Warm'),
  spawn: unsupported('spawn()'),
  // Node starts the programs of child_process.
  startChild: () => null,
  runChild: () => null,
  // There are no warm starts to turn off.
  turnOffWarm() {},
  printedActions: unsupported('actions'),
};
