// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs on the other side of a pipe. The server is a process of this machine.

import assert from 'node:assert/strict';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { constants, hostname } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  AbortError, actions, Env, ExitError, Job, Limiter, Remote, run, Sandbox, Session, sh, SpawnError, Warm,
} from '../dist/index.js';
import { command, descriptors, isRunning, node, pidIn, scratch, until } from './support.mjs';

const SERVER = [command(), 'serve'];

/** A connection that is closed at the end of the test. */
function connect(t, options = {}, argv = SERVER) {
  const box = Remote.command(argv, options);
  t.after(() => box.close());
  return box;
}

/** The pid of the server, which is the parent of its programs. */
const serverOf = async (box) => Number((await box.run(sh('echo $PPID'), { tree: 'group' })).text);

/** Stops the server until the end of the test. */
async function stopServer(t, box) {
  const pid = await serverOf(box);
  process.kill(pid, 'SIGSTOP');
  const goOn = () => {
    try {
      process.kill(pid, 'SIGCONT');
    } catch {
      // The connection has ended the server.
    }
  };
  t.after(goOn);
  return goOn;
}

/** The parts of a result that the place has no influence on. */
function facts(result) {
  const names = ['ok', 'code', 'signal', 'stop', 'statusLost', 'text', 'stderrText', 'omitted', 'output', 'inputRefused',
    'seenBytes', 'drain', 'limits', 'leftovers', 'cwd', 'shellExited'];
  const bytes = ['stdout', 'stderr', 'stdoutHead', 'stdoutTail', 'stderrHead', 'stderrTail'];
  return Object.fromEntries([
    ...names.map((name) => [name, result[name]]),
    ...bytes.map((name) => [name, result[name].toString('latin1')]),
  ]);
}

const RUNS = {
  output: [sh("echo out; printf 'err\\377' >&2; exit 3")],
  signal: [sh('kill -9 $$')],
  keep: [['seq', '100000'], { keep: [100, 200] }],
  all: [['seq', '200000'], { keep: 'all' }],
  timeout: [sh('echo x; exec sleep 1000'), { timeout: 200, grace: 100 }],
  'idle timeout': [['sleep', '1000'], { idleTimeout: 100 }],
  'output limit': [sh('printf %2000s; exec sleep 1000'), { outputLimit: 1000 }],
  merge: [sh('echo a; echo b >&2; echo c'), { stderr: 'merge' }],
  combined: [sh('echo a; sleep 0.1; echo b >&2'), { combined: true }],
  null: [sh('echo a; echo b >&2'), { stdout: 'null', stderr: 'null' }],
  input: [['cat'], { input: 'some text' }],
  'big input': [['cksum'], { input: Buffer.alloc(2_000_000, 'abc') }],
  'refused input': [['true'], { input: Buffer.alloc(1_000_000) }],
  environment: [sh('env | sort'), { env: { PATH: '/usr/bin:/bin', A: 'ä' } }],
  directory: [['pwd'], { cwd: '/usr/lib' }],
  actions: [sh('umask; nice'), { actions: [actions.umask(0o27), actions.nice(3)] }],
  arg0: [sh('echo $0'), { arg0: 'name' }],
  bytes: [['printf', '%s', Buffer.from([0xff, 0xfe])]],
  terminal: [sh('stty size'), { terminal: { rows: 30, columns: 90 } }],
  limits: [['true'], { limits: { cpuTime: 100_000 } }],
};

for (const [name, [argv, options]] of Object.entries(RUNS)) {
  test(`the result is the local one: ${name}`, async (t) => {
    const box = connect(t);
    const local = await run(argv, options);
    const remote = await box.run(argv, options);
    assert.deepEqual(facts(remote), facts(local));
    assert.deepEqual([local.where, remote.where, box.where], [null, box.where, `${hostname()} (spawnfd)`]);
    assert.deepEqual(facts(box.runSync(argv, options)), facts(remote));
    const job = box.start(argv, options);
    let bytes = 0;
    for await (const event of job.events()) {
      bytes += event.data.length;
    }
    const started = await job.wait();
    assert.deepEqual(facts(started), { ...facts(remote), output: started.output });
    assert.equal(started.where, box.where);
    if (started.stop === 'exited') {
      assert.equal(bytes, started.seenBytes);
    }
  });
}

