// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our implementation alone: lists of another implementation, fallbacks, leaks, signals and threads.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use libc::posix_spawn_file_actions_t as List;
use spawnfd_capi::posix as capi;
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, has_clone3, isolated, program, scratch};

use crate::implementation::{ANSWER, Action, Request, at_number, libc, null, oracle, ours, wait};

/// Spawns /bin/true with this list by our posix_spawn.
fn spawn_with(list: &List) -> Result<(), c_int> {
    let argv = [c"true".as_ptr(), std::ptr::null()];
    let mut pid = 0;
    let at = std::ptr::from_ref(list).cast();
    // SAFETY: the arrays end with NULL, and all pointers are valid.
    let errno = unsafe {
        let envp = [std::ptr::null()];
        capi::posix_spawn(&raw mut pid, c"/bin/true".as_ptr(), at, std::ptr::null(), argv.as_ptr(), envp.as_ptr())
    };
    if errno != 0 {
        return Err(errno);
    }
    assert_eq!(wait(pid), 0);
    Ok(())
}

#[test]
fn a_list_of_libc_goes_to_libc() {
    isolated!(|| {
        let actions = vec![Action::Open { fd: 5, path: c"/missing".to_owned(), flags: 0, mode: 0 }];
        let mut list = Request { actions, ..Request::new("/bin/true") }.list(libc()).expect("valid");
        assert_eq!(spawn_with(&list), Err(libc::ENOENT));
        // SAFETY: libc initialised the list. Our functions hand it to libc, which owns its memory.
        unsafe {
            assert_eq!((ours().addclose)(&raw mut list, 3), 0);
            assert_eq!((ours().destroy)(&raw mut list), 0);
        }
    });
}

#[test]
fn a_list_of_zeros_is_empty() {
    isolated!(|| {
        // SAFETY: zeros are valid for the C struct.
        let mut list: List = unsafe { MaybeUninit::zeroed().assume_init() };
        assert_eq!(spawn_with(&list), Ok(()));
        // SAFETY: the list is valid.
        assert_eq!(unsafe { (ours().addclose)(&raw mut list, 77) }, 0);
        assert_eq!(spawn_with(&list), Ok(()));
        // SAFETY: the list is ours.
        unsafe {
            assert_eq!((ours().destroy)(&raw mut list), 0);
            assert_eq!((ours().destroy)(&raw mut list), 0, "a destroyed list is empty");
        }
    });
}

