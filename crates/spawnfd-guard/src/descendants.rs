// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process tree below a helper process. The helper is the first process of the tree's pid namespace, or the tree's
//! subreaper. In both cases the kernel makes every orphan of the tree a child of the helper, so every process of the tree
//! descends from the helper. The helper ends after all other processes have been reaped.
//!
//! When the first process of a pid namespace ends, the kernel kills all other processes in it. A subreaper's end kills no
//! process.

use alloc::vec::Vec;

use crate::members::{StoppedMembers, needs_continue};
use crate::process::{self, Process, Stat, descend, has_children_file};
use crate::sys::{self, Fd, SIGCONT, SIGKILL};

/// The helper process, and the tree's program.
#[derive(Debug)]
pub struct Descendants {
    helper: (i32, Fd),
    program: Option<(i32, Fd)>,
}

/// The end of a tree's program, as the tree's subreaper reports it to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndOfProgram {
    /// The status word of wait(2).
    pub status: i32,
    /// User and system time of the program and of the children that it has waited for, in microseconds.
    pub cpu_micros: u64,
    /// The largest resident set of these processes, in KiB.
    pub max_rss_kib: u64,
    /// Whether the tree had other processes when the program had ended.
    pub has_left_others: bool,
}

impl EndOfProgram {
    /// The size of a packed report in bytes.
    pub const SIZE: usize = 32;

    /// Packs the report into a message.
    pub fn pack(&self) -> [u8; EndOfProgram::SIZE] {
        let words = [self.status as u64, self.cpu_micros, self.max_rss_kib, u64::from(self.has_left_others)];
        let mut message = [0; EndOfProgram::SIZE];
        for (bytes, word) in message.chunks_exact_mut(8).zip(words) {
            bytes.iter_mut().zip(word.to_ne_bytes()).for_each(|(to, from)| *to = from);
        }
        message
    }

    /// Unpacks a message.
    pub fn unpack(message: &[u8; EndOfProgram::SIZE]) -> EndOfProgram {
        let mut words = message.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes));
        let mut word = || words.next().unwrap_or(0);
        EndOfProgram { status: word() as i32, cpu_micros: word(), max_rss_kib: word(), has_left_others: word() != 0 }
    }
}

impl Descendants {
    /// Represents a tree by the pid and pidfd of its helper.
    pub fn new(pid: i32, pidfd: Fd) -> Descendants {
        Descendants { helper: (pid, pidfd), program: None }
    }

    /// Records the program.
    pub fn set_program(&mut self, pid: i32, pidfd: Fd) {
        self.program = Some((pid, pidfd));
    }

    /// The helper's pid and pidfd.
    pub fn helper(&self) -> &(i32, Fd) {
        &self.helper
    }

    /// Whether the helper has ended.
    pub fn has_ended(&self) -> bool {
        sys::wait_for_end(self.helper.1.number(), 0)
    }

    /// The program's pid, while the program runs.
    fn running_program(&self) -> Option<i32> {
        self.program.as_ref().filter(|(_, pidfd)| !sys::wait_for_end(pidfd.number(), 0)).map(|(pid, _)| *pid)
    }

    /// Returns the running processes of the tree except the helper and the program. `None` if /proc cannot be read.
    pub fn others(&self) -> Option<Vec<Stat>> {
        let program = self.running_program();
        if self.has_ended() || (program.is_none() && !self.has_orphans()) {
            return Some(Vec::new());
        }
        let mut found = below(self.helper.0, program)?;
        found.retain(|stat| Some(stat.process.pid) != program);
        Some(found)
    }

    /// Returns the running processes of the tree except the helper.
    pub fn all(&self) -> Vec<Stat> {
        let program = self.running_program();
        if self.has_ended() && program.is_none() {
            Vec::new()
        } else {
            below(self.helper.0, program).unwrap_or_default()
        }
    }

    /// The running children of the helper, at most `limit`.
    pub fn children(&self, limit: usize) -> Vec<Process> {
        let mut children = Vec::new();
        if let Some(helper) = Stat::read(self.helper.0).filter(|_| has_children_file() && !self.has_ended()) {
            helper.each_child(|child| children.extend(Some(child).filter(|_| children.len() < limit)));
        }
        let helper = self.helper.0;
        let own = children.into_iter().filter_map(Stat::read).filter(|stat| stat.parent == helper && stat.is_alive());
        own.map(|stat| stat.process).collect()
    }

