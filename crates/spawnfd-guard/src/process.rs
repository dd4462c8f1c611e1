// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the entry of one process in /proc, and distinguishes the process from other processes with the same pid.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::time::Duration;

use crate::sys;

/// A process. Its start time distinguishes it from a later process with the same pid.
///
/// The kernel assigns pids in a cycle. This type assumes that no pid is reused within one clock tick (10 ms).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Process {
    /// The pid.
    pub pid: i32,
    /// Clock ticks from boot to the start of the process.
    pub start: u64,
}

impl Process {
    const PID_BITS: u32 = 22;

    /// Packs pid and start time into one word: on any kernel a pid is below 2^22 (PID_MAX_LIMIT).
    pub fn pack(self) -> u64 {
        self.start << Self::PID_BITS | self.pid as u64 & ((1 << Self::PID_BITS) - 1)
    }

    /// Unpacks a word of `pack`.
    pub fn unpack(word: u64) -> Process {
        Process { pid: (word & ((1 << Self::PID_BITS) - 1)) as i32, start: word >> Self::PID_BITS }
    }

    /// Opens a pidfd by the process's pid, then compares the start time. Returns `None` if the process has ended, or if
    /// another process has the pid.
    pub fn open(self) -> Option<sys::Fd> {
        let pidfd = sys::pidfd_open(self.pid).ok()?;
        let now = Stat::read(self.pid)?;
        (now.process == self).then_some(pidfd)
    }

    /// Sends a signal to this process. Returns `false` if the process has ended, or if the caller may not signal it.
    pub fn signal(self, signal: i32) -> bool {
        self.open().is_some_and(|pidfd| sys::signal(&pidfd, signal).is_ok())
    }

    /// The effect of a SIGKILL that the caller has just sent, or tried to send, to this process.
    pub fn kill_effect(self) -> KillEffect {
        let Ok(pidfd) = sys::pidfd_open(self.pid) else { return KillEffect::Ended };
        match Stat::read(self.pid).filter(|now| now.process == self && now.is_alive()) {
            None => KillEffect::Ended,
            // Check the process's state before sending signal 0. The kernel may refuse the caller's signal and yet have
            // killed the process itself, by its cgroup or by the end of its pid namespace.
            Some(now) if now.is_killed() || now.is_ending() => KillEffect::Pending,
            Some(_) => match sys::signal(&pidfd, 0) {
                Ok(()) => KillEffect::Pending,
                Err(sys::Errno::ESRCH) => KillEffect::Ended,
                Err(_) => KillEffect::Refused,
            },
        }
    }
}

/// The effect of a SIGKILL on a process, as [`Process::kill_effect`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KillEffect {
    /// The process has ended.
    Ended,
    /// The kernel has accepted the signal. The process has not ended yet.
    Pending,
    /// The kernel has refused the signal (EPERM).
    Refused,
}

/// Distinguishes a process from a later process with the same pid. An identity is cheaper to read
/// than /proc.
///
/// From Linux 6.9 on, the identity is the inode number of the process's pidfd, which no other process ever has. On
/// older kernels the identity is the process's start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessIdentity(u64);

impl ProcessIdentity {
    const INODE: u64 = 1 << 63;

    /// Returns the identity of the process behind a pidfd, which has or had this pid. `None` if the
    /// process was reaped before the library could read its start time.
    pub fn of(pidfd: &sys::Fd, pid: i32) -> Option<ProcessIdentity> {
        sys::pidfd_inode(pidfd)
            .map(|inode| ProcessIdentity(inode | Self::INODE))
            .or_else(|| ProcessIdentity::by_start(pidfd, pid))
    }

    fn by_start(pidfd: &sys::Fd, pid: i32) -> Option<ProcessIdentity> {
        let stat = Stat::read(pid)?;
        // If the pidfd's process is not reaped yet, it has the pid, so `stat` describes it.
        sys::has_pid(pidfd).then_some(ProcessIdentity(stat.process.start))
    }

