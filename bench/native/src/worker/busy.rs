// SPDX-License-Identifier: MIT OR Apache-2.0
//! Busy threads: they compute for some 20 us, make a short system call that looks at the descriptor table, and again.
//!
//! They obey a page of shared memory, so that the same code runs in the parent itself or, as the control, in another
//! process; between blocks they sleep on a futex.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::Result;
use crate::definitions::BusyPolicy;

const PARK: u32 = 0;
const RUN: u32 = 1;
const END: u32 = 2;
const MOST_THREADS: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(60);

#[repr(C)]
struct Shared {
    order: AtomicU32,
    parked: AtomicU32,
    cpu_ns: [Counter; MOST_THREADS],
}

/// A counter with a cache line of its own.
#[repr(C, align(64))]
struct Counter(AtomicU64);

/// The shared page, mapped.
#[derive(Debug)]
struct Board(NonNull<Shared>);

// SAFETY: the mapping holds nothing but atomics, and lives until the last owner of the Board is gone.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    fn map(memory: BorrowedFd<'_>) -> Result<Self> {
        let size = size_of::<Shared>();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe {
            mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory, 0)?
        };
        Ok(Self(NonNull::new(at.cast()).expect("mmap does not return null")))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is as long as Shared, page-aligned, writable and, being zero-filled atomics, valid; it
        // is unmapped only when the Board is dropped.
        unsafe { self.0.as_ref() }
    }

    fn order(&self, order: u32) -> Result<()> {
        self.shared().order.store(order, Ordering::Release);
        futex::wake(&self.shared().order, futex::Flags::empty(), u32::MAX >> 1)?;
        Ok(())
    }

    /// A busy thread's whole life.
    fn obey(&self, number: usize, policy: BusyPolicy) {
        if policy == BusyPolicy::Idle {
            give_way();
        }
        let shared = self.shared();
        let mut x = number as u64;
        loop {
            match shared.order.load(Ordering::Acquire) {
                RUN => {
                    for _ in 0..10_000 {
                        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                    let _ = fstat(std::io::stdin());
                    let cpu = clock_gettime(ClockId::ThreadCPUTime);
                    let ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
                    shared.cpu_ns[number].0.store(ns, Ordering::Relaxed);
                }
                PARK => {
                    shared.parked.fetch_add(1, Ordering::AcqRel);
                    // An interrupted or outdated wait is seen by the next look at the order.
                    let _ = futex::wait(&shared.order, futex::Flags::empty(), PARK, None);
                    shared.parked.fetch_sub(1, Ordering::AcqRel);
                }
                _ => return,
            }
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this size, and no reference to it outlives the Board.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Shared>()) };
    }
}

/// Puts the calling thread under SCHED_IDLE, which needs no privilege.
fn give_way() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread; the parameter is read only.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
    assert_eq!(answer, 0, "SCHED_IDLE: {}", std::io::Error::last_os_error());
}

/// Busy threads, here or in another process.
#[derive(Debug)]
pub struct Busy {
    board: std::sync::Arc<Board>,
    count: usize,
    here: Vec<JoinHandle<()>>,
    elsewhere: Option<Child>,
    started: Option<(Instant, u64)>,
}

impl Busy {
    /// Starts `count` threads, parked.
    ///
    /// # Errors
    ///
    /// Memory, a thread or the other process cannot be had.
    pub fn new(count: usize, elsewhere: bool, policy: BusyPolicy) -> Result<Self> {
        ensure!(count <= MOST_THREADS, "at most {MOST_THREADS} busy threads");
        let memory = memfd_create("busy", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, size_of::<Shared>() as u64)?;
        let board = std::sync::Arc::new(Board::map(memory.as_fd())?);
        let mut busy = Self { board, count, here: Vec::new(), elsewhere: None, started: None };
        if elsewhere {
            let program = std::env::current_exe()?;
            let mut role = vec![format!("--busy={count}")];
            if policy == BusyPolicy::Idle {
                role.push("--busy-idle".to_owned());
            }
            busy.elsewhere = Some(Command::new(program).args(role).stdin(Stdio::from(memory)).spawn()?);
        } else {
            for number in 0..count {
                let board = busy.board.clone();
                let thread =
                    std::thread::Builder::new().stack_size(64 << 10).spawn(move || board.obey(number, policy))?;
                busy.here.push(thread);
            }
        }
        busy.stop()?;
        Ok(busy)
    }

    /// Lets them run, and waits until each has worked: from then on all of them compete for the CPUs.
    ///
    /// # Errors
    ///
    /// One of them does not run within a minute.
    pub fn start(&mut self) -> Result<()> {
        let counters = &self.board.shared().cpu_ns[..self.count];
        let before: Vec<u64> = counters.iter().map(|c| c.0.load(Ordering::Relaxed)).collect();
        self.board.order(RUN)?;
        wait_until("run", || counters.iter().zip(&before).all(|(c, b)| c.0.load(Ordering::Relaxed) > *b))?;
        self.started = Some((Instant::now(), self.cpu_ns()));
        Ok(())
    }

    /// CPU time that all of them have had.
    fn cpu_ns(&self) -> u64 {
        self.board.shared().cpu_ns[..self.count].iter().map(|c| c.0.load(Ordering::Relaxed)).sum()
    }

    /// Parks them, waits until all are parked, and returns how much of all CPUs' time they had since `start`, in %.
    ///
    /// # Errors
    ///
    /// One of them does not park within a minute.
    pub fn stop(&self) -> Result<f64> {
        let cpus = std::thread::available_parallelism()?.get() as f64;
        let share = self.started.map_or(0.0, |(start, cpu_ns)| {
            100.0 * (self.cpu_ns() - cpu_ns) as f64 / (start.elapsed().as_nanos() as f64 * cpus)
        });
        self.board.order(PARK)?;
        wait_until("park", || self.board.shared().parked.load(Ordering::Acquire) as usize == self.count)?;
        Ok(share)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.board.order(END);
        for thread in self.here.drain(..) {
            let _ = thread.join();
        }
        if let Some(mut child) = self.elsewhere.take() {
            let _ = child.wait();
        }
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > PATIENCE {
            bail!("the busy threads do not {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The other process: busy threads that obey the page behind stdin, and end with the worker that started them.
///
/// # Errors
///
/// Stdin is not such a page, or a thread cannot be started.
pub fn run(count: usize, policy: BusyPolicy) -> Result<()> {
    ensure!(count <= MOST_THREADS, "at most {MOST_THREADS} busy threads");
    // The worker's main thread, which started this process, lives as long as the worker.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let board = Board::map(std::io::stdin().as_fd())?;
    std::thread::scope(|scope| {
        for number in 0..count {
            let board = &board;
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, move || board.obey(number, policy))?;
        }
        Ok(())
    })
}
