// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seccomp profiles of Docker, Podman, systemd and Flatpak, as filters for the calling thread.
//!
//! The profiles are data in `tests/data/profiles`. The README there describes the format, the sources, and the
//! omissions.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, sock_filter};
use serde::Deserialize;
use syscalls::{Errno, Sysno};

use super::Error;
use super::filter::{self, NUMBER_OFFSET, instruction};

/// A seccomp profile, as it applies to a program without added capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Docker's default, for a container with Docker's default capabilities.
    Docker,
    /// Podman's default, for a container with Podman's default capabilities.
    Podman,
    /// systemd's `SystemCallFilter=@system-service`; for [`Answer::Errno`] with `SystemCallErrorNumber=EPERM`.
    SystemService,
    /// Flatpak's filter, for an application without the permissions `devel`, `multiarch`, `bluetooth` and `canbus`.
    Flatpak,
}

/// The effect of a refused call. With each `Answer`, a call that the profile does not know fails with ENOSYS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The call fails with the errno that the profile names.
    Errno,
    /// The call kills the process with SIGSYS. If a profile refuses clone3, clone3 still fails with ENOSYS: glibc
    /// tries clone3 first for each new thread and process, so no program could run if clone3 killed it.
    Kill,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 4] = [Profile::Docker, Profile::Podman, Profile::SystemService, Profile::Flatpak];

    /// The profile with this name: `docker`, `podman`, `system-service` or `flatpak`.
    ///
    /// # Errors
    /// [`Error::UnknownProfile`]
    pub fn named(name: &str) -> Result<Self, Error> {
        match name {
            "docker" => Ok(Profile::Docker),
            "podman" => Ok(Profile::Podman),
            "system-service" => Ok(Profile::SystemService),
            "flatpak" => Ok(Profile::Flatpak),
            _ => Err(Error::UnknownProfile(name.to_owned())),
        }
    }

    /// Sets no_new_privs and installs the profile's filter on the calling thread.
    ///
    /// Future threads and children inherit both. A call by another architecture, x32 included, kills the process.
    ///
    /// # Errors
    /// If the kernel refuses a step. no_new_privs may be set by then.
    pub fn install(self, answer: Answer) -> Result<(), Error> {
        let program = self.program(answer)?;
        super::no_new_privs()?;
        filter::install(&program)
    }

    fn json(self) -> &'static str {
        match self {
            Profile::Docker => include_str!("../../data/profiles/docker.json"),
            Profile::Podman => include_str!("../../data/profiles/podman.json"),
            Profile::SystemService => include_str!("../../data/profiles/systemd-system-service.json"),
            Profile::Flatpak => include_str!("../../data/profiles/flatpak.json"),
        }
    }

    pub(super) fn program(self, answer: Answer) -> Result<BpfProgram, Error> {
        let rules: Rules = serde_json::from_str(self.json())?;
        rules.program(answer)
    }
}

/// The content of a profile's file. For each call, the first rule decides that names the call and whose conditions
/// hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// The verdict for calls without a matching rule.
    default: Verdict,
    /// The newest system call that the profile knows. Calls with a greater number are unknown to it.
    newest_call: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    verdict: Verdict,
    #[serde(rename = "note")]
    _note: Option<String>,
    /// The conditions on the call's arguments. The rule applies if all of them hold.
    #[serde(default)]
    when: Vec<Condition>,
    calls: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Allow,
    /// The call is refused; the string is the name of the errno.
    Refuse(String),
    /// The call fails with ENOSYS, with each [`Answer`].
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    argument: u8,
    is: Comparison,
}

/// A comparison of an argument with a value: unsigned and of all 64 bits, as in libseccomp.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Comparison {
    Equal(u64),
    NotEqual(u64),
    Less(u64),
    Greater(u64),
    MaskedEqual { mask: u64, value: u64 },
}

impl Rules {
    fn program(&self, answer: Answer) -> Result<BpfProgram, Error> {
        // The compiled rules of each system call, by the number of the call.
        let mut calls: BTreeMap<u32, BpfProgram> = BTreeMap::new();
        for rule in &self.rules {
            for name in &rule.calls {
                let instructions = rule.program(answer)?;
                if let Some(number) = number(name)? {
                    calls.entry(number).or_default().extend_from_slice(&instructions);
                }
            }
        }
        let default = self.default.instruction(answer)?;
        let mut program = self.prologue()?;
        for (number, mut rules) in calls {
            // The filter reaches this instruction if no rule of this call matches.
            rules.push(default.clone());
            let length = u8::try_from(rules.len()).expect("few rules for one call");
            program.push(jump(libc::BPF_JEQ, number, 0, length));
            program.extend(rules);
        }
        program.push(default);
        Ok(program)
    }

