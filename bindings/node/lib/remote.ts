// SPDX-License-Identifier: MIT OR Apache-2.0

import {
  answer,
  begin,
  checkedArgv,
  checkPermission,
  launch,
  nativeObjects,
  nativeOptions,
  result,
  type Abortable,
  type Argv,
} from './call';
import { succeeded } from './errors';
import { Job } from './job';
import {
  expect,
  native,
  queue,
  setReferenced,
  type NativeRemote,
  type NativeRemoteSession,
  type NativeSession,
} from './native';
import type { RunOptions, SessionOptions, StartOptions } from './options';
import { RunResult, type Result } from './result';
import { Session, type SessionProcess } from './session';

/** The options of a connection. */
export interface RemoteOptions {
  /**
   * The time after which each side regards the other one as lost if it gives no sign of life. The server then ends all
   * programs. Null: only the end of the pipe counts. In milliseconds.
   * @defaultValue 30000
   */
  lease?: number | null;
  /**
   * The time from the call on that the connection may take until the server answers. Null: no limit. In milliseconds.
   * @defaultValue 60000
   */
  connectTimeout?: number | null;
}

/** The options of a connection whose transport starts the command `spawnfd` there. */
interface ServerOptions extends RemoteOptions {
  /**
   * The path of the command `spawnfd` on the other machine, or its name in PATH there.
   * @defaultValue 'spawnfd'
   */
  server?: string;
}

/** Splits the options of a connection from those with other names. */
function split<T extends RemoteOptions>({ lease, connectTimeout, ...own }: T, ...names: string[]) {
  const unknown = Object.keys(own).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`unexpected option ${JSON.stringify(unknown)}`);
  }
  return { own, settings: { lease, connectTimeout } as RemoteOptions };
}

/** Checks a text. The name of a place must not be an option of the transport. */
function checkedText(value: unknown, argument: string, isPlace = false): string {
  if (typeof value !== 'string') {
    throw new TypeError(`${argument} must be a string, got ${typeof value}`);
  }
  if (isPlace && (value === '' || value.startsWith('-'))) {
    throw new TypeError(`${argument} must not be empty or begin with "-", got ${JSON.stringify(value)}`);
  }
  return value;
}

/** A word of a line for a shell. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * A connection to another machine, or to a container, where programs run.
 *
 * `await using box = Remote.ssh('host')` closes the connection when the block is left, and ends all its programs.
 *
 * The other machine needs the command `spawnfd` of this project: copy it there before. The library starts a transport, such
 * as `ssh host spawnfd serve`, and talks to this server through the standard input and output of the transport. Nothing
 * listens on a port. The server starts the programs and supervises them, so timeouts, limits and process trees are kept on
 * that machine.
 *
 * The static functions start the transport, and do not wait; each other call waits for the server. Results are those of
 * run(), and their `where` names the place. If the connection is lost during a run, the `stop` of its result is `lost`: the
 * program has ended, or ends soon, and its status is not known. Later calls fail with a SpawnError, whose `code` is
 * `ENOTCONN`. The page "Run programs on another machine" describes all of this.
 *
 * A connection does not keep the event loop alive. If the last reference to it, and to its jobs and sessions, is dropped, it
 * is closed.
 */
export class Remote {
  readonly #native: NativeRemote;
  #closing: Promise<void> | undefined;

  private constructor(argv: Argv, { lease = 30_000, connectTimeout = 60_000 }: RemoteOptions) {
    checkPermission();
    const remote = succeeded(() => native.remote(checkedArgv(argv), nativeOptions({}), lease, connectTimeout));
    this.#native = remote;
    if (connectTimeout !== null && connectTimeout <= 0x7fffffff) {
      const timer = setTimeout(() => remote.giveUp(), connectTimeout).unref();
      const ready = (key: number): ReturnType<NativeRemote['ready']> => {
        setReferenced(key, false);
        return remote.ready(queue, key);
      };
      begin(ready, {}, () => clearTimeout(timer));
    }
  }

