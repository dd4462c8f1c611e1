// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { node } from './support.mjs';

const ROUNDS = process.env.SPAWNFD_FULL === undefined ? 1000 : 20_000;

test(`${ROUNDS} runs and jobs leave memory and descriptors as they were`, async () => {
  const script = `
    const { readdirSync } = require('node:fs');
    const some = async () => {
      for (let i = 0; i < ${ROUNDS} / 20; i++) {
        await Promise.all(Array.from({ length: 16 }, () => run(['true'], { signal: new AbortController().signal })));
        await Promise.all([1, 2, 3, 4].map(async () => {
          const job = start(['echo', 'x']);
          for await (const line of job.lines()) {}
          await job.wait();
        }));
      }
    };
    const state = () => { gc(); return [readdirSync('/proc/self/fd').length, process.memoryUsage().rss >> 20]; };
    (async () => {
      await some();
      const before = state();
      await some();
      const after = state();
      console.log(JSON.stringify({ before, after }));
    })();
  `;
  const { stdout, code, stderr } = await node(`require('node:v8').setFlagsFromString('--expose-gc');
    globalThis.gc = require('node:vm').runInNewContext('gc'); ${script}`);
  assert.equal(code, 0, stderr);
  const { before, after } = JSON.parse(stdout);
  assert.ok(after[0] <= before[0] + 2, `descriptors: ${stdout}`);
  assert.ok(after[1] <= before[1] + 30, `memory in MiB: ${stdout}`);
});
