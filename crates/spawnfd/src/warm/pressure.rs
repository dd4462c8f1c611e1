// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads how busy the machine is: pressure-stall information (PSI) and the run queue.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::tree::own_directory;

/// A resource with pressure-stall information.
#[derive(Clone, Copy, Debug)]
pub(super) enum Resource {
    Cpu,
    Memory,
}

/// The total time in which at least one task waited for a resource: a task of the machine, and a task of this process's
/// cgroup.
pub(super) type Stalled = [Duration; 2];

/// Reads the stall times of a resource. `None` if the kernel does not report them. Without a report for the cgroup, its
/// time is 0.
pub(super) fn stalled(resource: Resource) -> Option<Stalled> {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let (machine, own) = match resource {
        Resource::Cpu => ("/proc/pressure/cpu", "cpu.pressure"),
        Resource::Memory => ("/proc/pressure/memory", "memory.pressure"),
    };
    let group = OWN.get_or_init(own_directory).as_ref();
    let group = group.and_then(|group| some_total(&read_start(&group.join(own))?));
    Some([some_total(&read_start(machine.as_ref())?)?, group.unwrap_or_default()])
}

/// The number of runnable tasks of the machine, without the calling thread, and the number of its CPUs.
pub(super) fn run_queue() -> Option<(u64, u64)> {
    let tasks = runnable(&read_start("/proc/loadavg".as_ref())?)?;
    let cpus = count(&read_start("/sys/devices/system/cpu/online".as_ref())?)?;
    Some((tasks.saturating_sub(1), cpus))
}

/// The first bytes of a file of the kernel.
fn read_start(path: &Path) -> Option<String> {
    let mut text = [0; 256];
    let length = File::open(path).ok()?.read(&mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(str::to_owned)
}

/// The total of the line `some` in a pressure file, which has it in microseconds.
fn some_total(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total=")?.parse().ok()).map(Duration::from_micros)
}

/// The number of runnable tasks in /proc/loadavg, whose fourth field is "runnable/all".
fn runnable(text: &str) -> Option<u64> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// The length of a list of numbers and ranges, such as "0-3,8".
fn count(list: &str) -> Option<u64> {
    let mut ranges = list.trim_end().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    ranges.try_fold(0u64, |sum, range| sum.checked_add(range?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_kernels_text() {
        let text =
            "some avg10=0.53 avg60=0.11 avg300=0.04 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(some_total(text), Some(Duration::from_micros(1500)));
        assert_eq!(some_total("full avg10=0.00 total=9\n"), None);
        assert_eq!(runnable("0.53 0.11 0.04 3/180 12345\n"), Some(3));
        assert_eq!(runnable(""), None);
        assert_eq!((count("0-3,8\n"), count("0\n"), count("")), (Some(5), Some(1), None));
    }

    #[test]
    fn this_machine_has_a_run_queue() {
        let (_, cpus) = run_queue().expect("/proc/loadavg and /sys");
        assert!(cpus >= 1);
    }

    #[test]
    fn stall_times_do_not_decrease() {
        let Some(before) = stalled(Resource::Cpu) else {
            return spawnfd_tests::skip("the kernel has no pressure-stall information");
        };
        let after = stalled(Resource::Cpu).expect("the file has just been read");
        assert!(after[0] >= before[0] && after[1] >= before[1], "{before:?} {after:?}");
    }
}
