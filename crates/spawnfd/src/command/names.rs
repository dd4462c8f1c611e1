// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates names into the kernel's numbers: signals, capabilities, limits, namespaces, schedulers.

use rustix::thread::CapabilitySet;
use spawnfd_sys::abi;

const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// SIGRTMIN. The kernel's first real-time signal is 32; libc reserves 32 and 33.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Parses a signal: a name (`TERM`, `SIGTERM`, `RTMIN+3`) or a number.
pub fn signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(place) = SIGNALS.iter().position(|known| *known == name) {
        return Ok(place as i32 + 1);
    }
    let offset = |rest: &str| if rest.is_empty() { Some(0) } else { rest.parse::<i32>().ok() };
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => offset(rest).and_then(|offset| RTMIN.checked_add(offset)),
        (_, Some(rest)) => offset(rest).and_then(|offset| RTMAX.checked_add(offset)),
        _ => name.parse().ok(),
    };
    number.filter(|number| (1..=64).contains(number)).ok_or_else(|| format!("unknown signal '{text}'"))
}

/// Returns the name of a signal without SIG, or its number if it has no name.
pub fn signal_name(number: i32) -> String {
    let named = usize::try_from(number - 1).ok().and_then(|place| SIGNALS.get(place));
    named.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// Parses a set of signals: a list of names, `all`, or `none`.
pub(super) fn signals(text: &str) -> Result<Vec<i32>, String> {
    match text {
        "all" => Ok((1..=64).collect()),
        "none" => Ok(Vec::new()),
        _ => text.split(',').map(signal).collect(),
    }
}

/// Parses capabilities into bits: a list of names (`cap_` may be left out), or `none`.
pub(super) fn capabilities(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    text.split(',').try_fold(0, |set, name| {
        let upper = name.to_ascii_uppercase();
        let one = CapabilitySet::from_name(upper.strip_prefix("CAP_").unwrap_or(&upper));
        one.map(|one| set | one.bits()).ok_or_else(|| format!("unknown capability '{name}'"))
    })
}

/// The names of the capability sets, in the order of `CapabilitySets`.
const SETS: [&str; 5] = ["effective", "permitted", "inheritable", "bounding", "ambient"];

/// Parses capability sets: `LIST` for all sets, or several `SET=LIST` separated by colons. Returns
/// `None` for a set that is not named.
pub(super) fn capability_sets(text: &str) -> Result<[Option<u64>; 5], String> {
    if !text.contains('=') {
        return capabilities(text).map(|list| [Some(list); 5]);
    }
    let mut sets = [None; 5];
    for part in text.split(':') {
        let (name, list) = part.split_once('=').ok_or_else(|| format!("'{part}' must be SET=LIST"))?;
        let place = SETS.iter().position(|known| *known == name);
        let place =
            place.ok_or_else(|| format!("unknown capability set '{name}'; the sets are {}", SETS.join(", ")))?;
        if sets[place].replace(capabilities(list)?).is_some() {
            return Err(format!("the set '{name}' is given twice"));
        }
    }
    Ok(sets)
}

/// The names of resource limits, by RLIMIT_* number.
const LIMITS: &str =
    "cpu, fsize, data, stack, core, rss, nproc, nofile, memlock, as, locks, sigpending, msgqueue, nice, rtprio, rttime";

/// Returns the RLIMIT_* number of a resource limit's name.
pub(super) fn resource(text: &str) -> Result<u32, String> {
    let place = LIMITS.split(", ").position(|known| known == text);
    place.map(|place| place as u32).ok_or_else(|| format!("unknown resource '{text}'; the resources are {LIMITS}"))
}

/// Returns the SCHED_* number of a scheduling policy's name.
pub(super) fn policy(text: &str) -> Result<u32, String> {
    let known = [("other", 0), ("fifo", 1), ("rr", 2), ("batch", 3), ("idle", 5)];
    let policy = known.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
    policy.ok_or_else(|| format!("unknown policy '{text}'; the policies are other, fifo, rr, batch, idle"))
}

const KINDS: [(&str, u32); 8] = [
    ("mount", abi::CLONE_NEWNS),
    ("uts", abi::CLONE_NEWUTS),
    ("ipc", abi::CLONE_NEWIPC),
    ("pid", abi::CLONE_NEWPID),
    ("net", abi::CLONE_NEWNET),
    ("cgroup", abi::CLONE_NEWCGROUP),
    ("user", abi::CLONE_NEWUSER),
    ("time", abi::CLONE_NEWTIME),
];

/// Parses a list of kinds of namespaces. Returns CLONE_NEW* flags.
pub(super) fn namespace_kinds(text: &str) -> Result<u32, String> {
    text.split(',').try_fold(0, |set, name| {
        let kind = KINDS.iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.ok_or_else(|| {
            format!("unknown namespace '{name}'; the kinds are {}", KINDS.map(|(known, _)| known).join(", "))
        })?;
        Ok(set | *kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_accepted_by_name_and_number() {
        for (text, number) in
            [("TERM", 15), ("SIGTERM", 15), ("sigterm", 15), ("9", 9), ("RTMIN", 34), ("RTMIN+3", 37), ("RTMAX-1", 63)]
        {
            assert_eq!(signal(text), Ok(number), "{text}");
        }
        for text in ["", "FOO", "0", "65", "RTMAX+1", "-1", "RTMIN+99999999999"] {
            assert!(signal(text).is_err(), "{text}");
        }
        assert_eq!((signals("HUP,INT"), signals("none")), (Ok(vec![1, 2]), Ok(vec![])));
        assert_eq!((signal_name(9), signal_name(40)), ("KILL".to_owned(), "40".to_owned()));
    }

    #[test]
    fn capabilities_are_accepted_by_name() {
        assert_eq!(capabilities("chown,CAP_NET_RAW"), Ok(1 | 1 << 13));
        assert_eq!(capabilities("none"), Ok(0));
        assert_eq!(capabilities("checkpoint_restore"), Ok(1 << 40));
        assert!(capabilities("root").is_err());
        assert_eq!(capability_sets("chown"), Ok([Some(1); 5]));
        assert_eq!(capability_sets("bounding=kill,chown:ambient=none"), Ok([None, None, None, Some(0x21), Some(0)]));
        for text in [
            "",
            "bound=chown",
            "bounding=",
            "bounding=chown,ambient=none",
            "ambient=none:ambient=none",
            "ambient=none:",
        ] {
            assert!(capability_sets(text).is_err(), "{text}");
        }
    }
}
