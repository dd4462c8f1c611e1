// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the child, for random lists of actions. The model predicts the child's
//! final state, or the action that fails and its errno. The lists are those of the core, and of the builder in C.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spawnfd::error::Errno;
use spawnfd_tests::State;

use crate::common;

/// The number of files among the caller's sources (descriptors to pass).
pub const SOURCES: usize = 6;

#[derive(Clone, Debug)]
pub enum Action {
    Place { source: usize, to: i32 },
    Dup2 { from: i32, to: i32 },
    Close { fd: i32 },
    CloseRange { first: u32, last: u32 },
    Open { path: usize, to: i32 },
    Chdir { path: usize },
    Fchdir { source: usize },
    Umask { mask: u32 },
    Setsid,
    Setpgid,
    Nice { nice: i32 },
    CoreLimit { soft: u64, hard: u64 },
}

/// Paths, and the result of opening each.
pub const PATHS: [(&str, Result<(), Errno>); 4] = [
    ("/dev/null", Ok(())),
    ("/dev/zero", Ok(())),
    ("/dev/nothing", Err(Errno::ENOENT)),
    ("/dev/null/below", Err(Errno::ENOTDIR)),
];

/// A path that exists in /dev only. In `Action::Open`, its index follows the indices of PATHS.
pub const RELATIVE: &str = "zero";

/// Directories, and the result of changing to each.
pub const DIRECTORIES: [(&str, Result<(), Errno>); 4] =
    [("/", Ok(())), ("/dev", Ok(())), ("/nowhere", Err(Errno::ENOENT)), ("/dev/null", Err(Errno::ENOTDIR))];

/// Descriptor numbers near the standard streams, near the numbers at which sources arrive, and far
/// above.
fn number() -> impl Strategy<Value = i32> {
    prop_oneof![6 => 0..12_i32, 3 => 12..40_i32, 1 => prop_oneof![Just(255), Just(256), Just(1000), Just(15_000)]]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..SOURCES, number()).prop_map(|(source, to)| Action::Place { source, to }),
        3 => (prop_oneof![4 => 0..3_i32, 1 => number()], number()).prop_map(|(from, to)| Action::Dup2 { from, to }),
        2 => number().prop_map(|fd| Action::Close { fd }),
        1 => (0..40_u32, prop_oneof![Just(u32::MAX), 0..60_u32])
            .prop_map(|(first, last)| Action::CloseRange { first, last: last.max(first) }),
        2 => (prop_oneof![8 => 0..2_usize, 1 => 2..4_usize, 2 => Just(PATHS.len())], number())
            .prop_map(|(path, to)| Action::Open { path, to }),
        2 => prop_oneof![8 => 0..2_usize, 1 => 2..4_usize].prop_map(|path| Action::Chdir { path }),
        1 => prop_oneof![6 => Just(SOURCES), 1 => 0..SOURCES].prop_map(|source| Action::Fchdir { source }),
        1 => (0..=0o777_u32).prop_map(|mask| Action::Umask { mask }),
        1 => prop_oneof![Just(Action::Setsid), Just(Action::Setpgid)],
        1 => (15..=19).prop_map(|nice| Action::Nice { nice }),
        1 => (0..3_u64, 0..3_u64).prop_map(|(soft, more)| Action::CoreLimit { soft, hard: soft + more }),
    ]
}

/// The device and inode of the file at each descriptor number.
pub type Table = BTreeMap<i32, (u64, u64)>;

/// The state of a child that the actions change.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub table: Table,
    pub directory: String,
    pub umask: u32,
    pub leads: Leads,
    pub nice: i32,
    pub core: (u64, u64),
    pub blocked: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Leads {
    Nothing,
    Group,
    Session,
}

pub struct Files {
    /// The last source is a directory.
    pub sources: Vec<File>,
    pub directory: String,
    pub opened: [(u64, u64); 2],
    /// The state of a child without actions.
    pub plain: Seen,
    /// True if the caller has CAP_SYS_NICE, and true if it has CAP_SYS_RESOURCE.
    pub may: [bool; 2],
}

fn identity(file: &File) -> (u64, u64) {
    let file = file.metadata().expect("open");
    (file.dev(), file.ino())
}

/// Returns the child's final state, or the first action that fails in the child.
///
/// With `callers`, the actions are those of a builder. They also find these descriptors, which exec closes.
pub fn expected(files: &Files, callers: Option<&Table>, actions: &[Action]) -> Outcome {
    let (mut child, mut callers) = (files.plain.clone(), callers.cloned());
    for (index, action) in actions.iter().enumerate() {
        apply(files, &mut child, callers.as_mut(), action).map_err(|errno| (index, errno))?;
    }
    Ok(child)
}

