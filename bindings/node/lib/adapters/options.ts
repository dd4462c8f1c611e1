// SPDX-License-Identifier: MIT OR Apache-2.0

import type { StartOptions } from '../options';

/** The options of a command that a runtime does not decide. */
export type CommandOptions = Pick<
  StartOptions,
  'actions' | 'drain' | 'grace' | 'idleTimeout' | 'leftovers' | 'limiter' | 'limits' | 'outputLimit' | 'tree'
>;
