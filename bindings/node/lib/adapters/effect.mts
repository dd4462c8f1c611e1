// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * The service `ChildProcessSpawner` of Effect 4. An ES module, as Effect is.
 *
 * @packageDocumentation
 */

import * as Deferred from 'effect/Deferred';
import * as Duration from 'effect/Duration';
import * as Effect from 'effect/Effect';
import * as Layer from 'effect/Layer';
import { badArgument, systemError, type PlatformError, type SystemErrorTag } from 'effect/PlatformError';
import type { Command, CommandOptions, KillOptions, PipeOptions, StandardCommand } from 'effect/process/ChildProcess';
import * as Spawner from 'effect/process/ChildProcessSpawner';
import * as Redacted from 'effect/Redacted';
import type { Scope } from 'effect/Scope';
import * as Sink from 'effect/Sink';
import * as Stream from 'effect/Stream';
import { PassThrough, pipeline, type Readable } from 'node:stream';
import { SpawnError, start, type Job, type OutputEvent, type StartOptions } from '../index.js';
import { signalNumber } from '../signals.js';

type Handle = Spawner.ChildProcessHandle;
type Output = Stream.Stream<Uint8Array, PlatformError>;

const FORCE_KILL_AFTER_MS = 2000;
/** The bytes of one output that can wait for their reader without blocking the program, or the other output. */
const UNREAD_OUTPUT = 1 << 20;

const TAGS: Record<string, SystemErrorTag> = {
  ENOENT: 'NotFound',
  EACCES: 'PermissionDenied',
  EPERM: 'PermissionDenied',
  ENOTDIR: 'BadResource',
  EISDIR: 'BadResource',
  ELOOP: 'BadResource',
};

function invalid(method: string, description: string, cause?: unknown): PlatformError {
  return badArgument({ module: 'ChildProcess', method, description, cause });
}

function platformError(method: string, command: StandardCommand, cause: unknown): PlatformError {
  if (cause instanceof TypeError) {
    return invalid(method, cause.message, cause);
  }
  const isSpawnError = cause instanceof SpawnError;
  return systemError({
    _tag: (isSpawnError && TAGS[cause.code]) || 'Unknown',
    module: 'ChildProcess',
    method,
    description: cause instanceof Error ? cause.message : String(cause),
    syscall: isSpawnError ? cause.syscall : undefined,
    pathOrDescriptor: command.command,
    cause,
  });
}

function attempt<A>(method: string, command: StandardCommand, call: () => Promise<A>): Effect.Effect<A, PlatformError> {
  return Effect.tryPromise({ try: call, catch: (cause) => platformError(method, command, cause) });
}

function plain(value: string | Redacted.Redacted<string>): string {
  return Redacted.isRedacted(value) ? Redacted.value(value) : value;
}

function environment({ env, extendEnv }: CommandOptions): Pick<StartOptions, 'env'> {
  if (env === undefined) {
    return {};
  }
  const given = Object.entries(env).map(([name, value]) => [name, value === undefined ? value : plain(value)]);
  return { env: { ...(extendEnv ? process.env : {}), ...Object.fromEntries(given) } };
}

/** The option of a stream that is a name, an Effect stream or sink, or a configuration with one of these. */
function streamOf<S>(option: S | { readonly stream?: S | undefined } | undefined): S | 'pipe' {
  const isConfig = typeof option === 'object' && option !== null && !Stream.isStream(option) && !Sink.isSink(option);
  return (isConfig ? (option as { stream?: S }).stream : (option as S | undefined)) ?? 'pipe';
}

function stdio<Piped extends string>(stream: unknown, piped: Piped): 'inherit' | 'null' | Piped {
  return stream === 'inherit' ? 'inherit' : stream === 'ignore' ? 'null' : piped;
}

