// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the same size as the library in seed 004. Its content is the same in every run.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::Result;
use crate::random::Random;

/// The library file, deleted on drop.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    content: Vec<u8>,
}

impl Library {
    /// Writes the file to `directory`, and syncs it to disk.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn create(directory: &Path, bytes: usize) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let directory = directory.canonicalize()?;
        let path = directory.join(format!("spawnfd-bench-library-{}.so", std::process::id()));
        let mut random = Random::new(0x11b);
        let content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).take(bytes).collect();
        let library = Self { path, content };
        let mut file = File::create_new(&library.path).with_context(|| library.path.display().to_string())?;
        file.write_all(&library.content)?;
        file.sync_all()?;
        Ok(library)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// The library's length in bytes.
    pub fn len(&self) -> usize {
        self.content.len()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
