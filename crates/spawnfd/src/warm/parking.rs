// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a process that parks. While the process is not parked yet, the keeper does other work.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno as IoErrno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use spawnfd_guard::process::is_proc_foreign;
use spawnfd_parked::protocol::{self, ParkField, Zygote};
use spawnfd_sys::{Errno, abi, call, fork_generation};

use super::caller::CallerState;
use super::channel::{CallError, Channel};
use super::entry_point::{EntryPoint, ModuleNames};
use super::parked::{MADE_DEFAULT, NotParked, ParkedOrigin, ParkedProcess};
use super::recipe::Recipe;
use super::sandbox_command::{Referent, SandboxCommand};
use super::watch::ExecTime;
use super::{Kind, image, wire};
use crate::cold_reason::ColdReason;
use crate::command::Stdio;
use crate::error::{Error, errno};
use crate::host::authority::{Authority, Reach};
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::memfd;
use crate::launch;
use crate::sandbox::SandboxDescriptor;
use crate::signals::SignalSet;
use crate::tree::Tree;

/// The longest time that a program may take to park.
const PARK_TIMEOUT: Duration = Duration::from_secs(20);

/// The entry for which the keeper parks a process, and the entry's version.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkTarget {
    pub(super) entry: u64,
    pub(super) version: u64,
}

/// The sandbox command that starts a probe instead of the program.
#[derive(Debug)]
struct ProbedSandbox {
    /// The read end of the sandbox command's standard error.
    errors: CheckedFd,
    /// True if the probe's end of the channel is closed. Then only the sandbox command can report a reason.
    probe_ended: bool,
    output: Vec<u8>,
}

/// A probe: a small program that the sandbox command starts in place of the recipe's program.
#[derive(Debug)]
struct SandboxProbe {
    program: OwnedFd,
    /// The standard error of the sandbox command.
    errors: OwnedFd,
}

/// The path prefix of probes. No other file has a path of this form.
const PROBE_PREFIX: &str = "/proc/self/fd/./";

/// The path prefix of the shared object that parks the program. No other file has a path of this form either. This
/// matters because ld.so does not load the same path twice, even if it leads to another file.
const OBJECT_PREFIX: &str = "/proc/self/./fd/";

/// A process that the keeper has started and that is not parked yet.
#[derive(Debug)]
pub(super) struct ParkingProcess {
    pub(super) target: ParkTarget,
    recipe: Arc<Recipe>,
    object: Arc<CheckedFd>,
    /// The reach (credentials and scheduling) of the thread that started the keeper.
    starter: Arc<Reach>,
    /// Set while `parked` is a probe, which checks that the sandbox command passes the object and the channel on.
    probed: Option<ProbedSandbox>,
    began: Instant,
    deadline: Instant,
    /// `None` once the process is parked.
    parked: Option<ParkedProcess>,
}

impl ParkingProcess {
    /// Starts a program that parks. `starter` is the reach of the thread that started the calling thread.
    ///
    /// # Errors
    /// The reason why the program was not started.
    pub(super) fn begin(
        target: ParkTarget,
        recipe: Arc<Recipe>,
        object: Arc<CheckedFd>,
        starter: Arc<Reach>,
    ) -> Result<ParkingProcess, NotParked> {
        let began = Instant::now();
        let mut process =
            ParkingProcess { target, recipe, object, starter, probed: None, began, deadline: began, parked: None };
        process.start()?;
        Ok(process)
    }

    fn start(&mut self) -> Result<(), NotParked> {
        // If a successful probe is left, drop it, which ends the probe.
        self.parked = None;
        // Run a probe first, unless an earlier probe has succeeded.
        let (probed, probe) = self.unproven_sandbox().map(|_| ProbedSandbox::new()).transpose()?.unzip();
        self.probed = probed;
        self.began = Instant::now();
        self.deadline = self.began + PARK_TIMEOUT;
        self.parked = Some(ParkedProcess::start(&self.recipe, &self.object, &self.starter, probe.as_ref())?);
        Ok(())
    }

    /// Returns the sandbox command, if no probe has succeeded in this sandbox yet.
    fn unproven_sandbox(&self) -> Option<&SandboxCommand> {
        self.recipe.sandbox.as_ref().filter(|sandbox| !sandbox.passes_preload.load(Ordering::Relaxed))
    }

