// SPDX-License-Identifier: MIT OR Apache-2.0
// Each way in which a host can end: nothing of its programs is left.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { command, isRunning, node, PACKAGE, pidIn, scratch, until } from './support.mjs';

/** Starts a tree whose grandchild writes its pid. */
const BEGIN = `
  const tree = sh('sleep 1000 & echo $! >"$0"; wait').concat(process.argv.at(-1));
  const { existsSync, readFileSync } = require('node:fs');
  const file = process.argv.at(-1);
  const has = () => existsSync(file) && readFileSync(file, 'utf8').endsWith('\\n');
  const remote = () => Remote.local({ server: ${JSON.stringify(command())} });
  const begun = async () => { while (!has()) await new Promise((r) => setTimeout(r, 5)); };
`;
const STARTS = {
  run: 'run(tree).catch(() => {});',
  start: 'globalThis.job = start(tree);',
  'session.run': `
    Session.open('bash').then((session) => {
      globalThis.session = session;
      session.run('sleep 1000 & echo $! >' + file + '; wait').catch(() => {});
    });`,
  'session, between commands': `
    Session.open('bash').then(async (session) => {
      globalThis.session = session;
      await session.run('setsid sleep 1000 & echo $! >' + file);
    });`,
  'remote run': 'globalThis.box = remote(); box.run(tree).catch(() => {});',
  'remote start': 'globalThis.job = remote().start(tree);',
  'remote session': `
    globalThis.session = remote().session();
    session.run('setsid sleep 1000 & echo $! >' + file);`,
};
const ENDS = {
  exit: 'process.exit(0)',
  'an uncaught exception': "setTimeout(() => { throw new Error('on purpose'); })",
  abort: 'process.abort()',
  SIGKILL: "process.kill(process.pid, 'SIGKILL')",
  SIGTERM: "process.kill(process.pid, 'SIGTERM')",
};

for (const [start, begin] of Object.entries(STARTS)) {
  for (const [name, end] of Object.entries(ENDS)) {
    test(`${start}: nothing outlives ${name}`, async (t) => {
      const file = join(scratch(t), 'pid');
      const ended = node(`${BEGIN} ${begin} begun().then(() => { ${end}; });`, { args: [file] });
      const pid = await pidIn(file);
      await ended;
      await until(() => !isRunning(pid), 'the end of the tree');
    });
  }

  test(`${start}: nothing outlives a terminated worker`, async (t) => {
    const directory = scratch(t);
    const file = join(directory, 'pid');
    const code = join(directory, 'worker.js');
    writeFileSync(code, `const { run, start, sh, Remote, Session } = require(${JSON.stringify(PACKAGE)}); ${BEGIN} ${begin}`);
    let host;
    const script = `
      const { Worker } = require('node:worker_threads');
      const worker = new Worker(${JSON.stringify(code)}, { argv: process.argv.slice(1) });
      ${BEGIN} begun().then(() => worker.terminate());
      setInterval(() => {}, 1000);
    `;
    const ended = node(script, { args: [file], end: (child) => (host = child) });
    const pid = await pidIn(file);
    await until(() => !isRunning(pid), 'the end of the tree, while the host runs on');
    host.kill('SIGKILL');
    await ended;
  });
}

test('a host ends by itself once its runs have ended', async () => {
  const { code, stdout } = await node(`
    run(['echo', 'done']).then((result) => process.stdout.write(result.text));
    const job = start(['true']);
  `);
  assert.deepEqual([code, stdout], [0, 'done\n']);
});

test('importing alone starts nothing, keeps nothing alive, and opens eight sockets', async () => {
  const { code, stdout } = await node(`
    const { readFileSync, readdirSync, readlinkSync } = require('node:fs');
    const children = readdirSync('/proc/self/task').map((id) => readFileSync('/proc/self/task/' + id + '/children', 'utf8'));
    const isSocket = (fd) => { try { return readlinkSync('/proc/self/fd/' + fd).startsWith('socket:'); } catch { return false; } };
    const sockets = readdirSync('/proc/self/fd').filter((fd) => fd > 2 && isSocket(fd));
    console.log(children.join(''), sockets.length, sockets.every((fd) => fd < 256));
  `);
  assert.deepEqual([code, stdout], [0, ' 8 true\n']);
});

test('ten workers are terminated in mid-run, and the host goes on', async () => {
  const script = `
    const { Worker } = require('node:worker_threads');
    const code = "const { run, start } = require(process.env.PACKAGE);" +
      "for (let i = 0; i < 20; i++) { run(['sleep', '1000']).catch(() => {}); start(['sleep', '1000']); }" +
      "setInterval(() => {}, 1000); require('node:worker_threads').parentPort.postMessage('begun');";
    (async () => {
      for (let round = 0; round < 10; round++) {
        const worker = new Worker(code, { eval: true });
        await new Promise((resolve) => worker.once('message', resolve));
        await new Promise((resolve) => setTimeout(resolve, round * 5));
        await worker.terminate();
      }
      const children = () => require('node:child_process')
        .execFileSync('ps', ['--ppid', String(process.pid), '-o', 'args=']).toString().split('\\n')
        .filter((line) => line.startsWith('sleep'));
      for (let i = 0; children().length > 0 && i < 1000; i++) await new Promise((r) => setTimeout(r, 20));
      console.log(children().length, (await run(['echo', 'alive'])).text.trim());
    })();
  `;
  const { stdout, stderr, code } = await node(script, { env: { PACKAGE } });
  assert.deepEqual([code, stdout, stderr], [0, '0 alive\n', '']);
});
