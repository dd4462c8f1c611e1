// SPDX-License-Identifier: MIT OR Apache-2.0
//! Templates: an executable found once, remembered exactly, and checked again at each spawn.

mod cache;
mod credentials;
mod recorded;
mod script;
mod search;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use spawnfd_child::{Check, Identity, Pinned, Program};
use spawnfd_sys::{Errno, call};

pub(crate) use cache::Named;
pub use cache::{CacheStats, TemplateCache};
pub(crate) use recorded::{identify, is_recent};
pub(crate) use search::search_path;

use crate::error::{Error, Result, Stage, from_io};
use crate::host::features;
use crate::host::numbers::Known;
pub(crate) use credentials::Credentials;
use recorded::Recorded;

/// One executable, pinned: each spawn from it runs that file, unchanged, or fails as [`Stale`](crate::ErrorKind::Stale).
///
/// A template records the file's device, inode, size, mode, owner, group, ctime and mtime, and its creator's credentials. A
/// spawn compares them again, in the child, right before exec. It holds one descriptor (two for a script) and keeps nobody
/// from changing the file: a change is detected, never prevented.
///
/// Between the check and the exec of a path template lies a window of one system call in which another file can come to
/// stand under the path; [`by_descriptor`](Template::by_descriptor) closes it. Cloning a template is cheap.
///
/// For a script (`#!`), the interpreter is pinned too. It still opens the script by its path, after the check: there the
/// promise is weaker.
#[derive(Clone, Debug)]
pub struct Template {
    inner: Arc<Inner>,
    by_descriptor: bool,
}

#[derive(Debug)]
struct Inner {
    /// What argv[0] is by default: the name as the caller gave it.
    name: OsString,
    /// The executable, then the interpreters if it is a script.
    files: Vec<Recorded>,
    /// What a child is told of all this.
    pinned: Arc<Pinned>,
    /// Made from a descriptor: there is no path to execute.
    anonymous: bool,
    creator: Credentials,
}