test('a failed start has the local error', async (t) => {
  const box = connect(t);
  const errorOf = (promise) => promise.then(
    () => assert.fail('the program has started'),
    ({ constructor, message, code, stage, action }) => ({ constructor, message, code, stage, action }),
  );
  for (const [argv, options] of [
    [['/nonexistent/program']],
    [['no-such-program']],
    [['/etc']],
    [['true'], { cwd: '/nonexistent' }],
    [['true'], { actions: [actions.umask(0), actions.chroot('/nonexistent')] }],
  ]) {
    const local = await errorOf(run(argv, options));
    assert.equal(local.constructor, SpawnError);
    assert.deepEqual(await errorOf(box.run(argv, options)), local);
    assert.deepEqual(await errorOf(box.start(argv, options).wait()), local);
  }
});

test('the environment is that of the server', async (t) => {
  const box = connect(t, {}, ['env', '-i', 'PLACE=there', `PATH=${process.env.PATH}`, ...SERVER]);
  const of = async (env) => (await box.run(['env'], env && { env })).check().text.split('\n').filter(Boolean).sort();
  const path = `PATH=${process.env.PATH}`;
  assert.deepEqual(await of(), [path, 'PLACE=there']);
  assert.deepEqual(await of(Env.inherit().deny('PL*').set({ X: '1' })), [path, 'X=1']);
  assert.deepEqual(await of(Env.only('PLACE')), ['PLACE=there']);
  assert.deepEqual(await of({ X: '2' }), ['X=2']);
});

test('in a worker, too, the environment is that of the server', async () => {
  const script = `
    const { Worker, isMainThread, parentPort } = require('node:worker_threads');
    const code = "const { Env, Remote } = require(process.env.PACKAGE);" +
      "(async () => { const box = Remote.command(JSON.parse(process.env.TRANSPORT));" +
      "const of = async (env) => (await box.run(['env'], env && { env })).text;" +
      "const all = [await of(), await of(Env.inherit()), await of(Env.inherit().deny('A')), await of(Env.only('B'))];" +
      "await box.close(); require('node:worker_threads').parentPort.postMessage(all); })();";
    new Worker(code, { eval: true, env: { ...process.env, SECRET: '1' } })
      .once('message', (all) => console.log(JSON.stringify(all)));`;
  const TRANSPORT = JSON.stringify(['/usr/bin/env', '-i', 'A=1', 'B=2', ...SERVER]);
  const PACKAGE = new URL('../dist/index.js', import.meta.url).pathname;
  const { stdout, stderr } = await node(script, { env: { PACKAGE, TRANSPORT } });
  assert.equal(stderr, '');
  assert.deepEqual(JSON.parse(stdout), ['A=1\nB=2\n', 'A=1\nB=2\n', 'B=2\n', 'B=2\n']);
});

test('arguments of this process are refused by their names', async (t) => {
  const box = connect(t);
  const warm = new Warm();
  t.after(() => warm.close());
  for (const [options, message] of [
    [{ stdin: 'inherit' }, /stdin/],
    [{ stdin: 0 }, /stdin/],
    [{ stdout: 1 }, /stdout/],
    [{ stderr: 2 }, /stderr/],
    [{ sandbox: new Sandbox(['env']) }, /sandbox/],
    [{ warm }, /warm/],
    [{ actions: [actions.descriptor(0, 5)] }, /descriptor/],
    [{ timeout: -1 }, /^timeout/],
    [{ unknown: 1 }, /unknown/],
    [{ signal: 1 }, /^signal/],
  ]) {
    const error = { name: 'TypeError', message };
    await assert.rejects(box.run(['true'], options), error);
    assert.throws(() => box.start(['true'], options), error);
    if (!('signal' in options)) {
      assert.throws(() => box.runSync(['true'], options), error);
    }
  }
  assert.throws(() => box.session('bash', { sandbox: new Sandbox(['env']) }), { name: 'TypeError', message: /sandbox/ });
  assert.throws(() => box.session('bash', { warm }), { name: 'TypeError', message: /warm/ });
  assert.throws(() => box.session('bash', { signal: 1, shell: true }), { name: 'TypeError', message: /shell/ });
  await assert.rejects(box.run('true'), { name: 'TypeError', message: /^argv must be an array/ });
  assert.ok((await box.run(['true'])).ok);
});

