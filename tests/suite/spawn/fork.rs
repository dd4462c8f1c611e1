// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host forks after it has used the library, and while its other threads spawn. Both processes
//! can go on, and no descriptor passes from one to the other.

use crate::common;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Launcher, output, rounds};
use spawnfd::template::TemplateCache;
use spawnfd::warm::{Park, WarmOptions};
use spawnfd::{Command, Run, Stdio, Template, Warm};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{isolated, program, scratch};

/// Starts a program with a file as standard input and at number 7, and checks that the program got that file.
fn spawn_with(template: &Template, file: &File) {
    let mut command = template.command();
    command.stdin(file).descriptor(file, 7);
    let text = output(&mut command);
    let inode = file.metadata().expect("open").ino().to_string();
    for number in ["0 ", "7 "] {
        let line = text.lines().find(|line| line.starts_with(number)).unwrap_or_else(|| panic!("no {number}: {text}"));
        assert!(line.ends_with(&inode), "another thread's file: {text}");
    }
    assert_eq!(text.lines().count(), 4, "{text}");
}

fn files(directory: &std::path::Path) -> [File; 3] {
    ["a", "b", "c"].map(|name| {
        let path = directory.join(name);
        std::fs::write(&path, name).expect("own directory");
        File::open(path).expect("own file")
    })
}

fn spawns_work_after_fork(launcher: Launcher) {
    launcher.enter();
    let directory = scratch();
    let [a, b, c] = files(directory.path());
    let template = Template::open(program("spawnfd-fds")).expect("a template");
    common::warm_up(launcher);
    spawn_with(&template, &a);
    let before = Snapshot::take();
    for _ in 0..rounds(200) {
        let copy = fork(|| {
            for _ in 0..10 {
                spawn_with(&template, &b);
            }
            // The forked child itself forks, and that process spawns too.
            wait_for(fork(|| spawn_with(&template, &c)));
            spawn_with(&template, &b);
        });
        for _ in 0..10 {
            spawn_with(&template, &a);
        }
        wait_for(copy);
    }
    leaks::assert_unchanged(&before);
}

#[test]
fn spawns_work_after_fork_by_clone3() {
    isolated!(limit: Duration::from_secs(600), || spawns_work_after_fork(Launcher::Clone3));
}

#[test]
fn spawns_work_after_fork_by_scm_rights() {
    isolated!(limit: Duration::from_secs(600), || spawns_work_after_fork(Launcher::ScmRights));
}

#[test]
fn spawns_work_after_fork_by_clone() {
    isolated!(limit: Duration::from_secs(600), || spawns_work_after_fork(Launcher::Clone));
}

/// Forks repeatedly while other threads spawn. If `named`, the threads also use a cache and drop
/// running children.
fn forks_during_spawns(launcher: Launcher, named: bool) {
    launcher.enter();
    let directory = scratch();
    let [a, b, c] = files(directory.path());
    let cache = TemplateCache::default();
    let path = program("spawnfd-fds");
    let template = Template::open(&path).expect("a template");
    common::warm_up(launcher);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for file in [&a, &b, &a, &b] {
            let (template, cache, path, over) = (&template, &cache, &path, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    spawn_with(template, file);
                    if named {
                        let template = cache.get(path, None).expect("a template");
                        spawn_with(&template, file);
                        drop(Command::new("/bin/true").spawn().expect("starts"));
                    }
                }
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..rounds(if named { 300 } else { 500 }) {
                let copy = fork(|| {
                    for _ in 0..3 {
                        spawn_with(&template, &c);
                    }
                    if named {
                        spawn_with(&cache.get(&path, None).expect("a template"), &c);
                        // The program is still running at this drop. The forked child has its own
                        // reaper thread for it.
                        drop(Command::new("/bin/true").spawn().expect("starts"));
                    }
                });
                wait_for(copy);
            }
        }));
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn forks_during_spawns_by_clone3() {
    isolated!(limit: Duration::from_secs(600), || {
        forks_during_spawns(Launcher::Clone3, false);
    });
}

#[test]
fn forks_during_spawns_by_scm_rights() {
    isolated!(limit: Duration::from_secs(600), || {
        forks_during_spawns(Launcher::ScmRights, false);
    });
}

#[test]
fn forks_during_spawns_with_a_cache() {
    isolated!(limit: Duration::from_secs(600), || {
        forks_during_spawns(Launcher::Clone3, true);
    });
}

#[test]
fn a_forked_child_can_run_in_the_background() {
    isolated!(limit: Duration::from_secs(300), || {
        let run_one = || {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut command = Command::new("/bin/echo");
            let done = move |output| sender.send(output).expect("the receiver is alive");
            command.arg("x").run_then(&Run::new(), done).expect("starts");
            assert_eq!(receiver.recv().expect("a message").expect("runs").stdout, b"x\n");
        };
        run_one();
        for _ in 0..20 {
            // At the fork the engine thread (which runs jobs) may be awake, asleep or ending.
            let copy = fork(run_one);
            run_one();
            wait_for(copy);
        }
    });
}

#[test]
fn a_forked_child_leaves_its_parents_children_alone() {
    isolated!(limit: Duration::from_secs(300), || {
        let mut command = Command::new("/bin/cat");
        let mut child = command.stdin(Stdio::Piped).stdout(Stdio::Null).spawn().expect("starts");
        let mut dropped = Some(command.spawn().expect("starts"));
        wait_for(fork(|| {
            assert_eq!(child.try_wait().expect_err("the parent's child").errno(), spawnfd::error::Errno::ECHILD);
            drop(dropped.take());
            drop(child.stdin.take());
        }));
        assert_eq!(child.try_wait().expect("own child"), None, "it still runs");
        drop(dropped);
        assert!(child.wait().expect("own child").success());
    });
}

#[test]
fn dropping_an_inherited_warm_leaves_new_threads_alone() {
    isolated!(limit: Duration::from_secs(600), || {
        let mut warm = Warm::new(WarmOptions::default()).ok();
        let inherited = warm.as_ref().expect("a Warm");
        inherited.add("true", Park::default()).expect("a keeper");
        assert!(inherited.fill(Duration::from_secs(60)), "{:?}", inherited.stats());
        wait_for(fork(|| {
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            // libc gives the new thread the stack of the parent's keeper thread, and therefore the
            // same pthread_t.
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || receiver.recv());
            drop(warm.take());
            drop(sender);
            thread.expect("starts").join().expect("it can be joined").expect_err("nothing is sent");
        }));
    });
}
