// SPDX-License-Identifier: MIT OR Apache-2.0
//! The diagnosis as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::{Cgroup, Diagnosis, Finding, Machine, Shim};
use crate::table::{align, duration};

/// Formats the diagnosis. `all`: also shows the fallbacks of features that are available.
pub fn text(diagnosis: &Diagnosis, all: bool, timed: bool) -> String {
    let mut text = section("This machine", machine(diagnosis));
    text.push('\n');
    text += &section("Kernel features", features(&diagnosis.features, all));
    if !all {
        text += "  (--all says what would be done without the rest)\n";
    }
    text.push('\n');
    text += &shims(&diagnosis.shims, timed);
    text
}

fn section(title: &str, rows: Vec<Vec<String>>) -> String {
    let mut text = format!("{title}\n");
    for line in align(&rows).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn machine(diagnosis: &Diagnosis) -> Vec<Vec<String>> {
    let Diagnosis { machine, library, cgroup, .. } = diagnosis;
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let limit = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    vec![
        row(
            "kernel",
            machine.system.as_ref().map_or_else(
                || "not told".to_owned(),
                |system| format!("Linux {} ({})", system.kernel, system.architecture),
            ),
        ),
        row(
            "container",
            machine.container.as_ref().map_or_else(|| "no sign of one".to_owned(), |name| format!("looks like {name}")),
        ),
        row("user", user(machine)),
        row("seccomp", seccomp(machine)),
        row(
            "open files",
            machine.nofile.as_ref().map_or_else(
                || "not told".to_owned(),
                |nofile| format!("{} at most, {} if asked for", limit(nofile.nofile_soft), limit(nofile.nofile_hard)),
            ),
        ),
        row("cgroup v2", group(cgroup)),
        row(
            "spawnfd",
            format!(
                "{}: starts by {}, drops descriptors by {}, hands them over by {}",
                library.version, library.birth, library.descriptors, library.handover
            ),
        ),
    ]
}

fn user(machine: &Machine) -> String {
    let mut text = format!("uid {}, gid {}", machine.uid, machine.gid);
    if (machine.euid, machine.egid) != (machine.uid, machine.gid) {
        let _ = write!(text, ", acting as uid {}, gid {}", machine.euid, machine.egid);
    }
    let _ = match machine.capabilities.count_ones() {
        0 => write!(text, ", no capabilities"),
        some => write!(text, ", {some} of {} capabilities", machine.capabilities_known),
    };
    if machine.in_user_namespace {
        text += ", in a user namespace";
    }
    text
}

fn seccomp(machine: &Machine) -> String {
    let mut text = match machine.seccomp_filters {
        0 => machine.seccomp.to_owned(),
        filters => format!("{} ({filters})", machine.seccomp),
    };
    if machine.no_new_privs {
        text += ", no_new_privs";
    }
    text
}

fn group(cgroup: &Cgroup) -> String {
    let Some(directory) = &cgroup.directory else {
        return cgroup.problem.clone().unwrap_or_default();
    };
    let controllers = if cgroup.controllers.is_empty() { "none".to_owned() } else { cgroup.controllers.join(" ") };
    let writable = match (&cgroup.problem, cgroup.writable) {
        (_, true) => "writable".to_owned(),
        (Some(problem), _) => format!("not writable ({problem})"),
        (None, _) => "not writable".to_owned(),
    };
    format!("{}: {writable}, controllers: {controllers}", directory.display())
}

fn features(findings: &[Finding], all: bool) -> Vec<Vec<String>> {
    let mut rows = vec![["feature", "since", "here", "without it"].map(str::to_owned).to_vec()];
    for finding in findings {
        let here = match (&finding.detail, finding.available) {
            (Some(detail), true) => format!("yes, {detail}"),
            (None, true) => "yes".to_owned(),
            (Some(detail), false) => format!("no ({detail})"),
            (None, false) => "no".to_owned(),
        };
        let without = match finding.cost {
            Some(cost) => format!("{}; costs: {cost}", finding.without),
            None => finding.without.to_owned(),
        };
        let without = if all || !finding.available || !finding.used { without } else { String::new() };
        rows.push(vec![finding.name.to_owned(), finding.since.to_owned(), here, without]);
    }
    rows
}

fn shims(shims: &[Shim], timed: bool) -> String {
    if shims.is_empty() {
        return "Shims in PATH\n  none\n".to_owned();
    }
    let mut rows = Vec::new();
    // The number of shims without a row of their own, by directory and tool.
    let mut others: BTreeMap<(PathBuf, &str), usize> = BTreeMap::new();
    for shim in shims {
        if shim.cost.is_none() && shim.note.is_none() {
            let directory = shim.path.parent().map(PathBuf::from).unwrap_or_default();
            *others.entry((directory, shim.tool)).or_default() += 1;
            continue;
        }
        let target = shim.target.as_ref().map_or_else(|| "?".to_owned(), |target| shown(target));
        let cost = match (&shim.cost, &shim.note) {
            (Some(cost), _) if cost.cost_seconds <= 0.0 => "+0 ms a start".to_owned(),
            (Some(cost), _) => {
                let ratio = cost.shim_seconds / cost.target_seconds.max(1e-9);
                let extra = duration(Duration::from_secs_f64(cost.cost_seconds));
                format!("+{extra} a start ({ratio:.1} times as long)")
            }
            (None, note) => note.clone().unwrap_or_default(),
        };
        rows.push(vec![shim.name.clone(), format!("{} -> {target}", shim.path.display()), cost]);
    }
    let mut text = section("Shims in PATH", rows);
    for ((directory, tool), count) in others {
        let more = if timed { "more " } else { "" };
        let _ = writeln!(text, "  {count} {more}of {tool} in {}", directory.display());
    }
    text += if timed {
        "  To be rid of a cost, start the program by the path on the right.\n"
    } else {
        "  Without --no-timing: where they lead, and what each costs a start.\n"
    };
    text
}

/// Formats a target by its real path, which distinguishes versions.
fn shown(target: &[PathBuf]) -> String {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    target.iter().map(|path| real(path).display().to_string()).collect::<Vec<_>>().join(" ")
}
