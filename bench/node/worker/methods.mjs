// SPDX-License-Identifier: MIT OR Apache-2.0
// Methods to make captured calls. All start the program with the same argv, working directory and environment, with
// /dev/null as stdin, and capture all of stdout and stderr separately.

import * as childProcess from 'node:child_process';
import { load } from './package.mjs';

// Limits of a Warm that no benchmark reaches.
const MEMORY_BYTES = 4 * 1024 ** 3;
const PROCESSES = 512;
const IDLE_MS = 3_600_000;
const FILL_MS = 60_000;

/** A method: `call` makes one call, `settle` waits until used processes have been replaced. */
class Method {
  constructor(call, warm) {
    this.call = call;
    this.warm = warm;
  }

  async settle() {
    if (this.warm && !(await this.warm.fill(FILL_MS))) {
      throw new Error(`not parked within ${FILL_MS} ms`);
    }
  }

  async close() {
    await this.warm?.close();
  }
}

/** child_process.spawn(), with the code by which a runtime collects the output. */
function capturing({ spawn }, { cwd, env }) {
  const options = { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] };
  return ([program, ...args]) =>
    new Promise((resolve, reject) => {
      const child = spawn(program, args, options);
      const stdout = [];
      const stderr = [];
      child.stdout.on('data', (data) => stdout.push(data));
      child.stderr.on('data', (data) => stderr.push(data));
      child.on('error', reject);
      child.on('close', (code) => resolve({ code, stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr) }));
    });
}

async function execaCall({ cwd, env }) {
  const { execa } = await import('execa');
  const options = {
    cwd,
    env,
    extendEnv: false,
    stdin: 'ignore',
    encoding: 'buffer',
    stripFinalNewline: false,
    reject: false,
  };
  return async ([program, ...args]) => {
    const { exitCode: code, stdout, stderr } = await execa(program, args, options);
    return { code, stdout, stderr };
  };
}

function bunCall({ cwd, env }) {
  const { Bun } = globalThis;
  const options = { cwd, env, stdin: 'ignore', stdout: 'pipe', stderr: 'pipe' };
  return async (argv) => {
    const child = Bun.spawn(argv, options);
    const output = [child.stdout, child.stderr].map((stream) => new Response(stream).bytes());
    const [stdout, stderr, code] = await Promise.all([...output, child.exited]);
    return { code, stdout, stderr };
  };
}

function runCall({ run }, options) {
  return async (argv) => {
    const result = await run(argv, options);
    const { code, stdout, stderr } = result;
    return {
      code,
      stdout,
      stderr,
      get started() {
        return result.started;
      },
    };
  };
}

async function runMethod({ package: directory, method, cwd, env: variables, parks }) {
  const spawnfd = load(directory);
  const env = spawnfd.Env.of(variables);
  if (!method.mode) {
    return new Method(runCall(spawnfd, { cwd, env }));
  }
  const warm = new spawnfd.Warm({ memory: MEMORY_BYTES, processes: PROCESSES, idle: IDLE_MS });
  for (const { argv, depth } of parks) {
    // Node must get -e when it starts, which is before it parks.
    warm.add(argv[0], { depth, args: [argv[1]], mode: method.mode, env });
  }
  const made = new Method(runCall(spawnfd, { cwd, env, warm }), warm);
  await made.settle();
  return made;
}

/** Creates a worker's method. */
export async function makeMethod(job) {
  switch (job.method.way) {
    case 'child_process.spawn':
      return new Method(capturing(childProcess, job));
    case 'spawnfd/child_process':
      return new Method(capturing(load(job.package, 'spawnfd/child_process'), job));
    case 'execa':
      return new Method(await execaCall(job));
    case 'Bun.spawn':
      return new Method(bunCall(job));
    case 'spawnfd.run':
      return await runMethod(job);
    default:
      throw new Error(`unknown method ${job.method.way}`);
  }
}
