// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shell that keeps its state from command to command.
//!
//! [`Session::open`] starts the shell, and [`Session::run`] runs one command in it.

mod script;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use script::Dialect;

use crate::command::{Command, Stdio};
use crate::error::{Errno, Error, Result, Stage};
use crate::host::per_process::PerProcess;
use crate::job::limits::Limits;
use crate::job::shell::{HolderNumbers, Script, SessionTerminal, Shell, memory_file};
use crate::job::{EventOptions, Events, Job, Leftovers, Output, Run, Stop, TerminalSize};
use crate::limiter::{Limiter, Permit};
use crate::sandbox::Sandbox;
use crate::signal::{self, SignalSet};
use crate::tree::Survivor;

/// A shell that stays open and runs one command after the other: bash or dash.
///
/// The shell itself runs the text of a command. So the working directory, variables, functions, aliases, options, the
/// umask and traps stay as the command leaves them, and the next command finds the last status in `$?`. The shell
/// behaves like an interactive shell without a terminal: aliases work, a syntax error does not end it, it has
/// no history and no job control. With `set -e`, a command whose last status is not 0 ends the shell.
///
/// - Each command has its own streams. The output of a background job goes to the command that has started the job, and
///   never appears in a later command's output. Standard input is `/dev/null` unless the [`Run`] has input.
/// - The library reads the status from a pipe of its own, which no command inherits. No output can imitate it.
/// - A command that has to end (a timeout, [`Job::stop`], a dropped [`Job`]) gets SIGINT, SIGTERM after half of its
///   [grace](Run::grace), and SIGKILL after all of it. The shell gets SIGINT too, and abandons the rest of the command. If
///   the shell does not return 300 ms after that SIGKILL has ended the processes, the library kills the shell.
/// - If the shell exits, the command returns at once, and its output says [`shell_exited`](Output::shell_exited).
///
/// Dropping the session ends the shell and its process tree. The tree also ends with this process.
///
/// # Examples
/// ```
/// use spawnfd::session::{Session, SessionOptions};
/// use spawnfd::{Command, Run};
/// let session = Session::open(Command::new("bash"), SessionOptions::new())?;
/// session.run("cd /usr; greet() { echo \"hello from $PWD\"; }", &Run::new())?;
/// let output = session.run("greet", &Run::new())?;
/// assert_eq!(output.stdout, b"hello from /usr\n");
/// assert_eq!(output.cwd.as_deref(), Some("/usr".as_ref()));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping the session ends its shell"]
pub struct Session {
    options: SessionOptions,
    /// `None` in a forked copy of the host.
    state: PerProcess<Option<SessionState>>,
    /// Has one permit: only one command starts a shell, and other commands then use that shell.
    starts: Limiter,
}

/// The options of a [`Session`].
///
/// # Examples
/// ```
/// use spawnfd::session::{Session, SessionOptions};
/// use spawnfd::{Command, Run};
/// let session = Session::open(Command::new("bash"), SessionOptions::new().merge(true))?;
/// let output = session.run("echo out; echo err >&2", &Run::new())?;
/// assert_eq!(output.stdout, b"out\nerr\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "options have no effect until a session uses them"]
#[derive(Clone, Debug)]
pub struct SessionOptions {
    login: bool,
    restart: bool,
    merge: bool,
    terminal: Option<TerminalSize>,
    echo: bool,
    startup_timeout: Duration,
    sandbox: Option<Sandbox>,
    run: Run,
}

impl Default for SessionOptions {
    /// No login shell, no restart, no terminal, 30 s for the start, no sandbox, the default options of [`Run`].
    fn default() -> SessionOptions {
        SessionOptions {
            login: false,
            restart: false,
            merge: false,
            terminal: None,
            echo: false,
            startup_timeout: Duration::from_secs(30),
            sandbox: None,
            run: Run::new(),
        }
    }
}

impl SessionOptions {
    /// Returns the default options.
    pub fn new() -> SessionOptions {
        SessionOptions::default()
    }
}

