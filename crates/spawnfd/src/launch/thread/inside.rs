// SPDX-License-Identifier: MIT OR Apache-2.0
//! What runs in the launcher thread.
//!
//! Its descriptor table holds, from start to end: at 0, 1 and 2 something of no use, so that nothing received is ever taken for a stream;
//! its end of the socket; the pidfd of the marker. What comes for one child lies above, one after the other, and is closed before the reply.
//! The pidfd of that child stays until the next order, in case the caller does not receive it.
//! Numbers here mean nothing elsewhere: no owned descriptor of the host's must be dropped in this thread.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rustix::event::{EventfdFlags, eventfd};
use spawnfd_child::{Outcome, Plan, Room, Table, launch, leave_marker};
use spawnfd_sys::{Birth, Errno, MAX_PASSED, RawFd, abi, call, pass_descriptors, receive_descriptors, wait_pidfd};

use crate::authority::Authority;
use crate::inherited::{Directories, Inherited};
use crate::launch::{features, handlers};
use crate::template::Credentials;

const SOCKET: RawFd = 3;
const MARKER: RawFd = 4;
/// Where the first descriptor for a child comes to lie.
const FIRST: RawFd = 5;
/// Above all that can come for one, as numbers are given from below: the sources, a pidfd, a file that is read. The kernel goes through
/// every number up to here, or else up to the highest that the host's table had when this was a copy of it.
const LAST: RawFd = FIRST + MAX_PASSED as RawFd + 8;

/// What a caller asks of the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Start a child.
    Start(Box<Request>),
    /// Kill and reap the child of the last start, whose pidfd the caller has not received. The sender is dropped when that is done.
    Discard(Sender<()>),
}

/// One start.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) plan: Arc<Plan>,
    /// Its cgroup, if any, is passed after the plan's sources.
    pub(super) birth: Birth,
    /// The caller's, to be compared.
    pub(super) inherited: Inherited,
    pub(super) directories: Option<Directories>,
    /// Of the message with the descriptors.
    pub(super) tag: u64,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Served {
    /// There is a child; its pidfd is in the socket.
    Born(i32, Outcome),
    /// There is none, and the clone launcher would be told the same.
    Refused(Errno),
    /// There is none, as a child would not be what the caller's is.
    Differs(&'static str),
}

/// The thread is ready.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) thread: i32,
    pub(super) marker: i32,
}

/// What could not be done, and why.
type Failed = (&'static str, Errno);

/// The thread's life: until nobody can send a request any more.
pub(super) fn run(
    socket: RawFd,
    made_by: &(Authority, Credentials),
    begun: &Sender<Result<Begun, Failed>>,
    orders: &Receiver<Order>,
    replies: &Sender<Served>,
) {
    crate::own_proc::keep_nothing();
    let mut room = match begin(socket, &made_by.0) {
        Ok((room, ready)) => {
            let _ = begun.send(Ok(ready));
            room
        }
        Err(failed) => return drop(begun.send(Err(failed))),
    };
    let mut child = None;
    for order in orders {
        let request = match order {
            Order::Start(request) => request,
            Order::Discard(done) => {
                child.take().into_iter().for_each(discard);
                drop(done);
                continue;
            }
        };
        if child.take().is_some() {
            empty(FIRST, LAST);
        }
        let served = serve(&mut room, &made_by.1, *request, &mut child).unwrap_or_else(Served::Differs);
        match child {
            Some(FIRST) => {}
            Some(pidfd) => empty(FIRST, pidfd - 1),
            None => empty(FIRST, LAST),
        }
        if replies.send(served).is_err() {
            break;
        }
    }
    // It has ended long ago.
    let _ = wait_pidfd(MARKER, true);
}

fn begin(socket: RawFd, authority: &Authority) -> Result<(Room, Begun), Failed> {
    leave_table(socket)?;
    let mut room = Room::new().map_err(|errno| ("mmap()", errno))?;
    let marker = leave_marker(&mut room, features::of_calling_thread().has_clone3())
        .map_err(|refused| ("clone()", refused.0))?;
    let (pid, pidfd) = (marker.pid, OwnedFd::from(marker.pidfd).into_raw_fd());
    match stand_beside(pidfd, authority) {
        Ok(thread) => Ok((room, Begun { thread, marker: pid })),
        Err(failed) => {
            let _ = wait_pidfd(MARKER, true).or_else(|_| wait_pidfd(pidfd, true));
            Err(failed)
        }
    }
}

/// The thread's id, once it has nothing but the marker beside the socket, and is what its maker was.
fn stand_beside(marker: RawFd, authority: &Authority) -> Result<i32, Failed> {
    put(marker, MARKER).map_err(|errno| ("dup3()", errno))?;
    empty(FIRST, RawFd::MAX);
    let own = Authority::of_heir_of(authority.reach()).map_err(|_| ("open(\"/proc/thread-self\")", Errno::ENOENT))?;
    // Something has changed all threads' meanwhile.
    if authority.differs(&own).is_some() {
        return Err(("compare()", Errno::EAGAIN));
    }
    call::gettid().map_err(|errno| ("gettid()", errno))
}

/// Leaves the host's descriptor table for one with nothing in it but the socket.
fn leave_table(socket: RawFd) -> Result<(), Failed> {
    match call::close_range(features::killed(), socket as u32 + 1, u32::MAX, call::CLOSE_RANGE_UNSHARE) {
        Ok(_) => {}
        Err(_) => drop(call::unshare_descriptors(features::killed()).map_err(|errno| ("unshare(CLONE_FILES)", errno))?),
    }
    let arranged = put(socket, SOCKET).and_then(|()| {
        empty(MARKER, RawFd::MAX);
        // Nothing of the host's, nothing that waits, and what is written there is lost.
        let nothing =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(crate::error::errno)?.into_raw_fd();
        (0..SOCKET).try_for_each(|number| put(nothing, number))
    });
    empty(MARKER, RawFd::MAX);
    arranged.map_err(|errno| ("dup3()", errno))
}

/// Makes `to` a copy, close-on-exec.
fn put(from: RawFd, to: RawFd) -> Result<(), Errno> {
    if from != to {
        call::dup3(from, to)?;
    }
    call::set_descriptor_flags(to, abi::FD_CLOEXEC).map(drop)
}

/// Closes a range of numbers.
fn empty(first: RawFd, last: RawFd) {
    if call::close_range(features::killed(), first as u32, last as u32, 0).is_ok() {
        return;
    }
    // What lists them is among them.
    let listed = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| (first..=last).contains(number)) {
        let _ = call::close(number);
    }
}

