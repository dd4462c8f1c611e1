// SPDX-License-Identifier: MIT OR Apache-2.0
//! One parked process: its start, what it is asked, its end.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitOptions, getpid, pidfd_open, waitid, waitpid};
use spawnfd_child::{Failure, Outcome, PENDING, Plan, Stage};
use spawnfd_sys::{ArgBlock, Errno, abi, fork_generation, receive, send};

use super::confinement::Confinement;
use super::handed::{Handed, Referent};
use super::image::object_with_threads;
use super::sandbox::Prefix;
use super::standing::Standing;
use super::watch::is_library;
use super::wire::{self, Context, Reply, Request};
use super::{Kind, Mode};
use crate::authority::Marker;
use crate::child::{Child, Started};
use crate::command::{Command, Stdio};
use crate::env::Env;
use crate::numbers::{Known, above_standard};
use crate::template::Template;

/// How long a parked process may take to begin with a request; then it is not used. One that has begun is waited for as an exec would be.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look what is the matter while nothing is heard.
const CHECK: Duration = Duration::from_millis(50);
/// How long a program may take until it is parked.
const START: Duration = Duration::from_secs(20);
/// How far the time stamps of files may be behind the clock.
const GRANULARITY: Duration = Duration::from_millis(20);
/// SIGPIPE: made default in what is started, ignored or not.
const SIGPIPE: u64 = 1 << (13 - 1);

/// What is to be parked.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) template: Template,
    /// It executes other programs: `warm/zygote`.
    pub(super) executes: bool,
    /// Arguments before those that differ from one start to the next.
    pub(super) args: Vec<OsString>,
    pub(super) env: Env,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) preload: Vec<OsString>,
    /// It is started through another program.
    pub(super) prefix: Option<Prefix>,
    pub(super) confinement: Confinement,
}

impl Recipe {
    /// Whether what is parked leaves the processor to others. (A filter may refuse the way back.)
    pub(super) fn stands_back(&self) -> bool {
        self.mode == Mode::Reserve && !self.confinement.has_filter()
    }
}

impl Recipe {
    /// Whether its programs have something in common that is better drawn anew now and then.
    pub(super) fn grows_old(&self) -> bool {
        self.mode == Mode::Fork && !self.executes
    }

    /// What it is called in counts.
    pub(super) fn name(&self) -> &OsStr {
        if self.executes { OsStr::new("any program") } else { self.template.name() }
    }
}

/// A process that waits to become a program.
#[derive(Debug)]
pub(super) struct Parked {
    generation: u64,
    /// It becomes a program by exec.
    executes: bool,
    /// Gone when it has become the program.
    child: Option<Child>,
    /// Of the child that a zygote has for the request.
    born: Option<OwnedFd>,
    socket: Known,
    page: wire::Page,
    serial: u32,
    /// What it was born with.
    pub(super) standing: Arc<Standing>,
    /// The same of Landlock.
    pub(super) marker: Arc<Marker>,
    env: Arc<ArgBlock>,
    /// What the program in front was given.
    pub(super) given: Vec<Referent>,
    /// Its own memory as it was parked, in bytes.
    pub(super) private: u64,
    variables: Vec<Vec<u8>>,
    pub(super) files: Vec<Vec<u8>>,
    pub(super) since: Instant,
    /// The time of the files' clock before it was started.
    begun: SystemTime,
    /// How many programs were forked from it.
    pub(super) forked: u64,
}

/// Why a program is not parked.
#[derive(Debug)]
pub(super) enum NotParked {
    /// Something was missing for now.
    Now(String),
    /// It cannot be, as it is.
    Ever(String),
}