setters!(SessionOptions {
    /// Whether the shell is a login shell, which reads `/etc/profile` and the user's profile. By default it is not.
    login: bool => login;
    /// Whether the next command starts a new shell after the shell has exited. The new shell gets the working directory,
    /// the exported variables and the umask of the last completed command. By default the next command fails with ESRCH.
    restart: bool => restart;
    /// Whether each command writes standard error to its standard output. By default the streams are separate.
    merge: bool => merge;
    /// Gives the session a terminal of this size. It is the standard output and error of each command, the standard input
    /// of a command that has input, and the controlling terminal of the shell (`/dev/tty`). The output is all standard
    /// output. By default there is no terminal.
    ///
    /// All commands share the terminal: what a background job writes to it is output of the command that runs at that
    /// time. Before each command, the library restores the terminal's settings and discards input that is left.
    terminal: impl Into<Option<TerminalSize>> => terminal.into();
    /// Whether the terminal writes input back to the output. By default it does not.
    echo: bool => echo;
    /// The time that the shell has for its startup files; 30 s by default.
    startup_timeout: Duration => startup_timeout;
    /// Starts the shell through a command that confines it, such as `bwrap … --unshare-pid --proc /proc`. The shell may be
    /// in namespaces and in a Landlock domain of its own, and may run as another user.
    ///
    /// The command starts a helper of the library, and the helper starts the shell. So the sandbox must have `/proc`, and
    /// the command must pass inherited descriptors on. The shell's program is searched in the sandbox. A directory that
    /// the command sets is the shell's first directory, and [`Output::cwd`] is a path in the sandbox.
    ///
    /// # Examples
    #[cfg_attr(feature = "tree", doc = "```")]
    #[cfg_attr(not(feature = "tree"), doc = "```no_run")]
    /// use spawnfd::sandbox::Sandbox;
    /// use spawnfd::session::{Session, SessionOptions};
    /// use spawnfd::{Command, Run};
    /// let sandbox = Sandbox::new(["env", "WHERE=inside"])?;
    /// let session = Session::open(Command::new("bash"), SessionOptions::new().sandbox(&sandbox))?;
    /// assert_eq!(session.run("echo $WHERE", &Run::new())?.stdout, b"inside\n");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    sandbox: &Sandbox => Some(sandbox.clone());
    /// The options of the shell process: its tree, limits, limiter and grace. The other options of [`Run`] belong to
    /// each command. By default the tree is [`TreeControl::Auto`](crate::tree::TreeControl::Auto), so it ends the
    /// daemons of the session too.
    run: &Run => run.clone();
});

struct SessionState {
    command: Command<'static>,
    /// The name of the shell's program.
    name: OsString,
    /// `None`: the session has no sandbox.
    holder: Option<HolderNumbers>,
    shell: Option<Arc<Shell>>,
    /// `None` until the first shell has reported its version.
    dialect: Option<Dialect>,
    /// The number of the shell's next command. The shell's first lines are number 0.
    serial: u64,
    terminal: Option<SessionTerminal>,
    /// Files to which the shell writes its variables, by turns, so that one of them is always complete.
    saved: Option<[File; 2]>,
    /// The directory and the file with the variables of the last completed command of earlier shells.
    restored: Option<(PathBuf, usize)>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts a shell and waits until it has read its startup files.
    ///
    /// `command` has the program, environment and working directory of the shell. Without arguments, bash reads no
    /// startup files, unless it is a [login](SessionOptions::login) shell. Arguments are passed on: with `-i`, bash reads
    /// `~/.bashrc`. dash reads the file that the variable `ENV` names.
    ///
    /// Unless the command sets [signals](Command::default_signals), the shell starts with no blocked signals, and with the
    /// default action of SIGINT, SIGQUIT, SIGTERM, SIGPIPE and SIGXFSZ. So a host that ignores SIGINT, such as `cmd &` in
    /// a script, can interrupt commands.
    ///
    /// # Errors
    /// The shell could not be started, exited, or did not become ready within the
    /// [startup timeout](SessionOptions::startup_timeout). The message has the shell's output. EINVAL: the command sets
    /// streams or has a sandbox (use [`SessionOptions::sandbox`]). EOPNOTSUPP: `/proc` does not show this process, or the
    /// session has a sandbox and the library was built without the feature `tree`.
    pub fn open(command: Command<'static>, options: SessionOptions) -> Result<Session> {
        let session = Session::new(command, options)?;
        session.ensure_shell()?;
        Ok(session)
    }

