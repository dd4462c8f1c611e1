// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builder in C, compared with the model.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use spawnfd::error::Errno;
use spawnfd_capi::builder as capi;
use spawnfd_tests::{isolated, program, scratch};

use crate::common;
use crate::model::{
    ANSWER, Action, DIRECTORIES, FIELDS, Outcome, PATHS, RELATIVE, SOURCES, Table, answer, check_lists, expected,
    files_in, kept,
};

#[test]
fn children_match_the_model_by_builder() {
    isolated!(limit: std::time::Duration::from_secs(1200), || {
        let path = program("spawnfd-oracle").into_os_string().into_encoded_bytes();
        check(&Program::Path(CString::new(path).expect("no NUL")));
    });
}

#[test]
fn children_match_the_model_by_builder_and_descriptor() {
    isolated!(limit: std::time::Duration::from_secs(1200), || {
        check(&Program::Descriptor(File::open(program("spawnfd-oracle")).expect("it exists").into()));
    });
}

fn check(program: &Program) {
    let directory = scratch();
    let files = files_in(directory.path());
    let _kept: Vec<OwnedFd> =
        (0..=SOURCES).map(|source| common::at_number(&files.sources[source], kept(source))).collect();
    // The first run may open descriptors that the library keeps.
    observed(program, &[], libc::SIGHUP).1.expect("starts");
    check_lists(|actions, blocked| {
        let actions: Vec<Action> = actions.into_iter().map(for_builder).collect();
        let (callers, observed) = observed(program, &actions, blocked);
        (expected(&files, Some(&callers), &actions), observed)
    });
}

/// The action of a builder that stands for this action: a builder's actions find the sources at the caller's numbers.
/// No range closes ANSWER.
fn for_builder(action: Action) -> Action {
    match action {
        Action::Place { source, to } => Action::Dup2 { from: kept(source), to },
        Action::CloseRange { first, last } => Action::CloseRange { first, last: last.min(ANSWER as u32 - 1) },
        action => action,
    }
}

