// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of the native half that child_process can do, for systems other than Linux.

import { Unsupported } from '../errors';
import type { Given, Native, NativeArgv, NativeFailure, NativeQueue, NativeResult } from '../native';
import { PortableEnv } from './env';
import { PortableJob } from './job';
import { PortableLimiter } from './limiter';
import { launch } from './program';
import { PortableQueue } from './queue';
import { checkedRequest } from './request';
import { PortableResult } from './result';
import { runInWorker } from './sync';

function run(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): null {
  const { request, limiter } = checkedRequest(argv, options, 'run');
  const outcomes = queue as PortableQueue;
  let stop = (): void => {};
  outcomes.begin(key, () => stop());
  stop = launch(request, limiter, {
    failed: (failure) => outcomes.push(key, failure),
    ended: (ended) => outcomes.push(key, new PortableResult(ended)),
  });
  return null;
}

function runSync(argv: NativeArgv, options: Given): NativeResult | NativeFailure {
  const { request, limiter } = checkedRequest(argv, options, 'run');
  const answer = runInWorker(request, limiter);
  return 'ended' in answer ? new PortableResult(answer.ended) : answer.failure;
}

function start(queue: NativeQueue, key: number, argv: NativeArgv, options: Given): null {
  const { request, limiter } = checkedRequest(argv, options, 'start');
  const outcomes = queue as PortableQueue;
  let job: PortableJob;
  let stop = (): void => {};
  outcomes.begin(key, () => stop());
  stop = launch(request, limiter, {
    started(program) {
      job = new PortableJob(program, request, (queue, key) => (queue as PortableQueue).push(key, null));
      outcomes.push(key, job);
    },
    failed: (failure) => outcomes.push(key, failure),
    output: (stream, bytes) => job.take(stream, bytes),
    ended: (ended) => job.end(new PortableResult(ended)),
  });
  return null;
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
