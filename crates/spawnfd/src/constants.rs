// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named numbers for functions that take the kernel's numbers.

/// The numbers of signals, for functions such as [`Child::signal`](crate::Child::signal).
///
/// The numbers are the same on every architecture that the library supports. Real-time signals have no names here.
///
/// # Examples
/// ```
/// use spawnfd::signal::SignalSet;
/// use spawnfd::{Command, signal};
/// use std::os::unix::process::ExitStatusExt;
/// let mut child = Command::new("sleep").arg("1000").parent_death_signal(signal::KILL).spawn()?;
/// child.signal(signal::TERM)?;
/// assert_eq!(child.wait()?.signal(), Some(signal::TERM));
/// assert!(SignalSet::of(signal::INT).is_some());
/// # Ok::<(), spawnfd::Error>(())
/// ```
///
/// # References
/// signal(7)
pub mod signal {
    use spawnfd_sys::abi;

    pub use crate::signals::SignalSet;

    /// The terminal has hung up. Many daemons reload their configuration.
    #[doc(alias = "SIGHUP")]
    pub const HUP: i32 = abi::SIGHUP as i32;
    /// Interrupt, as by Ctrl-C.
    #[doc(alias = "SIGINT")]
    pub const INT: i32 = abi::SIGINT as i32;
    /// Quit with a core dump, as by Ctrl-\\.
    #[doc(alias = "SIGQUIT")]
    pub const QUIT: i32 = abi::SIGQUIT as i32;
    /// Illegal instruction.
    #[doc(alias = "SIGILL")]
    pub const ILL: i32 = abi::SIGILL as i32;
    /// Breakpoint.
    #[doc(alias = "SIGTRAP")]
    pub const TRAP: i32 = abi::SIGTRAP as i32;
    /// The process has called abort(3).
    #[doc(alias = "SIGABRT")]
    pub const ABRT: i32 = abi::SIGABRT as i32;
    /// Access to memory that has no backing.
    #[doc(alias = "SIGBUS")]
    pub const BUS: i32 = abi::SIGBUS as i32;
    /// Arithmetic error.
    #[doc(alias = "SIGFPE")]
    pub const FPE: i32 = abi::SIGFPE as i32;
    /// Ends the process. No process can catch, block or ignore this signal.
    #[doc(alias = "SIGKILL")]
    pub const KILL: i32 = abi::SIGKILL as i32;
    /// For the application's own use.
    #[doc(alias = "SIGUSR1")]
    pub const USR1: i32 = abi::SIGUSR1 as i32;
    /// Invalid memory access.
    #[doc(alias = "SIGSEGV")]
    pub const SEGV: i32 = abi::SIGSEGV as i32;
    /// For the application's own use.
    #[doc(alias = "SIGUSR2")]
    pub const USR2: i32 = abi::SIGUSR2 as i32;
    /// Write to a pipe or socket without a reader.
    #[doc(alias = "SIGPIPE")]
    pub const PIPE: i32 = abi::SIGPIPE as i32;
    /// Timer of alarm(2).
    #[doc(alias = "SIGALRM")]
    pub const ALRM: i32 = abi::SIGALRM as i32;
    /// Asks the process to end.
    #[doc(alias = "SIGTERM")]
    pub const TERM: i32 = abi::SIGTERM as i32;
    /// Unused by the kernel.
    #[doc(alias = "SIGSTKFLT")]
    pub const STKFLT: i32 = abi::SIGSTKFLT as i32;
    /// A child has ended or stopped.
    #[doc(alias = "SIGCHLD")]
    pub const CHLD: i32 = abi::SIGCHLD as i32;
    /// Continues a stopped process.
    #[doc(alias = "SIGCONT")]
    pub const CONT: i32 = abi::SIGCONT as i32;
    /// Stops the process. No process can catch, block or ignore this signal.
    #[doc(alias = "SIGSTOP")]
    pub const STOP: i32 = abi::SIGSTOP as i32;
    /// Stop, as by Ctrl-Z.
    #[doc(alias = "SIGTSTP")]
    pub const TSTP: i32 = abi::SIGTSTP as i32;
    /// Read from the terminal by a background process.
    #[doc(alias = "SIGTTIN")]
    pub const TTIN: i32 = abi::SIGTTIN as i32;
    /// Write to the terminal by a background process.
    #[doc(alias = "SIGTTOU")]
    pub const TTOU: i32 = abi::SIGTTOU as i32;
    /// Urgent data on a socket.
    #[doc(alias = "SIGURG")]
    pub const URG: i32 = abi::SIGURG as i32;
    /// The process has reached its soft limit of CPU time.
    #[doc(alias = "SIGXCPU")]
    pub const XCPU: i32 = abi::SIGXCPU as i32;
    /// A file would exceed the limit of its size.
    #[doc(alias = "SIGXFSZ")]
    pub const XFSZ: i32 = abi::SIGXFSZ as i32;
    /// Timer of user CPU time.
    #[doc(alias = "SIGVTALRM")]
    pub const VTALRM: i32 = abi::SIGVTALRM as i32;
    /// Timer of CPU time.
    #[doc(alias = "SIGPROF")]
    pub const PROF: i32 = abi::SIGPROF as i32;
    /// The terminal has another size.
    #[doc(alias = "SIGWINCH")]
    pub const WINCH: i32 = abi::SIGWINCH as i32;
    /// A descriptor is ready.
    #[doc(alias = "SIGIO")]
    pub const IO: i32 = abi::SIGIO as i32;
    /// Power failure.
    #[doc(alias = "SIGPWR")]
    pub const PWR: i32 = abi::SIGPWR as i32;
    /// A seccomp filter rejects a system call.
    #[doc(alias = "SIGSYS")]
    pub const SYS: i32 = abi::SIGSYS as i32;
}

