// SPDX-License-Identifier: MIT OR Apache-2.0
// Environments.

import type { NativeEnv } from '../native';
import { NONINTERACTIVE } from './options';
import { data, object, wrong } from './values';

/** The variables of an object. `undefined` and `null` are no value. */
function variables(given: unknown): [string, string | undefined][] {
  return Object.entries(object(given, 'env', 'an object of strings, or null')).map(([name, value]) => {
    if (name === '' || name.includes('=')) {
      throw wrong(`env: ${JSON.stringify(name)} is not a name of a variable`);
    }
    if (value == null) {
      return [name, undefined];
    }
    const text = data(value, `env.${name}`).toString();
    if (`${name}${text}`.includes('\0')) {
      // The value may be a secret.
      throw wrong(`an environment variable contains a NUL byte: ${JSON.stringify(name)}`);
    }
    return [name, text];
  });
}

/** Whether a pattern matches the whole name: `*` stands for any characters, `?` for one. */
function matcher(patterns: string[]): (name: string) => boolean {
  const expressions = patterns.map((pattern) => {
    const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, '\\$&');
    return new RegExp(`^${escaped.replace(/\*+/g, '.*').replaceAll('?', '.')}$`, 's');
  });
  return (name) => expressions.some((expression) => expression.test(name));
}

export class PortableEnv implements NativeEnv {
  readonly #variables: ReadonlyMap<string, string>;

  /** The variables of an object; null: those of this process. */
  constructor(given: unknown) {
    const all = variables(given ?? process.env);
    this.#variables = new Map(all.filter((pair): pair is [string, string] => pair[1] !== undefined));
  }

  static #of(variables: Iterable<[string, string]>): PortableEnv {
    return new PortableEnv(Object.fromEntries(variables));
  }

  #filter(isKept: (name: string) => boolean): PortableEnv {
    return PortableEnv.#of([...this.#variables].filter(([name]) => isKept(name)));
  }

  keepOnly(patterns: string[]): PortableEnv {
    return this.#filter(matcher(patterns));
  }
  deny(patterns: string[]): PortableEnv {
    const isDenied = matcher(patterns);
    return this.#filter((name) => !isDenied(name));
  }
  set(given: unknown): PortableEnv {
    const changed = new Map(this.#variables);
    for (const [name, value] of variables(given)) {
      value === undefined ? changed.delete(name) : changed.set(name, value);
    }
    return PortableEnv.#of(changed);
  }
  noninteractive(): PortableEnv {
    return this.set(Object.fromEntries(NONINTERACTIVE));
  }
  get(name: string): string | null {
    return this.#variables.get(name) ?? null;
  }
  entries(): [string, string][] {
    return [...this.#variables].sort(([first], [second]) => (first < second ? -1 : 1));
  }
  toObject(): Record<string, string> {
    return Object.fromEntries(this.#variables);
  }
}