    /// Opens a pidfd of the process with this identity, if that process still has the pid.
    pub fn open(self, pid: i32) -> Option<sys::Fd> {
        let pidfd = sys::pidfd_open(pid).ok()?;
        let found = if self.0 & Self::INODE != 0 {
            ProcessIdentity::of(&pidfd, pid)
        } else {
            ProcessIdentity::by_start(&pidfd, pid)
        };
        (found == Some(self)).then_some(pidfd)
    }

    /// Packs the identity into a word, which is not 0.
    pub fn pack(self) -> u64 {
        self.0
    }

    /// Unpacks a word; `None` for 0.
    pub fn unpack(word: u64) -> Option<ProcessIdentity> {
        (word != 0).then_some(ProcessIdentity(word))
    }
}

/// The current time since boot, in clock ticks, the unit of start times.
pub fn ticks_now() -> u64 {
    // USER_HZ is 100 on all supported architectures.
    sys::now() / 10
}

/// The time a certain duration ago, in the unit of [`ticks_now`]. A process that started since then has no earlier start
/// time.
pub fn ticks_before(elapsed: Duration) -> u64 {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    sys::now().saturating_sub(milliseconds.saturating_add(1)) / 10
}

/// The fields of /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The process.
    pub process: Process,
    /// The pid of the process's parent.
    pub parent: i32,
    /// The process group of the process.
    pub group: i32,
    /// The session of the process; 0 if the session comes from another pid namespace.
    pub session: i32,
    /// The state of the process's first thread, as a letter: `S` means sleeping.
    state: u8,
    /// The PF_* flags of the process's first thread.
    flags: u64,
    /// The CPU time of the process, in clock ticks.
    pub cpu: u64,
    /// The number of threads.
    pub threads: u64,
    /// The resident set size (RSS), in pages.
    pub resident_pages: u64,
    /// The address at which the first thread's stack starts. A fork has its parent's until it executes a program. 0 during
    /// exec, and if the caller may not see the address.
    stack: u64,
    /// The signals that are pending for the process's first thread, as a set. Covers only the first 31 signals.
    pending: u64,
    name: [u8; 16],
    name_length: u8,
}

impl Stat {
    /// Reads the entry of a process. Returns `None` if no process has the pid, or if /proc belongs to another pid
    /// namespace ([`is_proc_foreign`]).
    pub fn read(pid: i32) -> Option<Stat> {
        if is_proc_foreign() { None } else { Stat::read_at(sys::CWD, &[b"/proc/", &digits(pid)?, b"/stat"]) }
    }

    fn read_at(dir: i32, path: &[&[u8]]) -> Option<Stat> {
        let mut buffer = [0; 512];
        let file = sys::open(dir, &joined(path)?, sys::READ).ok()?;
        let length = sys::read(file.number(), &mut buffer).ok()?;
        Stat::parse(buffer.get(..length)?)
    }

    /// Whether the process's first thread runs, or waits for a processor.
    pub fn is_running(&self) -> bool {
        self.state == b'R'
    }

    /// Whether the process's first thread waits for an event that a signal interrupts.
    pub fn is_sleeping(&self) -> bool {
        self.state == b'S'
    }

    /// Whether the process has called exec since its fork (PF_FORKNOEXEC is not set).
    pub fn has_called_exec(&self) -> bool {
        const PF_FORKNOEXEC: u64 = 0x40;
        self.flags & PF_FORKNOEXEC == 0
    }

    /// Whether /proc shows no stack: the process is executing a program at this moment, or this process may not trace it.
    pub fn hides_stack(&self) -> bool {
        self.stack == 0
    }

    /// Whether the process may be a fork of `other` that has executed no program since.
    pub fn may_be_copy_of(&self, other: &Stat) -> bool {
        !self.has_called_exec() && (self.stack == 0 || self.stack == other.stack)
    }

