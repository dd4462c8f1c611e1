// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd doctor`: reports this machine's kernel features, the library's fallbacks, and the cost of shims.

mod cgroup;
mod features;
mod machine;
mod print;
mod shims;

use clap::Args;
use serde::Serialize;

use crate::failure::{self, Failure};
use cgroup::Cgroup;
use features::Finding;
use machine::Machine;
use shims::Shim;

/// Report the kernel features that this machine has, and the shims in PATH
///
/// The command tests each feature by a harmless system call or a short program; it does not rely on version numbers.
/// For each missing feature it shows the library's fallback. It also lists the shims in PATH: pyenv, rbenv, nodenv,
/// asdf, mise, volta, rustup, npm links, and scripts that only exec another program. A shim adds one program to every
/// start.
#[derive(Debug, Args)]
#[command(after_help = "\
The cost of a shim is the time of 'NAME --version' through the shim, minus the time of the same call without the shim. \
Each time is the best of several alternating runs. The command runs only well-known tools, for up to 8 seconds in total.")]
pub struct Doctor {
    /// Print all findings as JSON
    #[arg(long)]
    json: bool,
    /// Do not run any shim or its tool: the report then lacks costs and some targets
    #[arg(long)]
    no_timing: bool,
    /// Also show the fallbacks for features that are available
    #[arg(long)]
    all: bool,
}

/// How the library starts programs here, as reported by the library.
#[derive(Debug, Serialize)]
struct Library {
    version: &'static str,
    /// The system call that creates children.
    spawn_call: &'static str,
    /// The way in which children close inherited descriptors.
    closes_descriptors_by: &'static str,
    /// The way in which children get the caller's descriptors.
    passes_descriptors_by: &'static str,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    machine: Machine,
    library: Library,
    features: Vec<Finding>,
    cgroup: Cgroup,
    shims: Vec<Shim>,
}

impl Doctor {
    pub fn run(&self) -> Result<(), Failure> {
        let features = features::probe();
        // Ask the library after the tests. From the spawns of the tests, it learns which calls a
        // seccomp filter refuses.
        let support = spawnfd::support::support();
        let diagnosis = Diagnosis {
            machine: Machine::inspect(),
            library: Library {
                version: env!("CARGO_PKG_VERSION"),
                spawn_call: match (support.kernel, support.clone3) {
                    (true, _) => "pidfd_spawn_run",
                    (false, true) => "clone3",
                    (false, false) => "clone",
                },
                closes_descriptors_by: if support.close_range { "close_range" } else { "/proc/self/fd" },
                passes_descriptors_by: match (support.pidfd_getfd, support.close_range) {
                    (true, _) => "pidfd_getfd",
                    (false, true) => "SCM_RIGHTS",
                    (false, false) => "a copy of the descriptor table",
                },
            },
            features,
            cgroup: cgroup::probe(),
            shims: shims::find(!self.no_timing),
        };
        let text = if self.json {
            let json = serde_json::to_string_pretty(&diagnosis);
            json.map_err(|e| Failure::new(format!("--json: {e}")))? + "\n"
        } else {
            print::text(&diagnosis, self.all, !self.no_timing)
        };
        failure::print(text.as_bytes())
    }
}
