// SPDX-License-Identifier: MIT OR Apache-2.0
// The package under test, in its directory. It is no dependency of the benchmark's own package.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const requireIn = (directory) => createRequire(join(directory, 'package.json'));

/** Loads the package, or one of its other modules. */
export function load(directory, name = 'spawnfd') {
  return requireIn(directory)(name);
}

/** Whether the package has another module. */
export function has(directory, name) {
  try {
    requireIn(directory).resolve(name);
    return true;
  } catch {
    return false;
  }
}