    /// Parses the line of /proc/PID/stat. The name may contain parentheses and line breaks, so it
    /// ends at the *last* closing parenthesis.
    ///
    /// # References
    /// proc_pid_stat(5).
    pub fn parse(line: &[u8]) -> Option<Stat> {
        let (open, close) = (line.iter().position(|&byte| byte == b'(')?, line.iter().rposition(|&byte| byte == b')')?);
        let pid = parse_number(line.get(..open)?.trim_ascii_end())? as i32;
        let name = line.get(open + 1..close)?;
        let mut fields = line.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let state = *fields.next()?.first()?;
        let mut next = |skipped: usize| parse_number(fields.nth(skipped)?);
        let (parent, group, session) = (next(0)? as i32, next(0)? as i32, next(0)? as i32);
        // The session above is field 6. Flags, CPU times, threads and start time are the fields 9, 14, 15, 20 and 22.
        let flags = next(2)?;
        let cpu = next(4)?.saturating_add(next(0)?);
        let threads = next(4)?;
        let start = next(1)?;
        // Field 24 is the resident set size, field 28 the start of the stack, and field 31 the set of pending signals.
        let resident_pages = next(1).unwrap_or(0);
        let stack = next(3).unwrap_or(0);
        let pending = next(2).unwrap_or(0);
        let mut stat = Stat {
            process: Process { pid, start },
            parent,
            group,
            session,
            state,
            flags,
            cpu,
            threads,
            resident_pages,
            stack,
            pending,
            name: [0; 16],
            name_length: name.len().min(16) as u8,
        };
        stat.name.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        Some(stat)
    }

    /// The name that ps shows, truncated to 16 bytes.
    pub fn name(&self) -> &[u8] {
        self.name.get(..usize::from(self.name_length)).unwrap_or_default()
    }

    /// Whether the process still runs. A zombie first thread counts as running if the process has other threads.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }

    /// Whether the process is exiting, and will soon be a zombie.
    pub fn is_ending(&self) -> bool {
        /// The flag's value in include/linux/sched.h.
        const PF_EXITING: u64 = 0x4;
        self.is_alive() && self.flags & PF_EXITING != 0
    }

    /// Whether SIGKILL is pending for the first thread. The kernel sends SIGKILL to every thread.
    pub fn is_killed(&self) -> bool {
        const SIGKILL: u64 = 1 << 8;
        self.pending & SIGKILL != 0
    }

    /// Whether the process is stopped (by a signal or a tracer). It handles no other signal until it continues.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Whether the process cannot fork now: it is stopped, or in uninterruptible sleep (state D).
    pub(crate) fn cannot_fork(&self) -> bool {
        self.is_stopped() || self.state == b'D'
    }
}

/// Parses a decimal number. A negative number counts as 0.
fn parse_number(text: &[u8]) -> Option<u64> {
    if text.first() == Some(&b'-') {
        return Some(0);
    }
    let digit = |value: u64, byte: &u8| value.checked_mul(10)?.checked_add(u64::from(byte.checked_sub(b'0')?));
    let valid = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if valid { text.iter().try_fold(0, digit) } else { None }
}

fn joined(path: &[&[u8]]) -> Option<CString> {
    CString::new(path.concat()).ok()
}

/// The decimal digits of a pid; `None` if the number is negative. The function does not use `core::fmt`, which would make
/// the helper larger.
fn digits(pid: i32) -> Option<Vec<u8>> {
    let mut left = u32::try_from(pid).ok()?;
    let mut digits = Vec::with_capacity(10);
    while left > 0 || digits.is_empty() {
        digits.insert(0, b'0' + (left % 10) as u8);
        left /= 10;
    }
    Some(digits)
}

