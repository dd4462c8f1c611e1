// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the diagnosis as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::{Cgroup, Diagnosis, Finding, Machine, Shim};
use crate::table::{align, duration};

/// Formats the diagnosis. If `all` is true, also shows the fallbacks of features that are available.
pub fn text(diagnosis: &Diagnosis, all: bool, timed: bool) -> String {
    let mut text = section("This machine", machine(diagnosis));
    text.push('\n');
    text += &section("Kernel features", features(&diagnosis.features, all));
    if !all {
        text += "  (--all also shows the fallbacks for available features)\n";
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
                || "unknown".to_owned(),
                |system| format!("Linux {} ({})", system.kernel, system.architecture),
            ),
        ),
        row(
            "container",
            machine.container.as_ref().map_or_else(|| "none detected".to_owned(), |name| format!("probably {name}")),
        ),
        row("user", user(machine)),
        row("seccomp", seccomp(machine)),
        row(
            "open files",
            machine.nofile.as_ref().map_or_else(
                || "unknown".to_owned(),
                |nofile| format!("soft limit {}, hard limit {}", limit(nofile.nofile_soft), limit(nofile.nofile_hard)),
            ),
        ),
        row("cgroup v2", group(cgroup)),
        row(
            "spawnfd",
            format!(
                "{}: spawns with {}, closes descriptors with {}, passes descriptors with {}",
                library.version, library.spawn_call, library.closes_descriptors_by, library.passes_descriptors_by
            ),
        ),
    ]
}

fn user(machine: &Machine) -> String {
    let mut text = format!("uid {}, gid {}", machine.uid, machine.gid);
    if (machine.euid, machine.egid) != (machine.uid, machine.gid) {
        let _ = write!(text, ", effective uid {}, gid {}", machine.euid, machine.egid);
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
    let mut rows = vec![["feature", "since", "available", "if missing"].map(str::to_owned).to_vec()];
    for finding in findings {
        let available = match (&finding.detail, finding.available) {
            (Some(detail), true) => format!("yes, {detail}"),
            (None, true) => "yes".to_owned(),
            (Some(detail), false) => format!("no ({detail})"),
            (None, false) => "no".to_owned(),
        };
        let if_missing = match finding.cost {
            Some(cost) => format!("{}; cost: {cost}", finding.if_missing),
            None => finding.if_missing.to_owned(),
        };
        let if_missing = if all || !finding.available || !finding.used { if_missing } else { String::new() };
        rows.push(vec![finding.name.to_owned(), finding.since.to_owned(), available, if_missing]);
    }
    rows
}

fn shims(shims: &[Shim], timed: bool) -> String {
    if shims.is_empty() {
        return "Shims in PATH\n  none\n".to_owned();
    }
    let mut rows = Vec::new();
    // The number of shims that get no row, by directory and tool.
    let mut others: BTreeMap<(PathBuf, &str), usize> = BTreeMap::new();
    for shim in shims {
        if shim.cost.is_none() && shim.note.is_none() {
            let directory = shim.path.parent().map(PathBuf::from).unwrap_or_default();
            *others.entry((directory, shim.tool)).or_default() += 1;
            continue;
        }
        let target = shim.target.as_ref().map_or_else(|| "(unknown)".to_owned(), |target| resolved(target));
        let cost = match (&shim.cost, &shim.note) {
            (Some(cost), _) if cost.cost_seconds <= 0.0 => "no measurable cost".to_owned(),
            (Some(cost), _) => {
                let ratio = cost.shim_seconds / cost.target_seconds.max(1e-9);
                let extra = duration(Duration::from_secs_f64(cost.cost_seconds));
                format!("+{extra} per start ({ratio:.1} times as long)")
            }
            (None, note) => note.clone().unwrap_or_default(),
        };
        rows.push(vec![shim.name.clone(), format!("{} -> {target}", shim.path.display()), cost]);
    }
    let mut text = section("Shims in PATH", rows);
    for ((directory, tool), count) in others {
        let more = if timed { "more " } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        let _ = writeln!(text, "  {count} {more}{tool} shim{plural} in {}", directory.display());
    }
    text += if timed {
        "  To avoid the cost, start the program by the path after the arrow.\n"
    } else {
        "  Run without --no-timing to see the cost of each shim.\n"
    };
    text
}

/// Formats a target by its real path, which shows the tool's version.
fn resolved(target: &[PathBuf]) -> String {
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    target.iter().map(|path| real(path).display().to_string()).collect::<Vec<_>>().join(" ")
}
