// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a session.

use std::time::Duration;

use crate::error::Result;
use crate::job::limits::Limits;
use crate::job::{Run, TerminalSize};
use crate::limiter::Limiter;
use crate::option::{Kind, Value, check_set, word};
use crate::sandbox::Sandbox;
use crate::tree::TreeControl;

options! {
    /// The options of a [`Session`](crate::Session).
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
    pub struct SessionOptions "";

    /// Whether the shell is a login shell, which reads `/etc/profile` and the user's profile.
    login: bool = false; Kind::Flag, Session, [Session];
    /// Whether the next command starts a new shell after the shell has exited. The new shell gets the working directory,
    /// the exported variables and the umask of the last completed command. By default the next command fails with ESRCH.
    restart: bool = false; Kind::Flag, Session, [Session];
    /// Whether each command writes standard error to its standard output. By default the streams are separate.
    merge: bool = false; Kind::Flag, Session, [];
    /// Whether a command waits for the end of the commands that were started before it. Commands then run in the order
    /// of their calls. The waiting time does not count for the command's [`timeout`](Run::timeout). A thread or task must
    /// not start a command while it has the job of a running one, because it would wait for itself. By default the
    /// second command fails with EBUSY.
    @
    ///
    /// # Examples
    #[cfg_attr(feature = "tree", doc = "```")]
    #[cfg_attr(not(feature = "tree"), doc = "```no_run")]
    /// use spawnfd::session::{Session, SessionOptions};
    /// use spawnfd::{Command, Run};
    /// let session = Session::open(Command::new("bash"), SessionOptions::new().queue(true))?;
    /// let run = |text| session.run(text, &Run::new());
    /// std::thread::scope(|scope| {
    ///     let others = [(); 3].map(|()| scope.spawn(|| run("sleep 0.01")));
    ///     assert!(others.into_iter().all(|other| other.join().unwrap().unwrap().ok()));
    /// });
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    queue: bool = false; Kind::Flag, Session, [Session];
    /// Gives the session a terminal of this size, which all commands share. It is the standard output and error of each
    /// command, the standard input of a command that has input, and the controlling terminal of the shell (`/dev/tty`).
    /// The output is all standard output, as the terminal transmits it (`\n` becomes `\r\n`). By default there is no
    /// terminal.
    @
    ///
    /// The output of a background job to the terminal belongs to the command that runs at that time. Before each
    /// command, the library restores the terminal: its settings, size and foreground process group, stopped output, and
    /// exclusive mode. It also discards input that is left. The foreground group needs the feature `tree`.
    terminal: Option<TerminalSize> = None, (size: impl Into<Option<TerminalSize>>) => size.into();
        Kind::TerminalSize, Session, [Session];
    /// Whether the terminal writes input back to the output.
    echo: bool = false; Kind::Flag, Session, [Session];
    /// The time that the shell has for its startup files.
    startup_timeout: Option<Duration> = Some(Duration::from_secs(30)),
        (time: impl Into<Option<Duration>>) => time.into();
        Kind::Duration, Session, [Session];
    /// A sandbox that the shell runs in: a command that confines it, such as `bwrap … --unshare-pid --proc /proc`. It must
    /// have `/proc`, and must pass inherited descriptors on.
    @
    ///
    /// The shell may be in namespaces and in a Landlock domain of its own, and may run as another user. The command
    /// starts a helper of the library, and the helper starts the shell. The shell's program is searched in the sandbox.
    /// A directory that the command sets is the shell's first directory, and [`Output::cwd`](crate::Output::cwd) is a
    /// path in the sandbox.
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
    sandbox: Option<Sandbox> = None, (sandbox: &Sandbox) => Some(sandbox.clone()); Kind::Object, Session, [Session];
    /// The time that the shell has to exit when the session is closed. Each command has a grace period of its own.
    grace: Duration = Duration::from_secs(2); Kind::Duration, Session, [Session];
    /// How the library controls the process tree of the shell. By default the tier is `auto`, so daemons end with the
    /// session where the machine allows it.
    tree: Option<TreeControl> = None, (tree: impl Into<Option<TreeControl>>) => tree.into();
        Kind::Word(TreeControl::WORDS), Session, [Session];
    /// Limits of the resources of the shell and its process tree: all commands together. The result of a command names
    /// the limits, and the one that ended the command or the shell.
    limits: Limits = Limits::new(); Kind::Object, Session, [Session];
    /// Limits how many shells run at once: the session waits for a permit before it starts a shell, which keeps the
    /// permit until it ends. The commands need another limiter.
    limiter: Option<Limiter> = None, (limiter: &Limiter) => Some(limiter.clone()); Kind::Object, Session, [Session];
}

impl SessionOptions {
    /// Returns the default options: no login shell, no restart, no queue, no terminal, 30 s for the start, no sandbox,
    /// 2 s of grace, no limits.
    pub fn new() -> SessionOptions {
        SessionOptions::default()
    }

    /// Sets the option of this name; [`options`](crate::options) lists the options. `stderr` is `separate` or `merge`.
    ///
    /// # Errors
    /// EINVAL: there is no such option of a session, or it does not accept the value.
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        let known = self.try_set(name, &value);
        check_set(name, &value, known)
    }

    /// Sets the option of this name. Returns false if there is none. The error is the reason why the value is wrong.
    pub(crate) fn try_set(&mut self, name: &str, value: &Value) -> std::result::Result<bool, String> {
        match name.split_once('.') {
            Some(("limits", field)) => self.limits.set_valid(field, value),
            _ if name == "stderr" => {
                let words = [("separate", false), ("merge", true)];
                self.merge = !value.is_none() && word(value, words.into_iter())?;
                Ok(true)
            }
            _ => self.set_field(name, value),
        }
    }

    /// Returns the value of the option of this name. It is [`Value::None`] if the option is not set or has no value, or
    /// if there is no such option.
    pub fn get(&self, name: &str) -> Value {
        match name.split_once('.') {
            Some(("limits", field)) => self.limits.field(field),
            _ => self.field(name),
        }
    }

    /// The options of the run that is the shell.
    pub(super) fn shell(&self) -> Run {
        let run = Run::new().grace(self.grace).tree(self.tree).limits(self.limits);
        match &self.limiter {
            Some(limiter) => run.limiter(limiter),
            None => run,
        }
    }
}

objects!(Sandbox);