/// The resources of [`Command::limit`](crate::Command::limit).
///
/// # Examples
/// ```
/// use spawnfd::{Command, rlimit};
/// let output = Command::new("sh").args(["-c", "ulimit -n"]).limit(rlimit::NOFILE, Some(50), Some(60)).run()?;
/// assert_eq!(output.stdout_text(), "50\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
///
/// # References
/// getrlimit(2)
pub mod rlimit {
    use spawnfd_sys::abi;

    /// CPU time, in seconds.
    #[doc(alias = "RLIMIT_CPU")]
    pub const CPU: u32 = abi::RLIMIT_CPU;
    /// Size of a file that the process writes, in bytes.
    #[doc(alias = "RLIMIT_FSIZE")]
    pub const FSIZE: u32 = abi::RLIMIT_FSIZE;
    /// Size of the data segment, in bytes.
    #[doc(alias = "RLIMIT_DATA")]
    pub const DATA: u32 = abi::RLIMIT_DATA;
    /// Size of the main thread's stack, in bytes.
    #[doc(alias = "RLIMIT_STACK")]
    pub const STACK: u32 = abi::RLIMIT_STACK;
    /// Size of a core dump, in bytes.
    #[doc(alias = "RLIMIT_CORE")]
    pub const CORE: u32 = abi::RLIMIT_CORE;
    /// No effect since Linux 2.4.30.
    #[doc(alias = "RLIMIT_RSS")]
    pub const RSS: u32 = abi::RLIMIT_RSS;
    /// Number of the user's processes and threads.
    #[doc(alias = "RLIMIT_NPROC")]
    pub const NPROC: u32 = abi::RLIMIT_NPROC;
    /// One more than the highest descriptor number.
    #[doc(alias = "RLIMIT_NOFILE")]
    pub const NOFILE: u32 = abi::RLIMIT_NOFILE;
    /// Locked memory, in bytes.
    #[doc(alias = "RLIMIT_MEMLOCK")]
    pub const MEMLOCK: u32 = abi::RLIMIT_MEMLOCK;
    /// Size of the address space, in bytes.
    #[doc(alias = "RLIMIT_AS")]
    pub const AS: u32 = abi::RLIMIT_AS;
    /// No effect since Linux 2.4.25.
    #[doc(alias = "RLIMIT_LOCKS")]
    pub const LOCKS: u32 = abi::RLIMIT_LOCKS;
    /// Number of the user's queued signals.
    #[doc(alias = "RLIMIT_SIGPENDING")]
    pub const SIGPENDING: u32 = abi::RLIMIT_SIGPENDING;
    /// Size of the user's POSIX message queues, in bytes.
    #[doc(alias = "RLIMIT_MSGQUEUE")]
    pub const MSGQUEUE: u32 = abi::RLIMIT_MSGQUEUE;
    /// 20 minus the lowest nice value.
    #[doc(alias = "RLIMIT_NICE")]
    pub const NICE: u32 = abi::RLIMIT_NICE;
    /// Highest real-time priority.
    #[doc(alias = "RLIMIT_RTPRIO")]
    pub const RTPRIO: u32 = abi::RLIMIT_RTPRIO;
    /// CPU time of a real-time process without a blocking system call, in microseconds.
    #[doc(alias = "RLIMIT_RTTIME")]
    pub const RTTIME: u32 = abi::RLIMIT_RTTIME;
}

/// The policies of [`Command::scheduler`](crate::Command::scheduler).
///
/// # Examples
/// ```
/// use spawnfd::{Command, scheduler};
/// let output = Command::new("cat").arg("/proc/self/stat").scheduler(scheduler::BATCH, 0).run()?;
/// // Field 41 is the policy: proc_pid_stat(5).
/// assert_eq!(output.stdout_text().split(' ').nth(40), Some("3"));
/// # Ok::<(), spawnfd::Error>(())
/// ```
///
/// # References
/// sched(7)
pub mod scheduler {
    use spawnfd_sys::abi;

    /// The default: time sharing.
    #[doc(alias = "SCHED_OTHER")]
    pub const OTHER: u32 = abi::SCHED_NORMAL;
    /// Real time, first in, first out.
    #[doc(alias = "SCHED_FIFO")]
    pub const FIFO: u32 = abi::SCHED_FIFO;
    /// Real time, round robin.
    #[doc(alias = "SCHED_RR")]
    pub const RR: u32 = abi::SCHED_RR;
    /// For programs that use much CPU time and need no quick response.
    #[doc(alias = "SCHED_BATCH")]
    pub const BATCH: u32 = abi::SCHED_BATCH;
    /// Runs only if no other program needs the processor.
    #[doc(alias = "SCHED_IDLE")]
    pub const IDLE: u32 = abi::SCHED_IDLE;
}
