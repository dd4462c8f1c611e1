// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pipe to the other side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::system::uname;
use spawnfd::Error;
use spawnfd::error::{Errno as ErrorNumber, Stage};
use spawnfd::internal::{Stored, error};

use super::calls::Calls;
use super::{Ended, ServeError};
use crate::frame::{Decoder, Frame, Kind, MARK, MAX_PAYLOAD, Malformed};
use crate::message::{FarHello, NearHello, VERSION, pack, unpack};
use crate::outbox::Outbox;

/// While more bytes than this wait for the other side, the server reads nothing. So a client that does not read cannot
/// make the server use ever more memory.
const MAX_WAITING: usize = 8 << 20;

/// The frames that wait for the other side.
#[derive(Debug, Default)]
struct Outgoing {
    frames: Outbox,
    /// The pipe is full. The main thread writes on when it has room.
    is_full: bool,
}

/// The pipe to the other side. Any thread can send.
#[derive(Debug)]
pub(super) struct Connection {
    output: OwnedFd,
    outgoing: Mutex<Outgoing>,
    /// Wakes the main thread.
    wake: OwnedFd,
    /// The other side reads no more.
    is_lost: AtomicBool,
}

impl Connection {
    pub(super) fn new(output: OwnedFd) -> rustix::io::Result<Connection> {
        stop_blocking(output.as_fd())?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Connection { output, outgoing: Mutex::default(), wake, is_lost: AtomicBool::new(false) })
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame, without waiting for room. `parts` are the parts of the payload. Instead of a result that is too
    /// large for a frame, sends an error.
    pub(super) fn send(&self, kind: Kind, call: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > MAX_PAYLOAD {
            let message = format!("the answer has {length} bytes; a frame has at most {MAX_PAYLOAD}");
            return self.send_error(call, &error(Stage::Capture, ErrorNumber::E2BIG, "remote", &message));
        }
        let mut outgoing = self.outgoing();
        outgoing.frames.push(kind, call, parts);
        if !outgoing.is_full && !self.write(&mut outgoing) {
            drop(outgoing);
            let _ = write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Tells why a call has failed.
    pub(super) fn send_error(&self, call: u32, error: &Error) {
        self.send(Kind::Error, call, &[&pack(&Stored(error))]);
    }

    /// Writes what the pipe accepts. Returns `false` if the main thread has to write the rest or to end.
    fn write(&self, outgoing: &mut Outgoing) -> bool {
        while !outgoing.frames.is_empty() {
            match write(&self.output, outgoing.frames.bytes()) {
                Ok(count) => outgoing.frames.note_written(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    outgoing.is_full = true;
                    return false;
                }
                Err(_) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
        outgoing.is_full = false;
        true
    }

    /// Reads frames until the other side ends.
    pub(super) fn serve(&self, input: &OwnedFd, calls: &Calls) -> Result<Ended, ServeError> {
        stop_blocking(input.as_fd())?;
        self.greet()?;
        let (mut decoder, mut buffer) = (Decoder::default(), vec![0; 64 << 10]);
        let mut lease = None::<Lease>;
        loop {
            let (is_full, reads) = {
                let outgoing = self.outgoing();
                (outgoing.is_full, outgoing.frames.len() <= MAX_WAITING)
            };
            let wanted = |wants: bool, flags| if wants { flags } else { PollFlags::empty() };
            let fds = &mut [
                PollFd::new(input, wanted(reads, PollFlags::IN)),
                PollFd::new(&self.wake, PollFlags::IN),
                PollFd::new(&self.output, wanted(is_full, PollFlags::OUT)),
            ];
            match poll(fds, lease.as_ref().and_then(Lease::wait).map(Timespec::try_from).and_then(Result::ok).as_ref())
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [readable, woken, writable] = [fds[0].revents(), fds[1].revents(), fds[2].revents()];
            if !woken.is_empty() {
                let _ = read(&self.wake, &mut [0; 8]);
            }
            if writable.intersects(PollFlags::ERR | PollFlags::HUP) || self.is_lost.load(Ordering::Relaxed) {
                return Ok(Ended::Closed);
            }
            if !writable.is_empty() {
                self.write(&mut self.outgoing());
                // The pipe was full, and the other side reads. Its answers to pings can come late: the pings wait in the
                // transport behind other frames, and this side may not read now.
                lease.iter_mut().for_each(Lease::note_frame);
            }
            if !readable.is_empty() {
                match read(input, &mut buffer) {
                    Ok(0) => return Ok(Ended::Closed),
                    Ok(count) => {
                        lease.iter_mut().for_each(Lease::note_frame);
                        decoder.feed(&buffer[..count]);
                        while let Some(frame) = decoder.next_frame().map_err(ServeError::Malformed)? {
                            self.handle(frame, calls, &mut lease).map_err(ServeError::Malformed)?;
                        }
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => return Ok(Ended::Closed),
                }
            }
            let Some(lease) = &mut lease else { continue };
            if lease.is_over() {
                return Ok(Ended::Silent);
            }
            if lease.asks() {
                self.send(Kind::Ping, 0, &[]);
            }
        }
    }

    fn greet(&self) -> rustix::io::Result<()> {
        let system = uname();
        let hello = FarHello {
            versions: (VERSION, VERSION),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            host: system.nodename().to_string_lossy().into_owned(),
            machine: system.machine().to_string_lossy().into_owned(),
            pid: std::process::id(),
            calls: ["run", "start", "session", "command"].map(str::to_owned).to_vec(),
        };
        let mut outgoing = self.outgoing();
        outgoing.frames.push_bytes(MARK);
        outgoing.frames.push(Kind::Hello, 0, &[&pack(&hello)]);
        self.write(&mut outgoing);
        Ok(())
    }

    /// Handles a frame. `lease` is `None` until the other side has sent its hello.
    fn handle(&self, frame: Frame, calls: &Calls, lease: &mut Option<Lease>) -> Result<(), Malformed> {
        // A kind of a later version is passed over.
        let Frame { kind: Some(kind), call, payload } = frame else { return Ok(()) };
        match kind {
            Kind::Hello if lease.is_some() => return Err(Malformed("a second hello".to_owned())),
            Kind::Hello => {
                let hello: NearHello = unpack(&payload, "hello")?;
                if !(hello.versions.0..=hello.versions.1).contains(&VERSION) {
                    return Err(Malformed(format!(
                        "this server speaks version {VERSION}, the other side {} to {}",
                        hello.versions.0, hello.versions.1
                    )));
                }
                let time = Duration::try_from_secs_f64(hello.lease).ok().filter(|time| !time.is_zero());
                *lease = Some(Lease::new(time));
            }
            _ if lease.is_none() => return Err(Malformed(format!("{} before the hello", kind.phrase()))),
            Kind::Ping => self.send(Kind::Pong, call, &[]),
            // Any frame is a sign of life.
            Kind::Pong => {}
            Kind::Call => calls.begin(call, unpack(&payload, "call")?)?,
            Kind::Input => calls.input(call, &payload)?,
            Kind::Credit => calls.credit(call, unpack(&payload, "credit")?)?,
            Kind::Order => calls.order(call, unpack(&payload, "order")?)?,
            _ => return Err(Malformed(format!("{}, which only a server sends", kind.phrase()))),
        }
        Ok(())
    }
}

fn stop_blocking(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

/// The time that the other side may be silent.
#[derive(Debug)]
struct Lease {
    /// `None`: it may be silent forever.
    time: Option<Duration>,
    last_frame: Instant,
    last_ping: Instant,
}

impl Lease {
    fn new(time: Option<Duration>) -> Lease {
        Lease { time, last_frame: Instant::now(), last_ping: Instant::now() }
    }

    fn note_frame(&mut self) {
        self.last_frame = Instant::now();
    }

    /// How long to wait for a frame.
    fn wait(&self) -> Option<Duration> {
        Some((self.time? / 3).saturating_sub(self.last_ping.elapsed()))
    }

    fn is_over(&self) -> bool {
        self.time.is_some_and(|time| self.last_frame.elapsed() > time)
    }

    /// Whether it is time for another ping.
    fn asks(&mut self) -> bool {
        let asks = self.time.is_some_and(|time| self.last_ping.elapsed() >= time / 3);
        if asks {
            self.last_ping = Instant::now();
        }
        asks
    }
}