/// Whether /proc is missing, or belongs to another pid namespace than the caller's.
///
/// The second case happens after a fork into a new pid namespace, until /proc is mounted in it. The pids in such a
/// /proc are those of other processes, so the caller must not use them.
///
/// The function does not cache the answer: a fork may be in another namespace, even with the same pid, and /proc may
/// be mounted again.
pub fn is_proc_foreign() -> bool {
    let mut buffer = [0; 16];
    let length = sys::read_link(c"/proc/self", &mut buffer).unwrap_or(0);
    buffer.get(..length).and_then(parse_number) != Some(sys::getpid() as u64)
}

/// Returns pid and session of each process that /proc shows. `None` if /proc cannot be read, or
/// belongs to another pid namespace ([`is_proc_foreign`]).
///
/// This function takes about a tenth of the time of [`all_processes`].
pub fn sessions() -> Option<Vec<(i32, i32)>> {
    if is_proc_foreign() {
        return None;
    }
    let mut found = Vec::with_capacity(256);
    let proc = sys::open(sys::CWD, c"/proc", sys::DIRECTORY).ok()?;
    each_entry(&proc, |name, _| {
        let Some(pid) = parse_number(name.to_bytes()).map(|pid| pid as i32) else { return };
        if let Ok(session) = sys::getsid(pid) {
            found.push((pid, session));
        }
    });
    Some(found)
}

/// Whether [`Stat::each_child`] works, which needs a kernel with CONFIG_PROC_CHILDREN.
pub fn has_children_file() -> bool {
    !is_proc_foreign() && sys::open(sys::CWD, c"/proc/thread-self/children", sys::READ).is_ok()
}

impl Stat {
    /// Calls `child` with the pid of each child. If a child starts or ends during the call, the kernel's list may lack
    /// that child or another child.
    ///
    /// # References
    /// proc_pid_task(5).
    pub fn each_child(&self, mut child: impl FnMut(i32)) {
        if self.threads <= 1 {
            let _ = children_of(self.process.pid, self.process.pid, &mut child);
            return;
        }
        let path = digits(self.process.pid).and_then(|pid| joined(&[b"/proc/", &pid, b"/task"]));
        let Some(Ok(threads)) = path.map(|path| sys::open(sys::CWD, &path, sys::DIRECTORY)) else { return };
        each_entry(&threads, |name, _| {
            if let Some(thread) = parse_number(name.to_bytes()) {
                let _ = children_of(self.process.pid, thread as i32, &mut child);
            }
        });
    }
}

/// Reads the processes with these pids and all their descendants, sorted by pid. For each process, `more` can add pids.
pub(crate) fn descend(mut pending: Vec<i32>, mut more: impl FnMut(&Stat, &mut Vec<i32>)) -> Vec<Stat> {
    let mut found: Vec<Stat> = Vec::new();
    while let Some(pid) = pending.pop() {
        let Err(index) = found.binary_search_by_key(&pid, |stat| stat.process.pid) else { continue };
        let Some(stat) = Stat::read(pid) else { continue };
        found.insert(index, stat);
        more(&stat, &mut pending);
        stat.each_child(|child| pending.push(child));
    }
    found
}

fn children_of(pid: i32, thread: i32, child: &mut impl FnMut(i32)) -> Option<()> {
    let path = joined(&[b"/proc/", &digits(pid)?, b"/task/", &digits(thread)?, b"/children"])?;
    let file = sys::open(sys::CWD, &path, sys::READ).ok()?;
    let mut buffer = [0; 4096];
    // The value of the digits read so far, because a read may end within a number.
    let mut value: Option<i32> = None;
    loop {
        let read = sys::read(file.number(), &mut buffer).ok()?;
        for &byte in buffer.get(..read)? {
            match byte {
                b'0'..=b'9' => value = Some(value.unwrap_or(0).wrapping_mul(10).wrapping_add(i32::from(byte - b'0'))),
                _ => value.take().into_iter().for_each(&mut *child),
            }
        }
        if read == 0 {
            value.take().into_iter().for_each(child);
            return Some(());
        }
    }
}

