// SPDX-License-Identifier: MIT OR Apache-2.0
// Names and numbers of signals.

import { constants } from 'node:os';

const names = new Map<number, string>();
for (const [name, number] of Object.entries(constants.signals)) {
  // The first name is the usual one: SIGABRT, not SIGIOT.
  if (!names.has(number)) {
    names.set(number, name);
  }
}

/** The name of a signal, as child_process reports it; empty if it has none. */
export function signalName(signal: number): string {
  return names.get(signal) ?? '';
}

/**
 * The number of a signal.
 *
 * @throws {TypeError} There is no such signal.
 */
export function signalNumber(signal: NodeJS.Signals | number): number {
  const number = typeof signal === 'number' ? signal : constants.signals[signal];
  if (!Number.isInteger(number) || number < 0 || number > 64) {
    throw new TypeError(`unknown signal ${JSON.stringify(signal)}`);
  }
  return number;
}
