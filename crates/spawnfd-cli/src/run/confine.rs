// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds Landlock rulesets from paths, and capability sets from those of this command.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, RulesetAttr, RulesetCreatedAttr,
};
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set};
use spawnfd::command::CapabilitySets;
use spawnfd::internal::Value;

use crate::failure::{Failure, reason};

/// The paths of one ruleset, with the access rights and the flag of each.
#[derive(Debug, Default)]
pub struct Ruleset {
    paths: Vec<(PathBuf, BitFlags<AccessFs>, String)>,
}

/// The newest Landlock ABI that this command knows. An older kernel enforces only the rights that it knows.
const NEWEST: ABI = ABI::V5;

impl Ruleset {
    /// Allows reading below a path, and writing if `writes`. `flag` is the flag that says so.
    pub fn allow(&mut self, path: &Path, writes: bool, flag: &str) {
        let access = if writes { AccessFs::from_all(NEWEST) } else { AccessFs::from_read(NEWEST) };
        self.paths.push((path.to_owned(), access, flag.to_owned()));
    }

    /// Creates the ruleset. Fails on a kernel without Landlock, because the program would run unconfined.
    pub fn build(self) -> Result<OwnedFd, Failure> {
        let first = self.paths.first().map(|(_, _, flag)| flag.clone()).unwrap_or_default();
        let failed = |flag: &str, why: &dyn std::fmt::Display| Failure::flag(flag, why);
        let mut ruleset = landlock::Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(|ruleset| {
                ruleset.set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(NEWEST))
            })
            .and_then(landlock::Ruleset::create)
            .map_err(|e| failed(&first, &format!("Landlock: {e}")))?;
        for (path, mut access, flag) in self.paths {
            let metadata = path.metadata().map_err(|e| failed(&flag, &reason(&e)))?;
            if !metadata.is_dir() {
                access &= AccessFs::from_file(NEWEST);
            }
            let fd = PathFd::new(&path).map_err(|e| failed(&flag, &e))?;
            ruleset = ruleset.add_rule(PathBeneath::new(fd, access)).map_err(|e| failed(&flag, &e))?;
        }
        Option::<OwnedFd>::from(ruleset).ok_or_else(|| failed(&first, &"this kernel does not support Landlock"))
    }
}

/// Returns the capability sets to apply. A set without a number in `given` keeps its value from
/// `sets`, reduced to what the given sets permit.
pub fn capability_sets(mut sets: CapabilitySets, given: &[Value<'_>]) -> CapabilitySets {
    let given = |index: usize| match given.get(index) {
        Some(Value::Int(set)) => u64::try_from(*set).ok(),
        _ => None,
    };
    sets.permitted = given(1).unwrap_or(sets.permitted);
    sets.inheritable = given(2).unwrap_or(sets.inheritable);
    sets.effective = given(0).unwrap_or(sets.effective & sets.permitted);
    sets.bounding = given(3).unwrap_or(sets.bounding);
    sets.ambient = given(4).unwrap_or(sets.ambient & sets.permitted & sets.inheritable);
    sets
}

/// Returns this command's own capability sets.
pub fn own_capabilities() -> io::Result<CapabilitySets> {
    let own = capabilities(None)?;
    let all_in = |is_in: fn(CapabilitySet) -> rustix::io::Result<bool>| {
        // The kernel returns an error for numbers that it does not know.
        let is_in = |bit: &u64| is_in(CapabilitySet::from_bits_retain(*bit)).unwrap_or(false);
        (0..u64::BITS).map(|number| 1 << number).filter(is_in).sum()
    };
    let mut sets = CapabilitySets::new();
    sets.effective = own.effective.bits();
    sets.permitted = own.permitted.bits();
    sets.inheritable = own.inheritable.bits();
    sets.bounding = all_in(capability_is_in_bounding_set);
    sets.ambient = all_in(capability_is_in_ambient_set);
    Ok(sets)
}