test('a job streams, and takes input', async (t) => {
  const box = connect(t);
  const job = box.start(sh('while read line; do echo got $line; done; echo end >&2'), { stdin: 'stream' });
  assert.ok(job instanceof Job);
  const lines = job.lines();
  for (let number = 0; number < 3; number++) {
    await job.write(`${number}\n`);
    const { value } = await lines.next();
    assert.deepEqual([value.stream, value.text], ['stdout', `got ${number}`]);
  }
  assert.equal(await job.wait(0), null);
  await job.closeStdin();
  const { value } = await lines.next();
  assert.deepEqual([value.stream, value.text, (await lines.next()).done], ['stderr', 'end', true]);
  const result = await job.wait();
  assert.deepEqual([result.ok, result.where], [true, box.where]);
  assert.equal(job.read().text, 'got 0\ngot 1\ngot 2\nend\n');
});

test('a flood reaches a slow reader whole', async (t) => {
  const box = connect(t);
  const chunks = [];
  for await (const { data, lost } of box.start(['seq', '300000'], { timeout: 60_000 })) {
    assert.equal(lost, 0);
    if (chunks.length < 20) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    chunks.push(data);
  }
  assert.equal(Buffer.concat(chunks).toString(), Array.from({ length: 300_000 }, (_, index) => `${index + 1}\n`).join(''));
});

test('a job gets signals and a stop', async (t) => {
  const box = connect(t);
  const job = box.start(sh("trap 'echo usr' USR1; echo ready; while :; do sleep 0.01; done"));
  const lines = job.lines();
  assert.equal((await lines.next()).value.text, 'ready');
  assert.ok(isRunning(job.pid));
  await job.kill('SIGUSR1');
  assert.equal((await lines.next()).value.text, 'usr');
  const result = await job.stop(0);
  assert.deepEqual([result.stop, result.signal, job.running], ['cancelled', constants.signals.SIGKILL, false]);
  const other = await box.start(['sleep', '1000']).started();
  await other[Symbol.asyncDispose]();
  assert.ok(!isRunning(other.pid));
});

test('an abort ends the program, and the error has its result', async (t) => {
  const box = connect(t);
  const file = join(scratch(t), 'pid');
  const script = sh(`trap 'echo trapped; exit 3' TERM; echo $$ > ${file}; sleep 1000 & wait`);
  for (const call of [
    (signal) => box.run(script, { signal, grace: 60_000 }),
    (signal) => box.start(script, { signal, grace: 60_000 }).wait(),
  ]) {
    writeFileSync(file, '');
    const controller = new AbortController();
    const aborted = call(controller.signal);
    const pid = await pidIn(file);
    controller.abort();
    await assert.rejects(aborted, ({ constructor, result }) => {
      assert.deepEqual([constructor, result.stop, result.code], [AbortError, 'cancelled', 3]);
      assert.deepEqual([result.text, result.where], ['trapped\n', box.where]);
      return true;
    });
    assert.ok(!isRunning(pid));
  }
  await assert.rejects(box.run(['true'], { signal: AbortSignal.abort() }), AbortError);
  assert.ok((await box.run(['true'])).ok);
});

test('an abort of a start that waits for the server ends the program', async (t) => {
  const box = connect(t);
  const goOn = await stopServer(t, box);
  const file = join(scratch(t), 'pid');
  const controller = new AbortController();
  const job = box.start(sh(`echo $$ > ${file}; exec sleep 1000`), { signal: controller.signal });
  const ran = box.run(['sleep', '1000'], { signal: controller.signal });
  controller.abort();
  await assert.rejects(job.wait(), (error) => error instanceof AbortError && error.result === undefined);
  goOn();
  await assert.rejects(ran, AbortError);
  assert.ok((await box.ping()) >= 0);
  // The order to end the program has followed its start, or has prevented it.
  let text = '';
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    assert.equal(error.code, 'ENOENT');
  }
  await until(() => text === '' || !isRunning(Number(text)), 'the end of the program');
});

