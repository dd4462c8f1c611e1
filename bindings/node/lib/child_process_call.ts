// SPDX-License-Identifier: MIT OR Apache-2.0
// The arguments of child_process's functions. Node's own function gets the arguments that this file does not know, and
// reports wrong ones.

import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import { getSystemErrorName } from 'node:util';

export type Options = Record<string, unknown>;

/** The arguments of a start, in the form that Node's ChildProcess takes. */
export interface Command {
  file: string;
  args: string[];
  cwd: string | undefined;
  envPairs: string[];
  detached: boolean;
  uid: number | undefined;
  gid: number | undefined;
}

/** Why Node's own code started a program. */
export type DelegationReason = 'ipc' | 'arguments' | 'unsupported';

export const counts = { started: 0, delegated: { ipc: 0, arguments: 0, unsupported: 0 } };

export const MAJOR = Number(process.versions.node.split('.')[0]);
/** In bytes. */
export const DEFAULT_MAX_BUFFER = 1024 * 1024;

export const isAbsent = (value: unknown): value is undefined | null => value === undefined || value === null;
export const isString = (value: unknown): value is string => typeof value === 'string' && !value.includes('\0');
export const isInteger = (value: unknown): value is number => typeof value === 'number' && (value | 0) === value;
export const isObject = (value: unknown): value is Options =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
export const isTimeout = (value: unknown): boolean => isAbsent(value) || (Number.isInteger(value) && (value as number) >= 0);
export const isSize = (value: unknown): boolean => isAbsent(value) || (typeof value === 'number' && value >= 0);
const isFlag = (value: unknown): boolean => isAbsent(value) || typeof value === 'boolean';
const isId = (value: unknown): value is number | undefined | null => isAbsent(value) || isInteger(value);
/** Whether the conversion of a value to a string runs no code of the caller. */
const isPrimitive = (value: unknown): boolean => value === null || !['object', 'function', 'symbol'].includes(typeof value);

/** A copy of the options. It inherits none from Object.prototype. */
export function copied(options: unknown): Options {
  return { __proto__: null, ...(options as Options | undefined) } as unknown as Options;
}

/** The arguments and the options of a call that may have only one of them. */
export function parted(args: unknown, options: unknown): [unknown[], Options] | undefined {
  if (isObject(args)) {
    [args, options] = [[], args];
  }
  const isKnown = (isAbsent(args) || Array.isArray(args)) && (options === undefined || isObject(options));
  return isKnown ? [[...((args as unknown[] | null) ?? [])], copied(options)] : undefined;
}

/** The number of the signal that ends a program. */
export function killSignalOf(signal: unknown): number | undefined {
  if (isAbsent(signal)) {
    return constants.signals.SIGTERM;
  }
  const known = constants.signals as Record<string, number>;
  if (typeof signal === 'number') {
    return Object.values(known).includes(signal) ? signal : undefined;
  }
  return typeof signal === 'string' && Object.hasOwn(known, signal.toUpperCase()) ? known[signal.toUpperCase()] : undefined;
}

/** The variables, as Node passes them: those of the prototypes too. */
function variables(given: Options | undefined): string[] | undefined {
  const env = { __proto__: given ?? process.env } as unknown as Options;
  const coverage = process.env.NODE_V8_COVERAGE;
  if (coverage && given && !Object.hasOwn(given, 'NODE_V8_COVERAGE')) {
    env.NODE_V8_COVERAGE = coverage;
  }
  const pairs: string[] = [];
  for (const name in env) {
    if (env[name] !== undefined) {
      pairs.push(`${name}=${env[name] as string}`);
    }
  }
  return pairs.some((pair) => pair.includes('\0')) ? undefined : pairs;
}

/** The program and its arguments, with the shell if there is one. */
function commandLine(file: string, args: unknown[], { shell, argv0 }: Options): [string, string[]] {
  const words = args.map(String);
  if (!shell) {
    return [file, [(argv0 as string | undefined) ?? file, ...words]];
  }
  const program = typeof shell === 'string' ? shell : '/bin/sh';
  return [program, [(argv0 as string | undefined) ?? program, '-c', [file, ...words].join(' ')]];
}

let hasWarned = false;

/** Whether Node has to make this call, because it warns of arguments beside a shell. Node warns once. */
function warns(isShell: boolean, args: unknown[]): boolean {
  const isFirst = MAJOR >= 24 && isShell && args.length > 0 && !hasWarned;
  hasWarned ||= isFirst;
  return isFirst;
}

/** The command of a call. Undefined: only Node knows the arguments, or reports them. */
export function commandOf(file: unknown, args: unknown[], options: Options): Command | undefined {
  const { cwd, env, uid, gid, shell, argv0, detached } = options;
  const directory = cwd instanceof URL && cwd.protocol === 'file:' ? fileURLToPath(cwd) : cwd;
  const isKnown =
    isString(file) &&
    file !== '' &&
    args.every((argument) => isPrimitive(argument) && isString(String(argument))) &&
    (isAbsent(directory) || (isString(directory) && directory !== '')) &&
    (!env || isObject(env)) &&
    [detached, options.windowsHide, options.windowsVerbatimArguments].every(isFlag) &&
    isId(uid) &&
    isId(gid) &&
    (isAbsent(shell) || typeof shell === 'boolean' || isString(shell)) &&
    (isAbsent(argv0) || isString(argv0)) &&
    // The permission model changes the variables.
    !(process as { permission?: unknown }).permission &&
    !warns(Boolean(shell), args);
  const envPairs = isKnown ? variables((env || undefined) as Options | undefined) : undefined;
  if (!isKnown || !envPairs) {
    return undefined;
  }
  const [program, argv] = commandLine(file, args, options);
  return {
    file: program,
    args: argv,
    cwd: directory ?? undefined,
    envPairs,
    detached: Boolean(detached),
    uid: uid ?? undefined,
    gid: gid ?? undefined,
  };
}

/** The error of a system call, as Node makes it. */
export function errnoError(errno: number, syscall: string, command?: { file: string; args: string[] }): Error {
  const code = getSystemErrorName(errno);
  const error = Object.assign(new Error(`${syscall} ${code}`), { errno, code, syscall });
  return command ? Object.assign(error, { path: command.file, spawnargs: command.args.slice(1) }) : error;
}
