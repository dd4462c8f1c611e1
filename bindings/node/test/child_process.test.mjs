// SPDX-License-Identifier: MIT OR Apache-2.0
// The replacement of node:child_process.

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { getEventListeners, once } from 'node:events';
import { chmodSync, closeSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, connect } from 'node:net';
import * as original from 'node:child_process';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Worker } from 'node:worker_threads';
import * as replaced from '../dist/child_process.js';
import { descriptors, isRunning, node, scratch, until } from './support.mjs';

const { exec, execFile, execFileSync, execSync, fork, spawn, spawnSync, stats } = replaced;
const MODULE = fileURLToPath(new URL('../dist/child_process.js', import.meta.url));
const INSTALL = fileURLToPath(new URL('../dist/install.js', import.meta.url));
const IS_ROOT = process.getuid() === 0;
const check = (name, run, options = {}) => test(name, { timeout: 60_000, ...options }, run);

/** Fails unless this library made the starts of `call`: so many. */
async function startsOf(count, call) {
  const before = stats();
  const result = await call();
  const after = stats();
  assert.deepEqual(after, { ...before, started: before.started + count });
  return result;
}

/** A child's end: exit code, signal and output. */
async function ended(child) {
  const output = ['stdout', 'stderr'].map((name) => (child[name] ? text(child[name]) : null));
  const [code, signal] = await once(child, 'close');
  return { code, signal, stdout: await output[0], stderr: await output[1] };
}

/** Runs a script that has the replacement as `cp` in another Node. */
const inNode = (script, options) => node(`const cp = require(${JSON.stringify(MODULE)});\n${script}`, options);

check('events arrive in order, and the streams have the output', async () => {
  await startsOf(1, async () => {
    const child = spawn('sh', ['-c', 'cat; echo err >&2; exit 3'], { argv0: 'other' });
    const events = [];
    for (const name of ['spawn', 'exit', 'close', 'error']) {
      child.on(name, (...args) => events.push([name, ...args]));
    }
    assert.ok(child.pid > 0);
    assert.deepEqual([child.spawnfile, child.spawnargs], ['sh', ['other', '-c', 'cat; echo err >&2; exit 3']]);
    child.stdin.end('input');
    assert.deepEqual(await ended(child), { code: 3, signal: null, stdout: 'input', stderr: 'err\n' });
    assert.deepEqual(events, [['spawn'], ['exit', 3, null], ['close', 3, null]]);
    assert.ok(child instanceof replaced.ChildProcess && child instanceof original.ChildProcess);
  });
});

check('each form of stdio', async (t) => {
  const path = join(scratch(t), 'file');
  const fd = openSync(path, 'w+');
  const server = createServer((socket) => socket.end('from the server')).listen(0);
  await once(server, 'listening');
  const socket = connect(server.address().port);
  await once(socket, 'connect');
  await startsOf(2, async () => {
    const script = 'read line; echo "$line" >&4; cat <&5 >&3; readlink /proc/self/fd/1; [ -e /proc/self/fd/6 ] || echo closed';
    const child = spawn('sh', ['-c', script], { stdio: ['pipe', fd, 'ignore', 'overlapped', 'pipe', socket, 'ignore'] });
    assert.equal(child.stdio.length, 7);
    assert.deepEqual([child.stdout, child.stderr, child.stdio[5], child.stdio[6]], [null, null, null, null]);
    const [third, fourth] = [text(child.stdio[3]), text(child.stdio[4])];
    child.stdin.end('a line\n');
    await once(child, 'close');
    assert.deepEqual([await third, await fourth], ['from the server', 'a line\n']);
    assert.equal(readFileSync(path, 'utf8'), `${path}\nclosed\n`);
    // A file object and an inherited stream.
    const stream = { fd };
    const inherited = spawn('sh', ['-c', 'echo x; readlink /proc/self/fd/2'], { stdio: ['inherit', stream, 'inherit'] });
    await once(inherited, 'close');
    assert.match(readFileSync(path, 'utf8'), /closed\nx\n.+\n$/);
  });
  closeSync(fd);
  socket.destroy();
  server.close();
});