test('an abort while there is no server ends the wait', async (t) => {
  const box = connect(t, { connectTimeout: null }, ['cat']);
  const controller = new AbortController();
  const { signal } = controller;
  const session = box.session();
  const calls = [box.run(['true'], { signal }), box.start(['true'], { signal }).wait(), session.run('true', { signal })];
  controller.abort();
  const isAborted = (error) => error instanceof AbortError && error.result === undefined;
  await Promise.all(calls.map((call) => assert.rejects(call, isAborted)));
  await session.close();
});

test('a killed server loses its programs', async (t) => {
  const box = connect(t);
  const server = await serverOf(box);
  const job = box.start(sh('echo $$; exec sleep 1000'));
  const pid = Number((await job.lines().next()).value.text);
  const ran = box.run(['sleep', '1000']);
  const session = box.session();
  const command = await session.start('sleep 1000').started();
  process.kill(server, 'SIGKILL');
  for (const result of [await ran, await job.wait(), await command.wait()]) {
    const { stop, code, signal, ok, statusLost, where } = result;
    assert.deepEqual([stop, code, signal, ok, statusLost], ['lost', null, null, false, true]);
    assert.equal(where, box.where);
    assert.throws(() => result.check(), (error) => error instanceof ExitError && /lost/.test(error.message));
  }
  assert.equal(job.read().text, `${pid}\n`);
  await until(() => !isRunning(pid), 'the end of the program');
  const lost = { name: 'SpawnError', code: 'ENOTCONN', message: /connection is lost: .*signal 9 has ended the server/ };
  await assert.rejects(box.run(['true']), lost);
  assert.throws(() => box.runSync(['true']), lost);
  await assert.rejects(box.start(['true']).wait(), lost);
  await assert.rejects(box.ping(), lost);
  await assert.rejects(box.session().run('true'), lost);
  await assert.rejects(session.run('true'), lost);
  await assert.rejects(session.processes(), lost);
  await session.close();
});

test('a server that falls silent is lost', async (t) => {
  const box = connect(t, { lease: 500 });
  const job = await box.start(['sleep', '1000']).started();
  await stopServer(t, box);
  const result = await job.wait();
  // The server is a process of this machine, so the end of the transport also reaches the program, and the server may
  // still report that.
  assert.deepEqual([result.ok, result.code], [false, null]);
  assert.ok(result.stop === 'lost' || result.signal === constants.signals.SIGTERM);
  await assert.rejects(box.run(['true']), { code: 'ENOTCONN', message: /silent/ });
  await until(() => !isRunning(job.pid), 'the end of the program');
});

test('a closed connection ends its programs, and is refused', async (t) => {
  const box = connect(t);
  const job = await box.start(['sleep', '1000']).started();
  assert.equal(box.closed, false);
  await Promise.all([box.close(), box.close(), box[Symbol.asyncDispose]()]);
  assert.deepEqual([box.closed, (await job.wait()).stop], [true, 'lost']);
  const closed = { name: 'SpawnError', code: 'ENOTCONN', message: /closed/ };
  await assert.rejects(box.run(['true']), closed);
  await assert.rejects(box.start(['true']).wait(), closed);
  await assert.rejects(box.ping(), closed);
  await until(() => !isRunning(job.pid), 'the end of the program');
});

test('a server that does not answer in time is an error', async (t) => {
  const box = connect(t, { connectTimeout: 200 }, ['cat']);
  assert.equal(box.where, 'cat');
  const late = { name: 'SpawnError', code: 'ETIMEDOUT', message: /^cat: no spawnfd server has answered within 200ms/ };
  await assert.rejects(box.run(['true']), late);
  await assert.rejects(box.ready(), late);
  assert.throws(() => box.runSync(['true']), late);
  assert.throws(() => Remote.command(['cat'], { connectTimeout: 100 }).runSync(['true']), { code: 'ETIMEDOUT' });
  // The timeout also ends a wait of a connection that nothing else refers to.
  await assert.rejects(Remote.command(['cat'], { connectTimeout: 100 }).ping(), { code: 'ETIMEDOUT' });
});

