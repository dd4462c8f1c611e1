// SPDX-License-Identifier: MIT OR Apache-2.0
// Checks the values of options, with the texts of src/values.rs.

import { isUtf8 } from 'node:buffer';
import { Unsupported } from '../errors';
import type { OptionSpec } from './options';

/** The exception for an argument that is not valid. checked() makes a TypeError of it. */
export function wrong(message: string): Error {
  return Object.assign(new Error(message), { code: 'InvalidArg' });
}

/** Describes a value in an error text. */
export function shown(value: unknown): string {
  if (typeof value === 'string') {
    return JSON.stringify(value);
  }
  return value == null || typeof value === 'number' || typeof value === 'boolean'
    ? String(value)
    : `a value of type ${typeof value}`;
}

function mustBe(name: string, expected: string, value: unknown): Error {
  return wrong(`${name} must be ${expected}, got ${shown(value)}`);
}

export function integer(value: unknown, name: string): number {
  if (typeof value !== 'number') {
    throw mustBe(name, 'a whole number', value);
  }
  if (!Number.isSafeInteger(value) || value < 0) {
    throw mustBe(name, 'a whole number >= 0', value);
  }
  return value;
}

function number(value: unknown, name: string): number {
  if (typeof value !== 'number') {
    throw mustBe(name, 'a number', value);
  }
  return value;
}

/** Checks a number of milliseconds. Infinity is no end. */
export function duration(value: unknown, name: string): number {
  if (typeof value !== 'number') {
    throw mustBe(name, 'a number of milliseconds', value);
  }
  if (!(value >= 0)) {
    throw mustBe(name, 'a number of milliseconds >= 0', value);
  }
  return value;
}

export function data(value: unknown, name: string): Buffer {
  if (typeof value === 'string') {
    return Buffer.from(value);
  }
  if (!ArrayBuffer.isView(value)) {
    throw mustBe(name, 'a string or a Uint8Array', value);
  }
  if (!(value instanceof Uint8Array)) {
    throw wrong(`${name} must be a Uint8Array`);
  }
  // The caller may change its bytes.
  return Buffer.from(value);
}

/** Checks text for the operating system: a string or bytes. */
export function text(value: unknown, name: string): string {
  const bytes = data(value, name);
  if (!isUtf8(bytes)) {
    throw new Unsupported(`${name} that is not UTF-8`);
  }
  if (bytes.includes(0)) {
    throw wrong(`${name} contains a NUL byte`);
  }
  return bytes.toString();
}

function string(value: unknown, name: string): string {
  if (typeof value !== 'string') {
    throw mustBe(name, 'a string', value);
  }
  return value;
}

function flag(value: unknown, name: string): boolean {
  if (typeof value !== 'boolean') {
    throw mustBe(name, 'true or false', value);
  }
  return value;
}

export function object(value: unknown, name: string, expected: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null) {
    throw mustBe(name, expected, value);
  }
  return value as Record<string, unknown>;
}

function headTail(value: unknown, name: string): [number, number] {
  const expected = 'an array of two numbers (bytes of head and of tail), or "all"';
  if (value === 'all') {
    return [Infinity, 0];
  }
  if (typeof value === 'string') {
    throw mustBe(name, 'two numbers of bytes, or "all"', value);
  }
  if (!Array.isArray(value) || value.length !== 2) {
    throw mustBe(name, expected, value);
  }
  return [integer(value[0], `${name}[0]`), integer(value[1], `${name}[1]`)];
}

function terminalSize(value: unknown, name: string): [number, number] {
  const size = object(value, name, 'an object with rows and columns');
  const side = (side: string): number => {
    if (size[side] === undefined) {
      throw wrong(`${name} must have ${side}`);
    }
    return integer(size[side], `${name}.${side}`);
  };
  return [side('rows'), side('columns')];
}

function word(value: unknown, name: string, words: readonly string[]): string {
  const given = string(value, name);
  if (!words.includes(given)) {
    throw mustBe(name, `one of ${words.map((each) => JSON.stringify(each)).join(', ')}`, given);
  }
  return given;
}

const CHECKS: Record<string, (value: unknown, name: string, option: OptionSpec) => unknown> = {
  Flag: flag,
  Count: integer,
  Bytes: integer,
  Number: number,
  Duration: duration,
  Text: string,
  Path: text,
  Data: data,
  HeadTail: headTail,
  TerminalSize: terminalSize,
  Word: (value, name, { words }) => word(value, name, words),
  Stream: (value, name, { words }) => (typeof value === 'number' ? integer(value, name) : word(value, name, words)),
  Object: (value, name) => object(value, name, 'an object'),
};

/** Checks and converts the value of an option. `name` is the name that the error text has. */
export function optionValue(option: OptionSpec, name: string, value: unknown): unknown {
  if (value === null && option.optional) {
    return option.kind === 'Stream' ? option.default : null;
  }
  return CHECKS[option.kind]!(value, name, option);
}
