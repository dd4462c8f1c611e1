// SPDX-License-Identifier: MIT OR Apache-2.0
// The examples of the guide: their types are right, and they run.

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runSync } from '../dist/index.js';
import { install } from './support.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const GUIDE = readFileSync(join(HERE, '../../../docs/guides/node.md'), 'utf8');
const BLOCKS = [...GUIDE.matchAll(/^```js\n(.*?)^```/gms)].map((block) => block[1]);
const TSC = join(HERE, '../node_modules/typescript/bin/tsc');
const OPTIONS = [
  '--strict', '--target', 'es2022', '--lib', 'es2023,esnext.disposable', '--module', 'nodenext', '--types', 'node',
  '--skipLibCheck',
];
const SERVER = `
  import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
  import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
  const server = new McpServer({ name: 'example', version: '1.0.0' });
  server.registerTool('nothing', {}, () => ({ content: [] }));
  await server.connect(new StdioServerTransport());
`;

const directory = mkdtempSync(join(tmpdir(), 'spawnfd-guide-'));
after(() => rmSync(directory, { recursive: true, force: true }));

// One program of the compiler has all examples, because the types of the runtimes are large.
before(() => {
  install(directory);
  writeFileSync(join(directory, 'server.mjs'), SERVER);
  writeFileSync(join(directory, 'Makefile'), 'all:\n\techo made # TODO\n');
  writeFileSync(join(directory, 'package.json'), '{"scripts": {"test": "echo tested"}}');
  const files = BLOCKS.map((code, index) => {
    const missing = code.includes("from 'spawnfd'") ? '' : "import { run } from 'spawnfd';\n";
    // The guide's reader has a repository, and Node 24 has its syntax.
    writeFileSync(join(directory, `${index}.mts`), `${missing}const repo = ${JSON.stringify(directory)};\n${code}`);
    return `${index}.mts`;
  });
  const compiled = runSync([process.execPath, TSC, ...OPTIONS, ...files], { cwd: directory, stderr: 'merge' });
  assert.equal(compiled.text, '');
});

test('the guide has examples', () => assert.ok(BLOCKS.length >= 3));

BLOCKS.forEach((code, index) => {
  test(`example ${index + 1} of the guide`, () => {
    const result = runSync([process.execPath, `${index}.mjs`], { cwd: directory, timeout: 60_000 });
    assert.deepEqual([result.code, result.stderrText], [0, '']);
    assert.equal(result.text.includes('tested'), code.includes('job.lines()'));
  });
});
