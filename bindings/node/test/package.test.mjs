// SPDX-License-Identifier: MIT OR Apache-2.0

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { cpSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import * as imported from '../dist/index.js';
import { node, PACKAGE, scratch } from './support.mjs';

test('require() and import give the same functions', () => {
  const required = createRequire(import.meta.url)(PACKAGE);
  assert.equal(required.run, imported.run);
  assert.deepEqual(Object.keys(required).sort(), [
    'AbortError', 'Action', 'Child', 'Env', 'ExitError', 'Job', 'Limiter', 'Remote', 'RunResult', 'Sandbox', 'Session',
    'SpawnError', 'StaleTemplate', 'Template', 'Unsupported', 'Warm', 'actions', 'run', 'runSync', 'sh', 'spawn', 'start',
  ]);
});

test('a missing binding is one clear sentence', async (t) => {
  const directory = scratch(t);
  cpSync(dirname(PACKAGE), join(directory, 'dist'), { recursive: true });
  rmSync(join(directory, 'dist', 'spawnfd.node'));
  const load = async (manifest) => {
    writeFileSync(join(directory, 'package.json'), JSON.stringify(manifest));
    const path = JSON.stringify(join(directory, 'dist', 'index.js'));
    return (await node(`try { require(${path}); } catch (error) { console.log(error.message); }`)).stdout;
  };
  const { platform, arch } = process;
  const target = `${platform}-${arch}-gnu`;
  const install = `install the package @spawnfd/${target}, and do not omit optional dependencies`;
  assert.equal(await load({}), `spawnfd has no native binding for ${target}: ${install}\n`);
  assert.equal(
    await load({ optionalDependencies: { '@spawnfd/linux-other': '1.0.0' } }),
    `spawnfd has no native binding for ${target}: there are only @spawnfd/linux-other\n`,
  );
});

test('a build in the repository is loaded, or else the package for this libc', async (t) => {
  const directory = scratch(t);
  cpSync(dirname(PACKAGE), join(directory, 'dist'), { recursive: true });
  writeFileSync(join(directory, 'package.json'), '{}');
  const addon = (libc) => join(directory, 'node_modules', '@spawnfd', `linux-${process.arch}-${libc}`, 'spawnfd.node');
  for (const libc of ['gnu', 'musl']) {
    mkdirSync(dirname(addon(libc)), { recursive: true });
    writeFileSync(join(dirname(addon(libc)), 'package.json'), '{"main": "spawnfd.node"}');
    writeFileSync(addon(libc), 'no ELF file');
  }
  const path = JSON.stringify(join(directory, 'dist', 'index.js'));
  const load = `try { console.log(require(${path}).runSync(['true']).ok); } catch (error) { console.log(error.message); }`;
  assert.equal((await node(load)).stdout, 'true\n');

  renameSync(join(directory, 'dist', 'spawnfd.node'), addon('gnu'));
  assert.equal((await node(load)).stdout, 'true\n');

  writeFileSync(addon('gnu'), 'no ELF file');
  const name = `linux-${process.arch}-gnu`;
  const broken = `spawnfd has no native binding for ${name}: the package @spawnfd/${name} cannot be loaded: `;
  assert.ok((await node(load)).stdout.startsWith(broken));
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
