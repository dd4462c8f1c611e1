// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs: programs whose output the caller can read while they run.

use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::{pid_t, ssize_t};
use rustix::event::{EventfdFlags, eventfd};
use spawnfd::Job;
use spawnfd::internal::{CallOptions, PerProcess};
use spawnfd::job::{Event, EventOptions, Events, TerminalSize, Until};

use super::error::{Answer, Failed, Owner, answer, bytes, forked, free, milliseconds, object};
use super::result::spawnfd_result;
use super::spawnfd_error;

/// The size of the first version of `struct spawnfd_line`.
pub const SPAWNFD_LINE_SIZE_VER0: u32 = 40;

/// The longest line in bytes. A longer one is split.
pub const SPAWNFD_LINE_MAX: u32 = 65536;

/// A line of a job's output. Initialize it with `SPAWNFD_LINE_INIT`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spawnfd_line {
    /// `sizeof(struct spawnfd_line)`, which the caller sets.
    pub size: u32,
    /// The stream: 1 for standard output, 2 for standard error; 0 at the end of the output.
    pub stream: u32,
    /// The number of bytes of both streams that arrived before the line.
    pub position: u64,
    /// The number of bytes that were dropped just before the line, because the caller read too slowly.
    pub lost: u64,
    /// The length of `text` in bytes, without the NUL character.
    pub length: usize,
    /// The line with its line end, and a NUL character. Valid until the job's next line is read, or the job is freed.
    pub text: *const c_char,
}

const _: () = assert!(size_of::<spawnfd_line>() == SPAWNFD_LINE_SIZE_VER0 as usize);

/// A program that the library has started and watches.
#[derive(Debug)]
pub struct spawnfd_job {
    owner: Owner,
    job: Job,
    /// `None` in a forked process.
    lines: PerProcess<Option<LineReader>>,
    ready: Arc<Ready>,
}

#[derive(Debug)]
struct LineReader {
    events: Events,
    /// The bytes of the latest line, with a NUL character.
    line: Vec<u8>,
    lost: u64,
}

/// An eventfd that is readable while there may be something to read.
#[derive(Debug)]
struct Ready(OwnedFd);

impl Ready {
    fn set(&self) {
        // The counter cannot overflow: a full one is readable, and EAGAIN does no harm.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl spawnfd_job {
    pub(super) fn create(
        options: &CallOptions,
        start: impl FnOnce(EventOptions) -> spawnfd::Result<(Job, Events)>,
    ) -> Answer<*mut spawnfd_job> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ready = Arc::new(Ready(fd.map_err(|errno| Failed::system("eventfd()", &errno.into()))?));
        // The lines end with the result, so that the descriptor of an ended job is not readable without a reason.
        let events = options.events().lines(SPAWNFD_LINE_MAX as usize).until(Until::Result);
        let (job, mut events) = start(events)?;
        let notify = || {
            let ready = ready.clone();
            move || ready.set()
        };
        job.on_output(notify());
        job.when_done(notify());
        events.on_event(notify());
        let reader = LineReader { events, line: Vec::new(), lost: 0 };
        let lines = PerProcess::for_this_process(Some(reader), || None);
        Ok(Box::into_raw(Box::new(spawnfd_job { owner: Owner::this_process(), job, lines, ready })))
    }

    /// Makes the descriptor unreadable, unless the job has its result, or `has_more` finds something to read. Returns
    /// whether it has found something.
    fn settle(&self, has_more: impl FnOnce() -> bool) -> bool {
        self.ready.clear();
        let has_more = has_more();
        if has_more || !matches!(self.job.try_wait(), Ok(None)) {
            self.ready.set();
        }
        has_more
    }

    /// # Errors
    /// EAGAIN, ETIMEDOUT: there is no line yet.
    fn next_line(&self, timeout: c_int) -> Answer<spawnfd_line> {
        let mut lines = self.lines.lock();
        let LineReader { events, line, lost } = lines.as_mut().ok_or_else(|| forked("job"))?;
        loop {
            let event = match timeout {
                0 => events.try_next(),
                _ => events.next_timeout(milliseconds(timeout)),
            };
            let (stream, position) = match event {
                Some(Event::Line { stream, position, bytes, end, .. }) => {
                    *line = [&bytes[..], end.as_bytes(), b"\0"].concat();
                    (stream.index() as u32 + 1, position)
                }
                Some(Event::Lost { bytes, .. }) => {
                    *lost += bytes;
                    continue;
                }
                Some(Event::End) => {
                    *line = vec![0];
                    (0, 0)
                }
                Some(_) => continue,
                None if self.settle(|| events.has_next()) => continue,
                None if timeout == 0 => return Err(Failed::new(libc::EAGAIN, "there is no line yet")),
                None => return Err(Failed::new(libc::ETIMEDOUT, format!("there was no line for {timeout} ms"))),
            };
            return Ok(spawnfd_line {
                size: 0,
                stream,
                position,
                lost: std::mem::take(lost),
                length: line.len() - 1,
                text: line.as_ptr().cast(),
            });
        }
    }