/// The caller's descriptors during a run of the builder, and the run's outcome.
fn observed(program: &Program, actions: &[Action], blocked: i32) -> (Table, Outcome) {
    fn address<T: ?Sized>(value: &T) -> u64 {
        (&raw const *value).cast::<u8>().expose_provenance() as u64
    }
    let (mut reader, pipe) = common::pipe();
    let writer = common::at_number(&pipe, ANSWER);
    drop(pipe);
    let paths: Vec<CString> = PATHS.iter().map(|(path, _)| *path).chain([RELATIVE]).map(c_string).collect();
    let opens: Vec<capi::SpawnOpen> = paths
        .iter()
        .map(|path| capi::SpawnOpen {
            path: address(path.as_c_str()),
            how_size: size_of::<capi::OpenHow>() as u64,
            how: capi::OpenHow::default(),
        })
        .collect();
    let directories = DIRECTORIES.map(|(path, _)| c_string(path));
    let limits: Vec<[u64; 2]> = actions
        .iter()
        .map(|action| if let Action::CoreLimit { soft, hard } = *action { [soft, hard] } else { [0; 2] })
        .collect();
    let mask = 1_u64 << (blocked - 1);
    let mask = capi::SpawnSigset { sigset: address(&mask), sigsetsize: 8 };
    let plain = |kind, fd, newfd, arg| capi::SpawnAction { r#type: kind, fd, newfd, arg, ..Default::default() };
    let with_limits = actions.iter().zip(&limits);
    let translated = with_limits.map(|(action, limits)| match *action {
        Action::Place { .. } => unreachable!("no action of a builder"),
        Action::Dup2 { from, to } => plain(capi::SPAWN_ACTION_DUP2, from, to, 0),
        Action::Close { fd } => plain(capi::SPAWN_ACTION_CLOSE, fd, 0, 0),
        Action::CloseRange { first, last } => plain(capi::SPAWN_ACTION_CLOSE_RANGE, first as i32, last as i32, 0),
        Action::Open { path, to } => plain(capi::SPAWN_ACTION_OPEN, libc::AT_FDCWD, to, address(&opens[path])),
        Action::Chdir { path } => plain(capi::SPAWN_ACTION_CHDIR, 0, 0, address(directories[path].as_c_str())),
        Action::Fchdir { source } => plain(capi::SPAWN_ACTION_FCHDIR, kept(source), 0, 0),
        Action::Umask { mask } => plain(capi::SPAWN_ACTION_UMASK, mask as i32, 0, 0),
        Action::Setsid => plain(capi::SPAWN_ACTION_SETSID, 0, 0, 0),
        Action::Setpgid => plain(capi::SPAWN_ACTION_SETPGID, 0, 0, 0),
        Action::Nice { nice } => plain(capi::SPAWN_ACTION_NICE, nice, 0, 0),
        Action::CoreLimit { .. } => plain(capi::SPAWN_ACTION_RLIMIT, libc::RLIMIT_CORE as i32, 0, address(limits)),
    });
    // The caller has ANSWER close-on-exec or not; the copy is not close-on-exec.
    let before = [
        plain(capi::SPAWN_ACTION_OPEN, libc::AT_FDCWD, 0, address(&opens[0])),
        plain(capi::SPAWN_ACTION_DUP2, ANSWER, ANSWER, 0),
        plain(capi::SPAWN_ACTION_SIGMASK, 0, 0, address(&mask)),
    ];
    let all: Vec<capi::SpawnAction> = before.into_iter().chain(translated).collect();
    let fields = c_string(FIELDS);
    let argv = [c"spawnfd-oracle", c"--to", c"18000", c"--fields", &fields].map(CStr::as_ptr);
    let argv: Vec<*const libc::c_char> = argv.into_iter().chain([std::ptr::null()]).collect();
    let mut args = capi::SpawnArgs {
        nr_actions: all.len() as u32,
        actions: address(&*all),
        action_size: size_of::<capi::SpawnAction>() as u32,
        ..Default::default()
    };
    let builder = capi::spawnfd_builder_open(0);
    // SAFETY: `builder` is new.
    let builder = unsafe { OwnedFd::from_raw_fd(builder) };
    let config = |command, key, value: *const libc::c_void, aux| {
        // SAFETY: the callers below pass a string, a list of strings, or NULL.
        let outcome = unsafe { capi::spawnfd_builder_config(builder.as_raw_fd(), command, key, value, aux) };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    };
    match program {
        Program::Path(path) => {
            config(capi::PIDFD_CONFIG_SET_STRING, capi::PIDFD_CONFIG_KEY_PATH, path.as_ptr().cast(), 0)
        }
        Program::Descriptor(file) => {
            config(capi::PIDFD_CONFIG_SET_FD, capi::PIDFD_CONFIG_KEY_EXEC_FD, std::ptr::null(), file.as_raw_fd());
        }
    }
    config(capi::PIDFD_CONFIG_SET_STRINGS, capi::PIDFD_CONFIG_KEY_ARGV, argv.as_ptr().cast(), 0);
    let callers = own_table();
    // SAFETY: the actions and their data outlive the call.
    let pidfd = unsafe { capi::spawnfd_builder_run(builder.as_raw_fd(), &raw mut args, size_of_val(&args)) };
    if pidfd < 0 {
        let errno = Errno::from_raw(std::io::Error::last_os_error().raw_os_error().expect("an errno"));
        let index = usize::try_from(args.failed).ok().and_then(|failed| failed.checked_sub(before.len()));
        return (callers, Err((index.unwrap_or_else(|| panic!("{}: {errno:?}", args.failed)), errno)));
    }
    drop(writer);
    // SAFETY: the run has returned a new descriptor.
    let _pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let text = std::io::read_to_string(&mut reader).expect("own pipe");
    let mut status = 0;
    // SAFETY: waitpid writes the status of this process's child to `status`.
    assert_eq!(unsafe { libc::waitpid(args.pid, &raw mut status, 0) }, args.pid);
    assert_eq!(status, 0);
    (callers, Ok(answer(&text)))
}

/// The program of a builder.
enum Program {
    Path(CString),
    Descriptor(OwnedFd),
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

/// The caller's descriptors above 2, and their files.
fn own_table() -> Table {
    let numbers = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let numbers: Vec<i32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let entry = |number: i32| {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat writes to `stat`, or fails because the number is closed: that of the list itself.
        let stat = unsafe { (libc::fstat(number, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) };
        stat.map(|stat| (number, (stat.st_dev, stat.st_ino)))
    };
    numbers.into_iter().filter(|&number| number > 2).filter_map(entry).collect()
}
