// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shell that keeps its state from command to command.
//!
//! [`Session::open`] starts the shell, and [`Session::run`] runs one command in it.

pub(crate) mod options;
mod saved;
mod shell;
pub(crate) mod side;
mod text;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub use options::SessionOptions;
pub use text::CommandText;

use crate::command::{Command, Stdio};
use crate::env::Env;
use crate::error::{Errno, Error, Result, Stage, from_io};
use crate::host::per_process::PerProcess;
use crate::job::futures::permit_until;
use crate::job::limits::Limits;
use crate::job::{EventOptions, Events, Job, Leftovers, Output, Run, Stop, TerminalSize, Until, connect_events};
use crate::limiter::{Limiter, Permit};
use crate::signal::{self, SignalSet};
use crate::tree::Survivor;
use saved::Continued;
use shell::{BrokerNumbers, Completed, Script, ScriptText, SessionTerminal, Shell, Text};

/// A shell that stays open and runs one command after the other: bash or dash.
///
/// The shell itself runs the text of a command. So the working directory, variables, functions, aliases, options, the
/// umask and traps stay as the command leaves them, and the next command finds the last status in `$?`. The shell
/// behaves like an interactive shell without a terminal: aliases work, a syntax error does not end it, it has
/// no history and no job control. With `set -e`, a command whose last status is not 0 ends the shell.
///
/// - Each command has its own streams. The output of a background job goes to the command that has started the job, and
///   never appears in a later command's output. Standard input is `/dev/null` unless the [`Run`] has input.
/// - The library reads the status from a pipe of its own, which no command inherits.
/// - A command that has to end (a timeout, [`Job::stop`], a dropped [`Job`]) gets SIGINT, SIGTERM after half of its
///   [grace](Run::grace), and SIGKILL after all of it. The shell gets SIGINT too, and abandons the rest of the command. If
///   the shell does not return within 1 s after that SIGKILL, the library kills the shell.
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
    /// Has one permit: the commands of a session with a queue run one after the other.
    turns: Limiter,
}

struct SessionState {
    command: Command<'static>,
    /// The name of the shell's program.
    name: OsString,
    /// `None`: the session has no sandbox.
    broker: Option<BrokerNumbers>,
    shell: Option<Arc<Shell>>,
    /// Earlier shells of which background jobs may run.
    earlier: Vec<Arc<Shell>>,
    terminal: Option<SessionTerminal>,
    /// The state of the last completed command of earlier shells.
    restored: Option<Completed>,
    /// The environment of the first shell.
    first: Env,
    /// Names of the variables that a shell gets only with its first command, and their values for the first shell.
    late: Vec<&'static str>,
    exported: Vec<(String, Vec<u8>)>,
    /// Whether the session has been closed: no other shell starts.
    is_closed: bool,
}

impl SessionState {
    /// Whether the next command starts a shell. Fails if the session can run no command.
    fn lacks_shell(&self, restarts: bool) -> Result<bool> {
        match &self.shell {
            Some(shell) if !shell.has_ended() => Ok(false),
            Some(_) if !restarts => Err(self.exited()),
            _ => Ok(true),
        }
    }

    /// The error of a session whose shell has exited.
    fn exited(&self) -> Error {
        let how = match self.shell.as_ref().and_then(|shell| shell.status()) {
            Some(status) => format!(" ({status})"),
            None => String::new(),
        };
        let message = format!("the session's shell has exited{how}: open a new session, or use the option restart");
        Error::new(Stage::Capture, Errno::ESRCH, "session.run()").saying(message)
    }

