// SPDX-License-Identifier: MIT OR Apache-2.0
// Helpers of the tests.

import { spawn } from 'node:child_process';
import {
  existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('..', import.meta.url));
export const PACKAGE = join(ROOT, 'dist/index.js');

/** The reason to skip a test that needs the native half, if portable.test.mjs runs it without that. */
export const NEEDS_NATIVE = process.env.SPAWNFD_PORTABLE === '1' && 'needs the native half';

/** The command `spawnfd` of this checkout: the newest build. Programs that tests install find it in PATH. */
export function command() {
  const target = process.env.CARGO_TARGET_DIR ?? join(ROOT, '../../target');
  const built = ['release', 'debug'].map((profile) => join(target, profile, 'spawnfd')).filter((path) => existsSync(path));
  if (built.length === 0) {
    throw new Error(`there is no command spawnfd in ${target}: run cargo build -p spawnfd-cli`);
  }
  const time = (path) => statSync(path).mtimeMs;
  return built.reduce((one, other) => (time(one) > time(other) ? one : other));
}

/** A directory that is removed at the end of the test. */
export function scratch(t) {
  const path = mkdtempSync(join(tmpdir(), 'spawnfd-node-'));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Lets programs in a directory import this package, and the packages that its adapters are for. */
export function install(directory) {
  const { name, devDependencies } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  for (const each of [name, ...Object.keys(devDependencies)]) {
    const link = join(directory, 'node_modules', each);
    mkdirSync(dirname(link), { recursive: true });
    symlinkSync(each === name ? ROOT : join(ROOT, 'node_modules', each), link);
  }
}

/** Whether a process exists and is not a zombie. */
export function isRunning(pid) {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

/** Waits until `condition` holds; fails after a minute. */
export async function until(condition, what) {
  const deadline = Date.now() + 60_000;
  while (!condition()) {
    if (Date.now() > deadline) {
      throw new Error(`not within a minute: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Waits until a file has a whole line, and returns it as a number. */
export async function pidIn(path) {
  await until(() => existsSync(path) && readFileSync(path, 'utf8').endsWith('\n'), `a pid in ${path}`);
  return Number(readFileSync(path, 'utf8'));
}

/** Runs a script in another Node with an input, and returns its status and output. `end` may end the process before. */
export function node(script, { args = [], env = {}, flags = [], input, end } = {}) {
  const prelude = `const { run, runSync, start, sh, Limiter, Remote, Session } = require(${JSON.stringify(PACKAGE)});`;
  const child = spawn(process.execPath, [...flags, '-e', `${prelude}\n${script}`, ...args], {
    env: { ...process.env, ...env },
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  });
  child.stdin?.end(input);
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) {
    child[name].setEncoding('utf8').on('data', (text) => (output[name] += text));
  }
  end?.(child);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code, signal, ...output }));
  });
}

/** The number of this process's open descriptors. */
export function descriptors() {
  return readdirSync('/proc/self/fd').length - 1;
}
