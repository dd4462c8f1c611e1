// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded streams with changes, for both sides. Neither panics nor hangs.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spawnfd::internal::Stored;
use spawnfd::job::{Event, EventOptions, Stop, Stream};
use spawnfd::{Command, Error, Output, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::frame::Kind;
use spawnfd_remote::message::{
    CallMessage, FarHello, NearHello, OrderMessage, ProcessMessage, ResultMessage, StartedMessage, What, pack, unpack,
};
use spawnfd_remote::near::RemoteOptions;
use spawnfd_tests::{isolated, scratch};

use crate::raw::{Client, frame, message, near_hello, playing_part, session};

const LIMIT: Duration = Duration::from_secs(600);

/// A change of a stream.
#[derive(Clone, Debug)]
enum Change {
    Set(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (at(), 1..40_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (at(), 1..200_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
    ]
}

/// `bytes` with these changes. The first `fixed` bytes stay.
fn changed(bytes: &[u8], fixed: usize, changes: &[Change]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes {
        let place = |at: &prop::sample::Index| fixed + at.index(bytes.len() - fixed);
        match change {
            Change::Set(at, byte) => {
                let at = place(at);
                bytes[at] = *byte;
            }
            Change::Remove(at, count) => {
                let at = place(at);
                let end = (at + count).min(bytes.len() - 1);
                bytes.drain(at.min(end)..end);
            }
            Change::Insert(at, new) => {
                let at = place(at);
                bytes.splice(at..at, new.iter().copied());
            }
            Change::Repeat(at, count) => {
                let at = place(at);
                let copy = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    bytes
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 20, ..Config::default() })
}

#[test]
fn a_server_survives_changed_streams() {
    isolated!(limit: LIMIT, || {
        let mut command = message(What::Command, "true", &Run::new());
        (command.session, command.call.argv) = (3, vec![b"echo command".to_vec().into()]);
        let run = Run::new().writable(100).timeout(Duration::from_secs(5)).grace(Duration::ZERO);
        let hello = near_hello();
        let stream = [
            hello.clone(),
            frame(Kind::Call, 1, &pack(&message(What::Run, "echo out", &Run::new().keep(10, 20)))),
            frame(Kind::Call, 2, &pack(&message(What::Start, "cat", &run))),
            frame(Kind::Input, 2, b"text"),
            frame(Kind::Call, 3, &pack(&session())),
            frame(Kind::Call, 4, &pack(&command)),
            frame(Kind::Order, 2, &pack(&OrderMessage::Signal(0, true))),
            frame(Kind::Order, 3, &pack(&OrderMessage::Processes(5))),
            frame(Kind::Ping, 6, &[]),
            frame(Kind::Credit, 2, &pack(&70_000_u32)),
            frame(Kind::Input, 2, b""),
            frame(Kind::Order, 3, &pack(&OrderMessage::Close)),
        ]
        .concat();
        let outcome = runner(150).run(&prop::collection::vec(change(), 0..6), |changes| {
            let mut client = Client::start();
            // Half of the cases leave the hello alone.
            let fixed = if changes.len() % 2 == 0 { hello.len() } else { 0 };
            client.write(&changed(&stream, fixed, &changes));
            let said = client.close();
            prop_assert!(said.contains("Ok(") || said.contains("Err(Malformed"), "{}", said);
            prop_assert!(!said.contains("panicked"), "{}", said);
            Ok(())
        });
        outcome.expect("no panic");
    });
}

/// Set once a thread has panicked, also in a callback whose panic the library catches.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

#[test]
fn a_client_survives_changed_streams() {
    isolated!(limit: LIMIT, || {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            HAS_PANICKED.store(true, Ordering::SeqCst);
            before(info);
        }));
        let mut client = Client::greeting();
        client.call(1, &message(What::Run, "echo out", &Run::new().keep(1, 1).combined(true)));
        client.expect(Kind::Result);
        let hello = client.received.len();
        let of_run = client.received.clone();
        client.close();
        let mut client = Client::greeting();
        client.call(1, &message(What::Start, "echo out; echo err >&2", &Run::new().writable(100)));
        client.expect(Kind::End);
        let of_job = client.received.clone();
        client.close();
        let directory = scratch();
        let path = directory.path().join("bytes");
        let strategy = (any::<bool>(), prop::collection::vec(change(), 0..6));
        let outcome = runner(250).run(&strategy, |(is_run, changes)| {
            let bytes = if is_run { &of_run } else { &of_job };
            let fixed = if changes.len() % 2 == 0 { hello.min(250) } else { 16 };
            let bytes = changed(bytes, fixed, &changes);
            fs::write(&path, &bytes).expect("a file");
            let transport = playing_part(&path, bytes.len(), false);
            let remote = Remote::begin(&transport, &RemoteOptions::default()).expect("a transport");
            if is_run {
                if let Ok(output) = remote.run(&Command::new("true"), &Run::new()) {
                    read(&output);
                }
            } else if let Ok((job, mut events)) =
                remote.start_events(&Command::new("true"), &Run::new().writable(10), EventOptions::new())
            {
                _ = job.write(b"some input");
                if let Ok(output) = job.wait() {
                    read(&output);
                }
                while events.next_timeout(Duration::from_secs(20)).expect("an event") != Event::End {}
            }
            drop(remote);
            prop_assert!(!HAS_PANICKED.load(Ordering::SeqCst));
            Ok(())
        });
        outcome.expect("no panic");
    });
}

/// Calls what computes something from an output of the other side.
fn read(output: &Output) {
    _ = (output.reason(), output.ok(), output.code(), output.signal(), output.stdout_text(), output.stderr_text());
    for stream in [Stream::Stdout, Stream::Stderr] {
        _ = (output.head(stream), output.tail(stream), output.omitted(stream));
    }
    _ = output.pieces();
    _ = output.clone().check().map(drop).map_err(|error| error.to_string());
    assert!(output.stop != Stop::Lost || output.status.is_none() || !output.ok());
}

fn unpack_all(payload: &[u8]) {
    _ = unpack::<NearHello>(payload, "hello");
    _ = unpack::<FarHello>(payload, "hello");
    _ = unpack::<CallMessage>(payload, "call");
    _ = unpack::<OrderMessage>(payload, "order");
    _ = unpack::<StartedMessage>(payload, "start");
    _ = unpack::<Vec<ProcessMessage>>(payload, "processes");
    _ = unpack::<u32>(payload, "credit");
    if let Ok(Stored(error)) = unpack::<Stored<Error>>(payload, "error") {
        _ = (error.to_string(), error.kind());
    }
    if let Ok(ResultMessage::Output(Stored(output))) = unpack(payload, "result") {
        read(&output);
    }
}

#[test]
fn changed_payloads_are_messages_or_errors() {
    let mut output =
        Command::new("seq").arg("100").run_with(&Run::new().keep(20, 20).combined(true)).expect("a result");
    output.leftovers.clear();
    let error = Command::new("no-such-program").run().expect_err("no program");
    let payloads = [
        pack(&ResultMessage::Output(Stored(&output))),
        pack(&Stored(&error)),
        pack(&message(What::Start, "echo", &Run::new().timeout(Duration::from_secs(1)))),
        pack(&OrderMessage::Stop(Some(1.0))),
        pack(&FarHello { machine: "x86_64".to_owned(), ..FarHello::default() }),
    ];
    let strategy = (0..payloads.len(), prop::collection::vec(change(), 1..6));
    let outcome = runner(5000).run(&strategy, |(number, changes)| {
        unpack_all(&changed(&payloads[number], 0, &changes));
        Ok(())
    });
    outcome.expect("no panic");
    let outcome = runner(5000).run(&prop::collection::vec(any::<u8>(), 0..60), |bytes| {
        unpack_all(&bytes);
        Ok(())
    });
    outcome.expect("no panic");
    // Nested deeper than any message.
    unpack_all(&vec![0x91; 1 << 20]);
    unpack_all(&[&[0x81, 0xA1, b'x'][..], &vec![0x91; 1 << 20]].concat());
}
