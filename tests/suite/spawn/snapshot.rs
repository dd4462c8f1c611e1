// SPDX-License-Identifier: MIT OR Apache-2.0
//! A snapshot keeps the contents of a file even if the file changes or disappears. The cache
//! returns the same snapshot while the file is unchanged.

use crate::common;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command as Program;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{code, executable, exits_with, rounds};
use spawnfd::Template;
use spawnfd::error::{Errno, Stage};
use spawnfd::snapshot::{self, Kind, Snapshot, SnapshotCache, take};
use spawnfd_tests::leaks::{self, Snapshot as Leaks};
use spawnfd_tests::{isolated, scratch, skip};

fn contents(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = File::open(format!("/proc/self/fd/{}", snapshot.as_fd().as_raw_fd())).expect("own descriptor");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("readable");
    bytes
}

/// Lets the library open the files that it keeps for a thread with seccomp filters, and then takes
/// a leak snapshot.
fn leaks_after_use() -> Leaks {
    drop(snapshot::open("/bin/true"));
    Leaks::take()
}

/// Waits for the clock to advance, because the cache does not keep a file that has just changed.
fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(40));
}

fn open(path: &Path) -> File {
    File::open(path).expect("own file")
}

#[test]
fn a_snapshot_respects_the_file_size_limit() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("file");
        fs::write(&path, [0; 8192]).expect("own directory");
        if take(open(&path)).expect("a snapshot").kind() != Kind::Memfd {
            return skip("this file system shares extents");
        }
        let limit = |bytes| libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: setrlimit reads one rlimit, and changes a limit of this isolated process. If the
        // library wrote beyond the limit, the kernel would send SIGXFSZ, which ends the process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit(8191)) }, 0);
        let error = take(open(&path)).expect_err("longer than the limit");
        assert_eq!((error.errno(), error.stage()), (Errno::EFBIG, Stage::Snapshot));
        // SAFETY: setrlimit reads one rlimit, and changes a limit of this isolated process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit(8192)) }, 0);
        assert_eq!(contents(&take(open(&path)).expect("as long as the limit")).len(), 8192);
    });
}

#[test]
fn a_file_shorter_than_its_size_is_copied_whole() {
    isolated!(|| {
        let path = Path::new("/sys/kernel/fscaps");
        let Ok(text) = fs::read(path) else { return skip("/sys has no such file") };
        let Ok(snapshot) = snapshot::open(path) else { return skip("the kernel cannot copy this file") };
        assert!(text.len() < snapshot.source().size as usize);
        assert_eq!(contents(&snapshot), text);
    });
}

#[test]
fn a_pending_sigxfsz_of_the_host_is_kept() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("file");
        fs::write(&path, [0; 8192]).expect("own directory");
        if take(open(&path)).expect("a snapshot").kind() != Kind::Memfd {
            return skip("this file system shares extents");
        }
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the calls take integers, and read and write structs of this function. SIGXFSZ is
        // blocked when it is raised.
        unsafe {
            let (mut set, mut found): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            let mut is_pending = || {
                assert_eq!(libc::sigpending(&raw mut found), 0);
                libc::sigismember(&raw const found, libc::SIGXFSZ) == 1
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
            libc::sigaddset(&raw mut set, libc::SIGXFSZ);
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()), 0);
            let refused = || take(open(&path)).map(drop).expect_err("longer than the limit").errno();
            assert_eq!((refused(), is_pending()), (Errno::EFBIG, false));
            assert_eq!(libc::raise(libc::SIGXFSZ), 0);
            assert_eq!((refused(), is_pending()), (Errno::EFBIG, true));
        }
    });
}