    /// The descriptor that becomes readable when the process reports.
    pub(super) fn report_fd(&self) -> Option<&OwnedFd> {
        match &self.probed {
            Some(probed) if probed.probe_ended => probed.errors.get(),
            _ => self.parked.as_ref()?.channel.socket.get(),
        }
    }

    /// Takes the parked process, and measures its start-up.
    fn take_parked(&mut self) -> Option<ParkedProcess> {
        let mut parked = self.parked.take()?;
        // In a sandbox, this process's child is the sandbox command, so its CPU time is not the program's.
        let measured = if self.recipe.sandbox.is_some() { None } else { cpu_time(parked.pid()) };
        parked.start_up = measured.unwrap_or_else(|| self.began.elapsed());
        Some(parked)
    }

    /// Returns the outcome of parking, or `None` if the process has not reported yet.
    pub(super) fn poll_outcome(&mut self) -> Option<Result<ParkedProcess, NotParked>> {
        let timed_out = || (Instant::now() > self.deadline).then_some(NotParked::Permanent(ColdReason::Slow));
        let outcome = match &mut self.probed {
            Some(probed) if probed.probe_ended => return probed.failure_reason().or_else(timed_out).map(Err),
            _ => self.parked.as_mut()?.poll_report().or_else(|| timed_out().map(Err))?,
        };
        let Some(probed) = &mut self.probed else {
            return outcome.map(|()| self.take_parked()).transpose();
        };
        match outcome {
            Ok(()) => {
                if let Some(sandbox) = self.unproven_sandbox() {
                    sandbox.passes_preload.store(true, Ordering::Relaxed);
                }
                self.start().err().map(Err)
            }
            Err(NotParked::Permanent(ColdReason::NotParked)) => {
                probed.probe_ended = true;
                probed.failure_reason().map(Err)
            }
            // The probe itself has reported the reason `why`.
            Err(why) => Some(Err(why)),
        }
    }
}

