// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * Starts programs on Linux, and supervises them: no hangs, no leaked descriptors, no surviving process trees.
 *
 * @packageDocumentation
 */

export { Action } from './action';
export * as actions from './actions';
export type { Abortable, Argv } from './call';
export { Child, spawn, type Exit } from './child';
export { Env } from './env';
export { AbortError, ExitError, SpawnError, StaleTemplate, Unsupported } from './errors';
export { Job, start, type Chunk, type Line, type OutputEvent, type TerminalSize } from './job';
export { Limiter } from './limiter';
export type {
  CommandOptions,
  Limits,
  RunOptions,
  SessionOptions,
  SpawnOptions,
  Spill,
  StartOptions,
  Stop,
} from './options';
export { Remote, type RemoteOptions, type RemoteSession } from './remote';
export { RunResult, type Leftover, type Omitted, type Piece, type Result } from './result';
export { run, runSync, sh } from './run';
export { Sandbox } from './sandbox';
export { Session, type SessionProcess } from './session';
export { Template } from './template';
export { Warm, type ParkOptions, type WarmExplanation, type WarmMode, type WarmOptions, type WarmStats } from './warm';
