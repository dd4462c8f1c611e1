// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread launcher: a thread that has a descriptor table of its own, and nothing of the host's in it. Its children never hold a
//! foreign descriptor, not for an instant, wherever those lie in the caller's table.
//!
//! The caller sends what the child is to have over a socket, standard streams included, and hands the plan over in memory; the thread
//! starts the child from its own table, and sends the pidfd back. The caller is told what the clone launcher would have told it.
//!
//! A child of another thread gets that thread's authority and attributes. So each time all of both threads' is compared: authority with
//! what the thread was born with ([`Authority`], [`authority::reach`]), the rest with what it has now ([`Inherited`]). Where they
//! differ, or equality cannot be shown, `None` says that the clone launcher has to do it, and the reason is counted. The signal
//! mask alone is carried over. See docs/adr/0006-thread-launcher.md.

mod inside;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spawnfd_child::Plan;
use spawnfd_sys::{Birth, Errno, MAX_PASSED, RawFd, call, fork_generation, pass_descriptors, receive_descriptor};

use super::{Arrived, Refusal, features};
use crate::authority::{self, Authority};
use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::inherited::{Directories, Inherited};
use crate::numbers::{Known, above_standard};
use crate::per_process::PerProcess;
use crate::template::Credentials;
use crate::thread::start_thread;
use inside::{Order, Request, Served};

/// A thread that starts programs from a descriptor table of its own.
///
/// A program started through it never holds a descriptor of this process that it was not given, not even between its birth and exec: a
/// file that other threads are writing, to execute it next, is never busy (ETXTBSY) because of such a start, wherever its descriptor lies.
/// Nothing else changes but the time a start takes. It serves one start at a time, and sleeps until the program runs
/// whatever [`Command::wait_for_exec`] says. So what opens files, which may take for ever, and is not waited for so, goes without it.
///
/// What the program may do, and what it inherits, is what it would have from the calling thread. Where that thread's ids, capabilities,
/// filters, namespaces, working directory, scheduling or the like are not, or are not known to be, the launcher's, the program is
/// started without it, and [`stats`](LauncherThread::stats) counts why. It takes these from the thread that makes it. Where seccomp filters
/// are in force (in a container, mostly) it serves other threads only if this library was first used while the process had one thread;
/// otherwise make one in each thread that starts programs.
///
/// Clones share the thread; it ends when the last of them is dropped (commands hold one). Beside it there is an ended child
/// process that has not been waited for: it shows whether Landlock confines a caller more. `wait(-1)` does not see it.
///
/// # Examples
/// ```
/// use spawnfd::{Command, LauncherThread};
/// let launcher = LauncherThread::new()?;
/// assert!(Command::new("/bin/true").launcher(&launcher).spawn()?.wait()?.success());
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LauncherThread(Arc<Shared>);

/// What a [`LauncherThread`] has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LauncherStats {
    /// Children born in the thread.
    pub spawned: u64,
    /// Starts that went without it, by the reason.
    pub fell_back: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
struct Shared {
    generation: u64,
    /// What the thread may do: no more and no less than the one that made it could.
    authority: Authority,
    /// Its id.
    thread: i32,
    /// What shows its Landlock domain.
    marker: PathBuf,
    /// Gone only while it is dropped.
    inner: Option<Inner>,
    stats: PerProcess<LauncherStats>,
}

#[derive(Debug)]
struct Inner {
    talk: Mutex<Talk>,
    handle: JoinHandle<()>,
}

/// The caller's end: held by one caller at a time, from request to reply.
#[derive(Debug)]
struct Talk {
    orders: Sender<Order>,
    replies: Receiver<Served>,
    socket: Known,
    tag: u64,
}

/// What the calling thread has been found to be, for one start.
pub(super) struct Compared<'a> {
    shared: &'a Shared,
    found: std::result::Result<Alike, &'static str>,
}

/// A calling thread that may do what the launcher's may.
#[derive(Debug)]
pub(super) struct Alike {
    /// To be compared in the thread.
    inherited: Inherited,
    /// The same, where it cannot be told at once that they are one.
    directories: Option<Directories>,
    /// Which of the caller's 0, 1 and 2 are open.
    streams: [bool; 3],
}

