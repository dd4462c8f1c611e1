// SPDX-License-Identifier: MIT OR Apache-2.0
// Effect's commands run by this library.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { Deferred, Effect, Exit, Fiber, PlatformError, Redacted, Sink, Stream } from 'effect';
import { ChildProcess, ChildProcessSpawner } from 'effect/process';
import { layer } from 'spawnfd/effect';
import { isRunning, pidIn, scratch, until } from './support.mjs';

function runs(effect) {
  return Effect.runPromise(Effect.scoped(effect).pipe(Effect.provide(layer)));
}

function shell(script, options) {
  return ChildProcess.make(script, { shell: true, ...options });
}

function text(stream) {
  return Stream.mkString(Stream.decodeText(stream));
}

/** Runs an effect that fails, and returns its error. */
function failure(effect) {
  return runs(Effect.flip(effect));
}

const use = (call) => Effect.flatMap(ChildProcessSpawner.ChildProcessSpawner, call);

test('the functions of the service', async () => {
  assert.equal(await runs(use((spawner) => spawner.string(ChildProcess.make`echo ${'one two'}`))), 'one two\n');
  assert.deepEqual(await runs(use((spawner) => spawner.lines(shell('echo a; echo b')))), ['a', 'b']);
  assert.equal(await runs(use((spawner) => spawner.exitCode(shell('head -c 3000000 /dev/zero; exit 3')))), 3);
  const both = use((spawner) => spawner.string(shell('echo out; sleep 0.1; echo err >&2'), { includeStderr: true }));
  assert.equal(await runs(both), 'out\nerr\n');
});

test('a handle has pid, streams, state and exit code', async () => {
  const effect = Effect.gen(function* () {
    const handle = yield* shell('echo out; echo err >&2; read line; exit $line');
    assert.ok(isRunning(handle.pid) && (yield* handle.isRunning));
    const output = yield* Effect.forkChild(Effect.all([text(handle.stdout), text(handle.stderr)]));
    yield* Stream.run(Stream.make(Buffer.from('4\n')), handle.stdin);
    const code = yield* handle.exitCode;
    return [code, yield* handle.isRunning, ...(yield* Fiber.join(output))];
  });
  assert.deepEqual(await runs(effect), [4, false, 'out\n', 'err\n']);
});

test('input may be a stream, and its failure is that of the exit code', async () => {
  const input = Stream.fromIterable(Array.from({ length: 30 }, () => new Uint8Array(100_000)));
  assert.equal((await runs(use((spawner) => spawner.string(ChildProcess.make('wc', ['-c'], { stdin: input }))))).trim(), '3000000');
  const broken = Stream.fail(PlatformError.badArgument({ module: 'Test', method: 'input' }));
  const effect = Effect.flatMap(ChildProcess.make('sleep', ['1000'], { stdin: broken }), (handle) => handle.exitCode);
  assert.equal((await failure(effect)).reason.module, 'Test');
  const unread = ChildProcess.make('true', { stdin: input });
  assert.equal(await runs(use((spawner) => spawner.exitCode(unread))), 0);
});

test('output may go to a sink, be discarded, and be piped on', async () => {
  const chunks = [];
  const sink = Sink.forEach((chunk) => Effect.sync(() => void chunks.push(chunk)));
  await runs(Effect.flatMap(shell('echo out; echo err >&2', { stdout: sink }), (handle) => Stream.runDrain(handle.stdout)));
  assert.equal(Buffer.concat(chunks).toString(), 'out\n');
  assert.equal(await runs(use((spawner) => spawner.string(shell('echo out', { stdout: 'ignore' })))), '');
  const sorted = shell('echo b; echo a; echo c >&2').pipe(
    ChildProcess.pipeTo(ChildProcess.make`sort`, { from: 'all' }),
    ChildProcess.pipeTo(ChildProcess.make`tr a-z A-Z`),
  );
  assert.equal(await runs(use((spawner) => spawner.string(sorted))), 'A\nB\nC\n');
  const toFd = shell('echo').pipe(ChildProcess.pipeTo(ChildProcess.make`cat`, { to: 'fd3' }));
  assert.match((await failure(toFd)).message, /to fd3 is not supported/);
});