    /// Copies output from `cursor` on.
    fn read(&self, cursor: &mut u64, buffer: &mut [u8], lost: Option<&mut u64>) -> Answer<usize> {
        let ended = self.job.output_has_ended();
        let read = || self.job.read_up_to(*cursor, buffer.len());
        let mut chunk = read();
        if chunk.bytes.is_empty() && !ended && self.settle(|| !read().bytes.is_empty()) {
            chunk = read();
        }
        let length = chunk.bytes.len();
        buffer[..length].copy_from_slice(&chunk.bytes);
        if let Some(lost) = lost {
            *lost = chunk.lost;
        }
        *cursor = chunk.next;
        if length == 0 && !ended {
            return Err(Failed::new(libc::EAGAIN, "there is no further output yet"));
        }
        Ok(length)
    }
}

/// Runs the body of a function with a job of this process.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
unsafe fn with<T>(
    job: *const spawnfd_job,
    error: *mut spawnfd_error,
    failure: T,
    body: impl FnOnce(&spawnfd_job) -> Answer<T>,
) -> T {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, failure, || {
            let job = object(job, "job")?;
            job.owner.check("job")?;
            body(job)
        })
    }
}

/// Ends the program and its process tree if they still run, and frees the job. NULL has no effect.
///
/// The call does not wait. The tree gets SIGTERM, and SIGKILL after the option `grace`; if this process ends before, it
/// gets SIGKILL at once. In a forked process, the call has no effect.
///
/// # Safety
/// `job` is NULL or a job that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_free(job: *mut spawnfd_job) {
    // SAFETY: the caller guarantees the pointer, which is from `spawnfd_job::create`.
    unsafe { free(job, |job| &job.owner) }
}

/// Frees the job and lets the program run on. The library still watches, drains and reaps it.
///
/// The program's process tree ends with this process, unless the option `tree` is `group`.
///
/// # Errors
/// Returns -1, sets errno, and does not free the job. EINVAL: `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or a job that no thread uses. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_detach(job: *mut spawnfd_job, error: *mut spawnfd_error) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |_| {
            let spawnfd_job { job, .. } = *Box::from_raw(job);
            job.detach();
            Ok(0)
        })
    }
}

/// Returns a descriptor for poll(2), which belongs to the job: the caller must neither read, write nor close it.
///
/// It becomes readable (POLLIN) when output arrives and when the job has its result. It stays readable until a call of
/// `spawnfd_job_next_line` or `spawnfd_job_read` fails with EAGAIN or ETIMEDOUT. Once the job has its result, it stays
/// readable. So use only one of these functions with the descriptor, and call it until it fails or returns 0. The
/// descriptor is close-on-exec.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_fd(job: *const spawnfd_job) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    unsafe { with(job, ptr::null_mut(), -1, |job| Ok(job.ready.0.as_raw_fd())) }
}

/// Returns the program's process id, for printing. Another process may have the same id once the program has ended.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_pid(job: *const spawnfd_job) -> pid_t {
    // SAFETY: the caller guarantees the pointer.
    unsafe { with(job, ptr::null_mut(), -1, |job| Ok(job.job.id() as pid_t)) }
}

/// Stores the next line of the job's output. Returns 1, or 0 once all lines up to the job's result have been read.
///
/// Waits up to `timeout_ms` milliseconds; 0: does not wait; negative: without end. The line includes its line end, as
/// getline(3) returns it. A line without one is the last of its stream, or a part of a line that is longer than
/// `SPAWNFD_LINE_MAX` bytes. Bytes that exceed the option `window` are dropped, unless the option `hold` is `true`;
/// the member `lost` of the next line counts them. One thread at a time reads lines; other threads wait for it.
///
/// # Errors
/// Returns -1, sets errno, and leaves `line` unchanged. EAGAIN: there is no line, and `timeout_ms` is 0. ETIMEDOUT: there
/// was no line in time. EINVAL: the member `size` is too small, or an argument is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `line` is NULL or points to a struct with its size. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_next_line(
    job: *const spawnfd_job,
    line: *mut spawnfd_line,
    timeout_ms: c_int,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers. A later version of the struct begins with the members of this one.
    unsafe {
        with(job, error, -1, |job| {
            let size = object(line, "line")?.size;
            if size < SPAWNFD_LINE_SIZE_VER0 {
                return Err(Failed::invalid("line.size is too small: initialize the struct with SPAWNFD_LINE_INIT"));
            }
            let next = job.next_line(timeout_ms)?;
            line.write(spawnfd_line { size, ..next });
            let rest = size as usize - size_of::<spawnfd_line>();
            line.cast::<u8>().add(size_of::<spawnfd_line>()).write_bytes(0, rest);
            Ok((next.stream != 0).into())
        })
    }
}

