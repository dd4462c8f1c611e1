// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { cpSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import * as imported from '../dist/index.js';
import { node, PACKAGE, scratch } from './support.mjs';

test('require() and import give the same functions', () => {
  const required = createRequire(import.meta.url)(PACKAGE);
  assert.equal(required.run, imported.run);
  assert.deepEqual(Object.keys(required).sort(), [
    'AbortError', 'Action', 'Env', 'ExitError', 'Job', 'Limiter', 'RunResult', 'Sandbox', 'Session', 'SpawnError',
    'StaleTemplate', 'Template', 'Unsupported', 'Warm', 'actions', 'run', 'runSync', 'sh', 'start',
  ]);
});

test('a missing binding is one clear sentence', async (t) => {
  const directory = scratch(t);
  cpSync(dirname(PACKAGE), directory, { recursive: true });
  rmSync(join(directory, 'spawnfd.node'));
  const script = `try { require(${JSON.stringify(join(directory, 'index.js'))}); } catch (error) { console.log(error.message); }`;
  const { stdout } = await node(script);
  assert.match(stdout, /^spawnfd has no native binding for linux-\w+: install the package @spawnfd\/linux-\w+-gnu, and do not omit optional dependencies\n$/);
});

test("Node's permission model holds for this package", async () => {
  const flag = Number(process.versions.node.split('.')[0]) < 22 ? '--experimental-permission' : '--permission';
  const script = `run(['true']).then(() => console.log('ran'), (error) => console.log(error.code));
    try { runSync(['true']); console.log('ran'); } catch (error) { console.log(error.code); }`;
  const denied = await node(script, { flags: [flag, '--allow-fs-read=*', '--allow-addons'] });
  assert.equal(denied.stdout, 'ERR_ACCESS_DENIED\nERR_ACCESS_DENIED\n', denied.stderr);
  const allowed = await node(script, { flags: [flag, '--allow-fs-read=*', '--allow-addons', '--allow-child-process'] });
  assert.equal(allowed.stdout, 'ran\nran\n', allowed.stderr);
});
