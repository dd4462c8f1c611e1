// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { copyFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { test } from 'node:test';
import { Env, run, Sandbox, SpawnError, StaleTemplate, Template, Warm } from '../dist/index.js';
import { isRunning, node, PACKAGE, scratch, until } from './support.mjs';

/** A Warm that is closed at the end of the test. */
function warm(t, options) {
  const made = new Warm(options);
  t.after(() => made.close());
  return made;
}

test('programs start from parked processes in every call', async (t) => {
  const pool = warm(t);
  pool.add('cat', { depth: 3 });
  assert.equal(await pool.fill(), true);
  assert.equal(pool.stats().parked, 3);
  const ran = await pool.run(['cat'], { input: 'in' });
  assert.deepEqual([ran.text, ran.started], ['in', 'reserve']);
  assert.equal(pool.runSync(['cat'], { input: 'in' }).started, 'reserve');
  await pool.fill();
  const job = pool.start(['cat'], { stdin: 'stream' });
  await job.write('streamed');
  await job.closeStdin();
  const result = await job.wait();
  assert.deepEqual([result.text, result.started], ['streamed', 'reserve']);
  assert.equal(pool.stats().reserve, 3);
});

test('Node parks with its leading arguments', async (t) => {
  const pool = warm(t);
  pool.add(process.execPath, { args: ['-e'], depth: 1 });
  assert.equal(await pool.fill(), true, JSON.stringify(pool.stats().cannot));
  const code = 'console.log(process.argv.length, process.env.X)';
  const result = await pool.run([process.execPath, '-e', code], { env: Env.inherit().set({ X: 'x' }) });
  assert.deepEqual([result.text, result.started], ['1 x\n', 'reserve']);
});

test('mode fork forks all programs from one process', async (t) => {
  const pool = warm(t, { mode: 'fork' });
  pool.add('bash', { depth: 1 });
  assert.equal(await pool.fill(), true);
  const results = await Promise.all([1, 2, 3].map((word) => pool.run(['bash', '-c', `echo ${word}`])));
  assert.deepEqual(results.map(({ text }) => text), ['1\n', '2\n', '3\n']);
  assert.equal(pool.stats().fork, 3);
});

test('a zygote serves programs that have no process of their own', async (t) => {
  const pool = warm(t);
  pool.addAny({ depth: 1, mode: 'fork' });
  assert.equal(await pool.fill(), true);
  assert.equal((await pool.run(['true'])).started, 'zygote');
});

test('a cold start says why', async (t) => {
  const pool = warm(t);
  const { started, meaning, remedy, text, saves } = pool.explain(['true']);
  assert.equal(started, 'cold: not added');
  assert.ok(meaning.endsWith('.') && remedy.endsWith('.') && text.startsWith(started));
  assert.equal(saves, 0);
  assert.equal((await pool.run(['true'])).started, started);
  assert.deepEqual(pool.stats().cold, { 'not added': 1 });
});

test('a parked process in a sandbox serves starts in the same sandbox', async (t) => {
  const pool = warm(t);
  const sandbox = new Sandbox(['env', '-u', 'NO_SUCH_VARIABLE']);
  pool.add('cat', { sandbox, depth: 1 });
  assert.equal(await pool.fill(), true, JSON.stringify(pool.stats().cannot));
  const result = await pool.run(['cat'], { sandbox, input: 'in' });
  assert.deepEqual([result.text, result.started], ['in', 'reserve']);
  assert.match((await pool.run(['cat'])).started, /^cold/);
});

test('parked processes end with close(), and with the host', async (t) => {
  const pool = warm(t);
  pool.add('cat', { depth: 1 });
  await pool.fill();
  const pid = (await pool.run(['sh', '-c', 'pgrep -P $PPID -x cat || true'])).text;
  pool.close();
  await until(() => pid === '' || !isRunning(Number(pid.trim())), 'the end of the parked process');
  assert.throws(() => pool.add('cat'), { name: 'TypeError', message: 'the Warm is closed' });
  await assert.rejects(run(['cat'], { warm: pool }), { name: 'TypeError' });
});

