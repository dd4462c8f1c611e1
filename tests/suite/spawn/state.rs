// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program sees the same state if glibc's posix_spawn, std, or any launcher of the library starts
//! it. A spawn leaves its caller unchanged.

use crate::common;
use std::ffi::{CString, c_char};
use std::fs::{File, Permissions, set_permissions};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{Cgroup, Launcher, c_path, capability_sets, every_launcher, state, warm_up};
use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::command::{FilterInstruction, Namespaces, OpenHow};
use spawnfd::{Command, Stdio};
use spawnfd_tests::{State, isolated, program, require_root, require_syscall, scratch, skip};

/// A seccomp filter that allows every system call.
const ALLOW: FilterInstruction = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };

/// Fields that differ between any two runs of this file, because each run has its own pipe.
const EACH_RUN: &[&str] = &["pid", "mappings", "fds.1.inode", "fds.1.target"];

/// Fields that differ from a program that glibc's posix_spawn starts. The library intends these
/// differences.
const FROM_POSIX_SPAWN: &[&str] = State::POSIX_SPAWN_LEAVES;

/// If the library executes a descriptor, the kernel names the program `/dev/fd/N`. Before Linux
/// 6.14 it also names the thread `N`.
const BY_DESCRIPTOR: &[&str] = &["at_execfn"];
const BY_DESCRIPTOR_BEFORE_6_14: &[&str] = &["at_execfn", "comm"];

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// Starts a program by glibc's posix_spawn, with the settings of the launchers here: SIGPIPE has
/// its default action, stdin is /dev/null, and stdout is a pipe.
fn by_posix_spawn(path: &Path) -> State {
    let (mut reader, writer) = common::pipe();
    let path = c_path(path);
    let argv = [path.as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: each object is initialised before use and destroyed afterwards. The strings outlive
    // the call.
    unsafe {
        let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::zeroed();
        let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::zeroed();
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        libc::posix_spawnattr_setsigdefault(attributes.as_mut_ptr(), set.as_ptr());
        libc::posix_spawnattr_setflags(attributes.as_mut_ptr(), libc::POSIX_SPAWN_SETSIGDEF as libc::c_short);
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        libc::posix_spawn_file_actions_addopen(actions.as_mut_ptr(), 0, c"/dev/null".as_ptr(), libc::O_RDONLY, 0);
        libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), writer.as_raw_fd(), 1);
        let answer = libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            actions.as_ptr(),
            attributes.as_ptr(),
            argv.as_ptr(),
            environ.cast(),
        );
        assert_eq!(answer, 0);
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
    }
    drop(writer);
    let mut json = Vec::new();
    reader.read_to_end(&mut json).expect("own pipe");
    let mut status = 0;
    // SAFETY: waitpid stores an int, and the child belongs to this function.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    State::from_json(&json)
}

fn by_std(path: &Path) -> State {
    let mut command = std::process::Command::new(path);
    let output = command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::inherit()).output();
    let output = output.expect("starts");
    assert!(output.status.success());
    State::from_json(&output.stdout)
}

extern "C" fn handler(_: libc::c_int) {}

/// Gives this process many attributes that children inherit, and many that children must not
/// inherit.
fn unusual_parent(directory: &Path) {
    std::env::set_current_dir(directory).expect("own directory");
    let high = File::open("/dev/null").expect("it exists");
    // The extra descriptor has close-on-exec, because posix_spawn would pass it on otherwise.
    // SAFETY: the calls read C strings and structs of this function, and change only this process
    // and this thread. The handler does nothing.
    unsafe {
        libc::umask(0o027);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGRTMIN() + 3, libc::SIG_IGN);
        for signal in [libc::SIGTERM, libc::SIGCHLD, libc::SIGSEGV, libc::SIGRTMAX()] {
            libc::signal(signal, handler as *const () as libc::sighandler_t);
        }
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGUSR1, libc::SIGHUP, libc::SIGRTMIN() + 1] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        // A child must not inherit this pending signal.
        libc::raise(libc::SIGUSR1);
        libc::setpriority(libc::PRIO_PROCESS, 0, 3);
        libc::prctl(libc::PR_SET_TIMERSLACK, 70_000);
        libc::prctl(libc::PR_SET_NAME, c"a thread".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
        let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
        let mut cpus = MaybeUninit::<libc::cpu_set_t>::zeroed();
        libc::CPU_SET(0, cpus.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpus.as_ptr());
        let timer = libc::itimerval {
            it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
            it_value: libc::timeval { tv_sec: 5000, tv_usec: 0 },
        };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        libc::fcntl(high.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700);
    }
}

