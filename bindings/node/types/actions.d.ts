import { Action } from './action';
/** Passes the caller's descriptor `source` to the program as `to`; null: the same number. */
export declare function descriptor(source: number, to?: number | null): Action;
/** Duplicates the child's descriptor `number` to `to`; `number` must be open at that point. */
export declare function dup2(number: number, to: number): Action;
/** Closes a descriptor of the program; it need not be open. */
export declare function close(number: number): Action;
/** Closes the program's descriptors from `first` to `last`. */
export declare function closeRange(first: number, last?: number): Action;
/**
 * Opens a file in the child as the program's descriptor `to`.
 *
 * `flags` and `mode` are those of open(2), `resolve` has the RESOLVE_* flags of openat2(2). A relative path starts at
 * the caller's open directory `dir`, else at the child's working directory.
 */
export declare function open(path: string | Uint8Array, to: number, { flags, mode, dir, resolve }?: {
    flags?: number;
    mode?: number;
    dir?: number | null;
    resolve?: number;
}): Action;
/** Changes the working directory. */
export declare function chdir(path: string | Uint8Array): Action;
/** Changes the working directory to a directory that the caller has open. */
export declare function fchdir(dir: number): Action;
/** Changes the root directory; the program's path must name the same file there. */
export declare function chroot(path: string | Uint8Array): Action;
/** Sets the file mode creation mask, up to 0o777. */
export declare function umask(mask: number): Action;
/** Makes the program the leader of a new session. */
export declare function setsid(): Action;
/**
 * Moves the program to process group `group` of this session; 0 creates a new group.
 *
 * A supervised run stays in this process's session with this action. Without it, the run gets a session of its own.
 */
export declare function processGroup(group?: number): Action;
/** Makes the child's process group the foreground group of the terminal on `number`. */
export declare function foreground(number: number): Action;
/** Makes the terminal on `number` the controlling one; the child must be a session leader. */
export declare function controllingTerminal(number: number): Action;
/** Sets a resource limit (RLIMIT_*); null and RLIM_INFINITY mean unlimited. */
export declare function limit(resource: number, soft: number | null, hard: number | null): Action;
/** Sets the nice value, -20 to 19. */
export declare function nice(value: number): Action;
/** Sets the scheduling policy (SCHED_*) and priority (FIFO and RR: 1 to 99, others: 0). */
export declare function scheduler(policy: number, priority?: number): Action;
/** Restricts the program to the processors `cpus`. */
export declare function affinity(cpus: readonly number[]): Action;
/**
 * Sets the real, effective and saved user id.
 *
 * If the list has no Groups action, root's supplementary groups are cleared first. Put Gid and Groups before Uid:
 * after a change from root to another user, the child may not change its groups.
 */
export declare function uid(uid: number): Action;
/** Sets the real, effective and saved group id. Put it before Uid. */
export declare function gid(gid: number): Action;
/** Sets the user ids individually; null leaves an id unchanged. See Uid. */
export declare function userIds({ real, effective, saved }?: {
    real?: number | null;
    effective?: number | null;
    saved?: number | null;
}): Action;
/** Sets the group ids individually; null leaves an id unchanged. */
export declare function groupIds({ real, effective, saved }?: {
    real?: number | null;
    effective?: number | null;
    saved?: number | null;
}): Action;
/** Sets the supplementary groups. Put it before Uid. */
export declare function groups(groups: readonly number[]): Action;
/** Sets the capability sets, as masks in which bit n is capability number n. */
export declare function capabilities({ effective, permitted, inheritable, bounding, ambient }?: {
    effective?: number;
    permitted?: number;
    inheritable?: number;
    bounding?: number;
    ambient?: number;
}): Action;
/** Prevents exec from adding privileges: set-uid and file capabilities have no effect. */
export declare function noNewPrivs(): Action;
/**
 * Starts the program in the cgroup v2 whose directory is open as `dir`.
 *
 * The child does not share memory with the caller before exec. Otherwise the kernel's out-of-memory killer, if it
 * selected the child in that cgroup, would kill the caller, too.
 */
export declare function cgroup(dir: number): Action;
/**
 * Enters an existing namespace, or several namespaces of a process given by its pidfd.
 *
 * `kinds` has the CLONE_NEW* flags of the namespaces; 0 accepts a namespace of any kind.
 */
export declare function joinNamespace(namespace: number, kinds?: number): Action;
/** Sets oom_score_adj, the out-of-memory killer's preference, -1000 to 1000. */
export declare function oomScoreAdj(value: number): Action;
/** Confines the program by a Landlock ruleset; requires NoNewPrivs or CAP_SYS_ADMIN. */
export declare function landlock(ruleset: number): Action;
/** Passes all inheritable descriptors of the caller to the program. */
export declare function inheritDescriptors(): Action;
/**
 * Keeps the calling thread's signal mask and ignored signals, as posix_spawn does.
 *
 * It overrides SignalMask and DefaultSignals before it in the list, not those after it.
 */
export declare function inheritSignals(): Action;
/** Sets the signals that are blocked when the program starts; none by default. */
export declare function signalMask(blocked: readonly number[]): Action;
/** Sets which ignored signals are reset to default; without this, SIGPIPE and SIGXFSZ. */
export declare function defaultSignals(signals: readonly number[]): Action;
/** Sends the program a signal when the *thread* that started it ends (PR_SET_PDEATHSIG). */
export declare function parentDeathSignal(signal: number): Action;
/** Makes the program the first process of new namespaces (CLONE_NEW* flags). */
export declare function namespaces(kinds: number): Action;
/** Starts the program in a new user namespace that maps the caller to `uid` and `gid`. */
export declare function userNamespace(uid: number, gid: number): Action;
/**
 * Installs a seccomp filter as the child's last step before exec.
 *
 * `filter` has the bytes of an array of struct sock_filter, 8 bytes each. It must allow execve and exit_group.
 * Requires NoNewPrivs or CAP_SYS_ADMIN.
 */
export declare function seccomp(filter: Uint8Array): Action;