/// Returns all processes that /proc shows, sorted by pid. `None` if /proc cannot be read, or
/// belongs to another pid namespace ([`is_proc_foreign`]).
pub fn all_processes() -> Option<Vec<Stat>> {
    if is_proc_foreign() {
        return None;
    }
    let mut found: Vec<Stat> = Vec::with_capacity(128);
    let proc = sys::open(sys::CWD, c"/proc", sys::DIRECTORY).ok()?;
    each_entry(&proc, |name, _| {
        let Some(pid) = parse_number(name.to_bytes()) else { return };
        if let Some(stat) = digits(pid as i32).and_then(|pid| Stat::read_at(proc.number(), &[&pid, b"/stat"])) {
            // /proc lists processes by pid. If one is out of order, insert it at the right index.
            let index = found.iter().rposition(|earlier| earlier.process.pid <= stat.process.pid);
            found.insert(index.map_or(0, |index| index + 1), stat);
        }
    });
    // The list contains at least the caller, unless no descriptor was free to read the processes.
    Some(found).filter(|found| !found.is_empty())
}

/// Calls `entry` for each entry of a directory, with its name and whether it is a directory.
pub(crate) fn each_entry(dir: &sys::Fd, mut entry: impl FnMut(&CStr, bool)) {
    // The fields of struct linux_dirent64: inode (8 bytes), offset (8), length (2), type (1), name.
    const NAME: usize = 19;
    const DT_DIR: u8 = 4;
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = sys::entries(dir, &mut buffer) {
        let mut rest = buffer.get(..length).unwrap_or_default();
        while let Some(&[low, high, kind]) = rest.get(16..NAME) {
            let size = usize::from(u16::from_ne_bytes([low, high]));
            let Some(this) = rest.get(NAME..size) else { break };
            if let Ok(name) = CStr::from_bytes_until_nul(this) {
                entry(name, kind == DT_DIR);
            }
            rest = rest.get(size..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn parses_names_that_look_like_the_rest_of_the_line() {
        let tail = "S 7 8 9 34816 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 3\n";
        for name in ["a", "a) R 1 1 1 (b", ") ", "((", "x\ny", "0123456789abcdef"] {
            let line = alloc::format!("123 ({name}) {tail}");
            let stat = Stat::parse(line.as_bytes()).expect("a line");
            assert_eq!(stat.process, Process { pid: 123, start: 4711 });
            assert_eq!((stat.parent, stat.group, stat.session, stat.state, stat.threads), (7, 8, 9, b'S', 1));
            assert_eq!(stat.name(), name.as_bytes());
        }
        let is_alive = |line: &[u8]| Stat::parse(line).expect("a line").is_alive();
        assert!(!is_alive(b"1 (a) Z 7 8 9 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 4711\n"));
        assert!(is_alive(b"1 (a) Z 7 8 9 0 -1 0 1 2 3 4 5 6 7 8 20 0 2 0 4711\n"), "only its first thread has ended");
        let is_ending = |line: &[u8]| Stat::parse(line).expect("a line").is_ending();
        assert!(is_ending(b"1 (a) R 7 8 9 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 4711\n"));
        assert!(!is_ending(b"1 (a) R 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711\n"), "it runs");
        assert!(!is_ending(b"1 (a) Z 7 8 9 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 4711\n"), "the process has ended");
        for line in ["", "123", "123 (a", "123 (a)", "123 (a) S 7 8 9 1", "x (a) S 7 8 9"] {
            assert_eq!(Stat::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn parses_whether_a_kill_is_pending() {
        let is_killed = |pending: &str| {
            let line = alloc::format!("1 (a) D 7 8 9 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 3 4 5 6 7 8{pending}\n");
            Stat::parse(line.as_bytes()).expect("a line").is_killed()
        };
        assert!(is_killed(" 256 0 0 0") && is_killed(" 16640"));
        assert!(!is_killed(" 0 256 256 256") && !is_killed(" 16384") && !is_killed(""));
    }

    #[test]
    fn kill_effect_checks_the_start_time() {
        let mut child = sleep();
        let process = Stat::read(child.id() as i32).expect("it runs").process;
        assert_eq!(process.kill_effect(), KillEffect::Pending, "this user may kill it");
        assert_eq!(Process { start: process.start - 1, ..process }.kill_effect(), KillEffect::Ended);
        child.kill().expect("own child");
        let pidfd = sys::pidfd_open(process.pid).expect("not reaped");
        assert!(sys::wait_for_end(pidfd.number(), 60_000));
        assert_eq!(process.kill_effect(), KillEffect::Ended, "a zombie");
        child.wait().expect("own child");
        assert_eq!(process.kill_effect(), KillEffect::Ended);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let own = Stat::read(sys::getpid()).expect("this process").process;
        assert!(own.open().is_some());
        let earlier = Process { start: own.start - 1, ..own };
        assert!(earlier.open().is_none());
        // Signal 0 to the same pid succeeds. So only the different start time can cause the
        // refusal.
        assert!(own.signal(0) && !earlier.signal(0));
        assert_eq!(Process::unpack(own.pack()), own);
        let last = Process { pid: (1 << 22) - 1, start: (1 << 42) - 1 };
        assert_eq!(Process::unpack(last.pack()), last);
    }

    fn sleep() -> std::process::Child {
        std::process::Command::new("sleep").arg("1000").spawn().expect("starts")
    }

    fn end(mut child: std::process::Child) {
        child.kill().and_then(|()| child.wait()).expect("own child");
    }

    /// Starts a child in a later clock tick than this process.
    fn later_child() -> std::process::Child {
        let start = |pid| Stat::read(pid).expect("it runs").process.start;
        let child = sleep();
        if start(child.id() as i32) != start(sys::getpid()) {
            return child;
        }
        end(child);
        later_child()
    }

    #[test]
    fn an_identity_opens_its_own_process_only() {
        let (own, other) = (sys::getpid(), later_child());
        let pidfd = sys::pidfd_open(own).expect("this process");
        let by_start = ProcessIdentity::by_start(&pidfd, own).expect("this process");
        for identity in [ProcessIdentity::of(&pidfd, own).expect("this process"), by_start] {
            assert!(identity.open(own).is_some());
            assert_eq!(ProcessIdentity::unpack(identity.pack()), Some(identity));
            assert!(ProcessIdentity(identity.0 - 1).open(own).is_none(), "another process with its pid");
            assert!(identity.open(other.id() as i32).is_none(), "another pid");
        }
        assert_eq!(ProcessIdentity::unpack(0), None);
        end(other);
    }

    #[test]
    fn finds_the_children_of_every_thread() {
        if !has_children_file() {
            return;
        }
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (send_pid, receive_pid) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let child = sleep();
            send_pid.send(child.id()).expect("the test waits");
            let _ = stopped.recv();
            end(child);
        });
        let (child, other) = (sleep(), receive_pid.recv().expect("the thread sends it"));
        let mut found = Vec::new();
        let own = Stat::read(sys::getpid()).expect("this process");
        own.each_child(|pid| found.push(pid as u32));
        assert!(own.threads > 1 && found.contains(&child.id()) && found.contains(&other), "{found:?}");
        drop(stop);
        end(child);
        thread.join().expect("no panic");
    }

    #[test]
    fn finds_this_process_among_all() {
        let own = sys::getpid();
        let own_start = Stat::read(own).expect("this process").process.start;
        assert!(own_start <= ticks_now() && ticks_now() - own_start < 100 * 3600, "one clock");
        let all = all_processes().expect("/proc");
        assert!(all.is_sorted_by_key(|stat| stat.process));
        assert!(all.iter().any(|stat| stat.process.pid == own && stat.parent == sys::getppid()));
    }
}
