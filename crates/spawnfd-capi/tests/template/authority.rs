// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which descriptors are templates, and which threads and processes may use them.

use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use libc::{EACCES, EBADF, EINVAL, EPERM};
use spawnfd_sys::{CloneOptions, Stack, clone_child, wait_pidfd};

use spawnfd_tests::{isolated, require_root};

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
    let [ours, theirs] = socket_pair();
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

/// Writes each of these records over the file of a descriptor. Returns the number of writes that did not fail with EPERM.
fn overwrite(template: &OwnedFd, records: &[Vec<u8>]) -> i32 {
    let refused = |record: &&Vec<u8>| match write_record(template, record) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(EPERM),
    };
    records.iter().filter(refused).count() as i32
}

#[test]
fn no_process_can_write_an_earlier_record_into_a_template() {
    let [ours, theirs] = socket_pair();
    let earlier = [of_path("/bin/true").unwrap(), shell(), shell()];
    let template = shell();
    let records: Vec<Vec<u8>> = earlier.iter().chain([&template]).map(read_record).collect();
    assert_eq!(in_forked_child(|| overwrite(&template, &records)), 0, "a forked child");
    send(&ours, &template);
    assert_eq!(in_forked_child(|| overwrite(&receive(&theirs), &records)), 0, "a receiver");
    assert_eq!(status(&template), Ok(7));
}

/// The record of a closed template, in another file at the same number.
#[test]
fn a_record_is_no_template_in_another_file() {
    let number = inheritable(&shell());
    let record = read_record(&number);
    assert_eq!(status(&number), Ok(7));
    let copy = memfd(c"spawn_template", &record);
    // SAFETY: the test owns both numbers.
    assert_eq!(unsafe { libc::dup2(copy.as_raw_fd(), number.as_raw_fd()) }, number.as_raw_fd());
    assert_eq!(status(&number), Err(EACCES));
}

#[test]
fn an_executed_program_cannot_use_the_template() {
    let template = inheritable(&shell());
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--exact", "authority::alone_with_an_inherited_template", "--ignored"])
        .env("TEMPLATE", template.as_raw_fd().to_string())
        .output()
        .unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "an_executed_program_cannot_use_the_template runs it"]
fn alone_with_an_inherited_template() {
    let template: RawFd = std::env::var("TEMPLATE").unwrap().parse().unwrap();
    assert_eq!(status(&template), Err(EACCES));
}

/// The system calls change only the credentials of one thread.
#[test]
fn a_change_of_credentials_revokes_the_template() {
    isolated!(|| {
        if !require_root() {
            return;
        }
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
    });
}
