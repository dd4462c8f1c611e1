// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine on which a benchmark ran: CPU, cores, kernel, mitigations, memory, command.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub libc: String,
    pub mitigations: BTreeMap<String, String>,
    pub mem: String,
    pub clocksource: String,
    pub transparent_hugepage: String,
    pub command: String,
}

impl Machine {
    /// Describes this machine. A fact that cannot be read is empty.
    pub fn here() -> Self {
        let name = rustix::system::uname();
        let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: [text(name.sysname()), text(name.release()), text(name.version()), text(name.machine())].join(" "),
            libc: libc_version(),
            mitigations: mitigations(),
            mem: field("/proc/meminfo", "MemTotal"),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            transparent_hugepage: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

fn libc_version() -> String {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: gnu_get_libc_version returns a static string.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        format!("glibc {}", version.to_string_lossy())
    }
    #[cfg(not(target_env = "gnu"))]
    String::from(std::env::consts::OS)
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().filter_map(|l| l.split_once(':')).find(|(key, _)| key.trim() == name);
    value.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn mitigations() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .map(|e| (e.file_name().to_string_lossy().into_owned(), line(&e.path().to_string_lossy())))
        .filter(|(_, state)| state != "Not affected")
        .collect()
}
