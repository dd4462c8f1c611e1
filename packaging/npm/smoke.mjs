// SPDX-License-Identifier: MIT OR Apache-2.0
// Uses the installed package spawnfd. test-npm.sh copies this file into a project, and runs it in each runtime.
//
//   smoke.mjs VERSION STARTED
//
// STARTED is how a program starts that the package should keep warm.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import * as spawnfd from 'spawnfd';

const [version, started] = process.argv.slice(2);
const { Env, run, runSync, Session, sh, start, Warm } = spawnfd;
const required = createRequire(import.meta.url)('spawnfd');
assert.equal(required.run, run);
assert.equal(createRequire(import.meta.url)('spawnfd/package.json').version, version);

const captured = await run(sh('echo out; exit 3'), { env: Env.inherit().noninteractive() });
assert.deepEqual([captured.code, captured.text], [3, 'out\n']);
assert.equal(captured.tree, 'guard');
assert.equal(runSync(['cat'], { input: 'in' }).text, 'in');
assert.equal((await run(['sleep', '1000'], { timeout: 50 })).stop, 'timeout');

const job = start(sh('echo one; echo two'));
const lines = [];
for await (const line of job.lines()) {
  lines.push(line.text);
}
assert.deepEqual([lines, (await job.wait()).ok], [['one', 'two'], true]);

const session = await Session.open('bash');
await session.run('cd /usr');
assert.equal((await session.run('pwd')).text, '/usr\n');
await session.close();

const warm = new Warm();
warm.add('cat', { depth: 1 });
assert.equal(await warm.fill(), started === 'reserve');
const cat = await warm.run(['cat'], { input: 'warm' });
assert.deepEqual([cat.text, cat.started], ['warm', started]);
warm.close();
await assert.rejects(run(['no-such-program']), { name: 'SpawnError', code: 'ENOENT' });