    /// The same as [`open`](Session::open), as a lazy future: the shell starts when the future is first polled.
    ///
    /// # Errors
    /// The same as those of [`open`](Session::open).
    pub async fn open_async(command: Command<'static>, options: SessionOptions) -> Result<Session> {
        let session = Session::new(command, options)?;
        session.ensure_shell_async().await?;
        Ok(session)
    }

    /// Creates a session whose shell has not started yet.
    #[doc(hidden)]
    pub fn new(mut command: Command<'static>, options: SessionOptions) -> Result<Session> {
        if command.has_streams() {
            return Err(Error::invalid("session()").saying("a session provides the streams of its shell"));
        }
        if command.is_sandboxed() {
            let message = "give the sandbox to the session's options: the session adds arguments to the shell's own";
            return Err(Error::invalid("session()").saying(message));
        }
        let name = command.get_program().to_owned();
        let is_bash = Path::new(&name).file_name().is_some_and(|name| name.as_bytes().starts_with(b"bash"));
        let given: Vec<OsString> = command.get_args().map(OsStr::to_owned).collect();
        let mut args: Vec<OsString> = Vec::new();
        if is_bash {
            // bash wants long options first.
            args.push("--noediting".into());
            args.extend((given.is_empty() && !options.login).then(|| "--norc".into()));
        }
        args.extend(given);
        args.extend(options.login.then(|| "-l".into()));
        args.extend(["-i", "-s"].map(OsString::from));
        args.extend(is_bash.then_some(["+o", "history", "+H"]).into_iter().flatten().map(OsString::from));
        command.replace_args(args);
        command.reset_signals(default_signals());
        let terminal = options.terminal.map(|size| SessionTerminal::open(size, options.echo)).transpose()?;
        terminal.as_ref().map(|terminal| terminal.attach(&mut command)).transpose()?;
        let sandbox = options.sandbox.as_ref();
        let holder = sandbox.map(|sandbox| HolderNumbers::start_in(&mut command, sandbox)).transpose()?;
        command.stdout(Stdio::Piped).stderr(Stdio::SameAsStdout);
        let saved = options.restart.then(|| Result::Ok([memory_file()?, memory_file()?])).transpose()?;
        let (shell, dialect, restored) = (None, None, None);
        let state = SessionState { command, name, holder, shell, dialect, serial: 0, terminal, saved, restored };
        let state = PerProcess::for_this_process(Some(state), || None);
        Ok(Session { options, state, starts: Limiter::new(1) })
    }

    /// Runs a command to its end.
    ///
    /// The shell runs `text` as it would run a line of a script: any number of commands, here-documents and newlines. Of
    /// the run's options, the tree and the limits belong to the [session](SessionOptions::run).
    ///
    /// # Errors
    /// EBUSY: another command of the session runs. ESRCH: the shell has exited. EINVAL: `text` has a NUL byte, or an option
    /// does not apply to a command. How the command ended is in the [`Output`].
    pub fn run(&self, text: &str, run: &Run) -> Result<Output> {
        self.ensure_shell()?;
        let permit = run.limiter.as_ref().map(|limiter| limiter.acquire()).transpose()?;
        self.start_script(text, run, |shell, script| shell.start_in_thread(script, run, permit))?.run()
    }

    /// The same as [`run`](Session::run), as a lazy future. Dropping the future ends the command.
    ///
    /// # Errors
    /// The same as those of [`run`](Session::run).
    pub async fn run_async(&self, text: &str, run: &Run) -> Result<Output> {
        self.ensure_shell_async().await?;
        let permit = match &run.limiter {
            Some(limiter) => Some(limiter.acquire_async().await),
            None => None,
        };
        let job = self.start_with(text, run, permit)?;
        job.close_stdin();
        let output = job.wait_async().await;
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// Starts a command and returns its handle, which can wait, read, write, and stop the command. The session runs no
    /// other command until this one is over.
    ///
    /// A wait for the handle returns the result. Until the result, [`interrupt`](Session::interrupt) interrupts the
    /// command. The handle still reads the output of the command's background jobs after the result.
    ///
    /// # Errors
    /// The same as those of [`run`](Session::run).
    ///
    /// # Examples
    /// ```
    /// use spawnfd::session::{Session, SessionOptions};
    /// use spawnfd::{Command, Run};
    /// use std::time::Duration;
    /// let session = Session::open(Command::new("bash"), SessionOptions::new())?;
    /// let job = session.start("read answer; echo got $answer", &Run::new().writable(4096).window(4096))?;
    /// assert!(job.wait_timeout(Duration::from_millis(50))?.is_none(), "it waits for input");
    /// job.write(b"yes\n")?;
    /// assert_eq!(job.wait()?.stdout, b"got yes\n");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn start(&self, text: &str, run: &Run) -> Result<Job> {
        self.ensure_shell()?;
        let permit = run.limiter.as_ref().map(|limiter| limiter.acquire()).transpose()?;
        self.start_with(text, run, permit)
    }

