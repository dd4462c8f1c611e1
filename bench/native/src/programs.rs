// SPDX-License-Identifier: MIT OR Apache-2.0
//! The small programs that build.rs created. The driver installs them two directories deep, as in /usr/bin.
//!
//! In the build directory they are ten directories deep. A method that checks the file before exec would resolve each
//! of these directories twice, which no user's program requires.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::Result;

const FIRST_INSTRUCTION: &str = "first-instruction";
const LIST_FDS: &str = "list-fds";
const PROGRAMS: [(&str, &[u8]); 2] = [
    (FIRST_INSTRUCTION, include_bytes!(env!("SPAWNFD_BENCH_FIRST_INSTRUCTION"))),
    (LIST_FDS, include_bytes!(env!("SPAWNFD_BENCH_LIST_FDS"))),
];

/// Writes the programs to `directory`.
///
/// # Errors
///
/// A file cannot be created.
pub fn install_into(directory: &Path) -> Result<()> {
    for (name, content) in PROGRAMS {
        let path = directory.join(name);
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(&path)
            .and_then(|mut file| file.write_all(content))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The path of the child without libc, in `directory`.
pub fn first_instruction(directory: &Path) -> PathBuf {
    directory.join(FIRST_INSTRUCTION)
}

/// The path of the child that lists its descriptors, in `directory`.
pub fn list_fds(directory: &Path) -> PathBuf {
    directory.join(LIST_FDS)
}
