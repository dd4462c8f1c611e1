// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reported problem: output fills the memory or the disk, or is lost. A name such as ralph-tui#288 is a public
//! report.

use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::job::{Decoder, Event, EventOptions, Spill, SpillEnd, Stop, Stream, TerminalSize};
use spawnfd::{Run, Stdio};
use spawnfd_tests::{isolated, scratch};

use super::{LONG, both, both_timed_out, sh, std_sh};
use crate::common;

/// The growth of this process's resident memory, at its peak, while `run` runs, in bytes.
fn peak_since(mut run: impl FnMut()) -> u64 {
    let of = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").expect("own status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("listed");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    };
    // Writing 5 resets the peak (VmHWM) to the present usage.
    std::fs::write("/proc/self/clear_refs", "5").expect("own file in /proc");
    let before = of("VmRSS:");
    run();
    of("VmHWM:").saturating_sub(before)
}

/// ralph-tui#288: a program that writes without end fills the memory of its caller.
#[test]
fn memory_stays_bounded_for_two_gibibytes_of_output() {
    isolated!(limit: Duration::from_secs(600), || {
        let size: u64 = if std::env::var_os("SPAWNFD_FULL").is_some() { 2 << 30 } else { 256 << 20 };
        assert!(sh("true").run().expect("runs").ok());
        let peak = peak_since(|| {
            let output = sh(&format!("head -c {size} /dev/zero")).run().expect("runs");
            assert_eq!((output.ok(), output.seen_bytes), (true, size));
            let kept = output.head(Stream::Stdout).len() + output.tail(Stream::Stdout).len();
            assert_eq!(output.omitted_bytes + kept as u64, size);
        });
        assert!(peak < 8 << 20, "{peak} bytes for {size}");

        let mut command = std_sh("head -c 67108864 /dev/zero");
        let peak = peak_since(|| assert_eq!(command.output().expect("runs").stdout.len(), 64 << 20));
        assert!(peak >= 48 << 20, "{peak} bytes: std does not keep it all any more: update the documents");
    });
}

/// autogen#3534: the output that a program wrote before its timeout is lost.
#[test]
fn output_before_a_timeout_is_kept() {
    isolated!(|| {
        let run = Run::new().grace(Duration::ZERO);
        both_timed_out("seq 20000; echo err >&2; : >\"$0\"; exec sleep 1000", &run, |output| {
            assert_eq!((output.stop, output.signal(), &output.stderr[..]), (Stop::Timeout, Some(9), &b"err\n"[..]));
            assert!(output.stdout_text().ends_with("\n19999\n20000\n") && output.stdout_text().starts_with("1\n2\n"));
        });
        let run = run.timeout(Duration::from_secs(100)).window(1000);
        let job = sh("echo partial; exec sleep 1000").start(&run).expect("starts");
        common::eventually("the output can be read before the end", || job.read(0).text() == "partial\n");
        job.stop(Duration::ZERO);
        assert_eq!(job.wait().expect("a job result").stdout_text(), "partial\n", "a cancelled job keeps its output");
    });
}

/// Mounts, for this thread alone, a file system of 64 KiB. Returns whether the mount succeeded.
fn small_file_system(directory: &std::path::Path) -> bool {
    let path = common::c_path(directory);
    let none = std::ptr::null();
    // SAFETY: the calls read C strings and null pointers. The mounts are in this thread's new mount namespace.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
            && libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=64k".as_ptr().cast()) == 0
    };
    if !mounted {
        spawnfd_tests::skip("cannot mount a tmpfs");
    }
    mounted
}

/// A user reported an output file of 405 GB. The library's spill file, which takes the output that memory does not
/// keep, has a size limit. If the disk is full, the spill file ends and the run goes on.
#[test]
fn a_full_disk_ends_the_spill_file_and_not_the_run() {
    isolated!(|| {
        let directory = scratch();
        if !small_file_system(directory.path()) {
            return;
        }
        let run = Run::new().keep(1000, 1000).spill(Spill::new(1 << 30).dir(directory.path()));
        // The run is in the calling thread, because only this thread sees the mount.
        let output = sh("head -c 1000000 /dev/zero; echo end").run_with(&run).expect("runs");
        assert!(output.ok() && output.seen_bytes == 1_000_004 && output.stdout.ends_with(b"end\n"));
        let spill = output.spill.as_ref().expect("a spill file");
        assert_eq!(spill.end, SpillEnd::Failed(Errno::ENOSPC));
        let path = spill.file.as_ref().expect("begun").path().to_owned();
        assert!(
            (1..=64 << 10).contains(&spill.bytes) && std::fs::metadata(&path).expect("it exists").len() == spill.bytes
        );
        drop(output);
        assert!(!path.exists());
        let capped = Run::new().keep(10, 10).spill(Spill::new(5000).dir(directory.path()));
        let output = sh("head -c 1000000 /dev/zero").run_with(&capped).expect("runs");
        let spill = output.spill.as_ref().expect("a spill file");
        assert_eq!((spill.end, spill.bytes), (SpillEnd::Capped, 5000));
    });
}

/// Reported problem: if a program prints bytes that are not UTF-8, the call fails, or the bytes are lost.
#[test]
fn output_that_is_not_utf_8_is_decoded_with_replacements() {
    isolated!(|| {
        let line = r"printf 'a\377\376b\303'; read x; printf '\251\360\237\246\200c\303'";
        let bytes = b"a\xff\xfeb\xc3\xa9\xf0\x9f\xa6\x80c\xc3";
        let expected = "a\u{fffd}\u{fffd}bé🦀c\u{fffd}";
        both(
            || sh(line),
            &Run::new(),
            |output| {
                assert_eq!((&output.stdout[..], &output.stdout_text()[..]), (&bytes[..], expected));
            },
        );
        // The result does not depend on how the bytes are split.
        let run = Run::new().writable(10);
        let (job, mut events) = sh(line).start_events(&run, EventOptions::default()).expect("starts");
        let (mut decoder, mut text, mut chunks) = (Decoder::default(), String::new(), 0);
        while let Some(Event::Chunk { bytes, .. }) = events.next_timeout(LONG) {
            decoder.decode(&bytes, &mut text);
            chunks += 1;
            job.close_stdin();
        }
        decoder.finish(&mut text);
        assert!(job.wait().expect("a job result").ok() && chunks >= 2);
        assert_eq!(text, expected);
    });
}

/// opencode#2206: a shell splits and expands every argument, so users ask to execute the program directly.
#[test]
fn arguments_arrive_unchanged() {
    isolated!(|| {
        let odd = ["", " ", "a b", "$HOME `id` $(id)", "'\"\\", "*", "--", "-n", "\n", "é\u{7f}"];
        let mut command = spawnfd::Command::new("printf");
        command.arg("<%s>").args(odd);
        let output = command.run().expect("runs");
        assert_eq!(output.stdout_text(), odd.map(|argument| format!("<{argument}>")).concat());
    });
}

/// Reported problem: without a terminal, a program buffers its output, prints no colours, or refuses to run.
#[test]
fn a_run_can_have_a_terminal() {
    isolated!(|| {
        let line = "test -t 0 && test -t 1 && test -t 2 && echo yes || echo no";
        both(
            || sh(line),
            &Run::new().terminal(TerminalSize::default()),
            |output| assert_eq!(output.stdout_text(), "yes\r\n"),
        );
        both(
            || {
                let mut command = sh(line);
                command.stdin(Stdio::Null);
                command
            },
            &Run::new(),
            |output| assert_eq!(output.stdout_text(), "no\n"),
        );
    });
}
