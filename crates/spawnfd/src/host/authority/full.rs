// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole authority of a thread, for comparison with the authority of a parked process.

use std::cell::RefCell;
use std::ffi::CString;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use spawnfd_sys::{Errno, call, prctl};

use super::Reach;
use crate::cold_reason::ColdReason;
use crate::host::features;
use crate::host::own_proc::{self, LINES, ProcFile, ThreadStatus, field, read_status};

/// The namespaces that a child inherits. A running thread never changes its own `pid` and `time` namespaces.
const NAMESPACES: [&str; 8] = ["user", "mnt", "pid_for_children", "net", "ipc", "uts", "cgroup", "time_for_children"];

type NamespaceNames = [Option<CString>; NAMESPACES.len()];

thread_local! {
    /// The calling thread's namespaces, and its reach at the time when the library read them.
    static THREAD_NAMESPACES: RefCell<Option<(Weak<Reach>, Arc<NamespaceNames>)>> = const { RefCell::new(None) };
}

/// The calling thread's namespaces.
///
/// A thread without CAP_SYS_ADMIN can enter other namespaces only with a user namespace that it creates or owns. The
/// thread can never leave that user namespace again (user_namespaces(7)), and its reach changes. So a thread whose
/// reach shows every such change keeps the namespaces that it has read until its reach changes.
fn namespaces(reach: &Arc<Reach>) -> rustix::io::Result<Arc<NamespaceNames>> {
    let all = || own_proc::namespaces(NAMESPACES).map(Arc::new);
    if !reach.shows_every_change() {
        return all();
    }
    // A thread that is exiting has no thread-local storage.
    let known = THREAD_NAMESPACES.try_with(|known| known.borrow().clone()).ok().flatten();
    if let Some((of, namespaces)) = known
        && std::ptr::eq(of.as_ptr(), Arc::as_ptr(reach))
    {
        return Ok(namespaces);
    }
    let namespaces = all()?;
    let _ = THREAD_NAMESPACES.try_with(|known| known.replace(Some((Arc::downgrade(reach), namespaces.clone()))));
    Ok(namespaces)
}

/// A snapshot of what one thread may do: ids, capabilities, namespaces, seccomp, Landlock, and other inherited state.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    reach: Arc<Reach>,
    /// The file mode creation mask as /proc prints it. It is not part of the authority.
    pub(crate) umask: String,
    /// The set of ignored signals. It is not part of the authority.
    pub(crate) ignored: u64,
    /// The [`LINES`] that the kernel's status file has, in the kernel's order.
    status: String,
    securebits: Result<usize, Errno>,
    namespaces: Arc<NamespaceNames>,
    /// The security module's label, and the login user id for audit. An error if the kernel does not have the value.
    labels: [rustix::io::Result<Vec<u8>>; 2],
    /// The result of [`has_pending_label`].
    pending_label: bool,
    /// The session keyring, and the destination keyring for requested keys. Process and thread keyrings are not
    /// inherited.
    keyrings: [Result<usize, Errno>; 2],
}

/// The reason for a cold start if this status line differs.
fn reason_of(line: &str) -> ColdReason {
    let (name, _) = field(line);
    LINES.iter().find(|(known, _)| *known == name).map_or(ColdReason::Status, |(_, reason)| *reason)
}

/// The authority that a process reports after its exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reported<'a> {
    /// The text of the process's /proc/thread-self/status.
    pub(crate) status: &'a [u8],
    /// The security label; empty if there is none.
    pub(crate) label: &'a [u8],
    pub(crate) securebits: u32,
}

/// Confinement that a process has in addition to that of the thread that started it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddedConfinement {
    pub(crate) no_new_privs: bool,
    /// The number of additional seccomp filters.
    pub(crate) filters: u32,
}

/// The files of security labels that a thread can request for its next exec and for new files, sockets and keys. They
/// replace the usual labels.
const PENDING_LABELS: [ProcFile; 4] =
    [ProcFile::ExecLabel, ProcFile::FileLabel, ProcFile::SocketLabel, ProcFile::KeyLabel];

/// Whether the calling thread has set one of the [`PENDING_LABELS`], or may have. `label` is its current label.
///
/// `absent` collects the indexes of labels that no security module of this kernel supports. The modules do not
/// change at run time.
fn has_pending_label(
    label: &rustix::io::Result<Vec<u8>>,
    absent: &AtomicU8,
    read: impl Fn(ProcFile) -> rustix::io::Result<Vec<u8>>,
) -> bool {
    use rustix::io::Errno;
    // The security module that provides the current label also provides the others.
    if matches!(label, Err(Errno::INVAL | Errno::NOENT)) {
        return false;
    }
    (0..).zip(PENDING_LABELS).filter(|(index, _)| absent.load(Ordering::Relaxed) >> index & 1 == 0).any(
        |(index, which)| match read(which) {
            Ok(label) => !label.trim_ascii_end().is_empty(),
            Err(Errno::INVAL | Errno::NOENT) => {
                // AppArmor answers EINVAL for the exec label while none is set. It has no other pending labels.
                if which != ProcFile::ExecLabel {
                    absent.fetch_or(1 << index, Ordering::Relaxed);
                }
                false
            }
            Err(_) => true,
        },
    )
}

