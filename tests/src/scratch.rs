// SPDX-License-Identifier: MIT OR Apache-2.0
//! Temporary directories, and the paths of this package's programs.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::{Builder, TempDir};

/// Prefix of the directories of [`scratch`]; leak snapshots leave these directories out.
pub(crate) const PREFIX: &str = "spawnfd-test-";

/// A new directory that any user may enter and list. Dropping the returned value removes the directory.
///
/// # Panics
/// If the directory cannot be created.
pub fn scratch() -> TempDir {
    let directory = Builder::new().prefix(PREFIX).tempdir().expect("a temporary directory");
    set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("own directory");
    directory
}

/// The path of a program of this package (`spawnfd-oracle`, `spawnfd-confine`), in the running test's directory or
/// its parent.
///
/// # Panics
/// If the program has not been built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    // For example, the test is target/debug/deps/oracle-0123abcd and the program target/debug/spawnfd-oracle.
    let found = test.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}", test.display()))
}

/// A copy of a program of this package in `directory`, for users who cannot reach the original.
///
/// cp(1) makes the copy, so that this process never has the file open for writing. Otherwise a child that another
/// test forks at that moment would inherit the descriptor, and until that child calls exec, exec of the copy would
/// fail with ETXTBSY.
///
/// # Panics
/// If the program cannot be copied.
pub fn copy_of_program(name: &str, directory: &Path) -> PathBuf {
    let copy = directory.join(name);
    let status = Command::new("cp").arg(program(name)).arg(&copy).status().expect("cp starts");
    assert!(status.success(), "cp to {} failed", copy.display());
    copy
}