fn differs(launcher: Launcher) -> Vec<&'static str> {
    let by_descriptor = match launcher {
        Launcher::ByDescriptor if at_least_6_14() => BY_DESCRIPTOR,
        Launcher::ByDescriptor => BY_DESCRIPTOR_BEFORE_6_14,
        _ => &[],
    };
    let parent: &[_] = if launcher.has_subreaper() { &["ppid"] } else { &[] };
    [EACH_RUN, FROM_POSIX_SPAWN, by_descriptor, parent].concat()
}

fn at_least_6_14() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 14)
}

fn same_as_posix_spawn(launcher: Launcher) {
    let path = program("spawnfd-oracle");
    let theirs = by_posix_spawn(&path);
    let ours = state(&mut launcher.oracle());
    State::assert_same(&theirs, &ours, &differs(launcher));
    launcher.assert_used();
}

every_launcher! {
    a_plain_parent_starts_programs_as_posix_spawn_does [every under No]: same_as_posix_spawn;
    an_unusual_parent_starts_programs_as_posix_spawn_does [tables under Docker]: |launcher| {
        let directory = scratch();
        unusual_parent(directory.path());
        launcher.drop_parked();
        same_as_posix_spawn(launcher);
        // The second child must have the same state, now that the library has been used.
        same_as_posix_spawn(launcher);
    };
    a_program_has_the_locale_that_posix_spawn_gives [exec under No]: |launcher| {
        // SAFETY: no other thread reads the environment at this time.
        unsafe { std::env::set_var("LC_ALL", "C.UTF-8") };
        launcher.drop_parked();
        same_as_posix_spawn(launcher);
        let locale = state(&mut launcher.oracle()).locale;
        assert!(locale["set"].is_empty() || locale["CODESET"] == "UTF-8", "{locale:?}");
    };
    a_program_has_the_state_that_std_gives [steps under Docker]: |launcher| {
        let theirs = by_std(&program("spawnfd-oracle"));
        State::assert_same(&theirs, &state(&mut launcher.oracle()), &differs(launcher));
    };
    a_spawn_leaves_the_parent_unchanged [steps under User]: |launcher| {
        let directory = scratch();
        unusual_parent(directory.path());
        launcher.drop_parked();
        assert_parent_unchanged(launcher, "a plain spawn", |command| { command.arg("x"); });
        assert_parent_unchanged(launcher, "a failed action", |command| { command.chdir("/nowhere"); });
        assert_parent_unchanged(launcher, "a spawn with many actions", |command| {
            command
                .umask(0o777)
                .chdir("/")
                .setsid()
                .nice(10)
                .limit(libc::RLIMIT_NOFILE, Some(64), Some(64))
                .affinity([0])
                .scheduler(3, 0)
                .oom_score_adj(500)
                .no_new_privs()
                .open("/dev/null", OpenHow::READ, 77)
                .parent_death_signal(9)
                .default_signals(spawnfd::signal::SignalSet::ALL)
                .signal_mask(spawnfd::signal::SignalSet::ALL);
        });
        assert_parent_unchanged(launcher, "a filter", |command| {
            command.no_new_privs().seccomp([ALLOW]);
        });
        assert_parent_unchanged(launcher, "inherited descriptors", |command| { command.inherit_descriptors(true); });
        assert_parent_unchanged(launcher, "a terminal", |command| {
            // The kernel hangs up this terminal at once, because the master is dropped. Each start
            // needs a new terminal, because the end of a session hangs it up.
            let (_ours, theirs) = common::terminal();
            command.setsid().descriptor(theirs, 10).controlling_terminal(10).foreground(10);
        });
        if require_syscall("landlock_create_ruleset") {
            let ruleset = Ruleset::default().handle_access(AccessFs::WriteFile).expect("known access rights").create();
            let ruleset = ruleset.and_then(|set| set.add_rules(path_beneath_rules(["/dev"], AccessFs::WriteFile)));
            let ruleset: Option<OwnedFd> = ruleset.expect("a ruleset").into();
            let ruleset = ruleset.expect("this kernel has Landlock");
            assert_parent_unchanged(launcher, "a Landlock domain", |command| { command.no_new_privs().landlock(&ruleset); });
        }
        match Cgroup::new() {
            Some(group) => {
                let dir = File::open(&group.0).expect("own directory");
                assert_parent_unchanged(launcher, "a cgroup", |command| { command.cgroup(&dir); });
            }
            None => skip("no writable cgroup v2"),
        }
    };
    privileged_attributes_leave_the_parent_unchanged [steps under No]: |launcher| {
        if !require_root() {
            return;
        }
        assert_parent_unchanged(launcher, "ids", |command| { command.gid(65534).uid(65534); });
        assert_parent_unchanged(launcher, "groups", |command| { command.groups([4, 5]); });
        assert_parent_unchanged(launcher, "capabilities", |command| {
            command.capabilities(capability_sets([1; 5]));
        });
        assert_parent_unchanged(launcher, "namespaces", |command| {
            command.namespaces(Namespaces::PID | Namespaces::MOUNT | Namespaces::NET | Namespaces::UTS);
        });
        assert_parent_unchanged(launcher, "a user namespace", |command| { command.user_namespace(0, 0); });
        assert_parent_unchanged(launcher, "a root directory", |command| { command.chroot("/"); });
        assert_parent_unchanged(launcher, "an oom score", |command| { command.oom_score_adj(-500); });
        let mut holder = Command::new("/bin/cat");
        holder.stdin(Stdio::Piped).namespaces(Namespaces::UTS | Namespaces::NET).wait_for_exec(true);
        match holder.spawn() {
            Ok(mut holder) => {
                let kinds = (libc::CLONE_NEWUTS | libc::CLONE_NEWNET) as u32;
                assert_parent_unchanged(launcher, "others' namespaces", |command| { command.join_namespace(&holder, kinds); });
                drop(holder.stdin.take());
                common::wait_success(holder);
            }
            Err(error) => skip(&format!("cannot create namespaces: {error}")),
        }
    };
}

