// SPDX-License-Identifier: MIT OR Apache-2.0
// What `--require spawnfd/install` does, and at the end a line with the counts.

const { appendFileSync } = require('node:fs');
const { install, stats } = require('../../dist/child_process.js');

install();
// A test may replace the variable later. A Node that the test starts without these flags writes nothing.
const counts = process.env.SPAWNFD_COUNTS;
process.on('exit', () => {
  if (counts) {
    appendFileSync(counts, `${JSON.stringify(stats())}\n`);
  }
});