for (const [name, transport, code, words] of [
  ['fails', sh('echo Host key verification failed. >&2; exit 255'), 'ENOTCONN', /Host key/],
  ['ends', ['true'], 'ENOTCONN', /exited with status 0/],
  ['is killed', sh('kill -9 $$'), 'ENOTCONN', /SIGKILL/],
  ['is no server', ['yes'], 'EPROTO', /no spawnfd server/],
]) {
  test(`a transport that ${name} says why`, async (t) => {
    const box = connect(t, {}, transport);
    for (let round = 0; round < 2; round++) {
      await assert.rejects(box.run(['true']), { name: 'SpawnError', code, message: words });
    }
    await assert.rejects(box.ready(), { code, message: words });
  });
}

test('arguments of a connection are checked', () => {
  assert.throws(() => Remote.command(['no-such-transport']), { name: 'SpawnError', code: 'ENOENT' });
  assert.throws(() => Remote.local({ server: '/no-such-server' }), { name: 'SpawnError', code: 'ENOENT' });
  for (const [call, message] of [
    [() => Remote.command([]), /^argv/],
    [() => Remote.command('ssh host'), /^argv/],
    [() => Remote.command(['cat'], { lease: 0 }), /^lease/],
    [() => Remote.command(['cat'], { lease: 'x' }), /^lease/],
    [() => Remote.command(['cat'], { connectTimeout: -1 }), /^connectTimeout/],
    [() => Remote.command(['cat'], { server: 'x' }), /^unexpected option "server"/],
    [() => Remote.local({ server: 1 }), /^server/],
    [() => Remote.ssh('-oProxyCommand=x'), /^host/],
    [() => Remote.ssh('host', { options: '-v' }), /^options/],
    [() => Remote.ssh('host', { options: [1] }), /^options\[0\]/],
    [() => Remote.docker(''), /^container/],
    [() => Remote.docker('id', { user: 0 }), /^user/],
    [() => Remote.kubectl(1), /^pod/],
    [() => Remote.kubectl('pod', { namespace: 1 }), /^namespace/],
  ]) {
    assert.throws(call, { name: 'TypeError', message });
  }
});

test('transports have their arguments', async (t) => {
  const directory = scratch(t);
  const file = join(directory, 'argv');
  for (const name of ['ssh', 'docker', 'kubectl', 'spawnfd']) {
    const path = join(directory, name);
    writeFileSync(path, `#!/bin/sh\nprintf '%s\\n' "$@" > '${file}'\nexec '${SERVER[0]}' serve\n`);
    chmodSync(path, 0o755);
  }
  const { PATH } = process.env;
  process.env.PATH = `${directory}:${PATH}`;
  t.after(() => (process.env.PATH = PATH));
  const check = async (box, transport, ...argv) => {
    assert.equal((await box.run(['true'])).where, `${hostname()} (${transport})`);
    assert.deepEqual(readFileSync(file, 'utf8').split('\n').slice(0, -1), argv);
    await box.close();
  };
  await check(Remote.local(), 'spawnfd', 'serve');
  const options = ['-T', '-o', 'BatchMode=yes'];
  await check(Remote.ssh('me@host'), 'ssh', ...options, '--', 'me@host', 'exec spawnfd serve');
  const box = Remote.ssh('host', { server: "/my tools/it's", options: ['-p', '22'] });
  await check(box, 'ssh', ...options, '-p', '22', '--', 'host', "exec '/my tools/it'\\''s' serve");
  await check(Remote.docker('3f'), 'docker', 'exec', '-i', '3f', 'spawnfd', 'serve');
  const user = Remote.docker('3f', { user: 'app', server: '/s' });
  await check(user, 'docker', 'exec', '-i', '--user', 'app', '3f', '/s', 'serve');
  await check(Remote.kubectl('pod'), 'kubectl', 'exec', '-i', 'pod', '--', 'spawnfd', 'serve');
  const chosen = ['--namespace', 'n', '--container', 'c'];
  const pod = Remote.kubectl('pod', { namespace: 'n', container: 'c' });
  await check(pod, 'kubectl', 'exec', '-i', 'pod', ...chosen, '--', 'spawnfd', 'serve');
});