/// Asserts that a spawn changes nothing in this process.
fn assert_parent_unchanged<'fd>(launcher: Launcher, what: &str, change: impl Fn(&mut Command<'fd>)) {
    let once = || {
        let mut command = launcher.command("/bin/true");
        command.stdout(Stdio::Null);
        change(&mut command);
        // Some of these commands fail, either in `spawn` or in the wait of an asynchronous child.
        let _ = command.spawn().and_then(|mut child| child.wait());
        drop(command);
        launcher.drop_parked();
    };
    // At its first spawns, the library opens what it keeps: low-numbered sockets, a stack, a page.
    (0..3).for_each(|_| once());
    let _ = State::of_self();
    let before = State::of_self();
    once();
    let mut lines = State::diff(&before, &State::of_self(), &[]);
    // Each `Warm` (owner of parked processes) has a new file, so its inode differs.
    lines.retain(|line| !(launcher.is_warm() && line.starts_with("fds.") && line.contains(".inode: ")));
    // After a failed start, the library replaces the socket that may still contain descriptors for the child.
    let of_socket = |line: &String| {
        let (fd, change) = line.split_once(".target: ")?;
        (change.matches("\"socket:[").count() == 2).then(|| fd.to_owned())
    };
    let sockets: Vec<_> = lines.iter().filter_map(of_socket).collect();
    let is_replaced =
        |line: &str, fd: &str| [".inode: ", ".target: "].iter().any(|key| line.starts_with(&(fd.to_owned() + key)));
    lines.retain(|line| !sockets.iter().any(|fd| is_replaced(line, fd)));
    assert!(lines.is_empty(), "{what} by {launcher:?} changed its caller:\n{}", lines.join("\n"));
}

