// SPDX-License-Identifier: MIT OR Apache-2.0
//! The little programs that build.rs made, where tools lie: two directories deep, as in /usr/bin.
//!
//! Their place in the build is ten directories deep. Whoever looks at a file before it executes it pays for each of them twice, which
//! no user's program does.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::Result;

const FIRST_INSTRUCTION: &str = "first-instruction";
const LIST_FDS: &str = "list-fds";

/// A directory with the programs, removed on drop.
#[derive(Debug)]
pub struct Programs(tempfile::TempDir);

impl Programs {
    /// Copies the programs.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn install() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("spawnfd-").tempdir_in("/tmp")?;
        for (built, name) in
            [(env!("SPAWNFD_BENCH_FIRST_INSTRUCTION"), FIRST_INSTRUCTION), (env!("SPAWNFD_BENCH_LIST_FDS"), LIST_FDS)]
        {
            std::fs::copy(built, directory.path().join(name)).with_context(|| built.to_owned())?;
        }
        Ok(Self(directory))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The no-libc child.
    pub fn first_instruction(&self) -> PathBuf {
        first_instruction(self.directory())
    }
}

/// The no-libc child of the programs in `directory`.
pub fn first_instruction(directory: &Path) -> PathBuf {
    directory.join(FIRST_INSTRUCTION)
}

/// The child that lists its descriptors, of the programs in `directory`.
pub fn list_fds(directory: &Path) -> PathBuf {
    directory.join(LIST_FDS)
}
