// SPDX-License-Identifier: MIT OR Apache-2.0
// Actions, descriptors and environments. tests/suite/spawn tests the effect of a plan.

import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';
import { actions, Env, run, runSync, sh, start } from '../dist/index.js';
import { descriptors, scratch } from './support.mjs';

const { native, NATIVE } = createRequire(import.meta.url)('../dist/native.js');
const CASES = JSON.parse(readFileSync(new URL('../../../tests/data/actions.json', import.meta.url)));

/** Functions of which the optional arguments are properties of an object: how many come before, and their names. */
const IDS = ['real', 'effective', 'saved'];
const PROPERTIES = {
  open: [2, ['flags', 'mode', 'dir', 'resolve']],
  userIds: [0, IDS],
  groupIds: [0, IDS],
  capabilities: [0, ['effective', 'permitted', 'inheritable', 'bounding', 'ambient']],
};

/** Evaluates the Python expression of a case. */
function evaluate(python) {
  const [, name, list] = /^(\w+)\((.*)\)$/.exec(python);
  const camel = name[0].toLowerCase() + name.slice(1);
  const values = list
    .replace(/None/g, 'null')
    .replace(/b'(\w+)'/g, "Buffer.from('$1')")
    .replace(/\{(.*)\}/, '[$1]')
    .replace(/range\((\d+), (\d+)\)/, 'Array.from({ length: $2 - $1 }, (_, index) => index + $1)')
    .replace(/bytes\((\d+)\)/, 'new Uint8Array($1)')
    .replace(/1 << 32/g, '2 ** 32');
  const [count, names] = PROPERTIES[camel] ?? [];
  let given = values;
  if (names) {
    const all = values.split(', ');
    const properties = all.slice(count).map((value, index) => {
      const [property, named] = value.split('=');
      return named === undefined ? `${names[index]}: ${value}` : `${property}: ${named}`;
    });
    given = [...all.slice(0, count), `{ ${properties.join(', ')} }`].join(', ');
  }
  return new Function('actions', `return actions.${camel}(${given});`)(actions);
}

for (const { python, plan, python_plan } of CASES) {
  test(`the plan of ${python}`, () => {
    const own = { EUID: process.geteuid(), EGID: process.getegid() };
    const expected = (python === 'InheritSignals()' ? python_plan : plan).map((line) =>
      line.replace(/EUID|EGID/g, (name) => own[name]),
    );
    assert.deepEqual(native.printedActions([evaluate(python)[NATIVE]]), expected);
  });
}

test('the cases have every action', () => {
  const named = new Set(CASES.map(({ python }) => python[0].toLowerCase() + python.slice(1).split('(')[0]));
  assert.deepEqual([...named].sort(), Object.keys(actions).sort());
});

test('descriptors reach the program, also if the caller closes them at once', async (t) => {
  const file = join(scratch(t), 'file');
  writeFileSync(file, 'content');
  const given = openSync(file, 'r');
  const running = run(sh('cat <&7'), { actions: [actions.descriptor(given, 7)] });
  const streaming = run(['cat'], { stdin: given });
  const same = run(sh(`ls -l /proc/self/fd/${given}`), { actions: [actions.descriptor(given)] });
  closeSync(given);
  assert.equal((await running).text + (await streaming).text, 'content', 'both share one offset');
  assert.ok((await same).text.includes(file));
  const output = openSync(file, 'w');
  assert.equal(runSync(['echo', 'out'], { stdout: output }).text, '');
  closeSync(output);
  assert.equal(readFileSync(file, 'utf8'), 'out\n');
});

test('the copies of descriptors are closed', async () => {
  const again = async () => {
    await Promise.all([1, 2, 3].map(() => run(['true'], { stdin: 0, actions: [actions.descriptor(0, 5)] })));
    runSync(['true'], { actions: [actions.descriptor(0, 5)] });
    return descriptors();
  };
  await again();
  const before = await again();
  for (let count = 0; count < 20; count += 1) {
    assert.ok((await again()) <= before + 3);
  }
});

test('an error carries the index of the action in the list', async () => {
  const before = [actions.umask(0o22), actions.signalMask([]), actions.inheritSignals()];
  for (const way of [run, async (...given) => runSync(...given), (...given) => start(...given).wait()]) {
    await assert.rejects(way(['true'], { actions: [...before, actions.chdir('/no/such/directory')] }), {
      name: 'SpawnError',
      code: 'ENOENT',
      stage: 'action',
      action: 3,
    });
  }
});

test('a wrong action is a TypeError that names it', async () => {
  for (const [given, text] of [
    [['umask'], /^actions\[0\] must be an Action/],
    ['umask', /^actions must be an array of actions/],
    [[actions.umask('1')], /^actions\[0\]: umask.mask must be a whole number, got "1"/],
    [[actions.setsid(), actions.uid(-1)], /^actions\[1\]: uid.uid must be >= 0, got -1/],
    [[actions.affinity([0, 1.5])], /^actions\[0\]: affinity.cpus\[1\] must be a whole number, got 1.5/],
    [[actions.descriptor(123456)], /^actions\[0\]: descriptor.source: cannot copy descriptor 123456/],
  ]) {
    await assert.rejects(run(['true'], { actions: given }), (error) => {
      assert.ok(error instanceof TypeError, String(error));
      assert.match(error.message, text);
      return true;
    });
  }
});

test('environments are values', async (t) => {
  t.after(() => delete process.env.SPAWNFD_TEST_TOKEN);
  process.env.SPAWNFD_TEST_TOKEN = 'secret';
  const inherited = Env.inherit();
  assert.equal(inherited.get('SPAWNFD_TEST_TOKEN'), 'secret');
  const env = inherited.deny('*_TOKEN').set({ A: '1', PATH: undefined }).noninteractive();
  assert.deepEqual([env.get('SPAWNFD_TEST_TOKEN'), env.get('A'), env.get('PATH')], [undefined, '1', undefined]);
  assert.equal(env.get('PAGER'), 'cat');
  assert.equal(inherited.get('A'), undefined, 'the first is as it was');
  assert.deepEqual(Object.keys(Env.only('SPAWNFD_TEST_*').toObject()), ['SPAWNFD_TEST_TOKEN']);
  assert.deepEqual(Env.empty().toObject(), {});
  assert.equal((await run(['/usr/bin/env'], { env: Env.of({ B: '2' }) })).text, 'B=2\n');
  assert.throws(() => Env.of({ 'A=': '1' }), { name: 'TypeError', message: 'env: "A=" is not a name of a variable' });
});
