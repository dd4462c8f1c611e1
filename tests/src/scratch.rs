// SPDX-License-Identifier: MIT OR Apache-2.0
//! Temporary directories, and where the programs of this package are.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::{Builder, TempDir};

/// Names of our own directories start so; leak snapshots leave them out.
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

/// A program of this package (`spawnfd-oracle`, `spawnfd-confine`), beside the running test.
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
/// Made by cp(1): were it written by this process, a fork of another test at the same moment would inherit the
/// descriptor, and executing the copy would fail with ETXTBSY until that child has executed something.
///
/// # Panics
/// If it cannot be copied.
pub fn copy_of_program(name: &str, directory: &Path) -> PathBuf {
    let copy = directory.join(name);
    let status = Command::new("cp").arg(program(name)).arg(&copy).status().expect("cp starts");
    assert!(status.success(), "cp to {} failed", copy.display());
    copy
}