    /// Checks the architecture, loads the number of the call, and refuses unknown calls with ENOSYS.
    fn prologue(&self) -> Result<BpfProgram, Error> {
        // Only the check of the architecture is used, not the return that follows it.
        let mut program = filter::allow_all()?;
        program.pop();
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_OFFSET));
        if cfg!(target_arch = "x86_64") {
            program.push(jump(libc::BPF_JGE, X32, 0, 1));
            program.push(answer_with(libc::SECCOMP_RET_KILL_PROCESS));
        }
        if let Some(newest) = self.newest_call.as_deref().map(number).transpose()?.flatten() {
            program.push(jump(libc::BPF_JGT, newest, 0, 1));
            program.push(Verdict::Unknown.instruction(Answer::Errno)?);
        }
        Ok(program)
    }
}

/// The bit that marks a system call number of the x32 ABI. Seccomp reports the same architecture for x32 and x86-64.
const X32: u32 = 0x4000_0000;

impl Rule {
    /// Compiles the rule. Its instructions return from the filter if all conditions hold; otherwise execution
    /// continues after the last of them.
    fn program(&self, answer: Answer) -> Result<BpfProgram, Error> {
        let mut program = BpfProgram::new();
        if !self.when.is_empty() {
            let conditions: Result<Vec<_>, _> = self.when.iter().map(Condition::compiled).collect();
            // These instructions end with jumps that skip one instruction, the verdict, if a condition does not hold.
            program = SeccompRule::new(conditions?)?.into();
        }
        program.push(self.verdict.instruction(answer)?);
        Ok(program)
    }
}

impl Condition {
    fn compiled(&self) -> Result<SeccompCondition, Error> {
        let (operator, value) = match self.is {
            Comparison::Equal(value) => (SeccompCmpOp::Eq, value),
            Comparison::NotEqual(value) => (SeccompCmpOp::Ne, value),
            Comparison::Less(value) => (SeccompCmpOp::Lt, value),
            Comparison::Greater(value) => (SeccompCmpOp::Gt, value),
            Comparison::MaskedEqual { mask, value } => (SeccompCmpOp::MaskedEq(mask), value),
        };
        Ok(SeccompCondition::new(self.argument, SeccompCmpArgLen::Qword, operator, value)?)
    }
}

impl Verdict {
    fn instruction(&self, answer: Answer) -> Result<sock_filter, Error> {
        let errno = match self {
            Verdict::Allow => return Ok(answer_with(libc::SECCOMP_RET_ALLOW)),
            Verdict::Refuse(_) if answer != Answer::Errno => return Ok(answer_with(libc::SECCOMP_RET_KILL_PROCESS)),
            Verdict::Refuse(name) => super::errno(name)?,
            Verdict::Unknown => Errno::ENOSYS,
        };
        Ok(answer_with(libc::SECCOMP_RET_ERRNO | errno.into_raw() as u32))
    }
}

fn answer_with(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

/// An instruction that compares the accumulator with `k`, and then skips `if_true` or `if_false` instructions.
fn jump(comparison: u32, k: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, if_true, if_false, k)
}

/// The number of a system call; `None` on aarch64 for a call that only x86-64 has.
fn number(name: &str) -> Result<Option<u32>, Error> {
    let name = if cfg!(target_arch = "aarch64") && name == "newfstatat" { "fstatat" } else { name };
    match name.parse::<Sysno>() {
        Ok(call) => Ok(Some(call as u32)),
        // x86-64 has every call of aarch64.
        Err(_) if cfg!(target_arch = "x86_64") => Err(Error::UnknownSyscall(name.to_owned())),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rules(profile: Profile) -> Rules {
        serde_json::from_str(profile.json()).expect("the format of the README")
    }

    #[test]
    fn programs_compile_and_fit() {
        for profile in Profile::ALL {
            for answer in [Answer::Errno, Answer::Kill] {
                let program = profile.program(answer).expect("compiles");
                assert!(program.len() < 4096, "{profile:?}: {} instructions", program.len());
            }
        }
    }

    #[test]
    fn every_rule_can_match() {
        for profile in Profile::ALL {
            let mut decided = BTreeSet::new();
            for rule in rules(profile).rules {
                assert!(rule.calls.is_sorted_by(|a, b| a < b), "{profile:?}: {:?}", rule.calls);
                for call in rule.calls {
                    assert!(!decided.contains(&call), "{profile:?}: an earlier rule always decides {call}");
                    if rule.when.is_empty() {
                        decided.insert(call);
                    }
                }
            }
        }
    }
}
