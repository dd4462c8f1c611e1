// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builder of commands: the program, its arguments and environment, and the way to start it.

pub(crate) mod arguments;
mod attributes;
#[cfg(feature = "remote")]
pub(crate) mod described;
mod descriptor;
mod ids;
mod lower;
pub(crate) mod names;
#[cfg(feature = "warm")]
mod parkable;
mod start;
pub(crate) mod table;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, iter};

use rustix::fs::{Mode, OFlags, open};
use spawnfd_child::{Failure, Op, Plan};
use spawnfd_sys::{ArgBlock, Ended, call};

pub use attributes::{Namespaces, OpenHow};
pub use descriptor::{ChildFd, Descriptor, Stdio};
#[cfg(feature = "warm")]
pub(crate) use lower::GIVEN;
pub use lower::MAX_ACTIONS;
pub(crate) use lower::{Lowered, stage_of, step_failed};
/// The capability sets that [`Command::capabilities`] gives a program.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::command::CapabilitySets;
/// let net_bind_service = 1 << 10;
/// let mut sets = CapabilitySets::new(); // five empty sets
/// (sets.permitted, sets.inheritable, sets.ambient) = (net_bind_service, net_bind_service, net_bind_service);
/// (sets.effective, sets.bounding) = (net_bind_service, net_bind_service);
/// let mut command = Command::new("server");
/// command.groups([]).gid(1000).uid(1000).capabilities(sets); // may listen on port 80
/// ```
///
pub use spawnfd_child::CapabilitySets;
/// An instruction of a filter for [`Command::seccomp`].
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::command::FilterInstruction;
/// // BPF_RET | BPF_K with SECCOMP_RET_ALLOW: allows every call.
/// let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
/// assert!(Command::new("true").no_new_privs().seccomp([allow]).run()?.ok());
/// # Ok::<(), spawnfd::Error>(())
/// ```
///
pub use spawnfd_sys::call::FilterInstruction;
pub(crate) use start::{Placement, Start};

use crate::child::Child;
use crate::cold_reason::ColdReason;
use crate::env::{self, Env};
use crate::error::{Error, Result, Stage, errno, from_io, of_path, reason, shown};
use crate::sandbox::{Sandbox, SandboxDescriptor};
use crate::signals::SignalSet;
use crate::template::{CacheKey, Template, TemplateCache};

/// A program to start, built like [`std::process::Command`].
///
/// By default the program gets standard input, output and error and no other descriptors. The child first connects
/// the standard streams and changes to the working directory. Then it performs the actions in the order in which
/// they were added. Everything is validated before a child exists.
///
/// The child looks paths up itself. So N in /proc/self/fd/N or /dev/fd/N is a descriptor number of the child, not of
/// the caller. To enter a directory that is already open, use [`fchdir`](Command::fchdir).
///
/// The child sets SIGPIPE to its default action, because Rust's runtime ignores SIGPIPE. Other ignored signals stay
/// ignored, and blocked signals stay blocked.
///
/// A command can be started any number of times, also by several threads at once.
///
/// `{:?}` prints the command line and the names of the variables that differ from this process's environment. It
/// prints no variable's value, because values are often secrets.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Stdio};
/// let mut child = Command::new("cat").arg("/etc/hostname").stdout(Stdio::Piped).spawn()?;
/// let name = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
/// assert!(child.wait()?.success());
/// assert!(name.ends_with('\n'));
/// # Ok::<(), spawnfd::Error>(())
/// ```
pub struct Command<'fd> {
    program: Program,
    arg0: Option<OsString>,
    args: Vec<OsString>,
    env: Option<Env>,
    current_dir: Option<Arc<CStr>>,
    /// The descriptors of the sandbox command; `None` if the program starts without one.
    sandbox: Option<Vec<SandboxDescriptor>>,
    /// The standard streams that the caller has set.
    pub(crate) stdio: [Option<Stdio<'fd>>; 3],
    /// The actions. In place of a rejected action, the list has the error text.
    actions: Vec<std::result::Result<Op<'static>, String>>,
    /// The descriptors to which actions refer by index.
    descriptors: Vec<Descriptor<'fd>>,
    inherit_descriptors: bool,
    /// The program's place in a tree of the caller's.
    pub(crate) placement: Option<Placement>,
    /// Whether [`spawn`](Command::spawn) waits for exec.
    pub(crate) waits: bool,
    /// The parked processes from which the program may start.
    pub(crate) parked: Option<Arc<dyn ParkedSource>>,
    pub(crate) drop_in: DropIn,
    signals: Signals,
    namespaces: NewNamespaces,
    filter: Option<Arc<[FilterInstruction]>>,
    /// The actions and attributes that were added by their names.
    #[cfg(feature = "remote")]
    named: described::NamedActions,
    /// The first rejected argument, which [`Command::spawn`] reports.
    pub(crate) refused: Option<Error>,
}

