// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles one seccomp program from a list of refused system calls and, on request, Docker's default profile.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use syscalls::{Errno, Sysno, syscall};

use super::Error;

/// The names of the system calls that Docker allows with any arguments. The file says where the
/// list comes from.
const ALLOWED: &str = include_str!("../../data/docker-default-allow.txt");

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: clone flags that need CAP_SYS_ADMIN.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;

/// Arguments of personality(2) that Docker allows: PER_LINUX, PER_LINUX32, each also with UNAME26, and the query.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Refused system calls by number, each with the errno that it fails with. With `None` the call kills the process.
pub(super) type Refusals = Vec<(u32, Option<Errno>)>;

/// Compiles the program. It checks the refusals in order, then Docker's profile; without the profile it allows all
/// other calls.
///
/// A system call by another architecture's convention kills the process.
pub(super) fn program(refusals: &[(u32, Option<Errno>)], docker: bool) -> Result<BpfProgram, Error> {
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_OFFSET)];
    // A filter cannot see clone3's flags, which are in memory. On ENOSYS libc falls back to clone, whose flags the
    // filter sees.
    let by_docker = docker.then_some((Sysno::clone3 as u32, Some(Errno::ENOSYS)));
    for (number, errno) in refusals.iter().copied().chain(by_docker) {
        let number_of = |errno: Errno| u32::try_from(errno.into_raw()).unwrap_or(0) & libc::SECCOMP_RET_DATA;
        let answer = errno.map_or(libc::SECCOMP_RET_KILL_PROCESS, |errno| libc::SECCOMP_RET_ERRNO | number_of(errno));
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, answer));
    }
    let rules = if docker { docker_rules()? } else { BTreeMap::new() };
    let otherwise = if docker { SeccompAction::Errno(libc::EPERM as u32) } else { SeccompAction::Allow };
    // Without rules no call matches, but seccompiler requires `matching` to differ from `otherwise`.
    let matching = if docker { SeccompAction::Allow } else { SeccompAction::KillProcess };
    let architecture = std::env::consts::ARCH.try_into().map_err(|_| Error::Architecture)?;
    let rest: BpfProgram = SeccompFilter::new(rules, otherwise, matching, architecture)?.try_into()?;
    program.extend(rest);
    Ok(program)
}

/// A seccomp program that kills the process for one system call if the low 32 bits of one of its arguments have this
/// value. The program allows every other call.
pub(super) fn killing_with(number: u32, place: u32, value: u32) -> Vec<sock_filter> {
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let answer = |answer| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    vec![
        load(NUMBER_OFFSET),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, number),
        load(ARGUMENTS_OFFSET + 8 * place),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, value),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

/// Offset of `args` in `struct seccomp_data`.
const ARGUMENTS_OFFSET: u32 = 16;

/// Offset of `nr` in `struct seccomp_data`.
pub(super) const NUMBER_OFFSET: u32 = 0;

pub(super) fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

fn docker_rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    let number = |call: Sysno| i64::from(call.id());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        allowed_names().filter_map(|name| name.parse::<Sysno>().ok()).map(|call| (number(call), Vec::new())).collect();
    let any_of = |tests: Vec<(SeccompCmpOp, u64)>| {
        let rule = |(operator, value)| {
            let first_argument = SeccompCondition::new(0, SeccompCmpArgLen::Qword, operator, value)?;
            SeccompRule::new(vec![first_argument])
        };
        tests.into_iter().map(rule).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(number(Sysno::clone), any_of(vec![(SeccompCmpOp::MaskedEq(NAMESPACE_FLAGS), 0)])?);
    rules.insert(
        number(Sysno::personality),
        any_of(PERSONALITIES.iter().map(|value| (SeccompCmpOp::Eq, *value)).collect())?,
    );
    // Docker refuses the address families AF_ALG (38) and AF_VSOCK (40).
    rules.insert(
        number(Sysno::socket),
        any_of(vec![(SeccompCmpOp::Lt, 38), (SeccompCmpOp::Eq, 39), (SeccompCmpOp::Gt, 40)])?,
    );
    Ok(rules)
}

pub(super) fn allowed_names() -> impl Iterator<Item = &'static str> {
    ALLOWED.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Installs a seccomp program on the calling thread; the thread's future children and threads inherit the program.
///
/// Without CAP_SYS_ADMIN the kernel requires no_new_privs, so this function sets no_new_privs. With CAP_SYS_ADMIN, as
/// in Docker, no_new_privs stays unset.
pub(super) fn install(program: &[sock_filter]) -> Result<(), Error> {
    set(program, 0)
}

/// Installs a seccomp program on all threads of the process; each then has the calling thread's filters.
pub(super) fn install_in_all_threads(program: &[sock_filter]) -> Result<(), Error> {
    set(program, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn set(program: &[sock_filter], flags: libc::c_ulong) -> Result<(), Error> {
    let mut copy: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let length = u16::try_from(copy.len()).map_err(|_| Error::System { step: "seccomp", errno: Errno::EINVAL })?;
    let header = libc::sock_fprog { len: length, filter: copy.as_mut_ptr() };
    let set = || {
        // SAFETY: the header points to `length` instructions, which the kernel copies and checks.
        unsafe { syscall!(Sysno::seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const header) }
    };
    let result = match set() {
        Err(Errno::EACCES) => {
            super::no_new_privs()?;
            set()
        }
        other => other,
    };
    result.map(drop).map_err(|errno| Error::System { step: "seccomp", errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_known() {
        let names: Vec<&str> = allowed_names().collect();
        assert!(names.is_sorted(), "sorted");
        assert!(names.len() > 350, "{} names", names.len());
        // A name that this architecture lacks must be another architecture's call. It must not be a call that is
        // only too new for the `syscalls` crate.
        let foreign = "_llseek _newselect ipc mmap2 recv riscv_flush_icache riscv_hwprobe send sigprocmask sigreturn \
                       socketcall ugetrlimit waitpid";
        let is_foreign = |name: &str| {
            name.ends_with("32") || name.ends_with("64") || foreign.split_whitespace().any(|known| known == name)
        };
        if cfg!(target_arch = "x86_64") {
            let unknown = names.iter().find(|name| name.parse::<Sysno>().is_err() && !is_foreign(name));
            assert_eq!(unknown, None);
        }
        for call in ["unshare", "setns", "mount", "umount2", "kcmp", "pidfd_getfd", "io_uring_setup", "bpf", "clone3"] {
            assert!(!names.contains(&call), "{call}");
        }
    }

    #[test]
    fn programs_fit() {
        assert!(program(&[], true).expect("compiles").len() < 4096);
        assert!(program(&[(Sysno::clone3 as u32, Some(Errno::ENOSYS))], false).expect("compiles").len() < 16);
    }
}
