// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that break the protocol. The other side neither panics nor hangs, and says what was wrong.

use std::fs;
use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::internal::Stored;
use spawnfd::job::{Event, EventOptions, Stop};
use spawnfd::session::SessionOptions;
use spawnfd::{Command, Error, Output, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::frame::{Kind, MAX_PAYLOAD};
use spawnfd_remote::message::{
    CallMessage, NearHello, OrderMessage, ProcessMessage, ResultMessage, StartedMessage, VERSION, What, pack, unpack,
};
use spawnfd_remote::near::RemoteOptions;
use spawnfd_tests::{isolated, scratch};

use crate::raw::{Client, any, far_hello, frame, memory, message, near_hello, output, playing, result, session};
use crate::{connect, sh};

/// A job whose program reads its input to the end.
fn reading_job() -> CallMessage {
    message(What::Start, "cat >/dev/null; sleep 1000", &Run::new().writable(100))
}

/// A job whose program does not read its input.
fn sleeping_job() -> CallMessage {
    message(What::Start, "sleep 1000", &Run::new().writable(100))
}

#[test]
fn a_server_ends_a_connection_that_breaks_the_protocol() {
    isolated!(|| {
        let run = message(What::Run, "sleep 1000", &Run::new());
        let call = |number, message: &CallMessage| frame(Kind::Call, number, &pack(message));
        let order = |number, order: &OrderMessage| frame(Kind::Order, number, &pack(order));
        let input = |number, length| frame(Kind::Input, number, &vec![b'x'; length]);
        let credit = |number, bytes: u32| frame(Kind::Credit, number, &any(&bytes));
        let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
            (vec![u32::MAX.to_le_bytes().to_vec()], "a frame of 4294967295 bytes"),
            (vec![near_hello()], "a second hello"),
            (vec![frame(Kind::Started, 1, &[])], "a frame Started, which only a server sends"),
            (vec![frame(Kind::Call, 1, b"\xc1")], "a wrong call"),
            (vec![frame(Kind::Order, 1, b"\xc1")], "a wrong order"),
            (vec![frame(Kind::Credit, 1, &any(&-1_i64))], "a wrong credit"),
            (vec![call(0, &run)], "a call with the number 0"),
            (vec![call(1, &run), call(1, &run)], "a second call with the number 1"),
            (vec![call(1, &session()), call(1, &run)], "a second call with the number 1"),
            (vec![call(1, &run), input(1, 1)], "input for a run"),
            (vec![call(1, &session()), input(1, 1)], "input for a session"),
            (vec![call(1, &run), credit(1, 1)], "credit for a run"),
            (vec![call(1, &run), order(1, &OrderMessage::Interrupt)], "an order Interrupt to a run"),
            (vec![call(1, &reading_job()), order(1, &OrderMessage::Close)], "an order Close to a job"),
            (vec![call(1, &run), order(1, &OrderMessage::Signal(-9, true))], "a signal with the number -9"),
            (vec![call(1, &run), order(1, &OrderMessage::Signal(65, true))], "a signal with the number 65"),
            (vec![call(1, &session()), order(1, &OrderMessage::Signal(9, true))], "a signal for a session"),
            (vec![call(1, &session()), order(1, &OrderMessage::Processes(0))], "a call with the number 0"),
            (vec![call(1, &session()), order(1, &OrderMessage::Processes(1))], "a second call with the number 1"),
            (vec![call(1, &reading_job()), input(1, 0), input(1, 1)], "input after its end"),
            (vec![call(1, &sleeping_job()), input(1, 400_000)], "more input than the credit"),
            (vec![call(1, &reading_job()), credit(1, 17 << 20)], "the largest is 16777216"),
            (vec![call(1, &reading_job()), credit(1, 10 << 20), credit(1, 10 << 20)], "the largest is 16777216"),
        ];
        for (frames, expected) in cases {
            let mut client = Client::greeting();
            client.write(&frames.concat());
            let said = client.wait();
            assert!(said.contains("Malformed") && said.contains(expected), "{expected}: {said}");
        }
        let mut client = Client::start();
        client.write(&frame(Kind::Ping, 1, &[]));
        assert!(client.wait().contains("a frame Ping before the hello"));
        let mut client = Client::start();
        let hello = NearHello { versions: (VERSION + 1, VERSION + 1), ..NearHello::default() };
        client.write(&frame(Kind::Hello, 0, &pack(&hello)));
        assert!(client.wait().contains("this server speaks version 1, the other side 2 to 2"));
    });
}

