// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

import type { Action } from './action';
import type { Env } from './env';
import type { Limiter } from './limiter';
import type { Sandbox } from './sandbox';
import type { Warm } from './warm';

/** Why a run ended. */
export type Stop =
  | 'exited'
  | 'timeout'
  | 'idle_timeout'
  | 'cancelled'
  | 'output_limit'
  | 'limit'
  | 'lost';

/** The options of supervised programs. */
export interface SupervisedOptions {
  /**
   * The time after which the library ends the program: SIGTERM to the process tree, and SIGKILL after the `grace`.
   * The result has the output so far, and its `stop` is `timeout`. By default there is no timeout. In
   * milliseconds.
   */
  timeout?: number | null;
  /**
   * The time between SIGTERM and SIGKILL. Zero: SIGKILL at once. If the program still runs one second after
   * SIGKILL, the run ends without it. The program is then among the result's `leftovers`, with the fate
   * `not_permitted` (a set-uid program that has become root, say) or `uninterruptible` (in a read from a dead
   * network file system, say). In milliseconds.
   * @defaultValue 2000
   */
  grace?: number;
  /**
   * The time that other processes of the tree have after the program's end, with and without captured output.
   * Until then the library reads the pipes that such processes hold open, and does not apply `leftovers`. The run
   * ends earlier if no such process is left. The result's `drain` names the processes that kept a pipe open to the
   * end. In milliseconds.
   * @defaultValue 100
   */
  drain?: number;
  /**
   * Limits how many runs execute at once. A run waits for a permit before its program starts. The `timeout` and
   * the measured time begin after that wait.
   */
  limiter?: Limiter | null;
  /**
   * The time without output in either stream after which the library ends the program, in the same way as after a
   * `timeout`. The result's `stop` is then `idle_timeout`. By default there is no such timeout. In milliseconds.
   */
  idleTimeout?: number | null;
  /**
   * The program's input. By default the program has the standard input that the call gives it, or else an empty
   * one. An input cannot be combined with another standard input. Input of a program with a `terminal` is typed,
   * followed by end-of-file (Ctrl-D). Such a program waits for more input if it continues to read after that,
   * reads single keys, or discards early input (at a password prompt).
   */
  input?: string | Uint8Array | null;
  /**
   * The number of bytes of each stream's beginning and end that the result has. The library reads and drops the
   * rest, and the result's `omitted` counts it. A cut moves to a line end that is near: within a fifth of the size
   * of the head or tail. `all` keeps all bytes; then only `outputLimit` bounds the memory.
   * @defaultValue [64000, 64000]
   */
  keep?: readonly [head: number, tail: number] | 'all';
  /**
   * The text of the line that replaces omitted bytes in the result. `{omitted}` in it stands for their number:
   * `12,345 bytes`. No text, or an empty one: no line.
   * @defaultValue `[… {omitted} omitted …]`
   */
  marker?: string | null;
  /**
   * Whether the result also has both streams in order of arrival.
   * @defaultValue false
   */
  combined?: boolean;
  /** Also writes all output to a file, once a stream exceeds `keep`. */
  spill?: Spill | null;
  /**
   * The number of bytes, of both streams together, after which the library ends the program as after a `timeout`.
   * The result's `stop` is then `output_limit`. By default there is no such limit.
   */
  outputLimit?: number | null;
}

/** The options of all programs. */
export interface ProgramOptions {
  /**
   * The program's working directory. A relative program such as `./configure` starts here, and so do relative and
   * empty parts of PATH. Do not pass `/proc/self/fd/N`: the child resolves paths, with its own descriptor numbers.
   */
  cwd?: string | Uint8Array | null;
  /** The program's environment. By default it is a copy of the environment of this process. */
  env?: Env | Readonly<Record<string, string | undefined>> | null;
  /** Further steps of the child before exec, in this order. The page on actions lists them. */
  actions?: readonly Action[] | null;
  /** The program's `argv[0]`. By default it is the name of the program in the call. */
  arg0?: string | Uint8Array | null;
  /**
   * A command that finds and starts the program in confinement. The directory, environment, actions and `arg0`
   * apply to that command, which passes them on. Each call opens the sandbox's files again (EACCES if access is no
   * longer permitted).
   */
  sandbox?: Sandbox | null;
  /** If it has a suitable parked process, the program starts from that process. */
  warm?: Warm | null;
}

