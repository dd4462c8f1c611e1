// SPDX-License-Identifier: MIT OR Apache-2.0
// A workspace of Mastra runs its commands by this library.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Workspace, createWorkspaceTools } from '@mastra/core/workspace';
import { Limiter } from 'spawnfd';
import { Sandbox } from 'spawnfd/mastra';
import { isRunning, pidIn, scratch, until } from './support.mjs';

function sandboxOf(t, options = {}, commands = {}) {
  const sandbox = new Sandbox({ workingDirectory: scratch(t), ...options }, commands);
  t.after(() => sandbox.destroy());
  return sandbox;
}

test("the workspace's tool runs commands", async (t) => {
  const sandbox = sandboxOf(t, { env: { GIVEN: 'given' } });
  const workspace = new Workspace({ sandbox });
  t.after(() => workspace.destroy());
  const tools = await createWorkspaceTools(workspace);
  const tool = Object.values(tools).find(({ id }) => id.includes('execute_command'));
  const answer = await tool.execute({ command: 'echo $GIVEN$HOME; pwd; echo é >&2; exit 3' }, { workspace });
  for (const part of ['given\n', sandbox.workingDirectory, 'é', 'Exit code: 3']) {
    assert.ok(answer.includes(part), `${part} in ${answer}`);
  }
});

test('a command has both outputs and an exit code', async (t) => {
  const { exitCode, success, stdout, stderr, timedOut, killed } = await sandboxOf(t).executeCommand(
    'printf %s',
    ["it's"],
    { onStdout: (text) => assert.equal(text, "it's") },
  );
  assert.deepEqual({ exitCode, success, stdout, stderr, timedOut, killed }, {
    exitCode: 0,
    success: true,
    stdout: "it's",
    stderr: '',
    timedOut: false,
    killed: false,
  });
  assert.equal((await sandboxOf(t).executeCommand('kill -9 $$')).exitCode, 137);
  await assert.rejects(sandboxOf(t).executeCommand('true', [], { cwd: '/no/such' }), { code: 'ENOENT' });
});

test('a timeout and an abort end the tree', async (t) => {
  const file = join(scratch(t), 'pid');
  const command = `trap '' TERM; sleep 1000 & echo $! >${file}; echo begun; wait; sleep 1000`;
  const sandbox = sandboxOf(t, {}, { grace: 100 });
  const result = await sandbox.executeCommand(command, [], { timeout: 300 });
  assert.deepEqual([result.exitCode, result.timedOut, result.stdout], [124, true, 'begun\n']);
  const first = await pidIn(file);
  await until(() => !isRunning(first), 'the end of the tree');
  const controller = new AbortController();
  const { killed } = await sandbox.executeCommand('echo ready; sleep 1000', [], {
    abortSignal: controller.signal,
    onStdout: () => controller.abort(),
  });
  assert.equal(killed, true);
});

test('a timeout of 0 or less is none', async (t) => {
  for (const timeout of [0, -1]) {
    assert.equal((await sandboxOf(t).executeCommand('exit 3', [], { timeout })).exitCode, 3);
  }
});

test('standard error says which option ended a command', async (t) => {
  const { exitCode, stderr } = await sandboxOf(t, {}, { idleTimeout: 300 }).executeCommand('sleep 1000');
  assert.deepEqual([exitCode, stderr], [143, '\n[stopped: idle_timeout]']);
});

test('a callback that throws ends the command', async (t) => {
  const sandbox = sandboxOf(t);
  const onStdout = () => {
    throw new Error('of a callback');
  };
  const handle = await sandbox.processes.spawn('echo begun; exec sleep 1000', { onStdout });
  await assert.rejects(handle.wait(), /of a callback/);
  assert.equal(isRunning(handle.pid), false);
  assert.deepEqual((await sandbox.processes.list()).map(({ running }) => running), [false]);
});

test('the end of a sandbox ends the commands whose start is under way', async (t) => {
  const file = join(scratch(t), 'pid');
  const command = `echo $$ >${file}; exec sleep 1000`;
  const early = sandboxOf(t);
  const first = early.processes.spawn(command);
  first.catch(() => {});
  await early.destroy();
  await assert.rejects(first);
  assert.ok(!existsSync(file) || !isRunning(await pidIn(file)));
  const limiter = new Limiter(1);
  const sandbox = sandboxOf(t, {}, { limiter });
  const running = await sandbox.processes.spawn('exec sleep 1000');
  const waiting = sandbox.processes.spawn(command);
  waiting.catch(() => {});
  // The sandbox runs, so this start waits for the limiter.
  await until(() => limiter.waiting === 1, 'the start in the queue');
  await sandbox.destroy();
  await assert.rejects(waiting, { name: 'AbortError' });
  assert.deepEqual([isRunning(running.pid), limiter.running], [false, 0]);
  // A sandbox that has been stopped starts commands again.
  assert.equal((await sandbox.executeCommand('exit 3')).exitCode, 3);
});

test('a background process has input and output, and ends with the sandbox', async (t) => {
  const sandbox = sandboxOf(t);
  const cat = await sandbox.processes.spawn('cat; exit 4');
  await cat.sendStdin('one\n');
  await until(() => cat.stdout === 'one\n', 'the echo');
  assert.deepEqual(await sandbox.processes.list(), [{ pid: cat.pid, running: true, command: 'cat; exit 4' }]);
  await cat.closeStdin();
  assert.equal((await cat.wait()).exitCode, 4);
  assert.equal(await cat.kill(), false);
  const sleeper = await sandbox.processes.spawn('exec sleep 1000');
  assert.equal(await sandbox.processes.kill(sleeper.pid), true);
  assert.equal(isRunning(sleeper.pid), false);
  const last = await sandbox.processes.spawn('exec sleep 1000');
  await sandbox.stop();
  assert.equal(isRunning(last.pid), false);
});
