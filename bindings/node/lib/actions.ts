// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

import { Action } from './action';

/** Passes the caller's descriptor `source` to the program as `to`; null: the same number. */
export function descriptor(source: number, to: number | null = null): Action {
  return new Action('descriptor', { source, to });
}

/** Duplicates the child's descriptor `number` to `to`; `number` must be open at that point. */
export function dup2(number: number, to: number): Action {
  return new Action('dup2', { number, to });
}

/** Closes a descriptor of the program; it need not be open. */
export function close(number: number): Action {
  return new Action('close', { number });
}

/** Closes the program's descriptors from `first` to `last`. */
export function closeRange(first: number, last: number = 0xFFFFFFFF): Action {
  return new Action('close_range', { first, last });
}

/**
 * Opens a file in the child as the program's descriptor `to`.
 *
 * `flags` and `mode` are those of open(2), `resolve` has the RESOLVE_* flags of openat2(2). A relative path starts at
 * the caller's open directory `dir`, else at the child's working directory.
 */
export function open(
  path: string | Uint8Array,
  to: number,
  { flags = 0, mode = 0o666, dir = null, resolve = 0 }: { flags?: number; mode?: number; dir?: number | null; resolve?: number } = {},
): Action {
  return new Action('open', { path, to, flags, mode, dir, resolve });
}

/** Changes the working directory. */
export function chdir(path: string | Uint8Array): Action {
  return new Action('chdir', { path });
}

/** Changes the working directory to a directory that the caller has open. */
export function fchdir(dir: number): Action {
  return new Action('fchdir', { dir });
}

/** Changes the root directory; the program's path must name the same file there. */
export function chroot(path: string | Uint8Array): Action {
  return new Action('chroot', { path });
}

/** Sets the file mode creation mask, up to 0o777. */
export function umask(mask: number): Action {
  return new Action('umask', { mask });
}

/** Makes the program the leader of a new session. */
export function setsid(): Action {
  return new Action('setsid', {});
}

/**
 * Moves the program to process group `group` of this session; 0 creates a new group.
 *
 * A supervised run stays in this process's session with this action. Without it, the run gets a session of its own.
 */
export function processGroup(group: number = 0): Action {
  return new Action('process_group', { group });
}

/** Makes the child's process group the foreground group of the terminal on `number`. */
export function foreground(number: number): Action {
  return new Action('foreground', { number });
}

/** Makes the terminal on `number` the controlling one; the child must be a session leader. */
export function controllingTerminal(number: number): Action {
  return new Action('controlling_terminal', { number });
}

/** Sets a resource limit (RLIMIT_*); null and RLIM_INFINITY mean unlimited. */
export function limit(resource: number, soft: number | null, hard: number | null): Action {
  return new Action('limit', { resource, soft, hard });
}

/** Sets the nice value, -20 to 19. */
export function nice(value: number): Action {
  return new Action('nice', { value });
}

/** Sets the scheduling policy (SCHED_*) and priority (FIFO and RR: 1 to 99, others: 0). */
export function scheduler(policy: number, priority: number = 0): Action {
  return new Action('scheduler', { policy, priority });
}

/** Restricts the program to the processors `cpus`. */
export function affinity(cpus: readonly number[]): Action {
  return new Action('affinity', { cpus });
}

/**
 * Sets the real, effective and saved user id.
 *
 * If the list has no Groups action, root's supplementary groups are cleared first. Put Gid and Groups before Uid:
 * after a change from root to another user, the child may not change its groups.
 */
export function uid(uid: number): Action {
  return new Action('uid', { uid });
}

/** Sets the real, effective and saved group id. Put it before Uid. */
export function gid(gid: number): Action {
  return new Action('gid', { gid });
}

/** Sets the user ids individually; null leaves an id unchanged. See Uid. */
export function userIds(
  { real = null, effective = null, saved = null }: { real?: number | null; effective?: number | null; saved?: number | null } = {},
): Action {
  return new Action('user_ids', { real, effective, saved });
}

/** Sets the group ids individually; null leaves an id unchanged. */
export function groupIds(
  { real = null, effective = null, saved = null }: { real?: number | null; effective?: number | null; saved?: number | null } = {},
): Action {
  return new Action('group_ids', { real, effective, saved });
}

/** Sets the supplementary groups. Put it before Uid. */
export function groups(groups: readonly number[]): Action {
  return new Action('groups', { groups });
}

/** Sets the capability sets, as masks in which bit n is capability number n. */
export function capabilities(
  { effective = 0, permitted = 0, inheritable = 0, bounding = 0, ambient = 0 }: { effective?: number; permitted?: number; inheritable?: number; bounding?: number; ambient?: number } = {},
): Action {
  return new Action('capabilities', { effective, permitted, inheritable, bounding, ambient });
}

/** Prevents exec from adding privileges: set-uid and file capabilities have no effect. */
export function noNewPrivs(): Action {
  return new Action('no_new_privs', {});
}

/**
 * Starts the program in the cgroup v2 whose directory is open as `dir`.
 *
 * The child does not share memory with the caller before exec. Otherwise the kernel's out-of-memory killer, if it
 * selected the child in that cgroup, would kill the caller, too.
 */
export function cgroup(dir: number): Action {
  return new Action('cgroup', { dir });
}

/**
 * Enters an existing namespace, or several namespaces of a process given by its pidfd.
 *
 * `kinds` has the CLONE_NEW* flags of the namespaces; 0 accepts a namespace of any kind.
 */
export function joinNamespace(namespace: number, kinds: number = 0): Action {
  return new Action('join_namespace', { namespace, kinds });
}

/** Sets oom_score_adj, the out-of-memory killer's preference, -1000 to 1000. */
export function oomScoreAdj(value: number): Action {
  return new Action('oom_score_adj', { value });
}

/** Confines the program by a Landlock ruleset; requires NoNewPrivs or CAP_SYS_ADMIN. */
export function landlock(ruleset: number): Action {
  return new Action('landlock', { ruleset });
}

/** Passes all inheritable descriptors of the caller to the program. */
export function inheritDescriptors(): Action {
  return new Action('inherit_descriptors', {});
}

/**
 * Keeps the calling thread's signal mask and ignored signals, as posix_spawn does.
 *
 * It overrides SignalMask and DefaultSignals before it in the list, not those after it.
 */
export function inheritSignals(): Action {
  return new Action('inherit_signals', {});
}

/** Sets the signals that are blocked when the program starts; none by default. */
export function signalMask(blocked: readonly number[]): Action {
  return new Action('signal_mask', { blocked });
}

/** Sets which ignored signals are reset to default; without this, SIGPIPE and SIGXFSZ. */
export function defaultSignals(signals: readonly number[]): Action {
  return new Action('default_signals', { signals });
}

/** Sends the program a signal when the *thread* that started it ends (PR_SET_PDEATHSIG). */
export function parentDeathSignal(signal: number): Action {
  return new Action('parent_death_signal', { signal });
}

/** Makes the program the first process of new namespaces (CLONE_NEW* flags). */
export function namespaces(kinds: number): Action {
  return new Action('namespaces', { kinds });
}

/** Starts the program in a new user namespace that maps the caller to `uid` and `gid`. */
export function userNamespace(uid: number, gid: number): Action {
  return new Action('user_namespace', { uid, gid });
}

/**
 * Installs a seccomp filter as the child's last step before exec.
 *
 * `filter` has the bytes of an array of struct sock_filter, 8 bytes each. It must allow execve and exit_group.
 * Requires NoNewPrivs or CAP_SYS_ADMIN.
 */
export function seccomp(filter: Uint8Array): Action {
  return new Action('seccomp', { filter });
}
