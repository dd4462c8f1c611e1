// SPDX-License-Identifier: MIT OR Apache-2.0

import { closeSync, openSync } from 'node:fs';

/** The memory and descriptors of a large calling process. */
export class Burden {
  #memory;
  #descriptors = [];

  constructor({ touch_mib: mib, descriptors }) {
    // Each byte is written, so each page is the process's own.
    this.#memory = Buffer.alloc(mib * 1024 * 1024, 1);
    for (let count = 0; count < descriptors; count++) {
      this.#descriptors.push(openSync('/dev/null', 'r'));
    }
  }

  end() {
    this.#memory = undefined;
    this.#descriptors.forEach((fd) => closeSync(fd));
  }
}