async function end(job: Job, { killSignal = 'SIGTERM', forceKillAfter }: KillOptions): Promise<void> {
  if (job.done) {
    return;
  }
  await job.kill(killSignal as NodeJS.Signals, { tree: true });
  const grace = forceKillAfter === undefined ? FORCE_KILL_AFTER_MS : Duration.toMillis(forceKillAfter);
  if ((await job.wait(grace)) === null) {
    await job.stop(0);
  }
}

function buffered(output: Readable): Readable {
  return pipeline(output, new PassThrough({ highWaterMark: UNREAD_OUTPUT }), () => {});
}

async function discard(job: Job): Promise<void> {
  for await (const _event of job.events()) {
  }
}

/** The events of a job. After the reader has left, the program runs on, and its output is discarded. */
async function* events(job: Job): AsyncGenerator<OutputEvent> {
  let isLeft = true;
  try {
    yield* job.events();
    isLeft = false;
  } finally {
    if (isLeft) {
      discard(job).catch(() => {});
    }
  }
}

/** The chunks of an output. If the program could not be started after all, there are none, and the error is the job's. */
async function* chunks(job: Job, output: AsyncIterable<{ data: Uint8Array | null } | Uint8Array>): AsyncGenerator<Uint8Array> {
  let isEmpty = true;
  for await (const item of output) {
    const chunk = item instanceof Uint8Array ? item : item.data;
    if (chunk) {
      isEmpty = false;
      yield chunk;
    }
  }
  if (isEmpty) {
    await job.wait();
  }
}

/** The output streams of a job. Its output is held until the first of them is read. */
function outputs(job: Job, command: StandardCommand): Record<'stdout' | 'stderr' | 'all', Output> {
  const fail = (cause: unknown): PlatformError => platformError('read', command, cause);
  let separate: Record<'stdout' | 'stderr', Readable> | undefined;
  const one = (name: 'stdout' | 'stderr'): Output => {
    const sink = streamOf(command.options[name]);
    if (sink === 'inherit' || sink === 'ignore') {
      return Stream.empty;
    }
    const output = Stream.suspend(() => {
      separate ??= { stdout: buffered(job.stdout), stderr: buffered(job.stderr) };
      return Stream.fromAsyncIterable(chunks(job, separate[name]), fail);
    });
    return Sink.isSink(sink) ? Stream.transduce(output, sink) : output;
  };
  const [stdout, stderr] = [one('stdout'), one('stderr')];
  const hasSink = [command.options.stdout, command.options.stderr].some((option) => Sink.isSink(streamOf(option)));
  const all = Stream.suspend(() => {
    const isSeparate = separate !== undefined || hasSink;
    return isSeparate ? Stream.merge(stdout, stderr) : Stream.fromAsyncIterable(chunks(job, events(job)), fail);
  });
  return { stdout, stderr, all };
}

function inputOf(job: Job, command: StandardCommand): Handle['stdin'] {
  const { stdin } = command.options;
  const isOpenAfter = typeof stdin === 'object' && 'endOnDone' in stdin && stdin.endOnDone === false;
  const sink = Sink.forEachArray((chunks: readonly Uint8Array[]) =>
    attempt('write', command, () => job.write(Buffer.concat(chunks))),
  );
  return isOpenAfter ? sink : Sink.ensuring(sink, Effect.promise(() => job.closeStdin()));
}