#[test]
fn a_copy_is_sealed() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("file");
        let text = "something to keep ".repeat(100_000);
        fs::write(&path, &text).expect("own directory");
        let snapshot = take(open(&path)).expect("a snapshot");
        if snapshot.kind() != Kind::Memfd {
            return skip("this file system shares extents");
        }
        fs::write(&path, "something else").expect("own file");
        assert_eq!(contents(&snapshot), text.as_bytes());
        // The file offset of the snapshot is at the start.
        let mut read = Vec::new();
        let copy = snapshot.as_fd().try_clone_to_owned().expect("a copy");
        File::from(copy).read_to_end(&mut read).expect("readable");
        assert!(read == text.as_bytes());
        let number = snapshot.as_fd().as_raw_fd();
        // SAFETY: these fcntl commands take integers and change nothing.
        let (seals, flags) = unsafe { (libc::fcntl(number, libc::F_GET_SEALS), libc::fcntl(number, libc::F_GETFD)) };
        assert_eq!(seals, libc::F_SEAL_SEAL | libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK);
        assert_eq!(flags, libc::FD_CLOEXEC);
        let mut file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}")).expect("memory");
        for length in [0, 1 << 30] {
            assert_eq!(file.set_len(length).expect_err("sealed").raw_os_error(), Some(libc::EPERM));
        }
        assert_eq!(file.write(b"x").expect_err("sealed").raw_os_error(), Some(libc::EPERM));
        assert!(File::from(OwnedFd::from(snapshot)).write(b"x").is_err(), "read-only");
    });
}

#[test]
fn only_readable_regular_files_have_snapshots() {
    isolated!(|| {
        let directory = scratch();
        let before = leaks_after_use();
        let fifo = common::fifo(directory.path(), "fifo");
        let cache = SnapshotCache::default();
        // The library must not block on a FIFO without a writer, and must not take a file in /proc
        // for an empty file.
        for path in [fifo.as_path(), directory.path(), Path::new("/proc/self/status"), Path::new("/dev/null")] {
            for outcome in [snapshot::open(path), cache.open(path)] {
                let error = outcome.expect_err("no regular file");
                assert_eq!((error.stage(), error.errno()), (Stage::Snapshot, Errno::EINVAL), "{path:?}: {error}");
            }
        }
        assert_eq!(snapshot::open("/proc/self/mem").expect_err("nothing is mapped at 0").errno(), Errno::EIO);
        let path = directory.path().join("file");
        fs::write(&path, "text").expect("own directory");
        let writing = OpenOptions::new().append(true).open(&path).expect("own file");
        assert_eq!(take(&writing).map(drop).expect_err("not readable").errno(), Errno::EBADF);
        for outcome in [cache.open(directory.path().join("nothing")), snapshot::open(directory.path().join("nothing"))]
        {
            assert_eq!(outcome.expect_err("missing").errno(), Errno::ENOENT);
        }
        drop(writing);
        let empty = directory.path().join("empty");
        fs::write(&empty, "").expect("own directory");
        assert_eq!(contents(&take(open(&empty)).expect("a snapshot")), b"");
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn a_snapshot_can_be_executed() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("program");
        executable(&path, exits_with(5));
        let cache = SnapshotCache::default();
        let template = Template::from_descriptor(cache.open(&path).expect("a snapshot")).expect("a template");
        executable(&path, exits_with(6));
        for _ in 0..20 {
            assert_eq!(code(template.command().spawn()), Ok(5));
        }
        let newer = Template::from_descriptor(cache.open(&path).expect("a snapshot")).expect("a template");
        assert_eq!((code(newer.command().spawn()), code(template.command().spawn())), (Ok(6), Ok(5)));
        let script = directory.path().join("script");
        executable(&script, "#!/bin/sh\n");
        let error =
            Template::from_descriptor(cache.open(&script).expect("a snapshot")).map(drop).expect_err("a script");
        assert_eq!(error.errno(), Errno::EINVAL);
    });
}

