// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes descriptors through a unix socket (SCM_RIGHTS), without allocation.

use core::mem::MaybeUninit;
#[cfg(feature = "std")]
use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::{general as abi, net};

use crate::errno::Errno;
use crate::{RawFd, arch};

/// The maximum number of descriptors in one message: SCM_MAX_FD of the kernel's include/net/scm.h.
pub const MAX_PASSED: usize = 253;

const HEADER: usize = size_of::<net::cmsghdr>();

/// A control buffer for one SCM_RIGHTS message, with the alignment that the kernel requires.
#[repr(C, align(8))]
struct Control {
    header: net::cmsghdr,
    fds: [MaybeUninit<RawFd>; MAX_PASSED],
}

fn call(
    number: u32,
    socket: RawFd,
    bytes: &mut [u8],
    control: &mut Control,
    used: usize,
    flags: u32,
) -> Result<(usize, usize, u32), Errno> {
    let mut vector = abi::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() as _ };
    let mut message = net::msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: (&raw mut vector).cast(),
        msg_iovlen: 1,
        msg_control: (&raw mut *control).cast(),
        msg_controllen: used as _,
        msg_flags: 0,
    };
    let args = [socket as usize, &raw mut message as usize, flags as usize, 0, 0, 0];
    // SAFETY: message, vector, bytes and control are valid for the given sizes and outlive the call.
    let length = Errno::check(unsafe { arch::syscall(number, args) })?;
    Ok((length, message.msg_controllen as usize, message.msg_flags))
}

impl Control {
    fn empty() -> Control {
        Control {
            header: net::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
            fds: [MaybeUninit::uninit(); MAX_PASSED],
        }
    }

    /// Returns the number of received descriptors in a buffer to which the kernel has written
    /// `used` bytes.
    fn came(&self, used: usize) -> usize {
        if used < HEADER { 0 } else { self.header.cmsg_len.saturating_sub(HEADER) / size_of::<RawFd>() }
    }
}

/// Sends `bytes` as one message with `fds` (at most [`MAX_PASSED`]), without blocking. Does not change the bytes.
///
/// # Errors
/// EBADF: one of `fds` is not open. ETOOMANYREFS: an unprivileged user has more descriptors in unread messages than
/// RLIMIT_NOFILE allows. EAGAIN: the socket's queue is full. EINVAL: more than [`MAX_PASSED`]. EMSGSIZE: the message
/// is longer than the socket accepts. EPIPE, ECONNRESET: the other end is closed.
///
/// # References
/// unix(7), SCM_RIGHTS.
#[doc(alias = "sendmsg")]
pub fn send(socket: RawFd, bytes: &mut [u8], fds: &[RawFd]) -> Result<(), Errno> {
    if fds.len() > MAX_PASSED {
        return Err(Errno::EINVAL);
    }
    let length = HEADER + size_of_val(fds);
    let mut control = Control::empty();
    control.header =
        net::cmsghdr { cmsg_len: length as _, cmsg_level: net::SOL_SOCKET as _, cmsg_type: net::SCM_RIGHTS as _ };
    for (place, &fd) in control.fds.iter_mut().zip(fds) {
        place.write(fd);
    }
    // CMSG_SPACE is the length of header and data, rounded up to a multiple of 8.
    let space = if fds.is_empty() { 0 } else { length.next_multiple_of(8) };
    call(abi::__NR_sendmsg, socket, bytes, &mut control, space, net::MSG_DONTWAIT | net::MSG_NOSIGNAL).map(drop)
}

/// Receives `fds.len()` descriptors, close-on-exec, and the tag of their message, without blocking.
///
/// A child can call this function between clone and exec, because the function does not allocate or
/// panic. On an error the received descriptors stay open until the child exits.
///
/// # Errors
/// EAGAIN: no message has arrived. EMFILE: fewer descriptors arrived, as happens if RLIMIT_NOFILE leaves no number.
/// EIO: the tag has another length.
///
/// # References
/// unix(7), SCM_RIGHTS; recvmsg(2), MSG_CMSG_CLOEXEC.
#[doc(alias = "recvmsg")]
#[inline]
pub fn receive_descriptors(socket: RawFd, fds: &mut [RawFd]) -> Result<u64, Errno> {
    let mut tag = [0; size_of::<u64>()];
    let mut control = Control::empty();
    let flags = net::MSG_DONTWAIT | net::MSG_CMSG_CLOEXEC;
    let (length, used, _) = call(abi::__NR_recvmsg, socket, &mut tag, &mut control, size_of::<Control>(), flags)?;
    if length != size_of::<u64>() {
        return Err(Errno::EIO);
    }
    if control.came(used) < fds.len() {
        return Err(Errno::EMFILE);
    }
    for (fd, slot) in fds.iter_mut().zip(&control.fds) {
        // SAFETY: the kernel has written `came` elements, and `fds` is no longer than that.
        *fd = unsafe { slot.assume_init() };
    }
    Ok(u64::from_ne_bytes(tag))
}

/// Receives one message, and the descriptor that it carries, if any, close-on-exec.
///
/// Returns the length of the message; 0 means that the other end is closed. Waits up to the socket's SO_RCVTIMEO.
///
/// # Errors
/// EAGAIN: no message has arrived. EINTR: a signal handler has run. EMSGSIZE: the message was
/// longer than `bytes`, or carried more than one descriptor; the message is lost.
#[cfg(feature = "std")]
#[doc(alias = "recvmsg")]
pub fn receive(socket: RawFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut control = Control::empty();
    // Give the kernel space for one descriptor. The kernel closes the descriptors that do not fit.
    let memory = (HEADER + size_of::<RawFd>()).next_multiple_of(8);
    let flags = net::MSG_CMSG_CLOEXEC;
    let (length, used, flags) = call(abi::__NR_recvmsg, socket, bytes, &mut control, memory, flags)?;
    let mut came = control.fds.iter().take(control.came(used)).map(|place| {
        // SAFETY: the kernel has written `came` numbers of descriptors that it has just opened for this message, so
        // they have no other owner.
        unsafe { OwnedFd::from_raw_fd(place.assume_init()) }
    });
    let fd = came.next();
    // The length of the control buffer is rounded up, which leaves space for a second descriptor.
    let more = came.map(drop).count() > 0;
    if more || flags & (net::MSG_TRUNC | net::MSG_CTRUNC) != 0 { Err(Errno::EMSGSIZE) } else { Ok((length, fd)) }
}

/// Receives one message, without blocking, and the pid of its sender as this process sees it. The socket must have the
/// option SO_PASSCRED. The pid is 0 if this process does not see the sender.
///
/// # Errors
/// EAGAIN: no message has arrived.
///
/// # References
/// unix(7), SCM_CREDENTIALS.
#[doc(alias = "recvmsg")]
pub fn receive_with_sender(socket: RawFd, bytes: &mut [u8]) -> Result<(usize, i32), Errno> {
    let mut control = Control::empty();
    let flags = net::MSG_DONTWAIT | net::MSG_CMSG_CLOEXEC;
    // Give the kernel space for a struct ucred: pid, uid, gid. The kernel closes descriptors that do not fit.
    let memory = (HEADER + 3 * size_of::<i32>()).next_multiple_of(8);
    let (length, used, _) = call(abi::__NR_recvmsg, socket, bytes, &mut control, memory, flags)?;
    let has_sender = used >= HEADER && control.header.cmsg_type as u32 == net::SCM_CREDENTIALS;
    // SAFETY: the kernel has written a struct ucred, whose first word is the pid.
    let pid = if has_sender { unsafe { control.fds[0].assume_init() } } else { 0 };
    Ok((length, pid))
}