test('text before the server is passed over', async (t) => {
  const noise = "seq 1000; printf 'Last login: \\0spawnfd'; echo warning >&2; exec \"$@\"";
  const box = connect(t, {}, ['sh', '-c', noise, 'sh', ...SERVER]);
  assert.equal((await box.run(['echo', 'x'])).text, 'x\n');
});

test('many runs at once have their own results', async (t) => {
  const box = connect(t);
  const numbers = Array.from({ length: 100 }, (_, number) => number);
  const texts = await Promise.all(numbers.map(async (number) => (await box.run(['echo', `${number}`])).check().text));
  assert.deepEqual(texts, numbers.map((number) => `${number}\n`));
});

test('a limiter of this side bounds the runs', async (t) => {
  const box = connect(t);
  const limiter = new Limiter(2);
  const held = [1, 2].map(() => box.start(['cat'], { limiter, stdin: 'stream' }));
  await Promise.all(held.map((job) => job.started()));
  const controller = new AbortController();
  const ran = box.run(['echo', 'x'], { limiter });
  const aborted = box.run(['true'], { limiter, signal: controller.signal });
  await until(() => limiter.waiting === 2, 'two runs wait');
  controller.abort();
  await assert.rejects(aborted, AbortError);
  assert.deepEqual([limiter.running, limiter.waiting], [2, 1]);
  await held[0].stop(0);
  assert.equal((await ran).text, 'x\n');
  await held[1].stop(0);
  await until(() => limiter.running === 0, 'no run has a place');
  const session = box.session('bash', { limiter });
  await session.run('true');
  assert.equal(limiter.running, 1);
  await session.close();
  await until(() => limiter.running === 0, 'the shell has returned its place');
});

for (const shell of ['bash', 'dash']) {
  test(`a session of ${shell} keeps its state`, async (t) => {
    const box = connect(t);
    const session = box.session(shell);
    assert.ok(session instanceof Session);
    assert.deepEqual([session.pid, session.closed, await session.processes()], [null, false, []]);
    await session.run('cd /usr; X=1');
    const result = await session.run('echo $X; cat', { input: 'input' });
    assert.deepEqual([result.text, result.cwd, result.where], ['1\ninput', '/usr', session.where]);
    assert.equal((await session.run('sleep 1000', { timeout: 100 })).stop, 'timeout');
    assert.equal((await session.run('echo $Y; pwd', { cwd: '/tmp', env: { Y: '2' } })).text, '2\n/tmp\n');
    assert.equal((await session.run('echo $X; pwd')).text, '1\n/usr\n');
    assert.deepEqual(await session.processes(), []);
    const { pid } = session;
    assert.ok(isRunning(pid));
    await assert.rejects(session.sideCommand(['true']), { name: 'TypeError', message: /^sideCommand/ });
    assert.throws(() => session.resize({ rows: 1, columns: 1 }), { name: 'TypeError', message: /terminal/ });
    await session.close();
    assert.deepEqual([session.closed, session.pid, isRunning(pid)], [true, null, false]);
    await assert.rejects(session.run('true'), /the session is closed/);
  });
}

test('a command of a session is a job', async (t) => {
  const box = connect(t);
  const session = box.session();
  t.after(() => session.close());
  const job = session.start('read x; echo got $x; sleep 1000', { stdin: 'stream' });
  await job.write('word\n');
  assert.equal((await job.lines().next()).value.text, 'got word');
  let names = [];
  while (names[0] !== 'sleep') {
    names = (await session.processes()).map(({ name }) => name);
  }
  assert.deepEqual(names, ['sleep']);
  await assert.rejects(session.run('true'), { name: 'SpawnError', code: 'EBUSY' });
  session.interrupt();
  assert.equal((await job.wait()).code, 130);
  const yielded = await session.run('echo x; sleep 1000', { yieldAfter: 50 });
  assert.ok(yielded instanceof Job);
  assert.equal((await yielded.stop(100)).stop, 'cancelled');
  const controller = new AbortController();
  const aborted = session.start('echo begun; sleep 1000', { signal: controller.signal });
  await aborted.lines().next();
  controller.abort();
  await assert.rejects(aborted.wait(), (error) => error instanceof AbortError && error.result.text === 'begun\n');
  const ended = await session.run('exit 3');
  assert.deepEqual([ended.stop, ended.shellExited, ended.shellCode], ['lost', true, 3]);
  await assert.rejects(session.run('true'), { code: 'ESRCH' });
});

