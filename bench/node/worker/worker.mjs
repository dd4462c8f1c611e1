// SPDX-License-Identifier: MIT OR Apache-2.0
// A worker process: one method in one JavaScript runtime. It reads one order per line from stdin, as the worker of
// bench/common/worker.py does, and answers with one line.
//
//     driver                                worker
//                                           {"hello": true}
//     {"do": "prepare", "calls": [names]}   {"ready": true}
//     {"do": "go", "rate": 0}               {"begin_ns": _, "end_ns": _, "cpu_s": _, "calls": _, "ns": [_],
//                                            "held_ns": [_], "gap_us": [_], "started": {}}
//     {"do": "finish"}                      {"finished": true}, and it exits
//
// Only the method runs between the two times. The worker checks the answers after it reads the clock. Any failure is
// reported as one line {"error": "..."}, with exit status 1.

import { readFileSync, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Burden } from './burden.mjs';
import { makeMethod } from './methods.mjs';
import { checkLeftovers, cpuSeconds, openFiles } from './probes.mjs';

const MAIN_CALL = 'true';

function send(fields) {
  writeSync(1, `${JSON.stringify(fields)}\n`);
}

const now = () => Math.round(performance.now() * 1e6);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The times between the ticks of a timer. A loop that a call holds runs no timer. */
class Ticks {
  gaps = [];

  constructor(intervalUs) {
    this.last = now();
    this.timer = setInterval(() => this.tick(), intervalUs / 1000);
  }

  tick() {
    const time = now();
    this.gaps.push(Math.round((time - this.last) / 1000));
    this.last = time;
  }

  stop() {
    clearInterval(this.timer);
    this.tick();
  }
}

/** Makes the calls, as many at a time as the terms say. Returns the answers in the order of the calls, and the times. */
async function makeCalls(call, calls, terms) {
  const answers = [];
  const ns = [];
  const heldNs = [];
  let next = 0;
  async function lane() {
    while (next < calls.length) {
      const index = next++;
      const begin = now();
      const answer = call(calls[index].argv);
      heldNs.push(now() - begin);
      answers[index] = await answer;
      ns.push(now() - begin);
      if (terms.gap_ms) {
        await pause(terms.gap_ms);
      }
    }
  }
  await Promise.all(Array.from({ length: terms.in_flight }, lane));
  return { answers, ns, heldNs };
}

async function timedCalls(call, calls, terms) {
  const ticks = terms.tick_us ? new Ticks(terms.tick_us) : undefined;
  const begin = now();
  const { answers, ns, heldNs } = await makeCalls(call, calls, terms);
  const end = now();
  ticks?.stop();
  return { answers, times: { begin_ns: begin, end_ns: end, ns, held_ns: heldNs, gap_us: ticks?.gaps ?? [] } };
}

function check(who, requested, answers) {
  for (const [index, { name, code, stdout, stderr }] of requested.entries()) {
    const answer = answers[index];
    if (answer.code !== code) {
      throw new Error(`preset ${name}, method ${who}: exit code ${answer.code}, expected ${code}`);
    }
    for (const [stream, expected] of Object.entries({ stdout, stderr })) {
      if (!expected.equals(answer[stream])) {
        const found = Buffer.from(answer[stream]);
        const excerpt = JSON.stringify(found.toString('latin1').slice(0, 120));
        const lengths = `${found.length} bytes, expected ${expected.length}`;
        throw new Error(`preset ${name}, method ${who}: ${stream} differs: ${lengths}: ${excerpt}`);
      }
    }
  }
}

function countStarted(answers) {
  const counts = {};
  for (const { started } of answers) {
    if (started !== undefined) {
      counts[started] = (counts[started] ?? 0) + 1;
    }
  }
  return counts;
}

async function* orders() {
  for await (const line of createInterface({ input: process.stdin })) {
    yield JSON.parse(line);
  }
}

async function serve(job) {
  const who = job.method.name;
  const references = new Map();
  for (const { name, argv, code, stdout, stderr } of job.references) {
    const bytes = (text) => Buffer.from(text, 'latin1');
    references.set(name, { name, argv, code, stdout: bytes(stdout), stderr: bytes(stderr) });
  }
  let burden = job.parent.library === 'absent' ? new Burden(job.parent) : undefined;
  const method = await makeMethod(job);
  if (job.parent.library === 'called') {
    const first = [references.get(MAIN_CALL)];
    check(who, first, (await makeCalls(method.call, first, job)).answers);
  }
  burden ??= new Burden(job.parent);
  let untimed = [];
  let timed = [];
  let filesAfterFirst;
  send({ hello: true });
  for await (const order of orders()) {
    if (order.do === 'prepare') {
      timed = order.calls.map((name) => references.get(name));
      untimed = Array(job.untimed).fill(timed[0]);
      send({ ready: true });
    } else if (order.do === 'go') {
      const cpu = cpuSeconds();
      const before = await makeCalls(method.call, untimed, job);
      const made = await timedCalls(method.call, timed, job);
      // The untimed calls, and what was parked for them, cost CPU time too.
      await method.settle();
      const share = timed.length / (untimed.length + timed.length);
      const cpuS = (cpuSeconds() - cpu) * share;
      check(who, untimed, before.answers);
      check(who, timed, made.answers);
      send({ ...made.times, cpu_s: cpuS, calls: timed.length, started: countStarted(made.answers) });
      filesAfterFirst ??= openFiles();
    } else if (order.do === 'finish') {
      await method.close();
      await checkLeftovers(who, filesAfterFirst, 2 * job.in_flight + 2 * references.size);
      burden.end();
      send({ finished: true });
      return;
    }
  }
}

// The driver ends its workers itself.
process.on('SIGINT', () => {});
try {
  await serve(JSON.parse(readFileSync(process.argv[2], 'utf8')));
} catch (error) {
  send({ error: String(error?.stack ?? error) });
  process.exit(1);
}
