// SPDX-License-Identifier: MIT OR Apache-2.0
// Uses execa's functions, and prints the results and the number of programs that the library has started.

import { execa, execaSync } from 'execa';
import { stats } from '../dist/child_process.js';

const failed = (promise) => promise.then(() => undefined, (error) => error);
const words = [
  (await execa`echo a`).stdout,
  (await execa('cat', { input: 'b' })).stdout,
  (await failed(execa('sh', ['-c', 'exit 3']))).exitCode,
  (await failed(execa('sleep', ['1000'], { timeout: 20 }))).signal,
  (await failed(execa('sleep', ['1000'], { cancelSignal: AbortSignal.timeout(20) }))).isCanceled,
  execaSync('echo', ['sync']).stdout,
  (await execa`echo piped`.pipe`cat`).stdout,
  (await failed(execa('nonexistent-x'))).code,
];
console.log([...words, stats().started].join('|'));