  /**
   * Connects through a command whose standard input and output lead to the server.
   *
   * `Remote.command(['podman', 'exec', '-i', container, 'spawnfd', 'serve'])`
   *
   * @param argv - The command and its arguments. It may print text before the server does.
   * @throws {SpawnError} The command could not be started.
   * @throws {TypeError} An argument is not valid.
   */
  static command(argv: Argv, options: RemoteOptions = {}): Remote {
    return new Remote(argv, split(options).settings);
  }

  /** Connects to a server that this call starts on this machine, for tests. See `command()`. */
  static local(options: ServerOptions = {}): Remote {
    const { own, settings } = split(options, 'server');
    const { server = 'spawnfd' } = own;
    return new Remote([checkedText(server, 'server'), 'serve'], settings);
  }

  /**
   * Connects to a host by ssh, without a password prompt. See `command()`.
   *
   * @param host - The host, as ssh accepts it: `host`, `user@host`, or a name in its configuration.
   * @param options - `options`: further arguments of ssh, such as `['-p', '2222']`.
   */
  static ssh(host: string, options: ServerOptions & { options?: readonly string[] } = {}): Remote {
    const { own, settings } = split(options, 'server', 'options');
    const { server = 'spawnfd', options: more = [] } = own;
    if (!Array.isArray(more)) {
      throw new TypeError('options must be an array of strings');
    }
    // ssh passes one text to the login shell of the host.
    const serve = `exec ${quoted(checkedText(server, 'server'))} serve`;
    const texts = more.map((item, index) => checkedText(item, `options[${index}]`));
    const argv = ['ssh', '-T', '-o', 'BatchMode=yes', ...texts, '--', checkedText(host, 'host', true), serve];
    return new Remote(argv, settings);
  }

  /**
   * Connects to a running container by `docker exec -i`. See `command()`.
   *
   * @param container - The id or the name of the container.
   * @param options - `user`: the user who runs the programs, by name or number; by default that of the container.
   */
  static docker(container: string, options: ServerOptions & { user?: string } = {}): Remote {
    const { own, settings } = split(options, 'server', 'user');
    const { server = 'spawnfd', user } = own;
    const chosen = user === undefined ? [] : ['--user', checkedText(user, 'user')];
    const place = checkedText(container, 'container', true);
    return new Remote(['docker', 'exec', '-i', ...chosen, place, checkedText(server, 'server'), 'serve'], settings);
  }

  /**
   * Connects to a pod of Kubernetes by `kubectl exec -i`. See `command()`.
   *
   * @param pod - The name of the pod, or TYPE/NAME as kubectl accepts it.
   * @param options - `namespace`: by default that of kubectl's context. `container`: by default the pod's default container.
   */
  static kubectl(pod: string, options: ServerOptions & { namespace?: string; container?: string } = {}): Remote {
    const { own, settings } = split(options, 'server', 'namespace', 'container');
    const { server = 'spawnfd', namespace, container } = own;
    const argv = ['kubectl', 'exec', '-i', checkedText(pod, 'pod', true)];
    for (const [name, value] of Object.entries({ namespace, container })) {
      argv.push(...(value === undefined ? [] : [`--${name}`, checkedText(value, name)]));
    }
    return new Remote([...argv, '--', checkedText(server, 'server'), 'serve'], settings);
  }

  /** The place where programs run: the host name and the transport. Before the server answers, only the transport. */
  get where(): string {
    return this.#native.where;
  }

  /** Whether the connection was closed. */
  get closed(): boolean {
    return this.#closing !== undefined;
  }

