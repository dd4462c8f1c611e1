// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host forks after use, and while its other threads spawn: both copies go on, and no descriptor crosses over.

use crate::common;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Launcher, output, rounds};
use spawnfd::{Command, Park, Run, Stdio, Template, TemplateCache, Warm, WarmOptions};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{isolated, program, scratch};

/// Starts a program with a file of its own as standard input and one more, and compares what it got.
fn spawn_with(template: &Template, file: &File) {
    let mut command = template.command();
    command.stdin(file).descriptor(file, 7);
    let text = output(&mut command);
    let inode = file.metadata().expect("open").ino().to_string();
    for number in ["0 ", "7 "] {
        let line = text.lines().find(|line| line.starts_with(number)).unwrap_or_else(|| panic!("no {number}: {text}"));
        assert!(line.ends_with(&inode), "somebody else's: {text}");
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

fn both_go_on(launcher: Launcher) {
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
            // And a copy of the copy.
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
fn both_go_on_by_clone3() {
    isolated!(limit: Duration::from_secs(600), || both_go_on(Launcher::Clone3));
}

#[test]
fn both_go_on_by_passing() {
    isolated!(limit: Duration::from_secs(600), || both_go_on(Launcher::ScmRights));
}

#[test]
fn both_go_on_by_clone() {
    isolated!(limit: Duration::from_secs(600), || both_go_on(Launcher::Clone));
}

/// Forks again and again while other threads spawn.
fn while_others_spawn(launcher: Launcher, named: bool) {
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
                        // Dropped while it runs: the copy has a reaper of its own.
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
fn while_others_spawn_by_clone3() {
    isolated!(limit: Duration::from_secs(600), || {
        while_others_spawn(Launcher::Clone3, false);
    });
}

#[test]
fn while_others_spawn_by_passing() {
    isolated!(limit: Duration::from_secs(600), || {
        while_others_spawn(Launcher::ScmRights, false);
    });
}

#[test]
fn while_others_spawn_by_name() {
    isolated!(limit: Duration::from_secs(600), || {
        while_others_spawn(Launcher::Clone3, true);
    });
}

#[test]
fn a_copy_runs_in_the_background_too() {
    isolated!(limit: Duration::from_secs(300), || {
        let run_one = || {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut command = Command::new("/bin/echo");
            let done = move |output| sender.send(output).expect("waited for");
            command.arg("x").run_then(&Run::new(), done).expect("starts");
            assert_eq!(receiver.recv().expect("comes").expect("runs").stdout, b"x\n");
        };
        run_one();
        for _ in 0..20 {
            // The engine's thread may be awake, asleep or ending.
            let copy = fork(run_one);
            run_one();
            wait_for(copy);
        }
    });
}

#[test]
fn a_copy_leaves_its_parent_s_children_alone() {
    isolated!(limit: Duration::from_secs(300), || {
        let mut command = Command::new("/bin/cat");
        let mut child = command.stdin(Stdio::Piped).stdout(Stdio::Null).spawn().expect("starts");
        let mut dropped = Some(command.spawn().expect("starts"));
        wait_for(fork(|| {
            assert_eq!(child.try_wait().expect_err("not this process's").errno(), spawnfd::Errno::ECHILD);
            drop(dropped.take());
            drop(child.stdin.take());
        }));
        assert_eq!(child.try_wait().expect("own child"), None, "it runs on");
        drop(dropped);
        assert!(child.wait().expect("own child").success());
    });
}

#[test]
fn a_copy_leaves_its_own_threads_alone() {
    isolated!(limit: Duration::from_secs(600), || {
        let mut warm = Warm::new(WarmOptions::default()).ok();
        let parent_s = warm.as_ref().expect("a Warm");
        parent_s.add("true", Park::default()).expect("a keeper");
        assert!(parent_s.fill(Duration::from_secs(60)), "{:?}", parent_s.stats());
        wait_for(fork(|| {
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            // The C library gives it the stack, and so the name, of the parent's thread.
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || receiver.recv());
            drop(warm.take());
            drop(sender);
            thread.expect("starts").join().expect("can be waited for").expect_err("nothing is sent");
        }));
    });
}
