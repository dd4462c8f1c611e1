// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named numbers for functions that take the kernel's numbers.

/// Defines constants with the kernel's numbers. An entry has the name, the kernel's name, and the name that the man
/// pages use, by which the documentation also finds the constant.
macro_rules! numbers {
    ($type:ty { $($(#[doc = $doc:literal])+ $name:ident = $number:ident, $alias:literal;)+ }) => { $(
        $(#[doc = $doc])+
        #[doc(alias = $alias)]
        pub const $name: $type = abi::$number as $type;
    )+ };
}

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

    numbers!(i32 {
        /// The terminal has hung up. Many daemons reload their configuration.
        HUP = SIGHUP, "SIGHUP";
        /// Interrupt, as by Ctrl-C.
        INT = SIGINT, "SIGINT";
        /// Quit with a core dump, as by Ctrl-\\.
        QUIT = SIGQUIT, "SIGQUIT";
        /// Illegal instruction.
        ILL = SIGILL, "SIGILL";
        /// Breakpoint.
        TRAP = SIGTRAP, "SIGTRAP";
        /// The process has called abort(3).
        ABRT = SIGABRT, "SIGABRT";
        /// Access to memory that has no backing.
        BUS = SIGBUS, "SIGBUS";
        /// Arithmetic error.
        FPE = SIGFPE, "SIGFPE";
        /// Ends the process. No process can catch, block or ignore this signal.
        KILL = SIGKILL, "SIGKILL";
        /// For the application's own use.
        USR1 = SIGUSR1, "SIGUSR1";
        /// Invalid memory access.
        SEGV = SIGSEGV, "SIGSEGV";
        /// For the application's own use.
        USR2 = SIGUSR2, "SIGUSR2";
        /// Write to a pipe or socket without a reader.
        PIPE = SIGPIPE, "SIGPIPE";
        /// Timer of alarm(2).
        ALRM = SIGALRM, "SIGALRM";
        /// Asks the process to end.
        TERM = SIGTERM, "SIGTERM";
        /// Unused by the kernel.
        STKFLT = SIGSTKFLT, "SIGSTKFLT";
        /// A child has ended or stopped.
        CHLD = SIGCHLD, "SIGCHLD";
        /// Continues a stopped process.
        CONT = SIGCONT, "SIGCONT";
        /// Stops the process. No process can catch, block or ignore this signal.
        STOP = SIGSTOP, "SIGSTOP";
        /// Stop, as by Ctrl-Z.
        TSTP = SIGTSTP, "SIGTSTP";
        /// Read from the terminal by a background process.
        TTIN = SIGTTIN, "SIGTTIN";
        /// Write to the terminal by a background process.
        TTOU = SIGTTOU, "SIGTTOU";
        /// Urgent data on a socket.
        URG = SIGURG, "SIGURG";
        /// The process has reached its soft limit of CPU time.
        XCPU = SIGXCPU, "SIGXCPU";
        /// A file would exceed the limit of its size.
        XFSZ = SIGXFSZ, "SIGXFSZ";
        /// Timer of user CPU time.
        VTALRM = SIGVTALRM, "SIGVTALRM";
        /// Timer of CPU time.
        PROF = SIGPROF, "SIGPROF";
        /// The terminal has another size.
        WINCH = SIGWINCH, "SIGWINCH";
        /// A descriptor is ready.
        IO = SIGIO, "SIGIO";
        /// Power failure.
        PWR = SIGPWR, "SIGPWR";
        /// A seccomp filter rejects a system call.
        SYS = SIGSYS, "SIGSYS";
    });
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

    numbers!(u32 {
        /// CPU time, in seconds.
        CPU = RLIMIT_CPU, "RLIMIT_CPU";
        /// Size of a file that the process writes, in bytes.
        FSIZE = RLIMIT_FSIZE, "RLIMIT_FSIZE";
        /// Size of the data segment, in bytes.
        DATA = RLIMIT_DATA, "RLIMIT_DATA";
        /// Size of the main thread's stack, in bytes.
        STACK = RLIMIT_STACK, "RLIMIT_STACK";
        /// Size of a core dump, in bytes.
        CORE = RLIMIT_CORE, "RLIMIT_CORE";
        /// No effect since Linux 2.4.30.
        RSS = RLIMIT_RSS, "RLIMIT_RSS";
        /// Number of the user's processes and threads.
        NPROC = RLIMIT_NPROC, "RLIMIT_NPROC";
        /// One more than the highest descriptor number.
        NOFILE = RLIMIT_NOFILE, "RLIMIT_NOFILE";
        /// Locked memory, in bytes.
        MEMLOCK = RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK";
        /// Size of the address space, in bytes.
        AS = RLIMIT_AS, "RLIMIT_AS";
        /// No effect since Linux 2.4.25.
        LOCKS = RLIMIT_LOCKS, "RLIMIT_LOCKS";
        /// Number of the user's queued signals.
        SIGPENDING = RLIMIT_SIGPENDING, "RLIMIT_SIGPENDING";
        /// Size of the user's POSIX message queues, in bytes.
        MSGQUEUE = RLIMIT_MSGQUEUE, "RLIMIT_MSGQUEUE";
        /// 20 minus the lowest nice value.
        NICE = RLIMIT_NICE, "RLIMIT_NICE";
        /// Highest real-time priority.
        RTPRIO = RLIMIT_RTPRIO, "RLIMIT_RTPRIO";
        /// CPU time of a real-time process without a blocking system call, in microseconds.
        RTTIME = RLIMIT_RTTIME, "RLIMIT_RTTIME";
    });
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

    numbers!(u32 {
        /// The default: time sharing.
        OTHER = SCHED_NORMAL, "SCHED_OTHER";
        /// Real time, first in, first out.
        FIFO = SCHED_FIFO, "SCHED_FIFO";
        /// Real time, round robin.
        RR = SCHED_RR, "SCHED_RR";
        /// For programs that use much CPU time and need no quick response.
        BATCH = SCHED_BATCH, "SCHED_BATCH";
        /// Runs only if no other program needs the processor.
        IDLE = SCHED_IDLE, "SCHED_IDLE";
    });
}
