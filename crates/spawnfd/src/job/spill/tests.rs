// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the spill file.

use super::*;
use crate::job::record::{Keep, Record};
use crate::job::stream::Stream;
use proptest::prelude::*;
use spawnfd_tests::{deadline, isolated, scratch, skip};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::Duration;

fn spilling(keep: (usize, usize), spill: Spill) -> Record {
    Record::new(&Keep { streams: keep, marker: None, spill: Some(spill), ..Keep::default() })
}

fn spilled(spill: Spill, bytes: usize) -> Spilled {
    let mut record = spilling((10, 10), spill);
    for _ in 0..bytes.div_ceil(1 << 10) {
        record.append(Stream::Stdout, &[b'x'; 1 << 10]);
    }
    let recorded = record.close();
    assert_eq!((recorded.stdout.bytes.len(), recorded.stdout.cut.omitted), (20, bytes as u64 - 20));
    recorded.spill.expect("more than is kept")
}

fn is_empty(dir: &Path) -> bool {
    dir.read_dir().expect("own directory").next().is_none()
}

#[test]
fn a_missing_or_replaced_file_is_a_failure() {
    let (dir, other) = (scratch(), scratch());
    for replaced in [false, true] {
        let mut record = spilling((10, 10), Spill::new(1 << 20).dir(dir.path()));
        record.append(Stream::Stdout, &[b'x'; 1 << 10]);
        let file = dir.path().read_dir().expect("own directory").next().expect("made").expect("readable").path();
        fs::rename(&file, other.path().join("moved")).expect("own file");
        if replaced {
            fs::write(&file, "another's").expect("own directory");
        }
        let spilled = record.close().spill.expect("more than is kept");
        assert_eq!((spilled.bytes, spilled.end), (0, SpillEnd::Failed(Errno::ENOENT)));
        assert!(spilled.file.is_none());
    }
}

#[test]
fn an_empty_directory_name_is_a_failure() {
    let spilled = spilled(Spill::new(1 << 20).dir(""), 1 << 10);
    assert_eq!((spilled.bytes, spilled.end), (0, SpillEnd::Failed(Errno::ENOENT)));
    assert_eq!((or_tmp("".into()), or_tmp("/x".into())), ("/tmp".into(), "/x".into()));
}

proptest! {
    #[test]
    fn the_file_has_the_output_in_order_of_arrival(
        chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..12)), 0..20),
        keep in (0..30_usize, 0..30_usize),
        max_bytes in prop_oneof![0..100_u64, Just(u64::MAX)],
    ) {
        let dir = scratch();
        let mut record = spilling(keep, Spill::new(max_bytes).dir(dir.path()));
        let (mut all, mut lengths) = (Vec::new(), [0, 0]);
        for (error, bytes) in chunks {
            record.append(if error { Stream::Stderr } else { Stream::Stdout }, &bytes);
            lengths[usize::from(error)] += bytes.len();
            all.extend(bytes);
        }
        let recorded = record.close();
        prop_assert_eq!(recorded.spill.is_some(), lengths.iter().any(|&length| length > keep.0 + keep.1));
        if let Some(Spilled { file, bytes, end }) = recorded.spill {
            let length = all.len().min(usize::try_from(max_bytes).unwrap());
            let file = file.expect("disk space");
            prop_assert_eq!(fs::read(file.path()).expect("readable"), &all[..length]);
            prop_assert_eq!(bytes, length as u64);
            prop_assert_eq!(end, if length < all.len() { SpillEnd::Capped } else { SpillEnd::Whole });
        }
        prop_assert!(is_empty(dir.path()));
    }
}

#[test]
fn the_last_handle_removes_the_file_unless_it_persists() {
    let dir = scratch();
    let spill = Spill::new(1 << 20).dir(dir.path());
    let first = spilled(spill.clone(), 4 << 10).file.expect("disk space");
    let mode = first.path().metadata().expect("a file").mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = first.clone();
    drop(first);
    assert_eq!(second.path().metadata().expect("still a file").len(), 4 << 10);
    drop(second);
    assert!(is_empty(dir.path()));

    // Dropping a record before its end removes the file, even with `persist`.
    let mut record = spilling((0, 0), spill.clone().persist(true));
    record.append(Stream::Stdout, b"x");
    assert!(!is_empty(dir.path()));
    drop(record);
    assert!(is_empty(dir.path()));

    // A copy of the handle in a forked process (with another owner pid) does not remove the file.
    let mut copy = spilled(spill.clone(), 4 << 10).file.expect("disk space");
    let path = copy.path().to_owned();
    Arc::get_mut(&mut copy.0).expect("the only one").owner += 1;
    drop(copy);
    assert!(path.exists());

    let kept = spilled(spill.persist(true), 4 << 10).file.expect("disk space").path().to_owned();
    assert_eq!(kept.metadata().expect("a file").mode() & 0o7777, 0o600);
}

