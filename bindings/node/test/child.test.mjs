// SPDX-License-Identifier: MIT OR Apache-2.0
// spawn(): programs without supervision.

import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { actions, Child, spawn } from '../dist/index.js';
import { isRunning, node, PACKAGE, scratch } from './support.mjs';

const check = (name, run) => test(name, { timeout: 60_000 }, run);

check('spawn() reports the exit code or the signal', async () => {
  const child = spawn(['sh', '-c', 'exit 3'], { stdin: 'null' });
  assert.ok(child instanceof Child && child.pid > 0);
  assert.deepEqual(await child.exited, { code: 3, signal: null });
  child.kill();
  const slept = spawn(['sleep', '1000']);
  slept.kill('SIGINT');
  assert.deepEqual(await slept.exited, { code: null, signal: 'SIGINT' });
  const killed = spawn(['sleep', '1000']);
  killed.kill(40);
  assert.deepEqual(await killed.exited, { code: null, signal: 40 });
  assert.throws(() => killed.kill('SIGNONE'), { name: 'TypeError', message: 'unknown signal "SIGNONE"' });
  assert.throws(() => killed.kill(65), TypeError);
});

check('spawn() has the options of the table', async (t) => {
  const directory = scratch(t);
  const fd = openSync(join(directory, 'out'), 'w');
  const script = 'echo "$0 $X $PWD"; echo err >&2; umask';
  const child = spawn(['/bin/sh', '-c', script, 'zero'], {
    cwd: directory, env: { X: 'x' }, stdout: fd, stderr: 'merge', arg0: 'sh', actions: [actions.umask(0o27)],
  });
  closeSync(fd);
  assert.deepEqual(await child.exited, { code: 0, signal: null });
  assert.equal(readFileSync(join(directory, 'out'), 'utf8'), `zero x ${directory}\nerr\n0027\n`);
});

check('a program has the streams of Node by default', async () => {
  const { stdout, stderr } = await node("require(process.env.P).spawn(['sh', '-c', 'cat; echo e >&2'])", {
    env: { P: PACKAGE }, input: 'in',
  });
  assert.deepEqual([stdout, stderr], ['in', 'e\n']);
});

check('a pipe is a stream', async () => {
  const child = spawn(['sh', '-c', 'cat; echo err >&2'], { stdin: 'pipe', stdout: 'pipe', stderr: 'pipe' });
  child.stdin.end('input');
  assert.deepEqual(await Promise.all([text(child.stdout), text(child.stderr)]), ['input', 'err\n']);
  await child.exited;
  assert.equal(spawn(['true']).stdout, null);
});

check('a start that fails throws', () => {
  assert.throws(() => spawn(['nonexistent-x']), { name: 'SpawnError', code: 'ENOENT' });
  assert.throws(() => spawn(['true'], { cwd: '/nonexistent' }), { code: 'ENOENT', stage: 'cwd' });
  assert.throws(() => spawn(['true'], { actions: [actions.umask(0), actions.chdir('/nonexistent')] }), { stage: 'action', action: 1 });
  assert.throws(() => spawn(['true'], { timeout: 1 }), { name: 'TypeError', message: /timeout/ });
  assert.throws(() => spawn([]), TypeError);
  assert.throws(() => spawn('true'), TypeError);
});

check('a child outlives its host, and keeps it alive unless unref() is called', async () => {
  const script = (calls) => `const { spawn } = require(${JSON.stringify(new URL('../dist/index.js', import.meta.url).pathname)});
    const child = spawn(['sleep', '0.3'], { stdout: 'null', stderr: 'null' })${calls};
    child.exited.then(({ code }) => console.log('exit', code));
    console.log(child.pid);`;
  assert.match((await node(script(''))).stdout, /^\d+\nexit 0\n$/);
  assert.match((await node(script('.unref().ref()'))).stdout, /^\d+\nexit 0\n$/);
  assert.match((await node(script('.unref()'))).stdout, /^\d+\n$/);
  const { stdout } = await node(script('.unref()').replace('0.3', '1000'));
  assert.ok(isRunning(Number(stdout)));
  process.kill(Number(stdout));
});