/** The options of run(). */
export interface RunOptions extends ProgramOptions, SupervisedOptions {
  /**
   * The program's standard input, in place of `input`.
   * - `null`: The program reads an empty file.
   * - `inherit`: The program reads the standard input of this process.
   * - A number: a descriptor of this process.
   * @defaultValue `null`
   */
  stdin?: 'null' | 'inherit' | number | null;
  /**
   * The program's standard output.
   * - `capture`: The library reads the stream.
   * - `null`: The stream is discarded.
   * - `inherit`: The stream is the standard output of this process.
   * - A number: a descriptor of this process.
   * @defaultValue `capture`
   */
  stdout?: 'capture' | 'null' | 'inherit' | number | null;
  /**
   * The program's standard error.
   * - `separate`: The library reads the stream.
   * - `merge`: The stream is part of standard output.
   * - `null`: The stream is discarded.
   * - `inherit`: The stream is the standard error of this process.
   * - A number: a descriptor of this process.
   * @defaultValue `separate`
   */
  stderr?: 'separate' | 'merge' | 'null' | 'inherit' | number | null;
  /**
   * How the library controls the process tree. The result's `tree` has the tier that was used. Except with
   * `group`, the tree ends with this process, however this process ends. By default the tier is `guard`, or
   * `group` if no guard can be started, or if the limit on processes leaves no room for one.
   * - `group`: The session, the process group and known descendants, without a helper process: the tree outlives
   * this process.
   * - `guard`: The same processes. A helper process (the guard) ends the tree if this process ends, however that
   * happens. An error if no guard can be started.
   * - `subreaper`: Every process, by a helper that becomes the program's parent. An error if no helper can be
   * started.
   * - `cgroup`: Every process that does not leave the cgroup. An error if no cgroup can be created.
   * - `pidns`: Every process, by a pid namespace. An error if no pid namespace can be created.
   * - `auto`: The most complete tier available of `cgroup`, `subreaper`, `guard` and `group`.
   */
  tree?: 'group' | 'guard' | 'subreaper' | 'cgroup' | 'pidns' | 'auto' | null;
  /**
   * The treatment of processes that outlive the program.
   * - `kill`: The library kills the processes.
   * - `adopt`: The processes run on, the library still reads their output, and the end of the job ends them. A run
   * without a job kills them.
   * - `detach`: The library leaves the processes alone.
   * @defaultValue `kill`
   */
  leftovers?: 'kill' | 'adopt' | 'detach';
  /**
   * Gives the program a terminal of this size as its three streams, and as the controlling terminal of its
   * session. All its output is standard output, as the terminal transmits it (`\n` becomes `\r\n`). A program with
   * a terminal can have no other standard stream, and no process group of its own.
   */
  terminal?: { rows: number; columns: number } | null;
  /**
   * Limits of the resources of the program and its process tree. With limits, the tree gets a cgroup wherever one
   * can be made, unless the run asks for a guard or a pid namespace.
   */
  limits?: Limits | null;
}

/** The options of start(). */
export interface StartOptions extends ProgramOptions, SupervisedOptions {
  /**
   * The program's standard input, in place of `input`.
   * - `null`: The program reads an empty file.
   * - `inherit`: The program reads the standard input of this process.
   * - `stream`: The program reads what the caller writes.
   * - A number: a descriptor of this process.
   * @defaultValue `null`
   */
  stdin?: 'null' | 'inherit' | 'stream' | number | null;
  /**
   * The program's standard output.
   * - `capture`: The library reads the stream.
   * - `null`: The stream is discarded.
   * - `inherit`: The stream is the standard output of this process.
   * - A number: a descriptor of this process.
   * @defaultValue `capture`
   */
  stdout?: 'capture' | 'null' | 'inherit' | number | null;
  /**
   * The program's standard error.
   * - `separate`: The library reads the stream.
   * - `merge`: The stream is part of standard output.
   * - `null`: The stream is discarded.
   * - `inherit`: The stream is the standard error of this process.
   * - A number: a descriptor of this process.
   * @defaultValue `separate`
   */
  stderr?: 'separate' | 'merge' | 'null' | 'inherit' | number | null;
  /**
   * How the library controls the process tree. The result's `tree` has the tier that was used. Except with
   * `group`, the tree ends with this process, however this process ends. By default the tier is `guard`, or
   * `group` if no guard can be started, or if the limit on processes leaves no room for one.
   * - `group`: The session, the process group and known descendants, without a helper process: the tree outlives
   * this process.
   * - `guard`: The same processes. A helper process (the guard) ends the tree if this process ends, however that
   * happens. An error if no guard can be started.
   * - `subreaper`: Every process, by a helper that becomes the program's parent. An error if no helper can be
   * started.
   * - `cgroup`: Every process that does not leave the cgroup. An error if no cgroup can be created.
   * - `pidns`: Every process, by a pid namespace. An error if no pid namespace can be created.
   * - `auto`: The most complete tier available of `cgroup`, `subreaper`, `guard` and `group`.
   */
  tree?: 'group' | 'guard' | 'subreaper' | 'cgroup' | 'pidns' | 'auto' | null;
  /**
   * The treatment of processes that outlive the program.
   * - `kill`: The library kills the processes.
   * - `adopt`: The processes run on, the library still reads their output, and the end of the job ends them. A run
   * without a job kills them.
   * - `detach`: The library leaves the processes alone.
   * @defaultValue `kill`
   */
  leftovers?: 'kill' | 'adopt' | 'detach';
  /**
   * The number of bytes of the latest output, of both streams, that can still be read while the job runs, and that
   * may be pending as events. At least 64 KiB may be pending as events.
   * @defaultValue 1048576
   */
  window?: number;
  /**
   * Whether the program blocks, once `window` bytes are pending, until the caller reads events. By default, the
   * oldest pending bytes are dropped.
   * @defaultValue false
   */
  hold?: boolean;
  /**
   * Gives the program a terminal of this size as its three streams, and as the controlling terminal of its
   * session. All its output is standard output, as the terminal transmits it (`\n` becomes `\r\n`). A program with
   * a terminal can have no other standard stream, and no process group of its own.
   */
  terminal?: { rows: number; columns: number } | null;
  /**
   * Limits of the resources of the program and its process tree. With limits, the tree gets a cgroup wherever one
   * can be made, unless the run asks for a guard or a pid namespace.
   */
  limits?: Limits | null;
}

