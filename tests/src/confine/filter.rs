// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles a seccomp program from a list of refused system calls, and installs programs.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, sock_filter};
use syscalls::{Errno, Sysno, syscall};

use super::Error;

/// Refused system calls by number, each with the errno that it fails with. With `None` the call kills the process.
pub(super) type Refusals = Vec<(u32, Option<Errno>)>;

/// Compiles the program. It checks the refusals in order. For all other calls it runs `rest`, which may be
/// [`allow_all`].
pub(super) fn program(refusals: &[(u32, Option<Errno>)], rest: BpfProgram) -> BpfProgram {
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_OFFSET)];
    for (number, errno) in refusals {
        let number_of = |errno: Errno| u32::try_from(errno.into_raw()).unwrap_or(0) & libc::SECCOMP_RET_DATA;
        let answer = errno.map_or(libc::SECCOMP_RET_KILL_PROCESS, |errno| libc::SECCOMP_RET_ERRNO | number_of(errno));
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *number));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, answer));
    }
    program.extend(rest);
    program
}

/// A seccomp program that allows all calls, except that a call by another architecture's convention kills the process.
pub(super) fn allow_all() -> Result<BpfProgram, Error> {
    let architecture = std::env::consts::ARCH.try_into().map_err(|_| Error::Architecture)?;
    let (allow, kill) = (SeccompAction::Allow, SeccompAction::KillProcess);
    Ok(SeccompFilter::new(BTreeMap::new(), allow, kill, architecture)?.try_into()?)
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