/// Spawns the oracle, with and without an action that permits an early cut of the table.
fn spawn_both() {
    let oracle = || oracle(&program("spawnfd-oracle"));
    assert!(!oracle().state(ours()).expect("starts").fds[&40].cloexec);
    let mut request = oracle().action(Action::Dup2(ANSWER, 3)).action(Action::Closefrom(4));
    request.args[2] = c"3".to_owned();
    let state = request.state(ours()).expect("starts");
    assert_eq!(state.fds.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let missing = Request::new("/missing").action(Action::Closefrom(4));
    assert_eq!(missing.spawn(ours()), Err(libc::ENOENT));
}

/// An action that fails before Closefrom runs once, with its own errno.
#[test]
fn actions_before_closefrom_run_once() {
    isolated!(|| {
        let directory = scratch();
        let new =
            |name: &str| std::ffi::CString::new(directory.path().join(name).to_str().expect("text")).expect("no NUL");
        let exclusive = |name| {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
            Request::new("/bin/true").action(Action::Open { fd: 1, path: new(name), flags, mode: 0o600 })
        };
        let open = |path: &std::ffi::CStr| Action::Open { fd: 0, path: path.to_owned(), flags: 0, mode: 0 };
        let _open = at_number(&null(), 40);
        let missing = exclusive("one").action(open(c"/dev/missing")).action(Action::Closefrom(3));
        assert_eq!(missing.spawn(ours()), Err(libc::ENOENT));
        let descriptor = exclusive("two").action(open(c"/dev/fd/40")).action(Action::Closefrom(3));
        assert_eq!(descriptor.spawn(ours()).map(wait), Ok(0));
    });
}

macro_rules! fallbacks {
    ($($name:ident $refused:expr;)*) => { $(
        #[test]
        fn $name() {
            isolated!(|| {
                let _open = at_number(&null(), 40);
                confine::deny(&$refused).expect("confined");
                spawn_both();
            });
        }
    )* };
}

fallbacks! {
    spawns_without_clone3 [("clone3", libc::ENOSYS)];
    spawns_if_a_filter_refuses_clone3 [("clone3", libc::EPERM)];
    spawns_without_close_range [("close_range", libc::ENOSYS)];
    spawns_without_clone3_and_close_range [("clone3", libc::ENOSYS), ("close_range", libc::ENOSYS)];
    spawns_without_close_range_and_unshare [("close_range", libc::ENOSYS), ("unshare", libc::EPERM)];
    spawns_with_none_of_the_three [("clone3", libc::EPERM), ("close_range", libc::EPERM), ("unshare", libc::EPERM)];
}

/// POSIX_SPAWN_SETSIGDEF applies to glibc's internal signals too. A mask cannot block these signals.
#[test]
fn internal_signals_can_be_set_to_default_but_not_blocked() {
    isolated!(|| {
        let ignore = [libc::SIG_IGN, 0, 0, 0];
        // SAFETY: the call reads the kernel's struct of four words. sigaction(3) refuses these signals.
        let outcome = unsafe { libc::syscall(libc::SYS_rt_sigaction, 33, ignore.as_ptr(), std::ptr::null::<u8>(), 8) };
        assert_eq!(outcome, 0);
        let request = || oracle(&program("spawnfd-oracle"));
        let disposition = |request: Request| {
            let state = request.state(ours()).expect("starts");
            (
                state.dispositions["SIG33"].known().expect("readable").clone(),
                state.signal_mask.known().expect("readable").contains(&"SIG33".to_owned()),
            )
        };
        assert_eq!(disposition(request()), ("ignore".to_owned(), false));
        let signals = vec![32, 33, libc::SIGUSR1];
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        let both = Request { default_signals: signals.clone(), blocked_signals: signals, ..request().flags(flags) };
        assert_eq!(disposition(both), ("default".to_owned(), false));
    });
}

#[test]
fn nothing_is_left_in_the_caller() {
    isolated!(|| {
        let spawn = |request: Request| request.spawn(ours()).map(wait);
        let all = || {
            assert_eq!(spawn(Request::new("/bin/true")), Ok(0));
            assert_eq!(spawn(Request::new("/missing")), Err(libc::ENOENT));
            assert_eq!(spawn(Request::new("/bin/true").action(Action::Closefrom(3))), Ok(0));
            assert_eq!(spawn(Request::new("/bin/true").action(Action::Dup2(77, 3))), Err(libc::EBADF));
        };
        all();
        let before = Snapshot::take();
        (0..20).for_each(|_| all());
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn pidfd_spawn_returns_a_pidfd() {
    isolated!(|| {
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 7".as_ptr(), std::ptr::null()];
        let before = Snapshot::take();
        for search in [false, true] {
            let mut pidfd = -1;
            let (none, list) = (std::ptr::null(), std::ptr::null());
            let at = &raw mut pidfd;
            // SAFETY: the arrays end with NULL, and all pointers are valid.
            let errno = unsafe {
                let envp = [std::ptr::null()];
                if search {
                    capi::pidfd_spawnp(at, c"sh".as_ptr(), list, none, argv.as_ptr(), envp.as_ptr())
                } else {
                    capi::pidfd_spawn(at, c"/bin/sh".as_ptr(), list, none, argv.as_ptr(), envp.as_ptr())
                }
            };
            assert_eq!(errno, 0);
            // SAFETY: pidfd_spawn opened the descriptor for this test. waitid fills the struct.
            unsafe {
                let pidfd = OwnedFd::from_raw_fd(pidfd);
                assert_eq!(libc::fcntl(pidfd.as_raw_fd(), libc::F_GETFD), libc::FD_CLOEXEC);
                let mut info = MaybeUninit::<libc::siginfo_t>::zeroed().assume_init();
                assert_eq!(libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as u32, &raw mut info, libc::WEXITED), 0);
                assert_eq!((info.si_code, info.si_status()), (libc::CLD_EXITED, 7));
            }
            // The child does not inherit its own pidfd, which has the lowest free number here.
            // SAFETY: dup returns a new descriptor, and close closes it.
            let free = unsafe {
                let free = libc::dup(0);
                libc::close(free);
                free
            };
            let own = Request::new("/bin/true").action(Action::Dup2(free, 9)).action(Action::Closefrom(10));
            let mut list_of_own = own.list(ours()).expect("valid");
            let mut pidfd = -1;
            // SAFETY: as above. The list is ours.
            let errno = unsafe {
                let at = std::ptr::from_ref(&list_of_own).cast();
                let envp = [std::ptr::null()];
                capi::pidfd_spawn(&raw mut pidfd, c"/bin/true".as_ptr(), at, none, argv.as_ptr(), envp.as_ptr())
            };
            assert_eq!((errno, pidfd), (libc::EBADF, -1));
            // SAFETY: the list is ours.
            assert_eq!(unsafe { (ours().destroy)(&raw mut list_of_own) }, 0);
            // SAFETY: as above.
            let errno = unsafe {
                capi::pidfd_spawn(
                    &raw mut pidfd,
                    c"/missing".as_ptr(),
                    list,
                    none,
                    argv.as_ptr(),
                    [none.cast()].as_ptr(),
                )
            };
            assert_eq!((errno, pidfd), (libc::ENOENT, -1));
        }
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn a_cgroup_must_be_a_directory_of_a_cgroup() {
    isolated!(|| {
        let null = null();
        let mut attributes = MaybeUninit::<capi::Attributes>::uninit();
        let argv = [c"true".as_ptr(), std::ptr::null()];
        let mut spawn = |fd| {
            // SAFETY: the arrays end with NULL, and all pointers are valid.
            unsafe {
                assert_eq!(capi::posix_spawnattr_init(attributes.as_mut_ptr()), 0);
                assert_eq!(capi::posix_spawnattr_setflags(attributes.as_mut_ptr(), capi::SETCGROUP), 0);
                assert_eq!(capi::posix_spawnattr_setcgroup_np(attributes.as_mut_ptr(), fd), 0);
                let envp = [std::ptr::null()];
                let (path, at) = (c"/bin/true".as_ptr(), attributes.as_ptr());
                capi::posix_spawn(std::ptr::null_mut(), path, std::ptr::null(), at, argv.as_ptr(), envp.as_ptr())
            }
        };
        // Docker's profile refuses clone3.
        if has_clone3() {
            assert_eq!(spawn(null.as_raw_fd()), libc::EBADF);
            assert_eq!(spawn(-1), libc::EINVAL);
        }
        confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
        assert_eq!(spawn(null.as_raw_fd()), libc::EOPNOTSUPP);
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Threads spawn while signals with a handler arrive. The handler runs in this process only, and each child succeeds.
#[test]
fn threads_spawn_during_signals() {
    isolated!(|| {
        // SAFETY: the handler only counts. This isolated process has no other use for the signal.
        unsafe { libc::signal(libc::SIGUSR1, count as *const () as libc::sighandler_t) };
        let own = std::process::id() as c_int;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..40 {
                            let pid =
                                Request::new("/bin/true").action(Action::Closefrom(3)).spawn(ours()).expect("starts");
                            assert_eq!(wait(pid), 0);
                        }
                    })
                })
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                // SAFETY: the signal goes to this process.
                unsafe { libc::kill(own, libc::SIGUSR1) };
                thread::yield_now();
            }
            workers.into_iter().for_each(|worker| worker.join().expect("the assertions hold"));
        });
        assert!(SIGNALS.load(Ordering::Relaxed) > 0);
    });
}