test('a slow reader gets all output, and one stream does not block the other', async () => {
  const slow = Effect.gen(function* () {
    const handle = yield* shell('head -c 3000000 /dev/zero; head -c 500000 /dev/zero >&2');
    const size = (stream) => Stream.runFold(stream, () => 0, (sum, chunk) => sum + chunk.length);
    yield* Effect.sleep(300);
    return [yield* size(handle.stdout), yield* size(handle.stderr), yield* handle.exitCode];
  });
  assert.deepEqual(await runs(slow), [3_000_000, 500_000, 0]);
});

test('after a partial read of both outputs, the program runs on', async () => {
  const script = 'echo begun; head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3';
  const effect = Effect.gen(function* () {
    const handle = yield* shell(script);
    const begun = yield* text(Stream.take(handle.all, 1));
    return [begun.slice(0, 6), yield* handle.exitCode];
  });
  assert.deepEqual(await runs(effect), ['begun\n', 3]);
});

test('directory and environment', async (t) => {
  const cwd = scratch(t);
  const string = (script, options) => runs(use((spawner) => spawner.string(shell(script, options))));
  assert.equal(await string('pwd', { cwd }), `${cwd}\n`);
  assert.equal(await string('echo "$A,$HOME"', { env: { A: Redacted.make('a') } }), 'a,\n');
  const extended = { extendEnv: true, env: { A: 'a', HOME: undefined } };
  assert.equal(await string('echo "$A,$HOME,$PATH"', extended), `a,,${process.env.PATH}\n`);
});

test('the end of the scope ends the tree', async (t) => {
  const file = join(scratch(t), 'pid');
  const script = `trap '' TERM; sleep 1000 & echo $! >${file}; wait; exec sleep 1000`;
  const pids = await runs(
    Effect.flatMap(shell(script, { forceKillAfter: 100 }), ({ pid }) =>
      Effect.map(Effect.promise(() => pidIn(file)), (grandchild) => [pid, grandchild]),
    ),
  );
  await until(() => !pids.some(isRunning), 'the end of the tree');
});

test('the end of the scope ends a program whose end cannot be as the options say', async () => {
  const command = ChildProcess.make('sleep', ['1000'], { forceKillAfter: 'no duration' });
  const pid = await runs(Effect.map(command, (handle) => handle.pid));
  assert.equal(isRunning(pid), false);
});

test('an interruption ends the tree', async () => {
  const started = Deferred.makeUnsafe();
  const effect = Effect.flatMap(ChildProcess.make('sleep', ['1000']), (handle) =>
    Effect.andThen(Deferred.succeed(started, handle.pid), handle.exitCode),
  );
  const fiber = Effect.runFork(Effect.scoped(effect).pipe(Effect.provide(layer)));
  const pid = await Effect.runPromise(Deferred.await(started));
  assert.ok(isRunning(pid));
  assert.ok(Exit.isFailure(await Effect.runPromise(Effect.andThen(Fiber.interrupt(fiber), Fiber.await(fiber)))));
  assert.equal(isRunning(pid), false);
});

test('kill() sends the signal, and the exit code is then an error', async () => {
  const trapped = Effect.gen(function* () {
    const handle = yield* shell("trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done");
    yield* Stream.runDrain(Stream.take(handle.stdout, 1));
    yield* handle.kill({ killSignal: 'SIGINT', forceKillAfter: '1 minute' });
    return yield* handle.exitCode;
  });
  assert.equal(await runs(trapped), 5);
  const killed = Effect.flatMap(ChildProcess.make('sleep', ['1000']), (handle) =>
    Effect.andThen(handle.kill(), handle.exitCode),
  );
  assert.match((await failure(killed)).message, /signal 15 ended the program/);
});

test('a start that fails is a PlatformError', async () => {
  const missing = await failure(ChildProcess.make('no-such-program-here'));
  assert.deepEqual([missing._tag, missing.reason._tag], ['PlatformError', 'NotFound']);
  const late = ChildProcess.make('true', { cwd: '/no/such' });
  for (const call of ['string', 'exitCode']) {
    assert.equal((await failure(use((spawner) => spawner[call](late)))).reason._tag, 'NotFound');
  }
  for (const command of [
    ChildProcess.make('echo', ['x'], { shell: true }),
    ChildProcess.make('true', { additionalFds: { fd3: { type: 'output' } } }),
    ChildProcess.make('true', ['a\0b']),
    ChildProcess.make('true', { killSignal: 'SIGINFO' }),
  ]) {
    assert.equal((await failure(command)).reason._tag, 'BadArgument');
  }
  const unref = Effect.flatMap(ChildProcess.make('true'), (handle) => handle.unref);
  assert.match((await failure(unref)).message, /unref is not supported/);
});
