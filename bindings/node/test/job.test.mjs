// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { AbortError, run, sh, SpawnError, start } from '../dist/index.js';
import { isRunning, NEEDS_NATIVE, pidIn, scratch, until } from './support.mjs';

async function collect(iterable) {
  const items = [];
  for await (const item of iterable) {
    items.push(item);
  }
  return items;
}

test('lines of both streams arrive in order', async () => {
  const job = start(sh('echo one; sleep 0.1; echo two >&2; sleep 0.1; printf three'));
  assert.deepEqual(
    (await collect(job.lines())).map(({ stream, text, partial, lost }) => [stream, text, partial, lost]),
    [['stdout', 'one', false, 0], ['stderr', 'two', false, 0], ['stdout', 'three', false, 0]],
  );
  assert.ok((await job.wait()).ok && job.done);
});

test('a line that is too long is split', async () => {
  const job = start(sh('echo abcdefgh'));
  const lines = await collect(job.lines({ maxLine: 4 }));
  assert.deepEqual(lines.map(({ text, partial }) => [text, partial]), [['abcd', true], ['efgh', false]]);
  await assert.rejects(job.lines({ maxLine: 1 }).next(), { name: 'TypeError' });
});

test('events have all bytes, and an unread job blocks its program', async () => {
  const job = start(['head', '-c', '5000000', '/dev/zero'], { window: 65536 });
  const events = job.events();
  let bytes = (await events.next()).value.data.length;
  assert.equal(await job.wait(200), null, 'the program waits for its reader');
  for await (const event of events) {
    bytes += event.data.length;
  }
  assert.equal(bytes, 5_000_000);
  assert.ok((await job.wait()).ok);
});

test('a slow reader of a flood does not starve the event loop', async () => {
  const job = start(['yes'], { timeout: 60_000 });
  let turns = 0;
  const timer = setInterval(() => turns++, 1);
  let work = 0;
  for await (const event of job) {
    for (const until = performance.now() + 5; performance.now() < until; ) {
      work += event.data.length;
    }
    if (turns >= 10) {
      break;
    }
  }
  clearInterval(timer);
  assert.equal((await job.stop(0)).stop, 'cancelled');
  assert.ok(work > 0);
});

test('a loop that is left early lets the program run on', async () => {
  const job = start(['seq', '1000000'], { window: 65536 });
  for await (const event of job) {
    assert.equal(event.stream, 'stdout');
    break;
  }
  assert.ok((await job.wait()).ok);
});

test('two readers of one job are an error', async () => {
  const job = start(['cat'], { stdin: 'stream' });
  const reading = job.events().next();
  await assert.rejects(job.lines().next(), /another caller reads/);
  await job.closeStdin();
  assert.equal((await reading).done, true);
  await job.wait();
});

test('input is written with back-pressure', async () => {
  const job = start(['wc', '-c'], { stdin: 'stream' });
  for (let count = 0; count < 20; count += 1) {
    await job.write(Buffer.alloc(100_000));
  }
  await job.closeStdin();
  assert.equal((await job.wait()).text.trim(), '2000000');
});

test('writes at once keep their order, and the end of the input comes after them', async () => {
  const job = start(sh('sleep 0.2; cat'), { stdin: 'stream', keep: 'all' });
  const pieces = ['a', 'b', 'c'].map((letter) => letter.repeat(500_000));
  await Promise.all([...pieces.map((piece) => job.write(piece)), job.closeStdin()]);
  assert.ok((await job.wait()).text === pieces.join(''));
});

test('a program that has closed its input is EPIPE, and no stream is EBADF', async () => {
  const closed = start(sh('exec <&-; sleep 1000'), { stdin: 'stream' });
  await assert.rejects(
    async () => {
      for (;;) {
        await closed.write(Buffer.alloc(100_000));
      }
    },
    { name: 'SpawnError', code: 'EPIPE' },
  );
  await closed.stop(0);
  const ended = start(['cat'], { stdin: 'stream' });
  await ended.closeStdin();
  await assert.rejects(ended.write('x'), { name: 'SpawnError', code: 'EPIPE' });
  await ended.wait();
  const none = start(['sleep', '1000']);
  await assert.rejects(none.write('x'), { code: 'EBADF' });
  await none.stop(0);
});

test('the streams of Node', async () => {
  const job = start(sh('cat; echo end >&2'), { stdin: 'stream' });
  const both = Promise.all([job.stdout, job.stderr].map((stream) => stream.setEncoding('utf8').toArray()));
  job.stdin.write('one\n');
  job.stdin.end('two\n');
  const [out, err] = await both;
  assert.deepEqual([out.join(''), err.join('')], ['one\ntwo\n', 'end\n']);
  const { Readable } = await import('node:stream');
  const web = start(['echo', 'web']);
  assert.equal(await new Response(Readable.toWeb(web.stdout)).text(), 'web\n');
  const one = start(sh('head -c 300000 /dev/zero >&2; echo out'));
  assert.equal((await one.stdout.setEncoding('utf8').toArray()).join(''), 'out\n', 'the other stream is not open');
  assert.equal((await one.wait()).seenBytes, 300_004);
  const left = start(['seq', '1000000']);
  for await (const chunk of left.stdout) {
    assert.ok(chunk.length > 0);
    break;
  }
  assert.ok((await left.wait()).ok, 'a destroyed stream does not block the program');
  const big = start(['head', '-c', '3000000', '/dev/zero']);
  assert.equal((await collect(big.stdout)).reduce((sum, chunk) => sum + chunk.length, 0), 3_000_000);
});

