// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about the machine, the container and the user.

use std::fs;
use std::path::Path;

use rustix::process::{getegid, geteuid, getgid, getuid};
use serde::Serialize;
use spawnfd::rlimit;

use crate::os;

/// The facts about the machine. A fact is absent if its system call fails, for example because a
/// seccomp filter refuses the call.
#[derive(Debug, Serialize)]
pub struct Machine {
    #[serde(flatten)]
    pub system: Option<System>,
    /// The kind of container, if there are signs of one.
    pub container: Option<String>,
    pub uid: u32,
    pub euid: u32,
    pub gid: u32,
    pub egid: u32,
    /// The effective capabilities: bit n stands for capability n.
    pub capabilities: u64,
    /// The number of capabilities that this kernel has.
    pub capabilities_known: u32,
    /// The seccomp mode of this process: `none`, `strict` or `filter`.
    pub seccomp: &'static str,
    pub seccomp_filters: u32,
    pub no_new_privs: bool,
    /// True if this process is in another user namespace than the initial one.
    pub in_user_namespace: bool,
    #[serde(flatten)]
    pub nofile: Option<Nofile>,
}

#[derive(Debug, Serialize)]
pub struct System {
    pub kernel: String,
    pub architecture: String,
}

/// The soft and hard RLIMIT_NOFILE. `None` means unlimited.
#[derive(Debug, Serialize)]
pub struct Nofile {
    pub nofile_soft: Option<u64>,
    pub nofile_hard: Option<u64>,
}

impl Machine {
    pub fn inspect() -> Machine {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let number = |name: &str| field(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
        let nofile = |[soft, hard]: [Option<u64>; 2]| Nofile { nofile_soft: soft, nofile_hard: hard };
        Machine {
            system: os::system().map(|[kernel, architecture]| System { kernel, architecture }).ok(),
            container: container(),
            uid: getuid().as_raw(),
            euid: geteuid().as_raw(),
            gid: getgid().as_raw(),
            egid: getegid().as_raw(),
            capabilities: field("CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0),
            capabilities_known: last.trim().parse().map_or(0, |last: u32| last + 1),
            seccomp: match number("Seccomp") {
                0 => "none",
                1 => "strict",
                _ => "filter",
            },
            seccomp_filters: number("Seccomp_filters"),
            no_new_privs: number("NoNewPrivs") == 1,
            in_user_namespace: in_user_namespace(),
            nofile: os::limit(rlimit::NOFILE).map(nofile).ok(),
        }
    }
}

/// Guesses the kind of container from the files and variables that common runtimes create.
fn container() -> Option<String> {
    for (file, name) in [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")] {
        if Path::new(file).exists() {
            return Some(format!("{name} ({file} exists)"));
        }
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("Kubernetes".to_owned());
    }
    if let Ok(name) = fs::read_to_string("/run/systemd/container") {
        return Some(name.trim().to_owned());
    }
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    if version.contains("gVisor") {
        return Some("gVisor".to_owned());
    }
    let groups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let known = [("docker", "Docker"), ("kubepods", "Kubernetes"), ("containerd", "containerd"), ("lxc", "LXC")];
    known.iter().find(|(part, _)| groups.contains(part)).map(|(_, name)| (*name).to_owned())
}

/// Whether this process is in another user namespace than the initial one, which maps all ids to themselves.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut numbers = map.split_whitespace();
    !map.is_empty() && [numbers.next(), numbers.next(), numbers.next()] != [Some("0"), Some("0"), Some("4294967295")]
}
