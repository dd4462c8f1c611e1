// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the event queue.

use super::*;
use proptest::prelude::*;
use spawnfd_tests::deadline;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const LONG: Duration = Duration::from_secs(60);

/// A callback, and the number of its calls.
fn counter() -> (Callback, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    (Callback::new(move || _ = counted.fetch_add(1, Ordering::SeqCst)), count)
}

fn queue(options: EventOptions) -> (Producer, Events) {
    events(options, Callback::new(|| {}))
}

/// Pushes bytes and wakes the consumer. Returns whether the queue accepts more.
fn push(producer: &Producer, stream: Stream, position: u64, bytes: &[u8]) -> bool {
    if let Some(consumer) = producer.push(stream, position, bytes) {
        consumer.call();
    }
    producer.wants_more()
}

fn all(events: &mut Events) -> Vec<Event> {
    std::iter::from_fn(|| events.try_next()).take_while(|event| *event != Event::End).collect()
}

fn chunk(stream: Stream, position: u64, bytes: &[u8]) -> Event {
    Event::Chunk { stream, position, bytes: bytes.to_vec() }
}

#[test]
fn adjacent_chunks_of_a_stream_become_one() {
    deadline(LONG, || {
        let (producer, mut events) = queue(EventOptions::default());
        let pushed = [(Stream::Stdout, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c"), (Stream::Stdout, "d")];
        for (at, (stream, bytes)) in (0..).zip(pushed) {
            assert!(push(&producer, stream, at, bytes.as_bytes()));
        }
        // The position 9 leaves a gap, so the queue does not merge these chunks with earlier ones.
        assert!(push(&producer, Stream::Stdout, 9, b"e"));
        assert!(push(&producer, Stream::Stdout, 10, &[b'x'; COALESCED]));
        drop(producer);
        let expected = [
            chunk(Stream::Stdout, 0, b"ab"),
            chunk(Stream::Stderr, 2, b"c"),
            chunk(Stream::Stdout, 3, b"d"),
            chunk(Stream::Stdout, 9, b"e"),
            chunk(Stream::Stdout, 10, &[b'x'; COALESCED]),
        ];
        assert_eq!(all(&mut events), expected);
        assert_eq!((events.try_next(), events.next_timeout(LONG)), (Some(Event::End), Some(Event::End)));
    });
}

/// Marks the result and wakes the consumer.
fn mark_result(producer: &Producer) {
    if let Some(consumer) = producer.mark_result() {
        consumer.call();
    }
}

#[test]
fn events_until_the_result_end_between_two_chunks() {
    deadline(LONG, || {
        let (producer, mut events) = queue(EventOptions::new().until(Until::Result));
        let (callback, count) = counter();
        events.set_callback(callback);
        push(&producer, Stream::Stdout, 0, b"before");
        mark_result(&producer);
        push(&producer, Stream::Stdout, 6, b"after");
        assert_eq!(events.try_next(), Some(chunk(Stream::Stdout, 0, b"before")));
        for _ in 0..2 {
            assert_eq!((events.try_next(), events.has_next()), (Some(Event::End), true));
        }
        events.set_until(Until::Closed);
        assert_eq!(events.try_next(), Some(chunk(Stream::Stdout, 6, b"after")));
        assert_eq!((events.try_next(), count.load(Ordering::SeqCst)), (None, 1));
        events.set_until(Until::Result);
        assert_eq!(events.try_next(), Some(Event::End));
        events.set_until(Until::Closed);
        drop(producer);
        assert_eq!((events.try_next(), count.load(Ordering::SeqCst)), (Some(Event::End), 2));
        // A consumer that waits is woken by the result alone.
        let (producer, mut events) = queue(EventOptions::new().until(Until::Result));
        thread::scope(|scope| {
            scope.spawn(|| mark_result(&producer));
            assert_eq!(events.next_timeout(LONG), Some(Event::End));
        });
        drop(producer);
    });
}

#[test]
fn dropped_output_does_not_move_the_end_at_the_result() {
    deadline(LONG, || {
        let options = EventOptions::new().max_bytes(150).when_full(WhenFull::DropOldest).until(Until::Result);
        let (producer, mut events) = queue(options);
        push(&producer, Stream::Stdout, 0, &[b'x'; 80]);
        mark_result(&producer);
        push(&producer, Stream::Stdout, 80, &[b'y'; 80]);
        push(&producer, Stream::Stderr, 160, &[b'z'; 80]);
        assert_eq!(events.try_next(), Some(Event::Lost { bytes: 160 }));
        assert_eq!(events.try_next(), Some(Event::End));
        push(&producer, Stream::Stdout, 240, &[b'y'; 80]);
        assert_eq!(events.try_next(), Some(Event::End));
        events.set_until(Until::Closed);
        assert_eq!(events.try_next(), Some(Event::Lost { bytes: 80 }));
        assert_eq!(events.try_next(), Some(chunk(Stream::Stdout, 240, &[b'y'; 80])));
        drop(producer);
    });
}

#[test]
fn the_callback_is_called_once_per_batch() {
    deadline(LONG, || {
        let (producer, mut events) = queue(EventOptions::default());
        let (callback, count) = counter();
        push(&producer, Stream::Stdout, 0, b"a");
        events.set_callback(callback);
        assert_eq!(count.load(Ordering::SeqCst), 1, "an event was queued");
        push(&producer, Stream::Stderr, 1, b"b");
        assert_eq!((count.load(Ordering::SeqCst), all(&mut events).len()), (1, 2));
        push(&producer, Stream::Stdout, 2, b"");
        assert_eq!(count.load(Ordering::SeqCst), 1);
        push(&producer, Stream::Stdout, 2, b"c");
        push(&producer, Stream::Stderr, 3, b"d");
        drop(producer);
        assert_eq!((count.load(Ordering::SeqCst), all(&mut events).len()), (2, 2));
    });
}

#[test]
fn an_idle_consumer_stops_the_producer() {
    deadline(LONG, || {
        let (resume, count) = counter();
        let (producer, mut events) = events(EventOptions { max_bytes: 1000, ..EventOptions::default() }, resume);
        let pushed = (0..).take_while(|at| push(&producer, Stream::ALL[at % 2], *at as u64, b"x")).count();
        assert!((10..20).contains(&pushed), "{pushed}");
        assert!(!producer.wants_more());
        let mut taken = 0;
        while !producer.wants_more() {
            assert_eq!(count.load(Ordering::SeqCst), 0);
            taken += events.try_next().map_or(0, |_| 1);
        }
        assert!((pushed / 3..pushed).contains(&taken), "{taken} of {pushed}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(!push(&producer, Stream::Stdout, 0, &[0; 1000]));
        drop(events);
        assert_eq!((count.load(Ordering::SeqCst), producer.wants_more()), (2, true));
        assert!((0..100).all(|_| push(&producer, Stream::Stdout, 0, &[0; 1000])), "no consumer is left to wait for");
        assert!(producer.0.state.lock().chunks.is_empty());
    });
}

#[test]
fn an_idle_consumer_loses_the_oldest_events() {
    deadline(LONG, || {
        let options = EventOptions { max_bytes: 1000, when_full: WhenFull::DropOldest, lines: None, until: None };
        let (producer, mut events) = queue(options);
        for at in 0..100_000_u64 {
            assert!(push(&producer, Stream::ALL[at as usize % 2], at, b"x"));
            assert!(producer.0.state.lock().size <= 1000);
        }
        drop(producer);
        let events = all(&mut events);
        let Event::Lost { bytes } = events[0] else { panic!("{events:?}") };
        assert_eq!(bytes as usize + events.len() - 1, 100_000);
        assert!(matches!(events[1], Event::Chunk { position, .. } if position == bytes));
    });
}

#[test]
fn a_loss_ends_the_open_lines_of_both_streams() {
    deadline(LONG, || {
        let options = EventOptions { max_bytes: 150, when_full: WhenFull::DropOldest, lines: Some(10), until: None };
        let (producer, mut events) = queue(options);
        let line = |stream, position, bytes: &str, end| Event::Line { stream, position, bytes: bytes.into(), end };
        push(&producer, Stream::Stdout, 0, b"one\ntw");
        push(&producer, Stream::Stderr, 6, b"err");
        assert_eq!(events.try_next(), Some(line(Stream::Stdout, 0, "one", LineEnd::Lf)));
        assert_eq!(events.try_next(), None);
        push(&producer, Stream::Stdout, 9, b"o\r\nthr");
        assert_eq!(all(&mut events), [line(Stream::Stdout, 4, "two", LineEnd::CrLf)]);
        push(&producer, Stream::Stdout, 15, &[b'x'; 80]);
        push(&producer, Stream::Stderr, 95, b"or\n");
        push(&producer, Stream::Stdout, 98, b"end");
        drop(producer);
        let expected = [
            line(Stream::Stdout, 12, "thr", LineEnd::Open),
            line(Stream::Stderr, 6, "err", LineEnd::Open),
            Event::Lost { bytes: 80 },
            line(Stream::Stderr, 95, "or", LineEnd::Lf),
            line(Stream::Stdout, 98, "end", LineEnd::Open),
        ];
        assert_eq!(all(&mut events), expected);
    });
}

#[test]
fn waiting_ends_with_an_event_or_at_the_timeout() {
    deadline(LONG, || {
        let (producer, mut events) = queue(EventOptions { lines: Some(100), ..EventOptions::default() });
        assert_eq!(events.next_timeout(Duration::ZERO), None);
        push(&producer, Stream::Stdout, 0, b"half a ");
        let start = Instant::now();
        assert_eq!(events.next_timeout(Duration::from_millis(20)), None);
        assert!(start.elapsed() >= Duration::from_millis(20));
        thread::scope(|scope| {
            let waiting = scope.spawn(move || (events.next_timeout(Duration::MAX), events.next_timeout(Duration::MAX)));
            push(&producer, Stream::Stdout, 7, b"line\n");
            drop(producer);
            let line =
                Event::Line { stream: Stream::Stdout, position: 0, bytes: b"half a line".into(), end: LineEnd::Lf };
            assert_eq!(waiting.join().expect("no panic"), (Some(line), Some(Event::End)));
        });
    });
}

#[test]
fn a_slow_consumer_gets_everything() {
    deadline(LONG, || {
        let (resumed, resume) = std::sync::mpsc::channel();
        let options = EventOptions { max_bytes: 5_000, ..EventOptions::default() };
        let (producer, mut events) =
            super::events(options, Callback::new(move || resumed.send(()).expect("the receiver exists")));
        let total = 3_000_000;
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut at, mut size) = (0, 1);
                while at < total {
                    size = (size * 7 + 1) % 4093;
                    let bytes: Vec<u8> = (at..total.min(at + size)).map(|byte| byte as u8).collect();
                    if !push(&producer, Stream::ALL[(size % 2) as usize], at, &bytes) {
                        while !producer.wants_more() {
                            resume.recv_timeout(LONG).expect("the producer is resumed");
                        }
                    }
                    at += bytes.len() as u64;
                }
                drop(producer);
            });
            let mut at = 0;
            while let Event::Chunk { position, bytes, .. } = events.next_timeout(LONG).expect("in time") {
                assert_eq!(position, at);
                assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == (at + index as u64) as u8));
                at += bytes.len() as u64;
            }
            assert_eq!(at, total);
            drop(events);
        });
    });
}

proptest! {
    #[test]
    fn lost_bytes_are_counted(
        steps in prop::collection::vec((any::<bool>(), 0..50_usize, any::<bool>()), 0..60),
        max_bytes in 1..500_usize,
    ) {
        let (producer, mut events) = queue(EventOptions { max_bytes, when_full: WhenFull::DropOldest, lines: None, until: None });
        let (mut pushed, mut seen) = (0, 0);
        let mut see = |event: Option<Event>| match event {
            Some(Event::Chunk { position, bytes, .. }) => {
                assert_eq!(position, seen);
                seen += bytes.len() as u64;
            }
            Some(Event::Lost { bytes }) => seen += bytes,
            _ => {}
        };
        for (error, length, look) in steps {
            let stream = if error { Stream::Stderr } else { Stream::Stdout };
            prop_assert!(push(&producer, stream, pushed, &vec![0; length]));
            pushed += length as u64;
            if look {
                see(events.try_next());
            }
        }
        drop(producer);
        all(&mut events).into_iter().for_each(|event| see(Some(event)));
        prop_assert_eq!(seen, pushed);
    }
}
