// SPDX-License-Identifier: MIT OR Apache-2.0
// The cases of tests/data/cases.json, by each way to call. docs/testing.md has the notation.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import * as spawnfd from '../dist/index.js';
import { isRunning, scratch, until } from './support.mjs';

const { actions, Env, ExitError, Limiter, Sandbox, Session, sh, SpawnError, Template } = spawnfd;
const CASES = JSON.parse(readFileSync(new URL('../../../tests/data/cases.json', import.meta.url)));

const OF_PROGRAMS = ['run', 'runSync', 'start'];
const OF_SESSIONS = ['bash run', 'bash start', 'dash run', 'dash start'];

/** The functions that run a case; those of a session with the shell. */
function ways(item) {
  const steps = item.steps ?? [item];
  const ofPrograms = item.session ? [] : OF_PROGRAMS;
  const ofSessions = item.session || steps[0].command !== undefined ? OF_SESSIONS : [];
  const takesWrites = steps.some((step) => step.writes);
  return [...ofPrograms, ...ofSessions].filter((way) => way.includes('start') || !takesWrites);
}

/** The name in this package of a name of the core. */
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

function envOf([[first, ...patterns], ...changes]) {
  return changes.reduce(
    (env, [name, ...given]) => env[name](...(name === 'set' ? [absent(given[0])] : given)),
    Env[first](...patterns),
  );
}

const absent = (variables) =>
  Object.fromEntries(Object.entries(variables).map(([name, value]) => [name, value ?? undefined]));

const actionOf = (name, ...given) => actions[camel(name)](...given);

/** Values that JSON does not have, by the name of an object's only key. */
const VALUES = {
  bytes: (text) => Buffer.from(text, 'latin1'),
  number: (text) => Number(text.replace('inf', 'Infinity')),
  repeat: ([text, count]) => text.repeat(count),
  join: (texts) => texts.join(''),
  seq: (last) => Array.from({ length: last }, (_, index) => `${index + 1}\n`).join(''),
  Env: envOf,
};

const TIMES = ['timeout', 'grace', 'drain', 'idle_timeout', 'startup_timeout', 'cpu_time'];

/** Options whose values have another form in this package. */
const OPTIONS = {
  sandbox: (argv) => new Sandbox(argv),
  limiter: (limit) => new Limiter(limit),
  terminal: ([rows, columns]) => ({ rows, columns }),
  actions: (items) => items.map((item) => (Array.isArray(item) ? actionOf(...item) : item)),
  limits: (fields) => options(fields),
  spill: (fields) => options(fields),
};

/** Converts options. A value of a wrong type stays as it is. */
function options(given) {
  const option = (name, value) => {
    if (TIMES.includes(name) && typeof value === 'number') {
      return value * 1000;
    }
    const isConverted = (typeof value === 'object' && value !== null) || (name === 'limiter' && value === 1);
    return isConverted && name in OPTIONS ? OPTIONS[name](value) : value;
  };
  return Object.fromEntries(Object.entries(given).map(([name, value]) => [camel(name), option(name, value)]));
}

/** One run of a case, in a directory of its own. */
class Run {
  constructor(t, way) {
    Object.assign(this, { t, way, directory: scratch(t), method: way.split(' ').at(-1), text: '{text}' });
  }

  /** Converts a value of the table. */
  value(given) {
    if (typeof given === 'string') {
      return given.replaceAll('{tmp}', this.directory).replaceAll('{text}', this.text);
    }
    if (Array.isArray(given)) {
      return given.map((item) => this.value(item));
    }
    if (typeof given !== 'object' || given === null) {
      return given;
    }
    const values = Object.entries(given).map(([name, item]) => [name, this.value(item)]);
    const [[name, item] = [], ...more] = values;
    if (name === 'file' && more.length === 0) {
      const fd = openSync(join(this.directory, item), constants.O_RDWR | constants.O_CREAT, 0o644);
      this.t.after(() => closeSync(fd));
      return fd;
    }
    return name in VALUES && more.length === 0 ? VALUES[name](item) : Object.fromEntries(values);
  }