impl Template {
    /// Records the executable at an absolute path.
    ///
    /// # Errors
    /// EINVAL: the path is relative, or holds a NUL, or a script names its interpreter by a relative path. ENOENT, ENOTDIR,
    /// ELOOP, EACCES: as execve(2). ENOEXEC: a script without an interpreter.
    ///
    /// # Examples
    /// ```
    /// let sh = spawnfd::Template::open("/bin/sh")?;
    /// let output = sh.command().args(["-c", "echo $((6 * 7))"]).run()?;
    /// assert_eq!(output.stdout, b"42\n");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Template> {
        let path = path.as_ref();
        let printed = format!("template({path:?})");
        if !path.is_absolute() {
            return Err(Error::invalid(format!("{printed}: path must be absolute")));
        }
        let path_c = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::invalid(printed))?;
        Template::record(path.as_os_str().to_owned(), vec![path_c], 0)
    }

    /// Searches `name` in the directories of `path` (as in `PATH`), and records what it finds.
    ///
    /// The template is stale as soon as an earlier directory has an executable of that name. Entries that are empty or relative
    /// are passed over: what they mean depends on the working directory. An absolute `name` is opened as by [`Template::open`].
    ///
    /// # Errors
    /// ENOENT: no directory has it. EACCES: found, but not executable by the caller. EINVAL: an empty name, one with a NUL,
    /// or a relative path.
    pub fn search(name: impl AsRef<OsStr>, path: impl AsRef<OsStr>) -> Result<Template> {
        let name = name.as_ref();
        if name.as_bytes().contains(&b'/') {
            return Template::open(name);
        }
        let found = search::search(name, path.as_ref())?;
        Template::record(name.to_owned(), found.places, found.place)
    }

    /// Records the executable an open descriptor refers to (O_PATH is enough); a duplicate is kept.
    ///
    /// Spawns execute it by execveat(2): `AT_EXECFN` is then `/dev/fd/N`, and before Linux 6.14 the task's name a number.
    ///
    /// # Errors
    /// EACCES: no regular file, or not executable. EINVAL: a script, which its interpreter could not open. EBADF, EMFILE.
    pub fn from_descriptor(file: impl AsFd) -> Result<Template> {
        let printed = |errno| Error::new(Stage::Template, errno, "template(fd)");
        let copy = file.as_fd().try_clone_to_owned().map_err(|e| printed(from_io(&e)))?;
        let recorded = Recorded::of(CString::default(), Known::new(copy))?;
        may_execute(&recorded)?;
        if read_script(&recorded)?.is_some() {
            return Err(Error::new(Stage::Template, Errno::EINVAL, "template(fd): a script needs a path"));
        }
        let checks = vec![Check::SameSource { identity: recorded.identity }];
        let pinned = Pinned { path: CString::default(), checks, places: Vec::new() };
        Ok(Template::of(Inner {
            name: OsString::new(),
            files: vec![recorded],
            pinned: Arc::new(pinned),
            anonymous: true,
            creator: Credentials::current(),
        }))
    }

    /// Records what stands at one of `places`.
    fn record(name: OsString, places: Vec<CString>, place: usize) -> Result<Template> {
        let path = places[place].clone();
        let mut files = vec![Recorded::open(&path)?];
        loop {
            let last = &files[files.len() - 1];
            may_execute(last).map_err(|error| match &files[..] {
                [.., script, _] => interpreter_of(&script.path, &error),
                _ => error,
            })?;
            let Some(interpreter) = read_script(last)? else { break };
            if files.len() > script::NESTING {
                return Err(Error::new(Stage::Template, Errno::ELOOP, format!("template({path:?})")));
            }
            if !interpreter.as_bytes().starts_with(b"/") {
                return Err(Error::new(
                    Stage::Template,
                    Errno::EINVAL,
                    format!("template({path:?}): interpreter {interpreter:?} must be absolute"),
                ));
            }
            let recorded = Recorded::open(&interpreter);
            files.push(recorded.map_err(|error| interpreter_of(&files[files.len() - 1].path, &error))?);
        }
        let absent = places[..place].iter().map(|path| Check::Absent { path: path.clone() });
        let same = files.iter().map(|file| Check::Same { path: file.path.clone(), identity: file.identity });
        let pinned = Arc::new(Pinned { path, checks: absent.chain(same).collect(), places });
        Ok(Template::of(Inner { name, files, pinned, anonymous: false, creator: Credentials::current() }))
    }

    /// Whatever stands at `path` when a child executes it: nothing is recorded, nor compared. It has no files.
    pub(crate) fn unpinned(path: CString) -> Template {
        let name = OsStr::from_bytes(path.as_bytes()).to_owned();
        let pinned = Arc::new(Pinned { path, checks: Vec::new(), places: Vec::new() });
        Template::of(Inner { name, files: Vec::new(), pinned, anonymous: false, creator: Credentials::current() })
    }

    fn of(inner: Inner) -> Template {
        crate::host::authority::remember_if_alone();
        Template { by_descriptor: inner.anonymous, inner: Arc::new(inner) }
    }

    /// The same template, executed strictly by descriptor: exactly the recorded file runs, whatever its path names meanwhile.
    ///
    /// `AT_EXECFN` is then `/dev/fd/N`, and before Linux 6.14 the task's name a number.
    ///
    /// # Errors
    /// EINVAL: a script, which its interpreter could not open.
    pub fn by_descriptor(&self) -> Result<Template> {
        if self.is_script() {
            return Err(Error::invalid(format!("by_descriptor({:?}): a script needs its path", self.inner.name)));
        }
        Ok(Template { by_descriptor: true, ..self.clone() })
    }

    /// Whether that file is the executable, or one of its interpreters.
    pub(crate) fn has_file(&self, identity: &Identity) -> bool {
        let place = |identity: &Identity| (identity.device, identity.inode);
        self.inner.files.iter().any(|file| place(&file.identity) == place(identity))
    }

    /// Whether one of its files has no name any more.
    fn is_removed(&self) -> bool {
        let removed =
            |file: &Known| call::identify_and_count_links(file.as_fd().as_raw_fd()) == Ok((file.identity(), 0));
        self.inner.files.iter().any(|recorded| removed(&recorded.file))
    }

    /// Whether it records a file.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.inner.files.is_empty()
    }

    /// Compares the executable and the caller's credentials with what was recorded, as each spawn does.
    ///
    /// # Errors
    /// ESTALE: another file, or a changed one. EACCES: the calling thread's credentials differ from the creator's.
    pub fn revalidate(&self) -> Result<()> {
        self.settle()?;
        self.check()
    }

    /// Compares the executable, as a child does.
    pub(crate) fn check(&self) -> Result<()> {
        let killed = features::killed();
        for (place, check) in self.inner.pinned.checks.iter().enumerate() {
            let outcome = match check {
                Check::Absent { path } if spawnfd_child::is_candidate(killed, path) => Err(Errno::ESTALE),
                Check::Absent { .. } => Ok(()),
                Check::Same { path, identity } => {
                    same(Identity::of(killed, spawnfd_sys::abi::AT_FDCWD, path), identity)
                }
                Check::SameSource { identity } => same(identify(&self.inner.files[0].file), identity),
            };
            outcome.map_err(|errno| self.check_failed(place, errno))?;
        }
        Ok(())
    }

    /// The absolute path; `None` for a template made from a descriptor.
    pub fn path(&self) -> Option<&Path> {
        let path = &self.inner.pinned.path;
        (!self.inner.anonymous).then(|| Path::new(OsStr::from_bytes(path.as_bytes())))
    }

    /// The name it was made with.
    pub fn name(&self) -> &OsStr {
        &self.inner.name
    }

    /// The recorded identity.
    pub fn identity(&self) -> &Identity {
        &self.inner.files[0].identity
    }

    /// The pinned file, opened with O_PATH.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.files[0].file.as_fd()
    }

    /// Whether the executable is a `#!` script.
    pub fn is_script(&self) -> bool {
        self.inner.files.len() > 1
    }

    /// The interpreters of a script, outermost last; empty for a binary.
    pub fn interpreters(&self) -> impl Iterator<Item = &Path> {
        self.inner.files[1..].iter().map(|file| Path::new(OsStr::from_bytes(file.path.as_bytes())))
    }

    pub(crate) fn executed_by_descriptor(&self) -> bool {
        self.by_descriptor
    }

    /// What must be checked in the caller: credentials, and contents while timestamps cannot tell.
    pub(crate) fn settle(&self) -> Result<()> {
        if !self.inner.creator.are_current() {
            let call = format!("template({:?}): credentials are not the creator's", self.inner.name);
            return Err(Error::new(Stage::Credentials, Errno::EACCES, call));
        }
        // Its path is compared, the descriptor executed: the application may have put something else at that number.
        if self.by_descriptor && self.inner.files[0].file.get().is_none() {
            let call = format!("fstat({})", self.descriptor().as_raw_fd());
            return Err(Error::new(Stage::Revalidate, Errno::ESTALE, call));
        }
        self.inner.files.iter().try_for_each(Recorded::settle)
    }

    /// What a child is to become; by the descriptor at that place of the plan's sources, where there is one.
    pub(crate) fn program(&self, source: Option<usize>, renew: bool) -> Program {
        Program { pinned: self.inner.pinned.clone(), source, renew }
    }

    /// The error for a check that failed, by its place.
    pub(crate) fn check_failed(&self, place: usize, errno: Errno) -> Error {
        let call = match self.inner.pinned.checks.get(place) {
            Some(Check::Absent { path }) => format!("search({:?}): {path:?} now comes first", self.inner.name),
            Some(Check::Same { path, .. }) => format!("revalidate({path:?})"),
            _ => format!("revalidate({:?})", self.inner.name),
        };
        Error::new(Stage::Revalidate, errno, call)
    }
}