/// The CPU time of a child's first thread so far. `None` if the kernel does not report it.
fn cpu_time(pid: i32) -> Option<Duration> {
    if is_proc_foreign() {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanoseconds = text.split(' ').next()?.parse().ok().filter(|&nanoseconds| nanoseconds > 0)?;
    Some(Duration::from_nanos(nanoseconds))
}

impl ProbedSandbox {
    fn new() -> Result<(ProbedSandbox, SandboxProbe), CallError> {
        let program = image::zygote_file()?;
        // Non-blocking, so that the sandbox command never blocks on unread output.
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (errors, write_end) = pipe.map_err(|error| ("pipe2()", errno(error)))?;
        let [program, write_end] = [program, write_end].map(above_standard);
        Ok((
            ProbedSandbox { errors: CheckedFd::new(errors), probe_ended: false, output: Vec::new() },
            SandboxProbe { program, errors: write_end },
        ))
    }

    /// Returns the reason for the failure, once the sandbox command has ended.
    fn failure_reason(&mut self) -> Option<NotParked> {
        const MAX_OUTPUT: usize = 16 << 10;
        let mut part = [0; 4096];
        match self.errors.get().map(|errors| rustix::io::read(errors, &mut part)) {
            Some(Err(IoErrno::AGAIN | IoErrno::INTR)) => return None,
            Some(Ok(length @ 1..)) => {
                let free = MAX_OUTPUT.saturating_sub(self.output.len());
                self.output.extend(&part[..length.min(free)]);
                return None;
            }
            _ => {}
        }
        // A sandbox command that cannot execute the probe prints the probe's path.
        let names_probe = self.output.windows(PROBE_PREFIX.len()).any(|part| part == PROBE_PREFIX.as_bytes());
        Some(match names_probe {
            true => NotParked::Permanent(ColdReason::SandboxDropsPreload),
            false => NotParked::Temporary(ColdReason::SandboxCommandFailed),
        })
    }
}

impl ParkedProcess {
    /// Starts a process that parks. `starter` is the reach of the thread that started the calling thread.
    ///
    /// If there is a `probe`, the sandbox command starts the probe in place of the recipe's program. The probe only
    /// reports whether ld.so would load the object.
    ///
    /// # Errors
    /// The reason why the program cannot be parked.
    fn start(
        recipe: &Recipe,
        object: &CheckedFd,
        starter: &Arc<Reach>,
        probe: Option<&SandboxProbe>,
    ) -> Result<ParkedProcess, NotParked> {
        let current_state = || {
            CallerState::with(Authority::of_thread_started_by(starter)).ok_or(NotParked::Temporary(ColdReason::Proc))
        };
        let caller = current_state()?;
        let (channel, [peer, page]) = Channel::new()?;
        let owner = pidfd_open(getpid(), PidfdFlags::empty());
        let owner = above_standard(owner.map_err(|error| ("pidfd_open()", errno(error)))?);
        let with_threads = (recipe.kind == Kind::Node).then(|| image::object_file(spawnfd_parked::OBJECT_WITH_THREADS));
        let with_threads = with_threads.transpose()?.map(above_standard);
        let output = above_standard(memfd::create("spawnfd-output", false).map_err(|errno| ("memfd_create()", errno))?);
        // Check the object's descriptor. If the application has put another file there, ld.so does
        // not load the object, and the program would run instead of parking.
        let object = with_threads.as_ref().or_else(|| object.get()).ok_or(("fstat()", Errno::EBADF))?;
        let identity = recipe.template.identity();
        let device = rustix::fs::makedev(identity.device.0, identity.device.1);
        let mode = if recipe.sandbox.is_some() { protocol::Mode::Sandbox as u8 as char } else { recipe.mode.code() };
        let kind = recipe.kind as u8 as char;
        // The library's descriptors get the lowest free numbers. For Node.js they get numbers from
        // 40 on: Node.js opens descriptors before it parks, and these must get the same numbers as
        // in a cold start. Numbers near 64 would grow the descriptor table, which is visible in
        // /proc.
        let given = recipe.sandbox.as_ref().map_or(&[][..], |sandbox| &sandbox.given);
        // The library needs six numbers. The object needs two more, for copies of descriptors 1 and
        // 2 until the program parks.
        let is_free = |first: &RawFd| !given.iter().any(|given| (*first..first + 8).contains(&given.number));
        let first = if recipe.kind == Kind::Node { 40 } else { Zygote::Socket as RawFd };
        let first = (first..).find(is_free).unwrap_or(first);
        // A zygote gets only the first three descriptors, at fixed numbers.
        let [socket_at, owner_at, page_at, object_at, probe_at, output_at] =
            std::array::from_fn(|offset| first + offset as RawFd);
        let object_path = format!("{OBJECT_PREFIX}{object_at}");
        let with_object = recipe.env.clone().set("LD_PRELOAD", &object_path).set(
            protocol::PARK_VARIABLE,
            wire::park_variable(|field| match field {
                ParkField::Socket => socket_at.to_string(),
                ParkField::Owner => owner_at.to_string(),
                ParkField::Object => object_at.to_string(),
                ParkField::Page => page_at.to_string(),
                ParkField::Device => device.to_string(),
                ParkField::Inode => identity.inode.to_string(),
                ParkField::Kind => kind.to_string(),
                ParkField::Mode => mode.to_string(),
                ParkField::Output => output_at.to_string(),
            }),
        );
        let preload = (!recipe.preload.is_empty()).then(|| recipe.preload.join(OsStr::new(",")));
        let entry = recipe.entry_point.as_ref().map(EntryPoint::variable);
        let directory = recipe.entry_point.as_ref().and_then(|entry| entry.directory.as_deref());
        let optional = [
            (protocol::PRELOAD_VARIABLE, preload),
            (protocol::ENTRY_VARIABLE, entry),
            (protocol::SAME_DIRECTORY_VARIABLE, directory.and(Some("1".into()))),
        ];
        let with_object = optional.into_iter().fold(with_object, |env, (name, value)| match value {
            Some(value) => env.set(name, value),
            None => env,
        });
        let mut sandbox_tree = None;
        let mut command = recipe.command_template().command();
        match &recipe.sandbox {
            None => {
                command.current_dir(directory.unwrap_or(Path::new("/")));
                if !recipe.executes {
                    // The keeper thread is the parent, and lives until the process has parked. The preloaded object
                    // then clears the parent-death signal.
                    command.parent_death_signal(9);
                }
            }
            // Use a new session, so that a signal to the program's group or session also reaches
            // the sandbox command. Do not set a parent-death signal. It would end the sandbox
            // command with the keeper, even after the parked process has become a program.
            Some(sandbox) => {
                let tree = Tree::without_cgroup();
                command.setsid().arg0(&sandbox.name).tree(sandbox_tree.insert(tree));
                match probe {
                    None => command.args(&sandbox.args),
                    Some(probe) => command
                        .args(sandbox.own_args())
                        .arg(format!("{PROBE_PREFIX}{probe_at}"))
                        .arg(format!("{}{socket_at}:{object_path}", protocol::Mode::Probe as u8 as char))
                        .descriptor(&probe.program, probe_at),
                };
                if let Some(directory) = &sandbox.directory {
                    command.current_dir(OsStr::from_bytes(directory.to_bytes()));
                }
            }
        }
        let opened = given.iter().map(SandboxDescriptor::open_for_start).collect::<Result<Vec<_>, _>>();
        let opened = opened.map_err(|error| NotParked::temporary(&error))?;
        for (given, fd) in given.iter().zip(&opened) {
            command.descriptor(fd, given.number);
        }
        let referents = opened.iter().map(|fd| Referent::of(fd.as_raw_fd())).collect::<Option<Vec<_>>>();
        let given = referents.ok_or_else(|| NotParked::temporary(&"statx(): a descriptor of the sandbox command"))?;
        command
            .args(&recipe.args)
            .environment(if recipe.executes { &recipe.env } else { &with_object })
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(probe.map_or(Stdio::Null, |probe| Stdio::from(&probe.errors)))
            .default_signals(SignalSet::from_bits(MADE_DEFAULT))
            .descriptor(&peer, socket_at)
            .descriptor(&owner, owner_at)
            .descriptor(&page, page_at);
        if recipe.executes {
            command.arg0("spawnfd-zygote");
        } else {
            command.descriptor(object, object_at).descriptor(&output, output_at);
        }
        if recipe.confinement.apply_to(&mut command).is_none() {
            return Err(NotParked::Temporary(ColdReason::LandlockRuleset));
        }
        if caller.is_ordinary() && recipe.runs_as_batch() {
            // Let running programs use the CPU first. A nice value would do too, but an unprivileged process cannot
            // lower its nice value again.
            command.scheduler(abi::SCHED_BATCH, 0);
        }
        let before_exec = ExecTime::now();
        let child = launch::spawn_helper(&command).map_err(|error| NotParked::of_start(&error))?;
        drop(peer);
        sandbox_tree.iter_mut().for_each(|tree| tree.program_started(child.id(), child.as_fd()));
        let pidfds_differ = call::identify(owner.as_raw_fd()).is_ok_and(|owner| owner != child.identity());
        let origin = ParkedOrigin {
            started: recipe.started(),
            executes: recipe.executes,
            has_sandbox_command: recipe.sandbox.is_some(),
            caller,
            env: recipe.env.encode().map_err(|error| NotParked::temporary(&error))?,
            given,
            variables: Vec::new(),
            files: Vec::new(),
            modules: ModuleNames::default(),
            first_path: recipe.entry_point.as_ref().and_then(EntryPoint::first_path),
            added: recipe.sandbox.is_none().then(|| recipe.confinement.added()),
            before_exec,
            pidfds_differ,
        };
        let generation = fork_generation().map_err(|errno| ("mmap()", errno))?;
        let mut parked = ParkedProcess::new(generation, child, channel, Arc::new(origin));
        parked.sandbox_tree = sandbox_tree;
        parked.channel.renumber()?;
        if let Some(what) = parked.origin.caller.authority.first_difference(&current_state()?.authority) {
            // Another thread may have changed the ids of all threads during the start.
            let text = format!("{} changed", what.word());
            return Err(NotParked::Temporary(ColdReason::with_text(ColdReason::AuthorityChanged, &text)));
        }
        Ok(parked)
    }
}

impl NotParked {
    /// Classifies an error of the start: a missing resource, or a permanent reason.
    fn of_start(error: &Error) -> NotParked {
        match error.errno() {
            Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOSPC => {
                NotParked::temporary(error)
            }
            Errno::EIO | Errno::ETXTBSY => NotParked::temporary(error),
            _ => NotParked::Permanent(ColdReason::decode(error.to_string().as_bytes())),
        }
    }

    /// A call that parking needs has failed with this error.
    fn temporary(error: &dyn std::fmt::Display) -> NotParked {
        NotParked::Temporary(ColdReason::with_text(ColdReason::SystemCall, &error.to_string()))
    }
}

impl From<CallError> for NotParked {
    fn from((call, errno): CallError) -> NotParked {
        NotParked::temporary(&format_args!("{call}: {}", errno.name()))
    }
}
