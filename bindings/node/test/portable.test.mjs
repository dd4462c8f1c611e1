// SPDX-License-Identifier: MIT OR Apache-2.0
// The implementation over child_process, for systems other than Linux. SPAWNFD_PORTABLE=1 selects it on Linux.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { descriptors, isRunning, node, PACKAGE, pidIn, scratch, until } from './support.mjs';

process.env.SPAWNFD_PORTABLE = '1';
const {
  actions, Env, ExitError, Limiter, Remote, run, runSync, Sandbox, Session, sh, start, Template, Unsupported, Warm,
} = await import('../dist/index.js');

const WAYS = { run, runSync: async (...given) => runSync(...given) };

test('the tests of run() and start() pass', async () => {
  const files = ['run', 'job'].map((name) => fileURLToPath(new URL(`${name}.test.mjs`, import.meta.url)));
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const options = ['--test', '--test-reporter=tap', '--test-concurrency=1', ...files];
  const child = spawn(process.execPath, options, { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const output = (await child.stdout.setEncoding('utf8').toArray()).join('');
  const count = (what) => Number(new RegExp(`^# ${what} (\\d+)$`, 'm').exec(output)[1]);
  assert.equal(count('fail'), 0, output);
  assert.ok(count('pass') >= 30, output);
});

for (const [way, run] of Object.entries(WAYS)) {
  test(`${way}: the result says how the program ran`, async () => {
    const result = await run(sh('echo out; echo err >&2; exit 3'));
    assert.deepEqual([result.code, result.text, result.stderrText], [3, 'out\n', 'err\n']);
    assert.deepEqual([result.tree, result.treeComplete, result.started], ['group', false, 'child_process']);
    assert.deepEqual([result.drain, result.leftoversUnknown, result.cpu, result.maxRss], ['eof', false, 0, 0]);
    assert.equal(JSON.parse(JSON.stringify(result)).stdout, 'out\n');
    assert.throws(() => result.check(), ExitError);
    assert.throws(() => result.check(), { message: '/bin/sh exited with status 3: err' });
    const late = await run(['sleep', '1000'], { timeout: 20 });
    assert.throws(() => late.check(), { message: 'sleep timed out after 0.02 s and was killed by SIGTERM' });
  });

  test(`${way}: options reach the program`, async (t) => {
    const directory = scratch(t);
    const text = async (argv, options) => (await run(argv, options)).check().text;
    assert.equal(await text(['pwd'], { cwd: directory }), `${directory}\n`);
    assert.equal(await text(['cat'], { input: 'häh' }), 'häh');
    assert.equal(await text(['/usr/bin/env'], { env: Env.of({ A: '1' }).set({ B: 'ü' }) }), 'A=1\nB=ü\n');
    assert.equal(await text(sh('echo $0'), { arg0: 'name' }), 'name\n');
    assert.equal(await text(sh('echo e >&2'), { stderr: 'merge', tree: 'auto' }), 'e\n');
    assert.equal(await text(sh('echo o; echo e >&2'), { stdout: 'null', stderr: 'merge' }), '');
  });

  test(`${way}: output beyond keep is omitted, and spilled`, async (t) => {
    const kept = await run(['seq', '10000'], { keep: [4, 6] });
    assert.equal(kept.text, '1\n2\n[… 48,884 bytes omitted …]\n10000\n');
    assert.deepEqual([kept.stdoutHead.toString(), kept.stdoutTail.toString()], ['1\n2\n', '10000\n']);
    assert.deepEqual(kept.omitted, { stdout: { bytes: 48_884, offset: 4 }, stderr: { bytes: 0, offset: 0 } });
    assert.equal((await run(sh('printf aéééb'), { keep: [2, 4], marker: null })).text, 'aéb');
    assert.equal((await run(['seq', '100000'], { keep: 'all' })).stdout.length, 588_895);
    const dir = scratch(t);
    const spilled = await run(['seq', '10000'], { keep: [0, 0], spill: { dir, persist: true } });
    assert.equal(readFileSync(spilled.spillPath, 'utf8').split('\n').length, 10_001);
    assert.deepEqual(spilled.spilled, { bytes: 48_894, end: 'whole' });
    const capped = await run(['seq', '10000'], { keep: [0, 0], spill: { dir, maxBytes: 100 } });
    assert.deepEqual([capped.spilled, readFileSync(capped.spillPath).length], [{ bytes: 100, end: 'capped' }, 100]);
    const failed = await run(['seq', '10000'], { keep: [0, 0], spill: { dir: join(dir, 'missing') } });
    assert.deepEqual([failed.spillPath, failed.spilled], [null, { bytes: 0, end: 'failed', errno: 'ENOENT' }]);
    assert.equal((await run(['echo'], { spill: {} })).spilled, null);
  });

  test(`${way}: a grandchild that holds the pipe is killed after the drain`, async () => {
    const result = await run(sh('sleep 1000 & echo $!'), { drain: 50 });
    assert.deepEqual([result.ok, result.drain, result.leftoversUnknown], [true, 'cut: ?', true]);
    await until(() => !isRunning(Number(result.text)), 'the end of the grandchild');
    const detached = await run(sh('sleep 1000 & echo $!'), { drain: 50, leftovers: 'detach' });
    assert.ok(isRunning(Number(detached.text)));
    process.kill(Number(detached.text));
  });

  test(`${way}: limits of time and output end the tree`, async () => {
    const idle = await run(sh('echo begun; sleep 1000'), { idleTimeout: 200, grace: 0 });
    assert.deepEqual([idle.stop, idle.signal, idle.text], ['idle_timeout', 9, 'begun\n']);
    assert.equal((await run(['yes'], { outputLimit: 100_000 })).stop, 'output_limit');
    const stubborn = await run(sh('trap "" TERM; echo begun; while :; do sleep 0.05; done'), { timeout: 300, grace: 100 });
    assert.deepEqual([stubborn.stop, stubborn.signal], ['timeout', 9]);
  });

  test(`${way}: what needs Linux is named`, async () => {
    for (const [options, feature] of [
      [{ terminal: { rows: 1, columns: 1 } }, 'the option terminal'],
      [{ limits: { memory: 1 } }, 'the option limits'],
      [{ actions: [actions.setsid()] }, 'the option actions'],
      [{ combined: true }, 'the option combined'],
      [{ tree: 'cgroup' }, "tree: 'cgroup'"],
      [{ leftovers: 'adopt' }, "leftovers: 'adopt'"],
    ]) {
      await assert.rejects(run(['true'], options), (error) => {
        assert.ok(error instanceof Unsupported, String(error));
        assert.deepEqual([error.code, error.message], ['ERR_UNSUPPORTED', `${feature} is not supported on linux`]);
        return true;
      });
    }
    await assert.rejects(run(['echo', Buffer.from([0xff])]), { message: /^argv\[1\] that is not UTF-8 is/ });
    await assert.rejects(run(['true'], { limits: { memory: -1 } }), { name: 'TypeError' });
  });
}

test('classes that need Linux are named', async () => {
  for (const [make, name] of [
    [() => new Session(), 'Session'],
    [() => new Warm(), 'Warm'],
    [() => new Template('true'), 'Template'],
    [() => new Sandbox(['env']), 'Sandbox'],
    [() => Remote.local(), 'Remote'],
    [() => start(['true'], { warm: {} }), 'the option warm'],
  ]) {
    assert.throws(make, { name: 'Unsupported', message: `${name} is not supported on linux` });
  }
  await assert.rejects(Session.open(), Unsupported);
});

test('a job drops output if its reader is too slow', async () => {
  const job = start(['head', '-c', '1000000', '/dev/zero'], { window: 70_000 });
  await job.wait();
  const { next, lost, data } = job.read();
  assert.deepEqual([next, lost, data.length], [1_000_000, 930_000, 70_000]);
  let seen = 0;
  let dropped = 0;
  for await (const event of job.events()) {
    seen += event.data?.length ?? 0;
    dropped += event.lost;
  }
  assert.equal(seen + dropped, 1_000_000);
  assert.ok(seen <= 70_000);
});

test('environments are values', () => {
  const env = Env.of({ A_TOKEN: '1', B: '2', PAGER: 'less' });
  assert.deepEqual(env.deny('*_TOKEN').noninteractive().set({ B: undefined }).toObject().PAGER, 'cat');
  assert.deepEqual(Object.keys(env.deny('?_TOKEN', 'P*').toObject()), ['B']);
  assert.equal(Env.of({ FORCE_COLOR: '1' }).noninteractive().get('FORCE_COLOR'), undefined);
  assert.equal(Env.only('PAT?').get('PATH'), process.env.PATH);
  assert.throws(() => Env.of({ 'A=': '1' }), { name: 'TypeError', message: 'env: "A=" is not a name of a variable' });
  assert.throws(() => Env.of({ A: '\0' }), { name: 'TypeError' });
});

test('runSync() does not wait for a limiter', async () => {
  const limiter = new Limiter(1);
  assert.ok(runSync(['true'], { limiter }).ok);
  const job = await start(['sleep', '1000'], { limiter }).started();
  assert.throws(() => runSync(['true'], { limiter }), Unsupported);
  await job.stop(0);
  assert.deepEqual([limiter.running, runSync(['true'], { limiter }).ok], [0, true]);
});

test('modules of NODE_OPTIONS do not disturb runSync(), and the program gets NODE_OPTIONS', async (t) => {
  const file = join(scratch(t), 'main.cjs');
  writeFileSync(file, "if (!require('node:worker_threads').isMainThread) throw new Error('only for the main thread');");
  const NODE_OPTIONS = `--require=${file}`;
  const { stdout, stderr } = await node("console.log(runSync(sh('echo $NODE_OPTIONS')).text);", { env: { NODE_OPTIONS } });
  assert.deepEqual([stdout, stderr], [`${NODE_OPTIONS}\n\n`, '']);
});

test('runSync() fails if its worker thread fails', async (t) => {
  // Copies of the package, each with a file that breaks the worker.
  const outcome = async (name, change) => {
    const directory = join(scratch(t), 'dist');
    cpSync(dirname(PACKAGE), directory, { recursive: true });
    change(join(directory, 'portable', name));
    const script = `try { require(${JSON.stringify(join(directory, 'index.js'))}).runSync(['true']); }
      catch (error) { console.log(error.name, error.message); }`;
    return (await node(script)).stdout;
  };
  const [broken, missing] = await Promise.all([
    outcome('program.js', (path) => appendFileSync(path, "exports.launch = () => { throw new Error('broken'); };")),
    outcome('worker.js', (path) => rmSync(path)),
  ]);
  assert.match(broken, /^SpawnError the worker thread of runSync\(\) ended without a result/);
  assert.match(missing, /^SpawnError true was not started: no worker thread within 10 s/);
});

for (const [name, end] of [['exit', 'process.exit(0)'], ['an uncaught exception', "throw new Error('on purpose')"]]) {
  test(`${name} ends the tree`, async (t) => {
    const file = join(scratch(t), 'pid');
    const script = `start(sh('trap "" TERM; sleep 1000 & echo $! >"$0"; wait').concat(process.argv.at(-1)));
      const { existsSync, readFileSync } = require('node:fs');
      setInterval(() => {
        if (existsSync(process.argv.at(-1)) && readFileSync(process.argv.at(-1), 'utf8').endsWith('\\n')) { ${end}; }
      }, 5);`;
    await node(script, { args: [file] });
    const pid = await pidIn(file);
    await until(() => !isRunning(pid), 'the end of the tree');
  });
}

test('a spill file is removed with its host', async () => {
  const { stdout } = await node("run(['seq', '10000'], { keep: [0, 0], spill: {} }).then((r) => console.log(r.spillPath));");
  assert.match(stdout, /spawnfd-/);
  assert.equal(existsSync(stdout.trim()), false);
});

test('runs leave no descriptor', async () => {
  const some = () => Promise.all(Array.from({ length: 20 }, () => run(['cat'], { input: 'x' })));
  await some();
  const before = descriptors();
  for (let count = 0; count < 5; count += 1) {
    await some();
    runSync(['true']);
  }
  await until(() => descriptors() <= before + 2, 'the end of the workers');
});