check('a pipe of a child is readable and writable on both sides', async () => {
  const child = spawn('sh', ['-c', 'read x <&3; echo "got $x" >&3'], { stdio: ['ignore', 'inherit', 'inherit', 'pipe'] });
  child.stdio[3].write('word\n');
  assert.equal(await text(child.stdio[3]), 'got word\n');
  await once(child, 'close');
});

check('signals by name and number', async () => {
  for (const [given, name] of [[undefined, 'SIGTERM'], ['SIGKILL', 'SIGKILL'], [10, 'SIGUSR1'], ['SIGABRT', 'SIGABRT']]) {
    const child = spawn('sleep', ['1000']);
    assert.equal(child.kill(0), true);
    assert.equal(child.kill(given), true);
    assert.ok(child.killed);
    assert.deepEqual(await once(child, 'exit'), [null, name]);
    assert.deepEqual([child.exitCode, child.signalCode], [null, name]);
    assert.equal(child.kill(), false);
    assert.throws(() => child.kill('SIGNONE'), { code: 'ERR_UNKNOWN_SIGNAL' });
  }
});

check('a program has no blocked or ignored signals', async () => {
  const { stdout } = await ended(spawn('grep', ['Sig[BI]', '/proc/self/status']));
  // Signals 32 and 33, the C library's own, stay as the host has inherited them.
  assert.match(stdout, /^SigBlk:\t0+\nSigIgn:\t0{7}[01][08]0{7}\n$/);
});

check('detached starts a session', async () => {
  // The pid and the session.
  const ids = async (detached) => (await ended(spawn('sh', ['-c', 'cut -d" " -f1,6 /proc/$$/stat'], { detached }))).stdout.split(/\s/);
  const [own, other] = [await ids(false), await ids(true)];
  assert.notEqual(own[0], own[1]);
  assert.equal(other[0], other[1]);
});

check('uid and gid', async () => {
  const ids = 'id -u; id -g; id -G';
  await startsOf(3, async () => {
    assert.equal((await ended(spawn('sh', ['-c', ids], { uid: 12, gid: 34 }))).stdout, '12\n34\n34\n');
    assert.equal((await ended(spawn('sh', ['-c', ids], { gid: 34 }))).stdout, '0\n34\n34\n');
    assert.equal(execSync(ids, { uid: 12, gid: 34, encoding: 'utf8' }), '12\n34\n34\n');
  });
}, { skip: !IS_ROOT && 'only root may change ids' });

check('a program that does not exist is an event, and other failures throw', async (t) => {
  const cases = [
    [['/nonexistent/x', ['a']], 'ENOENT', -2],
    [['nonexistent-x', ['a']], 'ENOENT', -2],
    [['/etc/passwd', ['a']], 'EACCES', -13],
    [['true', ['a'], { cwd: '/nonexistent' }], 'ENOENT', -2],
    [['nonexistent-x', ['a'], { cwd: '/' }], 'ENOENT', -2],
  ];
  for (const [args, code, errno] of cases) {
    const child = spawn(...args);
    const [error] = await once(child, 'error');
    assert.equal(child.pid, undefined);
    const { message, ...fields } = error;
    const [path] = args;
    assert.equal(message, `spawn ${path} ${code}`);
    assert.deepEqual(fields, { errno, code, syscall: `spawn ${path}`, path, spawnargs: ['a'] });
  }
  const before = descriptors();
  assert.throws(() => spawn('true', { stdio: ['pipe', 999_999] }), { message: 'spawn EBADF', errno: -9, syscall: 'spawn' });
  assert.throws(() => spawn('/etc', { uid: -1 }), { syscall: 'spawn' });
  await until(() => descriptors() <= before, 'the pipes are closed');
  assert.throws(() => spawn(''), { code: 'ERR_INVALID_ARG_VALUE' });
  assert.throws(() => spawn('a\0b'), { code: 'ERR_INVALID_ARG_VALUE' });
  const error = spawnSync('nonexistent-x', ['a']);
  assert.deepEqual([error.pid, error.status, error.output, error.error.code], [0, null, null, 'ENOENT']);
  // A file without #! and a directory.
  const script = join(scratch(t), 'script');
  writeFileSync(script, 'echo $1 $0');
  chmodSync(script, 0o755);
  assert.equal((await ended(spawn(script, ['by sh']))).stdout, `by sh ${script}\n`);
});

