// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confinement of the calling thread: Docker's default, single system calls refused, or a seccomp [`Profile`].
//!
//! A confinement applies to the calling thread, and to the threads and processes that the thread starts afterwards.
//! It cannot be undone: a test confines a thread created for the purpose, or uses [`crate::isolated!`]. The program
//! `spawnfd-confine` confines itself in the same way and then executes another program.

mod error;
mod filter;
mod profiles;

pub use error::Error;
pub use profiles::{Answer, Profile};
use syscalls::{Errno, Sysno, syscall};

use crate::caps::{self, Caps};

/// The capabilities that Docker leaves to root in a container.
const DOCKER_CAPS: [&str; 14] = [
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "net_bind_service",
    "net_raw",
    "sys_chroot",
    "mknod",
    "audit_write",
    "setfcap",
];

/// Installs Docker's default seccomp profile for a container without added capabilities, and drops the capabilities
/// that Docker drops, on the calling thread.
///
/// # Errors
/// If the kernel refuses a step. The thread is then partly confined.
pub fn docker() -> Result<(), Error> {
    Confinement::default().docker().apply()
}

/// Makes these system calls fail with these errnos, for the calling thread.
///
/// # Errors
/// [`Error::UnknownSyscall`], or the kernel refuses the filter.
pub fn deny(calls: &[(&str, i32)]) -> Result<(), Error> {
    let mut confinement = Confinement::default();
    for (name, errno) in calls {
        confinement = confinement.deny(name, Errno::new(*errno))?;
    }
    confinement.apply()
}

/// Makes one system call fail, or kill the process with SIGSYS if `errno` is `None`, in all threads of the process.
///
/// No thread may have a filter that the calling thread lacks.
///
/// # Errors
/// [`Error::UnknownSyscall`], or the kernel refuses the filter.
pub fn refuse_in_all_threads(name: &str, errno: Option<i32>) -> Result<(), Error> {
    let refusals = Confinement::default().refuse(name, errno.map(Errno::new))?.refusals;
    filter::install_in_all_threads(&filter::program(&refusals, filter::allow_all()?))
}

/// Makes each of these system calls kill the process with SIGSYS, for the calling thread.
///
/// # Errors
/// [`Error::UnknownSyscall`], or the kernel refuses the filter.
pub fn kill(calls: &[&str]) -> Result<(), Error> {
    calls.iter().try_fold(Confinement::default(), |confinement, name| confinement.kill(name))?.apply()
}

/// Makes one system call kill the process if its argument number `place`, counted from 0, equals `value`.
///
/// # Errors
/// [`Error::UnknownSyscall`], or the kernel refuses the filter.
pub fn kill_with(name: &str, place: u32, value: u32) -> Result<(), Error> {
    let number = name.parse::<Sysno>().map_err(|_| Error::UnknownSyscall(name.to_owned()))?;
    filter::install(&filter::killing_with(number as u32, place, value))
}

/// Parses an errno given by name ("EPERM") or by number ("1").
///
/// # Errors
/// [`Error::UnknownErrno`]
pub fn errno(text: &str) -> Result<Errno, Error> {
    let known = || (1..4096).map(Errno::new).take_while(|errno| errno.into_raw() < 134);
    let by_number = || text.parse().ok().filter(|number| (1..4096).contains(number)).map(Errno::new);
    let by_name = known().find(|errno| errno.name() == Some(text));
    by_name.or_else(by_number).ok_or_else(|| Error::UnknownErrno(text.to_owned()))
}

/// The system call of mkdir(1).
pub const MKDIR: &str = if cfg!(target_arch = "aarch64") { "mkdirat" } else { "mkdir" };

/// The system calls of tests that aarch64 lacks. No program makes them, so no filter needs to refuse them.
const ABSENT_ON_AARCH64: [&str; 2] = ["fork", "mkdir"];

/// A confinement that [`apply`](Confinement::apply) sets up in one step.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    docker: bool,
    profile: Option<(Profile, Answer)>,
    refusals: filter::Refusals,
    user: Option<(u32, u32)>,
    no_new_privs: bool,
    nofile: Option<u64>,
    capabilities: Option<u64>,
}

impl Confinement {
    /// Adds Docker's default seccomp profile, and drops the capabilities that Docker drops.
    #[must_use]
    pub fn docker(mut self) -> Self {
        self.docker = true;
        self
    }

    /// Adds a seccomp profile, and sets no_new_privs.
    #[must_use]
    pub fn profile(mut self, profile: Profile, answer: Answer) -> Self {
        self.profile = Some((profile, answer));
        self
    }

    /// Makes one system call fail with this errno.
    ///
    /// # Errors
    /// [`Error::UnknownSyscall`]
    pub fn deny(self, name: &str, errno: Errno) -> Result<Self, Error> {
        self.refuse(name, Some(errno))
    }

    /// Makes one system call kill the process with SIGSYS.
    ///
    /// # Errors
    /// [`Error::UnknownSyscall`]
    pub fn kill(self, name: &str) -> Result<Self, Error> {
        self.refuse(name, None)
    }

    fn refuse(mut self, name: &str, errno: Option<Errno>) -> Result<Self, Error> {
        let number = match name {
            // The `syscalls` crate does not know this system call, which kernel/patches add.
            "pidfd_spawn_run" => 475,
            name if cfg!(target_arch = "aarch64") && ABSENT_ON_AARCH64.contains(&name) => return Ok(self),
            name => name.parse::<Sysno>().map_err(|_| Error::UnknownSyscall(name.to_owned()))? as u32,
        };
        self.refusals.push((number, errno));
        Ok(self)
    }