#[test]
fn a_command_that_has_not_started_has_a_credit_too() {
    isolated!(|| {
        for (length, expected) in [(400_000, "more input than the credit"), (0, "input after its end")] {
            let mut client = Client::greeting();
            let mut session = session();
            // The second command waits for the end of the first.
            session.call.options.insert("queue".to_owned(), Some(b"true".to_vec().into()));
            client.call(1, &session);
            let mut command = message(What::Command, "sleep 1000", &Run::new());
            (command.session, command.call.argv) = (1, vec![b"sleep 1000".to_vec().into()]);
            client.call(2, &command);
            client.expect(Kind::Started);
            client.call(3, &command);
            client.send(Kind::Input, 3, &vec![b'x'; length]);
            client.send(Kind::Input, 3, b"x");
            let said = client.wait();
            assert!(said.contains(expected), "{expected}: {said}");
        }
    });
}

#[test]
fn frames_of_calls_that_have_ended_are_passed_over() {
    isolated!(|| {
        let mut client = Client::greeting();
        client.call(1, &message(What::Run, "exit 3", &Run::new()));
        assert_eq!(output(&client.expect(Kind::Result).payload).code(), Some(3));
        for number in [1, 7] {
            client.send(Kind::Input, number, b"late");
            client.send(Kind::Credit, number, &any(&5_u32));
            for order in [OrderMessage::Stop(None), OrderMessage::Signal(9, true), OrderMessage::Close] {
                client.send(Kind::Order, number, &pack(&order));
            }
        }
        // A question about a session that does not exist has an answer.
        client.send(Kind::Order, 1, &pack(&OrderMessage::Processes(8)));
        let answer = client.expect(Kind::Error);
        let Stored(error): Stored<Error> = unpack(&answer.payload, "error").expect("an error");
        assert_eq!(answer.call, 8);
        assert!(error.message().contains("the session is closed"), "{error}");
        // The number of an ended call can be used again, and an unknown kind is passed over.
        client.write(&[6, 0, 0, 0, 200, 1, 0, 0, 0, 7]);
        client.call(1, &message(What::Run, "exit 4", &Run::new()));
        assert_eq!(output(&client.expect(Kind::Result).payload).code(), Some(4));
        assert!(client.close().contains("Ok(Closed)"));
    });
}

#[test]
fn a_wrong_call_fails_alone() {
    isolated!(|| {
        let mut client = Client::greeting();
        let right = message(What::Run, "true", &Run::new());
        let changed = |change: &dyn Fn(&mut CallMessage)| {
            let mut wrong = right.clone();
            change(&mut wrong);
            wrong
        };
        let action = |name: &str| (name.to_owned(), vec![spawnfd::internal::RemoteValue::Ints(vec![u64::MAX; 9]); 9]);
        let long = vec![b'\xff'; 10 << 20];
        let wrong = [
            changed(&|call| call.call.argv.clear()),
            changed(&|call| call.call.argv[0] = vec![0].into()),
            changed(&|call| call.call.actions = vec![action("no_such_action")]),
            changed(&|call| call.call.actions = vec![action("umask")]),
            changed(&|call| call.call.actions = vec![("umask".to_owned(), Vec::new())]),
            changed(&|call| _ = call.call.options.insert("timeout".to_owned(), Some(b"soon".to_vec().into()))),
            // The error of this call would be larger than a frame.
            changed(&|call| _ = call.call.options.insert("cwd".to_owned(), Some(long.clone().into()))),
            changed(&|call| _ = call.call.options.insert("marker".to_owned(), Some(long.clone().into()))),
            changed(&|call| (call.what, call.session) = (What::Command, 99)),
        ];
        for (number, call) in (1..).zip(&wrong) {
            client.call(number, call);
            let answer = client.next().expect("an answer");
            assert_eq!((answer.kind, answer.call), (Some(Kind::Error), number), "{number}");
            let Stored(error): Stored<Error> = unpack(&answer.payload, "error").expect("an error");
            assert!(error.message().len() < MAX_PAYLOAD);
        }
        client.call(100, &right);
        assert!(output(&client.expect(Kind::Result).payload).ok());
        let said = client.close();
        assert!(!said.contains("panicked"), "{said}");
    });
}