impl LauncherThread {
    /// Starts the thread.
    ///
    /// For an instant at its start it has a copy of what lies below a new descriptor of the calling thread.
    ///
    /// # Errors
    /// EPERM, ENOSYS: neither close_range(2) nor unshare(2) can give a thread a descriptor table of its own here. ENOENT and
    /// the like: /proc cannot be read. EAGAIN, ENOMEM, EMFILE, ENFILE.
    #[doc(alias("CLONE_FILES", "CLOSE_RANGE_UNSHARE"))]
    pub fn new() -> Result<LauncherThread> {
        let failed = |call: &str, errno| Error::new(Stage::Clone, errno, format!("launcher thread: {call}"));
        let generation = fork_generation().map_err(|errno| failed("mmap()", errno))?;
        let authority = Authority::of_calling_thread().map_err(|e| failed("open(\"/proc/thread-self\")", errno(e)))?;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| failed("socketpair()", errno(e)))?;
        // The thread's end first: what lies below it is copied.
        let theirs = above_standard(theirs);
        let socket = Known::new(socket);
        let ((orders, arriving), (answering, replies)) = (channel(), channel());
        let (begun, begins) = channel();
        let (number, made_by) = (theirs.as_raw_fd(), (authority.clone(), Credentials::current()));
        let body = move || inside::run(number, &made_by, &begun, &arriving, &answering);
        let handle = start_thread("spawnfd-launch", 256 << 10, body).map_err(|errno| failed("clone()", errno))?;
        let begun = begins.recv().unwrap_or(Err(("a panic", Errno::EIO)));
        // From here on it has an end of its own.
        drop(theirs);
        let begun = match begun {
            Ok(begun) => begun,
            Err((call, errno)) => {
                let _ = handle.join();
                return Err(failed(call, errno));
            }
        };
        let talk = Mutex::new(Talk { orders, replies, socket, tag: 0 });
        Ok(LauncherThread(Arc::new(Shared {
            generation,
            authority,
            thread: begun.thread,
            marker: authority::inside(begun.marker),
            inner: Some(Inner { talk, handle }),
            stats: PerProcess::new(LauncherStats::default()),
        })))
    }

    /// What it has done so far, in this process.
    pub fn stats(&self) -> LauncherStats {
        self.0.stats.lock().clone()
    }

    /// Whether the thread can start this command for the calling thread, as that would: it sleeps until the program runs, which is not
    /// for what `may_stand_still`.
    pub(super) fn compare(&self, command: &Command<'_>, may_stand_still: bool) -> Compared<'_> {
        let found = if may_stand_still { Err("files to open") } else { self.0.compare(command) };
        Compared { shared: &self.0, found }
    }
}

impl Shared {
    fn falls_back(&self, reason: &'static str) {
        *self.stats.lock().fell_back.entry(reason).or_default() += 1;
    }

    /// What the thread has to compare with its own, once the rest is found equal.
    ///
    /// # Errors
    /// What is not.
    fn compare(&self, command: &Command<'_>) -> std::result::Result<Alike, &'static str> {
        // The copy of a process has no such thread.
        if fork_generation() != Ok(self.generation) {
            return Err("fork");
        }
        if let Some(reason) = command.needs_calling_thread() {
            return Err(reason);
        }
        let now = Authority::of_calling_thread().map_err(|_| "/proc")?;
        if let Some(what) = self.authority.differs(&now) {
            return Err(what);
        }
        authority::reach(&self.marker)?;
        let one =
            call::gettid().and_then(|own| call::share_directories(features::killed(), own, self.thread)) == Ok(true);
        let directories = match one {
            true => None,
            false => Some(Directories::of_calling_thread(now.umask()).ok_or("directories")?),
        };
        let streams = command.open_streams()?;
        Ok(Alike { inherited: Inherited::of_calling_thread(), directories, streams })
    }
}

impl Compared<'_> {
    /// Which of the caller's 0, 1 and 2 are open, if the thread can do it: the plan has to bring them.
    pub(super) fn streams(&self) -> Option<[bool; 3]> {
        self.found.as_ref().ok().map(|alike| alike.streams)
    }

