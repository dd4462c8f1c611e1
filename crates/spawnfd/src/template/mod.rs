// SPDX-License-Identifier: MIT OR Apache-2.0
//! Templates: the library finds an executable once, records it, and checks it again at each spawn.

mod cache;
mod change;
mod credentials;
mod recorded;
mod script;
mod search;

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;
use spawnfd_child::{Check, Data, Pinned, Program};
use spawnfd_sys::{Errno, call};

pub(crate) use cache::CacheKey;
pub use cache::{CacheStats, TemplateCache};
pub(crate) use recorded::{identify, is_recent};
pub(crate) use search::search_path;
/// The identity of a [`Template`]'s file, or of a [snapshot](crate::snapshot::Snapshot::source)'s.
///
/// # Examples
/// ```
/// use std::os::unix::fs::MetadataExt;
/// let template = spawnfd::Template::open("/bin/echo")?;
/// let file = std::fs::metadata("/bin/echo")?;
/// assert_eq!((template.identity().inode, template.identity().size), (file.ino(), file.size()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
pub use spawnfd_child::Identity;

use crate::error::{Error, Result, Stage, from_io, reason, shown, shown_c};
use crate::host::descriptors::CheckedFd;
use crate::host::features;
pub(crate) use credentials::Credentials;
use recorded::RecordedFile;

/// One executable, pinned. Each spawn runs exactly that file, unchanged, or fails as
/// [`Stale`](crate::error::ErrorKind::Stale).
///
/// A template records the file's device, inode, size, mode, owner, group, ctime and mtime, and its creator's
/// credentials. At each spawn the caller compares the credentials, and the child compares the file right before
/// exec. A template keeps one descriptor open (two for a script). It detects changes to the file; it does not
/// prevent them.
///
/// A template made from a path has a window of one system call between the check and exec, in which another file
/// can take the path. [`by_descriptor`](Template::by_descriptor) closes this window. Cloning a template is cheap.
///
/// For a script (`#!`), the template also pins the interpreter. The interpreter opens the script by its path after
/// the check, so the guarantee for the script itself is weaker.
///
/// # Examples
/// ```
/// use spawnfd::Template;
/// let echo = Template::open("/bin/echo")?; // finds and records the executable once
/// for word in ["one", "two"] {
///     // Each start checks that the executable is unchanged.
///     assert_eq!(echo.command().arg(word).run()?.stdout_text().trim(), word);
/// }
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "a template has no effect until a command uses it"]
#[derive(Clone, Debug)]
pub struct Template {
    inner: Arc<TemplateData>,
    by_descriptor: bool,
}

#[derive(Debug)]
struct TemplateData {
    /// The default for argv[0]: the name as the caller gave it.
    name: OsString,
    /// The executable, then the interpreters if it is a script.
    files: Vec<RecordedFile>,
    /// The part that children use: the path, and the checks that they make before exec.
    pinned: Arc<Pinned<'static>>,
    /// True if the template was made from a descriptor, so there is no path to execute.
    anonymous: bool,
    creator: Credentials,
}