check('the PATH of the program decides', async (t) => {
  const directory = scratch(t);
  writeFileSync(join(directory, 'own-program'), '#!/bin/sh\necho own', { mode: 0o755 });
  assert.equal(execFileSync('own-program', { env: { PATH: directory } }).toString(), 'own\n');
  assert.equal(execFileSync('own-program', { env: { PATH: '.' }, cwd: directory }).toString(), 'own\n');
  assert.equal(execFileSync('./own-program', { cwd: directory }).toString(), 'own\n');
  assert.equal((await ended(spawn('env', { env: { A: '1', B: '' } }))).stdout, 'A=1\nB=\n');
  assert.equal((await ended(spawn('env', { env: {} }))).stdout, '');
  assert.throws(() => execFileSync('own-program', { env: {} }), { code: 'ENOENT' });
});

check('timeout, killSignal and AbortSignal end a program', async () => {
  const late = spawn('sleep', ['1000'], { timeout: 20, killSignal: 'SIGKILL' });
  assert.deepEqual(await once(late, 'exit'), [null, 'SIGKILL']);
  const error = await promisify(exec)('exec sleep 1000', { timeout: 20 }).catch((error) => error);
  assert.deepEqual([error.killed, error.signal, error.code], [true, 'SIGTERM', null]);
  const controller = new AbortController();
  const child = spawn('sleep', ['1000'], { signal: controller.signal });
  const exited = once(child, 'exit');
  const failed = once(child, 'error');
  controller.abort(new Error('reason'));
  assert.equal((await failed)[0].name, 'AbortError');
  assert.deepEqual(await exited.catch(() => once(child, 'exit')), [null, 'SIGTERM']);
  // The listeners of a signal that lives longer than the programs.
  const lasting = new AbortController();
  await once(spawn('true', { signal: lasting.signal }), 'exit');
  await once(spawn('nonexistent-x', { signal: lasting.signal }), 'error');
  assert.equal(getEventListeners(lasting.signal, 'abort').length, 0);
  const aborted = await promisify(execFile)('sleep', ['1000'], { signal: AbortSignal.abort() }).catch((error) => error);
  assert.equal(aborted.code, 'ABORT_ERR');
});

check('maxBuffer', async () => {
  const error = await promisify(exec)('yes', { maxBuffer: 100 }).catch((error) => error);
  assert.deepEqual([error.code, error.stdout.length], ['ERR_CHILD_PROCESS_STDIO_MAXBUFFER', 100]);
  const result = spawnSync('yes', { maxBuffer: 100 });
  assert.deepEqual([result.error.code, result.signal, result.status], ['ENOBUFS', 'SIGTERM', null]);
  assert.ok(result.stdout.length > 100);
  assert.equal(spawnSync('sh', ['-c', 'head -c 3000000 /dev/zero'], { maxBuffer: Infinity }).stdout.length, 3_000_000);
});

check('exec and execFile, with a callback and promised', async () => {
  await startsOf(4, async () => {
    assert.deepEqual(await promisify(exec)('echo out; echo err >&2'), { stdout: 'out\n', stderr: 'err\n' });
    const promise = promisify(execFile)('echo', ['x'], { encoding: 'buffer' });
    assert.ok(promise.child.pid > 0);
    assert.deepEqual(await promise, { stdout: Buffer.from('x\n'), stderr: Buffer.alloc(0) });
    const [error, stdout] = await new Promise((resolve) => exec('echo x; exit 4', (...args) => resolve(args)));
    assert.deepEqual([error.code, error.cmd, stdout], [4, 'echo x; exit 4', 'x\n']);
    assert.equal((await promisify(execFile)('echo "$0"', { shell: '/bin/bash' })).stdout, '/bin/bash\n');
  });
});

/** The result or the error of a call, without the parts that differ between processes. */
function outcome(call) {
  const plain = (value) => {
    if (value instanceof Error) {
      const { name, message } = value;
      const fields = Object.entries(value).map(([key, field]) => [key, field === value ? 'itself' : plain(field)]);
      return { name, message, ...Object.fromEntries(fields) };
    }
    return typeof value === 'object' && value !== null && 'pid' in value
      ? Object.entries(value).map(([key, field]) => [key, key === 'pid' ? field > 0 : plain(field)])
      : value;
  };
  try {
    return plain(call());
  } catch (error) {
    const { pid, ...rest } = plain(error);
    return { thrown: rest, hasPid: pid > 0 };
  }
}

