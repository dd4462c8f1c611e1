// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a program's standard input.

use super::*;
use spawnfd_tests::deadline;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const LONG: Duration = Duration::from_secs(60);

fn feed(source: Source) -> (std::io::PipeReader, Feed) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (reader, Feed::new(writer.into(), source).expect("own pipe"))
}

#[test]
fn bytes_are_written_as_the_reader_reads() {
    deadline(LONG, || {
        let bytes: Arc<[u8]> = (0..1 << 20).map(|byte| byte as u8).collect();
        let (mut reader, mut feed) = feed(Source::bytes(bytes.clone().into()));
        assert_eq!(Arc::strong_count(&bytes), 2, "no copy");
        let mut read = Vec::new();
        loop {
            match feed.write() {
                FeedStatus::Again => {}
                FeedStatus::Blocked => {
                    let mut buffer = [0; 10_000];
                    let length = reader.read(&mut buffer).expect("own pipe");
                    read.extend_from_slice(&buffer[..length]);
                }
                done => break assert_eq!(done, FeedStatus::Done),
            }
        }
        assert_eq!((feed.has_more(), feed.refused()), (false, false));
        drop(feed);
        reader.read_to_end(&mut read).expect("own pipe");
        assert!(read == bytes[..]);
    });
}

#[test]
fn empty_input_is_end_of_file() {
    deadline(LONG, || {
        let (mut reader, mut feed) = feed(Source::bytes(b"".as_slice().into()));
        assert_eq!(feed.write(), FeedStatus::Done);
        drop(feed);
        assert_eq!(reader.read(&mut [0]).expect("own pipe"), 0);
    });
}

#[test]
fn a_closed_reader_is_no_error_and_no_signal() {
    spawnfd_tests::isolated!(|| {
        call::make_default(13).expect("SIGPIPE");
        let (reader, mut feed) = feed(Source::bytes("x".into()));
        drop(reader);
        assert_eq!((feed.write(), feed.has_more(), feed.refused()), (FeedStatus::Done, true, true));
        assert_eq!(call::pending_signals(), Ok(0));
    });
}

#[test]
fn a_stream_reports_free_space_once_per_batch() {
    deadline(LONG, || {
        let (writer, input) = Source::stream(10);
        let count = |counter: &Arc<AtomicUsize>| {
            let counter = counter.clone();
            Callback::new(move || _ = counter.fetch_add(1, Ordering::SeqCst))
        };
        let (engine, space) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        writer.set_engine(InputEngine { wake: count(&engine), is_watched: Box::new(|_| false) });
        writer.set_callback(count(&space));
        let (mut reader, mut feed) = feed(input);
        let now = || (engine.load(Ordering::SeqCst), space.load(Ordering::SeqCst));
        assert_eq!(feed.write(), FeedStatus::Idle);
        assert_eq!(writer.write(b"").expect("open"), 0);
        assert_eq!(now(), (0, 0));
        assert_eq!(writer.write(b"12345678").expect("open"), 8);
        assert_eq!(writer.write(b"9abc").expect("open"), 2);
        assert_eq!(writer.write(b"bc").expect("open"), 0);
        assert_eq!(now(), (1, 0), "one wake for a batch");
        assert_eq!(writer.write_timeout(b"bc", Duration::from_millis(1)).expect("open"), 0);
        assert_eq!(feed.write(), FeedStatus::Idle);
        assert_eq!(now(), (1, 1));
        assert_eq!(writer.write_timeout(b"bc", LONG).expect("open"), 2);
        writer.close();
        assert_eq!(writer.write(b"x").expect_err("closed").errno(), Errno::EPIPE);
        assert_eq!(feed.write(), FeedStatus::Done);
        drop(feed);
        let mut read = String::new();
        reader.read_to_string(&mut read).expect("own pipe");
        assert_eq!(read, "123456789abc");
    });
}

#[test]
fn a_waiting_writer_gets_epipe_when_the_reader_closes() {
    // Another test's child could hold a copy of the reader for a moment, so this test runs in a process of its own.
    spawnfd_tests::isolated!(|| {
        let (writer, input) = Source::stream(4);
        let (reader, mut feed) = feed(input);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| writer.write_timeout(b"12345", LONG));
            while !writer_waits(&feed) {
                thread::yield_now();
            }
            drop(reader);
            assert_eq!((feed.write(), feed.refused()), (FeedStatus::Done, true));
            drop(feed);
            assert_eq!(waiting.join().expect("no panic").expect_err("gone").errno(), Errno::EPIPE);
        });
    });
}

fn writer_waits(feed: &Feed) -> bool {
    matches!(&feed.source, Source::Stream(InputStream(shared)) if shared.queue.lock().writer_waits)
}

#[test]
fn everything_written_arrives() {
    deadline(LONG, || {
        let (writer, input) = Source::stream(1000);
        let (wake, woken) = std::sync::mpsc::channel();
        let wake = Callback::new(move || _ = wake.send(()));
        writer.set_engine(InputEngine { wake, is_watched: Box::new(|_| false) });
        let (mut reader, mut feed) = feed(input);
        let total = 500_000_usize;
        thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..total).map(|byte| byte as u8).collect();
                for piece in bytes.chunks(777) {
                    assert_eq!(writer.write_timeout(piece, LONG).expect("read"), piece.len());
                }
            });
            scope.spawn(move || {
                loop {
                    match feed.write() {
                        FeedStatus::Again => {}
                        FeedStatus::Blocked => thread::yield_now(),
                        FeedStatus::Idle => woken.recv_timeout(LONG).expect("woken by a write"),
                        FeedStatus::Done => break,
                    }
                }
                assert!(!feed.has_more());
            });
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("own pipe");
            assert!(read.len() == total && read.iter().enumerate().all(|(index, &byte)| byte == index as u8));
        });
    });
}
