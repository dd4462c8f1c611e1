// SPDX-License-Identifier: MIT OR Apache-2.0
//! Busy threads. Each repeatedly computes for some 20 us and makes a short system call that uses the descriptor
//! table.
//!
//! A page of shared memory controls the threads. So the same code runs in the parent itself or, for the control
//! measurement, in another process. Between blocks the threads sleep on a futex.

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
use crate::worker::protocol::BusyPolicy;

/// Orders to the threads.
const PARK: u32 = 0;
const RUN: u32 = 1;
const END: u32 = 2;

const MAX_THREADS: usize = 1024;
/// The time limit for all threads to follow an order.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The content of the shared page.
#[repr(C)]
struct Control {
    /// The current order; also the futex on which parked threads sleep.
    order: AtomicU32,
    /// The number of parked threads.
    parked: AtomicU32,
    /// The CPU time of each thread.
    cpu_ns: [Counter; MAX_THREADS],
}

/// A counter with a cache line of its own.
#[repr(C, align(64))]
struct Counter(AtomicU64);

/// The mapping of the shared page.
#[derive(Debug)]
struct ControlPage(NonNull<Control>);

// SAFETY: the mapping holds only atomics, and exists until the ControlPage is dropped.
unsafe impl Send for ControlPage {}
// SAFETY: the mapping holds only atomics, so several threads may use it at once.
unsafe impl Sync for ControlPage {}

impl ControlPage {
    fn map(memory: BorrowedFd<'_>) -> Result<Self> {
        let size = size_of::<Control>();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe {
            mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory, 0)?
        };
        Ok(Self(NonNull::new(at.cast()).expect("mmap does not return null")))
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping has the size of Control, is page-aligned and writable, and zero-filled atomics are
        // valid. It exists until the ControlPage is dropped.
        unsafe { self.0.as_ref() }
    }

    fn order(&self, order: u32) -> Result<()> {
        self.control().order.store(order, Ordering::Release);
        futex::wake(&self.control().order, futex::Flags::empty(), u32::MAX >> 1)?;
        Ok(())
    }

    /// The main function of a busy thread: follows the orders until `END`.
    fn run_thread(&self, number: usize, policy: BusyPolicy) {
        if policy == BusyPolicy::Idle {
            use_idle_policy();
        }
        let control = self.control();
        let mut x = number as u64;
        loop {
            match control.order.load(Ordering::Acquire) {
                RUN => {
                    for _ in 0..10_000 {
                        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                    let _ = fstat(std::io::stdin());
                    let cpu = clock_gettime(ClockId::ThreadCPUTime);
                    let ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
                    control.cpu_ns[number].0.store(ns, Ordering::Relaxed);
                }
                PARK => {
                    control.parked.fetch_add(1, Ordering::AcqRel);
                    // The wait may return early. The loop then reads the order again.
                    let _ = futex::wait(&control.order, futex::Flags::empty(), PARK, None);
                    control.parked.fetch_sub(1, Ordering::AcqRel);
                }
                _ => return,
            }
        }
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: `map` created the mapping with this size, and no reference to it outlives the ControlPage.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Control>()) };
    }
}

/// Puts the calling thread under SCHED_IDLE, which requires no privilege.
fn use_idle_policy() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 means the calling thread, and the call only reads the parameter.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
    assert_eq!(result, 0, "SCHED_IDLE: {}", std::io::Error::last_os_error());
}

/// Busy threads, in this process or in another one.
#[derive(Debug)]
pub struct Busy {
    page: std::sync::Arc<ControlPage>,
    count: usize,
    threads: Vec<JoinHandle<()>>,
    process: Option<Child>,
    /// The time of the last start, and the threads' CPU time at that moment.
    started: Option<(Instant, u64)>,
}

impl Busy {
    /// Creates `count` parked threads. With `elsewhere`, creates them in another process.
    ///
    /// # Errors
    ///
    /// The shared page, a thread or the other process cannot be created.
    pub fn new(count: usize, elsewhere: bool, policy: BusyPolicy) -> Result<Self> {
        ensure!(count <= MAX_THREADS, "at most {MAX_THREADS} busy threads");
        let memory = memfd_create("busy", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, size_of::<Control>() as u64)?;
        let page = std::sync::Arc::new(ControlPage::map(memory.as_fd())?);
        let mut busy = Self { page, count, threads: Vec::new(), process: None, started: None };
        if elsewhere {
            let program = std::env::current_exe()?;
            let mut flags = vec![format!("--busy={count}")];
            if policy == BusyPolicy::Idle {
                flags.push("--busy-idle".to_owned());
            }
            busy.process = Some(Command::new(program).args(flags).stdin(Stdio::from(memory)).spawn()?);
        } else {
            for number in 0..count {
                let page = busy.page.clone();
                let thread =
                    std::thread::Builder::new().stack_size(64 << 10).spawn(move || page.run_thread(number, policy))?;
                busy.threads.push(thread);
            }
        }
        busy.stop()?;
        Ok(busy)
    }

    /// Starts the threads, and waits until each has run. From then on, all of them compete for the CPUs.
    ///
    /// # Errors
    ///
    /// A thread does not run within a minute.
    pub fn start(&mut self) -> Result<()> {
        let counters = &self.page.control().cpu_ns[..self.count];
        let before: Vec<u64> = counters.iter().map(|c| c.0.load(Ordering::Relaxed)).collect();
        self.page.order(RUN)?;
        wait_until("run", || counters.iter().zip(&before).all(|(c, b)| c.0.load(Ordering::Relaxed) > *b))?;
        self.started = Some((Instant::now(), self.cpu_ns()));
        Ok(())
    }

    /// Returns the total CPU time of the threads, in ns.
    fn cpu_ns(&self) -> u64 {
        self.page.control().cpu_ns[..self.count].iter().map(|c| c.0.load(Ordering::Relaxed)).sum()
    }

    /// Parks the threads, and waits until all are parked. Returns their share of all CPU time since `start`, in %.
    ///
    /// # Errors
    ///
    /// A thread does not park within a minute.
    pub fn stop(&self) -> Result<f64> {
        let cpus = std::thread::available_parallelism()?.get() as f64;
        let share = self.started.map_or(0.0, |(start, cpu_ns)| {
            100.0 * (self.cpu_ns() - cpu_ns) as f64 / (start.elapsed().as_nanos() as f64 * cpus)
        });
        self.page.order(PARK)?;
        wait_until("park", || self.page.control().parked.load(Ordering::Acquire) as usize == self.count)?;
        Ok(share)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.page.order(END);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(mut child) = self.process.take() {
            let _ = child.wait();
        }
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > TIME_LIMIT {
            bail!("the busy threads did not {what} within {TIME_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The main function of the other process. Its stdin is the memfd of the control page. The process dies with its
/// worker.
///
/// # Errors
///
/// Stdin cannot be mapped, or a thread cannot be started.
pub fn run(count: usize, policy: BusyPolicy) -> Result<()> {
    ensure!(count <= MAX_THREADS, "at most {MAX_THREADS} busy threads");
    // The kernel sends SIGKILL when the thread that created this process ends. That is the worker's
    // main thread, which ends with the worker.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let page = ControlPage::map(std::io::stdin().as_fd())?;
    std::thread::scope(|scope| {
        for number in 0..count {
            let page = &page;
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || page.run_thread(number, policy))?;
        }
        Ok(())
    })
}