#[test]
fn a_server_reads_nothing_for_a_client_that_does_not_read() {
    isolated!(|| {
        let mut client = Client::greeting();
        let server = client.id();
        // The kernel's pipes and the server's own bound are all that is filled.
        let (sender, receiver) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            let pings = frame(Kind::Ping, 1, &[]).repeat(10_000);
            for _ in 0..600 {
                client.write(&pings);
                _ = sender.send(());
            }
            client
        });
        let mut count = 0;
        while receiver.recv_timeout(Duration::from_secs(3)).is_ok() {
            count += 1;
        }
        assert!(count < 600, "the server has read everything");
        assert!(memory(server) < 64 << 20, "{} bytes", memory(server));
        // A killed server ends the write.
        let killed = std::process::Command::new("kill").args(["-9", &server.to_string()]).status();
        assert!(killed.expect("kill").success());
        drop(writer.join().expect("no panic"));
    });
}

#[test]
fn the_largest_credit_bounds_what_waits_for_a_client_that_does_not_read() {
    isolated!(|| {
        let mut client = Client::greeting();
        client.call(1, &message(What::Start, "yes", &Run::new()));
        client.expect(Kind::Started);
        client.send(Kind::Credit, 1, &any(&(15_u32 << 20)));
        std::thread::sleep(Duration::from_secs(2));
        assert!(memory(client.id()) < 100 << 20, "{} bytes", memory(client.id()));
        let said = client.close();
        assert!(said.contains("Ok(Closed)"), "{said}");
    });
}

#[test]
fn a_closed_session_and_a_stopped_one_send_one_last_frame() {
    isolated!(|| {
        let mut client = Client::greeting();
        client.call(1, &session());
        client.expect(Kind::Started);
        for order in [OrderMessage::Close, OrderMessage::Close, OrderMessage::Stop(Some(0.0))] {
            client.send(Kind::Order, 1, &pack(&order));
        }
        // A session that is stopped before its shell has started.
        client.call(2, &session());
        client.send(Kind::Order, 2, &pack(&OrderMessage::Stop(Some(0.0))));
        let mut last = Vec::new();
        while last.len() < 2 {
            let frame = client.next().expect("a frame");
            if frame.kind != Some(Kind::Started) {
                last.push(frame.call);
            }
        }
        last.sort_unstable();
        assert_eq!(last, [1, 2]);
        client.send(Kind::Ping, 9, &[]);
        assert_eq!(client.next().expect("an answer").kind, Some(Kind::Pong));
        assert!(client.close().contains("Ok(Closed)"));
    });
}

#[test]
fn an_adopting_job_that_is_stopped_ends_its_call() {
    isolated!(|| {
        let mut client = Client::greeting();
        let run = Run::new().leftovers(spawnfd::job::Leftovers::Adopt);
        for _ in 0..20 {
            // A call that had not ended would make the second use of its number an error.
            client.call(1, &message(What::Start, "exec sleep 1000", &run));
            client.expect(Kind::Started);
            client.send(Kind::Order, 1, &pack(&OrderMessage::Stop(Some(0.0))));
            client.expect(Kind::End);
        }
        assert!(client.close().contains("Ok(Closed)"));
    });
}

/// A client of a server that answers the first call with `frames`.
fn answered_by(name: &str, frames: &[Vec<u8>]) -> (Remote, tempfile::TempDir) {
    let directory = scratch();
    let bytes = [&[far_hello()], frames].concat().concat();
    let transport = playing(directory.path(), name, &bytes, true);
    let remote = Remote::begin(&transport, &spawnfd_remote::near::RemoteOptions::default()).expect("a transport");
    (remote, directory)
}