impl Template {
    /// Records the executable at an absolute path.
    ///
    /// # Errors
    /// - EINVAL: the path is relative or has a NUL, or a script names its interpreter by a relative path.
    /// - ENOENT, ENOTDIR, ELOOP, EACCES: see execve(2).
    /// - ENOEXEC: a script names no interpreter.
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
            let message = format!("a program's path must be absolute, got {path:?}");
            return Err(Error::invalid(printed).saying(message));
        }
        let path_c = CString::new(path.as_os_str().as_bytes()).map_err(|_| {
            Error::invalid(printed).saying(format!("a program's path must not contain a NUL byte, got {path:?}"))
        })?;
        Template::record(path.as_os_str().to_owned(), vec![path_c], 0)
    }

    /// Searches `name` in the directories of `path` (as in `PATH`), and records what it finds.
    ///
    /// The template becomes stale as soon as an earlier directory of `path` has an executable of that name. Relative
    /// and empty parts of `path` start at this process's directory at the time of the call. An absolute `name` is
    /// opened as by [`Template::open`].
    ///
    /// # Errors
    /// ENOENT: no directory has the name. EACCES: the caller may not execute the file found. EINVAL: the name is
    /// empty, has a NUL, or is a relative path.
    pub fn search(name: impl AsRef<OsStr>, path: impl AsRef<OsStr>) -> Result<Template> {
        let path = path.as_ref();
        Template::search_from(name, path, search::start_of_relative_parts(path, None).as_deref())
    }

    /// The same as [`search`](Template::search), but relative and empty parts of `path` start at the absolute path
    /// `directory`. If there is none, the search skips them.
    #[doc(hidden)]
    pub fn search_from(name: impl AsRef<OsStr>, path: &OsStr, directory: Option<&Path>) -> Result<Template> {
        let name = name.as_ref();
        if name.as_bytes().contains(&b'/') {
            return Template::open(name);
        }
        let found = search::search(name, path, directory)?;
        Template::record(name.to_owned(), found.candidates, found.index)
    }

    /// Records the executable that an open descriptor refers to (O_PATH is enough). The template keeps a duplicate.
    ///
    /// Spawns execute the file by execveat(2). `AT_EXECFN` is then `/dev/fd/N`, and before Linux 6.14 the task's
    /// name is a number.
    ///
    /// # Errors
    /// EACCES: not a regular file, or not executable. EINVAL: a script, because its interpreter could not open it.
    /// EBADF, EMFILE.
    pub fn from_descriptor(file: impl AsFd) -> Result<Template> {
        let printed = |errno| Error::new(Stage::Template, errno, "template(fd)");
        let copy = file.as_fd().try_clone_to_owned().map_err(|e| printed(from_io(&e)))?;
        let recorded = RecordedFile::of(CString::default(), CheckedFd::new(copy))?;
        check_executable(&recorded)?;
        if read_script(&recorded)?.is_some() {
            return Err(Error::refused(Stage::Template, Errno::EINVAL, "template(fd)")
                .saying("a script cannot be run from a descriptor: its interpreter needs its path"));
        }
        let checks = vec![Check::SameSource { identity: recorded.identity }];
        let pinned = Pinned { checks: checks.into(), ..Pinned::default() };
        Ok(Template::new(OsString::new(), vec![recorded], pinned, true))
    }

    /// Records the file at `candidates[index]`. If a file appears at one of the paths before it, the template is
    /// stale.
    fn record(name: OsString, candidates: Vec<CString>, index: usize) -> Result<Template> {
        let path = candidates[index].clone();
        let mut files = vec![RecordedFile::open(&path)?];
        loop {
            let last = &files[files.len() - 1];
            check_executable(last).map_err(|error| match &files[..] {
                [.., script, _] => interpreter_error(&script.path, &error),
                _ => error,
            })?;
            let Some(interpreter) = read_script(last)? else { break };
            if files.len() > script::NESTING {
                let message = format!("{}: more than {} nested interpreters", shown_c(&path), script::NESTING);
                return Err(Error::new(Stage::Template, Errno::ELOOP, format!("template({path:?})")).saying(message));
            }
            if !interpreter.as_bytes().starts_with(b"/") {
                let message =
                    format!("{}: bad interpreter: its path must be absolute, got {interpreter:?}", shown_c(&last.path));
                return Err(
                    Error::refused(Stage::Template, Errno::EINVAL, format!("template({path:?})")).saying(message)
                );
            }
            let recorded = RecordedFile::open(&interpreter);
            files.push(recorded.map_err(|error| interpreter_error(&files[files.len() - 1].path, &error))?);
        }
        let absent = candidates[..index].iter().map(|path| Check::Absent { path: path.clone().into() });
        let same = files.iter().map(|file| Check::Same { path: file.path.clone().into(), identity: file.identity });
        let checks = absent.chain(same).collect();
        let places = candidates.into_iter().map(Cow::Owned).collect();
        Ok(Template::new(name, files, Pinned { path: path.into(), checks, places }, false))
    }

    /// A template without files: the child executes the file that `path` names at the time of its exec. The library
    /// records and compares nothing.
    pub(crate) fn unpinned(path: CString) -> Template {
        let name = OsStr::from_bytes(path.as_bytes()).to_owned();
        Template::new(name, Vec::new(), Pinned { path: path.into(), ..Pinned::default() }, false)
    }

    /// `anonymous`: the template has no path, so the child executes the file by its descriptor.
    fn new(name: OsString, files: Vec<RecordedFile>, pinned: Pinned<'static>, anonymous: bool) -> Template {
        let (pinned, creator) = (Arc::new(pinned), Credentials::current());
        crate::host::authority::remember_if_single_threaded();
        Template { by_descriptor: anonymous, inner: Arc::new(TemplateData { name, files, pinned, anonymous, creator }) }
    }

    /// Returns this template for execution by descriptor: the child executes the recorded file by its descriptor, not
    /// by its path. If the path names another file by the time of exec, that other file does not run.
    ///
    /// The checks before exec stay the same. A spawn still fails as stale if the path names another file at the time
    /// of the check, or if the file has changed. The descriptor pins the file, not its contents: a write in place
    /// between the check and exec takes effect.
    ///
    /// `AT_EXECFN` is then `/dev/fd/N`, and before Linux 6.14 the task's name is a number.
    ///
    /// # Errors
    /// EINVAL: a script, because its interpreter could not open it.
    pub fn by_descriptor(&self) -> Result<Template> {
        if self.is_script() {
            let message = format!("{}: a script cannot be run by descriptor", shown(&self.inner.name));
            return Err(Error::invalid(format!("by_descriptor({:?})", self.inner.name)).saying(message));
        }
        Ok(Template { by_descriptor: true, ..self.clone() })
    }

    /// Whether this file is the executable or one of its interpreters.
    #[cfg(feature = "warm")]
    pub(crate) fn has_file(&self, identity: &Identity) -> bool {
        let key = |identity: &Identity| (identity.device, identity.inode);
        self.inner.files.iter().any(|file| key(&file.identity) == key(identity))
    }

    /// Whether one of the files has been deleted.
    fn is_deleted(&self) -> bool {
        let removed =
            |file: &CheckedFd| call::identify_and_count_links(file.as_fd().as_raw_fd()) == Ok((file.identity(), 0));
        self.inner.files.iter().any(|recorded| removed(&recorded.file))
    }

    /// Whether the template records a file.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.inner.files.is_empty()
    }

    /// Compares the executable and the caller's credentials with the recorded ones, as each spawn does.
    ///
    /// # Errors
    /// ESTALE: the path names another file, or the file has changed. EACCES: the calling thread's credentials
    /// differ from the creator's.
    pub fn revalidate(&self) -> Result<()> {
        self.check_in_caller()?;
        self.check()
    }

    /// Compares the executable with the recorded one, as a child does.
    pub(crate) fn check(&self) -> Result<()> {
        let killed_calls = features::killed_calls();
        for (index, check) in self.inner.pinned.checks.iter().enumerate() {
            let outcome = match check {
                Check::Absent { path } if spawnfd_child::is_candidate(killed_calls, path) => Err(Errno::ESTALE),
                Check::Absent { .. } => Ok(()),
                Check::Same { path, identity } => {
                    compare(Identity::of(killed_calls, spawnfd_sys::abi::AT_FDCWD, path), identity)
                }
                Check::SameSource { identity } => compare(identify(&self.inner.files[0].file), identity),
            };
            outcome.map_err(|errno| self.check_failed(index, errno))?;
        }
        Ok(())
    }

    /// The absolute path. `None` for a template made from a descriptor.
    pub fn path(&self) -> Option<&Path> {
        let path = &self.inner.pinned.path;
        (!self.inner.anonymous).then(|| Path::new(OsStr::from_bytes(path.to_bytes())))
    }

    /// The name from which the template was made.
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

    /// The interpreters of a script, the outermost last. Empty for a binary.
    pub fn interpreters(&self) -> impl Iterator<Item = &Path> {
        self.inner.files[1..].iter().map(|file| Path::new(OsStr::from_bytes(file.path.as_bytes())))
    }

    pub(crate) fn executed_by_descriptor(&self) -> bool {
        self.by_descriptor
    }

    /// Makes the checks that the caller makes before each spawn. Compares the credentials. Also
    /// compares the contents as long as timestamps cannot show a change.
    pub(crate) fn check_in_caller(&self) -> Result<()> {
        if !self.inner.creator.are_current() {
            let message = format!(
                "the ids, groups or capabilities of this thread are not those with which the template of {} was created",
                shown(&self.inner.name)
            );
            let call = format!("template({:?})", self.inner.name);
            return Err(Error::new(Stage::Credentials, Errno::EACCES, call).saying(message));
        }
        // The child's check may look up the path, but its exec uses the descriptor. The application may have put
        // another file at the descriptor's number.
        if self.by_descriptor && self.inner.files[0].file.get().is_none() {
            let call = format!("fstat({})", self.descriptor().as_raw_fd());
            let message = "the application has closed or replaced the template's descriptor";
            return Err(Error::new(Stage::Revalidate, Errno::ESTALE, call).saying(message));
        }
        self.inner.files.iter().try_for_each(RecordedFile::check_contents)
    }

    /// The program for a child. If the program is executed by descriptor, `source` is the index of that descriptor
    /// among the plan's sources (the caller's descriptors that the child needs). If `renew` is true and a check fails,
    /// the child searches PATH again.
    pub(crate) fn program(&self, source: Option<usize>, renew: bool) -> Program<'static> {
        Program { pinned: Data::Shared(self.inner.pinned.clone()), source, renew }
    }

    /// The error for a failed check, by the check's index.
    pub(crate) fn check_failed(&self, index: usize, errno: Errno) -> Error {
        let name = shown(&self.inner.name);
        let failed = |call: String, subject: &str, recorded: &Identity, now| {
            let message = match errno {
                Errno::ESTALE => change::describe(subject, recorded, now),
                errno => format!("cannot compare {subject} with its template: {}", reason(errno)),
            };
            Error::new(Stage::Revalidate, errno, call).saying(message)
        };
        match self.inner.pinned.checks.get(index) {
            Some(Check::Absent { path }) => {
                let call = format!("search({:?}), found {path:?}", self.inner.name);
                let message = format!("{name}: an earlier PATH directory now has the name: {}", shown_c(path));
                Error::new(Stage::Revalidate, errno, call).saying(message)
            }
            Some(Check::Same { path, identity }) => {
                let now = Identity::of(features::killed_calls(), spawnfd_sys::abi::AT_FDCWD, path);
                failed(format!("revalidate({path:?})"), &shown_c(path), identity, now)
            }
            Some(Check::SameSource { identity }) => {
                let path = self.path().map_or_else(|| "the program's file".to_owned(), shown);
                failed(
                    format!("revalidate({:?})", self.inner.name),
                    &path,
                    identity,
                    identify(&self.inner.files[0].file),
                )
            }
            None => Error::new(Stage::Revalidate, errno, format!("revalidate({:?})", self.inner.name)),
        }
    }
}