fn apply(files: &Files, child: &mut Seen, callers: Option<&mut Table>, action: &Action) -> Result<(), Errno> {
    let refused_unless = |granted: bool, errno| if granted { Ok(()) } else { Err(errno) };
    let [sys_nice, sys_resource] = files.may;
    match *action {
        Action::Place { source, to } => drop(child.table.insert(to, identity(&files.sources[source]))),
        Action::Dup2 { from, to } => {
            let placed = child.table.get(&from);
            let file = *placed.or_else(|| callers?.get(&from)).ok_or(Errno::EBADF)?;
            child.table.insert(to, file);
        }
        Action::Close { fd } => {
            for table in [Some(&mut child.table), callers].into_iter().flatten() {
                table.remove(&fd);
            }
        }
        Action::CloseRange { first, last } => {
            for table in [Some(&mut child.table), callers].into_iter().flatten() {
                table.retain(|&fd, _| !(first..=last).contains(&(fd as u32)));
            }
        }
        Action::Open { path, to } => {
            let opened = match PATHS.get(path) {
                Some((_, outcome)) => outcome.map(|()| path),
                None => refused_unless(child.directory == "/dev", Errno::ENOENT).map(|()| 1),
            };
            child.table.insert(to, files.opened[opened?]);
        }
        Action::Chdir { path } => {
            DIRECTORIES[path].1?;
            child.directory = DIRECTORIES[path].0.to_owned();
        }
        Action::Fchdir { source } => {
            let is_open = callers.is_none_or(|callers| callers.contains_key(&kept(source)));
            refused_unless(is_open, Errno::EBADF)?;
            refused_unless(source == SOURCES, Errno::ENOTDIR)?;
            child.directory.clone_from(&files.directory);
        }
        Action::Umask { mask } => child.umask = mask,
        Action::Setsid => {
            refused_unless(child.leads == Leads::Nothing, Errno::EPERM)?;
            child.leads = Leads::Session;
        }
        Action::Setpgid => {
            refused_unless(child.leads != Leads::Session, Errno::EPERM)?;
            child.leads = Leads::Group;
        }
        Action::Nice { nice } => {
            refused_unless(sys_nice || nice >= child.nice, Errno::EACCES)?;
            child.nice = nice;
        }
        Action::CoreLimit { soft, hard } => {
            refused_unless(sys_resource || hard <= child.core.1, Errno::EPERM)?;
            child.core = (soft, hard);
        }
    }
    Ok(())
}

/// The state that the oracle has printed.
pub fn answer(text: &str) -> Seen {
    let json: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(json["fds"].as_object().expect("an object").values().all(|fd| fd["cloexec"] == false), "{text}");
    let mut seen = seen(&json);
    seen.table.remove(&ANSWER);
    seen
}

/// The fields that the oracle prints.
pub const FIELDS: &str = "fds,cwd,umask,pid,pgid,sid,nice,rlimits,signal_mask";

fn seen(json: &serde_json::Value) -> Seen {
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let entry = |(fd, file): (&String, &serde_json::Value)| {
        (fd.parse().expect("a number"), (number(&file["device"]), number(&file["inode"])))
    };
    let is_pid = |field: &str| json[field] == json["pid"];
    let core = &json["rlimits"]["core"];
    Seen {
        table: json["fds"].as_object().expect("an object").iter().map(entry).collect(),
        directory: text(&json["cwd"]["path"]),
        umask: u32::from_str_radix(&text(&json["umask"]), 8).expect("octal"),
        leads: match (is_pid("sid"), is_pid("pgid")) {
            (true, _) => Leads::Session,
            (false, leads) => {
                if leads {
                    Leads::Group
                } else {
                    Leads::Nothing
                }
            }
        },
        nice: json["nice"].as_i64().expect("a number") as i32,
        core: (number(&core["soft"]), number(&core["hard"])),
        blocked: json["signal_mask"].as_array().expect("a list").iter().map(text).collect(),
    }
}

pub const ANSWER: i32 = 18_000;

/// The files of a test in `directory`, which is empty.
pub fn files_in(directory: &Path) -> Files {
    let make = |number: usize| {
        let path = directory.join(number.to_string());
        std::fs::write(&path, "").expect("own directory");
        File::open(path).expect("own file")
    };
    let path = std::fs::canonicalize(directory).expect("own directory");
    let open = |number: i32| File::open(format!("/proc/self/fd/{number}")).expect("open");
    let [null, zero] = ["/dev/null", "/dev/zero"].map(|path| identity(&File::open(path).expect("it exists")));
    let own = serde_json::to_value(State::of_self()).expect("a state");
    let may = |name: &str| own["capabilities"]["effective"].as_array().expect("a list").contains(&name.into());
    Files {
        sources: (0..SOURCES).map(make).chain([File::open(&path).expect("own directory")]).collect(),
        directory: path.into_os_string().into_string().expect("text"),
        opened: [null, zero],
        plain: Seen {
            table: [(0, null), (1, identity(&open(1))), (2, identity(&open(2)))].into(),
            leads: Leads::Nothing,
            blocked: Vec::new(),
            ..seen(&own)
        },
        may: ["sys_nice", "sys_resource"].map(may),
    }
}

/// The number at which the caller of a builder keeps a source. No action changes it, but a range may close it.
pub fn kept(source: usize) -> i32 {
    5000 + source as i32
}

/// A child's state, or the action that failed and its errno.
pub type Outcome = Result<Seen, (usize, Errno)>;

/// Calls `check` with random lists of actions and a signal to block. It returns the wanted and the observed outcome; the
/// wanted one without the signal.
pub fn check_lists(check: impl Fn(Vec<Action>, i32) -> (Outcome, Outcome)) {
    let cases = u32::try_from(common::rounds(800)).expect("few");
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let lists = proptest::collection::vec(action(), 0..16);
    let blocked = prop_oneof![Just(("SIGHUP", libc::SIGHUP)), Just(("SIGUSR2", libc::SIGUSR2))];
    let outcome = runner.run(&(lists, blocked), |(actions, (name, blocked))| {
        let (wanted, observed) = check(actions, blocked);
        prop_assert_eq!(observed, wanted.map(|seen| Seen { blocked: vec![name.to_owned()], ..seen }));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
