// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seccomp filter with the rules of Docker's default profile, and about the same cost.
//!
//! Docker's filter is an allow-list of some 350 calls, compiled by libseccomp. This filter is an allow-list of the
//! same calls, compiled by seccompiler, so the kernel has about the same work. Since Linux 5.11 the kernel caches
//! which calls are always allowed. It runs the filter only for calls whose arguments matter, such as `clone`.

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
/// The namespace flags that the profile forbids for clone.
const NAMESPACES: u64 = 0x7e02_0000;
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Installs the filter on the calling thread, which also sets no_new_privs. Docker by itself does not set it.
///
/// # Errors
///
/// The kernel refuses the filter, or seccompiler does not support the architecture.
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

    // seccompiler supports one errno for all refused calls, but clone3 fails with ENOSYS. These three instructions
    // precede the filter: BPF jumps are relative, so the rest stays valid.
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
    fn most_names_of_the_list_are_known_calls() {
        let known = ALLOWED
            .lines()
            .filter(|l| !l.starts_with('#'))
            .flat_map(str::split_whitespace)
            .filter(|n| Sysno::from_str(n).is_ok())
            .count();
        assert!(known > 280, "only {known} calls of the list exist on this architecture");
    }

    #[test]
    fn refused_calls_fail_with_dockers_errno() {
        // The filter confines only this thread; the other tests continue unconfined.
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