check('the synchronous functions have the results of Node', async (t) => {
  const file = join(scratch(t), 'file');
  const fd = openSync(file, 'w+');
  const sh = (script, options) => ['spawnSync', 'sh', ['-c', script], options];
  const cases = [
    sh('echo a; echo b >&2; exit 3'),
    sh('echo a; echo b >&2', { encoding: 'utf8' }),
    sh('kill -9 $$'),
    sh('cat', { input: 'text', encoding: 'latin1' }),
    sh('cat', { input: new Uint16Array([0x4141, 0x4242]) }),
    sh('cat', { input: 'x'.repeat(1_000_000) }),
    sh('exit 0', { input: 'x'.repeat(1_000_000) }),
    sh('cat <&0; echo x >&3; echo y >&4', { stdio: ['ignore', 'pipe', 'ignore', 'pipe', 'pipe'] }),
    sh('echo x; readlink /proc/self/fd/0', { stdio: [fd, 'pipe', 'inherit'], encoding: 'utf8' }),
    sh('cat', { stdio: [{ fd: 999_999 }] }),
    sh('echo x', { stdio: 'ignore' }),
    sh('echo x', { stdio: ['pipe', null, undefined] }),
    sh('echo x', { stdio: 'other' }),
    sh('echo x', { stdio: ['ipc'] }),
    sh('exec sleep 1000', { timeout: 20 }),
    sh('exec sleep 1000', { timeout: 20, killSignal: 'sigkill' }),
    sh('exec sleep 1000', { timeout: 20, killSignal: 2 }),
    sh('exec sleep 1000', { timeout: 1.5 }),
    sh('echo x', { killSignal: 'SIGNONE' }),
    sh('head -c 100 /dev/zero; exec sleep 1000', { maxBuffer: 99 }),
    sh('head -c 100 /dev/zero', { maxBuffer: 100 }),
    sh('head -c 2000000 /dev/zero', { maxBuffer: undefined }),
    sh('echo x', { maxBuffer: -1 }),
    sh('echo "$A $B"', { env: { A: 1, B: undefined, __proto__: { B: 'inherited' } } }),
    sh('pwd', { cwd: '/usr' }),
    sh('pwd', { cwd: new URL('file:///usr') }),
    sh('pwd', { cwd: '' }),
    sh('pwd', { cwd: '/nonexistent' }),
    sh('pwd', { cwd: 5 }),
    sh('tr "\\0" " " </proc/$$/cmdline', { argv0: 'name' }),
    sh('echo x', { encoding: 'buffer' }),
    sh('echo x', { uid: 1.5 }),
    sh('echo x', { detached: 1 }),
    ['spawnSync', 'echo "$0 $1"', { shell: true, encoding: 'utf8' }],
    ['spawnSync', 'echo "$0"', { shell: '/bin/bash', encoding: 'utf8' }],
    ['spawnSync', 'nonexistent-x', ['a'], { cwd: '/' }],
    ['spawnSync', '/etc/passwd'],
    ['spawnSync', '/etc'],
    ['spawnSync', ''],
    ['spawnSync'],
    ['spawnSync', 'echo', 'word'],
    ['spawnSync', 'echo', ['a\0b']],
    ['spawnSync', 'echo', [1, true, null]],
    ['execFileSync', 'echo', ['x']],
    ['execFileSync', 'echo', null, { encoding: 'utf8' }],
    ['execFileSync', 'sh', ['-c', 'exit 3']],
    ['execFileSync', 'sh', ['-c', 'echo out; echo err >&2; exit 3'], { stdio: 'pipe', encoding: 'utf8' }],
    ['execFileSync', 'nonexistent-x', ['a']],
    ['execFileSync', 5],
    ['execSync', 'echo x; exit 0'],
    ['execSync', 'exit 5', { stdio: 'pipe' }],
    ['execSync', 'echo $0', { shell: '/bin/bash', encoding: 'utf8' }],
    ['execSync', 'exec sleep 1000', { timeout: 20, stdio: 'ignore' }],
    ['execSync'],
  ];
  const before = stats();
  for (const [name, ...args] of cases) {
    const label = `${name}(${args.map((arg) => JSON.stringify(arg)?.slice(0, 100)).join(', ')})`;
    assert.deepEqual(outcome(() => replaced[name](...args)), outcome(() => original[name](...args)), label);
  }
  assert.ok(stats().started - before.started >= 30, 'this library has started most of them');
  closeSync(fd);
});

