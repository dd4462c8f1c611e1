// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process tree in a pid namespace. No process can leave the namespace. When the namespace's first process ends,
//! the kernel kills all other processes in it.

use alloc::vec::Vec;

use crate::members::{SIGCONT, needs_continue};
use crate::process::{self, Stat, has_children_file};
use crate::sys::{self, Fd};

/// The first process of a pid namespace and the program in it, both children of the caller's process.
#[derive(Debug)]
pub struct Namespace {
    init: (i32, Fd),
    program: Option<(i32, Fd)>,
}

impl Namespace {
    /// Represents a namespace by the pid and pidfd of its first process.
    pub fn new(pid: i32, pidfd: Fd) -> Namespace {
        Namespace { init: (pid, pidfd), program: None }
    }

    /// Records the program.
    pub fn set_program(&mut self, pid: i32, pidfd: Fd) {
        self.program = Some((pid, pidfd));
    }

    /// The pidfd of the namespace's first process.
    pub fn init(&self) -> &Fd {
        &self.init.1
    }

    /// Whether the namespace has ended. Its first process ends after all other processes have been reaped.
    pub fn has_ended(&self) -> bool {
        sys::wait_for_end(self.init.1.number(), 0)
    }

    /// The program's pid, while the program runs.
    fn running_program(&self) -> Option<i32> {
        self.program.as_ref().filter(|(_, pidfd)| !sys::wait_for_end(pidfd.number(), 0)).map(|(pid, _)| *pid)
    }

    /// Returns the running processes in the namespace except the first process and the program.
    /// `None` if /proc cannot be read.
    ///
    /// These processes all descend from the first process or the program, because the kernel makes orphans children
    /// of the first process.
    pub fn others(&self) -> Option<Vec<Stat>> {
        let program = self.running_program();
        if self.has_ended() || (program.is_none() && !self.has_orphans()) {
            return Some(Vec::new());
        }
        let list = process::all_processes()?;
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

    /// Returns the running processes in the namespace except the first process.
    pub fn all(&self) -> Vec<Stat> {
        let program = self.running_program().and_then(Stat::read);
        self.others().unwrap_or_default().into_iter().chain(program).collect()
    }

    /// Whether the first process may have children. Once the program has ended, the kernel has made all remaining
    /// orphans children of the first process.
    fn has_orphans(&self) -> bool {
        let mut found = !has_children_file();
        if let (false, Some(init)) = (found, Stat::read(self.init.0)) {
            init.each_child(|_| found = true);
        }
        found
    }

    /// Sends a signal once to each process except the first process. Returns whether the program got the signal.
    ///
    /// A stopped process also gets SIGCONT, because it would not handle the signal otherwise.
    pub fn signal(&self, signal: i32) -> bool {
        let program = self.running_program();
        let mut reached = false;
        for stat in self.all() {
            let sent = stat.process.signal(signal);
            if sent && needs_continue(signal) && stat.is_stopped() {
                stat.process.signal(SIGCONT);
            }
            reached |= sent && Some(stat.process.pid) == program;
        }
        reached
    }

    /// Kills all processes, and waits at most `milliseconds` until they have ended. Returns whether all processes have
    /// ended.
    ///
    /// A zombie program counts as ended.
    pub fn kill(&self, milliseconds: u64) -> bool {
        let _ = sys::signal(&self.init.1, 9);
        let deadline = sys::now().saturating_add(milliseconds);
        while !self.has_ended()
            && (self.running_program().is_some() || self.others().is_some_and(|others| !others.is_empty()))
        {
            if sys::now() >= deadline {
                return false;
            }
            sys::sleep(1);
        }
        true
    }
}
