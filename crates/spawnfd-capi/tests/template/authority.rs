// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which descriptors are templates, and which threads and processes may use them.

use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use libc::{EACCES, EBADF, EINVAL};
use spawnfd_sys::{CloneOptions, Stack, clone_child, wait_pidfd};

use crate::support::*;

/// Creates a memfd with a name and contents, which may be sealed.
pub fn memfd(name: &CStr, contents: &[u8]) -> OwnedFd {
    // SAFETY: the name is a string, and the call opens a new descriptor.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: the descriptor is new.
    let file = unsafe { File::from_raw_fd(file) };
    file.write_all_at(contents, 0).unwrap();
    file.into()
}

fn status(template: &impl AsRawFd) -> Result<i32, i32> {
    Request::script("exit 7").status(template)
}

#[test]
fn a_copy_of_the_descriptor_is_the_same_template() {
    let template = shell();
    let copy = template.try_clone().unwrap();
    drop(template);
    assert_eq!(status(&copy), Ok(7));
}

#[test]
fn only_a_template_is_a_template() {
    let regular = File::open("/bin/sh").unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let directory = File::open("/").unwrap();
    let other = memfd(c"spawn_builder", &[0; 64]);
    for (fd, name) in [
        (regular.as_raw_fd(), "a file"),
        (reader.as_raw_fd(), "a pipe"),
        (directory.as_raw_fd(), "a directory"),
        (other.as_raw_fd(), "another memfd"),
    ] {
        assert_eq!(status(&fd), Err(EINVAL), "{name}");
    }
    assert_eq!([status(&-1), status(&RawFd::MIN), status(&99_999)], [Err(EBADF); 3]);
}

#[test]
fn a_path_descriptor_of_a_template_is_no_template() {
    let template = shell();
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", template.as_raw_fd())).unwrap();
    // SAFETY: the path is a string, and the call opens a new descriptor.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    assert!(fd >= 0, "{}", Error::last_os_error());
    // SAFETY: the descriptor is new.
    assert_eq!(status(&unsafe { OwnedFd::from_raw_fd(fd) }), Err(EBADF));
}

/// The test puts another file at the number of a closed template.
#[test]
fn a_reused_number_is_no_template() {
    let template = inheritable(&shell());
    let file = File::open("/bin/sh").unwrap();
    assert_eq!(status(&template), Ok(7));
    // SAFETY: the test owns both numbers.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), template.as_raw_fd()) }, template.as_raw_fd());
    assert_eq!(status(&template), Err(EINVAL));
}

#[test]
fn a_forged_template_is_refused() {
    let template = shell();
    let genuine = std::fs::read(format!("/proc/self/fd/{}", template.as_raw_fd())).unwrap();
    let mut changed = genuine.clone();
    *changed.last_mut().unwrap() ^= 1;
    for contents in [&[][..], &[0; 15], &[0; 16], &[0; 300], &genuine, &changed] {
        assert_eq!(status(&memfd(c"spawn_template", contents)), Err(EACCES), "{} bytes", contents.len());
    }
    assert_eq!(status(&template), Ok(7));
}

#[test]
fn a_forked_child_cannot_use_the_template() {
    let template = shell();
    let errno = in_forked_child(|| status(&template).unwrap_err());
    assert_eq!(errno, EACCES);
    let own = in_forked_child(|| status(&shell()).unwrap());
    assert_eq!(own, 7, "the child can create its own template");
    assert_eq!(status(&template), Ok(7));
}

/// A child of vfork(2) has the memory of its parent, but is another process.
#[test]
fn a_child_of_vfork_cannot_use_the_template() {
    unsafe extern "C" fn enter(template: *const ()) -> ! {
        // SAFETY: the parent waits until the child has exited.
        let template = unsafe { &*template.cast::<OwnedFd>() };
        let errno = status(template).err().unwrap_or(0);
        // SAFETY: the call has no requirements.
        unsafe { libc::_exit(errno) }
    }

    let template = shell();
    let options = CloneOptions { share_memory: true, ..Default::default() };
    // SAFETY: the thread sleeps until the child has exited, so both can use the thread's local storage.
    let child =
        unsafe { clone_child(&options, &Stack::new().unwrap(), enter, (&raw const template).cast(), None).unwrap() };
    let pidfd = OwnedFd::from(child.pidfd);
    let ended = wait_pidfd(pidfd.as_raw_fd(), true).unwrap().unwrap();
    assert_eq!(libc::WEXITSTATUS(ended.status), EACCES);
}