    /// Notes that the shell has ended, if it has. Returns the state that the next shell gets.
    fn note_end(&mut self) -> Option<&mut Completed> {
        self.earlier.retain(|shell| !shell.session_processes().is_empty());
        if let Some(shell) = self.shell.take_if(|shell| shell.has_ended()) {
            self.restored = shell.last().or(self.restored.take());
            self.earlier.push(shell);
        }
        self.restored.as_mut()
    }
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
        if options.echo && options.terminal.is_none() {
            let message = "echo: only a session with a terminal can echo its input";
            return Err(Error::invalid("session()").saying(message));
        }
        // A later shell may start after this process has changed its own directory.
        if let Some(directory) = command.get_current_dir().and_then(|directory| std::path::absolute(directory).ok()) {
            command.current_dir(directory);
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
        args.extend(given.iter().cloned());
        args.extend(options.login.then(|| "-l".into()));
        args.extend(["-i", "-s"].map(OsString::from));
        args.extend(is_bash.then_some(["+o", "history", "+H"]).into_iter().flatten().map(OsString::from));
        command.replace_args(args);
        command.reset_signals(default_signals());
        let terminal = options.terminal.map(|size| SessionTerminal::open(size, options.echo)).transpose()?;
        terminal.as_ref().map(|terminal| terminal.attach(&mut command)).transpose()?;
        let sandbox = options.sandbox.as_ref();
        let broker = sandbox.map(|sandbox| BrokerNumbers::start_in(&mut command, sandbox)).transpose()?;
        command.stdout(Stdio::Piped).stderr(Stdio::SameAsStdout);
        let env = command.get_env().cloned().unwrap_or_else(Env::inherit);
        // With the first variable, an interactive bash reads the file that ENV names.
        let reads_no_file = is_bash && given.is_empty() && !options.login;
        let late: Vec<&str> = [POSIX_VARIABLE].into_iter().filter(|_| reads_no_file).chain(PROMPT_VARIABLES).collect();
        let held_back = late.iter().filter_map(|name| Some((name.to_string(), env.get(name)?.as_bytes().to_vec())));
        let exported = held_back.collect();
        let first = late.iter().fold(env, Env::unset);
        command.environment(&first);
        let state = SessionState {
            command,
            name,
            broker,
            shell: None,
            earlier: Vec::new(),
            terminal,
            restored: None,
            first,
            late,
            exported,
            is_closed: false,
        };
        let state = PerProcess::for_this_process(Some(state), || None);
        Ok(Session { options, state, starts: Limiter::new(1), turns: Limiter::new(1) })
    }

    /// Runs a command to its end.
    ///
    /// The shell runs `text` as it would run a line of a script: any number of commands, here-documents and newlines. Of
    /// the run's options, the tree and the limits belong to the [session](SessionOptions).
    ///
    /// # Errors
    /// EBUSY: another command of the session runs, and the session has no [queue](SessionOptions::queue). ESRCH: the shell has exited. EINVAL: `text` has a NUL byte, or an option
    /// does not apply to a command. How the command ended is in the [`Output`].
    pub fn run(&self, text: impl Into<CommandText>, run: &Run) -> Result<Output> {
        let text = text.into();
        let permits = self.permits(&text, run)?;
        self.start_script(&text, run, |shell, script| shell.start_in_thread(script, run, permits))?()
    }