const spawnOne = Effect.fnUntraced(function* (command: StandardCommand) {
  const { options, args } = command;
  const { shell, cwd = null } = options;
  if (shell && args.length > 0) {
    return yield* Effect.fail(invalid('spawn', 'the option shell takes the whole script as the command, without arguments'));
  }
  if (options.additionalFds && Object.keys(options.additionalFds).length > 0) {
    return yield* Effect.fail(invalid('spawn', 'the option additionalFds is not supported'));
  }
  const { killSignal } = options;
  if (killSignal !== undefined) {
    yield* attempt('spawn', command, async () => signalNumber(killSignal as NodeJS.Signals));
  }
  const input = streamOf(options.stdin);
  const argv = shell
    ? [shell === true ? '/bin/sh' : shell, '-c', command.command]
    : [command.command, ...args.map(plain)];
  const job = yield* Effect.acquireRelease(
    attempt('spawn', command, () =>
      start(argv, {
        cwd,
        ...environment(options),
        stdin: stdio(input, 'stream'),
        stdout: stdio(streamOf(options.stdout), 'capture'),
        stderr: stdio(streamOf(options.stderr), 'separate'),
        hold: true,
        // Readers get the output. The result has none.
        keep: [0, 0],
      }).started(),
    ),
    (job) => Effect.promise(() => end(job, options).catch(() => job.stop(0)).catch(() => {})),
  );

  const stdin = stdio(input, 'stream') === 'stream' ? inputOf(job, command) : Sink.drain;
  const inputFailure = Deferred.makeUnsafe<never, PlatformError>();
  if (Stream.isStream(input)) {
    const source = Stream.tapError(input, (error) => Deferred.fail(inputFailure, error));
    yield* Effect.forkScoped(Stream.run(source, stdin));
  }
  const exit = attempt('exitCode', command, async () => {
    const { code, signal, stop } = await job.wait();
    if (code === null) {
      throw new Error(signal === null ? `the exit status is ${stop}` : `signal ${signal} ended the program`);
    }
    return Spawner.ExitCode(code);
  });

  return Spawner.makeHandle({
    pid: Spawner.ProcessId(job.pid!),
    exitCode: Effect.raceFirst(exit, Deferred.await(inputFailure)),
    isRunning: Effect.sync(() => !job.done),
    kill: (given) => attempt('kill', command, () => end(job, given ?? {})),
    stdin,
    ...outputs(job, command),
    getInputFd: () => Sink.drain,
    getOutputFd: () => Stream.empty,
    unref: Effect.fail(invalid('unref', 'unref is not supported: no program outlives its host')),
  });
});

/** The command whose standard input, at the beginning of its pipeline, is `source`. */
function fed(command: Command, source: Output): Command {
  if (command._tag === 'PipedCommand') {
    return { ...command, left: fed(command.left, source) };
  }
  const { stdin } = command.options;
  const config = typeof stdin === 'object' && !Stream.isStream(stdin) ? stdin : {};
  return { ...command, options: { ...command.options, stdin: { ...config, stream: source } } };
}

function sourceOf(handle: Handle, { from = 'stdout', to = 'stdin' }: PipeOptions): Effect.Effect<Output, PlatformError> {
  if (to !== 'stdin' || !(from === 'stdout' || from === 'stderr' || from === 'all')) {
    return Effect.fail(invalid('spawn', `a pipe from ${from} to ${to} is not supported`));
  }
  return Effect.succeed(handle[from]);
}

function spawn(command: Command): Effect.Effect<Handle, PlatformError, Scope> {
  if (command._tag === 'StandardCommand') {
    return spawnOne(command);
  }
  return Effect.gen(function* () {
    const left = yield* spawn(command.left);
    const right = yield* spawn(fed(command.right, yield* sourceOf(left, command.options)));
    return Spawner.makeHandle({
      ...right,
      stdin: left.stdin,
      kill: (options) => Effect.andThen(right.kill(options), left.kill(options)),
    });
  });
}

/**
 * Provides `ChildProcessSpawner`. It needs no other service.
 *
 * The end of a command's scope ends its process tree: `killSignal`, and SIGKILL after `forceKillAfter`, by default two
 * seconds. A program that no stream of the handle reads blocks after 1 MiB of output. The options `additionalFds` and
 * `detached`, and `unref`, are not supported: the first and the last are errors.
 */
export const layer: Layer.Layer<Spawner.ChildProcessSpawner> = Layer.succeed(
  Spawner.ChildProcessSpawner,
  Spawner.make(spawn),
);
