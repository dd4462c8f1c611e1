// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random lists of actions by each launcher, compared with the model of the child.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use spawnfd::command::OpenHow;
use spawnfd::error::{Errno, Stage};
use spawnfd::signal::SignalSet;
use spawnfd::{Command, Stdio, Template};
use spawnfd_tests::{isolated, program, scratch};

use crate::common::{self, Launcher};
use crate::model::{
    ANSWER, Action, DIRECTORIES, FIELDS, Files, Outcome, PATHS, RELATIVE, answer, check_lists, expected, files_in,
};

/// Returns the first failure that validation finds. The library reports it even if an earlier
/// action would fail in the child.
fn foreseen(files: &Files, actions: &[Action]) -> Option<(usize, Errno)> {
    let mut provided: BTreeMap<i32, (u64, u64)> = files.plain.table.clone();
    for (index, action) in actions.iter().enumerate() {
        match *action {
            Action::Place { to, .. } | Action::Open { to, .. } => drop(provided.insert(to, (0, 0))),
            Action::Dup2 { from, .. } if from > 2 && !provided.contains_key(&from) => {
                return Some((index, Errno::EBADF));
            }
            Action::Dup2 { to, .. } => drop(provided.insert(to, (0, 0))),
            Action::Close { fd } => drop(provided.remove(&fd)),
            Action::CloseRange { first, last } => provided.retain(|&fd, _| !(first..=last).contains(&(fd as u32))),
            _ => (),
        }
    }
    None
}

/// Returns the state that a child prints to the descriptor ANSWER.
fn observed(launcher: Launcher, template: &Template, files: &Files, actions: &[Action], blocked: i32) -> Outcome {
    let mut command: Command<'_> = template.command();
    command.stdin(Stdio::Null);
    let (mut reader, writer) = common::pipe();
    for action in actions {
        match *action {
            Action::Place { source, to } => command.descriptor(&files.sources[source], to),
            Action::Dup2 { from, to } => command.dup2(from, to),
            Action::Close { fd } => command.close(fd),
            Action::CloseRange { first, last } => command.close_range(first, last),
            Action::Open { path, to } => {
                command.open(PATHS.get(path).map_or(RELATIVE, |(path, _)| path), OpenHow::READ, to)
            }
            Action::Chdir { path } => command.chdir(DIRECTORIES[path].0),
            Action::Fchdir { source } => command.fchdir(&files.sources[source]),
            Action::Umask { mask } => command.umask(mask),
            Action::Setsid => command.setsid(),
            Action::Setpgid => command.process_group(0),
            Action::Nice { nice } => command.nice(nice),
            Action::CoreLimit { soft, hard } => command.limit(libc::RLIMIT_CORE, Some(soft), Some(hard)),
        };
    }
    command.signal_mask(SignalSet::of(blocked).expect("a signal"));
    // An action may have changed standard output, so the answer goes to a number that no action uses.
    command.descriptor(&writer, ANSWER).args(["--to", "18000", "--fields", FIELDS]);
    launcher.prepare(&mut command);
    let failed = |error: spawnfd::Error| match error.stage() {
        Stage::Action(index) => Err((index, error.errno())),
        stage => panic!("{stage:?}: {error}"),
    };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(error),
    };
    drop(command);
    drop(writer);
    let text = std::io::read_to_string(&mut reader).expect("own pipe");
    match child.wait() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => return failed(error),
    }
    Ok(answer(&text))
}

fn check_model(launcher: Launcher) {
    launcher.enter();
    let directory = scratch();
    let files = files_in(directory.path());
    // The child must inherit none of these descriptors of the caller.
    let _foreign = [25, 26, 300, 1000].map(|number| common::at_number(&files.sources[0], number));
    assert!(files.sources.iter().all(|file| file.as_raw_fd() < 25));
    let template = launcher.template(program("spawnfd-oracle"));
    check_lists(|actions, blocked| {
        let wanted = foreseen(&files, &actions).map_or_else(|| expected(&files, None, &actions), Err);
        (wanted, observed(launcher, &template, &files, &actions, blocked))
    });
    launcher.assert_used();
}

macro_rules! models {
    ($($name:ident $launcher:ident;)*) => {$(
        #[test]
        fn $name() {
            isolated!(limit: std::time::Duration::from_secs(1200), || check_model(Launcher::$launcher));
        }
    )*};
}

models! {
    children_match_the_model_by_clone3 Clone3;
    children_match_the_model_by_scm_rights ScmRights;
    children_match_the_model_by_clone Clone;
    children_match_the_model_by_copy_table CopyTable;
    children_match_the_model_by_copy_table_and_clone CopyTableClone;
    children_match_the_model_with_separate_mm SeparateMm;
    children_match_the_model_by_descriptor ByDescriptor;
    children_match_the_model_asynchronous Asynchronous;
    children_match_the_model_detached_by_clone AsynchronousClone;
}