check('the synchronous functions wait for the end of the output', () => {
  assert.equal(execSync('(sleep 0.2; echo late) & echo early', { encoding: 'utf8' }), 'early\nlate\n');
});

check('an unreferenced child does not keep its host alive, and outlives it', async () => {
  const script = `const child = cp.spawn('sleep', ['1000'], { detached: true, stdio: 'ignore' });
    child.unref(); child.ref(); child.unref(); console.log(child.pid, child._handle.hasRef());`;
  const { stdout, code } = await inNode(script);
  const [pid, hasRef] = stdout.trim().split(' ');
  assert.deepEqual([code, hasRef], [0, 'false']);
  assert.ok(isRunning(pid));
  process.kill(pid);
});

check('a child keeps its host alive until it ends', async () => {
  const script = `cp.spawn('sleep', ['0.2'], { stdio: 'ignore' }).on('exit', (code) => console.log('exit', code));`;
  assert.deepEqual((await inNode(script)).stdout, 'exit 0\n');
});

check('a child outlives process.exit() and SIGKILL of its host', async () => {
  for (const end of ['process.exit()', "process.kill(process.pid, 'SIGKILL')"]) {
    const { stdout } = await inNode(`const { pid } = cp.spawn('sleep', ['1000'], { stdio: 'ignore' });
      require('fs').writeSync(1, String(pid)); ${end};`);
    assert.ok(isRunning(stdout));
    process.kill(stdout);
  }
});

check('listeners run in the context of the start, and one that throws does not affect others', async () => {
  const storage = new AsyncLocalStorage();
  const stores = await Promise.all(['a', 'b'].map((name) => storage.run(name, async () => {
    const child = spawn('true');
    await new Promise((resolve) => child.on('exit', resolve));
    return storage.getStore();
  })));
  assert.deepEqual(stores, ['a', 'b']);
  const script = `process.on('uncaughtException', (error) => console.log(error.message));
    for (let i = 0; i < 20; i++) cp.spawn('true').on('exit', () => { throw new Error('thrown'); });`;
  assert.equal((await inNode(script)).stdout, 'thrown\n'.repeat(20));
});

check('changes that another library makes to the arguments of ChildProcess#spawn take effect', async (t) => {
  const { prototype } = replaced.ChildProcess;
  const before = prototype.spawn;
  t.after(() => (prototype.spawn = before));
  prototype.spawn = function (options) {
    options.envPairs.push('ADDED=yes');
    options.detached = true;
    return before.call(this, options);
  };
  const child = spawn('sh', ['-c', 'echo $ADDED; cut -d" " -f6 /proc/$$/stat']);
  prototype.spawn = before;
  assert.equal((await ended(child)).stdout, `yes\n${child.pid}\n`);
});

check('fork and IPC are those of Node', async (t) => {
  const path = join(scratch(t), 'child.cjs');
  writeFileSync(path, "process.on('message', (m) => { process.send(m + 1); process.disconnect(); });");
  const before = stats();
  const child = fork(path);
  child.send(1);
  assert.deepEqual((await once(child, 'message'))[0], 2);
  await once(child, 'close');
  assert.deepEqual(stats(), before);
});