#[test]
fn the_cache_counts_hits_misses_and_evictions() {
    isolated!(|| {
        let directory = scratch();
        let path = |number: usize| directory.path().join(number.to_string());
        (0..100).for_each(|number| fs::write(path(number), number.to_string()).expect("own directory"));
        settle();
        let before = leaks_after_use();
        let cache = SnapshotCache::default();
        let stats = |cache: &SnapshotCache| {
            let stats = cache.stats();
            [stats.hits, stats.misses, stats.stale, stats.evicted, stats.entries as u64]
        };
        let get = |number: usize| contents(&cache.open(path(number)).expect("a snapshot"));
        (0..64).for_each(|number| assert_eq!(get(number), number.to_string().as_bytes()));
        assert_eq!(stats(&cache), [0, 64, 0, 0, 64]);
        // This use of the oldest entry makes the second oldest entry leave the cache.
        get(0);
        get(64);
        assert_eq!(stats(&cache), [1, 65, 0, 1, 64]);
        get(0);
        assert_eq!(stats(&cache), [2, 65, 0, 1, 64]);
        get(1);
        assert_eq!(stats(&cache), [2, 66, 0, 2, 64]);
        // A second name of a file finds the same entry. Other contents, another mode or another
        // time need a new snapshot.
        fs::hard_link(path(5), directory.path().join("link")).expect("own directory");
        settle();
        let _ = get(5);
        let base = cache.stats();
        assert_eq!(contents(&cache.open(directory.path().join("link")).expect("a snapshot")), b"5");
        assert_eq!(cache.stats().hits, base.hits + 1);
        fs::write(path(5), "five").expect("own file");
        settle();
        assert_eq!(get(5), b"five");
        open(&path(5)).set_modified(std::time::SystemTime::UNIX_EPOCH).expect("own file");
        assert_eq!(get(5), b"five");
        assert_eq!(cache.stats().stale, base.stale + 2);
        fs::rename(path(6), path(5)).expect("own directory");
        assert_eq!(get(5), b"6");
        assert!(cache.stats().entries <= 64);
        // A snapshot remains valid after the cache is cleared.
        let kept = cache.open(path(7)).expect("a snapshot");
        cache.clear();
        assert_eq!((cache.stats().entries, contents(&kept)), (0, b"7".to_vec()));
        drop((cache, kept));
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn the_cache_works_from_many_threads() {
    isolated!(|| {
        let directory = scratch();
        let path = |number: usize| directory.path().join(number.to_string());
        (0..8).for_each(|number| fs::write(path(number), vec![number as u8; 10_000]).expect("own directory"));
        settle();
        let cache = SnapshotCache::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cache, path) = (&cache, &path);
                scope.spawn(move || {
                    for round in 0..rounds(1000) {
                        let number = (round * (thread + 1)) % 8;
                        let snapshot = cache.open(path(number)).expect("a snapshot");
                        assert_eq!(contents(&snapshot), vec![number as u8; 10_000]);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert!(stats.hits > 0);
        assert_eq!(stats.hits + stats.misses, 4 * rounds(1000) as u64);
        assert!(stats.entries <= 4 && stats.stale == 0);
    });
}

#[test]
fn a_reused_cache_number_is_left_alone() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("file");
        fs::write(&path, "kept").expect("own directory");
        let foreign = directory.path().join("foreign");
        fs::write(&foreign, "foreign").expect("own directory");
        settle();
        let cache = SnapshotCache::default();
        let before = leaks_after_use();
        assert_eq!(contents(&cache.open(&path).expect("a snapshot")), b"kept");
        let after = Leaks::take();
        let kept: Vec<i32> = after.fds.into_keys().filter(|number| !before.fds.contains_key(number)).collect();
        assert_eq!(kept.len(), 1);
        let theirs = common::at_number(&open(&foreign), kept[0]);
        assert_eq!(contents(&cache.open(&path).expect("a new snapshot")), b"kept");
        assert_eq!(contents(&cache.open(&path).expect("the cached snapshot")), b"kept");
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.stale, stats.entries), (1, 2, 0, 1));
        cache.clear();
        assert_eq!(fs::read_link(format!("/proc/self/fd/{}", theirs.as_raw_fd())).expect("still open"), foreign);
    });
}

