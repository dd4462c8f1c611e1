// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { AbortError, Job, Limiter, Session, SpawnError, Warm } from '../dist/index.js';
import { descriptors, isRunning, node, pidIn, scratch, until } from './support.mjs';

/** A session that is closed at the end of the test. */
async function open(t, options = {}, shell = 'bash') {
  const session = await Session.open(shell, options);
  t.after(() => session.close());
  return session;
}

test('a yielded command reads, writes and waits', async (t) => {
  const session = await open(t);
  const job = await session.run('echo begun; read line; echo "got $line"', { yieldAfter: 0, stdin: 'stream' });
  assert.ok(job instanceof Job && job.running);
  assert.equal(await job.wait(20), null);
  await assert.rejects(session.run('echo'), { name: 'SpawnError', code: 'EBUSY' });
  await job.write('input\n');
  const result = await job.wait();
  assert.deepEqual([result.text, job.running], ['begun\ngot input\n', false]);
  const quick = await session.run('echo quick', { yieldAfter: 60_000 });
  assert.equal(quick.text, 'quick\n');
});

test('commands of a queue run in the order of their calls', async (t) => {
  const session = await open(t, { queue: true });
  const results = await Promise.all(['sleep 0.1; echo 1', 'exit_is_not_called', 'echo 3'].map((text) => session.run(text)));
  assert.deepEqual(results.map(({ text, code }) => [text, code]), [['1\n', 0], ['', 127], ['3\n', 0]]);
});

test('a queued command that is aborted does not run', async (t) => {
  const session = await open(t, { queue: true });
  const directory = scratch(t);
  const first = session.start('read line', { stdin: 'stream' });
  const controller = new AbortController();
  const second = session.run('echo > ran', { cwd: directory, signal: controller.signal });
  controller.abort();
  await assert.rejects(second, (error) => error instanceof AbortError && error.result === undefined);
  await first.write('\n');
  await first.wait();
  assert.equal((await session.run('ls', { cwd: directory })).text, '');
});

test('aborting a command ends it, and the session goes on', async (t) => {
  const session = await open(t);
  const controller = new AbortController();
  const job = session.start('echo begun; sleep 1000', { signal: controller.signal });
  for await (const line of job.lines()) {
    assert.equal(line.text, 'begun');
    controller.abort();
  }
  await assert.rejects(job.wait(), (error) => error instanceof AbortError && error.result.text === 'begun\n');
  assert.equal((await session.run('echo on')).text, 'on\n');
});

test('interrupt() abandons the command', async (t) => {
  const session = await open(t);
  const job = session.start('echo begun; sleep 1000; echo not this');
  for await (const line of job.lines()) {
    assert.equal(line.text, 'begun');
    session.interrupt();
  }
  assert.equal((await job.wait()).text, 'begun\n');
});

test('a session without a start opens its shell with the first command', async (t) => {
  const session = new Session('bash', { env: { A: 'a', PATH: process.env.PATH } });
  t.after(() => session.close());
  assert.equal(session.pid, null);
  const both = [1, 2].map(() => session.start('read line; echo $A', { stdin: 'stream' }));
  const refused = await Promise.race(both.map((job) => job.wait().catch((error) => ({ job, error }))));
  assert.equal(refused.error.code, 'EBUSY');
  const [other] = both.filter((job) => job !== refused.job);
  await other.write('\n');
  assert.equal((await other.wait()).text, 'a\n');
  assert.ok(session.pid > 0);
});

test('a side command runs beside the shell', async (t) => {
  const session = await open(t, { restart: true });
  await session.run('cd /usr; export X=1; umask 077');
  const job = session.start('read line', { stdin: 'stream' });
  assert.equal((await session.sideCommand(['sh', '-c', 'echo $X $PWD $(umask)'])).text, '1 /usr 0077\n');
  await job.closeStdin();
  await job.wait();
  await assert.rejects((await open(t)).sideCommand(['true']), /option restart/);
});

test('a side command can be aborted while another shell reads the state', async (t) => {
  const directory = scratch(t);
  const [shell, script, file] = ['bash', 'script', 'pid'].map((name) => join(directory, name));
  copyFileSync('/bin/bash', shell);
  const session = await open(t, { restart: true }, shell);
  await session.run('true');
  // The session starts the script in place of a shell that reads the state.
  writeFileSync(script, `#!/bin/sh\necho $$ > ${file}\nexec /bin/sleep 1000\n`, { mode: 0o755 });
  renameSync(script, shell);
  const controller = new AbortController();
  const aborted = session.sideCommand(['true'], { signal: controller.signal });
  const reader = await pidIn(file);
  controller.abort();
  await assert.rejects(aborted, (error) => error instanceof AbortError && error.result === undefined);
  await until(() => !isRunning(reader), 'the end of the reader');
});

test('closing ends the shell and its processes', async (t) => {
  const file = join(scratch(t), 'pid');
  const session = await open(t);
  await session.run(`setsid sleep 1000 & echo $! > ${file}`);
  const pid = await pidIn(file);
  assert.deepEqual(session.processes(), [{ pid, name: 'sleep' }]);
  await session.close();
  await until(() => !isRunning(pid), 'the end of the background job');
  assert.deepEqual([session.closed, session.pid], [true, null]);
  await assert.rejects(session.run('echo'), /the session is closed/);
  await session.close();
});