/// The error of the next call on a connection that is lost.
fn why_lost(remote: &Remote) -> Error {
    loop {
        match remote.run(&Command::new("true"), &Run::new()) {
            Ok(output) => assert_eq!(output.stop, Stop::Lost),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_client_ends_a_connection_that_breaks_the_protocol() {
    isolated!(|| {
        let started = || frame(Kind::Started, 1, &pack(&StartedMessage { pid: 7, tree: "group".to_owned() }));
        let kept = |length| frame(Kind::Kept, 1, &vec![1; length]);
        let output = |length| frame(Kind::Output, 1, &vec![1; length]);
        let result = || frame(Kind::Result, 1, &result(&Output::default()));
        let end = || frame(Kind::End, 1, &[]);
        let closed = || frame(Kind::Result, 1, &pack(&ResultMessage::<()>::Closed));
        let processes = || frame(Kind::Result, 1, &pack(&ResultMessage::<()>::Processes(Vec::new())));
        let credit = |bytes: u32| frame(Kind::Credit, 1, &any(&bytes));
        let run: Vec<(Vec<Vec<u8>>, &str)> = vec![
            (vec![started()], "a start of a call that has started, or that is a run"),
            (vec![output(9)], "output of a call that is no job"),
            (vec![frame(Kind::Input, 1, &[])], "refused input of a call that is no job"),
            (vec![credit(1)], "credit of a call that is no job"),
            (vec![end()], "an end of a call that is no job"),
            (vec![closed()], "a result of another kind"),
            (vec![processes()], "a result of another kind"),
            (vec![kept(5000)], "a result with more than"),
            (vec![kept(0)], "data of no stream"),
            (vec![frame(Kind::Kept, 1, &[3, 3])], "data of no stream"),
            (vec![frame(Kind::Result, 1, b"\xc1")], "a wrong result"),
            (vec![frame(Kind::Error, 1, b"\x01")], "a wrong error"),
            (vec![frame(Kind::Pong, 1, &[])], "a frame Pong for a call"),
            (vec![frame(Kind::Call, 1, &[])], "a frame Call, which only a client sends"),
            (vec![frame(Kind::Result, 2000, &[])], "a frame Result of the call 2000, which does not exist"),
            (vec![frame(Kind::Pong, 0, &[])], "a frame Pong of the call 0, which does not exist"),
            (vec![far_hello()[16..].to_vec()], "a second hello"),
            (vec![u32::MAX.to_le_bytes().to_vec()], "a frame of 4294967295 bytes"),
        ];
        for (number, (frames, expected)) in run.into_iter().enumerate() {
            let (remote, _directory) = answered_by(&format!("run{number}"), &frames);
            let lost = remote.run(&Command::new("true"), &Run::new().keep(100, 100)).expect("a result");
            assert_eq!((lost.stop, lost.status), (Stop::Lost, None), "{expected}");
            let error = why_lost(&remote);
            assert_eq!(error.errno(), Errno::EPROTO, "{error}");
            assert!(error.message().contains(expected), "{expected}: {error}");
        }
        let job: Vec<(Vec<Vec<u8>>, &str)> = vec![
            (vec![started(), started()], "a start of a call that has started"),
            (vec![output(9)], "output of a program that has not started"),
            (vec![result()], "a result of a program that has not started"),
            (vec![end()], "an end of a program that has not started"),
            (vec![started(), end()], "the end of a job that has no result"),
            (vec![started(), result(), result()], "a second result"),
            (vec![started(), result(), kept(9)], "output of a result that the call has not"),
            (vec![started(), credit(u32::MAX)], "the largest is 16777216"),
            (vec![started(), output(9), output(300_000), output(1)], "more output than the credit"),
            (vec![started(), closed()], "a result of another kind"),
        ];
        for (number, (frames, expected)) in job.into_iter().enumerate() {
            let (remote, _directory) = answered_by(&format!("job{number}"), &frames);
            // The queue of the events is small, so the client gives no further credit.
            let options = EventOptions::new().max_bytes(1);
            match remote.start_events(&Command::new("true"), &Run::new(), options) {
                Err(error) => assert_eq!(error.errno(), Errno::EPROTO, "{error}"),
                Ok((job, mut events)) => {
                    let has_result = expected.contains("result") && !expected.contains("has no result");
                    let stop = job.wait().expect("a result").stop;
                    assert!(stop == Stop::Lost || (has_result && stop == Stop::Exited), "{expected}: {stop}");
                    while events.next_timeout(Duration::from_secs(20)).expect("an event") != Event::End {}
                }
            }
            let error = why_lost(&remote);
            assert_eq!(error.errno(), Errno::EPROTO, "{error}");
            assert!(error.message().contains(expected), "{expected}: {error}");
        }
    });
}

#[test]
fn a_session_that_the_server_closes_at_once_does_not_open() {
    isolated!(|| {
        let closed = frame(Kind::Result, 1, &pack(&ResultMessage::<()>::Closed));
        let (remote, _directory) = answered_by("closed", &[closed]);
        let error = remote.session(&Command::new("bash"), &SessionOptions::new()).expect_err("no session");
        assert!(error.message().contains("the session is closed"), "{error}");
        // The question is the third call: after the session and the frames of its end.
        let started = frame(Kind::Started, 1, &pack(&StartedMessage::default()));
        let many = vec![ProcessMessage { pid: 1, name: "x".to_owned() }];
        let early = frame(Kind::Result, 1, &pack(&ResultMessage::<()>::Processes(many)));
        let (remote, _directory) = answered_by("early", &[started, early]);
        let session = remote.session(&Command::new("bash"), &SessionOptions::new());
        if let Ok(session) = session {
            assert_eq!(session.processes().expect_err("lost").errno(), Errno::EPROTO);
            assert_eq!(session.close().expect_err("lost").errno(), Errno::EPROTO);
        }
        assert_eq!(why_lost(&remote).errno(), Errno::EPROTO);
    });
}

#[test]
fn a_transport_that_reads_no_more_is_a_lost_connection() {
    isolated!(|| {
        let directory = scratch();
        std::fs::write(directory.path().join("hello"), far_hello()).expect("a file");
        let mut transport = sh("exec <&-; cat \"$0\"; exec sleep 1000");
        transport.arg(directory.path().join("hello"));
        let remote = Remote::connect(&transport).expect("a server");
        let error = why_lost(&remote);
        assert_eq!(error.errno(), Errno::ENOTCONN);
        assert!(error.message().contains("the other side reads no more"), "{error}");
    });
}

#[test]
fn a_server_that_lives_and_sends_no_result_loses_a_run_with_a_time_limit() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("hello"), far_hello()).expect("own directory");
        fs::write(path("ping"), frame(Kind::Ping, 0, &[])).expect("own directory");
        let mut transport = sh("cat $0/hello; while cat $0/ping; do sleep 0.1; done");
        transport.arg(directory.path());
        let mut options = RemoteOptions::default();
        options.lease = Some(Duration::from_secs(2));
        let remote = Remote::connect_with(&transport, &options).expect("a server");
        let run = Run::new().timeout(Duration::from_millis(100)).grace(Duration::ZERO).drain(Duration::ZERO);
        let output = remote.run(&Command::new("true"), &run).expect("a result");
        assert_eq!((output.stop, output.status_lost), (Stop::Lost, true));
        let error = remote.start_events(&Command::new("true"), &run, EventOptions::new()).expect_err("no start");
        assert_eq!(error.errno(), Errno::ENOTCONN);
        assert!(error.message().contains("no result long after the time limit"), "{error}");
        assert!(remote.begin_ping().is_ok(), "the connection goes on");
    });
}

