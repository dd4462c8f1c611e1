// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests whether this user may create cgroups (v2).

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use spawnfd::error::Errno;
use spawnfd::internal;

#[derive(Debug, Serialize)]
pub struct Cgroup {
    /// The directory of this process's cgroup.
    pub directory: Option<PathBuf>,
    /// True if this user may create and remove a cgroup below `directory`.
    pub writable: bool,
    pub controllers: Vec<String>,
    /// The reason why cgroups are not available.
    pub problem: Option<String>,
}

/// Finds this process's cgroup, and creates and removes an empty one below it.
pub fn probe() -> Cgroup {
    let mut found = Cgroup { directory: None, writable: false, controllers: Vec::new(), problem: None };
    let Some(directory) = internal::own_cgroup() else {
        found.problem = Some("not mounted, or not in use by this process".to_owned());
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
