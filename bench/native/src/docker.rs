// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seccomp filter that answers as Docker's default profile does, at about its cost.
//!
//! Docker's filter is an allow-list of some 350 calls compiled by libseccomp; this one is an allow-list of the same
//! calls compiled by seccompiler, so the kernel does work of the same order: from Linux 5.11 it remembers which calls
//! are always allowed and runs the program only for those whose arguments matter, `clone` among them.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use syscalls::Sysno;

use crate::Result;

const ALLOWED: &str = include_str!("../docker-allowed.txt");
/// The namespace flags that the profile takes out of clone.
const NAMESPACES: u64 = 0x7e02_0000;
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Confines the calling thread, and all it starts, for good. Sets no_new_privs, which Docker by itself does not.
///
/// # Errors
///
/// The kernel refuses the filter, or the architecture is not known.
pub fn confine() -> Result<()> {
    seccompiler::apply_filter(&program()?).context("installing the seccomp filter")
}

fn program() -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for name in ALLOWED.lines().filter(|l| !l.starts_with('#')).flat_map(str::split_whitespace) {
        if let Ok(call) = Sysno::from_str(name) {
            rules.insert(i64::from(call.id()), vec![]);
        }
    }
    let on_first = |op, value| -> Result<SeccompRule> {
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, op, value)?;
        Ok(SeccompRule::new(vec![condition])?)
    };
    rules.insert(i64::from(Sysno::clone.id()), vec![on_first(SeccompCmpOp::MaskedEq(NAMESPACES), 0)?]);
    rules.insert(i64::from(Sysno::socket.id()), vec![on_first(SeccompCmpOp::Ne, libc::AF_VSOCK as u64)?]);
    let personalities = PERSONALITIES.iter().map(|&p| on_first(SeccompCmpOp::Eq, p)).collect::<Result<_>>()?;
    rules.insert(i64::from(Sysno::personality.id()), personalities);

    let arch = std::env::consts::ARCH.try_into().context("seccomp on this architecture")?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let allow_list: BpfProgram = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)?.try_into()?;

    // seccompiler knows one answer for what is not allowed; clone3 has its own. Jumps are relative, so its three
    // instructions can stand in front.
    let mut program = vec![
        sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 },
        sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: Sysno::clone3.id() as u32,
        },
        sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        },
    ];
    program.extend(allow_list);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_list_is_a_known_call_somewhere() {
        let known = ALLOWED
            .lines()
            .filter(|l| !l.starts_with('#'))
            .flat_map(str::split_whitespace)
            .filter(|n| Sysno::from_str(n).is_ok())
            .count();
        assert!(known > 280, "only {known} calls of the list are known here");
    }

    #[test]
    fn the_answers_are_those_of_docker() {
        // A thread is confined alone: the other tests go on.
        std::thread::spawn(|| {
            confine().unwrap();
            let answer = |call: Sysno, first: u64| {
                // SAFETY: the calls below fail in the filter, before the kernel looks at an argument.
                let result = unsafe { libc::syscall(call.id().into(), first, 0, 0, 0, 0) };
                (result, std::io::Error::last_os_error().raw_os_error())
            };
            assert_eq!(answer(Sysno::clone3, 0), (-1, Some(libc::ENOSYS)));
            assert_eq!(answer(Sysno::unshare, libc::CLONE_FILES as u64), (-1, Some(libc::EPERM)));
            assert_eq!(answer(Sysno::clone, libc::CLONE_NEWUSER as u64), (-1, Some(libc::EPERM)));
            for call in [Sysno::setns, Sysno::mount, Sysno::kcmp, Sysno::io_uring_setup, Sysno::pidfd_getfd] {
                assert_eq!(answer(call, 0), (-1, Some(libc::EPERM)), "{call}");
            }
        })
        .join()
        .unwrap();
    }
}
