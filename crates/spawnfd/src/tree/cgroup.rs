// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cgroup (v2) for one tree, below the cgroup of this process.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, CWD, Mode, OFlags, access, mkdir, openat};
use spawnfd_guard::{cgroup as group, sys, table};
use spawnfd_sys::Errno;

use super::bounds::{self, Bounds, CgroupCounters};
use super::{abandoned, failed, image};
use crate::error::{Result, errno};
use crate::host::descriptors::above_standard;
use crate::host::per_process::PerProcess;

/// This process's own cgroup. The library searches for the cgroup's directory once, and again after this process has
/// moved to another cgroup.
static OWN_CGROUP: PerProcess<Option<OwnCgroup>> = PerProcess::new(None);

#[derive(Clone, Debug)]
struct OwnCgroup {
    /// The cgroup's path, from the `0::` line of /proc/self/cgroup.
    line: Vec<u8>,
    dir: PathBuf,
}

/// The place of a cgroup that the library is about to create.
#[derive(Debug)]
pub(super) struct NewCgroup {
    base: PathBuf,
    path: CString,
    /// The directory of this process's own cgroup.
    own_dir: PathBuf,
}

/// Chooses the path of a new cgroup below this process's own.
pub(super) fn prepare() -> Result<NewCgroup> {
    image::program()?;
    let own_dir = own_cgroup()?.dir;
    NewCgroup::below(own_dir.clone(), own_dir)
}

/// Chooses the path of a new cgroup with limits, in the directory that enables most of the needed controllers. If
/// `allow_none` is true, accepts a directory that enables none.
pub(super) fn prepare_with_limits(limits: &Bounds, allow_none: bool) -> Result<NewCgroup> {
    let own = own_cgroup()?;
    let controllers = limits.controllers();
    let base = bounds::base_directory(&own.dir, &controllers);
    if !allow_none && bounds::enabled(&base, &controllers) == 0 {
        return Err(failed(Errno::EOPNOTSUPP, format!("cgroup: no {} below {base:?}", controllers.join(", "))));
    }
    NewCgroup::below(base, own.dir)
}

/// The directory of this process's own cgroup, if there is one.
pub(crate) fn own_directory() -> Option<PathBuf> {
    own_cgroup().ok().map(|own| own.dir)
}

/// Reads a whole file. std::fs::read would call statx for the size, and a seccomp filter may kill the caller for
/// statx.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    File::open(path)?.take(u64::MAX).read_to_end(&mut contents)?;
    Ok(contents)
}

/// Whether a file exists. Uses access(2), because a seccomp filter may kill the caller for statx.
fn exists(path: &Path) -> bool {
    access(path, Access::EXISTS).is_ok()
}

fn own_cgroup() -> Result<OwnCgroup> {
    // Read the file as bytes, because names of cgroups and mount points need not be UTF-8.
    let groups = read("/proc/self/cgroup".as_ref()).unwrap_or_default();
    let line = lines(&groups).find_map(|line| line.strip_prefix(b"0::"));
    let absent = || failed(Errno::ENOENT, "cgroup: no cgroup v2 is mounted");
    let line = line.ok_or_else(absent)?;
    let mut own = OWN_CGROUP.lock();
    if own.as_ref().is_none_or(|own| own.line != line) {
        let mounts = read("/proc/self/mountinfo".as_ref()).unwrap_or_default();
        *own = directory(&mounts, line).map(|dir| OwnCgroup { line: line.to_owned(), dir });
    }
    own.clone().ok_or_else(absent)
}

/// Returns a new path for a cgroup. The path must be unique, because the guard gets it before the cgroup exists.
///
/// The name contains a random number, because owner and counter can be equal in a forked process.
fn new_path(base: &Path) -> Result<CString> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (owner, number) = (abandoned::own_prefix(), NEXT.fetch_add(1, Ordering::Relaxed));
    // The hash of no data is random, because `RandomState` has random keys.
    let random = RandomState::new().build_hasher().finish();
    let path = base.join(format!("{owner}-{number}-{random:016x}")).into_os_string().into_vec();
    let path = CString::new(path).map_err(|_| failed(Errno::ENOENT, "cgroup: no cgroup v2 is mounted"))?;
    if path.count_bytes() > table::MAX_PATH {
        return Err(failed(Errno::ENAMETOOLONG, format!("mkdir({path:?})")));
    }
    Ok(path)
}

fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// Returns the directory of the cgroup that /proc/self/cgroup calls `own`, according to
/// /proc/self/mountinfo. Prefers a mount that is writable.
fn directory(mounts: &[u8], own: &[u8]) -> Option<PathBuf> {
    let (mut points, mut read_only): (Vec<PathBuf>, Option<PathBuf>) = Default::default();
    for line in lines(mounts).rev() {
        let Some((point, found)) = mounted(line, own) else { continue };
        // The loop begins at the last line, because the last mount on a mount point hides earlier ones.
        if points.contains(&point) {
            continue;
        }
        points.push(point);
        match found.filter(|(dir, _)| exists(&dir.join("cgroup.procs"))) {
            Some((dir, true)) => return Some(dir),
            Some((dir, false)) => read_only = read_only.or(Some(dir)),
            None => {}
        }
    }
    read_only
}

/// Returns the mount point in a line of /proc/self/mountinfo. If the mount is of cgroup v2 and
/// contains the cgroup `own`, also returns that cgroup's directory, and whether the mount is
/// writable.
fn mounted(line: &[u8], own: &[u8]) -> Option<(PathBuf, Option<(PathBuf, bool)>)> {
    // The fields of a line: ID PARENT DEVICE ROOT POINT OPTIONS [OPTIONAL…] - TYPE SOURCE OPTIONS
    let mut fields = line.split(|&byte| byte == b' ').skip(3);
    let (root, point, options) = (unescape(fields.next()?), unescape(fields.next()?), fields.next()?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let is_writable = options.split(|&byte| byte == b',').next() == Some(b"rw".as_slice());
    // A mount of a part of the hierarchy contains only the cgroups below its root.
    let below = Path::new(OsStr::from_bytes(own)).strip_prefix(root).ok().filter(|_| kind == b"cgroup2");
    let found = below.map(|below| (point.join(below), is_writable));
    Some((point, found))
}

/// Undoes the octal escapes of /proc/self/mountinfo.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (bytes.push(byte), rest = &tail[3..]).1,
            None => (bytes.push(*first), rest = tail).1,
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

impl NewCgroup {
    fn below(base: PathBuf, own_dir: PathBuf) -> Result<NewCgroup> {
        // Check the permission before the mkdir(2). A failed mkdir(2) costs more, because the library must first
        // register the path with the guard.
        if let Err(errno @ (Errno::EACCES | Errno::EROFS)) = bounds::may_write(&base) {
            return Err(failed(errno, format!("mkdir({base:?})")));
        }
        abandoned::sweep_once(&base);
        Ok(NewCgroup { path: new_path(&base)?, base, own_dir })
    }

    pub(super) fn path(&self) -> &[u8] {
        self.path.to_bytes()
    }

    /// Chooses another path in the same directory, because this one exists.
    pub(super) fn with_another_name(self) -> Result<NewCgroup> {
        Ok(NewCgroup { path: new_path(&self.base)?, ..self })
    }

    /// Creates the cgroup.
    ///
    /// # Errors
    /// EEXIST: the path exists already. [`with_another_name`](NewCgroup::with_another_name) may still work.
    pub(super) fn create(&self) -> Result<Cgroup> {
        self.try_create().map_err(|errno| failed(errno, format!("mkdir({:?})", self.path)))
    }

    fn try_create(&self) -> std::result::Result<Cgroup, Errno> {
        mkdir(self.path.as_c_str(), Mode::from(0o755)).map_err(errno)?;
        let created = || {
            let dir = openat(CWD, self.path.as_c_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let path = Path::new(OsStr::from_bytes(self.path.to_bytes()));
            // Below a threaded cgroup, the new cgroup's type is "domain invalid", and it accepts no processes.
            match read(&path.join("cgroup.type")).as_deref() {
                Ok(b"domain\n") => {
                    let dir = dir.map(above_standard).map_err(errno)?;
                    Ok(Cgroup { dir, path: self.path.clone(), own_procs: self.own_dir.join("cgroup.procs") })
                }
                _ => Err(Errno::EOPNOTSUPP),
            }
        };
        created().inspect_err(|_| {
            let _ = group::remove(&self.path);
        })
    }
}

/// A cgroup that exists.
#[derive(Debug)]
pub(super) struct Cgroup {
    dir: OwnedFd,
    path: CString,
    /// The cgroup.procs file to which released members move.
    own_procs: PathBuf,
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Cgroup {
    pub(super) fn number(&self) -> i32 {
        self.dir.as_raw_fd()
    }

    /// Sets limits on the members, as far as the kernel can enforce them.
    pub(super) fn set_limits(&self, limits: &Bounds) -> Result<CgroupCounters> {
        CgroupCounters::open(self.as_fd(), limits).map_err(|errno| failed(errno, format!("open({:?})", self.path)))
    }

    /// Moves all members to this process's own cgroup. Members that cannot move stay, and are marked as released.
    pub(super) fn release_members(&self) {
        self.move_members_out();
        if group::is_populated(self.number()) {
            abandoned::mark_released(&self.dir);
        }
    }

    fn move_members_out(&self) {
        // A member may fork before it is moved, and its child stays in this cgroup. So repeat until the cgroup is
        // empty.
        for _ in 0..100 {
            let members = group::members(self.number());
            if members.is_empty() {
                return;
            }
            let Ok(own_procs) = openat(CWD, &self.own_procs, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) else {
                return;
            };
            for pid in members {
                let _ = rustix::io::write(&own_procs, pid.to_string().as_bytes());
            }
        }
    }

    /// Removes the cgroup. Retries for `milliseconds`, because the kernel still counts processes that have just
    /// ended.
    pub(super) fn remove(&self, milliseconds: u64) -> std::result::Result<(), sys::Errno> {
        for _ in 0..milliseconds {
            match group::remove(&self.path) {
                Err(sys::Errno::EBUSY) if !group::is_populated(self.number()) => sys::sleep(1),
                answer => return answer,
            }
        }
        group::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_mountinfo_are_decoded() {
        assert_eq!(unescape(br"/a\040b\134c\09"), Path::new(r"/a b\c\09"));
    }

    #[test]
    fn finds_the_last_mount_whose_root_contains_the_cgroup() {
        let scratch = spawnfd_tests::scratch();
        let dir = scratch.path().join("two words");
        for group in ["one/b", "two/b", "two"] {
            std::fs::create_dir_all(dir.join(group)).expect("made");
            std::fs::write(dir.join(group).join("cgroup.procs"), "").expect("made");
        }
        let mount = |root: &str, point: &str, kind: &str| {
            let point = dir.join(point).display().to_string().replace(' ', r"\040");
            format!("31 23 0:28 {root} {point} rw shared:5 - {kind} {kind} rw\n")
        };
        let two = mount("/", "one", "cgroup2") + &mount("/a\\040b", "two", "cgroup2") + &mount("/", "three", "cgroup");
        let found = [
            ("/b", Some("one/b")),
            ("/a b/b", Some("two/b")),
            ("/a b", Some("two")),
            // This path is not below the root /a b, although it begins with the root's name.
            ("/a bb/b", None),
            ("/../b", None),
        ];
        for (own, expected) in found {
            assert_eq!(directory(two.as_bytes(), own.as_bytes()), expected.map(|group| dir.join(group)), "{own}");
        }
        let hidden = mount("/", "one", "cgroup2") + &mount("/", "two", "cgroup2");
        assert_eq!(directory(hidden.as_bytes(), b"/b"), Some(dir.join("two/b")));
    }

    #[test]
    fn finds_this_processs_directory_if_cgroup_v2_is_mounted() {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
        let groups = std::fs::read_to_string("/proc/self/cgroup").expect("/proc");
        let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return };
        let Some(dir) = directory(mounts.as_bytes(), own.as_bytes()) else {
            assert!(!mounts.contains(" - cgroup2 ") || own.starts_with("/.."), "{own} in {mounts}");
            return;
        };
        let pids = std::fs::read_to_string(dir.join("cgroup.procs")).expect("readable");
        assert!(pids.lines().any(|pid| pid == std::process::id().to_string()), "{dir:?}: {pids}");
        assert_eq!(directory(b"31 23 0:28 / /none rw - cgroup2 cgroup2 rw", own.as_bytes()), None);
    }

    #[test]
    fn prefers_a_writable_mount_and_accepts_names_that_are_not_utf_8() {
        let scratch = spawnfd_tests::scratch();
        let make = |name: &[u8]| {
            let dir = scratch.path().join(OsStr::from_bytes(name));
            std::fs::create_dir_all(dir.join(OsStr::from_bytes(b"own\xff"))).expect("own directory");
            std::fs::write(dir.join(OsStr::from_bytes(b"own\xff/cgroup.procs")), "").expect("own directory");
            dir
        };
        let (first, second) = (make(b"first\xfe"), make(b"second"));
        let line = |dir: &Path, options: &str| {
            let point = dir.as_os_str().as_bytes();
            [b"31 23 0:28 / ", point, b" ", options.as_bytes(), b" shared:1 - cgroup2 cgroup2 rw\n"].concat()
        };
        let find = |mounts: &[Vec<u8>]| directory(&mounts.concat(), b"/own\xff");
        let own = |dir: &Path| Some(dir.join(OsStr::from_bytes(b"own\xff")));
        assert_eq!(find(&[line(&first, "rw,nosuid"), line(&second, "ro,nosuid")]), own(&first));
        assert_eq!(find(&[line(&first, "rw"), line(&second, "rw")]), own(&second));
        assert_eq!(find(&[line(&first, "ro"), line(&second, "ro")]), own(&second));
        assert_eq!(find(&[line(&first, "rw"), line(&second, "rw"), line(&second, "ro")]), own(&first));
        assert_eq!(
            find(&[line(&first, "rw"), line(&first, "ro")]),
            own(&first),
            "the last mount on the point is read-only"
        );
    }
}