/// Attributes that drop-in replacements for other libraries set, because their callers expect them.
#[derive(Debug, Default)]
pub(crate) struct DropIn {
    /// The directory at which relative parts of PATH start, if it is not the command's.
    search_directory: Option<PathBuf>,
    /// The number of actions that implement other options.
    uncounted: usize,
    /// True if a spawn returns a child that a signal kills before exec, instead of an error.
    pub(crate) takes_killed: bool,
    /// True if `/bin/sh` runs the program's file if the kernel does not know its format.
    pub(crate) falls_back_to_shell: bool,
}

/// The signal attributes of a program.
#[derive(Debug, Default)]
struct Signals {
    mask: Option<SignalSet>,
    /// `None`: SIGPIPE.
    default: Option<SignalSet>,
    parent_death: Option<i32>,
}

/// The new namespaces of a program.
#[derive(Debug, Default)]
struct NewNamespaces {
    kinds: Namespaces,
    user_map: Option<UserMap>,
}

impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = iter::once(self.program_name()).chain(self.args.iter().map(OsString::as_os_str));
        f.write_str("Command(")?;
        f.debug_list().entries(words).finish()?;
        if let Some(env) = &self.env {
            f.write_str(", environment changed: ")?;
            f.debug_set().entries(env.names_changed_from(&Env::inherit())).finish()?;
        }
        f.write_str(")")
    }
}

/// The program of a command: a template, or a name and the cache that has its template.
#[derive(Clone, Debug)]
enum Program {
    Template(Template),
    Named(OsString, TemplateCache),
}

/// A source of parked processes, which a start may use instead of a new process. [`Warm`](crate::Warm) is one.
pub(crate) trait ParkedSource: std::fmt::Debug + Send + Sync {
    /// Leases a parked process for this start and the calling thread, before the command is lowered.
    ///
    /// # Errors
    /// The reason why no parked process is available.
    fn candidates<'a>(
        &'a self,
        start: &Start<'a>,
        template: &Template,
    ) -> std::result::Result<Box<dyn ParkedCandidates + 'a>, ColdReason>;

    /// Counts a start that was not made from a parked process.
    fn count_cold(&self, reason: ColdReason);
}

/// The parked processes that may serve one start, the first of which is leased. Dropping this value gives the process
/// back.
pub(crate) trait ParkedCandidates {
    /// Which of the caller's descriptors 0, 1 and 2 are open. The plan passes the open ones to the parked process.
    fn streams(&self) -> [bool; 3];

    /// Makes one of the processes carry out the plan. The outer error is the reason why no process has done anything.
    /// Another launcher may then start the command.
    fn start(self: Box<Self>, request: &ParkedRequest<'_>) -> std::result::Result<ParkedOutcome, ColdReason>;

    /// Checks as `start` does, but leaves the processes parked.
    #[cfg(feature = "warm")]
    fn explain(self: Box<Self>, request: &ParkedRequest<'_>) -> std::result::Result<WouldStart, ColdReason>;
}

/// How a parked process would start a command.
#[cfg(feature = "warm")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WouldStart {
    pub(crate) started: crate::child::Started,
    /// The start-up time that the start saves.
    pub(crate) saves: std::time::Duration,
}

/// The program, or why the parked process has not become the program.
pub(crate) type ParkedOutcome = std::result::Result<Child, ParkedFailure>;

/// Why a parked process that began to carry out a plan has not become the program.
#[cfg_attr(not(feature = "warm"), expect(dead_code, reason = "no other type implements `ParkedCandidates`"))]
pub(crate) enum ParkedFailure {
    /// An action, a check or exec failed.
    Failed(Failure),
    /// A signal killed the process in this stage.
    Killed(spawnfd_child::ChildStage, Option<Ended>),
}

/// The work for a parked process.
#[cfg_attr(not(feature = "warm"), expect(dead_code, reason = "no other type implements `ParkedCandidates`"))]
pub(crate) struct ParkedRequest<'a> {
    pub(crate) start: &'a Start<'a>,
    pub(crate) plan: &'a Arc<Plan<'static>>,
    pub(crate) template: &'a Template,
    /// The cgroup that the process joins first, with the index of its step.
    pub(crate) cgroup: Option<(u16, RawFd)>,
    /// Whether the caller waits until the parked process has begun to be the program.
    pub(crate) waits: bool,
    /// True if an action may block forever and the caller must not wait for it.
    pub(crate) may_block: bool,
}

