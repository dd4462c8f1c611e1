// SPDX-License-Identifier: MIT OR Apache-2.0

import { seesEnvironment } from './call';
import { checked } from './errors';
import { NATIVE, native, type NativeEnv } from './native';

/**
 * The environment of a program, an immutable value: each method returns a new one.
 *
 * `Env.inherit().deny('*_TOKEN', '*_KEY').set({ LANG: 'C.UTF-8' }).noninteractive()`
 */
export class Env {
  /** For this package. */
  readonly [NATIVE]: NativeEnv;

  private constructor(env: NativeEnv) {
    this[NATIVE] = env;
  }

  static #of(make: () => NativeEnv): Env {
    return new Env(checked(make));
  }

  /** The environment of this process as it is now. For a program on another machine: that of the server there. */
  static inherit(): Env {
    return Env.#of(() => new native.NativeEnv(seesEnvironment ? null : { ...process.env }, true));
  }
  /** No variables. */
  static empty(): Env {
    return Env.of({});
  }
  /** These variables, and no others. */
  static of(variables: Readonly<Record<string, string | undefined>>): Env {
    return Env.#of(() => new native.NativeEnv(variables));
  }
  /** The variables of this process whose names match a pattern: `*` stands for any characters, `?` for one. */
  static only(...patterns: string[]): Env {
    return Env.#of(() => Env.inherit()[NATIVE].keepOnly(patterns));
  }

  /** Without the variables whose names match a pattern. */
  deny(...patterns: string[]): Env {
    return Env.#of(() => this[NATIVE].deny(patterns));
  }
  /** With these variables. `undefined` removes one. */
  set(variables: Readonly<Record<string, string | undefined>>): Env {
    return Env.#of(() => this[NATIVE].set(variables));
  }
  /** With variables that stop common tools from prompting, paging and colouring their output. */
  noninteractive(): Env {
    return Env.#of(() => this[NATIVE].noninteractive());
  }
  /** The value of a variable. */
  get(name: string): string | undefined {
    return this[NATIVE].get(name) ?? undefined;
  }
  /** The variables as an object. */
  toObject(): Record<string, string> {
    return Object.fromEntries(this[NATIVE].entries());
  }
}
