// SPDX-License-Identifier: MIT OR Apache-2.0
//! One parked process: its start, what it is asked, its end.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, getpid, pidfd_open, waitid};
use spawnfd_child::{Failure, Outcome as Report, Plan, Stage};
use spawnfd_parked::protocol::{self, ParkField, Zygote};
use spawnfd_sys::{ArgBlock, Ended, Errno, abi, call, fork_generation, send};

use super::confinement::Confinement;
use super::image::object_with_threads;
use super::line::{Failed, Line};
use super::prefix::Prefix;
use super::referent::Referent;
use super::standing::Standing;
use super::watch::Moment;
use super::wire::{self, Claim, Context, Reply, Request, State};
use super::{Kind, Mode};
use crate::child::{Child, PendingStart, Started};
use crate::command::{Command, Stdio, step_failed};
use crate::env::Env;
use crate::error::{Error, Result as Outcome, Stage as At, errno};
use crate::host::authority::{Added, Reach, Reported};
use crate::host::memfd;
use crate::host::numbers::{Known, above_standard};
use crate::sandbox::Given;
use crate::signals::SignalSet;
use crate::template::Template;
use crate::tree::{Tree, Want};

/// How long a parked process may take to begin with a request; then it is not used. One that has begun is waited for as an exec would be.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look what is the matter while nothing is heard.
const CHECK: Duration = Duration::from_millis(50);
/// SIGPIPE and SIGXFSZ: made default in what is started, ignored or not.
const MADE_DEFAULT: u64 = 1 << (13 - 1) | 1 << (25 - 1);

/// What is to be parked.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) template: Template,
    /// It executes other programs: the zygote of `spawnfd-parked`.
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

    /// How its programs are started.
    fn started(&self) -> Started {
        match (self.executes, self.mode) {
            (false, Mode::Reserve) => Started::Reserve,
            (false, Mode::Fork) => Started::Fork,
            (true, Mode::Reserve) => Started::Pool,
            (true, Mode::Fork) => Started::Zygote,
        }
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
    /// Gone when it has become the program.
    child: Option<Child>,
    /// While the program in front is at work: nobody there looks at the line yet.
    front: Option<Tree>,
    line: Line,
    serial: u32,
    pub(super) birth: Arc<Birth>,
    /// Its own memory as it was parked, in bytes.
    pub(super) private: u64,
    /// The same of a child that was forked from it, once there was one.
    child_private: Option<u64>,
    /// How many were forked from it.
    pub(super) forked: u64,
    /// Why no more will be.
    barren: Option<&'static str>,
}

/// What has come of a wish for more.
pub(super) struct Born {
    pub(super) all: Vec<Parked>,
    /// Why they are fewer than was wished for.
    pub(super) fewer: Option<&'static str>,
}

/// What it has from its start; those that are forked from it have it, too.
#[derive(Debug)]
pub(super) struct Birth {
    /// How a program that has come of it was started.
    started: Started,
    /// It becomes a program by exec.
    executes: bool,
    /// The process is that of a program in front, and it sits behind.
    has_front: bool,
    /// What it was born with.
    pub(super) standing: Standing,
    env: Arc<ArgBlock>,
    /// What the program in front was given.
    pub(super) given: Vec<Referent>,
    variables: Vec<Vec<u8>>,
    pub(super) files: Vec<Vec<u8>>,
    /// What the recipe adds to the authority of the keeper thread; `None`: a program in front decides on it, or it is a probe.
    added: Option<Added>,
    /// Just before it was executed.
    pub(super) begun: Moment,
    /// Whether pidfds of different processes differ: before Linux 6.9 all have one inode.
    are_told_apart: bool,
}

impl Birth {
    /// Why a parked process is not used: its exec has changed its authority, so that the keeper's says nothing about it.
    ///
    /// A program in front changes it in any case, in the same way as the one that a cold start executes: `begin` has shown that the keeper
    /// had the same authority before and after that one's start.
    fn changed_by_exec(&self, reported: &Reported<'_>) -> Option<NotParked> {
        let changed = self.standing.authority().changed_by_exec(reported, self.added?)?;
        Some(NotParked::Ever(format!("exec changes {changed}")))
    }
}

/// A small program in the place of another, behind one in front of it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) program: OwnedFd,
    /// Where the one in front tells what is the matter.
    pub(super) errors: OwnedFd,
}

/// Where probes are, by a name that nothing else has.
pub(super) const PROBES: &str = "/proc/self/fd/./";