  /**
   * Waits until the server has answered.
   *
   * @throws {SpawnError} `ENOTCONN`: the transport has ended; the message has its last words. `EPROTO`: the other side is no
   * server of this version. `ETIMEDOUT`: the server has not answered within `connectTimeout`.
   */
  async ready(): Promise<this> {
    await answer<null>((key) => this.#native.ready(queue, key));
    return this;
  }

  /**
   * Runs a program on the other machine to its end, as `run()` does on this one.
   *
   * Paths, PATH and users are those of the other machine. Without `env`, the program has the environment of the server, and
   * `Env.inherit()` and `Env.only()` choose from that environment. A file of a `spill` is on the other machine, until the
   * connection ends. The `limiter` counts on this side.
   *
   * @throws {SpawnError} The program could not be started. `ENOTCONN`: the connection is lost. In the cases of ready(), too.
   * @throws {TypeError} An argument is not valid, or has a meaning in this process alone, such as a descriptor, `warm` or
   * `sandbox`.
   * @throws {AbortError} `options.signal` was aborted. The program and its process tree have been ended.
   */
  run(argv: Argv, options: RunOptions & Abortable = {}): Promise<Result> {
    return result((key) => this.#native.run(queue, key, checkedArgv(argv), nativeObjects(options)), options);
  }

  /** The blocking form of run(): the thread waits for the server and for the program. */
  runSync(argv: Argv, options: RunOptions = {}): Result {
    checkPermission();
    return new RunResult(succeeded(() => this.#native.runSync(checkedArgv(argv), nativeObjects(options)))) as Result;
  }

  /**
   * Starts a program on the other machine, and returns its job at once, as `start()` does on this one. Its `pid` is a number
   * of the other machine. If the connection is lost during the start (`ENOTCONN`), the program may have started.
   */
  start(argv: Argv, options: StartOptions & Abortable = {}): Job {
    return new Job(
      launch((key) => this.#native.start(queue, key, checkedArgv(argv), nativeObjects(options)), options),
      options,
    );
  }

  /**
   * Prepares a session on the other machine; its first command starts the shell. The arguments are those of `Session`,
   * except for `sandbox` and `warm`.
   */
  session(shell: string | Argv = 'bash', options: SessionOptions = {}): RemoteSession {
    return new RemoteSession(this.#native, shell, options);
  }

  /**
   * Measures the milliseconds until the server answers.
   *
   * @throws {SpawnError} `ENOTCONN`: the connection is lost. In the cases of ready(), too.
   */
  ping(): Promise<number> {
    return answer<number>((key) => this.#native.ping(queue, key));
  }

  /**
   * Closes the connection: the server ends all programs, and the transport ends, for which the call waits. Runs that are
   * active have a result with the `stop` `lost`.
   */
  close(): Promise<void> {
    return (this.#closing ??= new Promise((resolve) => this.#native.close(queue, expect(() => resolve()))));
  }

  /** The same as close(). */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/**
 * A session on another machine. `Remote.session()` returns it.
 *
 * It is a `Session` with these differences: `processes()` returns a promise, and sideCommand() is not available. `pid` is
 * the number of the first shell on its machine.
 */
export class RemoteSession extends Session<Promise<SessionProcess[]>> {
  readonly #native: NativeRemoteSession;
  readonly #remote: NativeRemote;

  /** @internal */
  constructor(remote: NativeRemote, shell: string | Argv, options: SessionOptions) {
    let own!: NativeRemoteSession;
    super(shell, options, (argv, options) => {
      own = remote.session(argv, nativeObjects(options));
      return own as unknown as NativeSession;
    });
    this.#native = own;
    this.#remote = remote;
  }

  /** The place of the shell: the host name and the transport. */
  get where(): string {
    return this.#remote.where;
  }

  /**
   * The processes of the session except its shell, as far as /proc there shows them: those of the running command, and
   * background jobs.
   *
   * @throws {SpawnError} `ENOTCONN`: the connection is lost.
   */
  override processes(): Promise<SessionProcess[]> {
    return answer<SessionProcess[]>((key) => this.#native.processes(queue, key));
  }

  /** Not available: use run() of the Remote, with `cwd` and `env`. */
  override sideCommand(): Promise<never> {
    return Promise.reject(new TypeError('sideCommand(): not available in a remote session; use run() of the Remote'));
  }
}