test('closing interrupts a running command, and runs the EXIT trap', async (t) => {
  const directory = scratch(t);
  const session = await open(t, { cwd: directory });
  const job = session.start("trap 'echo > trapped' EXIT; echo begun; sleep 1000");
  for await (const line of job.lines()) {
    assert.equal(line.text, 'begun');
    break;
  }
  await session.close();
  assert.equal((await job.wait()).ok, false);
  assert.equal((await (await open(t, { cwd: directory })).run('ls')).text, 'trapped\n');
});

test('a relative directory is that of the creation', async (t) => {
  const directory = scratch(t);
  mkdirSync(join(directory, 'sub'));
  const { stdout, stderr } = await node(
    `process.chdir(process.argv.at(-1));
     (async () => {
       const session = new Session('bash', { cwd: 'sub' });
       process.chdir('/');
       console.log((await session.run('pwd')).text);
       await session.close();
     })();`,
    { args: [directory] },
  );
  assert.deepEqual([stdout, stderr], [`${directory}/sub\n\n`, '']);
});

test('a new shell cannot return to a directory that is gone', async (t) => {
  const directory = scratch(t);
  const session = await open(t, { restart: true });
  await session.run(`cd ${directory}; rmdir ${directory}`);
  await session.run('exit 3');
  await assert.rejects(session.run('pwd'), { name: 'SpawnError', code: 'ENOENT' });
  assert.equal((await session.run('pwd', { cwd: '/usr' })).text, '/usr\n');
});

test('a shell starts from a parked process', async (t) => {
  const warm = new Warm();
  t.after(() => warm.close());
  warm.add('bash', { args: ['--noediting', '--norc', '-i', '-s', '+o', 'history', '+H'] });
  assert.ok(await warm.fill());
  const session = await open(t, { warm });
  assert.equal((await session.run('echo $0')).text, 'bash\n');
  assert.equal(warm.stats().reserve, 1);
});

test('limiters count shells and commands', async (t) => {
  const limiter = new Limiter(1);
  const first = await open(t, { limiter });
  const waits = new AbortController();
  const second = Session.open('bash', { limiter, signal: waits.signal });
  await until(() => limiter.waiting === 1, 'the second session waits');
  await first.close();
  await (await second).close();
  assert.deepEqual([limiter.running, limiter.waiting], [0, 0]);
});

test('closing ends commands that wait for a shell or for a permit', async (t) => {
  const limiter = new Limiter(1);
  const first = await open(t, { limiter });
  const second = new Session('bash', { limiter });
  const waits = assert.rejects(second.run('echo not this'), /the session is closed/);
  await until(() => limiter.waiting === 1, 'the second session waits for a shell');
  await second.close();
  await waits;
  assert.equal(limiter.waiting, 0);
  await first.close();
  assert.equal(limiter.running, 0);

  const third = await open(t);
  const held = await third.run('read line', { yieldAfter: 0, stdin: 'stream', limiter });
  const fourth = await open(t);
  const queued = assert.rejects(fourth.run('echo not this', { limiter }), /the session is closed/);
  await until(() => limiter.waiting === 1, 'the command waits for a permit');
  await fourth.close();
  await queued;
  await held.stop();
});

test('a session lives as long as its command, and no result longer than its references', async () => {
  const { stdout, stderr } = await node(
    `const pause = () => new Promise((resolve) => setTimeout(resolve, 10));
     (async () => {
       const slow = await (async () => {
         const session = await Session.open('bash');
         return { result: session.run('sleep 0.3; echo ended') };
       })();
       for (let i = 0; i < 20; i++) { gc(); await pause(); }
       const result = await slow.result;
       console.log(result.text.trim(), result.code);
       const session = await Session.open('bash');
       let freed = 0;
       const registry = new FinalizationRegistry(() => freed++);
       for (let i = 0; i < 20; i++) registry.register(await session.run('true'), i);
       for (let i = 0; i < 100 && freed < 15; i++) { gc(); await pause(); }
       console.log(freed >= 15);
       await session.close();
     })();`,
    { flags: ['--expose-gc'] },
  );
  assert.deepEqual([stdout, stderr], ['ended 0\ntrue\n', '']);
});

test('wrong arguments are named', async (t) => {
  const session = await open(t);
  for (const [call, message] of [
    [() => session.start('x', { env: { 'a-b': '1' } }), /^env: "a-b"/],
    [() => session.resize({ rows: 1, columns: 1e5 }), /^columns must be/],
  ]) {
    assert.throws(call, { name: 'TypeError', message });
  }
  await assert.rejects(session.run('x', { stdin: 'stream' }), { name: 'TypeError', message: /needs yieldAfter/ });
  await assert.rejects(session.run('x', { yieldAfter: -1 }), { name: 'TypeError', message: /^yieldAfter/ });
  await assert.rejects(session.run('x', { signal: 3 }), { name: 'TypeError', message: /^signal/ });
});

test('commands leave no descriptor', async (t) => {
  const session = await open(t);
  await session.run('true');
  const before = descriptors();
  for (let round = 0; round < 50; round++) {
    await session.run('echo $BASHPID', { input: 'x' });
  }
  assert.ok(descriptors() <= before + 2);
});