    /// Changes all four user and group ids, and drops the supplementary groups.
    #[must_use]
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.user = Some((uid, gid));
        self
    }

    /// Keeps only these capabilities permitted and effective, named in lower case without `cap_`. The bounding set is
    /// unchanged.
    ///
    /// # Panics
    /// If a name is unknown.
    #[must_use]
    pub fn capabilities(mut self, names: &[&str]) -> Self {
        self.capabilities = Some(caps::set_of(names));
        self
    }

    /// Sets no_new_privs.
    #[must_use]
    pub fn no_new_privs(mut self) -> Self {
        self.no_new_privs = true;
        self
    }

    /// Sets the soft and the hard RLIMIT_NOFILE. Unlike the other settings, this limit applies to the whole process.
    #[must_use]
    pub fn nofile(mut self, limit: u64) -> Self {
        self.nofile = Some(limit);
        self
    }

    /// Confines the calling thread.
    ///
    /// The filter is installed as late as possible, so that it cannot refuse the system calls of the earlier steps.
    /// Only capset(2), which drops the capabilities, comes after the filter, because the kernel requires
    /// CAP_SYS_ADMIN for a filter without no_new_privs. Therefore `deny("capset", …)` together with dropped
    /// capabilities fails.
    ///
    /// # Errors
    /// If the kernel refuses a step. The thread is then partly confined.
    pub fn apply(&self) -> Result<(), Error> {
        // The filters are compiled first, so that a compile error leaves the thread unchanged.
        let rest = match self.docker {
            true => Some(Profile::Docker.program(Answer::Errno)?),
            false if self.refusals.is_empty() => None,
            false => Some(filter::allow_all()?),
        };
        let program = rest.map(|rest| filter::program(&self.refusals, rest));
        let profile = self.profile.map(|(profile, answer)| profile.program(answer)).transpose()?;
        if let Some(limit) = self.nofile {
            limit_nofile(limit)?;
        }
        if self.no_new_privs || profile.is_some() {
            no_new_privs()?;
        }
        let before = Caps::get().map_err(at("capget"))?;
        let after = self.capabilities_after(before);
        if after != before && self.capabilities.is_none() {
            drop_from_bounding()?;
            prctl("PR_CAP_AMBIENT_CLEAR_ALL", libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as usize)?;
        }
        if let Some((uid, gid)) = self.user {
            become_user(uid, gid, before)?;
        }
        if let Some(program) = program {
            filter::install(&program)?;
        }
        if Caps::get().map_err(at("capget"))? != after {
            after.set().map_err(at("capset"))?;
        }
        // The profile is installed last, because it may refuse the system calls of the steps above.
        if let Some(profile) = profile {
            filter::install(&profile)?;
        }
        Ok(())
    }

    fn capabilities_after(&self, before: Caps) -> Caps {
        let keep = match (self.capabilities, self.user) {
            (Some(keep), _) => keep,
            (None, Some((uid, _))) if uid != 0 => 0,
            _ if self.docker => caps::set_of(&DOCKER_CAPS),
            _ => return before,
        };
        // Docker's inheritable set is empty since CVE-2022-24769.
        Caps { permitted: before.permitted & keep, effective: before.effective & keep, inheritable: 0 }
    }
}

fn at(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { step, errno }
}

fn prctl(step: &'static str, option: i32, argument: usize) -> Result<(), Error> {
    // SAFETY: the prctl options that the callers pass take integers only.
    unsafe { syscall!(Sysno::prctl, option, argument, 0, 0, 0) }.map(drop).map_err(at(step))
}

fn no_new_privs() -> Result<(), Error> {
    prctl("PR_SET_NO_NEW_PRIVS", libc::PR_SET_NO_NEW_PRIVS, 1)
}

fn limit_nofile(limit: u64) -> Result<(), Error> {
    let pair = [limit, limit];
    // SAFETY: prlimit64 reads two 64-bit words and stores nothing.
    unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, pair.as_ptr(), 0) }.map(drop).map_err(at("prlimit64"))
}

/// Reduces the bounding set to Docker's capabilities, if the thread has CAP_SETPCAP. A thread without CAP_SETPCAP is
/// unprivileged and gains nothing from its bounding set.
fn drop_from_bounding() -> Result<(), Error> {
    let keep = caps::set_of(&DOCKER_CAPS);
    let excess = caps::bounding().map_err(at("PR_CAPBSET_READ"))? & !keep;
    for capability in (0..64).filter(|bit| excess >> bit & 1 == 1) {
        match prctl("PR_CAPBSET_DROP", libc::PR_CAPBSET_DROP, capability) {
            Err(Error::System { errno: Errno::EPERM, .. }) => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}

/// Changes all ids by raw system calls, which affect this thread only. The capabilities stay permitted and effective,
/// because the filter is installed later and may need CAP_SYS_ADMIN.
fn become_user(uid: u32, gid: u32, caps: Caps) -> Result<(), Error> {
    prctl("PR_SET_KEEPCAPS", libc::PR_SET_KEEPCAPS, 1)?;
    // SAFETY: the calls take integers; setgroups with a count of 0 reads no memory.
    unsafe {
        syscall!(Sysno::setgroups, 0, 0).map_err(at("setgroups"))?;
        syscall!(Sysno::setresgid, gid, gid, gid).map_err(at("setresgid"))?;
        syscall!(Sysno::setresuid, uid, uid, uid).map_err(at("setresuid"))?;
    }
    prctl("PR_SET_KEEPCAPS", libc::PR_SET_KEEPCAPS, 0)?;
    Caps { inheritable: 0, ..caps }.set().map_err(at("capset"))
}