    /// Starts a command, like [`start`](Session::start), in the shell that runs already. The caller has the permit of the
    /// run's limiter.
    #[doc(hidden)]
    pub fn start_with(&self, text: &str, run: &Run, permit: Option<Permit>) -> Result<Job> {
        self.start_script(text, run, |shell, script| shell.start_command(script, run, permit))
    }

    /// The same as [`start_with`](Session::start_with), and delivers the command's output as events too.
    #[doc(hidden)]
    pub fn start_events(
        &self,
        text: &str,
        run: &Run,
        permit: Option<Permit>,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        self.start_script(text, run, |shell, script| shell.start_command_events(script, run, permit, options))
    }

    /// Checks the options of a command, and starts it with its control lines.
    fn start_script<T>(
        &self,
        text: &str,
        run: &Run,
        start: impl FnOnce(&Arc<Shell>, &Script<'_>) -> Result<T>,
    ) -> Result<T> {
        run.validate()?;
        let invalid = |option: &str, why: &str| Err(Error::invalid(option).saying(format!("{option}: {why}")));
        if text.contains('\0') {
            return invalid("text", "a command cannot contain a NUL byte");
        }
        if run.tree.is_some() || run.limits != Limits::new() || run.terminal.is_some() {
            return invalid(
                "tree, limits, terminal",
                "these options belong to the session, not to one of its commands",
            );
        }
        if run.input.is_some() && run.writable.is_some() {
            return invalid("input, writable", "input cannot be combined with writable");
        }
        if run.leftovers != Leftovers::default() {
            return invalid("leftovers", "background jobs of a command run on in the session");
        }
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return Err(not_ours()) };
        let Some(shell) = state.shell.as_ref().filter(|shell| !shell.has_ended()) else {
            return Err(self.exited(state));
        };
        if shell.is_busy() {
            let message = "the session runs another command: wait for its end, or stop it";
            return Err(Error::new(Stage::Capture, Errno::EBUSY, "session.run()").saying(message));
        }
        let Some(dialect) = &state.dialect else { return Err(self.exited(state)) };
        let last_code = shell.last().map_or(0, |last| last.code);
        let saved = state.saved.as_ref().map(|files| &files[state.serial as usize % 2]);
        let lines = |files: &_| dialect.command_lines(text, last_code, saved, files);
        let (merge, terminal) = (self.options.merge, state.terminal.as_ref());
        let mut files = dialect.files(saved);
        files.extend(terminal.map(|terminal| terminal.far_end().as_fd()));
        let script = Script { lines: &lines, files: &files, serial: state.serial, merge, terminal };
        let started = start(shell, &script)?;
        state.serial += 1;
        Ok(started)
    }

    /// Sends SIGINT to the running command, and to the shell so that it abandons the rest of the command. Without a
    /// running command, the call has no effect.
    pub fn interrupt(&self) {
        if let Some(shell) = self.shell() {
            shell.interrupt();
        }
    }