    /// Whether the helper may have children. Once the program has ended, the kernel has made all remaining orphans
    /// children of the helper.
    fn has_orphans(&self) -> bool {
        let mut found = !has_children_file();
        if let (false, Some(helper)) = (found, Stat::read(self.helper.0)) {
            helper.each_child(|_| found = true);
        }
        found
    }

    /// Sends a signal once to each process except the helper. Returns whether the program got the signal.
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

    /// Kills the helper, and with it all processes of its pid namespace. Waits at most `milliseconds` until they have
    /// ended. Returns whether all processes have ended.
    ///
    /// A zombie program counts as ended.
    pub fn kill_namespace(&self, milliseconds: u64) -> bool {
        let _ = sys::signal(&self.helper.1, SIGKILL);
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

    /// Kills all processes below a subreaper, and waits at most `milliseconds` until the subreaper has reaped them and
    /// has ended. Returns whether it has ended.
    ///
    /// The function first stops the processes, because a process may fork between a search and a kill. A search can miss
    /// a process that changes its parent at this time. So the function searches until the subreaper has ended, which it
    /// does only without children.
    pub fn kill_each(&self, milliseconds: u64) -> bool {
        let deadline = sys::now().saturating_add(milliseconds);
        let mut stopped = StoppedMembers::new();
        while !self.has_ended() {
            let alive = self.all();
            let now = sys::now();
            if stopped.stop_and_kill(&alive) {
                // A process of the tree may have stopped the subreaper, which then reaps no process.
                let _ = sys::signal(&self.helper.1, SIGCONT);
                if sys::wait_for_end(self.helper.1.number(), 1.min(deadline.saturating_sub(now))) {
                    return true;
                }
                if now >= deadline {
                    return false;
                }
            } else {
                sys::sleep(1);
            }
        }
        true
    }
}

/// Kills all descendants of the calling process, which is a subreaper, and reaps them, for at most `milliseconds`.
pub fn kill_own_descendants(milliseconds: u64) {
    let own = sys::getpid();
    let deadline = sys::now().saturating_add(milliseconds);
    let mut stopped = StoppedMembers::new();
    loop {
        while let Ok(Some(_)) = sys::wait_for_child(false) {}
        if sys::wait_for_child(false) == Err(sys::Errno::ECHILD) || sys::now() >= deadline {
            return;
        }
        stopped.stop_and_kill(&below(own, None).unwrap_or_default());
        sys::sleep(1);
    }
}

/// Returns the running processes below the helper and the program. In a pid namespace, the program is not a child of the
/// helper. `None` if /proc cannot be read.
fn below(helper: i32, program: Option<i32>) -> Option<Vec<Stat>> {
    let roots = [helper].into_iter().chain(program).collect();
    let mut list = if has_children_file() { descend(roots, |_, _| ()) } else { with_parents_in(roots)? };
    list.retain(|stat| stat.process.pid != helper && stat.is_alive());
    Some(list)
}

/// The same as [`descend`], on a kernel without CONFIG_PROC_CHILDREN. `None` if /proc cannot be read.
fn with_parents_in(mut inside: Vec<i32>) -> Option<Vec<Stat>> {
    let mut list = process::all_processes()?;
    loop {
        let known = inside.len();
        for stat in &list {
            if inside.contains(&stat.parent) && !inside.contains(&stat.process.pid) {
                inside.push(stat.process.pid);
            }
        }
        if inside.len() == known {
            list.retain(|stat| inside.contains(&stat.process.pid));
            return Some(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_packing() {
        let end = EndOfProgram { status: 0x8b, cpu_micros: u64::MAX, max_rss_kib: 7, has_left_others: true };
        assert_eq!(EndOfProgram::unpack(&end.pack()), end);
        let end = EndOfProgram { status: -1, has_left_others: false, ..end };
        assert_eq!(EndOfProgram::unpack(&end.pack()), end);
    }
}