fn compare(now: std::result::Result<Identity, Errno>, recorded: &Identity) -> std::result::Result<(), Errno> {
    match now {
        Ok(now) if now == *recorded => Ok(()),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Errno::ESTALE),
        Err(errno) => Err(errno),
    }
}

/// An error about an interpreter, with the script's path.
fn interpreter_error(script: &CStr, error: &Error) -> Error {
    let message = format!("{}: bad interpreter: {}", shown_c(script), error.message());
    Error::new(error.stage(), error.errno(), format!("{}, interpreter of {script:?}", error.call())).saying(message)
}

/// Checks what execve would check: the file is regular, and the caller may execute it.
fn check_executable(file: &RecordedFile) -> Result<()> {
    let refused = |errno| {
        let call = if file.path.is_empty() { "template(fd)".to_owned() } else { format!("execve({:?})", file.path) };
        let path = file.shown();
        let message = match errno {
            Errno::EACCES if FileType::from_raw_mode(file.identity.mode.into()) == FileType::Directory => {
                format!("is a directory: {path}")
            }
            Errno::EACCES if !file.identity.is_regular() => format!("not a regular file: {path}"),
            Errno::EACCES if file.identity.mode & 0o111 == 0 => {
                format!("permission denied: {path} is not executable (mode {:04o})", file.identity.mode & 0o7777)
            }
            Errno::EACCES => format!("permission denied: {path} is not executable for this user"),
            errno => format!("cannot execute {path}: {}", reason(errno)),
        };
        Err(Error::new(Stage::Template, errno, call).saying(message))
    };
    if !file.identity.is_regular() {
        return refused(Errno::EACCES);
    }
    if file.path.is_empty() {
        return if file.identity.mode & 0o111 == 0 { refused(Errno::EACCES) } else { Ok(()) };
    }
    call::may_execute(features::killed_calls(), &file.path).map(drop).or_else(refused)
}

/// The interpreter of a file's `#!` line. `None` if the file has no such line. Also `None` if the caller may execute
/// but not read the file, because no interpreter could read it either.
fn read_script(file: &RecordedFile) -> Result<Option<CString>> {
    use std::io::Read;
    let mut head = Vec::with_capacity(script::HEAD);
    let failed = |errno| {
        let message = match errno {
            Errno::ENOEXEC => format!("{}: its #! line names no interpreter", file.shown()),
            errno => format!("cannot read {}: {}", file.shown(), reason(errno)),
        };
        Error::new(Stage::Template, errno, format!("read({:?})", file.path)).saying(message)
    };
    let opened = match file.reopen().map_err(|e| from_io(&e)) {
        Ok(opened) => opened,
        Err(Errno::EACCES | Errno::EPERM) => return Ok(None),
        // Without /proc, an O_PATH descriptor cannot be opened for reading. If the file is a script, its exec fails.
        Err(Errno::ENOENT) if file.path.is_empty() => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    opened.take(script::HEAD as u64).read_to_end(&mut head).map_err(|e| failed(from_io(&e)))?;
    script::parse(&head).map_err(failed)
}
