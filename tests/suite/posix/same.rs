// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of requests. Both implementations serve each request in each confinement of the calling thread.

use std::ffi::{CString, c_int};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use spawnfd_tests::{Confined, State, copy_of_program, isolated, scratch, skip};

use crate::c::Interface;
use crate::confinements::{CONFINEMENTS, ThreadConfinement};
use crate::implementation::{Action, Request, answer, at_number, libc, null, oracle, ours};

/// Differences that are not those of the implementations: each process has a pid of its own, and glibc before 2.38
/// ignores its internal signals 32 and 33 in the child.
pub const IGNORED: &[&str] = &[
    "pid",
    "pgid",
    "sid",
    "at_random",
    "dispositions.SIG32",
    "dispositions.SIG33",
    "sigactions.SIG32",
    "sigactions.SIG33",
    "namespaces.pid_for_children",
];

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

fn open(fd: c_int, path: &str, flags: c_int) -> Action {
    Action::Open { fd, path: CString::new(path).expect("no NUL"), flags, mode: 0o600 }
}

/// Requests by name. `directory` has the oracle, and a few files with other properties.
fn requests(program: &Path, directory: &Path) -> Vec<(&'static str, Request)> {
    let new = || oracle(program);
    let text = |name: &str| path(&directory.join(name));
    let searched = |file: &str| {
        let mut request = Request { search: true, file: CString::new(file).expect("no NUL"), ..new() };
        request.args[0] = request.file.clone();
        request
    };
    let blocked = |signals: &[c_int]| Request { blocked_signals: signals.to_vec(), ..new() };
    let defaults = |signals: &[c_int]| Request { default_signals: signals.to_vec(), ..new() };
    let grouped = |group| Request { group, ..new().flags(libc::POSIX_SPAWN_SETPGROUP) };
    let scheduled = |policy, priority| Request { scheduler: (policy, priority), ..new() };
    vec![
        ("plain", new()),
        ("usevfork", new().flags(libc::POSIX_SPAWN_USEVFORK.into())),
        ("new_group", grouped(0)),
        ("missing_group", grouped(c_int::MAX)),
        ("negative_group", grouped(-1)),
        ("setsid", new().flags(libc::POSIX_SPAWN_SETSID.into())),
        ("setsid_and_group", grouped(0).flags(libc::POSIX_SPAWN_SETSID.into())),
        ("resetids", new().flags(libc::POSIX_SPAWN_RESETIDS)),
        ("mask", blocked(&[libc::SIGUSR1, libc::SIGTERM]).flags(libc::POSIX_SPAWN_SETSIGMASK)),
        ("mask_without_flag", blocked(&[libc::SIGUSR1])),
        ("defaults", defaults(&[libc::SIGUSR2, libc::SIGPIPE]).flags(libc::POSIX_SPAWN_SETSIGDEF)),
        ("default_kill", defaults(&[libc::SIGKILL, libc::SIGSTOP, 64]).flags(libc::POSIX_SPAWN_SETSIGDEF)),
        ("param", scheduled(libc::SCHED_OTHER, 0).flags(libc::POSIX_SPAWN_SETSCHEDPARAM)),
        ("invalid_param", scheduled(libc::SCHED_OTHER, 5).flags(libc::POSIX_SPAWN_SETSCHEDPARAM)),
        ("other", scheduled(libc::SCHED_OTHER, 0).flags(libc::POSIX_SPAWN_SETSCHEDULER)),
        ("round_robin", scheduled(libc::SCHED_RR, 2).flags(libc::POSIX_SPAWN_SETSCHEDULER)),
        ("dup2", new().action(Action::Dup2(0, 7))),
        ("dup2_of_close_on_exec", new().action(Action::Dup2(30, 31))),
        ("dup2_same_number", new().action(Action::Dup2(30, 30))),
        ("dup2_closed", new().action(Action::Dup2(29, 1))),
        ("dup2_same_closed", new().action(Action::Dup2(29, 29))),
        ("dup2_negative", new().action(Action::Dup2(-1, 1))),
        ("dup2_too_high", new().action(Action::Dup2(0, 1 << 30))),
        ("close", new().action(Action::Close(40))),
        ("close_twice", new().action(Action::Close(40)).action(Action::Close(40))),
        ("close_negative", new().action(Action::Close(-1))),
        ("close_too_high", new().action(Action::Close(1 << 30))),
        ("open", new().action(open(0, "/dev/zero", libc::O_RDONLY))),
        ("open_close_on_exec", new().action(open(9, "/dev/zero", libc::O_RDWR | libc::O_CLOEXEC))),
        ("open_lowest", new().action(Action::Close(0)).action(open(0, "/dev/zero", libc::O_WRONLY))),
        ("open_missing", new().action(open(0, "/dev/missing", libc::O_RDONLY))),
        ("open_exclusive", new().action(open(0, "/dev/null", libc::O_RDWR | libc::O_CREAT | libc::O_EXCL))),
        ("open_negative", new().action(open(-5, "/dev/null", libc::O_RDONLY))),
        ("open_descriptor", new().action(open(5, "/proc/self/fd/40", libc::O_RDONLY))),
        ("chdir", new().action(Action::Chdir(c"/dev".to_owned())).action(open(3, "null", libc::O_RDONLY))),
        ("chdir_missing", new().action(Action::Chdir(c"/missing".to_owned()))),
        ("chdir_file", new().action(Action::Chdir(c"/dev/null".to_owned()))),
        ("fchdir", new().action(Action::Fchdir(41))),
        ("fchdir_file", new().action(Action::Fchdir(40))),
        ("fchdir_closed", new().action(Action::Fchdir(29))),
        ("fchdir_negative", new().action(Action::Fchdir(-1))),
        ("closefrom_high", new().action(Action::Closefrom(601))),
        ("closefrom_keeps_the_answer", new().action(Action::Dup2(600, 3)).action(Action::Closefrom(4)).to(3)),
        (
            "open_before_closefrom",
            new()
                .action(open(0, "/dev/zero", libc::O_RDONLY))
                .action(Action::Dup2(600, 3))
                .action(Action::Closefrom(4))
                .action(open(8, "/dev/null", libc::O_RDONLY))
                .to(3),
        ),
        (
            "closefrom_after_a_link",
            new()
                .action(open(5, &directory.join("link").to_string_lossy(), libc::O_RDONLY))
                .action(Action::Dup2(600, 3))
                .action(Action::Closefrom(10))
                .to(3),
        ),
        (
            "closefrom_and_missing_path",
            new().action(open(0, "/dev/missing", libc::O_RDONLY)).action(Action::Closefrom(4)),
        ),
        ("closefrom_negative", new().action(Action::Closefrom(-1))),
        ("terminal", new().action(Action::Tcsetpgrp(40))),
        ("terminal_negative", new().action(Action::Tcsetpgrp(-1))),
        ("missing", Request::new("/missing/program")),
        ("directory", Request::new("/dev")),
        ("file_without_permission", Request { file: text("plain"), ..new() }),
        ("unknown_format", Request { file: text("unknown"), ..new() }),
        ("missing_interpreter", Request { file: text("script"), ..new() }),
        ("empty_name", Request { file: c"".to_owned(), ..new() }),
        ("name_too_long", Request { file: CString::new("x".repeat(300)).expect("no NUL"), ..new() }),
        ("searched", searched("spawnfd-oracle")),
        ("searched_path", Request { search: true, ..new() }),
        ("searched_missing", searched("spawnfd-missing")),
        ("searched_without_permission", searched("plain")),
        ("searched_unknown_format", searched("unknown")),
        ("searched_empty", searched("")),
        ("searched_too_long", searched(&"x".repeat(300))),
    ]
}

