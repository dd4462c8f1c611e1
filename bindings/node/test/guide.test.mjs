// SPDX-License-Identifier: MIT OR Apache-2.0
// The examples of the guides and of the README: their types are right, and they print the output that the pages show.

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runSync, sh } from '../dist/index.js';
import { command, install } from './support.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const PAGES = ['docs/guides/node.md', 'docs/guides/replace-child-process.md', 'docs/remote.md', 'README.md'];
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
  '--skipLibCheck',
];
const SERVER = `
  import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
  import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
  const server = new McpServer({ name: 'example', version: '1.0.0' });
  server.registerTool('nothing', {}, () => ({ content: [] }));
  await server.connect(new StdioServerTransport());
`;

process.env.PATH = `${dirname(command())}:${process.env.PATH}`;
const directory = mkdtempSync(join(tmpdir(), 'spawnfd-guide-'));
after(() => rmSync(directory, { recursive: true, force: true }));

// One program of the compiler has all examples, because the types of the runtimes are large.
before(() => {
  install(directory);
  writeFileSync(join(directory, 'server.mjs'), SERVER);
  writeFileSync(join(directory, 'Makefile'), 'all:\n\techo made # TODO\n');
  writeFileSync(join(directory, 'package.json'), '{"scripts": {"test": "echo tested"}}');
  const files = EXAMPLES.map(({ code }, index) => {
    const missing = code.includes("from 'spawnfd") ? '' : "import { run } from 'spawnfd';\n";
    // The guide's reader has a repository, and Node 24 has its syntax.
    writeFileSync(join(directory, `${index}.mts`), `${missing}const repo = ${JSON.stringify(directory)};\n${code}`);
    return `${index}.mts`;
  });
  const compiled = runSync([process.execPath, TSC, ...OPTIONS, ...files], { cwd: directory, stderr: 'merge' });
  assert.equal(compiled.text, '');
});

test('each page has examples', () => {
  assert.ok(PAGES.every((page) => EXAMPLES.some(({ name }) => name.startsWith(page))));
});

EXAMPLES.forEach(({ name, code, output }, index) => {
  if (code.includes('Remote.ssh(') && output === undefined) {
    // Tests have no host: only the types are checked.
    return;
  }
  const skip = code.includes("'bwrap'") && !HAS_BWRAP && 'no bwrap';
  test(name, { skip }, () => {
    const result = runSync([process.execPath, `${index}.mjs`], { cwd: directory, timeout: 60_000 });
    assert.deepEqual([result.code, result.stderrText], [0, '']);
    if (output !== undefined) {
      assert.equal(result.text, output);
    }
  });
});
