// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reasons for cold starts: starts by clone and exec although the command uses parked processes.

/// Defines [`ColdReason`] from groups: the meaning of a group, what to change, the reasons with their words, and the
/// reasons with a varying part. `…` in a pattern stands for the varying part.
macro_rules! cold_reasons {
    ($(
        $meaning:literal, $remedy:expr =>
            [$($name:ident = $word:literal),*] $([$($varying:ident = $pattern:literal),+])?;
    )+) => {
        /// Why a start is cold. A reason with a varying part has its whole text.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[cfg_attr(not(feature = "warm"), expect(dead_code, reason = "only parked processes give most reasons"))]
        pub(crate) enum ColdReason {
            $($($name,)* $($($varying(&'static str),)+)?)+
        }

        impl ColdReason {
            /// The text that users see after "cold: ".
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $($(Self::$name => $word,)* $($(Self::$varying(text) => text,)+)?)+
                }
            }
        }

        #[cfg(feature = "warm")]
        impl ColdReason {
            /// The reasons without a varying part.
            pub(crate) const FIXED: &[ColdReason] = &[$($(Self::$name,)*)+];
            /// The patterns of the other reasons. A pattern precedes those that match more texts.
            pub(crate) const VARYING: &[(&str, fn(&'static str) -> ColdReason)] =
                &[$($($(($pattern, Self::$varying),)+)?)+];

            /// The meaning of the reason and the remedy, as sentences.
            pub(crate) fn explanation(self) -> (&'static str, &'static str) {
                match self {
                    $($(Self::$name => ($meaning, $remedy),)* $($(Self::$varying(_) => ($meaning, $remedy),)+)?)+
                }
            }
        }
    };
}

#[cfg(feature = "warm")]
mod remedy {
    pub(super) const NOTHING: &str = "Nothing needs to change.";
    pub(super) const SAME_THREAD_STATE: &str =
        "Let the thread that adds the program have the same state as the thread that starts it.";
    pub(super) const LEAVE_OUT: &str = "Leave this option out, or accept cold starts.";
    pub(super) const ANY_OR_COLD: &str = "Use add_any(), or start this program cold.";
    pub(super) const COLD: &str = "Use cold starts for this program.";
    pub(super) const START_UP: &str =
        "Change the modules in preimport, sitecustomize or .pth files, or start the interpreter with -I or -S.";
    pub(super) const ENVIRONMENT: &str = "Give add() the environment of the start in env.";
}

cold_reasons! {
    "Warm starts are turned off.", "Unset SPAWNFD_WARM, and do not call turn_off()." => [Off = "off"];
    "This build of the library cannot park programs: only builds for glibc can.",
    "Use a build for glibc, or accept cold starts." => [Platform = "needs glibc"];
    "Node.js can park after its initialisation only on x86_64.",
    "Start Node.js cold, or park it at main()." => [NodeProcessor = "Node.js needs x86_64"];
    "The Warm is closed.", "Use a new Warm." => [Closed = "closed"];
    "The Warm has no such program, or has it by another path.",
    "Call add() with the path that the start uses, or set keep." => [NotAdded = "not added"];
    "No process is parked now.",
    "Call fill() before the first start, or raise depth. On a busy machine, mode fork serves more starts." =>
        [Empty = "empty"];
    "In mode auto, the program has not started twice in the last minute.",
    "Call add() for a program that starts rarely but must start fast." => [Rare = "rare"];
    "One parked process needs more memory than all may have.",
    "Raise the option memory of the Warm." => [MemoryLimit = "memory limit"];
    "Descriptor 0, 1 or 2 of this process is closed, so nothing is parked.",
    "Open it, for example as /dev/null." => [ClosedStandardStream = "closed standard stream"];
    "A file of the program has changed since the process was parked.",
    "Nothing needs to change: the Warm parks the new version." => [Stale = "stale"];
    "A file of the program changed during each attempt to park it.",
    "Find out what keeps writing the program's files." => [ChangingFiles = "changing files"];
    "The library cannot watch the program's files.", "Raise fs.inotify.max_user_watches." => [Inotify = "inotify"];
    "The program no longer exists.", "Install the program again." => [NotFound = "not found"];
    "This process lacks a descriptor or another resource, or has replaced a descriptor of the library.",
    "Raise the limits of this process, or close what it does not need." =>
        [Descriptors = "descriptors", DescriptorTable = "descriptor table", DescriptorNumbers = "descriptor numbers"]
        [SystemCall = "…(): …"];
    "The sandbox command ended before the program parked.",
    "Run the sandbox command by hand to see its error." => [SandboxCommandFailed = "sandbox command failed"];
    "The sandbox command clears the environment, or shows no /proc.",
    "Let the sandbox command pass LD_PRELOAD on and mount /proc." =>
        [SandboxDropsPreload = "sandbox command drops LD_PRELOAD"];
    "The authority of the keeper thread changed while a sandbox started.", remedy::NOTHING =>
        [] [AuthorityChanged = "… changed"];
    "Only readable programs that are linked to glibc dynamically can park before main().", remedy::ANY_OR_COLD =>
        [Static = "static", NotGlibc = "not glibc", Unreadable = "unreadable", PreinitArray = "preinit_array",
         EntryPointOutsideLibc = "entry point outside libc"];
    "The program is a script, and only its interpreter can park.",
    "Add the interpreter, and start it with the script's path. `spawnfd doctor` lists scripts that only start another \
     program (shims)." => [Script = "script"];
    "exec gives the program other privileges than this process has.", remedy::ANY_OR_COLD =>
        [Setuid = "setuid", FileCapabilities = "file capabilities"] [ExecChanges = "exec changes …"];
    "The program is executed by a descriptor, or has no path.",
    "Start the program by its path." => [Descriptor = "descriptor"];
    "LD_* variables or the program's search path change how ld.so loads the parked program.",
    "Leave these variables out of the environment of add(), or use absolute paths." =>
        [Loader = "loader", RelativeSearchPath = "a relative RPATH or RUNPATH"];
    "Before main(), the program did something that cannot be parked, or a call that parking needs was refused.",
    remedy::COLD =>
        [Threads = "threads", Children = "children", ChangedEnvironment = "changed environment", Prctl = "prctl",
         Madvise = "madvise", Memory = "memory", UnreadableProc = "/proc cannot be read"];
    "The program writes to standard output or standard error before it parks.", remedy::START_UP =>
        [StartUpWrites = "start-up code writes", NoOutputPipe = "no pipe for start-up output"]
        [StartUpWritesText = "start-up code writes: …"];
    "The parked process cannot report all its groups, variables or files.", remedy::COLD =>
        [TooManyGroups = "too many groups", TooManyNames = "too many names"];
    "The process ended before it parked.",
    "The published packages need glibc 2.28 to park a program. With such a glibc, run the program by hand with the \
     environment of add(), and see whether it ends early." => [NotParked = "not parked"];
    "The process did not park, or a parked process did not answer.",
    "If this occurs often, run the program by hand with the environment of add(), and see whether it ends early." =>
        [Slow = "slow", Died = "died", Socket = "socket", Refused = "refused", Unknown = "unknown"];
    "The library does not know this build of CPython.",
    "Use CPython 3.8 to 3.14 as built by Debian, pyenv, uv or conda." =>
        [NotCPython = "not CPython 3.8 to 3.14", FreeThreaded = "free-threaded CPython",
         UnknownCPython = "unknown build of CPython", Adapter = "adapter",
         DevelopmentMode = "development mode of 3.8"];
    "The args of add() are unsuitable.", "Give add() only options of the interpreter, such as -I." =>
        [ExitingFlag = "a flag that makes the interpreter exit", NotOnlyFlags = "args has more than flags",
         InteractiveMode = "interactive mode"];
    "CPython reports an error before it parks.",
    "Run the interpreter with the same options and environment by hand." =>
        [InitialisationFailed = "the interpreter's initialisation failed"];
    "The library cannot import the modules of the entry before it parks.",
    "Name a readable Python file, or -m and a module, in entry; or name the modules in preimport." =>
        [UnreadableEntry = "cannot read the entry", EntryWithoutSource = "the entry is not a source file",
         EntryImportsItself = "the entry imports itself"];
    "The modules of the entry cannot be imported before the process parks.",
    "Give add() the environment of the start in env. If the modules are in the start's directory, give it in cwd." =>
        [] [CannotImportEntry = "cannot import the entry's modules: …"];
    "A module of the entry depends on the directory of the start.",
    "Give add() the directory of the starts in cwd, or name in preimport only modules that do not read it." =>
        [ReadsDirectory = "start-up code reads the working directory"];
    "A module of the entry depends on the arguments of the start, or on its import path.",
    "Leave out entry, and name in preimport the modules that do not depend on the start." =>
        [ReadsArguments = "start-up code reads sys.argv", ChangesSysPath = "start-up code changes sys.path"];
    "The start runs another program than the entry of the parked process.",
    "Start the script or module that add() got in entry, or add the interpreter also without entry." =>
        [Entry = "entry"];
    "The working directory of the start has a module that would be imported in place of a parked one.",
    "Give add() this directory in cwd, or add the interpreter also without entry." =>
        [ShadowedModule = "shadowed module"];
    "A path depends on the working directory.",
    "Use absolute paths, because the program parks in another directory." =>
        [RelativePath = "a relative path", RelativeInterpreter = "a relative path to the interpreter",
         RelativeBytecode = "a relative path to bytecode", RelativePythonPath = "a relative path in PYTHONPATH",
         RelativeSysPath = "a relative path in sys.path"]
        [RelativeModule = "a module from a relative path: …"];
    "A module that the interpreter loads before it parks does something that cannot be repeated.", remedy::START_UP =>
        [ReadsEnvironment = "start-up code reads the whole environment",
         ChangesEnvironment = "start-up code changes much of the environment"]
        [ReplacesStream = "start-up code replaces sys.…", CannotImport = "cannot import …"];
    "An option of Node.js does more than set a value.", remedy::LEAVE_OUT =>
        [NodeOptions = "NODE_OPTIONS", UnsupportedNodeFlag = "unsupported Node.js flag",
         NodeCoverage = "NODE_V8_COVERAGE", TooManyFlags = "too many flags"];
    "In mode fork, and with preimport, Node.js cannot load modules by -r or --import.",
    "Use mode reserve without preimport." => [NoEarlyModule = "no module can be loaded before parking"];
    "The library does not find what it needs in this build of Node.js.",
    "Use a build of Node.js from nodejs.org or Debian, version 18 to 26." =>
        [NotNode = "not recognised as Node.js", NoInspector = "not a Node.js with an inspector", Libuv = "libuv",
         Getrandom = "getrandom", MemoryMap = "the memory map", ArgumentCopies = "the copies of the arguments",
         TooManyArgumentCopies = "too many copies of the arguments", ProcessTitle = "the process title",
         SavedDescriptors = "the saved state of the standard descriptors",
         RandomGenerator = "the random number generator",
         TooManyRandomGenerators = "too many random number generators", TooManyTimes = "too many times",
         TooManyTimestamps = "too many timestamps"];
    "Before it parks, this build of Node.js cannot run code of the library. Node.js 18 is such a build.",
    "Use Node.js 20 to 26. In mode reserve without preimport, Node.js 18 can park too." =>
        [NoJavaScript = "no access to Node's JavaScript"];
    "The calling thread has other privileges than the thread that parked the process.", remedy::SAME_THREAD_STATE =>
        [UserIds = "user ids", GroupIds = "group ids", Groups = "groups", Capabilities = "capabilities",
         NoNewPrivs = "no_new_privs", Seccomp = "seccomp", Securebits = "securebits", Namespaces = "namespaces",
         Keyrings = "keyrings", SecurityLabel = "security label", Landlock = "landlock", ExecLabel = "exec label",
         Speculation = "speculation", Cpuset = "cpuset", Status = "status"];
    "The start gives the program another state than the parked process can have.", remedy::SAME_THREAD_STATE =>
        [Session = "session", Root = "root", Cgroup = "cgroup", Scheduling = "scheduling", Affinity = "affinity",
         IoPriority = "I/O priority", MemoryPolicy = "memory policy", Switches = "switches",
         Personality = "personality", OomScoreAdj = "oom_score_adj", CoreDumpFilter = "core dump filter",
         MemoryLimits = "memory limits", RaisedLimits = "raised limits", Context = "context",
         IgnoredSignals = "ignored signals", Limits = "limits"];
    "The library cannot compare this thread with the parked process.",
    "Mount /proc, and permit statx in the seccomp filter." => [Proc = "/proc"];
    "The program has read a variable before it parked, and the start has another value.", remedy::ENVIRONMENT =>
        [Variable = "variable"];
    "The start has another environment than the parked sandbox.", remedy::ENVIRONMENT =>
        [Environment = "environment"];
    "The start has other interpreter options than the parked process, another argv[0], or a script by stdin.",
    "Give add() the interpreter options in args." => [Arguments = "arguments"];
    "The parked process has another directory because of cwd or its sandbox, or the caller may not open its own.",
    "Give add() the directory of the start in cwd. A Python program can also be added without cwd." =>
        [WorkingDirectory = "working directory"];
    "No process is parked inside this confinement.", "Give add() the same sandbox, ruleset or filter." =>
        [LandlockRuleset = "Landlock ruleset", SeccompFilter = "seccomp filter", Confinement = "confinement",
         Sandbox = "sandbox", SandboxDescriptors = "descriptors of the sandbox"];
    "Only a new child of the calling thread can have this.", remedy::LEAVE_OUT =>
        [ParentDeathSignal = "parent-death signal", PidNamespace = "pid namespace", Subreaper = "subreaper",
         InheritedDescriptors = "inherited descriptors"];
    "An action of the start depends on exec, or may block.",
    "Use add_any() for this command, or start it cold." =>
        [Chroot = "chroot", IdsOrCapabilities = "ids or capabilities", ExclusiveOpen = "O_EXCL",
         FilesToOpen = "files to open", CloseOnExecStream = "close-on-exec stream"];
    "The request to the parked process is too large.", "Pass long data by stdin or a file." =>
        [ArgumentsTooLong = "arguments too long", TooManyDescriptors = "too many descriptors"];
    "The program reported this error before it parked.",
    "Run the program by hand with the environment of add()." => [] [Reported = "…"];
}
