// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd doctor`: the features of this kernel, container and user, the library's fallbacks, and the cost of shims.

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

/// Show what this kernel, container and user offer
///
/// Every feature is tried, harmlessly, not guessed from a version number; what is used instead of a missing one is the
/// library's own account. Then come the shims that PATH leads to (pyenv, rbenv, nodenv, asdf, mise, volta, rustup, npm links,
/// scripts that only exec another program): each is one more program at every start.
#[derive(Debug, Args)]
#[command(after_help = "\
A cost is the difference between the best of a few runs of 'NAME --version' through the shim and of the program it \
leads to, taken in turn. Only well-known tools are run, for a few seconds in all.")]
pub struct Doctor {
    /// Print JSON, complete, for programs
    #[arg(long)]
    json: bool,
    /// Do not run any shim: neither time it nor ask its tool where it leads
    #[arg(long)]
    no_timing: bool,
    /// Say also for what is there what would be done without it
    #[arg(long)]
    all: bool,
}

/// How the library starts programs here, as reported by the library.
#[derive(Debug, Serialize)]
struct Library {
    version: &'static str,
    birth: &'static str,
    descriptors: &'static str,
    handover: &'static str,
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
        // Read after the probes: their spawns show the library which calls a filter refuses.
        let support = spawnfd::support::support();
        let diagnosis = Diagnosis {
            machine: Machine::look(),
            library: Library {
                version: env!("CARGO_PKG_VERSION"),
                birth: match (support.kernel, support.clone3) {
                    (true, _) => "pidfd_spawn_run",
                    (false, true) => "clone3",
                    (false, false) => "clone",
                },
                descriptors: if support.close_range { "close_range" } else { "/proc/self/fd" },
                handover: match (support.fetch, support.close_range) {
                    (true, _) => "pidfd_getfd",
                    (false, true) => "a socket",
                    (false, false) => "a copy of the table",
                },
            },
            features,
            cgroup: cgroup::probe(),
            shims: shims::look(!self.no_timing),
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
