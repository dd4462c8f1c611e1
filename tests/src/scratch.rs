// SPDX-License-Identifier: MIT OR Apache-2.0
//! Temporary directories, and the paths of this package's programs.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::{Builder, TempDir};

/// Prefix of the directories of [`scratch`]; leak snapshots leave these directories out.
pub(crate) const PREFIX: &str = "spawnfd-test-";

/// A new directory that any user may enter and list, removed when dropped.
///
/// # Panics
/// If it cannot be made.
pub fn scratch() -> TempDir {
    let directory = Builder::new().prefix(PREFIX).tempdir().expect("a temporary directory");
    set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("own directory");
    directory
}

/// The path of a program of this package (`spawnfd-oracle`, `spawnfd-confine`), beside the running test.
///
/// # Panics
/// If it has not been built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    // target/debug/deps/oracle-0123abcd and target/debug/spawnfd-oracle
    let found = test.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}", test.display()))
}

/// A copy of a program of this package in `directory`, for users who cannot reach the original.
///
/// cp(1) makes the copy. If this process wrote it, a fork in another test at the same moment would inherit the open
/// descriptor, and exec of the copy would fail with ETXTBSY until that child has called exec.
///
/// # Panics
/// If it cannot be copied.
pub fn copy_of_program(name: &str, directory: &Path) -> PathBuf {
    let copy = directory.join(name);
    let status = Command::new("cp").arg(program(name)).arg(&copy).status().expect("cp starts");
    assert!(status.success(), "cp to {} failed", copy.display());
    copy
}