test('commands of a session wait for each other, and a new shell follows', async (t) => {
  const session = connect(t).session('bash', { queue: true, restart: true });
  t.after(() => session.close());
  const results = await Promise.all([0, 1, 2].map((number) => session.run(`N=\${N}${number}; echo $N`)));
  assert.deepEqual(results.map(({ text }) => text), ['0\n', '01\n', '012\n']);
  await session.run('cd /usr');
  await session.run('exit 3');
  assert.equal((await session.run('pwd')).text, '/usr\n');
});

test('a session has a terminal', async (t) => {
  const session = connect(t).session('bash', { terminal: { rows: 30, columns: 90 } });
  t.after(() => session.close());
  assert.equal((await session.run('stty size < /dev/tty')).text, '30 90\r\n');
  session.resize({ rows: 40, columns: 100 });
  assert.equal((await session.run('stty size < /dev/tty')).text, '40 100\r\n');
});

test('closing a session whose shell starts ends the shell', async (t) => {
  const box = connect(t);
  const goOn = await stopServer(t, box);
  const session = box.session();
  const refused = assert.rejects(session.run('echo not this'), /the session is closed/);
  await session.close();
  await refused;
  goOn();
  await box.ping();
  assert.equal(session.pid, null);
});

test('a shell that cannot start is an error', async (t) => {
  const box = connect(t);
  const session = box.session('/no-such-shell');
  for (let round = 0; round < 2; round++) {
    await assert.rejects(session.run('true'), { name: 'SpawnError', code: 'ENOENT', message: /no-such-shell/ });
  }
  await assert.rejects(box.session(['bash', '-c', 'echo wrong >&2; exit 4']).run('true'), { code: 'ESRCH' });
});

test('a connection lives as long as its jobs, and ends with the last reference', async () => {
  const { stdout, stderr } = await node(
    `const pause = () => new Promise((resolve) => setTimeout(resolve, 10));
     const server = ${JSON.stringify(SERVER)};
     const { readFileSync } = require('node:fs');
     const children = () => readFileSync('/proc/self/task/' + process.pid + '/children', 'utf8') +
       require('node:fs').readdirSync('/proc/self/task').map((id) =>
         readFileSync('/proc/self/task/' + id + '/children', 'utf8')).join('');
     const isServed = () => children().split(' ').filter(Boolean).some((pid) =>
       readFileSync('/proc/' + pid + '/cmdline', 'utf8').includes('serve'));
     (async () => {
       const job = Remote.command(server).start(sh('read x; echo $x'), { stdin: 'stream' });
       for (let i = 0; i < 20; i++) { gc(); await pause(); }
       await job.write('word\\n');
       console.log((await job.wait()).text.trim());
       const session = await (async () => {
         const session = Remote.command(server).session();
         await session.run('X=1');
         return session;
       })();
       for (let i = 0; i < 20; i++) { gc(); await pause(); }
       console.log((await session.run('echo $X')).text.trim(), isServed());
     })().then(async () => {
       for (let i = 0; i < 1000 && isServed(); i++) { gc(); await pause(); }
       console.log(isServed());
     });`,
    { flags: ['--expose-gc'] },
  );
  assert.deepEqual([stdout, stderr], ['word\n1 true\nfalse\n', '']);
});

test('a host with an idle connection ends by itself', async () => {
  const { code, stdout } = await node(`
    const box = Remote.command(${JSON.stringify(SERVER)});
    box.run(['echo', 'done']).then((result) => process.stdout.write(result.text));`);
  assert.deepEqual([code, stdout], [0, 'done\n']);
});

test('a connection leaves no descriptor', async (t) => {
  await connect(t).run(['true']);
  const before = descriptors();
  for (let round = 0; round < 20; round++) {
    const box = Remote.command(SERVER);
    await Promise.all([box.run(['true']), box.start(['true']).wait(), box.session().run('true')]);
    await box.close();
  }
  assert.ok(descriptors() <= before + 2);
});
