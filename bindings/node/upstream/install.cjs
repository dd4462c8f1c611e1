// SPDX-License-Identifier: MIT OR Apache-2.0
// Installs the replacement, as `--require spawnfd/install` does, and prints the counts at the end.

const child_process = require('node:child_process');
const { appendFileSync } = require('node:fs');
const { syncBuiltinESMExports } = require('node:module');
const { install, stats } = require('../dist/child_process.js');

install();
// The package does not count forks, which are Node's own.
let forks = 0;
child_process.fork = new Proxy(child_process.fork, {
  apply(fork, self, args) {
    forks++;
    return Reflect.apply(fork, self, args);
  },
});
syncBuiltinESMExports();
// A test may replace the variable later. A Node that the test starts without these flags writes nothing.
const counts = process.env.SPAWNFD_COUNTS;
process.on('exit', () => {
  if (counts) {
    appendFileSync(counts, `${JSON.stringify({ ...stats(), forks })}\n`);
  }
});
