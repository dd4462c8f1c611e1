// SPDX-License-Identifier: MIT OR Apache-2.0

import { NATIVE } from './native';

/** A step of the child before it executes the program. The functions of `actions` make them. */
export class Action {
  /** For this package. */
  readonly [NATIVE]: readonly [name: string, values: object];

  /** @internal */
  constructor(name: string, values: object) {
    this[NATIVE] = [name, values];
  }
}
