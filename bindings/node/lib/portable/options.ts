// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

/** An option of run() or start(). The default of a duration is in milliseconds. */
export interface OptionSpec {
  readonly name: string;
  readonly kind: string;
  readonly calls: readonly string[];
  /** Whether null is a value. */
  readonly optional: boolean;
  readonly default: unknown;
  /** The words that are values. */
  readonly words: readonly string[];
}

export const OPTIONS: readonly OptionSpec[] = [
  { name: 'cwd', kind: 'Path', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'env', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'stdin', kind: 'Stream', calls: ['run'], optional: true, default: 'null', words: ['null', 'inherit'] },
  { name: 'stdin', kind: 'Stream', calls: ['start'], optional: true, default: 'null', words: ['null', 'inherit', 'stream'] },
  { name: 'stdout', kind: 'Stream', calls: ['run', 'start'], optional: true, default: 'capture', words: ['capture', 'null', 'inherit'] },
  { name: 'stderr', kind: 'Stream', calls: ['run', 'start'], optional: true, default: 'separate', words: ['separate', 'merge', 'null', 'inherit'] },
  { name: 'actions', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'arg0', kind: 'Path', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'sandbox', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'warm', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'window', kind: 'Bytes', calls: ['start'], optional: false, default: 1048576, words: [] },
  { name: 'hold', kind: 'Flag', calls: ['start'], optional: false, default: false, words: [] },
  { name: 'timeout', kind: 'Duration', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'idleTimeout', kind: 'Duration', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'grace', kind: 'Duration', calls: ['run', 'start'], optional: false, default: 2000, words: [] },
  { name: 'input', kind: 'Data', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'keep', kind: 'HeadTail', calls: ['run', 'start'], optional: false, default: [64000, 64000], words: [] },
  { name: 'marker', kind: 'Text', calls: ['run', 'start'], optional: true, default: '[… {omitted} omitted …]', words: [] },
  { name: 'combined', kind: 'Flag', calls: ['run', 'start'], optional: false, default: false, words: [] },
  { name: 'spill', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'outputLimit', kind: 'Bytes', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'drain', kind: 'Duration', calls: ['run', 'start'], optional: false, default: 100, words: [] },
  { name: 'tree', kind: 'Word', calls: ['run', 'start'], optional: true, default: null, words: ['group', 'guard', 'subreaper', 'cgroup', 'pidns', 'auto'] },
  { name: 'leftovers', kind: 'Word', calls: ['run', 'start'], optional: false, default: 'kill', words: ['kill', 'adopt', 'detach'] },
  { name: 'limits', kind: 'Object', calls: ['run', 'start'], optional: false, default: null, words: [] },
  { name: 'limiter', kind: 'Object', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'terminal', kind: 'TerminalSize', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'limits.memory', kind: 'Bytes', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'limits.pids', kind: 'Count', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'limits.cpuTime', kind: 'Duration', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'limits.cpus', kind: 'Number', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'limits.enforce', kind: 'Word', calls: ['run', 'start'], optional: false, default: 'auto', words: ['auto', 'cgroup', 'watch', 'best-effort'] },
  { name: 'spill.maxBytes', kind: 'Bytes', calls: ['run', 'start'], optional: false, default: 104857600, words: [] },
  { name: 'spill.dir', kind: 'Path', calls: ['run', 'start'], optional: true, default: null, words: [] },
  { name: 'spill.persist', kind: 'Flag', calls: ['run', 'start'], optional: false, default: false, words: [] },
];

/** The variables of Env.noninteractive(). null removes one. */
export const NONINTERACTIVE: readonly (readonly [string, string | null])[] = [
  ['PAGER', 'cat'],
  ['GIT_PAGER', 'cat'],
  ['MANPAGER', 'cat'],
  ['SYSTEMD_PAGER', 'cat'],
  ['GIT_TERMINAL_PROMPT', '0'],
  ['GIT_EDITOR', 'true'],
  ['EDITOR', 'true'],
  ['VISUAL', 'true'],
  ['DEBIAN_FRONTEND', 'noninteractive'],
  ['PIP_NO_INPUT', '1'],
  ['npm_config_yes', 'true'],
  ['NO_COLOR', '1'],
  ['CLICOLOR', '0'],
  ['TERM', 'dumb'],
  ['CI', '1'],
  ['FORCE_COLOR', null],
  ['CLICOLOR_FORCE', null],
];
