// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main thread of a server: reads frames, begins calls, and writes what the pipe did not accept before.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::system::uname;

use super::calls::Calls;
use super::connection::{Connection, stop_blocking};
use super::{Ended, ServeError};
use crate::frame::{Decoder, Frame, Kind, Malformed};
use crate::message::{FarHello, NearHello, VERSION, unpack};

/// The main thread's part of a server.
#[derive(Debug)]
pub(super) struct Server {
    input: OwnedFd,
    connection: Arc<Connection>,
    calls: Calls,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// `None` until the other side has sent its hello.
    lease: Option<Lease>,
}

impl Server {
    /// Sends the hello. `files` is the command that packs and unpacks files.
    pub(super) fn new(input: OwnedFd, output: OwnedFd, files: &[OsString]) -> rustix::io::Result<Server> {
        stop_blocking(input.as_fd())?;
        let connection = Arc::new(Connection::new(output)?);
        let calls = Calls::new(connection.clone());
        let system = uname();
        connection.greet(&FarHello {
            versions: (VERSION, VERSION),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            host: system.nodename().to_string_lossy().into_owned(),
            machine: system.machine().to_string_lossy().into_owned(),
            pid: std::process::id(),
            calls: ["run", "start", "session", "command"].map(str::to_owned).to_vec(),
            files: files.iter().map(|word| word.as_bytes().to_vec().into()).collect(),
        });
        let (decoder, buffer) = (Decoder::default(), vec![0; 64 << 10]);
        Ok(Server { input, connection, calls, decoder, buffer, lease: None })
    }

    /// Reads frames until the other side ends, and then ends all programs.
    pub(super) fn serve(mut self) -> Result<Ended, ServeError> {
        let ended = loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(ended)) => break Ok(ended),
                Err(error) => break Err(error),
            }
        };
        self.calls.end_all();
        ended
    }

    /// Waits, and handles what has come.
    fn step(&mut self) -> Result<Option<Ended>, ServeError> {
        let reads = !self.connection.is_behind();
        let [readable, woken, writable] = {
            let [wake, output] = self.connection.wanted();
            let input = PollFd::new(&self.input, if reads { PollFlags::IN } else { PollFlags::empty() });
            let fds = &mut [input, wake, output];
            let wait = self.lease.as_ref().and_then(Lease::wait).map(Timespec::try_from).and_then(Result::ok);
            match poll(fds, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            fds.each_ref().map(PollFd::revents)
        };
        let Some(had_room) = self.connection.serve(woken, writable) else { return Ok(Some(Ended::Closed)) };
        if had_room {
            // The pipe was full, and the other side reads. Its answers to pings can come late: the pings wait in the
            // transport behind other frames, and this side may not read now.
            self.lease.iter_mut().for_each(Lease::note_frame);
        }
        if !readable.is_empty() && !self.read()? {
            return Ok(Some(Ended::Closed));
        }
        let Some(lease) = &mut self.lease else { return Ok(None) };
        if lease.is_over() {
            return Ok(Some(Ended::Silent));
        }
        if lease.asks() {
            self.connection.send(Kind::Ping, 0, &[]);
        }
        Ok(None)
    }

    /// Reads, and handles whole frames. Returns `false` at the end of the input.
    fn read(&mut self) -> Result<bool, ServeError> {
        match read(&self.input, &mut self.buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                self.lease.iter_mut().for_each(Lease::note_frame);
                self.decoder.feed(&self.buffer[..count]);
                while let Some(frame) = self.decoder.next_frame().map_err(ServeError::Malformed)? {
                    self.handle(frame).map_err(ServeError::Malformed)?;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Handles a frame. The lease is `None` until the other side has sent its hello.
    fn handle(&mut self, frame: Frame) -> Result<(), Malformed> {
        // A kind of a later version is passed over.
        let Frame { kind: Some(kind), call, payload } = frame else { return Ok(()) };
        match kind {
            Kind::Hello if self.lease.is_some() => return Err(Malformed("a second hello".to_owned())),
            Kind::Hello => {
                let hello: NearHello = unpack(&payload, "hello")?;
                if !(hello.versions.0..=hello.versions.1).contains(&VERSION) {
                    return Err(Malformed(format!(
                        "this server speaks version {VERSION}, the other side {} to {}",
                        hello.versions.0, hello.versions.1
                    )));
                }
                let time = Duration::try_from_secs_f64(hello.lease).ok().filter(|time| !time.is_zero());
                self.lease = Some(Lease::new(time));
            }
            _ if self.lease.is_none() => return Err(Malformed(format!("{} before the hello", kind.phrase()))),
            Kind::Ping => self.connection.send(Kind::Pong, call, &[]),
            // Any frame is a sign of life.
            Kind::Pong => {}
            Kind::Call => self.calls.begin(call, unpack(&payload, "call")?)?,
            Kind::Input => self.calls.input(call, &payload)?,
            Kind::Credit => self.calls.credit(call, unpack(&payload, "credit")?)?,
            Kind::Order => self.calls.order(call, unpack(&payload, "order")?)?,
            _ => return Err(Malformed(format!("{}, which only a server sends", kind.phrase()))),
        }
        Ok(())
    }
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
