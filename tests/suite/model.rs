// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of descriptor actions against a model of the child's table: what the child has, and which action fails with what.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use common::Launcher;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spawnfd::{Command, Errno, OpenHow, Stage, Stdio, Template};
use spawnfd_tests::{isolated_within, program, scratch};

/// Files of the caller's to hand over.
const SOURCES: usize = 6;

#[derive(Clone, Debug)]
enum Action {
    Place { source: usize, to: i32 },
    Dup2 { from: i32, to: i32 },
    Close { fd: i32 },
    CloseRange { first: u32, last: u32 },
    Open { path: usize, to: i32 },
}

/// Paths, and what opening them gives.
const PATHS: [(&str, Result<(), Errno>); 4] = [
    ("/dev/null", Ok(())),
    ("/dev/zero", Ok(())),
    ("/dev/nothing", Err(Errno::ENOENT)),
    ("/dev/null/below", Err(Errno::ENOTDIR)),
];

/// Numbers around the standard ones, around where sources arrive, and far away.
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
        2 => (prop_oneof![8 => 0..2_usize, 1 => 2..4_usize], number()).prop_map(|(path, to)| Action::Open { path, to }),
    ]
}

/// Device and inode by number.
type Table = BTreeMap<i32, (u64, u64)>;

struct Files {
    sources: Vec<File>,
    opened: [(u64, u64); 2],
    standard: Table,
}

fn identity(file: &File) -> (u64, u64) {
    let file = file.metadata().expect("open");
    (file.dev(), file.ino())
}

/// The table the child has in the end, or the action that fails.
fn expected(files: &Files, actions: &[Action]) -> Result<Table, (usize, Errno)> {
    let mut table = files.standard.clone();
    for (index, action) in actions.iter().enumerate() {
        match *action {
            Action::Place { source, to } => drop(table.insert(to, identity(&files.sources[source]))),
            Action::Dup2 { from, to } => match table.get(&from) {
                Some(&file) => drop(table.insert(to, file)),
                None => return Err((index, Errno::EBADF)),
            },
            Action::Close { fd } => drop(table.remove(&fd)),
            Action::CloseRange { first, last } => table.retain(|&fd, _| !(first..=last).contains(&(fd as u32))),
            Action::Open { path, to } => {
                PATHS[path].1.map_err(|errno| (index, errno))?;
                table.insert(to, files.opened[path]);
            }
        }
    }
    Ok(table)
}

/// Where a failure that can be seen beforehand comes after one that cannot, the former is reported: all is validated first.
fn foreseen(files: &Files, actions: &[Action]) -> Option<(usize, Errno)> {
    let mut provided: BTreeMap<i32, (u64, u64)> = files.standard.clone();
    for (index, action) in actions.iter().enumerate() {
        match *action {
            Action::Place { to, .. } | Action::Open { to, .. } => drop(provided.insert(to, (0, 0))),
            Action::Dup2 { from, .. } if from > 2 && !provided.contains_key(&from) => {
                return Some((index, Errno::EBADF));
            }
            Action::Dup2 { to, .. } => drop(provided.insert(to, (0, 0))),
            Action::Close { fd } => drop(provided.remove(&fd)),
            Action::CloseRange { first, last } => provided.retain(|&fd, _| !(first..=last).contains(&(fd as u32))),
        }
    }
    None
}

/// The table a child prints by way of standard output, which is kept in 18,000 for it.
fn observed(
    launcher: Launcher,
    template: &Template,
    files: &Files,
    actions: &[Action],
) -> Result<Table, (usize, Errno)> {
    let mut command: Command<'_> = template.command();
    command.stdin(Stdio::Null);
    let (mut reader, writer) = common::pipe();
    for action in actions {
        match *action {
            Action::Place { source, to } => command.descriptor(&files.sources[source], to),
            Action::Dup2 { from, to } => command.dup2(from, to),
            Action::Close { fd } => command.close(fd),
            Action::CloseRange { first, last } => command.close_range(first, last),
            Action::Open { path, to } => command.open(PATHS[path].0, OpenHow::READ, to),
        };
    }
    // Standard output may be anything by now: the answer goes where no action reaches.
    command.descriptor(&writer, ANSWER).args(["--to", "18000", "--fields", "fds"]);
    launcher.prepare(&mut command);
    match command.spawn() {
        Ok(mut child) => {
            drop(command);
            drop(writer);
            let text = std::io::read_to_string(&mut reader).expect("own pipe");
            assert!(child.wait().expect("own child").success());
            let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            let fds = json["fds"].as_object().expect("an object");
            let entry = |(number, fd): (&String, &serde_json::Value)| {
                assert_eq!(fd["cloexec"], false);
                let field = |name: &str| fd[name].as_u64().expect("a number");
                (number.parse().expect("a number"), (field("device"), field("inode")))
            };
            Ok(fds.iter().map(entry).filter(|(number, _)| *number != ANSWER).collect())
        }
        Err(error) => match error.stage() {
            Stage::Action(index) => Err((index, error.errno())),
            stage => panic!("{stage:?}: {error}"),
        },
    }
}

const ANSWER: i32 = 18_000;

fn agrees(launcher: Launcher) {
    launcher.enter();
    let directory = scratch();
    let make = |number: usize| {
        let path = directory.path().join(number.to_string());
        std::fs::write(&path, "").expect("own directory");
        File::open(path).expect("own file")
    };
    let open = |number: i32| File::open(format!("/proc/self/fd/{number}")).expect("open");
    let null = identity(&File::open("/dev/null").expect("there"));
    let files = Files {
        sources: (0..SOURCES).map(make).collect(),
        opened: [null, identity(&File::open("/dev/zero").expect("there"))],
        standard: [(0, null), (1, identity(&open(1))), (2, identity(&open(2)))].into(),
    };
    // What is the caller's, high and low, must not show.
    let _foreign = [25, 26, 300, 1000].map(|number| common::at_number(&files.sources[0], number));
    assert!(files.sources.iter().all(|file| file.as_raw_fd() < 25));
    let template = launcher.template(program("spawnfd-oracle"));
    let cases = u32::try_from(common::rounds(800)).expect("few");
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let lists = proptest::collection::vec(action(), 0..16);
    let outcome = runner.run(&lists, |actions| {
        let wanted = match foreseen(&files, &actions) {
            Some(failure) => Err(failure),
            None => expected(&files, &actions),
        };
        prop_assert_eq!(observed(launcher, &template, &files, &actions), wanted);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

macro_rules! models {
    ($($name:ident $launcher:ident;)*) => {$(
        #[test]
        fn $name() {
            isolated_within(std::time::Duration::from_secs(240), stringify!($name), || agrees(Launcher::$launcher));
        }
    )*};
}

models! {
    tables_agree_by_clone3 Clone3;
    tables_agree_by_passing Passed;
    tables_agree_by_clone Clone;
    tables_agree_by_copying Copied;
    tables_agree_by_copying_with_clone CopiedClone;
    tables_agree_in_own_memory OwnMemory;
    tables_agree_by_descriptor ByDescriptor;
}