fn same(now: std::result::Result<Identity, Errno>, recorded: &Identity) -> std::result::Result<(), Errno> {
    match now {
        Ok(now) if now == *recorded => Ok(()),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Errno::ESTALE),
        Err(errno) => Err(errno),
    }
}

/// An error about an interpreter, which says whose it is.
fn interpreter_of(script: &CStr, error: &Error) -> Error {
    Error::new(error.stage(), error.errno(), format!("{}, interpreter of {script:?}", error.call()))
}

/// What execve would ask of the file: regular, and executable by the caller.
fn may_execute(file: &Recorded) -> Result<()> {
    let refused = |errno| {
        let call = if file.path.is_empty() { "template(fd)".to_owned() } else { format!("execve({:?})", file.path) };
        Err(Error::new(Stage::Template, errno, call))
    };
    if !file.identity.is_regular() {
        return refused(Errno::EACCES);
    }
    if file.path.is_empty() {
        return if file.identity.mode & 0o111 == 0 { refused(Errno::EACCES) } else { Ok(()) };
    }
    call::may_execute(features::killed(), &file.path).map(drop).or_else(refused)
}

/// The interpreter of a file's `#!` line; `None` also for one that may only be executed, which no interpreter could read either.
fn read_script(file: &Recorded) -> Result<Option<CString>> {
    use std::io::Read;
    let mut head = Vec::with_capacity(script::HEAD);
    let failed = |errno| Error::new(Stage::Template, errno, format!("read({:?})", file.path));
    let opened = match file.reopen().map_err(|e| from_io(&e)) {
        Ok(opened) => opened,
        Err(Errno::EACCES | Errno::EPERM) => return Ok(None),
        // Without /proc a descriptor cannot be read; exec refuses a script that has no path.
        Err(Errno::ENOENT) if file.path.is_empty() => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    opened.take(script::HEAD as u64).read_to_end(&mut head).map_err(|e| failed(from_io(&e)))?;
    script::parse(&head).map_err(failed)
}
