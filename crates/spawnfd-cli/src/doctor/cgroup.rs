// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this user has a part of cgroup v2 to itself.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use spawnfd::{Errno, support};

#[derive(Debug, Serialize)]
pub struct Cgroup {
    /// This process's own directory.
    pub directory: Option<PathBuf>,
    /// A directory could be made (and removed) below it.
    pub writable: bool,
    pub controllers: Vec<String>,
    /// Why it is not to be had.
    pub problem: Option<String>,
}

/// Looks where this process is, and makes and removes an empty group there.
pub fn probe() -> Cgroup {
    let mut found = Cgroup { directory: None, writable: false, controllers: Vec::new(), problem: None };
    let Some(directory) = support::own_cgroup() else {
        found.problem = Some("not mounted".to_owned());
        return found;
    };
    let controllers = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    found.controllers = controllers.split_whitespace().map(str::to_owned).collect();
    let trial = directory.join(format!("spawnfd-doctor-{}", std::process::id()));
    match fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)) {
        Ok(()) => found.writable = true,
        Err(e) => found.problem = Some(Errno::from_raw(e.raw_os_error().unwrap_or(0)).name().to_owned()),
    }
    found.directory = Some(directory);
    found
}