#[test]
fn a_call_that_is_too_large_for_a_frame_is_refused_here() {
    isolated!(|| {
        let remote = connect();
        let error = remote.run(Command::new("true").arg("x".repeat(MAX_PAYLOAD)), &Run::new()).expect_err("refused");
        assert_eq!(error.errno(), Errno::E2BIG, "{error}");
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
    });
}

#[test]
fn pings_of_a_server_that_reads_nothing_do_not_fill_the_memory() {
    isolated!(|| {
        let directory = scratch();
        std::fs::write(directory.path().join("hello"), far_hello()).expect("a file");
        let pings = frame(Kind::Ping, 0, &[]).repeat(100_000);
        std::fs::write(directory.path().join("pings"), pings).expect("a file");
        let done = directory.path().join("done");
        // 90 MB of pings, and nothing reads the answers.
        let mut transport =
            sh("cd \"$0\"; cat hello; for i in $(seq 100); do cat pings; done; : >done; exec sleep 1000");
        transport.arg(directory.path());
        let remote = Remote::connect(&transport).expect("a server");
        let (own, mut largest) = (std::process::id(), 0);
        let before = memory(own);
        while !done.exists() {
            largest = largest.max(memory(own));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(largest < before + (40 << 20), "{before} to {largest} bytes");
        drop(remote);
    });
}

/// A client with this lease.
fn with_lease(lease: f64) -> Client {
    let mut client = Client::start();
    let hello = NearHello { versions: (VERSION, VERSION), lease, ..NearHello::default() };
    client.send(Kind::Hello, 0, &pack(&hello));
    assert_eq!(client.next().expect("a hello").kind, Some(Kind::Hello));
    client
}

#[test]
fn any_number_is_a_lease_or_none() {
    isolated!(|| {
        for lease in [f64::NAN, f64::INFINITY, -1.0, 1e300, 1e18, 0.0] {
            let mut client = with_lease(lease);
            client.call(1, &message(What::Run, "true", &Run::new()));
            assert!(output(&client.expect(Kind::Result).payload).ok(), "{lease}");
            assert!(client.close().contains("Ok(Closed)"));
        }
        // 1 ms: the client is silent at once.
        for lease in [f64::MIN_POSITIVE, 1e-9, 1e-3] {
            let mut client = Client::start();
            let hello = NearHello { versions: (VERSION, VERSION), lease, ..NearHello::default() };
            client.send(Kind::Hello, 0, &pack(&hello));
            let said = if lease == f64::MIN_POSITIVE { client.close() } else { client.wait() };
            // A time below 1 ns is none, and the end of the pipe ends the server.
            let expected = if lease == f64::MIN_POSITIVE { "Ok(Closed)" } else { "Ok(Silent)" };
            assert!(said.contains(expected), "{lease}: {said}");
        }
    });
}

#[test]
fn a_slow_reader_is_not_silent() {
    isolated!(|| {
        let mut client = with_lease(1.0);
        client.call(1, &message(What::Run, "head -c 12000000 /dev/zero", &Run::new().keep_all()));
        // The client reads for some seconds and never answers a ping.
        let mut length = 0;
        loop {
            let frame = client.next().expect("a frame");
            match frame.kind {
                Some(Kind::Kept) => {
                    length += frame.payload.len() - 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                Some(Kind::Result) => break,
                _ => {}
            }
        }
        assert_eq!(length, 12_000_000);
        assert!(client.wait().contains("Ok(Silent)"));
    });
}

#[test]
fn a_silent_job_and_a_silent_command_send_no_output_but_a_result() {
    isolated!(|| {
        let mut client = Client::greeting();
        client.call(1, &session());
        let mut job = message(What::Start, "seq 100000", &Run::new().keep(10, 0));
        job.is_silent = true;
        client.call(2, &job);
        let mut command = CallMessage { what: What::Command, session: 1, is_silent: true, ..CallMessage::default() };
        command.call.argv = vec![b"seq 100000".to_vec().into()];
        client.call(3, &command);
        let mut ends = 0;
        while ends < 2 {
            let frame = client.next().expect("a frame");
            match frame.kind {
                Some(Kind::Output | Kind::Error) => panic!("{frame:?}"),
                Some(Kind::Result) => assert_eq!(output(&frame.payload).seen_bytes, 588_895),
                Some(Kind::End) => ends += 1,
                _ => {}
            }
        }
        assert!(client.close().contains("Ok(Closed)"));
    });
}