#[test]
fn a_replacement_of_the_file_is_left_alone() {
    let dir = scratch();
    let file = spilled(Spill::new(1 << 20).dir(dir.path()), 4 << 10).file.expect("disk space");
    let path = file.path().to_owned();
    fs::rename(&path, dir.path().join("moved")).expect("own directory");
    fs::write(&path, "another").expect("own directory");
    drop(file);
    assert_eq!(fs::read(&path).expect("untouched"), b"another");
}

#[test]
fn a_missing_directory_is_a_failure() {
    let dir = scratch().path().to_owned();
    let Spilled { file, bytes, end } = spilled(Spill::new(1 << 20).dir(dir), 4 << 10);
    assert_eq!((file.is_none(), bytes, end), (true, 0, SpillEnd::Failed(Errno::ENOENT)));
}

#[test]
fn a_limit_on_file_sizes_does_not_end_the_host() {
    isolated!(|| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let dir = scratch();
        setrlimit(Resource::Fsize, Rlimit { current: Some(100_000), maximum: None }).expect("lower");
        let Spilled { file, bytes, end } = spilled(Spill::new(1 << 20).dir(dir.path()), 200 << 10);
        assert_eq!((bytes, end), (100_000, SpillEnd::Failed(Errno::EFBIG)));
        assert_eq!(file.expect("made").path().metadata().expect("there").len(), 100_000);
        assert_eq!(call::pending_signals(), Ok(0));
    });
}

#[test]
fn a_full_disk_ends_the_file_and_nothing_else() {
    deadline(Duration::from_secs(60), || {
        let dir = scratch();
        // The script mounts a small file system in another mount namespace. The test reaches it
        // through /proc/PID/root of a process in that namespace.
        let script = r#"mount -t tmpfs -o size=64k none "$1" && echo $$ && read -r end"#;
        let mut holder = Command::new("unshare")
            .args(["-rm", "sh", "-c", script, "sh"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut pid = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut pid).expect("own pipe");
        if pid.is_empty() {
            skip("needs to mount a tmpfs in a namespace of its own");
        } else {
            let small = PathBuf::from(format!("/proc/{}/root{}", pid.trim(), dir.path().display()));
            let Spilled { file, bytes, end } = spilled(Spill::new(1 << 20).dir(&small), 200 << 10);
            assert_eq!((bytes, end), (64 << 10, SpillEnd::Failed(Errno::ENOSPC)));
            let file = file.expect("made");
            assert_eq!(fs::read(file.path()).expect("readable").len(), 64 << 10);
            drop(file);
            assert!(is_empty(&small));
        }
        drop(holder.stdin.take());
        holder.wait().expect("own child");
    });
}

/// The environment variable that tells a second process of the test, which the test kills, its spill directory.
const OWNER_DIR: &str = "SPAWNFD_TEST_SPILL_DIR";

#[test]
fn the_next_job_removes_files_of_a_killed_owner() {
    if let Some(dir) = std::env::var_os(OWNER_DIR) {
        let spilled = spilled(Spill::new(1 << 20).dir(dir), 4 << 10);
        println!("\nmade {}", spilled.file.as_ref().expect("disk space").path().display());
        // Blocks until the test kills this process. If the test process dies first, the pipe closes and the read
        // returns.
        std::io::stdin().read_line(&mut String::new()).expect("own pipe");
        return;
    }
    deadline(Duration::from_secs(60), || {
        let dir = scratch();
        let name = "job::spill::tests::the_next_job_removes_files_of_a_killed_owner";
        let mut owner = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(OWNER_DIR, dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test starts again");
        let lines = BufReader::new(owner.stdout.take().expect("piped")).lines().map_while(|line| line.ok());
        let path = lines.into_iter().find_map(|line| line.strip_prefix("made ").map(PathBuf::from)).expect("a file");
        sweep::sweep(dir.path());
        assert!(path.exists(), "the owner is alive");
        owner.kill().and_then(|()| owner.wait()).expect("own child");
        assert!(path.exists());
        drop(spilled(Spill::new(1 << 20).dir(dir.path()), 4 << 10));
        assert!(is_empty(dir.path()));
    });
}