    /// Changes the size of the session's [terminal](SessionOptions::terminal); its foreground process group gets SIGWINCH.
    /// Without a terminal, the call has no effect.
    ///
    /// # Errors
    /// No errors are known.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        self.state.lock().as_ref().and_then(|state| state.terminal.as_ref()).map_or(Ok(()), |t| t.resize(size))
    }

    /// The processes of the session except its shell, as far as /proc shows them: the processes of the running command,
    /// and background jobs. The processes of a sandbox are not included. In a sandbox with its own pid namespace, the pids
    /// are those that this process sees.
    pub fn processes(&self) -> Vec<Survivor> {
        self.shell().map(|shell| shell.processes().into_iter().map(Survivor::of).collect()).unwrap_or_default()
    }

    /// The shell's process id, as this process sees it. `None`: the shell has exited.
    pub fn id(&self) -> Option<u32> {
        self.shell().filter(|shell| !shell.has_ended()).map(|shell| shell.id())
    }

    /// Ends the shell: it reads the end of its input, runs its EXIT trap and exits. The library kills the session's other
    /// processes, and the shell too if it has not exited after the session's [grace](Run::grace).
    ///
    /// # Errors
    /// The library could not watch the shell.
    pub fn close(self) -> Result<Option<Arc<Output>>> {
        let Some(shell) = self.begin_close() else { return Ok(None) };
        if shell.job().wait_timeout(self.options.run.grace)?.is_none() {
            shell.job().stop(Duration::ZERO);
        }
        shell.job().wait().map(Some)
    }

    /// Begins to end the shell, like [`close`](Session::close). Calls `ended` when the shell has ended, or at once without
    /// a shell. The caller may then [kill](Session::stop_shell) the shell.
    #[doc(hidden)]
    pub fn begin_close_with(&self, ended: impl Fn() + Send + Sync + 'static) {
        match self.begin_close() {
            Some(shell) => shell.job().when_done(ended),
            None => ended(),
        }
    }

    /// Ends the shell and the session's processes: SIGTERM, and SIGKILL after `grace`.
    #[doc(hidden)]
    pub fn stop_shell(&self, grace: Duration) {
        if let Some(shell) = self.shell() {
            shell.job().stop(grace);
        }
    }

    /// Whether the session has no shell.
    #[doc(hidden)]
    pub fn has_ended(&self) -> bool {
        self.shell().is_none_or(|shell| !matches!(shell.job().try_wait(), Ok(None)))
    }

    fn begin_close(&self) -> Option<Arc<Shell>> {
        let shell = self.shell()?;
        shell.interrupt();
        shell.close_input();
        Some(shell)
    }

    fn shell(&self) -> Option<Arc<Shell>> {
        self.state.lock().as_ref().and_then(|state| state.shell.clone())
    }

    fn exited(&self, state: &SessionState) -> Error {
        let how = match state.shell.as_ref().and_then(|shell| shell.status()) {
            Some(status) => format!(" ({status})"),
            None => String::new(),
        };
        let message = format!("the session's shell has exited{how}: open a new session, or use the option restart");
        Error::new(Stage::Capture, Errno::ESRCH, "session.run()").saying(message)
    }

    fn ensure_shell(&self) -> Result<()> {
        if !self.check_shell()? {
            return Ok(());
        }
        let _turn = self.starts.acquire()?;
        let permit = self.shell_limiter().map(Limiter::acquire).transpose()?;
        let Some(job) = self.begin_shell(permit)? else { return Ok(()) };
        let output = job.wait();
        self.finish_shell(output)
    }

    async fn ensure_shell_async(&self) -> Result<()> {
        if !self.check_shell()? {
            return Ok(());
        }
        let _turn = self.starts.acquire_async().await;
        let permit = match self.shell_limiter() {
            Some(limiter) => Some(limiter.acquire_async().await),
            None => None,
        };
        let Some(job) = self.begin_shell(permit)? else { return Ok(()) };
        let output = job.wait_async().await;
        self.finish_shell(output)
    }

    /// Whether [`begin_shell`](Session::begin_shell) would start a shell.
    #[doc(hidden)]
    pub fn needs_shell(&self) -> bool {
        self.check_shell().unwrap_or(false)
    }

    /// Whether the next command starts a shell. Fails if the session can run no command.
    fn check_shell(&self) -> Result<bool> {
        let state = self.state.lock();
        let Some(state) = state.as_ref() else { return Err(not_ours()) };
        match &state.shell {
            Some(shell) if !shell.has_ended() => Ok(false),
            Some(_) if !self.options.restart => Err(self.exited(state)),
            _ => Ok(true),
        }
    }

    /// The limiter that counts the shells, if the next command starts one.
    fn shell_limiter(&self) -> Option<&Limiter> {
        self.options.run.limiter.as_ref().filter(|_| self.needs_shell())
    }

    /// Starts a shell if the session has none, or if the shell has exited and the session restarts it. The caller has the
    /// permit of the shell's limiter, waits for the returned job, and passes its result to
    /// [`finish_shell`](Session::finish_shell).
    #[doc(hidden)]
    pub fn begin_shell(&self, permit: Option<Permit>) -> Result<Option<Job>> {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return Err(not_ours()) };
        match &state.shell {
            Some(shell) if !shell.has_ended() => return Ok(None),
            Some(_) if !self.options.restart => return Err(self.exited(state)),
            Some(shell) => {
                if let Some(last) = shell.last().filter(|last| last.serial > 0) {
                    state.restored = Some((last.cwd, last.serial as usize % 2));
                }
            }
            None => {}
        }
        if let Some(permit) = permit {
            state.command.permit(permit);
        }
        let shell = Shell::start(&mut state.command, &state.name, state.holder, &self.options.run);
        // A failure before the start of the program has not used the permit.
        state.command.permit = None;
        let shell = Arc::new(shell?);
        let restored = state.restored.as_ref().zip(state.saved.as_ref());
        let restored = restored.map(|((cwd, index), files)| (cwd.as_path(), &files[*index]));
        let lines = |files: &_| Ok(script::first_lines(restored, files));
        let files: Vec<BorrowedFd<'_>> = restored.iter().map(|(_, file)| file.as_fd()).collect();
        let script = Script { lines: &lines, files: &files, serial: 0, merge: false, terminal: None };
        let run = Run::new().timeout(self.options.startup_timeout).grace(Duration::ZERO);
        let job = shell.start_command(&script, &run, None)?;
        // The next command writes the file that the restored state is not in.
        state.serial = state.restored.as_ref().map_or(1, |(_, index)| 2 + (*index as u64 + 1) % 2);
        state.shell = Some(shell);
        Ok(Some(job))
    }

    /// Completes the start of a shell.
    #[doc(hidden)]
    pub fn finish_shell(&self, first: Result<Arc<Output>>) -> Result<()> {
        let first = first?;
        let Some(shell) = self.shell() else { return Err(not_ours()) };
        // After a timeout, SIGINT may have ended a startup file early.
        if let (Stop::Exited, Some(version)) = (first.stop, &first.cwd) {
            let dialect = Dialect::of_version(version)?;
            if let Some(state) = self.state.lock().as_mut() {
                state.dialect = Some(dialect);
            }
            return Ok(());
        }
        shell.job().stop(Duration::ZERO);
        let output = shell.job().wait()?;
        let printed = output.stdout_text();
        let printed = printed.trim();
        let how = match (first.stop, shell.status()) {
            (Stop::Exited, Some(status)) => format!("the shell exited while it started ({status})"),
            _ => format!("the shell did not start within {:?}", self.options.startup_timeout),
        };
        let mut message = if printed.is_empty() { how } else { format!("{how}: {printed}") };
        if !shell.has_started() {
            message += "; the sandbox must have /proc, pass descriptors on, and permit execution of /proc/self/fd/N";
        } else if matches!(shell.status().and_then(|status| status.code()), Some(1 | 2))
            && self.options.sandbox.is_none()
        {
            // A shell that cannot open the status pipe exits with 1 (bash) or 2 (dash).
            message += "; without a sandbox, the shell must be able to open /proc/PID/fd of this process (same user, \
                        namespaces and Landlock domain)";
        }
        Err(Error::new(Stage::Capture, Errno::ESRCH, "session()").saying(message))
    }
}

/// The signals that end a command, and those that language runtimes ignore. If the shell ignored SIGINT, all its programs
/// would, and an interrupt would not reach them.
fn default_signals() -> SignalSet {
    [signal::INT, signal::QUIT, signal::TERM, signal::PIPE, signal::XFSZ]
        .into_iter()
        .filter_map(SignalSet::of)
        .fold(SignalSet::EMPTY, |all, signal| all | signal)
}

fn not_ours() -> Error {
    let message = "a forked process cannot use this session: the shell is a child of the original process";
    Error::new(Stage::Capture, Errno::ECHILD, "session.run(), in a forked process").saying(message)
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(shell) = self.begin_close() {
            shell.job().stop(self.options.run.grace);
        }
    }
}