/// Where the object is, by a name of which the same is true: ld.so takes a name that it has loaded for that, whatever is there by then.
const OBJECT: &str = "/proc/self/./fd/";

/// A reason not to be parked: the line has ended.
pub(super) const NOT_PARKED: &str = "not parked";

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
    /// Starts a program, from a thread that was started by one with the reach of `maker`. `probe`: another, which only says whether it could be loaded into, in the
    /// place of the recipe's.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn begin(
        recipe: &Recipe,
        object: &Known,
        maker: &Arc<Reach>,
        probe: Option<&Probe>,
    ) -> Result<Parked, NotParked> {
        let standing = Standing::of_heir_of(maker).ok_or_else(|| NotParked::Now("/proc".to_owned()))?;
        let (line, [theirs, memory]) = Line::new()?;
        let owner = pidfd_open(getpid(), PidfdFlags::empty());
        let owner = above_standard(owner.map_err(|error| ("pidfd_open()", errno(error)))?);
        let with_threads = match recipe.kind {
            Kind::Node => {
                let object = object_with_threads().map_err(|errno| ("memfd_create()", errno))?;
                Some(above_standard(object))
            }
            _ => None,
        };
        let said = above_standard(memfd::create("spawnfd-said", false).map_err(|errno| ("memfd_create()", errno))?);
        // Whatever else stood at its number would not park the program, and it would run.
        let object = with_threads.as_ref().or_else(|| object.get()).ok_or(("fstat()", Errno::EBADF))?;
        let identity = recipe.template.identity();
        let device = rustix::fs::makedev(identity.device.0, identity.device.1);
        let mode = if recipe.prefix.is_some() { protocol::Mode::Sandbox as u8 as char } else { recipe.mode.letter() };
        let kind = recipe.kind.letter();
        // The lowest numbers there are: a program that is parked has no others of ours. But Node opens descriptors before it parks, and
        // they are to get the numbers that they get without us. (Nor near 64: the table would grow, and that shows.)
        let given = recipe.prefix.as_ref().map_or(&[][..], |prefix| &prefix.given);
        // Six, and two that what parks has for its own 1 and 2 until then.
        let is_free = |first: &RawFd| !given.iter().any(|given| (*first..first + 8).contains(&given.number));
        let first = if recipe.kind == Kind::Node { 40 } else { Zygote::Socket as RawFd };
        let first = (first..).find(is_free).unwrap_or(first);
        // A zygote has the first three, at fixed numbers.
        let [at, owner_at, page_at] = [Zygote::Socket, Zygote::Owner, Zygote::Page]
            .map(|number| first + (number as RawFd - Zygote::Socket as RawFd));
        let [object_at, probe_at, said_at] = [1, 2, 3].map(|place| page_at + place);
        let object_path = format!("{OBJECT}{object_at}");
        let with_object = recipe.env.clone().set("LD_PRELOAD", &object_path).set(
            protocol::PARK_VARIABLE,
            wire::park_variable(|field| match field {
                ParkField::Socket => at.to_string(),
                ParkField::Owner => owner_at.to_string(),
                ParkField::Object => object_at.to_string(),
                ParkField::Page => page_at.to_string(),
                ParkField::Device => device.to_string(),
                ParkField::Inode => identity.inode.to_string(),
                ParkField::Kind => kind.to_string(),
                ParkField::Mode => mode.to_string(),
                ParkField::Output => said_at.to_string(),
            }),
        );
        let preload = recipe.preload.join(OsStr::new(","));
        let with_object =
            if preload.is_empty() { with_object } else { with_object.set(protocol::PRELOAD_VARIABLE, preload) };
        let mut front = None;
        let mut command: Command<'_> = match &recipe.prefix {
            None => recipe.template.command(),
            Some(prefix) => prefix.template.command(),
        };
        match &recipe.prefix {
            None => {
                command.current_dir("/");
                if !recipe.executes {
                    // Of the keeper, which outlives this; what parks takes it back. (Until then nobody in it looks at the line.)
                    command.parent_death_signal(9);
                }
            }
            // Whoever ends the program's group or session means the one in front as well. (A parent-death signal would end it with the
            // keeper, though it has a program behind it by then.)
            Some(prefix) => {
                let tree = Tree::prepare(Want::Guard).unwrap_or_else(|_| Tree::of_group());
                command.setsid().arg0(&prefix.name).tree(front.insert(tree));
                match probe {
                    None => command.args(&prefix.args),
                    Some(probe) => command
                        .args(prefix.own_args())
                        .arg(format!("{PROBES}{probe_at}"))
                        .arg(format!("{}{at}:{object_path}", protocol::Mode::Probe as u8 as char))
                        .descriptor(&probe.program, probe_at),
                };
                if let Some(directory) = &prefix.directory {
                    command.current_dir(OsStr::from_bytes(directory.to_bytes()));
                }
            }
        }
        let opened = given.iter().map(Given::another).collect::<Result<Vec<_>, _>>();
        let opened = opened.map_err(|error| NotParked::Now(error.to_string()))?;
        for (given, fd) in given.iter().zip(&opened) {
            command.descriptor(fd, given.number);
        }
        let referents = opened.iter().map(|fd| Referent::of(fd.as_raw_fd())).collect::<Option<Vec<_>>>();
        let given = referents.ok_or_else(|| NotParked::Now("statx(): what a sandbox is given".to_owned()))?;
        command
            .args(&recipe.args)
            .environment(if recipe.executes { &recipe.env } else { &with_object })
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(probe.map_or(Stdio::Null, |probe| Stdio::from(&probe.errors)))
            .default_signals(SignalSet::from_bits(MADE_DEFAULT))
            .descriptor(&theirs, at)
            .descriptor(&owner, owner_at)
            .descriptor(&memory, page_at);
        if recipe.executes {
            command.arg0("spawnfd-zygote");
        } else {
            command.descriptor(object, object_at).descriptor(&said, said_at);
        }
        if recipe.confinement.lay_over(&mut command).is_none() {
            return Err(NotParked::Now("Landlock ruleset".to_owned()));
        }
        if standing.is_ordinary() && recipe.stands_back() {
            // What runs goes first. (Not by a nice value: no unprivileged process could go back.)
            command.scheduler(abi::SCHED_BATCH, 0);
        }
        let begun = Moment::now();
        let child = command.spawn().map_err(|error| NotParked::of_start(&error))?;
        drop(theirs);
        front.iter_mut().for_each(|tree| tree.born(child.id(), child.as_fd()));
        let are_told_apart = call::identify(owner.as_raw_fd()).is_ok_and(|owner| owner != child.identity());
        let mut parked = Parked {
            generation: fork_generation().map_err(|errno| ("mmap()", errno))?,
            child: Some(child),
            front,
            line,
            serial: 0,
            birth: Arc::new(Birth {
                started: recipe.started(),
                executes: recipe.executes,
                has_front: recipe.prefix.is_some(),
                standing,
                env: recipe.env.encode().map_err(|error| NotParked::Now(error.to_string()))?,
                given,
                variables: Vec::new(),
                files: Vec::new(),
                added: recipe.prefix.is_none().then(|| recipe.confinement.added()),
                begun,
                are_told_apart,
            }),
            private: 0,
            child_private: None,
            forked: 0,
            barren: None,
        };
        parked.line.renumber()?;
        let now = Standing::of_heir_of(maker).ok_or_else(|| NotParked::Now("/proc".to_owned()))?;
        if let Some(what) = parked.birth.standing.authority().differs(now.authority()) {
            // Another thread has changed the ids of all threads, for example.
            return Err(NotParked::Now(format!("{what} changed")));
        }
        Ok(parked)
    }

    /// Whether it is parked by now; `None`: it has said nothing yet.
    pub(super) fn is_parked(&mut self) -> Option<Result<(), NotParked>> {
        if !self.line.poll(Duration::ZERO) {
            return None;
        }
        let mut message = vec![0; wire::MAX_MESSAGE];
        Some(match self.line.hear(Duration::ZERO, &mut message).and_then(|(message, _)| wire::decode(message)) {
            Some(Reply::Parked { private, variables, files, authority, .. }) => {
                if let Some(changed) = self.birth.changed_by_exec(&authority) {
                    return Some(Err(changed));
                }
                let owned = |list: Vec<&[u8]>| list.into_iter().map(<[u8]>::to_vec).collect();
                self.private = private;
                // What is parked ends with this process by itself, and the one in front with that.
                self.front.take().into_iter().for_each(Tree::detach);
                if let Some(birth) = Arc::get_mut(&mut self.birth) {
                    (birth.variables, birth.files) = (owned(variables), owned(files));
                }
                Ok(())
            }
            Some(Reply::Cannot { why }) => Err(NotParked::Ever(String::from_utf8_lossy(why).into_owned())),
            _ => Err(NotParked::Ever(NOT_PARKED.to_owned())),
        })
    }

    /// Has children forked from it, which wait as it does itself. Where there are fewer, it is of no use any more: also says why.
    ///
    /// # Errors
    /// Why none was asked for.
    pub(super) fn fork(&mut self, count: usize) -> Result<Born, &'static str> {
        let (mut lines, mut fewer) = (Vec::new(), self.barren);
        while fewer.is_none() && lines.len() < count {
            match self.ask_for_child(lines.is_empty()) {
                // All are asked for at once: then nobody waits for each.
                Ok(line) => lines.push(line),
                Err(why @ ("descriptors" | "descriptor table")) if lines.is_empty() => return Err(why),
                Err(why) => fewer = Some(why),
            }
        }
        let mut all = Vec::with_capacity(lines.len());
        for line in lines {
            match self.expect_child(line) {
                Ok(child) => all.push(child),
                Err(why) => fewer = fewer.or(Some(why)),
            }
        }
        self.forked += all.len() as u64;
        self.barren = fewer;
        Ok(Born { all, fewer })
    }

    fn ask_for_child(&self, is_first: bool) -> Result<Line, &'static str> {
        let (line, theirs) = Line::new().map_err(|_| "descriptors")?;
        let socket = self.line.socket().ok_or("descriptor table")?;
        let mut request = wire::encode_fork(self.child_private.is_none() && is_first);
        let sent = send(socket.as_raw_fd(), &mut request, &theirs.each_ref().map(AsRawFd::as_raw_fd));
        sent.map(|()| line).map_err(why_unsent)
    }

    fn expect_child(&mut self, mut line: Line) -> Result<Parked, &'static str> {
        let mut message = [0; 64];
        // Where it ends there is something to hear, too.
        let answers = line.poll(PATIENCE);
        let heard =
            line.hear(Duration::ZERO, &mut message).and_then(|(message, pidfd)| Some((wire::decode(message)?, pidfd?)));
        let child = heard.and_then(|(reply, pidfd)| match reply {
            Reply::Parked { pid, private, .. } => Some((Child::new(pid, pidfd, self.birth.started, None), private)),
            Reply::Cannot { .. } => None,
        });
        let Some((child, private)) = child else {
            // The one that forks ends first, and then a child that nobody knows of: no more is born.
            self.end();
            line.end_unknown_child();
            return Err(if answers { "died" } else { "slow" });
        };
        let renumbered = line.renumber();
        let parked = Parked {
            generation: self.generation,
            child: Some(child),
            front: None,
            line,
            serial: 0,
            birth: self.birth.clone(),
            private: *self.child_private.get_or_insert(private),
            child_private: None,
            forked: 0,
            barren: None,
        };
        if renumbered.is_err() {
            // The end of `parked` kills the child by its pidfd.
            self.end();
            return Err("descriptors");
        }
        Ok(parked)
    }

    /// Where it is heard.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.line.socket()
    }

    /// What it and the owner write to.
    pub(super) fn page(&self) -> Arc<wire::Page> {
        self.line.page.clone()
    }

    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    /// The environment it was parked with.
    pub(super) fn environment(&self) -> &ArgBlock {
        &self.birth.env
    }

    /// Whether a program with that environment would have found before main what this one has.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn agrees(&self, envp: &ArgBlock) -> Result<(), &'static str> {
        if self.birth.executes || std::ptr::eq(envp, &raw const *self.birth.env) {
            return Ok(());
        }
        for name in &self.birth.variables {
            if value(&self.birth.env, name) != value(envp, name) {
                return Err("variable");
            }
        }
        // ld.so and malloc look at these, and no getenv tells.
        let early = |string: &&[u8]| {
            [&b"LD_"[..], b"GLIBC_TUNABLES=", b"MALLOC_", b"OMP_", b"GOMP_"]
                .iter()
                .any(|prefix| string.starts_with(prefix))
        };
        let of = |block: &ArgBlock| {
            let mut all: Vec<Vec<u8>> =
                block.iter().map(std::ffi::CStr::to_bytes).filter(early).map(<[u8]>::to_vec).collect();
            all.sort_unstable();
            all
        };
        if of(&self.birth.env) == of(envp) { Ok(()) } else { Err("variable") }
    }

    /// The signals that are ignored in it.
    pub(super) fn ignored(&self) -> u64 {
        self.birth.standing.ignored() & !MADE_DEFAULT
    }

    /// Offers it what is to become of it: it gets ready, and waits for [`go`](Parked::go).
    ///
    /// # Errors
    /// Why it has not been offered.
    pub(super) fn offer(&mut self, plan: &Plan, request: &Request<'_>) -> Result<Claim, Answer> {
        if !self.child.as_ref().is_some_and(Child::is_own) {
            return Err(Answer::Refused("descriptor table"));
        }
        // The one in front: nobody would hear of the program's end.
        if self.birth.has_front && !self.is_able() {
            return Err(Answer::Gone(if self.has_ended() { "died" } else { "slow" }));
        }
        self.serial += 1;
        let mut message = wire::encode(self.serial, plan, request).map_err(Answer::Refused)?;
        let socket = self.line.socket().ok_or(Answer::Refused("descriptor table"))?;
        let claim = Claim::offer(&self.line.page, self.serial);
        match send(socket.as_raw_fd(), &mut message, &request.sources) {
            Ok(()) => Ok(claim),
            Err(Errno::EMSGSIZE | Errno::ENOBUFS) => Err(Answer::Refused("arguments too long")),
            Err(errno) => Err(match why_unsent(errno) {
                "descriptors" => Answer::Refused("descriptors"),
                gone => Answer::Gone(gone),
            }),
        }
    }

    /// Has it done. `landing`: nobody waits until it is the program; what has become of it is asked when it has ended.
    pub(super) fn go(&mut self, claim: Claim, context: &Context, landing: Option<&Arc<Plan>>) -> Answer {
        if let Err(reason) = wire::leave(&self.line.page, context) {
            return Parked::withdraw(&claim, reason);
        }
        claim.turn(State::Offered, State::Go);
        if let Some(plan) = landing
            && claim.state() != State::Refused
            && self.is_able()
        {
            return self.became(Some(Box::new(PendingRequest { claim, plan: plan.clone() })));
        }
        self.listen(&claim)
    }

    /// Has it not done, for that reason.
    pub(super) fn withdraw(claim: &Claim, reason: &'static str) -> Answer {
        claim.turn(State::Offered, State::Withdrawn);
        Answer::Refused(reason)
    }

    fn listen(&mut self, claim: &Claim) -> Answer {
        let mut left = PATIENCE;
        loop {
            let state = claim.state();
            match state {
                State::Became => return self.became(None),
                State::Failed(index, error) if index < wire::CONTEXT.into() => {
                    let stage = Stage::Action(index as u16);
                    return Answer::Failed(Some(Failure { stage, errno: Errno::from_raw(error) }));
                }
                State::Failed(..) => return Answer::Gone("context"),
                State::Refused => return Answer::Refused("refused"),
                State::Withdrawn => return Answer::Gone("slow"),
                // An exec closes the line, and so does an end. One that has ended may have been the program.
                State::Taken if self.birth.executes => {
                    if self.line.poll(CHECK) || self.has_ended() {
                        return self.reported(claim);
                    }
                    // An application has put something else there: nothing is heard any more, but of the end.
                    if self.line.socket().is_none() {
                        claim.wait(state, CHECK);
                    }
                    continue;
                }
                State::Offered | State::Go | State::Taken => claim.wait(state, CHECK),
            }
            if claim.state() == state {
                if self.has_ended() && claim.state() == state {
                    return Answer::Gone("died");
                }
                left = left.saturating_sub(CHECK);
                if left.is_zero() && claim.turn(State::Go, State::Withdrawn) {
                    return Answer::Gone("slow");
                }
            }
        }
    }

    fn became(&mut self, pending: Option<Box<dyn PendingStart>>) -> Answer {
        match self.child.take() {
            Some(child) => Answer::Program(Box::new(child.restarted(self.birth.started, pending))),
            None => Answer::Gone("died"),
        }
    }

    /// What became of one that was to execute something, and has, or has ended.
    fn reported(&mut self, claim: &Claim) -> Answer {
        let failure = match claim.report() {
            Report::Program { .. } => return self.became(None),
            Report::Failed(failure) => Some(failure),
            // Some of its steps may have been carried out.
            Report::Killed(_) => None,
        };
        // It has ended, or is just about to, and never was the program.
        if let Some(mut child) = self.take_child() {
            let _ = child.wait();
        }
        match failure {
            Some(Failure { stage: Stage::Action(wire::CONTEXT), .. }) => Answer::Gone("context"),
            failure => Answer::Failed(failure),
        }
    }

    /// Whether it has ended.
    fn has_ended(&self) -> bool {
        self.look(WaitIdOptions::EXITED)
    }

    /// Whether it runs: it has neither ended nor been stopped.
    fn is_able(&self) -> bool {
        !self.look(WaitIdOptions::EXITED | WaitIdOptions::STOPPED)
    }

    fn look(&self, what: WaitIdOptions) -> bool {
        let Some(child) = &self.child else { return true };
        let how = what | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::PidFd(child.as_fd()), how), Ok(None))
    }

    /// The process, to be ended and waited for; `None`: not by this process, or not for sure.
    fn take_child(&mut self) -> Option<Child> {
        let child = self.child.take()?;
        if fork_generation() != Ok(self.generation) {
            // A copy's: the process is not its own.
            std::mem::forget(child);
            return None;
        }
        let are_told_apart = self.birth.are_told_apart;
        if child.is_own() && (are_told_apart || may_refer_to(&child)) {
            return Some(child);
        }
        let (pid, identity) = (child.id() as i32, child.identity());
        // The number is the application's.
        std::mem::forget(child);
        self.line.hang_up();
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let again = Child::new(pid, pidfd, self.birth.started, None);
        if are_told_apart && again.identity() == identity {
            return Some(again);
        }
        // The host may have waited for it, and this be another process.
        drop(again.into_pidfd());
        None
    }

    /// Ends it.
    fn end(&mut self) {
        // As long as its number is its own.
        drop(self.front.take());
        let Some(mut child) = self.take_child() else { return };
        if child.kill().is_ok() {
            let _ = child.wait();
        } else {
            // The host has given up the ids by which it may. It ends without us then, and is reaped when it has.
            self.line.hang_up();
        }
    }
}