impl Request {
    /// The oracle prints to this descriptor.
    fn to(mut self, fd: c_int) -> Request {
        self.args[2] = CString::new(fd.to_string()).expect("no NUL");
        self
    }
}

/// Prepares a directory with the oracle and some files, and returns the oracle's path.
fn prepare(directory: &Path) -> std::path::PathBuf {
    let program = copy_of_program("spawnfd-oracle", directory);
    let file = |name: &str, contents: &str, mode| {
        fs::write(directory.join(name), contents).expect("own directory");
        fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).expect("own file");
    };
    file("plain", "", 0o644);
    file("unknown", "exit 7\n", 0o755);
    file("script", "#!/missing/interpreter\n", 0o755);
    std::os::unix::fs::symlink("/proc/self/fd/40", directory.join("link")).expect("own directory");
    program
}

/// Serves each request by both implementations, and compares what they give.
fn compare(what: &str, requests: &[(&'static str, Request)]) {
    for (name, request) in requests {
        let shown = |state: &Result<State, c_int>| state.as_ref().map(|_| "a child").map_err(|errno| *errno);
        let (theirs, ours) = (request.state(libc()), request.state(ours()));
        match (&theirs, &ours) {
            (Ok(theirs), Ok(ours)) => {
                let differences = State::diff(theirs, ours, IGNORED);
                assert!(differences.is_empty(), "{what}, {name}:\n  {}", differences.join("\n  "));
            }
            _ => assert_eq!(shown(&theirs), shown(&ours), "{what}, {name}: libc, ours"),
        }
    }
}

/// Opens the descriptors that the requests name, and makes signals differ from their defaults.
fn with_caller_state(body: impl FnOnce(&[(&'static str, Request)])) {
    // A confined thread may not open the file.
    answer();
    let directory = scratch();
    let program = prepare(directory.path());
    let requests = requests(&program, directory.path());
    // SAFETY: this isolated process has no other threads that use the environment or these signals.
    unsafe {
        libc::signal(libc::SIGUSR2, libc::SIG_IGN);
        libc::signal(libc::SIGHUP, handler as *const () as libc::sighandler_t);
        let searched = format!("/missing:/dev/null:{}:", directory.path().display());
        std::env::set_var("PATH", searched);
    }
    let (null, here) = (null(), fs::File::open(directory.path()).expect("own directory"));
    let _open = (at_number(&null, 40), at_number(&here, 41), at_number(&null, 63));
    let hidden = at_number(&null, 30);
    // SAFETY: the call changes the flags of a descriptor of this function.
    assert_eq!(unsafe { libc::fcntl(30, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    body(&requests);
    drop(hidden);
}

extern "C" fn handler(_signal: c_int) {}

macro_rules! profiles {
    ($($name:ident $confined:ident;)*) => { $(
        #[test]
        fn $name() {
            isolated!(under: Confined::$confined, || with_caller_state(|requests| compare(stringify!($name), requests)));
        }
    )* };
}

profiles! {
    children_equal_those_of_libc No;
    children_equal_those_of_libc_under_docker Docker;
    children_equal_those_of_libc_as_user User;
}

/// The requests that are served in each confinement of a thread.
const CHOSEN: [&str; 9] = [
    "plain",
    "setsid",
    "resetids",
    "mask",
    "defaults",
    "round_robin",
    "open_before_closefrom",
    "closefrom_after_a_link",
    "searched",
];

/// Starts the same program by each interface of the C library, and compares its state with that of a child of libc.
fn compare_interfaces(what: &str, plain: &Request) {
    let expected = plain.state(libc()).expect("starts");
    for interface in Interface::ALL {
        let state = plain.state_by(interface).unwrap_or_else(|errno| panic!("{what}, {interface:?}: errno {errno}"));
        // A template executes an open descriptor, as the RFC does. spawn_template_spawn(2) says so.
        let own: &[&str] = if interface == Interface::Template { &["at_execfn"] } else { &[] };
        let differences = State::diff(&expected, &state, &[IGNORED, own].concat());
        assert!(differences.is_empty(), "{what}, {interface:?}:\n  {}", differences.join("\n  "));
    }
}

#[test]
fn confined_threads_get_the_same_children() {
    isolated!(|| with_caller_state(|requests| {
        let requests: Vec<_> = requests.iter().filter(|(name, _)| CHOSEN.contains(name)).cloned().collect();
        assert_eq!(requests.len(), CHOSEN.len());
        for ThreadConfinement { name, apply, .. } in CONFINEMENTS {
            let body = || {
                let confined = apply();
                if confined {
                    compare(name, &requests);
                    compare_interfaces(name, &requests[0].1);
                }
                confined
            };
            let confined = std::thread::scope(|scope| scope.spawn(body).join().expect("the assertions hold"));
            if !confined {
                skip(&format!("{name}: refused here"));
            }
        }
    }));
}
