// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { AbortError, ExitError, Limiter, run, runSync, sh, SpawnError } from '../dist/index.js';
import { isRunning, NEEDS_NATIVE, node, pidIn, scratch, until } from './support.mjs';

/** Both ways to run a program to its end. */
const WAYS = { run, runSync: async (...given) => runSync(...given) };

for (const [way, run] of Object.entries(WAYS)) {
  test(`${way}: check() throws for a run that is not ok`, async () => {
    const ok = await run(['true']);
    assert.equal(ok.check(), ok);
    const failed = await run(sh('echo why >&2; exit 2'));
    assert.throws(
      () => failed.check(),
      (error) => error instanceof ExitError && error.result === failed && /\b2\b.*why/s.test(error.message),
    );
  });

  test(`${way}: a program that cannot be started is a SpawnError`, async () => {
    await assert.rejects(run(['no-such-program-here']), (error) => {
      assert.ok(error instanceof SpawnError);
      assert.deepEqual([error.name, error.code, error.errno, error.stage], ['SpawnError', 'ENOENT', -2, 'template']);
      return /^no-such-program-here: not found in PATH/.test(error.message);
    });
    await assert.rejects(run(['true'], { cwd: '/no/such/directory' }), { code: 'ENOENT', stage: 'cwd' });
    await assert.rejects(run(['/etc/passwd']), { code: 'EACCES' });
  });

  test(`${way}: a timeout is a result, and ends the process tree`, async (t) => {
    const file = join(scratch(t), 'pid');
    const result = await run(sh('echo begun; sleep 1000 & echo $! >"$0"; wait').concat(file), { timeout: 300, grace: 100 });
    assert.deepEqual([result.stop, result.code, result.text], ['timeout', null, 'begun\n']);
    const pid = await pidIn(file);
    await until(() => !isRunning(pid), 'the end of the tree');
  });

  test(`${way}: a program has the default signals`, async () => {
    // Node itself ignores some. The C library's own signals, 32 and 33, stay as the host has inherited them.
    const { text } = await run(['grep', 'Sig[BI]', '/proc/self/status']);
    assert.match(text, /^SigBlk:\t0+\nSigIgn:\t0{7}[01][08]0{7}\n$/);
  });

  test(`${way}: a wrong argument is a TypeError that names it`, async () => {
    for (const [argv, options, text] of [
      [['true'], { idle_timeout: 1 }, 'unexpected option "idle_timeout"; its name is idleTimeout'],
      [['true'], { window: 1 }, 'unexpected option "window"; start() accepts it'],
      [['true'], { limits: { memoryy: 1 } }, 'unexpected option "limits.memoryy"'],
      [['true'], { limiter: {} }, 'limiter must be a Limiter, got a value of type object'],
      [['true'], { terminal: { rows: 1 } }, 'terminal must have columns'],
    ]) {
      await assert.rejects(run(argv, options), (error) => {
        assert.deepEqual([error.constructor, error.message], [TypeError, text]);
        return true;
      });
    }
  });
}

test('an aborted run ends its tree, and the error has the output', async (t) => {
  const file = join(scratch(t), 'pid');
  const controller = new AbortController();
  const running = run(sh('echo begun; sleep 1000 & echo $! >"$0"; wait').concat(file), { signal: controller.signal });
  const pid = await pidIn(file);
  controller.abort(new Error('enough'));
  await assert.rejects(running, (error) => {
    assert.ok(error instanceof AbortError && error.code === 'ABORT_ERR');
    assert.deepEqual([error.cause.message, error.result.stop, error.result.text], ['enough', 'cancelled', 'begun\n']);
    return true;
  });
  await until(() => !isRunning(pid), 'the end of the tree');
  await assert.rejects(run(['true'], { signal: controller.signal }), { name: 'AbortError', result: undefined });
  await assert.rejects(run(['true'], { signal: 1 }), { name: 'TypeError', message: 'signal must be an AbortSignal' });
});