    /// Starts the plan, which sets the signal mask, in the thread. `None`: it is still to be started, by the clone launcher.
    ///
    /// # Errors
    /// As the clone launcher has them.
    pub(super) fn launch(self, plan: &Arc<Plan>, birth: Birth) -> Option<std::result::Result<Arrived, Refusal>> {
        let Compared { shared, found } = self;
        let Alike { inherited, directories, .. } = found.map_err(|reason| shared.falls_back(reason)).ok()?;
        let mut talk = shared.inner.as_ref()?.talk.lock().unwrap_or_else(PoisonError::into_inner);
        let room = match talk.pass(&plan.sources, birth.cgroup) {
            Ok(room) => room,
            Err(Errno::EBADF) => return Some(Err(Refusal::Source)),
            Err(errno) => {
                shared.falls_back(if errno == Errno::ENOTSOCK { "socket" } else { "descriptors" });
                return None;
            }
        };
        let request = Request { plan: plan.clone(), birth, inherited, directories, tag: talk.tag };
        let served = match talk.ask(request) {
            Ok(served) => served,
            Err(errno) => return Some(Err(Refusal::Clone(errno))),
        };
        match served {
            Served::Differs(reason) => {
                shared.falls_back(reason);
                None
            }
            Served::Refused(errno) => Some(Err(Refusal::Clone(errno))),
            Served::Born(pid, outcome) => {
                drop(room);
                let pidfd = talk.collect();
                drop(talk);
                shared.stats.lock().spawned += 1;
                Some(pidfd.map(|pidfd| Arrived { pid, pidfd, outcome }).map_err(Refusal::Clone))
            }
        }
    }
}

impl Talk {
    /// Sends the sources, and the cgroup to be born in. Keeps a number free for the pidfd.
    fn pass(&mut self, sources: &[RawFd], cgroup: Option<RawFd>) -> std::result::Result<OwnedFd, Errno> {
        let count = sources.len() + usize::from(cgroup.is_some());
        if count > MAX_PASSED {
            return Err(Errno::EMSGSIZE);
        }
        let socket = self.socket.get().ok_or(Errno::ENOTSOCK)?;
        let room = socket.try_clone().map_err(|_| Errno::EMFILE)?;
        let mut all = [-1; MAX_PASSED];
        all[..sources.len()].copy_from_slice(sources);
        all[sources.len()..count].copy_from_slice(cgroup.as_slice());
        self.tag += 1;
        pass_descriptors(socket.as_raw_fd(), self.tag, &all[..count])?;
        Ok(room)
    }

    fn ask(&self, request: Request) -> std::result::Result<Served, Errno> {
        // It ends when it is told to, and nobody can tell it meanwhile.
        self.orders.send(Order::Start(Box::new(request))).map_err(|_| Errno::ESRCH)?;
        self.replies.recv().map_err(|_| Errno::ESRCH)
    }

    /// Receives the pidfd of a child. Without one the caller cannot know the child: the thread kills it, by the pidfd that it has kept. (By
    /// its pid another process could be hit: a `wait(-1)` of the application may have reaped the child.)
    fn collect(&self) -> std::result::Result<OwnedFd, Errno> {
        let socket = self.socket.get().ok_or(Errno::ENOTSOCK);
        let received = socket.and_then(|socket| receive_descriptor(socket.as_raw_fd()));
        match received {
            Ok((tag, pidfd)) if tag == self.tag => Ok(pidfd),
            received => {
                let (done, waits) = channel();
                let _ = self.orders.send(Order::Discard(done));
                let _ = waits.recv();
                Err(received.err().unwrap_or(Errno::ENOTSOCK))
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(Inner { talk, handle }) = self.inner.take() else { return };
        let Talk { orders, replies, socket, .. } = talk.into_inner().unwrap_or_else(PoisonError::into_inner);
        if fork_generation() != Ok(self.generation) {
            // A copy's: there is no thread to wait for, and who knows who held a lock. But the number is this process's own.
            std::mem::forget((handle, orders, replies));
            return;
        }
        drop(orders);
        let _ = handle.join();
        drop(socket);
    }
}