test('a waiting caller does not end the program, and read() keeps a cursor', async () => {
  const job = start(sh('echo one; read line; echo $line'), { stdin: 'stream' });
  assert.equal(await job.wait(50), null);
  await until(() => job.read().data.length === 4, 'the first line');
  const first = job.read();
  assert.deepEqual([first.text, first.next, first.lost], ['one\n', 4, 0]);
  await job.write('two\n');
  await job.wait();
  assert.equal(job.read(first.next).text, 'two\n');
  assert.throws(() => job.read(-1), TypeError);
  assert.throws(() => job.wait(-1), TypeError);
});

test('stop() ends the tree, kill() reaches the program', async (t) => {
  const file = join(scratch(t), 'pid');
  const job = start(sh('sleep 1000 & echo $! >"$0"; wait').concat(file));
  const pid = await pidIn(file);
  const result = await job.stop(100);
  assert.equal(result.stop, 'cancelled');
  await until(() => !isRunning(pid), 'the end of the tree');
  const killed = start(['sleep', '1000']);
  await killed.kill('SIGKILL');
  assert.deepEqual([(await killed.wait()).signal, (await killed.wait()).stop], [9, 'exited']);
  const other = start(['sleep', '1000']);
  await assert.rejects(other.kill('SIGNOTHING'), TypeError);
  await assert.rejects(other.kill(999), TypeError);
  await other.kill(15, { tree: true });
  assert.equal((await other.wait()).signal, 15);
});

test('a terminal can be resized', { skip: NEEDS_NATIVE }, async () => {
  const script = 'trap "stty size; exit" WINCH; echo ready; while :; do sleep 0.05; done';
  const job = start(sh(script), { terminal: { rows: 10, columns: 20 } });
  const lines = job.lines();
  assert.equal((await lines.next()).value.text, 'ready');
  await job.resize({ rows: 30, columns: 40 });
  assert.equal((await lines.next()).value.text, '30 40');
  await assert.rejects(job.resize({ rows: -1, columns: 1 }), TypeError);
  assert.ok((await job.wait()).ok);
});

test('a start that fails is an error of each method that waits', async () => {
  const job = start(['no-such-program-here']);
  for (const waiting of [job.wait(), job.started(), job.write('x'), job.stop(), job.events().next()]) {
    await assert.rejects(waiting, (error) => error instanceof SpawnError && error.code === 'ENOENT');
  }
  assert.equal(job.pid, undefined);
  assert.throws(() => start(['true'], { timeout: -1 }), { name: 'TypeError', message: /^timeout must be/ });
  assert.throws(() => start('true'), TypeError);
});

test('a signal ends a job', async () => {
  const controller = new AbortController();
  const job = start(sh('echo begun; exec sleep 1000'), { signal: controller.signal });
  await until(() => job.read().data.length > 0, 'output');
  controller.abort();
  await assert.rejects(job.wait(), (error) => error instanceof AbortError && error.result.text === 'begun\n');
  await assert.rejects(start(['true'], { signal: controller.signal }).wait(), { name: 'AbortError' });
});

test('disposing of a job ends its program', async () => {
  const job = await start(['sleep', '1000']).started();
  const { pid } = job;
  assert.ok(isRunning(pid));
  await job[Symbol.asyncDispose]();
  assert.equal(isRunning(pid), false);
  assert.equal((await job.wait()).stop, 'cancelled');
  await start(['no-such-program-here'])[Symbol.asyncDispose]();
});

test('runs and jobs go side by side', async () => {
  const jobs = Array.from({ length: 20 }, (_, index) => start(['echo', `${index}`]));
  const [texts, runs] = await Promise.all([
    Promise.all(jobs.map(async (job) => (await job.wait()).text)),
    Promise.all(jobs.map(() => run(['true']))),
  ]);
  assert.deepEqual(texts, jobs.map((_, index) => `${index}\n`));
  assert.ok(runs.every((result) => result.ok));
});

test('a stream that is not read does not hold back the other after the end', async () => {
  const job = start(sh('head -c 200000 /dev/zero >&2; echo out'), { keep: 'all' });
  void job.stderr;
  let text = '';
  for await (const chunk of job.stdout) {
    text += chunk;
  }
  assert.equal(text, 'out\n');
  assert.ok((await job.wait()).ok);
});

test('the streams of a job that cannot be started end, and wait() has the error', async () => {
  const job = start(['no-such-program']);
  for await (const chunk of job.stdout) {
    assert.fail(chunk);
  }
  await assert.rejects(job.wait(), { code: 'ENOENT' });
});

test('a wrong signal is refused, and many calls share a signal without a warning', async () => {
  for (const signal of [{ aborted: false }, null, 3]) {
    assert.throws(() => start(['true'], { signal }), { name: 'TypeError', message: 'signal must be an AbortSignal' });
  }
  const warnings = [];
  const warn = (warning) => warnings.push(warning);
  process.on('warning', warn);
  const controller = new AbortController();
  const runs = Array.from({ length: 20 }, () => run(['sleep', '1000'], { signal: controller.signal }));
  controller.abort();
  await Promise.all(runs.map((call) => assert.rejects(call, AbortError)));
  await new Promise((resolve) => setImmediate(resolve));
  process.off('warning', warn);
  assert.deepEqual(warnings, []);
});