/** The options of spawn(). */
export interface SpawnOptions extends ProgramOptions {
  /**
   * The program's standard input.
   * - `inherit`: The stream is that of this process.
   * - `null`: The stream is empty, or is discarded.
   * - `pipe`: The stream is a pipe to this process.
   * - A number: a descriptor of this process.
   * @defaultValue `inherit`
   */
  stdin?: 'inherit' | 'null' | 'pipe' | number | null;
  /**
   * The program's standard output.
   * - `inherit`: The stream is that of this process.
   * - `null`: The stream is empty, or is discarded.
   * - `pipe`: The stream is a pipe to this process.
   * - A number: a descriptor of this process.
   * @defaultValue `inherit`
   */
  stdout?: 'inherit' | 'null' | 'pipe' | number | null;
  /**
   * The program's standard error.
   * - `inherit`: The stream is that of this process.
   * - `null`: The stream is empty, or is discarded.
   * - `pipe`: The stream is a pipe to this process.
   * - `merge`: The stream is part of standard output.
   * - A number: a descriptor of this process.
   * @defaultValue `inherit`
   */
  stderr?: 'inherit' | 'null' | 'pipe' | 'merge' | number | null;
}

/** The options of a Session. */
export interface SessionOptions {
  /** If it has a suitable parked process, the program starts from that process. */
  warm?: Warm | null;
  /** The directory in which the shell starts. */
  cwd?: string | Uint8Array | null;
  /** The shell's environment. By default it is a copy of the environment of this process. */
  env?: Env | Readonly<Record<string, string | undefined>> | null;
  /**
   * Whether the standard error of each command is part of its standard output.
   * - `separate`: The library reads the stream.
   * - `merge`: The stream is part of standard output.
   * @defaultValue `separate`
   */
  stderr?: 'separate' | 'merge' | null;
  /**
   * Whether the shell is a login shell, which reads `/etc/profile` and the user's profile.
   * @defaultValue false
   */
  login?: boolean;
  /**
   * Whether the next command starts a new shell after the shell has exited. The new shell gets the working
   * directory, the exported variables and the umask of the last completed command. By default the next command
   * fails with ESRCH.
   * @defaultValue false
   */
  restart?: boolean;
  /**
   * Whether a command waits for the end of the commands that were started before it. Commands then run in the
   * order of their calls. The waiting time does not count for the command's `timeout`. A thread or task must not
   * start a command while it has the job of a running one, because it would wait for itself. By default the second
   * command fails with EBUSY.
   * @defaultValue false
   */
  queue?: boolean;
  /**
   * Gives the session a terminal of this size, which all commands share. It is the standard output and error of
   * each command, the standard input of a command that has input, and the controlling terminal of the shell
   * (`/dev/tty`). The output is all standard output, as the terminal transmits it (`\n` becomes `\r\n`). By
   * default there is no terminal.
   */
  terminal?: { rows: number; columns: number } | null;
  /**
   * Whether the terminal writes input back to the output.
   * @defaultValue false
   */
  echo?: boolean;
  /**
   * The time that the shell has for its startup files. In milliseconds.
   * @defaultValue 30000
   */
  startupTimeout?: number | null;
  /**
   * A sandbox that the shell runs in: a command that confines it, such as `bwrap … --unshare-pid --proc /proc`. It
   * must have `/proc`, and must pass inherited descriptors on.
   */
  sandbox?: Sandbox | null;
  /**
   * The time that the shell has to exit when the session is closed. Each command has a grace period of its own. In
   * milliseconds.
   * @defaultValue 2000
   */
  grace?: number;
  /**
   * How the library controls the process tree of the shell. By default the tier is `auto`, so daemons end with the
   * session where the machine allows it.
   * - `group`: The session, the process group and known descendants, without a helper process: the tree outlives
   * this process.
   * - `guard`: The same processes. A helper process (the guard) ends the tree if this process ends, however that
   * happens. An error if no guard can be started.
   * - `subreaper`: Every process, by a helper that becomes the program's parent. An error if no helper can be
   * started.
   * - `cgroup`: Every process that does not leave the cgroup. An error if no cgroup can be created.
   * - `pidns`: Every process, by a pid namespace. An error if no pid namespace can be created.
   * - `auto`: The most complete tier available of `cgroup`, `subreaper`, `guard` and `group`.
   */
  tree?: 'group' | 'guard' | 'subreaper' | 'cgroup' | 'pidns' | 'auto' | null;
  /**
   * Limits of the resources of the shell and its process tree: all commands together. The result of a command
   * names the limits, and the one that ended the command or the shell.
   */
  limits?: Limits | null;
  /**
   * Limits how many shells run at once: the session waits for a permit before it starts a shell, which keeps the
   * permit until it ends. The commands need another limiter.
   */
  limiter?: Limiter | null;
}