    /// The same as [`run`](Session::run), as a lazy future. Dropping the future ends the command.
    ///
    /// # Errors
    /// The same as those of [`run`](Session::run).
    pub async fn run_async(&self, text: impl Into<CommandText>, run: &Run) -> Result<Output> {
        let text = text.into();
        let mut permits = Vec::from_iter(run.take_permit());
        let limiter = run.limiter.as_ref().filter(|_| permits.is_empty());
        if self.options.queue {
            permits.push(self.turns.acquire_async().await);
        }
        self.start_in_directory_of(&text);
        self.ensure_shell_async().await?;
        if let Some(limiter) = limiter {
            permits.push(limiter.acquire_async().await);
        }
        let job = self.start_script(&text, run, |shell, script| shell.start_command(script, run, permits))?;
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
    pub fn start(&self, text: impl Into<CommandText>, run: &Run) -> Result<Job> {
        let text = text.into();
        let permits = self.permits(&text, run)?;
        self.start_script(&text, run, |shell, script| shell.start_command(script, run, permits))
    }

    /// The same as [`start`](Session::start), and delivers the command's output as events too. The events end with the
    /// command's result, unless [`EventOptions::until`] says otherwise.
    ///
    /// # Errors
    /// The same as those of [`run`](Session::run).
    pub fn start_events(
        &self,
        text: impl Into<CommandText>,
        run: &Run,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        let text = text.into();
        let permits = self.permits(&text, run)?;
        self.start_events_with(&text, run, permits, options)
    }

    /// The same as [`start_events`](Session::start_events), in the shell that runs already. Only the run's limiter is
    /// waited for.
    ///
    /// # Errors
    /// ECANCELED: `stop` was ready before the command had started.
    #[doc(hidden)]
    pub async fn start_until(
        &self,
        text: &CommandText,
        run: &Run,
        options: EventOptions,
        stop: impl Future<Output = ()>,
    ) -> Result<(Job, Events)> {
        let permit = run.take_permit();
        let limiter = run.limiter.as_ref().filter(|_| permit.is_none());
        let waited = permit_until(limiter, &mut Some(pin!(stop))).await?;
        self.start_events_with(text, run, waited.or(permit).into_iter().collect(), options)
    }

    /// The same as [`start_events`](Session::start_events), in the shell that runs already. The caller has the permits of
    /// the session's [queue](Session::turns) and of the run's limiter.
    #[doc(hidden)]
    pub fn start_events_with(
        &self,
        text: &CommandText,
        run: &Run,
        permits: Vec<Permit>,
        mut options: EventOptions,
    ) -> Result<(Job, Events)> {
        options.until = options.until.or(Some(Until::Result));
        self.start_script(text, run, |shell, script| shell.start_with(script, run, permits, connect_events(options)))
    }

    /// The limiter of the session's queue. A command has its permit until the command is over.
    #[doc(hidden)]
    pub fn turns(&self) -> &Limiter {
        &self.turns
    }

    /// Whether a command of the session runs.
    #[doc(hidden)]
    pub fn is_busy(&self) -> bool {
        self.shell().is_some_and(|shell| shell.is_busy())
    }

    /// Starts the shell if necessary, and waits for the permits of a command.
    fn permits(&self, text: &CommandText, run: &Run) -> Result<Vec<Permit>> {
        let mut permits = Vec::from_iter(run.take_permit());
        let limiter = run.limiter.as_ref().filter(|_| permits.is_empty());
        if self.options.queue {
            permits.push(self.turns.acquire()?);
        }
        self.start_in_directory_of(text);
        self.ensure_shell()?;
        permits.extend(limiter.map(Limiter::acquire).transpose()?);
        Ok(permits)
    }

    /// Checks the options of a command, and starts it with its control lines.
    fn start_script<T>(
        &self,
        text: &CommandText,
        run: &Run,
        start: impl FnOnce(&Arc<Shell>, &Script<'_>) -> Result<T>,
    ) -> Result<T> {
        run.validate()?;
        let invalid = |option: &str, why: &str| Err(Error::invalid(option).saying(format!("{option}: {why}")));
        text.validate()?;
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
        // A shell that has ended since the check loses the command. The next command restarts the shell.
        let Some(shell) = state.shell.as_ref().filter(|shell| self.options.restart || !shell.has_ended()) else {
            return Err(state.exited());
        };
        if shell.is_busy() {
            let message = "the session runs another command: wait for its end, or stop it";
            return Err(Error::new(Stage::Capture, Errno::EBUSY, "session.run()").saying(message));
        }
        let last = || shell.last().or_else(|| state.restored.clone()).map(|last| last.cwd);
        // The shell returns to this directory.
        let directory = text.cwd.as_ref().and_then(|_| last().or_else(|| shell.current_directory()));
        let (merge, terminal) = (self.options.merge, state.terminal.as_ref());
        let text = Text { text: &text.text, cwd: text.cwd.as_deref(), env: &text.env, directory: directory.as_deref() };
        start(shell, &Script { text: ScriptText::Run(text), merge, terminal })
    }

    /// If the next command starts a shell, lets the shell start in the directory that this command names. So a session
    /// whose last directory no longer exists stays usable.
    #[doc(hidden)]
    pub fn start_in_directory_of(&self, text: &CommandText) {
        // The shell enters a relative directory again before it runs the text.
        if let (Some(directory), true) = (text.cwd.as_ref().filter(|cwd| cwd.is_absolute()), self.needs_shell())
            && let Some(restored) = self.state.lock().as_mut().and_then(|state| state.note_end())
        {
            restored.cwd.clone_from(directory);
        }
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
        self.state.lock().as_ref().and_then(|state| state.terminal.as_ref()).map_or(Ok(()), |t| t.pty.resize(size))
    }

    /// The processes of the session except its shell, as far as /proc shows them: the processes of the running command,
    /// and background jobs. The processes of a sandbox are not included. In a sandbox with its own pid namespace, the pids
    /// are those that this process sees.
    pub fn processes(&self) -> Vec<Survivor> {
        let state = self.state.lock();
        let Some(state) = state.as_ref() else { return Vec::new() };
        let shells = state.earlier.iter().chain(&state.shell);
        shells.flat_map(|shell| shell.session_processes()).map(Survivor::of).collect()
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
        if shell.job.wait_timeout(self.options.grace)?.is_none() {
            shell.job.stop(Duration::ZERO);
        }
        shell.job.wait().map(Some)
    }

    /// Begins to end the shell, like [`close`](Session::close). Calls `ended` when the shell has ended, or at once without
    /// a shell. The caller may then [kill](Session::stop_shell) the shell.
    #[doc(hidden)]
    pub fn begin_close_with(&self, ended: impl Fn() + Send + Sync + 'static) {
        match self.begin_close() {
            Some(shell) => shell.job.when_done(ended),
            None => ended(),
        }
    }

    /// Ends the shell and the session's processes: SIGTERM, and SIGKILL after `grace`.
    #[doc(hidden)]
    pub fn stop_shell(&self, grace: Duration) {
        if let Some(shell) = self.shell() {
            shell.job.stop(grace);
        }
    }

    /// Whether the session has no shell.
    #[doc(hidden)]
    pub fn has_ended(&self) -> bool {
        self.shell().is_none_or(|shell| !matches!(shell.job.try_wait(), Ok(None)))
    }

    fn begin_close(&self) -> Option<Arc<Shell>> {
        let (shell, earlier) = {
            let mut state = self.state.lock();
            let state = state.as_mut()?;
            state.is_closed = true;
            (state.shell.clone(), std::mem::take(&mut state.earlier))
        };
        earlier.iter().for_each(|shell| shell.job.stop(Duration::ZERO));
        let shell = shell?;
        if self.options.restart {
            // The job adopts the background processes that outlive the shell.
            let ended = shell.clone();
            shell.job.when_done(move || ended.job.stop(Duration::ZERO));
        }
        shell.interrupt();
        shell.close_input();
        Some(shell)
    }

    fn shell(&self) -> Option<Arc<Shell>> {
        self.state.lock().as_ref().and_then(|state| state.shell.clone())
    }

    /// The error of a shell that could not go to the directory of the last one.
    fn no_directory(&self) -> Error {
        let state = self.state.lock();
        let directory = state.as_ref().and_then(|state| state.restored.as_ref()).map(|restored| restored.cwd.clone());
        let directory = directory.unwrap_or_default();
        let errno = std::fs::read_dir(&directory).err().map_or(Errno::ENOENT, |e| from_io(&e));
        let message = format!(
            "the session's shell has exited, and a new one cannot return to its directory {}: name another directory for \
             the next command",
            directory.display()
        );
        Error::new(Stage::Capture, errno, "session(), cd").saying(message)
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

    /// Starts a shell if the session needs one, and waits until it has read its startup files. If the future is dropped
    /// before its end, the session has to be dropped, too.
    #[doc(hidden)]
    pub async fn ensure_shell_async(&self) -> Result<()> {
        if !self.check_shell()? {
            return Ok(());
        }
        let _turn = self.starts.acquire_async().await;
        let permit = match self.shell_limiter() {
            Some(limiter) => Some(limiter.acquire_async().await),
            None => None,
        };
        let Some(job) = self.begin_shell(permit)? else { return Ok(()) };
        let first = job.wait_async().await?;
        match self.complete_start(&first)? {
            None => Ok(()),
            Some(shell) => Err(self.failed_start(&first, &shell, &*shell.job.wait_async().await?)),
        }
    }

    /// Whether [`begin_shell`](Session::begin_shell) would start a shell.
    #[doc(hidden)]
    pub fn needs_shell(&self) -> bool {
        self.check_shell().unwrap_or(false)
    }

    /// Whether the next command starts a shell. Fails if the session can run no command.
    fn check_shell(&self) -> Result<bool> {
        let state = self.state.lock();
        state.as_ref().ok_or_else(not_ours)?.lacks_shell(self.options.restart)
    }

    /// The limiter that counts the shells, if the next command starts one.
    fn shell_limiter(&self) -> Option<&Limiter> {
        self.options.limiter.as_ref().filter(|_| self.needs_shell())
    }

    /// Starts a shell if the session has none, or if the shell has exited and the session restarts it. The caller has the
    /// permit of the shell's limiter, waits for the returned job, and passes its result to
    /// [`finish_shell`](Session::finish_shell).
    #[doc(hidden)]
    pub fn begin_shell(&self, permit: Option<Permit>) -> Result<Option<Job>> {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return Err(not_ours()) };
        if state.is_closed {
            return Err(Error::new(Stage::Capture, Errno::ESRCH, "session()").saying("the session is closed"));
        }
        if !state.lacks_shell(self.options.restart)? {
            return Ok(None);
        }
        state.note_end();
        if state.restored.is_some() && state.broker.is_none() {
            // The shell goes to the last directory. The first one may no longer exist.
            state.command.current_dir("/");
        }
        let saved = state.restored.as_ref().and_then(|restored| restored.variables.as_deref());
        let continued = saved.map(|saved| Continued::new(&state.first, saved, &state.late));
        let restored = state.restored.clone().map(|last| Completed {
            variables: continued.as_ref().map(|continued| continued.commands.clone()),
            ..last
        });
        let exported = continued.as_ref().map_or(&state.exported, |continued| &continued.exported);
        state.command.environment(continued.as_ref().map_or(&state.first, |continued| &continued.env));
        let run = match self.options.restart {
            // The background jobs of a shell outlive it. The next shell of the session goes on.
            true => self.options.shell().leftovers(Leftovers::Adopt),
            false => self.options.shell(),
        }
        .permit(permit);
        let shell = Shell::start(
            &mut state.command,
            &state.name,
            state.broker,
            &run,
            restored.as_ref(),
            exported,
            self.options.restart,
        );
        let (shell, number) = shell?;
        let script = Script { text: ScriptText::Start(number), merge: false, terminal: None };
        let run = Run::new().timeout(self.options.startup_timeout).grace(Duration::ZERO);
        let job = shell.start_command(&script, &run, Vec::new())?;
        state.shell = Some(shell);
        Ok(Some(job))
    }

    /// Completes the start of a shell.
    #[doc(hidden)]
    pub fn finish_shell(&self, first: Result<Arc<Output>>) -> Result<()> {
        let first = first?;
        match self.complete_start(&first)? {
            None => Ok(()),
            Some(shell) => Err(self.failed_start(&first, &shell, &*shell.job.wait()?)),
        }
    }

    /// Completes the start of a shell. Returns the shell if it has failed to start, and ends.
    fn complete_start(&self, first: &Output) -> Result<Option<Arc<Shell>>> {
        let Some(shell) = self.shell() else { return Err(not_ours()) };
        // After a timeout, SIGINT may have ended a startup file early.
        if let (Stop::Exited, Some(version), Some(0)) = (first.stop, &first.cwd, first.code()) {
            return shell.complete_start(version).map(|()| None);
        }
        shell.job.stop(Duration::ZERO);
        Ok(Some(shell))
    }

    /// The error of a shell that has failed to start. `output` is that of the shell.
    fn failed_start(&self, first: &Output, shell: &Shell, output: &Output) -> Error {
        if first.stop == Stop::Exited && first.cwd.is_some() {
            // The next command tries again.
            self.state.lock().as_mut().map(|state| state.shell.take());
            return self.no_directory();
        }
        let printed = output.stdout_text();
        let printed = printed.trim();
        let how = match (first.stop, shell.status()) {
            (Stop::Lost, Some(status)) => format!("the shell exited while it started ({status})"),
            _ => format!("the shell did not start within {:?}", self.options.startup_timeout.unwrap_or_default()),
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
        Error::new(Stage::Capture, Errno::ESRCH, "session()").saying(message)
    }
}

/// The variable that makes bash start in its POSIX mode.
const POSIX_VARIABLE: &str = "POSIXLY_CORRECT";

/// The variables of which a shell runs the value when it shows a prompt. They could read the shell's first line.
const PROMPT_VARIABLES: [&str; 3] = ["PROMPT_COMMAND", "PS0", "PS1"];

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
            shell.job.stop(self.options.grace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_that_has_ended_since_the_check_loses_the_command() {
        let session = Session::open(Command::new("sh"), SessionOptions::new().restart(true)).expect("a session");
        let _ = session.run("exit 3", &Run::new()).expect("a result");
        // Without the check, which would restart the shell.
        let start = |shell: &Arc<Shell>, script: &Script<'_>| shell.start_in_thread(script, &Run::new(), Vec::new());
        let command = session.start_script(&"echo no".into(), &Run::new(), start).expect("started");
        let output = command().expect("a result");
        assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Lost, None, true), "{output:?}");
        assert_eq!(session.run("echo next", &Run::new()).expect("a result").stdout, b"next\n");
    }
}
