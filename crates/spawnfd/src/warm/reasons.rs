// SPDX-License-Identifier: MIT OR Apache-2.0
//! Explains the reasons for cold starts in sentences. The reference of warm starts has the same reasons in
//! tables.

/// A group of reasons, what they mean, and what to change. A reason that ends with `…` stands for all reasons with this
/// beginning, and one that begins with `…` for all with this end.
type Group = (&'static [&'static str], &'static str, &'static str);

const NOTHING: &str = "Nothing needs to change.";
const SAME_THREAD_STATE: &str =
    "Let the thread that adds the program have the same state as the thread that starts it.";
const LEAVE_OUT: &str = "Leave this option out, or accept cold starts.";
const FREE_RESOURCES: &str = "Raise the limits of this process, or close what it does not need.";
const INTERPRETER_START_UP: &str =
    "Change the modules in preimport, sitecustomize or .pth files, or start the interpreter with -I or -S.";
const OTHER_BUILD: &str = "Use a build of Node.js from nodejs.org, version 20 to 26.";
const RELATIVE: &str = "Use absolute paths, because the program parks in another directory.";

const GROUPS: &[Group] = &[
    (&["off"], "Warm starts are turned off.", "Unset SPAWNFD_WARM, and do not call turn_off()."),
    (&["closed"], "The Warm is closed.", "Use a new Warm."),
    (
        &["not added"],
        "The Warm has no such program, or has it by another path.",
        "Call add() with the path that the start uses, or set keep.",
    ),
    (
        &["empty"],
        "No process is parked now.",
        "Call fill() before the first start, or raise depth. On a busy machine, mode fork serves more starts.",
    ),
    (
        &["rare"],
        "In mode auto, the program has not started twice in the last minute.",
        "Call add() for a program that starts rarely but must start fast.",
    ),
    (
        &["memory limit"],
        "One parked process needs more memory than all may have.",
        "Raise the option memory of the Warm.",
    ),
    (
        &["closed standard stream"],
        "Descriptor 0, 1 or 2 of this process is closed, so nothing is parked.",
        "Open it, for example as /dev/null.",
    ),
    (
        &["stale"],
        "A file of the program has changed since the process was parked.",
        "Nothing needs to change: the Warm parks the new version.",
    ),
    (
        &["changing files"],
        "A file of the program changed during each attempt to park it.",
        "Find out what keeps writing the program's files.",
    ),
    (&["inotify"], "The library cannot watch the program's files.", "Raise fs.inotify.max_user_watches."),
    (&["not found"], "The program no longer exists.", "Install the program again."),
    (
        &["…(): …", "descriptors", "descriptor table", "descriptor numbers"],
        "This process lacks a descriptor or another resource, or has replaced a descriptor of the library.",
        FREE_RESOURCES,
    ),
    (
        &["sandbox command failed"],
        "The sandbox command ended before the program parked.",
        "Run the sandbox command by hand to see its error.",
    ),
    (
        &["sandbox command drops LD_PRELOAD"],
        "The sandbox command clears the environment, or shows no /proc.",
        "Let the sandbox command pass LD_PRELOAD on and mount /proc.",
    ),
    (&["… changed"], "The authority of the keeper thread changed while a sandbox started.", NOTHING),
    (
        &["static", "not glibc", "unreadable", "preinit_array", "entry point outside libc"],
        "Only readable programs that are linked to glibc dynamically can park before main().",
        "Use add_any(), or start this program cold.",
    ),
    (
        &["script"],
        "The program is a script, and only its interpreter can park.",
        "Add the interpreter, and start it with the script's path. `spawnfd doctor` lists scripts that only start \
         another program (shims).",
    ),
    (
        &["setuid", "file capabilities", "exec changes …"],
        "exec gives the program other privileges than this process has.",
        "Use add_any(), or start this program cold.",
    ),
    (&["descriptor"], "The program is executed by a descriptor, or has no path.", "Start the program by its path."),
    (
        &["loader", "a relative RPATH or RUNPATH"],
        "LD_* variables or the program's search path change how ld.so loads the parked program.",
        "Leave these variables out of the environment of add(), or use absolute paths.",
    ),
    (
        &["threads", "children", "changed environment", "prctl", "madvise", "memory", "/proc cannot be read"],
        "Before main(), the program did something that cannot be parked, or a call that parking needs was refused.",
        "Use cold starts for this program.",
    ),
    (
        &["start-up code writes", "start-up code writes: …", "no pipe for start-up output"],
        "The program writes to standard output or standard error before it parks.",
        INTERPRETER_START_UP,
    ),
    (
        &["too many groups", "too many names"],
        "The parked process cannot report all its groups, variables or files.",
        "Use cold starts for this program.",
    ),
    (
        &["not parked"],
        "The process ended before it parked.",
        "The published packages need glibc 2.34 to park a program. With such a glibc, run the program by hand with the \
         environment of add(), and see whether it ends early.",
    ),
    (
        &["slow", "died", "socket", "refused", "unknown", "too many times"],
        "The process did not park, or a parked process did not answer.",
        "If this occurs often, run the program by hand with the environment of add(), and see whether it ends early.",
    ),
    (
        &["not CPython 3.8 to 3.14", "unknown build of CPython", "adapter", "development mode of 3.8"],
        "The library does not know this build of CPython.",
        "Use CPython 3.8 to 3.14 as built by Debian, pyenv, uv or conda.",
    ),
    (
        &["a flag that makes the interpreter exit", "args has more than flags", "interactive mode"],
        "The args of add() are unsuitable.",
        "Give add() only options of the interpreter, such as -I.",
    ),
    (
        &["the interpreter's initialisation failed"],
        "CPython reports an error before it parks.",
        "Run the interpreter with the same options and environment by hand.",
    ),
    (
        &["cannot read the entry", "the entry is not a source file", "the entry imports itself"],
        "The library cannot import the modules of the entry before it parks.",
        "Name a readable Python file, or -m and a module, in entry; or name the modules in preimport.",
    ),
    (
        &["cannot import the entry's modules: …"],
        "The modules of the entry cannot be imported before the process parks.",
        "Give add() the environment of the start in env. If the modules are in the start's directory, give it in cwd.",
    ),
    (
        &["start-up code reads the working directory"],
        "A module of the entry depends on the directory of the start.",
        "Give add() the directory of the starts in cwd, or name in preimport only modules that do not read it.",
    ),
    (
        &["start-up code reads sys.argv", "start-up code changes sys.path"],
        "A module of the entry depends on the arguments of the start, or on its import path.",
        "Leave out entry, and name in preimport the modules that do not depend on the start.",
    ),
    (
        &["entry"],
        "The start runs another program than the entry of the parked process.",
        "Start the script or module that add() got in entry, or add the interpreter also without entry.",
    ),
    (
        &["shadowed module"],
        "The working directory of the start has a module that would be imported in place of a parked one.",
        "Give add() this directory in cwd, or add the interpreter also without entry.",
    ),
    (
        &[
            "a relative path",
            "a relative path to the interpreter",
            "a relative path to bytecode",
            "a relative path in PYTHONPATH",
            "a relative path in sys.path",
            "a module from a relative path: …",
        ],
        "A path depends on the working directory.",
        RELATIVE,
    ),
    (
        &[
            "start-up code reads the whole environment",
            "start-up code changes much of the environment",
            "start-up code replaces sys.…",
            "cannot import …",
        ],
        "A module that the interpreter loads before it parks does something that cannot be repeated.",
        INTERPRETER_START_UP,
    ),
    (
        &["NODE_OPTIONS", "unsupported Node.js flag", "NODE_V8_COVERAGE", "too many flags"],
        "An option of Node.js does more than set a value.",
        LEAVE_OUT,
    ),
    (
        &["no module can be loaded before parking"],
        "In mode fork, and with preimport, Node.js cannot load modules by -r or --import.",
        "Use mode reserve without preimport.",
    ),
    (
        &[
            "not recognised as Node.js",
            "not a Node.js with an inspector",
            "libuv",
            "no access to Node's JavaScript",
            "getrandom",
            "the memory map",
            "the copies of the arguments",
            "too many copies of the arguments",
            "the process title",
            "the saved state of the standard descriptors",
            "the random number generator",
            "too many random number generators",
            "too many timestamps",
        ],
        "The library does not find what it needs in this build of Node.js.",
        OTHER_BUILD,
    ),
    (
        &[
            "user ids",
            "group ids",
            "groups",
            "capabilities",
            "no_new_privs",
            "seccomp",
            "securebits",
            "namespaces",
            "keyrings",
            "security label",
            "landlock",
            "exec label",
            "speculation",
            "cpuset",
            "status",
        ],
        "The calling thread has other privileges than the thread that parked the process.",
        SAME_THREAD_STATE,
    ),
    (
        &[
            "session",
            "root",
            "cgroup",
            "scheduling",
            "affinity",
            "I/O priority",
            "memory policy",
            "switches",
            "personality",
            "oom_score_adj",
            "core dump filter",
            "memory limits",
            "raised limits",
            "context",
            "ignored signals",
            "limits",
        ],
        "The start gives the program another state than the parked process can have.",
        SAME_THREAD_STATE,
    ),
    (
        &["/proc"],
        "The library cannot compare this thread with the parked process.",
        "Mount /proc, and permit statx in the seccomp filter.",
    ),
    (
        &["variable"],
        "The program has read a variable before it parked, and the start has another value.",
        "Give add() the environment of the start in env.",
    ),
    (
        &["environment"],
        "The start has another environment than the parked sandbox.",
        "Give add() the environment of the start in env.",
    ),
    (
        &["arguments"],
        "The start has other interpreter options than the parked process, another argv[0], or a script by stdin.",
        "Give add() the interpreter options in args.",
    ),
    (
        &["working directory"],
        "The parked process has another directory because of cwd or its sandbox, or the caller may not open its own.",
        "Give add() the directory of the start in cwd. A Python program can also be added without cwd.",
    ),
    (
        &["Landlock ruleset", "seccomp filter", "confinement", "sandbox", "descriptors of the sandbox"],
        "No process is parked inside this confinement.",
        "Give add() the same sandbox, ruleset or filter.",
    ),
    (
        &["parent-death signal", "pid namespace", "subreaper", "inherited descriptors"],
        "Only a new child of the calling thread can have this.",
        LEAVE_OUT,
    ),
    (
        &["chroot", "ids or capabilities", "O_EXCL", "files to open", "close-on-exec stream"],
        "An action of the start depends on exec, or may block.",
        "Use add_any() for this command, or start it cold.",
    ),
    (
        &["arguments too long", "too many descriptors"],
        "The request to the parked process is too large.",
        "Pass long data by stdin or a file.",
    ),
];

/// Explains a reason for a cold start: what it means, and what to change. `None` if the reason is the text of a
/// program.
pub(super) fn explain(reason: &str) -> Option<(&'static str, &'static str)> {
    let (_, meaning, remedy) = GROUPS.iter().find(|(reasons, ..)| reasons.iter().any(|known| is(known, reason)))?;
    Some((meaning, remedy))
}

/// Whether a reason is of this pattern.
fn is(pattern: &str, reason: &str) -> bool {
    let mut parts = pattern.split('…');
    let (Some(begin), middle, end) = (parts.next(), parts.next(), parts.next()) else { return false };
    match (middle, end) {
        (None, _) => pattern == reason,
        (Some(last), None) => {
            reason.len() > begin.len() + last.len() && reason.starts_with(begin) && reason.ends_with(last)
        }
        (Some(middle), Some(_)) => reason.contains(middle),
    }
}

#[cfg(test)]
mod tests;
