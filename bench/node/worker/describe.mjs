// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints the versions of this runtime, and the exports and modules of the package under test.
// Usage: describe.mjs PACKAGE

import { has, load } from './package.mjs';

const directory = process.argv[2];
const { bun, node, uv } = process.versions;
const modules = ['spawnfd/child_process'].filter((name) => has(directory, name));
const exports = [...Object.keys(load(directory)), ...modules];
// Bun starts programs without libuv.
console.log(JSON.stringify({ version: bun ?? node, libuv: bun ? '' : uv, exports }));
