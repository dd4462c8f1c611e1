// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd doctor`: reports this machine's kernel features, the library's fallbacks, and the cost of shims. With a
//! program, reports whether `spawnfd run --posix-spawn` has an effect in it.

mod cgroup;
mod features;
mod machine;
mod print;
mod program;
mod shims;

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use serde::{Serialize, Serializer};

use crate::failure::{self, Failure};
use cgroup::Cgroup;
use features::Finding;
use machine::Machine;
use program::ProgramReport;
use shims::Shim;

/// Report the kernel features that this machine has, and the shims in PATH
///
/// The command tests each feature by a harmless system call or a short program; it does not rely on version numbers.
/// For each missing feature it shows the library's fallback. It also lists the shims in PATH: pyenv, rbenv, nodenv,
/// asdf, mise, volta, rustup, npm links, and scripts that only exec another program. A shim adds one program to every
/// start.
///
/// With PROGRAM, the command instead reports whether 'spawnfd run --posix-spawn' has an effect in this program. It
/// reads the program's file and libraries, and does not run the program.
#[derive(Debug, Args)]
#[command(after_help = "\
The cost of a shim is the time of 'NAME --version' through the shim, minus the time of the same call without the shim. \
Each time is the best of several alternating runs. The command runs only well-known tools, for up to 8 seconds in total.

With PROGRAM, the report covers the file of the program and the libraries that it needs: which of posix_spawn, \
posix_spawnp, pidfd_spawn and pidfd_spawnp they import, and whether the loader accepts a preload for this program \
and this user. For a script or a shim, the report continues with the interpreter or the target; to find the target, \
the command runs the shim's tool unless --no-timing is given. The report does not cover the other programs that \
PROGRAM starts. They inherit the preload.

JSON with PROGRAM: replaced is true if 'spawnfd run --posix-spawn' replaces a function; files has an object for each \
file, with kind (script, shim or elf), path and the findings.

Exit status: 0 after a report; 125 if this command failed; 126 if PROGRAM is not a program, or cannot be read; 127 \
if PROGRAM was not found.")]
pub struct Doctor {
    /// Report only on this program: a path, or a name to search in PATH
    #[arg(value_name = "PROGRAM", conflicts_with = "all")]
    program: Option<OsString>,
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
        if let Some(program) = &self.program {
            let report = ProgramReport::of(program, !self.no_timing)?;
            return failure::print(if self.json { json(&report)? } else { report.text() }.as_bytes());
        }
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
        let text = if self.json { json(&diagnosis)? } else { print::text(&diagnosis, self.all, !self.no_timing) };
        failure::print(text.as_bytes())
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value);
    Ok(json.map_err(|e| Failure::new(format!("--json: {e}")))? + "\n")
}

/// Writes a path as a JSON string, with invalid UTF-8 replaced. Serde would fail instead.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