/// The indexes in [`PENDING_LABELS`] that this kernel does not support.
static ABSENT_LABELS: AtomicU8 = AtomicU8::new(0);

impl Authority {
    /// The calling thread's authority.
    ///
    /// # Errors
    /// The library cannot read /proc, so it can prove no equality.
    pub(crate) fn of_calling_thread() -> rustix::io::Result<Authority> {
        let reach = Reach::read().map_err(|errno| rustix::io::Errno::from_raw_os_error(errno.raw()))?;
        Authority::of_thread_started_by(&reach)
    }

    /// Reads the calling thread's authority. `starter` is the reach of the thread that started the
    /// calling thread. The calling thread has not confined itself since its start.
    ///
    /// # Errors
    /// The errors of [`of_calling_thread`](Authority::of_calling_thread).
    pub(crate) fn of_thread_started_by(starter: &Arc<Reach>) -> rustix::io::Result<Authority> {
        let reach = starter.clone();
        let status = read_status()?;
        let namespaces = namespaces(&reach)?;
        let ThreadStatus { lines, filters, umask, ignored, .. } = status;
        features::probe_again_if_not(filters);
        let killed_calls = features::killed_calls();
        let labels = [own_proc::label(), own_proc::read(ProcFile::LoginUid)];
        let pending_label = has_pending_label(&labels[0], &ABSENT_LABELS, own_proc::read);
        Ok(Authority {
            reach,
            umask,
            ignored,
            status: lines,
            securebits: call::prctl(prctl::PR_GET_SECUREBITS, 0, 0),
            namespaces,
            labels,
            pending_label,
            keyrings: [call::session_keyring(killed_calls), call::request_key_destination(killed_calls)],
        })
    }

    /// Returns the first difference from `other`, or the first part whose equality is not proven.
    /// `other` was read later, from the calling thread.
    pub(crate) fn first_difference(&self, other: &Authority) -> Option<ColdReason> {
        if self.status != other.status {
            let mut pairs = self.status.lines().zip(other.status.lines());
            return Some(
                pairs.find(|(one, another)| one != another).map_or(ColdReason::Status, |(line, _)| reason_of(line)),
            );
        }
        if !self.reach.has_same_filters(&other.reach) {
            return Some(ColdReason::Seccomp);
        }
        (self.namespaces != other.namespaces)
            .then_some(ColdReason::Namespaces)
            .or((self.securebits != other.securebits).then_some(ColdReason::Securebits))
            .or((self.labels != other.labels).then_some(ColdReason::SecurityLabel))
            // If another thread starts the child, the child does not get the calling thread's pending label.
            .or((self.pending_label || other.pending_label).then_some(ColdReason::ExecLabel))
            .or((!self.reach.has_same_domain(&other.reach)).then_some(ColdReason::Landlock))
            .or((self.keyrings != other.keyrings).then_some(ColdReason::Keyrings))
    }

