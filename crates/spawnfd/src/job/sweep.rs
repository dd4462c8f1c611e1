// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removes spill files (files with the output of runs) of this process, and of owner processes that were killed.
//! [`super::spill`] explains how to recognise such files.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, symlink_metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::host::per_process::PerProcess;

/// The prefix of the files' names.
pub(super) const PREFIX: &str = "spawnfd-spill-";

/// The mode bit (the sticky bit) that marks a temporary file: the library removes the file when the run's result is
/// dropped, or after the process that created the file has died.
pub(super) const TEMPORARY_BIT: Mode = Mode::SVTX;

/// The maximum number of directory entries to read, in case the directory is a large /tmp.
const MAX_ENTRIES: usize = 10_000;

/// The directories that this process has swept.
static SWEPT: PerProcess<BTreeSet<PathBuf>> = PerProcess::new(BTreeSet::new());

/// The maximum number of directories to remember. When the set is full, the library empties it and
/// sweeps those directories again.
const MAX_SWEPT: usize = 64;

/// Removes spill files whose owner process is dead from a directory. Only the first call for a directory does this.
pub(super) fn sweep_once(dir: &Path) {
    {
        let mut swept = SWEPT.lock();
        if swept.contains(dir) {
            return;
        }
        if swept.len() >= MAX_SWEPT {
            swept.clear();
        }
        swept.insert(dir.to_owned());
    }
    sweep(dir);
}

/// Removes spill files whose owner process is dead from a directory.
pub(super) fn sweep(dir: &Path) {
    let Ok(entries) = dir.read_dir() else { return };
    for entry in entries.take(MAX_ENTRIES).flatten() {
        if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(path: &Path) {
    // Check the type before opening: opening a special file (a device or FIFO) can have side effects.
    if !symlink_metadata(path).is_ok_and(|found| is_temporary(&found)) {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else { return };
    // Check again under the lock: the owner may have cleared the bit before it released the lock.
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && let Ok(found) = file.metadata()
        && is_temporary(&found)
    {
        remove(path, (found.dev(), found.ino()));
    }
}

/// Whether this is a regular file of this user whose mode bit says that it is removed with its owner.
fn is_temporary(found: &Metadata) -> bool {
    found.is_file()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & TEMPORARY_BIT.as_raw_mode() != 0
}

/// Removes the directory entry `path` if it names the file with this device and inode.
pub(super) fn remove(path: &Path, file: (u64, u64)) {
    if names(path, file) {
        let _ = std::fs::remove_file(path);
    }
}

/// Whether `path` names the file with this device and inode.
pub(super) fn names(path: &Path, file: (u64, u64)) -> bool {
    symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_unlocked_files_with_the_sticky_bit_are_removed() {
        // Runs in its own process: a process forked by another test would have a copy of the lock.
        spawnfd_tests::isolated!(|| {
            let dir = spawnfd_tests::scratch();
            let make = |name: &str, mode: u32| {
                let path = dir.path().join(name);
                write(&path, "x").expect("own directory");
                set_permissions(&path, Permissions::from_mode(mode)).expect("own file");
                path
            };
            let abandoned = make("spawnfd-spill-1", 0o1600);
            let kept = make("spawnfd-spill-2", 0o600);
            let locked = make("spawnfd-spill-3", 0o1600);
            let foreign = make("spill-4", 0o1600);
            let directory = dir.path().join("spawnfd-spill-5");
            std::fs::create_dir(&directory).expect("own directory");
            set_permissions(&directory, Permissions::from_mode(0o1700)).expect("own directory");
            let link = dir.path().join("spawnfd-spill-6");
            symlink(&foreign, &link).expect("own directory");
            let lock = File::open(&locked).expect("own file");
            flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("not locked by another process");

            sweep_once(dir.path());
            assert!(!abandoned.exists());
            assert!([&kept, &locked, &foreign, &directory, &link].iter().all(|path| path.exists()));
            // Closing the descriptor releases the lock, as the owner's death does.
            drop(lock);
            sweep_once(dir.path());
            assert!(locked.exists(), "the directory is swept once only");
            sweep(dir.path());
            assert!(!locked.exists() && kept.exists());
        });
    }
}
