// SPDX-License-Identifier: MIT OR Apache-2.0
// What `--import spawnfd/install` does, and at the end a line with the counts.

import { appendFileSync } from 'node:fs';
import { install, stats } from '../../dist/child_process.js';

install();
// Captured now: a test may replace it. A Node that the test starts without these flags writes nothing.
const counts = process.env.SPAWNFD_COUNTS;
process.on('exit', () => {
  if (counts) {
    appendFileSync(counts, `${JSON.stringify(stats())}\n`);
  }
});
