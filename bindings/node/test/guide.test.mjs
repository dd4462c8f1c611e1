// SPDX-License-Identifier: MIT OR Apache-2.0
// The examples of the guide and of the README: their types are right, and they print the output that the pages show.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runSync, sh } from '../dist/index.js';
import { PACKAGE, scratch } from './support.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const PAGES = ['docs/guides/node.md', 'README.md'];
// A ```js block, and the ```text block that may follow it: its standard output.
const EXAMPLE = /^```js\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?/gms;
const EXAMPLES = PAGES.flatMap((page) => {
  const text = readFileSync(join(HERE, '../../..', page), 'utf8');
  return [...text.matchAll(EXAMPLE)].map(([, code, output], index) => ({ name: `${page} ${index + 1}`, code, output }));
});
const HAS_BWRAP = runSync(sh('command -v bwrap')).ok;
const TSC = join(HERE, '../node_modules/typescript/bin/tsc');
const OPTIONS = [
  '--strict', '--target', 'es2022', '--lib', 'es2023,esnext.disposable', '--module', 'nodenext', '--types', 'node',
  '--typeRoots', join(HERE, '../node_modules/@types'),
];

test('each page has examples', () => {
  assert.ok(PAGES.every((page) => EXAMPLES.some(({ name }) => name.startsWith(page))));
});

for (const { name, code, output } of EXAMPLES) {
  const skip = code.includes("'bwrap'") && !HAS_BWRAP && 'no bwrap';
  test(name, { skip }, (t) => {
    const directory = scratch(t);
    const imported = code.replaceAll("from 'spawnfd'", `from ${JSON.stringify(PACKAGE)}`);
    const missing = code.includes("from 'spawnfd'") ? '' : `import { run } from ${JSON.stringify(PACKAGE)};\n`;
    // The guide's reader has a repository, and Node 24 has its syntax.
    const prelude = `${missing}const repo = ${JSON.stringify(directory)};\n`;
    writeFileSync(join(directory, 'example.mts'), `${prelude}${imported}`);
    writeFileSync(join(directory, 'Makefile'), 'all:\n\techo made # TODO\n');
    writeFileSync(join(directory, 'package.json'), '{"scripts": {"test": "echo tested"}}');
    const compiled = runSync([process.execPath, TSC, ...OPTIONS, 'example.mts'], { cwd: directory, stderr: 'merge' });
    assert.equal(compiled.text, '');
    const result = runSync([process.execPath, 'example.mjs'], { cwd: directory, timeout: 60_000 });
    assert.deepEqual([result.code, result.stderrText], [0, '']);
    if (output !== undefined) {
      assert.equal(result.text, output);
    }
  });
}
