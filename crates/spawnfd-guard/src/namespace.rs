// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is a pid namespace: nobody leaves it, and all are killed when its first process ends.

use alloc::vec::Vec;

use crate::members::{SIGCONT, wakes};
use crate::process::{self, Stat, lists_children};
use crate::sys::{self, Fd};

/// The first process of a pid namespace, and the program beside it, both children of the caller's process.
#[derive(Debug)]
pub struct Namespace {
    init: (i32, Fd),
    program: Option<(i32, Fd)>,
}

impl Namespace {
    /// By the first process, its number and pidfd.
    pub fn new(pid: i32, pidfd: Fd) -> Namespace {
        Namespace { init: (pid, pidfd), program: None }
    }

    /// Tells of the program.
    pub fn born(&mut self, pid: i32, pidfd: Fd) {
        self.program = Some((pid, pidfd));
    }

    /// The first process's pidfd.
    pub fn init(&self) -> &Fd {
        &self.init.1
    }

    /// Whether there is no such namespace any more. Its first process ends after all others have been reaped.
    pub fn has_ended(&self) -> bool {
        sys::wait_for_end(self.init.1.number(), 0)
    }

    /// The program's number, as long as it runs.
    fn running(&self) -> Option<i32> {
        self.program.as_ref().filter(|(_, pidfd)| !sys::wait_for_end(pidfd.number(), 0)).map(|(pid, _)| *pid)
    }

    /// Who runs in it, but for the first process and the program: all who descend from these two, as orphans come to the first. `None`
    /// where /proc cannot be read.
    pub fn others(&self) -> Option<Vec<Stat>> {
        let program = self.running();
        if self.has_ended() || (program.is_none() && !self.has_orphans()) {
            return Some(Vec::new());
        }
        let list = process::all()?;
        let mut inside: Vec<i32> = [self.init.0].into_iter().chain(program).collect();
        let roots = inside.len();
        loop {
            let known = inside.len();
            for stat in &list {
                if inside.contains(&stat.parent) && !inside.contains(&stat.process.pid) {
                    inside.push(stat.process.pid);
                }
            }
            if inside.len() == known {
                break;
            }
        }
        let others = inside.get(roots..).unwrap_or_default();
        Some(list.into_iter().filter(|stat| others.contains(&stat.process.pid) && stat.is_alive()).collect())
    }

    /// Who runs in it, but for the first process.
    pub fn all(&self) -> Vec<Stat> {
        let program = self.running().and_then(Stat::read);
        self.others().unwrap_or_default().into_iter().chain(program).collect()
    }

    /// Whether the first process may have children: with the program gone, whether anybody is left.
    fn has_orphans(&self) -> bool {
        let mut found = !lists_children();
        if let (false, Some(init)) = (found, Stat::read(self.init.0)) {
            init.each_child(|_| found = true);
        }
        found
    }

    /// Sends a signal to the program and to all others, once. One that is stopped is made to go on, or it would never see it. Whether
    /// the program got it.
    pub fn signal(&self, signal: i32) -> bool {
        let program = self.running();
        let mut reached = false;
        for stat in self.all() {
            let sent = stat.process.signal(signal);
            if sent && wakes(signal) && stat.is_stopped() {
                stat.process.signal(SIGCONT);
            }
            reached |= sent && Some(stat.process.pid) == program;
        }
        reached
    }

    /// Kills all, and waits at most so long until they are gone. `true` if they are; the program counts as gone when it has ended.
    pub fn end(&self, milliseconds: u64) -> bool {
        let _ = sys::signal(&self.init.1, 9);
        let deadline = sys::now().saturating_add(milliseconds);
        while !self.has_ended() && (self.running().is_some() || self.others().is_some_and(|others| !others.is_empty()))
        {
            if sys::now() >= deadline {
                return false;
            }
            sys::sleep(1);
        }
        true
    }
}