impl Drop for Parked {
    /// Ends it, but for one that has become the program.
    fn drop(&mut self) {
        self.end();
    }
}

/// A request whose caller did not wait until the parked process had begun.
#[derive(Debug)]
struct PendingRequest {
    claim: Claim,
    plan: Arc<Plan>,
}

impl PendingStart for PendingRequest {
    /// # Errors
    /// The action that failed. ESRCH: the process was killed before it had begun, or could not be made the calling thread's equal.
    fn outcome(&self, _: Option<Ended>) -> Outcome<()> {
        match self.claim.state() {
            State::Taken | State::Became => Ok(()),
            State::Failed(index, error) if index < wire::CONTEXT.into() => {
                Err(step_failed(&self.plan, index as u16, Errno::from_raw(error)))
            }
            _ => Err(Error::new(At::Killed, Errno::ESRCH, "a parked process")),
        }
    }

    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn withdraw(&self) -> bool {
        self.claim.turn(State::Go, State::Withdrawn)
    }
}

/// Why a message has not been sent.
fn why_unsent(errno: Errno) -> &'static str {
    let are_too_few = matches!(errno, Errno::EBADF | Errno::ETOOMANYREFS);
    let is_gone = matches!(errno, Errno::EPIPE | Errno::ECONNRESET);
    if are_too_few {
        "descriptors"
    } else if is_gone {
        "died"
    } else {
        "socket"
    }
}

/// Whether a pidfd, by what /proc tells, refers to that process, or to one that has been waited for.
fn may_refer_to(child: &Child) -> bool {
    let described = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", child.as_fd().as_raw_fd()));
    let pids = [child.id().to_string(), "-1".to_owned()];
    described.is_ok_and(|lines| {
        let mut found = lines.lines().filter_map(|line| line.strip_prefix("Pid:"));
        found.any(|pid| pids.iter().any(|own| own == pid.trim()))
    })
}

impl NotParked {
    /// By whether it is for want of something.
    fn of_start(error: &Error) -> NotParked {
        let why = error.to_string();
        match error.errno() {
            Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOSPC => NotParked::Now(why),
            Errno::EIO | Errno::ETXTBSY => NotParked::Now(why),
            _ => NotParked::Ever(why),
        }
    }
}

impl From<Failed> for NotParked {
    fn from((call, errno): Failed) -> NotParked {
        NotParked::Now(format!("{call}: {}", errno.name()))
    }
}

fn value<'a>(block: &'a ArgBlock, name: &[u8]) -> Option<&'a [u8]> {
    block.iter().find_map(|string| string.to_bytes().strip_prefix(name)?.strip_prefix(b"="))
}
