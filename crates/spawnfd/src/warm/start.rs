// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a process that parks.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use spawnfd_parked::protocol::{self, ParkField, Zygote};
use spawnfd_sys::{Errno, abi, call, fork_generation};

use super::Kind;
use super::caller::CallerState;
use super::channel::{Channel, Failed};
use super::image::object_file;
use super::parked::{MADE_DEFAULT, Origin, Parked};
use super::recipe::Recipe;
use super::referent::Referent;
use super::watch::Moment;
use super::wire;
use crate::command::Stdio;
use crate::error::{Error, errno};
use crate::host::authority::Reach;
use crate::host::memfd;
use crate::host::numbers::{Known, above_standard};
use crate::sandbox::Given;
use crate::signals::SignalSet;
use crate::tree::{Tree, Want};

/// A small program that runs behind the program in front, in place of the recipe's.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) program: OwnedFd,
    /// The standard error of the program in front.
    pub(super) errors: OwnedFd,
}

/// The path prefix of probes. No other file has a path of this form.
pub(super) const PROBES: &str = "/proc/self/fd/./";

/// The path prefix of the object. No other file has a path of this form either: ld.so does not load a path a second
/// time, even if it leads to another file.
const OBJECT: &str = "/proc/self/./fd/";

/// Why a program is not parked.
#[derive(Debug)]
pub(super) enum NotParked {
    /// A resource is missing for now.
    Now(String),
    /// The program cannot be parked as it is.
    Ever(String),
}

impl Parked {
    /// Starts a process that parks. The calling thread was started by a thread with the reach of `maker`.
    ///
    /// `probe`: a program to start in place of the recipe's. It only reports whether the object would be loaded.
    ///
    /// # Errors
    /// The reason why the program cannot be parked.
    pub(super) fn start(
        recipe: &Recipe,
        object: &Known,
        maker: &Arc<Reach>,
        probe: Option<&Probe>,
    ) -> Result<Parked, NotParked> {
        let current_state = || CallerState::of_helper_thread(maker).ok_or_else(|| NotParked::Now("/proc".to_owned()));
        let caller = current_state()?;
        let (channel, [theirs, memory]) = Channel::new()?;
        let owner = pidfd_open(getpid(), PidfdFlags::empty());
        let owner = above_standard(owner.map_err(|error| ("pidfd_open()", errno(error)))?);
        let with_threads = (recipe.kind == Kind::Node).then(|| object_file(spawnfd_parked::OBJECT_WITH_THREADS));
        let with_threads = with_threads.transpose()?.map(above_standard);
        let said = above_standard(memfd::create("spawnfd-said", false).map_err(|errno| ("memfd_create()", errno))?);
        // If the application has reused the object's number, the program would run instead of parking.
        let object = with_threads.as_ref().or_else(|| object.get()).ok_or(("fstat()", Errno::EBADF))?;
        let identity = recipe.template.identity();
        let device = rustix::fs::makedev(identity.device.0, identity.device.1);
        let mode = if recipe.prefix.is_some() { protocol::Mode::Sandbox as u8 as char } else { recipe.mode.letter() };
        let kind = recipe.kind as u8 as char;
        // The library's descriptors get the lowest free numbers. Node opens descriptors before it parks; they must
        // get the numbers that they get in a cold start. Numbers near 64 would grow the table, which is visible in
        // /proc.
        let given = recipe.prefix.as_ref().map_or(&[][..], |prefix| &prefix.given);
        // The library needs six numbers. The object needs two more for its own 1 and 2 until the program parks.
        let is_free = |first: &RawFd| !given.iter().any(|given| (*first..first + 8).contains(&given.number));
        let first = if recipe.kind == Kind::Node { 40 } else { Zygote::Socket as RawFd };
        let first = (first..).find(is_free).unwrap_or(first);
        // A zygote has the first three, at fixed numbers.
        let [at, owner_at, page_at, object_at, probe_at, said_at] = std::array::from_fn(|place| first + place as RawFd);
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
        let mut command = recipe.outer().command();
        match &recipe.prefix {
            None => {
                command.current_dir("/");
                if !recipe.executes {
                    // The keeper thread is the parent and outlives the start. The object clears the signal when it
                    // parks.
                    command.parent_death_signal(9);
                }
            }
            // A signal to the program's group or session is meant for the program in front too. (A parent-death
            // signal would end the program in front with the keeper, even when a started program runs behind it.)
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
        if caller.is_ordinary() && recipe.stands_back() {
            // Running programs go first. (An unprivileged process cannot lower a nice value again.)
            command.scheduler(abi::SCHED_BATCH, 0);
        }
        let begun = Moment::now();
        let child = command.spawn().map_err(|error| NotParked::of_start(&error))?;
        drop(theirs);
        front.iter_mut().for_each(|tree| tree.born(child.id(), child.as_fd()));
        let are_told_apart = call::identify(owner.as_raw_fd()).is_ok_and(|owner| owner != child.identity());
        let origin = Origin {
            started: recipe.started(),
            executes: recipe.executes,
            has_front: recipe.prefix.is_some(),
            caller,
            env: recipe.env.encode().map_err(|error| NotParked::Now(error.to_string()))?,
            given,
            variables: Vec::new(),
            files: Vec::new(),
            added: recipe.prefix.is_none().then(|| recipe.confinement.added()),
            begun,
            are_told_apart,
        };
        let generation = fork_generation().map_err(|errno| ("mmap()", errno))?;
        let mut parked = Parked::new(generation, child, channel, Arc::new(origin));
        parked.front = front;
        parked.channel.renumber()?;
        if let Some(what) = parked.origin.caller.authority.differs(&current_state()?.authority) {
            // For example, another thread has changed the ids of all threads.
            return Err(NotParked::Now(format!("{what} changed")));
        }
        Ok(parked)
    }
}

impl NotParked {
    /// Classifies an error of the start: a missing resource, or a permanent reason.
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