/// Copies output of both streams from position `*cursor` on into `buffer`, and advances `*cursor`. Does not wait.
///
/// Returns the number of bytes, or 0 at the end of the output. A position is a number of bytes of both streams in order of
/// arrival, and 0 at first. The job keeps the last bytes of the output, 1 MiB unless the option `window` is set. `*lost`
/// receives the number of bytes after `*cursor` that the job no longer has; `lost` may be NULL. Any number of readers
/// can read with cursors of their own.
///
/// # Errors
/// Returns -1 and sets errno. EAGAIN: there is no further output yet. EINVAL: `size` is 0, or an argument is NULL.
/// ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `cursor` and `lost` are NULL or valid. `buffer` is valid for writes of `size` bytes. `error` is
/// NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_read(
    job: *const spawnfd_job,
    cursor: *mut u64,
    buffer: *mut c_void,
    size: usize,
    lost: *mut u64,
    error: *mut spawnfd_error,
) -> ssize_t {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            let cursor = cursor.as_mut().ok_or_else(|| Failed::invalid("cursor must not be NULL"))?;
            if buffer.is_null() || size == 0 {
                return Err(Failed::invalid("the buffer must not be NULL or empty"));
            }
            // The buffer may be uninitialized, so it gets zeros before it is a slice.
            buffer.cast::<u8>().write_bytes(0, size);
            let buffer = core::slice::from_raw_parts_mut(buffer.cast::<u8>(), size);
            job.read(cursor, buffer, lost.as_mut()).map(|length| length as ssize_t)
        })
    }
}

/// Queues input for a program whose option `stdin` is `stream`. Returns the number of bytes that were accepted.
///
/// Waits up to `timeout_ms` milliseconds for space in the queue of 64 KiB; 0: does not wait; negative: without end. The
/// number may be less than `length`.
///
/// # Errors
/// Returns -1 and sets errno. EAGAIN: the queue is full, and `timeout_ms` is 0. ETIMEDOUT: no byte was accepted in time.
/// EPIPE: the program reads no more. EBADF: the option `stdin` is not `stream`. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `data` is valid for reads of `length` bytes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_write(
    job: *const spawnfd_job,
    data: *const c_void,
    length: usize,
    timeout_ms: c_int,
    error: *mut spawnfd_error,
) -> ssize_t {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            let data = bytes(data, length)?;
            let accepted = match timeout_ms {
                0 => job.job.write(data)?,
                _ => job.job.write_timeout(data, milliseconds(timeout_ms))?,
            };
            match accepted {
                0 if !data.is_empty() && timeout_ms == 0 => Err(Failed::new(libc::EAGAIN, "the input queue is full")),
                0 if !data.is_empty() => {
                    Err(Failed::new(libc::ETIMEDOUT, format!("the input queue was full for {timeout_ms} ms")))
                }
                _ => Ok(accepted as ssize_t),
            }
        })
    }
}

/// Ends the program's input: the program reads EOF after the queued bytes.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_close_stdin(job: *const spawnfd_job, error: *mut spawnfd_error) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            job.job.close_stdin();
            Ok(0)
        })
    }
}

/// Waits for the end of the job, and returns its result, which the caller frees. Each call returns a result of its own.
///
/// Waits up to `timeout_ms` milliseconds; 0: does not wait; negative: without end. The timeout does not affect the program.
///
/// # Errors
/// Returns NULL and sets errno. ETIMEDOUT: the job has not ended yet. ECHILD: a forked process. Otherwise the errors of
/// `spawnfd_run`: the child could not start the program.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_wait(
    job: *const spawnfd_job,
    timeout_ms: c_int,
    error: *mut spawnfd_error,
) -> *mut spawnfd_result {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, ptr::null_mut(), |job| {
            let output = match timeout_ms {
                ..0 => Some(job.job.wait()?),
                _ => job.job.wait_timeout(milliseconds(timeout_ms))?,
            };
            let running = || Failed::new(libc::ETIMEDOUT, format!("the job still runs after {timeout_ms} ms"));
            Ok(spawnfd_result::create(output.ok_or_else(running)?))
        })
    }
}

/// Ends the program and its process tree: sends SIGTERM, and SIGKILL after `grace_ms` milliseconds. Does not wait.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `job` is NULL, or `grace_ms` is negative. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_stop(
    job: *const spawnfd_job,
    grace_ms: c_int,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            if grace_ms < 0 {
                return Err(Failed::invalid(format!("grace_ms must be >= 0, got {grace_ms}")));
            }
            job.job.stop(milliseconds(grace_ms));
            Ok(0)
        })
    }
}

/// Sends a signal to the program, or to its whole process tree if `tree` is not 0.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: there is no such signal, or `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_signal(
    job: *const spawnfd_job,
    signal: c_int,
    tree: c_int,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            job.job.signal(signal, tree != 0)?;
            Ok(0)
        })
    }
}

/// Changes the size of the terminal of a job with the option `terminal`; its foreground process group gets SIGWINCH.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `job` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_job_resize(
    job: *const spawnfd_job,
    columns: u16,
    rows: u16,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(job, error, -1, |job| {
            job.job.resize(TerminalSize::new(rows, columns));
            Ok(0)
        })
    }
}