/// Kills and reaps a child. One that has taken other ids may not be killed, and stays.
fn discard(pidfd: RawFd) {
    if call::pidfd_send_signal(features::killed(), pidfd, abi::SIGKILL as i32).is_ok() {
        let _ = wait_pidfd(pidfd, true);
    }
    let _ = call::close(pidfd);
}

/// Starts one child, and leaves the number of its pidfd in `child`.
///
/// # Errors
/// Why the clone launcher has to do it.
fn serve(
    room: &mut Room,
    credentials: &Credentials,
    request: Request,
    child: &mut Option<RawFd>,
) -> Result<Served, &'static str> {
    let Request { plan, mut birth, inherited, directories, tag } = request;
    let count = plan.sources.len() + usize::from(birth.cgroup.is_some());
    receive(tag, count)?;
    birth.cgroup = birth.cgroup.map(|_| FIRST + plan.sources.len() as RawFd);
    // All of its authority that others can change: setuid(3) and its like reach every thread. (A filter that is laid over all
    // threads at once lies over all of them.)
    if !credentials.are_current() {
        return Err("launcher's ids");
    }
    // Somebody has waited for it: its number may be another's by now.
    if call::pidfd_send_signal(features::killed(), MARKER, 0).is_err() {
        return Err("marker");
    }
    if let Some(what) = Inherited::of_calling_thread().differs(&inherited) {
        return Err(what);
    }
    if let Some(theirs) = directories {
        let own = Authority::of_calling_thread().map_err(|_| "/proc")?;
        if Directories::of_calling_thread(own.umask()) != Some(theirs) {
            return Err("directories");
        }
    }
    let (handlers, begun) = handlers::at_birth(birth.clone3);
    let born = match launch(room, birth, Table::Received { first: FIRST }, &plan, handlers) {
        Ok(born) => born,
        // The clone launcher knows what to do without.
        Err(refused) if birth.clone3 && matches!(refused.0, Errno::ENOSYS | Errno::EPERM) => return Err("clone3"),
        Err(refused) => return Ok(Served::Refused(refused.0)),
    };
    if let Some(caught) = born.caught {
        handlers::learn(caught, begun);
    }
    let pidfd = OwnedFd::from(born.child.pidfd).into_raw_fd();
    // Where that fails the caller receives nothing, and has the child discarded.
    let _ = pass_descriptors(SOCKET, tag, &[pidfd]);
    *child = Some(pidfd);
    Ok(Served::Born(born.child.pid, born.outcome))
}

/// Takes the message with a tag out of the socket, and older ones that were left there.
fn receive(tag: u64, count: usize) -> Result<(), &'static str> {
    let mut fds = [-1; MAX_PASSED];
    loop {
        // One of another start may carry less.
        match receive_descriptors(SOCKET, &mut fds[..count]) {
            Ok(found) if found == tag => break,
            Ok(_) | Err(Errno::EMFILE) => empty(FIRST, LAST),
            Err(_) => return Err("descriptors"),
        }
    }
    let in_order = (FIRST..).zip(&fds[..count]).all(|(expected, &fd)| fd == expected);
    if in_order { Ok(()) } else { Err("descriptors") }
}