/// The only user and the only group that a new user namespace maps, each as a line for /proc/PID/uid_map or gid_map.
#[derive(Debug)]
struct UserMap {
    users: Arc<CStr>,
    groups: Arc<CStr>,
}

/// Rust's runtime ignores SIGPIPE in the host. The programs that the host starts should get its default action.
const SIGPIPE: SignalSet = SignalSet(1 << (13 - 1));

impl<'fd> Command<'fd> {
    /// Creates a command for a path, or for a name to search in PATH. Its template comes from the process-wide
    /// [`TemplateCache`]. If the command's environment sets PATH, the search uses that value; otherwise it uses this
    /// process's PATH. As with execvp(3) in the child, a relative or empty part of PATH, such as `node_modules/.bin`,
    /// starts at [`current_dir`](Command::current_dir), or at this process's directory if the command has none.
    ///
    /// A relative path has a slash, such as `./configure`. It starts at [`current_dir`](Command::current_dir), or at
    /// this process's directory if the command has none. [`std::process::Command`] does the same on Linux. Each start
    /// resolves the path anew, so the directory is the one at the time of the start. Actions that change the
    /// directory have no effect on the path. argv\[0\] is the path as given.
    pub fn new(program: impl AsRef<OsStr>) -> Command<'fd> {
        TemplateCache::global().command(program)
    }

    fn of(program: Program) -> Command<'fd> {
        Command {
            program,
            arg0: None,
            args: Vec::new(),
            env: None,
            current_dir: None,
            sandbox: None,
            stdio: Default::default(),
            actions: Vec::new(),
            descriptors: Vec::new(),
            inherit_descriptors: false,
            placement: None,
            waits: true,
            parked: None,
            drop_in: DropIn::default(),
            signals: Signals::default(),
            namespaces: NewNamespaces::default(),
            filter: None,
            #[cfg(feature = "remote")]
            named: described::NamedActions::default(),
            refused: None,
        }
    }

    /// Replaces the program (a path or a name, as for [`Command::new`]) and keeps everything else.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::error::ErrorKind;
    /// use spawnfd::Command;
    /// let mut command = Command::new("/nonexistent/echo");
    /// command.arg("words");
    /// assert_eq!(command.spawn().unwrap_err().kind(), ErrorKind::NotFound);
    /// assert_eq!(command.program("echo").run()?.stdout, b"words\n");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn program(&mut self, program: impl AsRef<OsStr>) -> &mut Self {
        self.refuse_beside_a_sandbox(program.as_ref());
        let cache = match &self.program {
            Program::Named(_, cache) => cache.clone(),
            Program::Template(_) => TemplateCache::global().clone(),
        };
        self.program = Program::Named(program.as_ref().to_owned(), cache);
        self
    }

    /// Runs the file that `path` names when the child calls execve(2), and keeps everything else. A relative path
    /// starts at the child's directory at that time. The library makes no template, so it pins and compares nothing.
    /// Drop-in replacements for other libraries use this function, because their callers expect this behaviour.
    #[doc(hidden)]
    pub fn unpinned(&mut self, path: impl AsRef<OsStr>) -> &mut Self {
        self.refuse_beside_a_sandbox(path.as_ref());
        match CString::new(path.as_ref().as_bytes()) {
            Ok(path) => self.program = Program::Template(Template::unpinned(path)),
            Err(_) => self.refuse(format!("execve({:?}): NUL byte", path.as_ref())),
        }
        self
    }

    /// If a signal kills the child before exec, spawns return the child instead of an error.
    /// [`Child::ended_in_exec`] reports this end. Drop-in replacements for other libraries use this function, because
    /// their callers regard this end as the end of the program.
    #[doc(hidden)]
    pub fn take_killed(&mut self) -> &mut Self {
        self.drop_in.takes_killed = true;
        self
    }

    /// Adds one argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets argv\[0\]; by default it is the program as the caller named it. After [`sandbox`](Command::sandbox) it
    /// is argv\[0\] of the sandbox command.
    pub fn arg0(&mut self, arg0: impl AsRef<OsStr>) -> &mut Self {
        self.arg0 = Some(arg0.as_ref().to_owned());
        self
    }

    /// Starts the program through a command that confines it: `bwrap … PROGRAM ARGUMENTS`. The child executes that
    /// command and compares it with its template. The confining command finds the program by itself. The directory,
    /// environment and actions apply to the confining command, which may pass them on. A second sandbox is placed
    /// in front of the first.
    ///
    /// Such a command cannot be made from a [`Template`], because a template pins the file that is executed. It
    /// cannot get another [`program`](Command::program) later. A program name that begins with `-` is rejected,
    /// because the confining command would read it as an option.
    pub fn sandbox(&mut self, sandbox: &Sandbox) -> &mut Self {
        let Program::Named(name, _) = &mut self.program else {
            self.refuse(format!("sandbox({:?}): a template is executed itself", sandbox.name));
            return self;
        };
        let inside = std::mem::replace(name, sandbox.program.clone().into());
        if inside.as_bytes().starts_with(b"-") {
            self.refuse(format!("sandbox({:?}): it would take {inside:?} for an option", sandbox.name));
        }
        // If the command already has a sandbox, the new sandbox confines that sandbox's command like any other
        // program.
        self.args.splice(0..0, sandbox.args.iter().cloned().chain([inside]));
        self.arg0 = Some(sandbox.name.clone());
        for given in &sandbox.descriptors {
            if self.given().iter().any(|other| other.number == given.number) {
                self.refuse(format!("sandbox({:?}): descriptor {} twice", sandbox.name, given.number));
            }
        }
        self.sandbox.get_or_insert_default().extend_from_slice(&sandbox.descriptors);
        self
    }

    /// Sets one variable. Unless the command has an environment already, it starts from this
    /// process's environment as it is now.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        let env = self.env.take().unwrap_or_else(Env::inherit);
        self.env = Some(env.set(name.as_ref(), value.as_ref()));
        self
    }

    /// Removes one variable.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        let env = self.env.take().unwrap_or_else(Env::inherit);
        self.env = Some(env.unset(name));
        self
    }

    /// Sets variables, as [`env`](Command::env) does.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(&mut self, variables: impl IntoIterator<Item = (N, V)>) -> &mut Self {
        let env = self.env.take().unwrap_or_else(Env::inherit);
        self.env = Some(variables.into_iter().fold(env, |env, (name, value)| env.set(name.as_ref(), value.as_ref())));
        self
    }

    /// Removes all variables.
    pub fn env_clear(&mut self) -> &mut Self {
        self.env = Some(Env::empty());
        self
    }

    /// Sets the whole environment. An [`Env`] is encoded once and can serve many commands.
    pub fn environment(&mut self, env: &Env) -> &mut Self {
        // Encode before cloning, so that the clones share the encoding. The spawn reports an encoding error.
        let _ = env.encode();
        self.env = Some(env.clone());
        self
    }

    /// Starts the program in this directory. If the program is a relative path with a slash, the path starts here
    /// too, and so do the relative parts of PATH. A failure is reported as [`Stage::CurrentDir`].
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        match CString::new(dir.as_ref().as_os_str().as_bytes()) {
            Ok(dir) => self.current_dir = Some(dir.into()),
            Err(_) => self.refuse(format!("chdir({:?}): NUL byte", dir.as_ref())),
        }
        self
    }

    /// Sets the absolute path at which relative parts of PATH start, for a caller whose action changes to a directory.
    #[doc(hidden)]
    pub fn search_from(&mut self, directory: PathBuf) -> &mut Self {
        self.drop_in.search_directory = Some(directory);
        self
    }

    /// Connects standard input. By default the program inherits it; in a supervised run it is empty.
    pub fn stdin(&mut self, stdin: impl Into<Stdio<'fd>>) -> &mut Self {
        self.stdio[0] = Some(stdin.into());
        self
    }

    /// Connects standard output. By default the program inherits it; a supervised run captures it.
    pub fn stdout(&mut self, stdout: impl Into<Stdio<'fd>>) -> &mut Self {
        self.stdio[1] = Some(stdout.into());
        self
    }

    /// Connects standard error. By default the program inherits it; a supervised run captures it.
    pub fn stderr(&mut self, stderr: impl Into<Stdio<'fd>>) -> &mut Self {
        self.stdio[2] = Some(stderr.into());
        self
    }

    /// The program, as the caller named it.
    pub fn get_program(&self) -> &OsStr {
        self.program_name()
    }

    /// The arguments, without argv\[0\].
    pub fn get_args(&self) -> impl ExactSizeIterator<Item = &OsStr> {
        self.args.iter().map(OsString::as_os_str)
    }

    /// The environment; `None` if the program inherits this process's environment.
    pub fn get_env(&self) -> Option<&Env> {
        self.env.as_ref()
    }

    /// The directory in which the program starts; `None` if it is that of the calling thread.
    pub fn get_current_dir(&self) -> Option<&Path> {
        self.current_dir.as_ref().map(|dir| Path::new(OsStr::from_bytes(dir.to_bytes())))
    }

    /// Refuses to change the program of a command that has a sandbox: the new program would replace the confining
    /// command.
    fn refuse_beside_a_sandbox(&mut self, program: &OsStr) {
        if self.sandbox.is_some() {
            self.refuse(format!("program({program:?}): a sandbox stands in front of another"));
        }
    }

    fn refuse(&mut self, call: String) {
        self.refused.get_or_insert_with(|| Error::invalid(call));
    }

    pub(crate) fn program_name(&self) -> &OsStr {
        match &self.program {
            Program::Template(template) => template.name(),
            Program::Named(name, _) => name,
        }
    }

    /// Returns the template. If it came from a cache, also returns the key and the cache by which
    /// to renew it.
    pub(crate) fn template(&self) -> Result<(Template, Option<(CacheKey, &TemplateCache)>)> {
        match &self.program {
            Program::Template(template) => Ok((template.clone(), None)),
            Program::Named(name, cache) => {
                let key = self.key(name)?;
                let template = cache.find(&key).map_err(|error| self.directory_error(name).unwrap_or(error))?;
                Ok((template, Some((key, cache))))
            }
        }
    }

    /// Makes the cache create the command's template again.
    pub(crate) fn renew(&self) -> Result<()> {
        match &self.program {
            Program::Named(name, cache) => cache.renew(&self.key(name)?).map(drop),
            Program::Template(_) => Ok(()),
        }
    }

    /// The key of the program in a cache: its absolute path, or its name and the PATH to search.
    fn key(&self, name: &OsStr) -> Result<CacheKey> {
        if !is_relative_path(name) {
            let path = self.env.as_ref().and_then(|env| env.get("PATH"));
            let directory = self.drop_in.search_directory.as_deref().or(self.get_current_dir());
            return Ok(CacheKey::new(name, path, directory));
        }
        let directory = self.current_dir.as_deref().map_or(OsStr::new(""), |dir| OsStr::from_bytes(dir.to_bytes()));
        let path = std::path::absolute(Path::new(directory).join(name)).map_err(|error| {
            let errno = from_io(&error);
            let message = format!("{}: the current directory has no path: {}", shown(name), reason(errno));
            Error::new(Stage::Template, errno, "getcwd()").saying(message)
        })?;
        Ok(CacheKey::new(path.as_os_str(), None, None))
    }

    /// The error of the directory at which a relative program starts; `None` if the directory can be opened.
    fn directory_error(&self, name: &OsStr) -> Option<Error> {
        let path = self.current_dir.as_deref().filter(|_| is_relative_path(name))?;
        let errno = errno(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).err()?);
        let error = Error::new(Stage::CurrentDir, errno, format!("chdir({path:?})"));
        Some(error.saying_if(of_path("working directory", path, errno)))
    }

    /// Makes the cache drop all templates except this command's. Returns whether the cache dropped any.
    pub(crate) fn drops_other_templates(&self) -> bool {
        match &self.program {
            Program::Named(name, cache) => self.key(name).is_ok_and(|key| cache.drop_others(&key)),
            Program::Template(_) => false,
        }
    }

    /// Whether the command's template comes from a cache.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.program, Program::Named(..))
    }

    pub(crate) fn encode_args(&self) -> Result<ArgBlock<'static>> {
        self.encode_args_after(&[self.arg0.as_deref().unwrap_or_else(|| self.program_name())])
    }

    /// The arguments of the shell that runs the program's file if the kernel does not know its format.
    pub(crate) fn encode_shell_args(&self, template: &Template) -> Result<Option<ArgBlock<'static>>> {
        if !self.drop_in.falls_back_to_shell || self.sandbox.is_some() {
            return Ok(None);
        }
        let file = template.path().map_or_else(|| self.program_name(), |path| path.as_os_str());
        self.encode_args_after(&["/bin/sh".as_ref(), file]).map(Some)
    }

    fn encode_args_after(&self, first: &[&OsStr]) -> Result<ArgBlock<'static>> {
        let all = first.iter().copied().chain(self.args.iter().map(OsString::as_os_str));
        ArgBlock::new(all.map(OsStr::as_bytes)).map_err(|index| {
            let message = format!("argument {index} contains a NUL byte");
            Error::invalid(format!("execve: argv[{index}] has a NUL byte")).saying(message)
        })
    }

    pub(crate) fn encode_env(&self) -> Result<Arc<ArgBlock<'static>>> {
        if let Some(env) = &self.env {
            return env.encode();
        }
        env::encode(std::env::vars_os()).map(Arc::new)
    }

    pub(crate) fn namespace_flags(&self) -> u32 {
        self.namespaces.kinds.0
    }

    /// Whether the caller has set a stream.
    pub(crate) fn has_streams(&self) -> bool {
        self.stdio.iter().any(Option::is_some)
    }

    /// Whether the arguments belong to a sandbox's command.
    pub(crate) fn is_sandboxed(&self) -> bool {
        self.sandbox.is_some()
    }

    /// Whether the sandbox command, an action, or a descriptor that the child inherits uses this number in the child's
    /// table.
    pub(crate) fn uses_number(&self, number: RawFd) -> bool {
        self.inherit_descriptors && call::descriptor_flags(number).is_ok()
            || self.given().iter().any(|given| given.number == number)
            || self.all_actions().any(|action| action.makes() == Some(number) || action.reads() == Some(number))
    }

    /// The descriptors of the sandbox command.
    fn given(&self) -> &[SandboxDescriptor] {
        self.sandbox.as_deref().unwrap_or_default()
    }

    /// Replaces all arguments.
    pub(crate) fn replace_args(&mut self, args: Vec<OsString>) {
        self.args = args;
    }

    /// The lowest number above 2 at which no action opens a descriptor.
    pub(crate) fn unused_descriptor(&self) -> RawFd {
        (3..).find(|&number| !self.all_actions().any(|action| action.makes() == Some(number))).unwrap_or(3)
    }

    /// Whether an action of the child may block forever, such as opening a file.
    pub(crate) fn may_block_forever(&self) -> bool {
        self.all_actions().any(Op::may_block_forever)
    }

    /// The last resource limit with this number that an action sets: soft and hard.
    pub(crate) fn rlimit(&self, number: u32) -> Option<(u64, u64)> {
        let set = |action: &Op<'_>| match action {
            Op::Limit { resource, limit: [soft, hard] } if *resource == number => Some((*soft, *hard)),
            _ => None,
        };
        self.all_actions().filter_map(set).last()
    }

    /// The program's real user id, if an action sets it.
    pub(crate) fn real_user(&self) -> Option<u32> {
        let real = |action: &Op<'_>| match action {
            Op::UserIds { real, .. } => Some(*real).filter(|real| *real != u32::MAX),
            _ => None,
        };
        self.all_actions().filter_map(real).last()
    }

    /// Whether a subreaper may become the program's parent. A parked process and a program with a parent-death signal are
    /// children of this process.
    pub(crate) fn may_have_subreaper(&self) -> bool {
        self.parked.is_none() && self.signals.parent_death.is_none()
    }

    /// Whether an action moves the program into a cgroup that the caller names.
    pub(crate) fn names_cgroup(&self) -> bool {
        self.all_actions().any(|action| matches!(action, Op::Cgroup { .. }))
    }

    fn all_actions(&self) -> impl Iterator<Item = &Op<'static>> {
        self.actions.iter().flatten()
    }

    /// The number of a descriptor that an action uses.
    fn source_number(&self, source: usize) -> RawFd {
        self.descriptors.get(source).map_or(-1, Descriptor::number)
    }

    /// The action as strace would print it.
    fn print(&self, action: &Op<'_>) -> String {
        action.print(|source| self.source_number(source))
    }
}

/// Whether the name of a program is a relative path: it has a slash, but does not begin with one.
fn is_relative_path(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/') && !name.as_bytes().starts_with(b"/")
}

impl Template {
    /// Creates a command that runs this template. argv\[0\] is the name from which the template was made.
    pub fn command<'fd>(&self) -> Command<'fd> {
        Command::of(Program::Template(self.clone()))
    }
}

impl TemplateCache {
    /// Creates a command whose template comes from this cache.
    pub fn command<'fd>(&self, program: impl AsRef<OsStr>) -> Command<'fd> {
        Command::of(Program::Named(program.as_ref().to_owned(), self.clone()))
    }
}