#[test]
fn a_script_starts_as_by_posix_spawn() {
    isolated!(|| {
        let directory = scratch();
        let script = directory.path().join("script");
        let text = format!("#! {}  an argument \nrest", program("spawnfd-oracle").display());
        std::fs::write(&script, text).expect("own directory");
        set_permissions(&script, Permissions::from_mode(0o755)).expect("own file");
        let theirs = by_posix_spawn(&script);
        assert_eq!(theirs.argv[1..], ["an argument".to_owned(), script.display().to_string()]);
        for launcher in [Launcher::Clone3, Launcher::SeparateMm] {
            let ours = state(launcher.command(&script).stdin(Stdio::Null));
            State::assert_same(&theirs, &ours, &differs(launcher));
        }
    });
}

#[test]
fn inherited_descriptors_equal_those_of_posix_spawn() {
    isolated!(|| {
        let file = File::open("/dev/null").expect("it exists");
        let _kept = [5, 40, 900].map(|number| common::at_number(&file, number));
        let theirs = by_posix_spawn(&program("spawnfd-oracle"));
        assert!([5, 40, 900].iter().all(|number| theirs.fds.contains_key(number)));
        warm_up(Launcher::Clone3);
        let ours = state(Launcher::Clone3.oracle().inherit_descriptors(true));
        State::assert_same(&theirs, &ours, &differs(Launcher::Clone3));
    });
}

#[test]
fn inherited_signals_equal_those_of_a_plain_fork() {
    isolated!(|| {
        let directory = scratch();
        unusual_parent(directory.path());
        let own = State::of_self();
        let mut command = Launcher::Clone3.oracle();
        let child = state(command.inherit_signals());
        assert_eq!(child.signal_mask, own.signal_mask);
        for signal in ["SIGPIPE", "SIGXFSZ", "SIGINT"] {
            assert_eq!(child.dispositions.get(signal), own.dispositions.get(signal), "{signal}");
        }
        for signal in ["SIGTERM", "SIGSEGV", "SIGCHLD"] {
            assert_ne!(child.dispositions.get(signal), own.dispositions.get(signal), "{signal}");
        }
    });
}

#[test]
fn arguments_arrive_unchanged() {
    isolated!(|| {
        let long = "x".repeat(100_000);
        let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
        for launcher in [Launcher::Clone3, Launcher::SeparateMm, Launcher::ByDescriptor] {
            let mut command = launcher.oracle();
            command.arg0("").args(["", "a b", "ü", "\t\n", &long]).args(&many).env_clear().env("A", "").env("B", "=");
            let child = state(&mut command);
            assert_eq!(child.argv[..6], ["", "", "a b", "ü", "\t\n", &long]);
            assert_eq!(child.argv[6..], many);
            assert_eq!(child.environ, ["A=", "B=="]);
        }
        let raw: CString = CString::new([0xff, 0xfe]).expect("no NUL");
        let raw = std::os::unix::ffi::OsStrExt::from_bytes(raw.as_bytes());
        let raw: &std::ffi::OsStr = raw;
        assert_eq!(state(Launcher::Clone3.oracle().arg(raw)).argv[1], "bytes:\\xff\\xfe");
    });
}