  create(files = {}) {
    for (const [name, content] of Object.entries(files)) {
      const path = join(this.directory, name);
      if (content === null) {
        execFileSync('mkfifo', [path]);
      } else if (name.endsWith('/')) {
        mkdirSync(path);
      } else {
        writeFileSync(path, this.value(content), { mode: content.startsWith('#!') ? 0o755 : 0o644 });
      }
    }
  }

  /** The object whose methods run the steps: the package, a template, or a session. */
  async target(item) {
    if ('template' in item) {
      const template = new Template(this.value(item.template), this.value(item.search ?? {}));
      for (const [name, expected] of Object.entries(item.attributes ?? {})) {
        assert.deepEqual(template[name], this.value(expected), name);
      }
      return template;
    }
    if (!this.way.includes(' ')) {
      return spawnfd;
    }
    const { shell = this.way.split(' ')[0], args, ...given } = options(this.value(item.session ?? {}));
    const session = await Session.open(args ? [shell, ...args] : shell, given);
    this.t.after(() => session.close());
    return session;
  }

  async perform(item) {
    this.create(item.given);
    if (item.refused) {
      return this.checkError(await failure(() => this.target(item)), item.refused);
    }
    const target = await this.target(item);
    for (const step of item.steps ?? [item]) {
      if (step !== item) {
        this.create(step.given);
      }
      await this.step(target, step);
    }
    if (target instanceof Session) {
      await target.close();
    }
  }

  async step(target, step) {
    if (step.error) {
      this.checkError(await failure(() => this.call(target, step, this.options(step))), step.error);
    } else {
      const given = this.options(step);
      let result = await this.call(target, step, given);
      for (; step.ready && !existsSync(join(this.directory, step.ready)); given.timeout *= 2) {
        assert.ok(given.timeout < 60_000, `the program never created ${step.ready}`);
        result = await this.call(target, step, given);
      }
      if (result !== undefined) {
        await this.checkResult(result, step);
      }
    }
    for (const [name, content] of Object.entries(step.files ?? {})) {
      assert.equal(readFileSync(join(this.directory, name), 'utf8'), this.value(content), name);
    }
  }

  options(step) {
    return options(this.value(step.options ?? {}));
  }

  async call(target, step, given) {
    if (step.resize) {
      return target.resize({ rows: step.resize[0], columns: step.resize[1] });
    }
    if (step.side) {
      return target.sideCommand(this.value(step.side), given);
    }
    let what = this.value(step.command ?? step.sh ?? step.argv ?? (this.way.includes(' ') ? 'true' : ['true']));
    if (!this.way.includes(' ') && typeof what === 'string' && !('argv' in step)) {
      what = sh(what);
    }
    const started = target[this.method](what, given);
    if (this.method !== 'start') {
      return started;
    }
    for (const text of step.writes ?? []) {
      await started.write(this.value(text));
    }
    if (step.writes) {
      await started.closeStdin();
    }
    return started.wait();
  }

  checkError(error, { node: expected, ...both }) {
    expected ??= both;
    if (expected.wrong) {
      assert.ok(error instanceof TypeError, String(error));
      assert.ok(error.message.includes(camel(expected.wrong.node ?? expected.wrong)), error.message);
    } else {
      assert.ok(error instanceof SpawnError, String(error));
      const { code, stage, action } = error;
      assert.deepEqual([code, stage, action], [expected.errno, expected.stage, expected.action], error.message);
    }
    const says = expected.says?.node ?? expected.says ?? '';
    this.compare(error.message, typeof says === 'string' ? { has: says } : says);
  }

