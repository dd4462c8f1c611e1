// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints the versions of this runtime, the exports and modules of the package under test, and whether execa loads.
// Usage: describe.mjs PACKAGE

import { has, load } from './package.mjs';

const directory = process.argv[2];
const { bun, node, uv } = process.versions;
const modules = ['spawnfd/child_process'].filter((name) => has(directory, name));
const execa = await import('execa').then(
  () => ['execa'],
  () => [],
);
const exports = [...Object.keys(load(directory)), ...modules, ...execa];
// Bun starts programs without libuv.
console.log(JSON.stringify({ version: bun ?? node, libuv: bun ? '' : uv, exports }));
