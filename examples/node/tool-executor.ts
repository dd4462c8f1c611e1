// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs the tool calls of an agent: time limits, bounded output, and commands that go on in the background.
//
//     node tool-executor.ts          (Node 24; a compiler makes JavaScript for older ones)
//
// A model asks for commands. Each call gets an answer of bounded size and in bounded time. A command that fails, hangs,
// writes without end or does not exist is an answer for the model, not an error of the agent. A command that takes long
// goes on, and the model reads its output in pieces, waits again, or stops it. If the agent ends in any way, the process
// trees of its commands end too.

import { Env, Limiter, sh, SpawnError, start, type Job, type Result } from 'spawnfd';

const MAX_ANSWER = 4000; // characters of new output in one answer

interface Background {
  job: Job;
  /** The position of the output up to which the model has seen it. */
  cursor: number;
}

class ToolExecutor {
  // The programs do not see the agent's credentials, and do not prompt, page or colour.
  readonly #env = Env.inherit().deny('*_TOKEN', '*_KEY', '*SECRET*', '*PASSWORD*').noninteractive();
  readonly #limiter = new Limiter(8);
  readonly #background = new Map<number, Background>();
  readonly #cwd: string;
  #lastId = 0;

  constructor(cwd: string) {
    this.#cwd = cwd;
  }

  /**
   * The tool `run`: the output and end of a command. If it takes longer than `yieldAfter` milliseconds: the output so far,
   * and a number for the other tools.
   */
  async run(argv: string[], { timeout = 600_000, yieldAfter = 10_000 } = {}): Promise<string> {
    const job = start(argv, {
      cwd: this.#cwd,
      env: this.#env,
      timeout, // then SIGTERM to the process tree,
      grace: 1000, // and SIGKILL 1 second later
      stderr: 'merge',
      keep: [MAX_ANSWER / 2, MAX_ANSWER / 2], // bytes of the output's beginning and end
      outputLimit: 64 << 20, // ends a program that writes without end
      limiter: this.#limiter,
    });
    try {
      const result = await job.wait(yieldAfter);
      if (result) {
        return describe(result);
      }
    } catch (error) {
      if (error instanceof SpawnError) {
        return `[not started: ${error.message}]`;
      }
      throw error;
    }
    const id = (this.#lastId += 1);
    this.#background.set(id, { job, cursor: 0 });
    return `${this.#news(id)}[command ${id} is still running]`;
  }

  /** The tool `read`: what a command has written since the model saw its output last, and how it ended. */
  async read(id: number, wait = 0): Promise<string> {
    const result = await this.#running(id).job.wait(wait);
    return result ? this.#end(id, result) : `${this.#news(id)}[command ${id} is still running]`;
  }

  /** The tool `stop`: ends a command with its process tree. */
  async stop(id: number): Promise<string> {
    return this.#end(id, await this.#running(id).job.stop());
  }

  /** Ends all commands. */
  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(Array.from(this.#background.values(), ({ job }) => job[Symbol.asyncDispose]()));
  }

  #running(id: number): Background {
    const background = this.#background.get(id);
    if (!background) {
      throw new RangeError(`there is no command ${id}`);
    }
    return background;
  }

  #news(id: number): string {
    const background = this.#running(id);
    const { text, next, lost } = background.job.read(background.cursor);
    background.cursor = next;
    const omitted = Math.max(0, text.length - MAX_ANSWER);
    return (lost + omitted > 0 ? `[${lost + omitted} omitted]\n` : '') + text.slice(omitted);
  }

  #end(id: number, result: Result): string {
    const news = this.#news(id);
    this.#background.delete(id);
    return news + ending(result);
  }
}

function describe(result: Result): string {
  const { text } = result;
  return text + (text === '' || text.endsWith('\n') ? '' : '\n') + ending(result);
}

/** How a program ended; nothing for exit code 0. */
function ending(result: Result): string {
  if (result.stop !== 'exited') {
    return `[stopped: ${result.stop}]`;
  }
  if (result.signal !== null) {
    return `[ended by signal ${result.signal}]`;
  }
  return result.code === 0 ? '' : `[exit code ${result.code}]`;
}

function show(name: string, answer: string): void {
  const lines = answer.trimEnd().split('\n');
  console.log(`${name}: ${(lines.length > 3 ? [lines[0], '...', lines.at(-1)] : lines).join(' | ')}`);
}

const tools = new ToolExecutor(process.cwd());
try {
  show('answers', await tools.run(['echo', 'hello']));
  show('fails', await tools.run(sh('echo oops >&2; exit 3')));
  show('is missing', await tools.run(['no-such-tool']));
  show('hangs', await tools.run(sh('echo working; exec sleep 600'), { timeout: 1000 }));
  show('leaves a process', await tools.run(sh('sleep 600 & echo done')));
  show('writes much', await tools.run(['seq', '100000']));

  show('takes long', await tools.run(sh('echo compiling; exec sleep 600'), { yieldAfter: 1000 }));
  show('nothing new', await tools.read(1));
  show('is stopped', await tools.stop(1));
  show('ends later', await tools.run(sh('echo begun; sleep 3; echo finished; exit 4'), { yieldAfter: 1000 }));
  show('has ended', await tools.read(2, 60_000));
} finally {
  await tools[Symbol.asyncDispose]();
}
