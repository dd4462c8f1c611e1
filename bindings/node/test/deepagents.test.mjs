// SPDX-License-Identifier: MIT OR Apache-2.0
// A backend of deepagents runs its commands by this library.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';
import { CompositeBackend, FilesystemBackend, LocalShellBackend, isSandboxBackend } from 'deepagents';
import { withShell } from 'spawnfd/deepagents';
import { isRunning, pidIn, scratch, until } from './support.mjs';

function backendOf(t, options = {}) {
  const rootDir = scratch(t);
  return withShell(new FilesystemBackend({ rootDir, virtualMode: true }), { cwd: rootDir, ...options });
}

test('a backend of files becomes one that executes', async (t) => {
  const backend = backendOf(t);
  assert.ok(isSandboxBackend(backend));
  await backend.write('/a.txt', 'one\n');
  assert.deepEqual(await backend.execute('cat a.txt; sleep 0.1; echo two >&2; exit 3'), {
    output: 'one\ntwo\n',
    exitCode: 3,
    truncated: false,
  });
  assert.equal((await backend.execute('kill -9 $$')).exitCode, 137);
  assert.notEqual(backend.id, backendOf(t).id);
});

test("deepagents' composite backend executes by it", async (t) => {
  const composite = new CompositeBackend(backendOf(t), {});
  assert.deepEqual(await composite.execute('echo hello'), { output: 'hello\n', exitCode: 0, truncated: false });
});

test("the shell of deepagents' own backend is replaced", async (t) => {
  const rootDir = scratch(t);
  const backend = withShell(await LocalShellBackend.create({ rootDir }), { cwd: rootDir, env: { ONLY: 'this' } });
  assert.equal((await backend.execute('echo $ONLY$HOME')).output, 'this\n');
});

test('a timeout ends the tree and keeps the output', async (t) => {
  const file = join(scratch(t), 'pid');
  const { output, exitCode } = await backendOf(t, { timeout: 500 }).execute(`echo begun; sleep 1000 & echo $! >${file}; wait`);
  assert.deepEqual([output, exitCode], ['begun\n\n[stopped: timeout]', 124]);
  const pid = await pidIn(file);
  await until(() => !isRunning(pid), 'the end of the tree');
});

test('an undefined timeout is the default', async (t) => {
  const { mock } = t.mock.method(createRequire(import.meta.url)('../dist/run.js'), 'run');
  const backend = backendOf(t, { timeout: undefined });
  assert.equal((await backend.execute('echo one')).output, 'one\n');
  assert.equal(mock.calls[0].arguments[1].timeout, 120_000);
});

test('much output is truncated', async (t) => {
  const { output, truncated } = await backendOf(t, { keep: [100, 100] }).execute('seq 100000');
  assert.ok(truncated && output.startsWith('1\n') && output.endsWith('100000\n') && output.length < 400, output);
});
