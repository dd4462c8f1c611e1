// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors through a unix socket (SCM_RIGHTS), without allocation.

use core::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::{general as abi, net};

use crate::errno::Errno;
use crate::{RawFd, arch};

/// How many descriptors one message carries: SCM_MAX_FD of the kernel's include/net/scm.h.
pub const MAX_PASSED: usize = 253;

const HEADER: usize = size_of::<net::cmsghdr>();

/// A control buffer for one SCM_RIGHTS message, aligned as the kernel wants it.
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
    // SAFETY: header, vector, bytes and control are valid for the sizes given and outlive the call.
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

    /// How many descriptors have come, in a buffer of which the kernel has written `used` bytes.
    fn came(&self, used: usize) -> usize {
        if used < HEADER { 0 } else { self.header.cmsg_len.saturating_sub(HEADER) / size_of::<RawFd>() }
    }
}

/// Sends `fds` (at most [`MAX_PASSED`]) with `tag` into `socket`, never waiting.
///
/// # Errors
/// EBADF: one of `fds` is not open. ETOOMANYREFS: more in flight than RLIMIT_NOFILE allows an unprivileged user.
/// EAGAIN: the socket's queue is full. EINVAL: more than [`MAX_PASSED`].
///
/// # References
/// unix(7), SCM_RIGHTS.
#[doc(alias = "sendmsg")]
pub fn pass_descriptors(socket: RawFd, tag: u64, fds: &[RawFd]) -> Result<(), Errno> {
    send(socket, &mut tag.to_ne_bytes(), fds)
}

/// Sends `bytes` as one message, with `fds` (at most [`MAX_PASSED`]), never waiting. The bytes stay as they are.
///
/// # Errors
/// As [`pass_descriptors`]. EMSGSIZE: longer than the socket takes at once. EPIPE, ECONNRESET: nobody has the other end.
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
    // CMSG_SPACE: the kernel accepts a control buffer that ends with its last header's data rounded up to 8.
    let space = if fds.is_empty() { 0 } else { length.next_multiple_of(8) };
    call(abi::__NR_sendmsg, socket, bytes, &mut control, space, net::MSG_DONTWAIT | net::MSG_NOSIGNAL).map(drop)
}

/// Receives exactly `fds.len()` descriptors, close-on-exec, and the tag they were sent with, never waiting.
///
/// Written for a child between clone and exec: no allocation, no panic. On an error what came stays open;
/// the child is about to exit.
///
/// # Errors
/// EAGAIN: nothing was sent. EMFILE: not all fitted below RLIMIT_NOFILE.
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
        // SAFETY: `came` of the places have been written by the kernel, and `fds` has no more.
        *fd = unsafe { slot.assume_init() };
    }
    Ok(u64::from_ne_bytes(tag))
}

/// Receives one message, and the descriptor it was sent with, if any, close-on-exec. How long it was; 0: nobody has the other end any
/// more. Waits as long as the socket's own timeout says (SO_RCVTIMEO).
///
/// # Errors
/// EAGAIN: nothing was sent. EINTR. EMSGSIZE: it was longer, or brought more than one descriptor; it is gone.
#[doc(alias = "recvmsg")]
pub fn receive(socket: RawFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut control = Control::empty();
    // Room for one: the kernel closes what does not fit.
    let room = (HEADER + size_of::<RawFd>()).next_multiple_of(8);
    let flags = net::MSG_CMSG_CLOEXEC;
    let (length, used, flags) = call(abi::__NR_recvmsg, socket, bytes, &mut control, room, flags)?;
    let mut came = control.fds.iter().take(control.came(used)).map(|place| {
        // SAFETY: the kernel has written so many, which it has just made for this message, and nobody else knows of them.
        unsafe { OwnedFd::from_raw_fd(place.assume_init()) }
    });
    let fd = came.next();
    // Rounded up there is room for two.
    let more = came.map(drop).count() > 0;
    if more || flags & (net::MSG_TRUNC | net::MSG_CTRUNC) != 0 { Err(Errno::EMSGSIZE) } else { Ok((length, fd)) }
}