/// What has come of a request.
pub(super) enum Answer {
    /// The program runs.
    Program(Box<Child>),
    /// It has failed, as it would have in a child of the caller's; `None`: that was killed.
    Failed(Option<Failure>),
    /// Nothing has been started, and this process is of no use any more.
    Gone(&'static str),
    /// Nothing has been started.
    Refused(&'static str),
}

impl Parked {
    /// Starts a program, from a thread that `maker` has started, and waits until it is parked, or `ended` says that nobody wants it any more.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn start(
        recipe: &Recipe,
        object: &OwnedFd,
        maker: ThreadId,
        marker: Arc<Marker>,
        ended: &AtomicBool,
    ) -> Result<Parked, NotParked> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |error: rustix::io::Errno| NotParked::Now(format!("{call}: {error}"))
        };
        let standing = Standing::of_heir_of(maker).ok_or_else(|| NotParked::Now("/proc".to_owned()))?;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed("socketpair()"))?;
        let theirs = above_standard(theirs);
        // It is asked for an answer, and mostly has it at once.
        set_socket_timeout(&socket, Timeout::Recv, Some(CHECK)).map_err(failed("setsockopt()"))?;
        let owner = above_standard(pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed("pidfd_open()"))?);
        let memory = memfd_create("spawnfd-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map(above_standard)
            .map_err(failed("memfd_create()"))?;
        ftruncate(&memory, 4096).map_err(failed("ftruncate()"))?;
        fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).map_err(failed("fcntl()"))?;
        let page = wire::Page::of(memory.as_raw_fd()).map_err(|error| NotParked::Now(format!("mmap(): {error:?}")))?;
        let with_threads = match (recipe.kind, recipe.mode) {
            (Kind::Node, Mode::Fork) => {
                Some(object_with_threads().map(above_standard).map_err(failed("memfd_create()"))?)
            }
            _ => None,
        };
        let object = with_threads.as_ref().unwrap_or(object);
        let identity = recipe.template.identity();
        let device = rustix::fs::makedev(identity.device.0, identity.device.1);
        let (kind, mode) = (recipe.kind.letter(), recipe.mode.letter());
        // The lowest numbers there are: a program that is parked has no others of ours. But Node opens descriptors before it parks, and
        // they are to get the numbers that they get without us. (Nor near 64: the table would grow, and that shows.)
        let handed = recipe.prefix.as_ref().map_or(&[][..], |prefix| &prefix.handed);
        let is_free = |first: &RawFd| !handed.iter().any(|handed| (*first..first + 4).contains(&handed.number));
        let first = if recipe.kind == Kind::Node { 40 } else { 3 };
        let first = (first..).find(is_free).unwrap_or(first);
        let [at, owner_at, page_at, object_at] = [first, first + 1, first + 2, first + 3];
        let with_object = recipe.env.clone().set("LD_PRELOAD", format!("/proc/self/fd/{object_at}")).set(
            "SPAWNFD_PARK",
            format!("{at}:{owner_at}:{object_at}:{page_at}:{device}:{}:{kind}:{mode}", identity.inode),
        );
        let preload = recipe.preload.join(OsStr::new(","));
        let with_object = if preload.is_empty() { with_object } else { with_object.set("SPAWNFD_PRELOAD", preload) };
        let mut command: Command<'_> = match &recipe.prefix {
            None => recipe.template.command(),
            Some(prefix) => prefix.template.command(),
        };
        match &recipe.prefix {
            None => {
                command.current_dir("/");
            }
            // Whoever ends the program's group or session means the one in front as well.
            Some(prefix) => {
                command.setsid().args(&prefix.args);
                if let Some(directory) = &prefix.directory {
                    command.current_dir(OsStr::from_bytes(directory.to_bytes()));
                }
            }
        }
        let given = handed.iter().map(Handed::another).collect::<Option<Vec<_>>>();
        let (descriptors, given): (Vec<_>, Vec<_>) =
            given.ok_or_else(|| NotParked::Now("descriptors of the sandbox".to_owned()))?.into_iter().unzip();
        for (handed, fd) in handed.iter().zip(&descriptors) {
            command.descriptor(fd, handed.number);
        }
        command
            .args(&recipe.args)
            .environment(if recipe.executes { &recipe.env } else { &with_object })
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .descriptor(&theirs, at)
            .descriptor(&owner, owner_at)
            .descriptor(&memory, page_at);
        if recipe.executes {
            command.arg0("spawnfd-zygote");
        } else {
            command.descriptor(object, object_at);
        }
        if recipe.confinement.lay_over(&mut command).is_none() {
            return Err(NotParked::Now("Landlock ruleset".to_owned()));
        }
        if standing.is_ordinary() && recipe.stands_back() {
            // What runs goes first. (Not by a nice value: no unprivileged process could go back.)
            command.scheduler(abi::SCHED_BATCH, 0);
        }
        let begun = SystemTime::now();
        let child = command.spawn().map_err(|error| NotParked::Now(error.to_string()))?;
        drop(theirs);
        // A number that is younger than the pidfd's: a descriptor table that has it has that, too.
        let socket = rustix::io::fcntl_dupfd_cloexec(&socket, 3).map_err(failed("fcntl()"))?;
        let socket = Known::new(socket).map_err(|errno| NotParked::Now(format!("fstat(): {errno:?}")))?;
        let mut parked = Parked {
            generation: fork_generation().map_err(|error| NotParked::Now(format!("mmap(): {error:?}")))?,
            executes: recipe.executes,
            child: Some(child),
            born: None,
            socket,
            page,
            serial: 0,
            standing: Arc::new(standing),
            marker,
            env: recipe.env.encode().map_err(|error| NotParked::Now(error.to_string()))?,
            given,
            private: 0,
            variables: Vec::new(),
            files: Vec::new(),
            since: Instant::now(),
            begun,
            forked: 0,
        };
        parked.wait_until_parked(ended)?;
        Ok(parked)
    }

    fn wait_until_parked(&mut self, ended: &AtomicBool) -> Result<(), NotParked> {
        let deadline = Instant::now() + START;
        let mut message = vec![0; wire::MAX_MESSAGE];
        while !self.poll(CHECK) {
            if ended.load(Ordering::Relaxed) || Instant::now() > deadline {
                return Err(NotParked::Ever("slow".to_owned()));
            }
        }
        let length = match self.socket.get().map(|socket| receive(socket.as_raw_fd(), &mut message)) {
            Some(Ok((length @ 1.., _))) => length,
            _ => return Err(NotParked::Ever("not parked".to_owned())),
        };
        match wire::decode(&message[..length]) {
            Some(Reply::Parked { private, variables, files }) => {
                let owned = |list: Vec<&[u8]>| list.into_iter().map(<[u8]>::to_vec).collect();
                (self.private, self.variables, self.files) = (private, owned(variables), owned(files));
                Ok(())
            }
            Some(Reply::Cannot { why }) => Err(NotParked::Ever(String::from_utf8_lossy(why).into_owned())),
            _ => Err(NotParked::Ever("not parked".to_owned())),
        }
    }

    /// Whether there is something to receive, by then.
    fn poll(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let Some(socket) = self.socket.get() else { return false };
        poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Whether a file that it was made of has changed, or gone, since: before anybody watched, or perhaps before it was read.
    pub(super) fn is_outdated(&self) -> bool {
        let begun = self.begun - GRANULARITY;
        self.files.iter().any(|file| match std::fs::metadata(OsStr::from_bytes(file)) {
            Ok(found) => {
                SystemTime::UNIX_EPOCH + Duration::new(found.ctime() as u64, found.ctime_nsec() as u32) >= begun
            }
            // An interpreter also names what it has looked for and not found.
            Err(_) => file.ends_with(b" (deleted)") || is_library(file),
        })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    /// The environment it was parked with.
    pub(super) fn environment(&self) -> &ArgBlock {
        &self.env
    }

    /// Whether a program with that environment would have found before main what this one has.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn agrees(&self, envp: &ArgBlock) -> Result<(), &'static str> {
        if self.executes || std::ptr::eq(envp, &raw const *self.env) {
            return Ok(());
        }
        for name in &self.variables {
            if value(&self.env, name) != value(envp, name) {
                return Err("variable");
            }
        }
        // ld.so and malloc look at these, and no getenv tells.
        let early = |string: &&[u8]| {
            [&b"LD_"[..], b"GLIBC_TUNABLES=", b"MALLOC_"].iter().any(|prefix| string.starts_with(prefix))
        };
        let of = |block: &ArgBlock| {
            let mut all: Vec<Vec<u8>> =
                block.iter().map(std::ffi::CStr::to_bytes).filter(early).map(<[u8]>::to_vec).collect();
            all.sort_unstable();
            all
        };
        if of(&self.env) == of(envp) { Ok(()) } else { Err("variable") }
    }

    /// The signals that are ignored in it.
    pub(super) fn ignored(&self) -> u64 {
        self.standing.ignored() & !SIGPIPE
    }

    /// Offers it what is to become of it, or of a fork: it gets ready, and waits for [`go`](Parked::go).
    ///
    /// # Errors
    /// Why it has not been offered.
    pub(super) fn offer(&mut self, plan: &Plan, request: &Request<'_>) -> Result<(), Answer> {
        let socket = self.socket.get().ok_or(Answer::Refused("descriptor table"))?.as_raw_fd();
        self.serial += 1;
        let mut message = wire::encode(self.serial, plan, request).map_err(Answer::Refused)?;
        let words = self.page.get();
        words[wire::CHILD].store(0, Ordering::Relaxed);
        words[wire::REPORT].store(PENDING, Ordering::Relaxed);
        self.born = None;
        words[wire::CLAIM].store(wire::claim(self.serial, wire::OFFERED), Ordering::Release);
        send(socket, &mut message, &request.sources).map_err(|errno| match errno {
            Errno::EBADF | Errno::ETOOMANYREFS => Answer::Refused("descriptors"),
            Errno::EMSGSIZE | Errno::ENOBUFS => Answer::Refused("arguments too long"),
            Errno::EPIPE | Errno::ECONNRESET => Answer::Gone("died"),
            _ => Answer::Gone("socket"),
        })
    }

    /// Who is to become the program. A zygote's child is waited for: it stands there until it is told to go, so that the pidfd
    /// is its own.
    ///
    /// # Errors
    /// Nobody.
    pub(super) fn candidate(&mut self, mode: Mode) -> Result<i32, Answer> {
        if mode == Mode::Reserve || !self.executes {
            return Ok(self.pid());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut message = [0; 64];
        loop {
            if let Some(pid) = Pid::from_raw(self.page.get()[wire::CHILD].load(Ordering::Acquire) as i32) {
                match pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(pidfd) => self.born = Some(pidfd),
                    Err(_) => return Err(self.withdraw("pidfd", mode)),
                }
                return Ok(pid.as_raw_pid());
            }
            if Instant::now() > deadline {
                return Err(self.withdraw("slow", mode));
            }
            if !self.poll(Duration::from_micros(10)) {
                continue;
            }
            let received = self.socket.get().map(|socket| receive(socket.as_raw_fd(), &mut message));
            match received {
                Some(Ok((length @ 1.., _))) => match wire::decode(&message[..length]) {
                    Some(Reply::Refused { serial }) if serial == self.serial || serial == 0 => {
                        return Err(Answer::Refused("refused"));
                    }
                    // Left over from a request that was given up.
                    _ => continue,
                },
                _ => {
                    self.turn(wire::OFFERED);
                    return Err(self.died(mode));
                }
            }
        }
    }

    /// Has it done.
    pub(super) fn go(&mut self, context: &Context, mode: Mode) -> Answer {
        if let Err(reason) = wire::leave(&self.page, context) {
            return self.withdraw(reason, mode);
        }
        self.page.get()[wire::CLAIM].store(wire::claim(self.serial, wire::GO), Ordering::Release);
        self.page.wake();
        self.listen(mode)
    }

    /// Has it not done, for that reason.
    pub(super) fn withdraw(&mut self, reason: &'static str, mode: Mode) -> Answer {
        self.turn(wire::OFFERED);
        self.page.wake();
        if mode == Mode::Reserve {
            return Answer::Refused(reason);
        }
        // There is a child by now, or soon.
        let deadline = Instant::now() + PATIENCE;
        while self.page.get()[wire::CHILD].load(Ordering::Acquire) == 0 {
            if Instant::now() > deadline || self.poll(Duration::from_millis(1)) {
                return Answer::Gone(reason);
            }
        }
        self.reap_forked();
        Answer::Refused(reason)
    }

    /// Takes a request back from that state, if it is still in it.
    fn turn(&self, from: u64) -> bool {
        let [from, to] = [from, wire::WITHDRAWN].map(|state| wire::claim(self.serial, state));
        self.page.get()[wire::CLAIM].compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn listen(&mut self, mode: Mode) -> Answer {
        let Some(socket) = self.socket.get().map(AsRawFd::as_raw_fd) else { return Answer::Gone("socket") };
        let mut message = [0; 64];
        let mut checks = 0;
        loop {
            let (length, pidfd) = match receive(socket, &mut message) {
                Ok((0, _)) if self.executes => return self.reported(mode),
                Ok((0, _)) => return self.died(mode),
                Ok(received) => received,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => {
                    checks += 1;
                    if CHECK * checks >= PATIENCE && self.turn(wire::GO) {
                        return Answer::Gone("slow");
                    }
                    // Of a forked child that is killed on its way nobody else tells.
                    if mode == Mode::Fork && self.forked_has_ended() && !self.poll(Duration::ZERO) {
                        return self.died(mode);
                    }
                    continue;
                }
                Err(_) => return self.died(mode),
            };
            return match wire::decode(&message[..length]) {
                Some(Reply::Became { serial, .. }) if serial == self.serial && self.executes => self.reported(mode),
                Some(Reply::Became { serial, pid }) if serial == self.serial => self.became(mode, pid, pidfd),
                Some(Reply::Failed { serial, index, error }) if serial == self.serial => {
                    let errno = Errno::from_raw(error);
                    if mode == Mode::Fork {
                        self.reap_forked();
                    }
                    match u16::try_from(index).ok().filter(|index| *index != wire::CONTEXT) {
                        Some(index) => Answer::Failed(Some(Failure { stage: Stage::Action(index), errno })),
                        None => Answer::Gone("context"),
                    }
                }
                Some(Reply::Refused { serial }) if serial == self.serial || serial == 0 => Answer::Refused("refused"),
                // Left over from a request that was given up.
                _ => continue,
            };
        }
    }

    /// Neither the parked process nor, in mode fork, its child is there to answer.
    fn died(&self, mode: Mode) -> Answer {
        if mode == Mode::Fork {
            self.reap_forked();
        }
        Answer::Gone("died")
    }

    /// What became of one that was to execute something, and has, or has ended.
    fn reported(&mut self, mode: Mode) -> Answer {
        let words = self.page.get();
        let outcome = Outcome::of(words[wire::REPORT].load(Ordering::Acquire));
        let begun = words[wire::CLAIM].load(Ordering::Acquire) == wire::claim(self.serial, wire::TAKEN);
        let pid = words[wire::CHILD].load(Ordering::Acquire) as i32;
        let failure = match outcome {
            Outcome::Program { .. } => {
                let born = self.born.take();
                return self.became(mode, pid, born);
            }
            Outcome::Failed(failure) => Some(failure),
            Outcome::Killed if begun => None,
            Outcome::Killed => return self.died(mode),
        };
        // It has ended, or is just about to, and never was the program.
        match mode {
            Mode::Fork => self.reap_forked(),
            Mode::Reserve => {
                let _ = self.child.take().map(|mut child| child.wait());
            }
        }
        match failure {
            Some(Failure { stage: Stage::Action(wire::CONTEXT), .. }) => Answer::Gone("context"),
            failure => Answer::Failed(failure),
        }
    }

    /// How a program that has come of it was started.
    fn started(&self, mode: Mode) -> Started {
        match (self.executes, mode) {
            (false, Mode::Reserve) => Started::Reserve,
            (false, Mode::Fork) => Started::Fork,
            (true, Mode::Reserve) => Started::Pool,
            (true, Mode::Fork) => Started::Zygote,
        }
    }

    fn became(&mut self, mode: Mode, pid: i32, pidfd: Option<OwnedFd>) -> Answer {
        match (mode, pidfd) {
            (Mode::Fork, Some(pidfd)) => {
                self.forked += 1;
                Answer::Program(Box::new(Child::new(pid, pidfd, Default::default(), self.started(mode), None)))
            }
            (Mode::Fork, None) => Answer::Gone("pidfd"),
            (Mode::Reserve, _) => match self.child.take() {
                Some(child) => Answer::Program(Box::new(child.restarted(self.started(mode)))),
                None => Answer::Gone("died"),
            },
        }
    }

    /// Whether the child that was forked for this request has ended.
    fn forked_has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = Pid::from_raw(self.page.get()[wire::CHILD].load(Ordering::Acquire) as i32);
        pid.is_some_and(|pid| !matches!(waitid(WaitId::Pid(pid), look), Ok(None)))
    }

    /// Waits for the child that was forked for this request and is about to end.
    fn reap_forked(&self) {
        if let Some(pid) = Pid::from_raw(self.page.get()[wire::CHILD].load(Ordering::Acquire) as i32) {
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

impl Drop for Parked {
    /// Ends it, but for one that has become the program.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if fork_generation() != Ok(self.generation) {
            // A copy's: the process is not its own.
            std::mem::forget(child);
            return;
        }
        let _ = child.kill();
        let _ = child.wait();
        // Forked for a request that was withdrawn: it sees that, and ends.
        let withdrawn =
            self.page.get()[wire::CLAIM].load(Ordering::Acquire) == wire::claim(self.serial, wire::WITHDRAWN);
        if withdrawn {
            self.reap_forked();
        }
    }
}

fn value<'a>(block: &'a ArgBlock, name: &[u8]) -> Option<&'a [u8]> {
    block.iter().find_map(|string| string.to_bytes().strip_prefix(name)?.strip_prefix(b"="))
}