#[test]
fn a_received_template_cannot_be_used() {
    let mut sockets = [-1; 2];
    // SAFETY: the call writes two numbers.
    let created =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, sockets.as_mut_ptr()) };
    assert_eq!(created, 0);
    // SAFETY: the descriptors are new.
    let [ours, theirs] = sockets.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    std::thread::scope(|scope| {
        let child = scope.spawn(|| in_forked_child(|| status(&receive(&theirs)).unwrap_err()));
        let template = shell();
        send(&ours, &template);
        assert_eq!(child.join().unwrap(), EACCES);
        assert_eq!(status(&template), Ok(7));
    });
    // The creator itself may receive the template.
    send(&ours, &shell());
    assert_eq!(status(&receive(&theirs)), Ok(7));
}

/// A message of one byte with room for one descriptor.
fn message<T>(body: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the function has no requirements.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    body(&mut header)
}

fn send(socket: &OwnedFd, fd: &OwnedFd) {
    // SAFETY: the header has room for one control message, and all its buffers are valid.
    let sent = message(|header| unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), header, 0)
    });
    assert_eq!(sent, 1, "{}", Error::last_os_error());
}

fn receive(socket: &OwnedFd) -> OwnedFd {
    // SAFETY: all buffers of the header are valid. The control message has one new descriptor.
    message(|header| unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), header, libc::MSG_CMSG_CLOEXEC), 1);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(libc::CMSG_FIRSTHDR(header)).cast::<RawFd>().read_unaligned())
    })
}

#[test]
fn an_executed_program_cannot_use_the_template() {
    let template = inheritable(&shell());
    alone("authority::alone_with_an_inherited_template", &[("TEMPLATE", template.as_raw_fd().to_string())]);
}

#[test]
#[ignore = "an_executed_program_cannot_use_the_template runs it"]
fn alone_with_an_inherited_template() {
    let template: RawFd = std::env::var("TEMPLATE").unwrap().parse().unwrap();
    assert_eq!(status(&template), Err(EACCES));
}

#[test]
fn a_change_of_credentials_revokes_the_template() {
    if is_root("only root can change all credentials") {
        alone("authority::alone_with_changed_credentials", &[]);
    }
}

/// The system calls change only the credentials of one thread.
#[test]
#[ignore = "a_change_of_credentials_revokes_the_template runs it"]
fn alone_with_changed_credentials() {
    const KEEP_CAPS: libc::c_long = 1 << 4;
    let template = shell();
    let call = |number, first: libc::c_long, second: libc::c_long, third: libc::c_long| {
        // SAFETY: the arguments are numbers, or the address of groups or capabilities that live until the call returns.
        assert_eq!(unsafe { libc::syscall(number, first, second, third) }, 0, "{}", Error::last_os_error());
    };
    let groups = [1u32, 2];
    let set_groups = || call(libc::SYS_setgroups, 2, (&raw const groups) as _, 0);
    let drop_capabilities = || {
        let header = [0x2008_0522u32, 0];
        let none = [0u32; 6];
        call(libc::SYS_capset, (&raw const header) as _, (&raw const none) as _, 0);
    };
    let set_file_id = |number| {
        // SAFETY: the call accesses no memory. It returns the previous id.
        unsafe { libc::syscall(number, 65534) };
    };
    let changes: [(&str, &(dyn Fn() + Sync)); 8] = [
        ("groups", &set_groups),
        ("capabilities", &drop_capabilities),
        ("securebits", &|| call(libc::SYS_prctl, libc::PR_SET_SECUREBITS.into(), KEEP_CAPS, 0)),
        ("effective group", &|| call(libc::SYS_setresgid, -1, 65534, -1)),
        ("saved user", &|| call(libc::SYS_setresuid, -1, -1, 65534)),
        ("all users", &|| call(libc::SYS_setresuid, 65534, 65534, 65534)),
        ("file system user", &|| set_file_id(libc::SYS_setfsuid)),
        ("file system group", &|| set_file_id(libc::SYS_setfsgid)),
    ];
    for (name, change) in changes {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(status(&template), Ok(7), "a thread with the same credentials");
                change();
                assert_eq!(status(&template), Err(EACCES), "{name}");
            });
        });
    }
    // Equal credentials are accepted, unlike in the RFC.
    call(libc::SYS_setresuid, 0, 0, 0);
    assert_eq!(status(&template), Ok(7));
}
