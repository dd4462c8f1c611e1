// SPDX-License-Identifier: MIT OR Apache-2.0
// The examples of the guides: their types are right, and they run.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runSync } from '../dist/index.js';
import { PACKAGE, scratch } from './support.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const GUIDES = ['node', 'replace-child-process'];
const BLOCKS = GUIDES.flatMap((name) => {
  const guide = readFileSync(join(HERE, `../../../docs/guides/${name}.md`), 'utf8');
  return [...guide.matchAll(/^```js\n(.*?)^```/gms)].map((block, index) => ({ title: `${name}, ${index + 1}`, code: block[1] }));
});
const TSC = join(HERE, '../node_modules/typescript/bin/tsc');
const OPTIONS = [
  '--strict', '--target', 'es2022', '--lib', 'es2023,esnext.disposable', '--module', 'nodenext', '--types', 'node',
  '--typeRoots', join(HERE, '../node_modules/@types'),
];

test('the guides have examples', () => assert.ok(BLOCKS.length >= 6));

for (const { title, code } of BLOCKS) {
  test(`example of the guide ${title}`, (t) => {
    const directory = scratch(t);
    const imported = code
      .replaceAll("from 'spawnfd'", `from ${JSON.stringify(PACKAGE)}`)
      .replaceAll("from 'spawnfd/child_process'", `from ${JSON.stringify(join(dirname(PACKAGE), 'child_process.js'))}`);
    const missing = code.includes("from 'spawnfd") ? '' : `import { run } from ${JSON.stringify(PACKAGE)};\n`;
    // The guide's reader has a repository, and Node 24 has its syntax.
    const prelude = `${missing}const repo = ${JSON.stringify(directory)};\n`;
    writeFileSync(join(directory, 'example.mts'), `${prelude}${imported}`);
    writeFileSync(join(directory, 'Makefile'), 'all:\n\techo made # TODO\n');
    writeFileSync(join(directory, 'package.json'), '{"scripts": {"test": "echo tested"}}');
    const compiled = runSync([process.execPath, TSC, ...OPTIONS, 'example.mts'], { cwd: directory, stderr: 'merge' });
    assert.equal(compiled.text, '');
    const result = runSync([process.execPath, 'example.mjs'], { cwd: directory, timeout: 60_000 });
    assert.deepEqual([result.code, result.stderrText], [0, '']);
    assert.equal(result.text.includes('tested'), code.includes('job.lines()'));
  });
}