/// Takes snapshots of a file while a thread overwrites the whole file, again and again, each time
/// with one byte value. No snapshot may mix contents within one write.
fn assert_never_mixed(directory: &Path) {
    const SIZE: usize = 100_000;
    let path = directory.join("file");
    fs::write(&path, vec![0; SIZE]).expect("own directory");
    let (over, cache) = (AtomicBool::new(false), SnapshotCache::default());
    let (mut whole, mut changing, mut torn) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = OpenOptions::new().write(true).open(&path).expect("own file");
            let mut byte = 0_u8;
            while !over.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                // The thread writes four parts, so that a reader may see only some of them.
                file.rewind().expect("a file");
                (0..4).for_each(|_| file.write_all(&[byte; SIZE / 4]).expect("own file"));
                (0..500).for_each(|_| std::hint::spin_loop());
            }
        });
        for _ in 0..rounds(2000) {
            match take(open(&path)) {
                Ok(snapshot) => {
                    let bytes = contents(&snapshot);
                    assert_eq!(bytes.len(), SIZE);
                    if bytes.iter().all(|byte| *byte == bytes[0]) { whole += 1 } else { torn += 1 }
                }
                Err(error) => {
                    assert_eq!((error.stage(), error.errno()), (Stage::Snapshot, Errno::ESTALE));
                    changing += 1;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("{whole} whole, {changing} refused as changing, {torn} mixed between two writes of the writer");
    // A snapshot taken between two writes of the thread is a true copy, although its parts differ.
    // After the last write, a snapshot must have exactly the last contents.
    fs::write(&path, vec![77; SIZE]).expect("own file");
    assert_eq!(contents(&cache.open(&path).expect("no writer is left")), vec![77; SIZE]);
    // These writes follow each other at once, perhaps within one tick of the clock.
    for round in 0..rounds(1000) {
        let byte = (round % 200) as u8;
        fs::write(&path, vec![byte; SIZE]).expect("own file");
        assert_eq!(contents(&cache.open(&path).expect("no writer is left"))[..10], [byte; 10], "round {round}");
    }
}

#[test]
fn a_changing_file_gives_no_mixed_snapshot() {
    isolated!(|| assert_never_mixed(scratch().path()));
}

#[test]
fn a_changing_file_with_coarse_timestamps_gives_no_mixed_snapshot() {
    isolated!(|| {
        let directory = scratch();
        if common::coarse_file_system(directory.path()) {
            assert_never_mixed(directory.path());
        }
    });
}

#[test]
fn snapshots_share_extents_if_the_file_system_can() {
    isolated!(root: || {
        let directory = scratch();
        let (image, mount) = (directory.path().join("image"), directory.path().join("mount"));
        fs::create_dir(&mount).expect("own directory");
        File::create(&image).expect("own directory").set_len(512 << 20).expect("own file");
        let run = |program: &str, arguments: &[&Path]| {
            Program::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
        };
        if !run("mkfs.btrfs", &[&image]) && !run("mkfs.xfs", &[&image]) {
            return skip("mkfs.btrfs and mkfs.xfs do not work here");
        }
        if !run("mount", &[&image, &mount]) {
            return skip("cannot mount a loop device");
        }
        let outcome = std::panic::catch_unwind(|| {
            let path = mount.join("program");
            executable(&path, exits_with(5));
            let snapshot = take(open(&path)).expect("a snapshot");
            assert_eq!(snapshot.kind(), Kind::Reflink);
            executable(&path, exits_with(6));
            assert_eq!(contents(&snapshot), exits_with(5));
            let template = Template::from_descriptor(&snapshot).expect("a template");
            assert_eq!(code(template.command().spawn()), Ok(5));
            assert_eq!(fs::read_dir(&mount).expect("own directory").count(), 1, "the copy has no name");
        });
        assert!(run("umount", &[&mount]));
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
