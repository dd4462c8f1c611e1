// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs Node's own tests of child_process under `--require spawnfd/install`, and prints a table by name. (With `--import`, a
// forked Node loses the messages that arrive while it loads any module that takes long.)
//
// The tests are Node's, and not part of this repository: get the sources of a version, and build this package.
//
//     node upstream/run.mjs NODE TESTS [NAME...]
//
// NODE is the program to test with, of the same version as the sources. TESTS is the folder `test` of the sources, with
// `parallel`, `common` and `fixtures`. Each NAME selects the tests whose names contain it; by default these are
// test-child-process-*.

import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const INSTALL = fileURLToPath(new URL('install.cjs', import.meta.url));
const TIMEOUT = 120_000;
const [program, tests, ...names] = process.argv.slice(2);
if (!program || !tests) {
  console.error('usage: node run.mjs NODE TESTS [NAME...]');
  process.exit(2);
}

/** Tests that check which function inside Node is called: there is none to call. */
const REPLACES_INTERNALS = [
  'test-child-process-spawnsync-kill-signal.js',
  'test-child-process-spawnsync-shell.js',
  'test-child-process-windows-hide.js',
];

/** The flags that a test names in its first lines. */
function flags(path) {
  const line = /^\/\/ Flags: (.*)$/m.exec(readFileSync(path, 'utf8'));
  return line ? line[1].trim().split(/\s+/) : [];
}

/** Runs a test. Returns how it ended, and what it and its children have counted. */
async function run(path, own) {
  const directory = mkdtempSync(join(tmpdir(), 'spawnfd-upstream-'));
  const counted = join(directory, 'counts');
  const args = [...(own ? ['--require', INSTALL] : []), ...flags(path), path];
  const env = { ...process.env, TEST_THREAD_ID: basename(directory), NODE_TEST_DIR: directory, SPAWNFD_COUNTS: counted };
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  let output = '';
  child.stdout.on('data', (text) => (output += text));
  child.stderr.on('data', (text) => (output += text));
  let timedOut = false;
  const timer = setTimeout(() => {
    timedOut = true;
    process.kill(-child.pid, 'SIGKILL');
  }, TIMEOUT);
  const [code, signal] = await new Promise((resolve) => child.on('close', (...end) => resolve(end)));
  clearTimeout(timer);
  const counts = { started: 0, delegated: 0 };
  try {
    for (const line of readFileSync(counted, 'utf8').trim().split('\n')) {
      const { started, delegated, forks } = JSON.parse(line);
      counts.started += started;
      counts.delegated += Object.values(delegated).reduce((sum, count) => sum + count, forks);
    }
  } catch (error) {
    if (error.code !== 'ENOENT') {
      throw error;
    }
  }
  rmSync(directory, { recursive: true, force: true });
  return { isOk: code === 0, end: timedOut ? 'timeout' : (signal ?? code), output, counts };
}

function verdict(name, own, plain) {
  if (!own.isOk) {
    const reason = REPLACES_INTERNALS.includes(name) ? 'replaces internal/child_process.spawnSync' : own.end;
    return plain.isOk ? `fails: ${reason}` : 'fails, as without';
  }
  if (/^1\.\.0 # Skipped/m.test(own.output)) {
    return 'skipped by itself';
  }
  const { started, delegated } = own.counts;
  return started === 0 ? (delegated > 0 ? 'delegated' : 'passes, starts nothing') : delegated > 0 ? 'passes, in part delegated' : 'passes';
}

const wanted = names.length > 0 ? names : ['test-child-process-'];
const folder = join(tests, 'parallel');
const all = readdirSync(folder).filter((name) => /\.m?js$/.test(name) && wanted.some((part) => name.includes(part)));
const totals = new Map();
for (const name of all.sort()) {
  const path = join(folder, name);
  const own = await run(path, true);
  const plain = own.isOk ? own : await run(path, false);
  const said = verdict(name, own, plain);
  totals.set(said, (totals.get(said) ?? 0) + 1);
  console.log(`${name.padEnd(70)} ${said}`);
  if (!own.isOk && plain.isOk && !REPLACES_INTERNALS.includes(name)) {
    process.exitCode = 1;
    console.log(own.output.replace(/^/gm, '    '));
  }
}
console.log([...totals].map(([said, count]) => `${said}: ${count}`).join('\n'));
