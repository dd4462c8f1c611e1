// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that speak frames without the client and the server of the crate.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use spawnfd::Command;
use spawnfd::internal::{RemoteCall, Stored};
use spawnfd::options::Call;
use spawnfd::{Output, Run};
use spawnfd_remote::frame::{Decoder, Frame, Kind, MARK, Marker, encode};
use spawnfd_remote::message::{CallMessage, FarHello, NearHello, ResultMessage, VERSION, What, pack, unpack};

use crate::server;

/// A client that sends what a test tells it to send.
pub struct Client {
    server: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    marker: Marker,
    decoder: Decoder,
    /// All bytes from the mark on.
    pub received: Vec<u8>,
}

impl Client {
    /// Starts a server.
    pub fn start() -> Client {
        let command = server();
        let mut server = std::process::Command::new(command.get_program());
        server.args(command.get_args()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().expect("a server");
        let (input, output) = (server.stdin.take(), server.stdout.take().expect("a pipe"));
        let (marker, decoder) = Default::default();
        Client { server, input, output, marker, decoder, received: MARK.to_vec() }
    }

    /// Starts a server and greets it.
    pub fn greeting() -> Client {
        let mut client = Client::start();
        client.write(&near_hello());
        assert_eq!(client.next().expect("a hello").kind, Some(Kind::Hello));
        client
    }

    /// Writes bytes. A server that has ended does not read them.
    pub fn write(&mut self, bytes: &[u8]) {
        _ = self.input.as_mut().expect("an open pipe").write_all(bytes);
    }

    pub fn send(&mut self, kind: Kind, call: u32, payload: &[u8]) {
        self.write(&frame(kind, call, payload));
    }

    pub fn call(&mut self, call: u32, message: &CallMessage) {
        self.send(Kind::Call, call, &pack(message));
    }

    /// The next frame; `None` after the end of the pipe.
    pub fn next(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("frames") {
                return Some(frame);
            }
            let count = self.output.read(&mut buffer).expect("bytes");
            if count == 0 {
                return None;
            }
            if let Some(bytes) = self.marker.after(&buffer[..count]).expect("a mark") {
                self.received.extend_from_slice(bytes);
                self.decoder.feed(bytes);
            }
        }
    }

    /// The next frame of this kind. Passes others over.
    pub fn expect(&mut self, kind: Kind) -> Frame {
        loop {
            let frame = self.next().expect("the server has ended");
            if frame.kind == Some(kind) {
                return frame;
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Closes the client's end of the pipe only.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until the server ends by itself, and returns what it has written to standard error.
    pub fn wait(mut self) -> String {
        while self.next().is_some() {}
        let mut text = String::new();
        self.server.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        self.server.wait().expect("a child");
        text
    }

    /// Closes the pipe and waits for the end of the server.
    pub fn close(mut self) -> String {
        self.close_input();
        self.wait()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

pub fn frame(kind: Kind, call: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, kind, call, &[payload]);
    bytes
}

/// The first frame of a client without a lease.
pub fn near_hello() -> Vec<u8> {
    let hello = NearHello { versions: (VERSION, VERSION), program: "test".to_owned(), lease: 0.0 };
    frame(Kind::Hello, 0, &pack(&hello))
}

/// The mark and the first frame of a server.
pub fn far_hello() -> Vec<u8> {
    let hello = FarHello { versions: (VERSION, VERSION), program: "test".to_owned(), ..FarHello::default() };
    [MARK.to_vec(), frame(Kind::Hello, 0, &pack(&hello))].concat()
}

/// A call that runs or starts a script.
pub fn message(what: What, script: &str, run: &Run) -> CallMessage {
    let call = match what {
        What::Run => Call::Run,
        _ => Call::Start,
    };
    let call = RemoteCall::new(&crate::sh(script), run, call).expect("a call");
    CallMessage { what, call, ..CallMessage::default() }
}

/// A session of bash.
pub fn session() -> CallMessage {
    let call = RemoteCall { argv: vec![b"bash".to_vec().into()], ..RemoteCall::default() };
    CallMessage { what: What::Session, call, ..CallMessage::default() }
}

/// The output that the payload of a result has.
pub fn output(payload: &[u8]) -> Output {
    match unpack(payload, "result").expect("a result") {
        ResultMessage::Output(Stored(output)) => output,
        result => panic!("{result:?}"),
    }
}

/// The payload of a result.
pub fn result(output: &Output) -> Vec<u8> {
    pack(&ResultMessage::Output(Stored(output)))
}

/// Any value, as a payload.
pub fn any(value: &impl Serialize) -> Vec<u8> {
    pack(value)
}

/// A transport that plays a server: it writes these bytes once a client has greeted it and begun its first call. Then
/// it ends, or reads on without an answer.
pub fn playing(directory: &Path, name: &str, bytes: &[u8], reads_on: bool) -> Command<'static> {
    let path = directory.join(name);
    fs::write(&path, bytes).expect("a file");
    playing_part(&path, bytes.len(), reads_on)
}

/// The same as [`playing`], for the first `length` bytes of a file.
pub fn playing_part(path: &Path, length: usize, reads_on: bool) -> Command<'static> {
    // The first frame of the client has the same length each time, if its lease has.
    let hello = NearHello { versions: (VERSION, VERSION), program: env!("CARGO_PKG_VERSION").to_owned(), lease: 30.0 };
    let count = frame(Kind::Hello, 0, &pack(&hello)).len() + 1;
    let mut command = crate::sh("head -c $1 >/dev/null; head -c $2 \"$0\"; [ $3 = no ] || cat >/dev/null");
    command.arg(path).arg(count.to_string()).arg(length.to_string()).arg(if reads_on { "yes" } else { "no" });
    command
}

/// Waits until no process has `word` in its command line.
pub fn assert_none_has(word: &str) {
    let begun = Instant::now();
    while let Some(found) = command_lines().find(|line| line.contains(word)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{found:?} still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn command_lines() -> impl Iterator<Item = String> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").expect("a directory").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |pid| *pid != own).filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    })
}

/// The resident memory of a process in bytes.
pub fn memory(pid: u32) -> usize {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("a process");
    let pages: usize = statm.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}
