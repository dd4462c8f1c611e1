// SPDX-License-Identifier: MIT OR Apache-2.0
// The bash tool of pi runs its commands by this library.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { createBashTool } from '@earendil-works/pi-coding-agent';
import { bashOperations } from 'spawnfd/pi';
import { isRunning, pidIn, scratch, until } from './support.mjs';

/** Runs a command by pi's tool, and returns its text, or the message of its error. */
async function bash(t, command, { timeout, signal, options, cwd = scratch(t) } = {}) {
  const tool = createBashTool(cwd, { operations: bashOperations(options) });
  try {
    const { content } = await tool.execute('id', { command, timeout }, signal);
    return content[0].text;
  } catch (error) {
    return error.message;
  }
}

test('a command has output of both streams and an exit code', async (t) => {
  assert.equal(await bash(t, 'echo out; sleep 0.1; echo err >&2; [[ 1 == 1 ]]'), 'out\nerr\n');
  assert.equal(await bash(t, 'echo out; exit 3'), 'out\n\n\nCommand exited with code 3');
  assert.equal(await bash(t, 'echo out; kill -9 $$'), 'out\n\n\nCommand exited with code 137');
  const cwd = scratch(t);
  assert.equal(await bash(t, 'pwd', { cwd }), `${cwd}\n`);
  let bytes = 0;
  await bashOperations().exec('head -c 5000000 /dev/zero', cwd, { onData: (data) => (bytes += data.length) });
  assert.equal(bytes, 5_000_000);
});

test('a timeout ends the tree and keeps the output', async (t) => {
  const file = join(scratch(t), 'pid');
  const text = await bash(t, `echo begun; sleep 1000 & echo $! >${file}; wait`, { timeout: 0.5 });
  assert.equal(text, 'begun\n\n\nCommand timed out after 0.5 seconds');
  const pid = await pidIn(file);
  await until(() => !isRunning(pid), 'the end of the tree');
});

test('a timeout of 0 or less is none', async (t) => {
  const run = (timeout) => bashOperations().exec('exit 3', scratch(t), { onData() {}, timeout });
  for (const timeout of [0, -1]) {
    assert.deepEqual(await run(timeout), { exitCode: 3 });
  }
});

test('the output says which option ended a command', async (t) => {
  const idle = await bash(t, 'echo begun; sleep 1000', { options: { idleTimeout: 300 } });
  assert.equal(idle, 'begun\n\n[stopped: idle_timeout]\n\nCommand exited with code 143');
  assert.match(await bash(t, 'yes', { options: { outputLimit: 100_000 } }), /\[stopped: output_limit\]/);
});

test('an abort ends the tree', async (t) => {
  const file = join(scratch(t), 'pid');
  const controller = new AbortController();
  const { signal } = controller;
  const answer = bash(t, `echo begun; trap '' TERM; sleep 1000 & echo $! >${file}; wait`, { signal, options: { grace: 100 } });
  const pid = await pidIn(file);
  controller.abort();
  assert.equal(await answer, 'begun\n\n\nCommand aborted');
  await until(() => !isRunning(pid), 'the end of the tree');
  assert.equal(await bash(t, 'echo no', { signal }), 'Command aborted');
});

test('a background process does not block the answer', async (t) => {
  const file = join(scratch(t), 'pid');
  assert.equal(await bash(t, `sleep 1000 & echo $! >${file}; echo done`), 'done\n');
  const pid = await pidIn(file);
  await until(() => !isRunning(pid), 'the end of the tree');
});

test('a working directory that does not exist is an error', async (t) => {
  assert.match(await bash(t, 'true', { cwd: '/no/such' }), /\/no\/such/);
  assert.match(await bash(t, 'true', { options: { shell: 'no-such-shell' } }), /no-such-shell: not found/);
});