    /// Returns the first difference between this thread's authority and that of a process after
    /// exec. This thread started the process with the confinement `added`.
    ///
    /// `None` means that exec changes no authority. The process then has the authority of a child of this thread, and
    /// keeps it across another exec.
    pub(crate) fn changed_by_exec(&self, reported: &Reported<'_>, added: AddedConfinement) -> Option<ColdReason> {
        let found = ThreadStatus::parse(reported.status.to_vec());
        if self.status.lines().count() != found.lines.lines().count() {
            return Some(ColdReason::Status);
        }
        let as_expected = |line: &str, found: &str| {
            let ((name, before), (of, now)) = (field(line), field(found));
            let expected = match name {
                "NoNewPrivs" if added.no_new_privs => now == "1",
                "Seccomp" if added.filters > 0 => now == "2",
                "Seccomp_filters" if added.filters > 0 => {
                    let count = |text: &str| text.parse::<u32>();
                    count(now) == count(before).map(|before| before + added.filters)
                }
                // Before Linux 5.16 a seccomp filter enables speculation mitigations, so these lines may differ.
                "Speculation_Store_Bypass" | "SpeculationIndirectBranch" if added.filters > 0 => true,
                _ => before == now,
            };
            name == of && expected
        };
        let mut pairs = self.status.lines().zip(found.lines.lines());
        if let Some((line, _)) = pairs.find(|(line, found)| !as_expected(line, found)) {
            return Some(reason_of(line));
        }
        let securebits = self.securebits.is_ok_and(|own| own == reported.securebits as usize);
        let label = self.labels[0].as_ref().map_or(&[][..], Vec::as_slice) == reported.label;
        (!securebits).then_some(ColdReason::Securebits).or((!label).then_some(ColdReason::SecurityLabel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn pending_labels_are_found_and_absent_labels_are_not_read_again() {
        let label = || Ok(b"system_u:system_r:unconfined_t:s0\n".to_vec());
        let unset = |_| Ok(Vec::new());
        let absent = AtomicU8::new(0);
        // SELinux supports all four labels. In this case, none of them is set.
        assert!(!has_pending_label(&label(), &absent, unset));
        for pending in PENDING_LABELS {
            assert!(has_pending_label(&label(), &absent, |which| if which == pending {
                label()
            } else {
                unset(which)
            }));
        }
        // AppArmor supports only the label for exec. The kernel refuses to read that label while it is unset.
        assert!(!has_pending_label(&label(), &absent, |_| Err(Errno::INVAL)));
        let asked = std::cell::Cell::new(0);
        let only_exec = |which| {
            asked.set(asked.get() + 1);
            assert_eq!(which, ProcFile::ExecLabel);
            label()
        };
        assert!(has_pending_label(&label(), &absent, only_exec));
        assert_eq!(asked.get(), 1);
        // In this case, no security module has labels.
        assert!(!has_pending_label(&Err(Errno::INVAL), &absent, |_| unreachable!()));
        // In this case, the labels cannot be read, so the thread may have set one.
        assert!(has_pending_label(&label(), &AtomicU8::new(0), |_| Err(Errno::ACCESS)));
    }

    #[test]
    fn a_report_is_compared_line_by_line() {
        let authority = Authority::of_calling_thread().expect("/proc");
        let status = std::fs::read("/proc/thread-self/status").expect("/proc");
        let label = std::fs::read("/proc/thread-self/attr/current").unwrap_or_default();
        let securebits = authority.securebits.expect("prctl") as u32;
        let reported = Reported { status: &status, label: &label, securebits };
        let plain = AddedConfinement::default();
        assert_eq!(authority.changed_by_exec(&reported, plain), None);
        let text = String::from_utf8(status.clone()).expect("text");
        for (name, what) in LINES {
            let changed: String = text
                .lines()
                .map(|line| if field(line).0 == name { format!("{name}:\tother\n") } else { format!("{line}\n") })
                .collect();
            let expected = text.lines().any(|line| field(line).0 == name).then_some(what);
            let reported = Reported { status: changed.as_bytes(), ..reported };
            assert_eq!(authority.changed_by_exec(&reported, plain), expected, "{name}");
        }
        let without = text.lines().filter(|line| field(line).0 != "CapPrm").map(|line| format!("{line}\n"));
        let without: String = without.collect();
        let missing = Reported { status: without.as_bytes(), ..reported };
        assert_eq!(authority.changed_by_exec(&missing, plain), Some(ColdReason::Status));
        assert_eq!(authority.changed_by_exec(&Reported::default(), plain), Some(ColdReason::Status));
        let securebits = Reported { securebits: securebits ^ 1, ..reported };
        assert_eq!(authority.changed_by_exec(&securebits, plain), Some(ColdReason::Securebits));
        let label = Reported { label: b"another", ..reported };
        assert_eq!(authority.changed_by_exec(&label, plain), Some(ColdReason::SecurityLabel));
    }

    #[test]
    fn added_confinement_is_no_difference() {
        let authority = Authority::of_calling_thread().expect("/proc");
        let filters = read_status().expect("/proc").filters.expect("counted");
        let securebits = authority.securebits.expect("prctl") as u32;
        let label = authority.labels[0].clone().unwrap_or_default();
        let with = |no_new_privs: bool, mode: u32, filters: u32| -> String {
            let line = |line: &str| match field(line).0 {
                "NoNewPrivs" => format!("NoNewPrivs:\t{}\n", u8::from(no_new_privs)),
                "Seccomp" => format!("Seccomp:\t{mode}\n"),
                "Seccomp_filters" => format!("Seccomp_filters:\t{filters}\n"),
                _ => format!("{line}\n"),
            };
            authority.status.lines().map(line).collect()
        };
        let changed = |text: String, added: AddedConfinement| {
            let reported = Reported { status: text.as_bytes(), label: &label, securebits };
            authority.changed_by_exec(&reported, added)
        };
        let all = AddedConfinement { no_new_privs: true, filters: 1 };
        assert_eq!(changed(with(true, 2, filters + 1), all), None);
        assert_eq!(changed(with(true, 2, filters), all), Some(ColdReason::Seccomp));
        assert_eq!(changed(with(false, 2, filters + 1), all), Some(ColdReason::NoNewPrivs));
    }
}