check('install() changes a program, and uninstall() restores it', async (t) => {
  const path = join(scratch(t), 'program.mjs');
  writeFileSync(path, `
    import { execFileSync, fork, spawn, spawnSync } from 'node:child_process';
    import child_process from 'child_process';
    import { getEventListeners, once } from 'node:events';
    import { stats, install, uninstall } from ${JSON.stringify(MODULE)};
    const some = async () => {
      await once(spawn('true'), 'exit');
      spawnSync('true');
      execFileSync('true');
      child_process.execSync('true');
      await new Promise((resolve) => child_process.exec('true', resolve));
      const { started, delegated } = stats();
      console.log(started, JSON.stringify(delegated));
    };
    await some();
    install();
    install();
    await some();
    await once(fork('-', [], { execArgv: ['-e', '0'], execPath: 'true' }), 'exit');
    uninstall();
    await some();
  `);
  const counts = (started, ipc) => `${started} {"ipc":${ipc},"arguments":0,"unsupported":0}\n`;
  const plain = await ended(original.spawn(process.execPath, [path]));
  assert.deepEqual([plain.stdout, plain.stderr], [counts(0, 0) + counts(5, 0) + counts(5, 0), '']);
  for (const flag of ['--import', '--require']) {
    const installed = await ended(original.spawn(process.execPath, [flag, INSTALL, path]));
    assert.deepEqual([installed.stdout, installed.stderr], [counts(5, 0) + counts(10, 0) + counts(10, 0), ''], flag);
  }
});

check('the package exports the modules', () => {
  const { exports } = createRequire(import.meta.url)('../package.json');
  assert.ok(exports['./child_process'] && exports['./install']);
  const missing = Object.keys(original).filter((name) => !(name in replaced) && !name.startsWith('_') && name !== 'default');
  assert.deepEqual(missing, []);
});

check('execa starts its programs by this library after install()', async () => {
  const path = fileURLToPath(new URL('execa-program.mjs', import.meta.url));
  const { stdout, stderr } = await ended(original.spawn(process.execPath, ['--import', INSTALL, path]));
  assert.deepEqual([stdout, stderr], ['a|b|3|SIGTERM|true|sync|piped|ENOENT|8\n', '']);
});

check('ten workers start programs, and their end leaves no descriptor', async () => {
  const script = `
    const { parentPort } = require('node:worker_threads');
    const cp = require(${JSON.stringify(MODULE)});
    const own = cp.spawn('sh', ['-c', 'echo $X'], { env: { ...process.env, X: 'x' } });
    own.stdout.on('data', (data) => {
      const sleeping = cp.spawn('sleep', ['1000'], { stdio: ['pipe', 'pipe', 'pipe'] });
      parentPort.postMessage([String(data), sleeping.pid]);
    });`;
  const round = async () => {
    const workers = Array.from({ length: 10 }, () => new Worker(script, { eval: true }));
    const messages = await Promise.all(workers.map((worker) => once(worker, 'message')));
    await Promise.all(workers.map((worker) => worker.terminate()));
    for (const [[said, pid]] of messages) {
      assert.equal(said, 'x\n');
      process.kill(pid);
      await until(() => !isRunning(pid), 'the program has ended');
    }
  };
  await round();
  const before = descriptors();
  await round();
  await until(() => descriptors() <= before, 'the descriptors are closed');
});

const ROUNDS = process.env.SPAWNFD_FULL === undefined ? 1000 : 20_000;

check(`${ROUNDS} children leave memory and descriptors as they were`, async () => {
  const script = `
    const { readdirSync } = require('node:fs');
    const some = async () => {
      for (let i = 0; i < ${ROUNDS} / 10; i++) {
        await Promise.all(Array.from({ length: 10 }, () => new Promise((done) => cp.spawn('true').on('close', done))));
        cp.spawnSync('true');
        cp.spawn('nonexistent-x').on('error', () => {});
      }
    };
    const count = () => process.report.getReport().libuv.filter(({ type }) => type === 'process').length;
    const state = async () => {
      // The handles of the last programs close.
      for (let i = 0; i < 3; i++) await new Promise(setImmediate);
      gc();
      return [readdirSync('/proc/self/fd').length, count(), process.memoryUsage().rss >> 20];
    };
    (async () => {
      await some();
      const before = await state();
      await some();
      console.log(JSON.stringify([before, await state()]));
    })();`;
  const { stdout, stderr } = await inNode(script, { flags: ['--expose-gc'] });
  const [before, after] = JSON.parse(stdout || `"${stderr}"`);
  assert.ok(after[0] <= before[0] && after[1] === 0 && after[2] <= before[2] + 20, stdout);
}, { timeout: 600_000 });