test('an AbortSignal has no listeners once a run has ended', async () => {
  const { signal } = new AbortController();
  let listeners = 0;
  for (const [name, change] of [['addEventListener', 1], ['removeEventListener', -1]]) {
    const original = signal[name];
    signal[name] = function (...given) {
      listeners += change;
      return original.apply(this, given);
    };
  }
  await run(['true'], { signal });
  await assert.rejects(run(['no-such-program-here'], { signal }));
  await assert.rejects(run(['true'], { signal, timeout: -1 }));
  assert.equal(listeners, 0);
});

test('a limiter bounds what runs at once, and an aborted call leaves its queue', async (t) => {
  assert.throws(() => new Limiter(0), { name: 'TypeError', message: 'limit must be a whole number > 0, got 0' });
  const limiter = new Limiter(2);
  const controller = new AbortController();
  const file = join(scratch(t), 'started');
  const first = [1, 2].map(() => run(['sleep', '1000'], { limiter, signal: controller.signal }));
  await until(() => limiter.running === 2, 'two programs');
  const waiting = [1, 2, 3].map(() => run(['touch', file], { limiter, signal: controller.signal }));
  await until(() => limiter.waiting === 3, 'calls in the queue');
  controller.abort();
  const ended = await Promise.allSettled([...first, ...waiting]);
  assert.deepEqual(ended.map(({ reason }) => reason?.name), ended.map(() => 'AbortError'));
  assert.ok(!existsSync(file), 'a call in the queue has run');
  assert.deepEqual([limiter.limit, limiter.running, limiter.waiting], [2, 0, 0]);
  const results = await Promise.all(Array.from({ length: 20 }, () => run(['true'], { limiter })));
  assert.ok(results.every((result) => result.ok));
});

test('many runs at once keep their results apart', async () => {
  const results = await Promise.all(Array.from({ length: 200 }, (_, index) => run(['echo', `${index}`])));
  assert.deepEqual(results.map((result) => result.text), Array.from({ length: 200 }, (_, index) => `${index}\n`));
});

test('combined output is decoded only on access', { skip: NEEDS_NATIVE }, async () => {
  // JSON has 6 characters for each NUL: more than V8 permits in a string.
  const size = 90_000_000;
  const result = await run(['head', '-c', `${size}`, '/dev/zero'], { combined: true, keep: 'all' });
  const { ok, stop, code, signal, seenBytes } = result;
  assert.deepEqual([ok, stop, code, signal, seenBytes], [true, 'exited', 0, null, size]);
  const { output } = result;
  assert.deepEqual(output.map(({ stream, text }) => [stream, text.length]), [['stdout', size]]);
  assert.equal(result.output, output);
});

test('inspection shows why a run ended', async () => {
  const result = await run(sh('echo out; exit 3'));
  assert.equal(inspect(result), "RunResult { stop: 'exited', code: 3, signal: null }");
  assert.deepEqual(Object.keys(result), ['stop', 'code', 'signal']);
});

test('a start does not block the event loop', async () => {
  let ticks = 0;
  const timer = setInterval(() => (ticks += 1), 1);
  await run(['sleep', '0.2']);
  clearInterval(timer);
  assert.ok(ticks > 5, `${ticks} ticks`);
});

test('an undefined variable is none', async () => {
  assert.equal((await run(['env'], { env: { A: '1', B: undefined } })).text, 'A=1\n');
});

test('a change of the environment counts for later runs', async (t) => {
  t.after(() => delete process.env.SPAWNFD_TEST_VARIABLE);
  for (const value of ['one', 'two']) {
    process.env.SPAWNFD_TEST_VARIABLE = value;
    assert.equal((await run(sh('echo $SPAWNFD_TEST_VARIABLE'))).text, `${value}\n`);
  }
});

test('a program inherits the streams of Node', async () => {
  const script = `
    (async () => {
      const streams = { stdin: 'inherit', stdout: 'inherit', stderr: 'inherit' };
      runSync(sh('head -n 1; echo error >&2'), streams);
      await run(sh('echo run'), streams);
      await start(sh('echo start'), streams).wait();
    })();`;
  const { stdout, stderr, code } = await node(script, { input: 'line\n' });
  assert.deepEqual([stdout, stderr, code], ['line\nrun\nstart\n', 'error\n', 0]);
});