/** The options of a session's run(). */
export interface CommandOptions extends SupervisedOptions {
  /**
   * The directory of this command alone. Afterwards the shell returns to the session's directory. If the directory
   * cannot be entered, the code is that of `cd`. If the call has to start a shell in a directory that is gone, the
   * shell starts in this one, which must be absolute.
   */
  cwd?: string | Uint8Array | null;
  /** Variables of this command alone, which it has besides the session's variables. */
  env?: Env | Readonly<Record<string, string | undefined>> | null;
  /**
   * The command's standard input.
   * - `null`: The program reads an empty file.
   * - `stream`: The program reads what the caller writes.
   * @defaultValue `null`
   */
  stdin?: 'null' | 'stream' | null;
  /**
   * The number of bytes of the latest output, of both streams, that can still be read while the job runs, and that
   * may be pending as events. At least 64 KiB may be pending as events.
   * @defaultValue 1048576
   */
  window?: number;
}

/** Limits of the resources of a process tree. */
export interface Limits {
  /**
   * The maximum memory in bytes. In a cgroup the limit covers the whole tree, including page cache, without swap.
   * If the tree exceeds the limit, the kernel kills the whole tree. Otherwise it limits the address space of each
   * process (RLIMIT_AS): allocations beyond it fail in the program, the run goes on, and the result's `stop` does
   * not show it. Node, Java, Go and sanitizers reserve far more address space than they use: for them, let the
   * library `enforce` the limit by `watch`.
   */
  memory?: number | null;
  /**
   * The maximum number of processes and threads at once. The library kills the tree when it has more, or tries to
   * have more. In a cgroup the limit counts the tree. Otherwise the library counts the tree in /proc, and
   * RLIMIT_NPROC stops a tree that grows faster than the library counts. RLIMIT_NPROC counts all processes of the
   * user, and has no effect on root.
   */
  pids?: number | null;
  /**
   * The maximum CPU time, user and system. The library ends a tree that exceeds it as after a timeout. In a cgroup
   * the limit applies to all processes of the tree together. Otherwise it applies to each process separately, in
   * whole seconds (RLIMIT_CPU). In milliseconds.
   */
  cpuTime?: number | null;
  /**
   * The number of processors that the tree may use at once, such as 1.5. It needs a cgroup. The kernel slows the
   * run down and does not end it.
   */
  cpus?: number | null;
  /**
   * Which mechanisms may enforce the limits.
   * - `auto`: A cgroup enforces the limit, or else an rlimit. If neither is available, the start fails.
   * - `cgroup`: A cgroup enforces the limit. If none is available, the start fails.
   * - `watch`: A cgroup enforces the limit, or else checks by the library at intervals (resident memory of the
   * tree, and processes), or else an rlimit (CPU time). If none is available, the start fails.
   * - `best-effort`: A cgroup enforces the limit, or else an rlimit, or else checks by the library at intervals,
   * which a fork bomb can outrun. If none is available, no mechanism enforces the limit, and the result says so.
   * @defaultValue `auto`
   */
  enforce?: 'auto' | 'cgroup' | 'watch' | 'best-effort';
}

/** A file that gets all of the output if memory does not keep it. */
export interface Spill {
  /**
   * The largest size of the file. The file does not get later output.
   * @defaultValue 104857600
   */
  maxBytes?: number;
  /** The directory of the file: by default $TMPDIR, or else `/tmp`. */
  dir?: string | Uint8Array | null;
  /**
   * Whether the file stays when the result is dropped.
   * @defaultValue false
   */
  persist?: boolean;
}