test('a host with parked processes ends by itself, and nothing outlives it', async () => {
  const { code, stdout } = await node(`
    const { Warm } = require(${JSON.stringify(PACKAGE)});
    const pool = new Warm();
    pool.add('cat', { depth: 1 });
    pool.fill().then((filled) => {
      const { readdirSync, readFileSync } = require('node:fs');
      const children = readFileSync('/proc/self/task/' + process.pid + '/children', 'utf8');
      console.log(filled, children.trim().split(' ').at(-1));
    });
  `);
  const [filled, pid] = stdout.trim().split(' ');
  assert.deepEqual([code, filled], [0, 'true']);
  await until(() => !isRunning(Number(pid)), 'the end of the parked process');
});

test('a template starts exactly the recorded file', async (t) => {
  const directory = scratch(t);
  const path = join(directory, 'program');
  writeFileSync(path, '#!/bin/sh\necho one $1\n', { mode: 0o755 });
  const template = new Template(path);
  assert.deepEqual([template.path, template.name, template.interpreters.map((path) => basename(path))], [
    path, path, ['sh'],
  ]);
  template.revalidate();
  assert.equal((await template.run(['a'])).text, 'one a\n');
  assert.equal(template.runSync(['b']).text, 'one b\n');
  const job = template.start(['c']);
  assert.equal((await job.wait()).text, 'one c\n');
  writeFileSync(path, '#!/bin/sh\necho another\n', { mode: 0o755 });
  for (const call of [() => template.run(), async () => template.revalidate(), async () => template.runSync()]) {
    await assert.rejects(call, (error) => error instanceof StaleTemplate && error.code === 'ESTALE');
  }
  await assert.rejects(template.start().wait(), StaleTemplate);
});

test('a template is searched in a PATH, and starts warm', async (t) => {
  const directory = scratch(t);
  copyFileSync('/bin/cat', join(directory, 'my-cat'));
  const pool = warm(t);
  const template = new Template('my-cat', { path: directory, warm: pool });
  assert.equal(await pool.fill(), true);
  const result = await template.run([], { input: 'in' });
  assert.deepEqual([result.text, result.started], ['in', 'reserve']);
});

test('a sandbox gets descriptors, and starts the program', async () => {
  const { stdout } = await node(
    `const { Sandbox } = require(${JSON.stringify(PACKAGE)});
     const { openSync } = require('node:fs');
     const fd = openSync(process.argv.at(-1));
     const sandbox = new Sandbox(['sh', '-c', 'read line <&5; export LINE=$line; exec "$@"', 'sh'], { fds: { 5: fd } });
     run(['sh', '-c', 'echo $LINE'], { sandbox }).then((result) => console.log(result.text));`,
    { args: ['/proc/sys/kernel/ostype'] },
  );
  assert.equal(stdout, 'Linux\n\n');
});

test('wrong arguments are named', async (t) => {
  const pool = warm(t);
  for (const [call, message] of [
    [() => new Warm({ mode: 'other' }), /^mode must be 'reserve', 'fork' or 'auto', got "other"/],
    [() => new Warm({ depth: 1 }), /^unexpected option "depth"/],
    [() => new Warm({ processes: -1 }), /^processes must be a whole number/],
    [() => new Warm({ age: 1 }), /age/],
    [() => pool.add(''), /^program must not be empty/],
    [() => pool.add('cat', { preimport: 'json' }), /^preimport must be an array/],
    [() => pool.add('cat', { landlock: 'x' }), /^landlock must be a descriptor number/],
    [() => pool.add('cat', { seccomp: new Uint8Array(3) }), /^seccomp /],
    [() => pool.add('cat', { cwd: '/' }), /current_dir|cwd/],
    [() => pool.explain([]), /^argv must not be empty/],
    [() => run(['true'], { warm: 'reserve' }), /^warm must be a Warm/],
    [() => run(['true'], { sandbox: ['bwrap'] }), /^sandbox must be a Sandbox/],
    [() => new Template('bin/relative'), /./],
    [() => new Sandbox([]), /^argv must not be empty/],
    [() => new Sandbox(['true'], { fds: { 1: 0 } }), /descriptor must be >= 3/],
    [() => new Sandbox(['true'], { fds: { x: 0 } }), /^fds: "x"/],
  ]) {
    await assert.rejects(async () => call(), { name: 'TypeError', message });
  }
  await assert.rejects(pool.fill(-1), { name: 'TypeError', message: /^timeout/ });
  assert.throws(() => pool.add('no-such-program'), (error) => error instanceof SpawnError && error.code === 'ENOENT');
});