  async checkResult(result, step) {
    this.text = result.text.trim();
    const named = step.result ?? {};
    const names = (...several) => several.some((name) => name in named);
    const end = names('ok', 'code', 'signal', 'stop') ? {} : { ok: true, code: 0 };
    const silence = 'ok' in end && !names('stderr', 'stderr_text', 'output') ? { stderr: '' } : {};
    for (const [name, expected] of Object.entries({ ...named, ...end, ...silence })) {
      const found = name === 'spill_text' ? readFileSync(result.spillPath, 'utf8') : plain(name, result[camel(name)]);
      this.compare(found, expected, name, result);
    }
    assert.equal(JSON.parse(JSON.stringify(result)).stdout, result.text);
    if (result.ok) {
      assert.equal(result.check(), result);
    } else {
      const error = await failure(() => result.check());
      assert.ok(error instanceof ExitError && error.result === result);
      if (step.check) {
        const start = `${this.way.includes(' ') ? this.way.split(' ')[0] : this.program(step)} `;
        assert.ok(error.message.startsWith(start), error.message);
        const check = this.value(step.check);
        const text = Array.isArray(check) ? exitText(...check) : check;
        this.compare(error.message.slice(start.length), text, 'check');
      }
    }
    for (const { pid, fate } of result.leftovers) {
      if (fate === 'detached') {
        process.kill(pid, 'SIGKILL');
      }
      await until(() => !isRunning(pid), `the end of process ${pid}`);
    }
  }

  program({ argv }) {
    return argv ? this.value(argv[0]) : '/bin/sh';
  }

  /** Compares a value with that of the table. */
  compare(found, given, name = 'error', result = undefined) {
    const expected = this.value(given);
    if (Array.isArray(expected) && Array.isArray(found) && expected.length === found.length) {
      expected.forEach((value, index) => this.compare(found[index], value, `${name}[${index}]`, result));
    } else if (typeof expected !== 'object' || expected === null || Array.isArray(expected)) {
      assert.deepEqual(found, expected, `${name} of ${JSON.stringify(result)}`);
    } else if (typeof found === 'object' && found !== null && !Array.isArray(found)) {
      assert.deepEqual(Object.keys(found).sort(), Object.keys(expected).sort(), name);
      for (const [key, value] of Object.entries(expected)) {
        this.compare(found[key], value, `${name}.${key}`, result);
      }
    } else {
      const [[test, value]] = Object.entries(expected);
      assert.ok(TESTS[test](found, value), `${name}: ${JSON.stringify([found, expected, result])}`);
    }
  }
}

/** How a value is compared with an object of the table, by the object's only key. */
const TESTS = {
  match: (found, pattern) => new RegExp(pattern, 's').test(found),
  has: (found, part) => found.includes(part),
  over: (found, least) => found > least,
  in: (found, values) => values.includes(found),
};

/** A value of a result in the notation of the table. */
function plain(name, value) {
  if (Buffer.isBuffer(value)) {
    return value.toString('latin1');
  }
  switch (value && name) {
    case 'output':
      return value.map(({ stream, text, omitted }) => [stream, text, ...(omitted ? [omitted] : [])]);
    case 'leftovers':
      return value.map(({ pid, name, fate }) => `${pid} ${name} ${fate}`);
    case 'spilled':
      return [value.bytes, value.end, value.errno ?? null];
    case 'omitted':
      return Object.fromEntries(Object.entries(value).map(([stream, { bytes, offset }]) => [stream, [bytes, offset]]));
    default:
      return value;
  }
}

/** The text of an ExitError after the program: how it ended, and the lines of which output. It has no merged output. */
function exitText(end, of, ...lines) {
  if (lines.length === 0 || of.endsWith('output')) {
    return end;
  }
  return lines.length === 1 ? `${end}: ${lines}` : `${end}; the last lines of its standard error:\n  ${lines.join('\n  ')}`;
}

/** The error of a call. */
async function failure(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  assert.fail('the call has not failed');
}

for (const item of CASES) {
  const { error: _error, refused: _refused, ...call } = item;
  test(item.name ?? JSON.stringify(call), { timeout: 120_000 }, async (t) => {
    for (const [name, value] of Object.entries(item.environ ?? {})) {
      process.env[name] = value;
      t.after(() => delete process.env[name]);
    }
    for (const way of ways(item)) {
      await t.test(way, (t) => new Run(t, way).perform(item));
    }
  });
}
