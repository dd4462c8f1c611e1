// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child has no more authority than a child that the same thread forks. A template gives no
//! authority to another thread.

use crate::common;
use std::fs::File;
use std::os::fd::OwnedFd;

use crate::common::{Launcher, Refused, code, every_launcher, output, state};
use ::landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::template::TemplateCache;
use spawnfd::{Command, Stdio, Template};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{State, copy_of_program, isolated, require_root, require_syscall, scratch};

/// Uses the library in one thread, then confines another thread. Compares a child of the confined
/// thread with a child that this thread forks.
fn in_a_confined_thread(launcher: Launcher, confine: impl FnOnce() + Send) {
    seen_in_a_confined_thread(launcher, confine);
}

/// Does the same as `in_a_confined_thread`, and returns the state of the child.
fn seen_in_a_confined_thread(launcher: Launcher, confine: impl FnOnce() + Send) -> State {
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    common::warm_up(launcher);
    let free = state(launcher.command(&oracle).stdin(Stdio::Null)).authority();
    let seen = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            confine();
            let once = || {
                let ours = state(launcher.command(&oracle).stdin(Stdio::Null));
                let fork = by_fork(&oracle);
                assert_eq!(ours.authority(), fork.authority());
                ours
            };
            once();
            once()
        });
        thread.join().expect("the thread's assertions hold")
    });
    // The confinement does not affect the other threads.
    assert_eq!(state(launcher.command(&oracle).stdin(Stdio::Null)).authority(), free);
    seen
}

/// Returns the state of a child that the standard library forks. A pre_exec closure makes it fork.
fn by_fork(path: &std::path::Path) -> State {
    let mut command = std::process::Command::new(path);
    // SAFETY: the closure does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
    let output = command.stdin(std::process::Stdio::null()).output().expect("starts");
    assert!(output.status.success());
    State::from_json(&output.stdout)
}

fn raw(number: libc::c_long, arguments: [usize; 3]) {
    // SAFETY: the callers pass integers, and pointers to objects that outlive the call. The calls
    // change only this thread.
    let answer = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

every_launcher! {
    a_threads_seccomp_filter_is_inherited [authority under No]: |launcher| {
        in_a_confined_thread(launcher, || confine::deny(&[("mkdirat", libc::EDOM), ("mkdir", libc::EDOM)]).expect("confined"));
        let directory = scratch();
        let path = directory.path().join("made");
        std::thread::scope(|scope| scope.spawn(|| {
            confine::deny(&[("mkdirat", libc::EDOM), ("mkdir", libc::EDOM)]).expect("confined");
            let mut command = launcher.command("/bin/mkdir");
            assert_ne!(code(command.arg(&path).stderr(Stdio::Null).spawn()), Ok(0));
        }).join().expect("the thread's assertions hold"));
        assert!(!path.exists());
    };

    a_threads_docker_profile_is_inherited [authority under No]: |launcher| in_a_confined_thread(launcher, || confine::docker().expect("confined"));

    a_threads_no_new_privs_is_inherited [authority under Docker]: |launcher| {
        in_a_confined_thread(launcher, || Confinement::default().no_new_privs().apply().expect("confined"));
    };

    a_threads_user_is_inherited [authority under Docker]: |launcher| {
        if require_root() {
            in_a_confined_thread(launcher, || Confinement::default().user(54_321, 54_322).apply().expect("confined"));
        }
    };

    a_threads_groups_are_inherited [authority under No]: |launcher| {
        if require_root() {
            in_a_confined_thread(launcher, || {
                let groups = [7_u32, 8, 9];
                raw(libc::SYS_setgroups, [groups.len(), groups.as_ptr() as usize, 0]);
            });
        }
    };

    a_threads_securebits_and_ambient_capabilities_are_inherited [authority under No]: |launcher| {
        if require_root() {
            let seen = seen_in_a_confined_thread(launcher, || {
                const NOROOT: usize = 1;
                const KILL: usize = 5;
                // Only an inheritable capability can become ambient.
                let header = [0x2008_0522_u32, 0];
                let mut data = [0_u32; 6];
                raw(libc::SYS_capget, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0]);
                data[2] |= 1 << KILL;
                raw(libc::SYS_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0]);
                // SAFETY: prctl takes integers, and these options change only this thread.
                unsafe {
                    assert_eq!(libc::prctl(libc::PR_SET_SECUREBITS, NOROOT), 0);
                    assert_eq!(libc::prctl(libc::PR_CAPBSET_DROP, 21), 0);
                    assert_eq!(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, KILL, 0, 0), 0);
                }
            });
            // With SECBIT_NOROOT, an exec gives root only its ambient capabilities.
            for name in ["ambient", "effective"] {
                assert_eq!(seen.capabilities[name].known().expect("the kernel answers"), &["kill"], "{name}");
            }
        }
    };

    a_threads_namespaces_are_inherited [authority under No]: |launcher| {
        if require_root() && require_syscall("unshare") {
            in_a_confined_thread(launcher, || {
                let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;
                raw(libc::SYS_unshare, [kinds as usize, 0, 0]);
            });
        }
    };

    sources_come_from_a_threads_own_descriptor_table [authority under User]: |launcher| {
        if !require_syscall("unshare") {
            return;
        }
        // The spawning thread has its own descriptor table, so its descriptor numbers differ from
        // those of other threads.
        common::warm_up(launcher);
        // For a launcher with parked processes, this call opens the library's descriptors in the
        // table that all threads share. After the unshare below, only the spawning thread could
        // close them.
        drop(launcher.command("/bin/cat"));
        let (directory, null) = (scratch(), File::open("/dev/null").expect("it exists"));
        std::thread::scope(|scope| scope.spawn(|| {
            let path = directory.path().join("file");
            std::fs::write(&path, "own").expect("own directory");
            raw(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0]);
            let file = File::open(&path).expect("own file");
            for _ in 0..3 {
                let mut command = launcher.command("/bin/cat");
                assert_eq!(output(command.stdin(&file).arg("-").arg("/dev/fd/9").descriptor(&null, 9)), "own");
                std::io::Seek::rewind(&mut &file).expect("a file");
            }
            if launcher.has_subreaper() {
                // The pidfds of the subreapers are in this thread's table.
                launcher.drop_parked();
            }
        }).join().expect("the thread's assertions hold"));
        launcher.drop_parked();
        let mut left = common::children();
        if launcher.has_subreaper() {
            // For a guard, the library also leaves a zombie that marks the authority of the confined thread (adr/0022).
            left.retain(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "spawnfd-reaper\n"));
        }
        assert_eq!(left, Vec::<i32>::new());
    };

    a_threads_directory_and_umask_are_inherited [authority under User]: |launcher| {
        if !require_syscall("unshare") {
            return;
        }
        let directory = scratch();
        let path = directory.path().to_owned();
        std::thread::spawn(move || {
            raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]);
            std::env::set_current_dir(&path).expect("own directory");
            // SAFETY: umask takes an integer. Since the unshare above, the umask belongs to this
            // thread alone.
            unsafe { libc::umask(0o057) };
            let child = state(&mut launcher.oracle());
            assert_eq!((child.umask.as_str(), child.cwd.path.known()), ("0057", Some(&path.display().to_string())));
        }).join().expect("the thread's assertions hold");
    };

    a_threads_landlock_domain_is_inherited [authority under No]: |launcher| {
        if !require_syscall("landlock_create_ruleset") {
            return;
        }
        common::warm_up(launcher);
        let read = || {
            let script = "cat /etc/hostname >/dev/null 2>&1 && echo yes || echo no";
            output(launcher.command("/bin/sh").args(["-c", script]).stderr(Stdio::Null))
        };
        assert_eq!(read(), "yes\n");
        std::thread::scope(|scope| scope.spawn(|| {
            let rules = path_beneath_rules(["/usr", "/lib", "/lib64", "/bin"], AccessFs::from_read(ABI::V1));
            Ruleset::default()
                .handle_access(AccessFs::from_all(ABI::V1)).expect("known access rights")
                .create().expect("a ruleset")
                .add_rules(rules).expect("rules")
                .add_rules(path_beneath_rules(["/dev"], AccessFs::from_all(ABI::V1))).expect("rules")
                .restrict_self().expect("confined");
            for _ in 0..3 {
                assert_eq!(read(), "no\n");
            }
            // A descriptor can still be passed, by a strategy that the Landlock domain allows.
            let null = OwnedFd::from(common::pipe().0);
            assert_eq!(code(launcher.command("/bin/true").descriptor(&null, 9).spawn()), Ok(0));
        }).join().expect("the thread's assertions hold"));
        assert_eq!(read(), "yes\n");
    };

    // This Landlock domain allows every read, so the library can still compare threads.
    a_threads_landlock_domain_against_writing_is_inherited [authority under User]: |launcher| {
        // The thread does not set no_new_privs, because the library would already see that
        // difference. Landlock then needs CAP_SYS_ADMIN.
        if !require_syscall("landlock_create_ruleset") {
            return;
        }
        let ruled = || Ruleset::default().handle_access(AccessFs::from_write(ABI::V1)).and_then(Ruleset::create);
        let may = || ruled().and_then(|ruled| ruled.no_new_privs(false).restrict_self());
        if std::thread::scope(|scope| scope.spawn(may).join()).expect("no panic").is_err() {
            return spawnfd_tests::skip("needs CAP_SYS_ADMIN");
        }
        let directory = scratch();
        let script = format!("echo x 2>/dev/null >{} && echo yes || echo no", directory.path().join("f").display());
        let write = || output(launcher.command("/bin/sh").args(["-c", &script]).stderr(Stdio::Null));
        assert_eq!(write(), "yes\n");
        std::thread::scope(|scope| scope.spawn(|| {
            ruled().expect("a ruleset")
                .add_rules(path_beneath_rules(["/dev", "/proc"], AccessFs::from_write(ABI::V1))).expect("rules")
                .no_new_privs(false)
                .restrict_self().expect("confined");
            assert_eq!(write(), "no\n");
        }).join().expect("the thread's assertions hold"));
        assert_eq!(write(), "yes\n");
    };
}

#[test]
fn a_template_is_refused_after_a_change_of_credentials() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let cache = TemplateCache::default();
        assert_eq!(code(cache.command("/bin/true").spawn()), Ok(0));
        let template = Template::open("/bin/true").expect("a template");
        type Change = fn();
        let changes: [(&str, Change); 5] = [
            ("user", || raw(libc::SYS_setresuid, [54_321; 3])),
            ("effective user", || raw(libc::SYS_setresuid, [usize::MAX, 54_321, usize::MAX])),
            ("group", || raw(libc::SYS_setresgid, [usize::MAX, 54_321, usize::MAX])),
            ("groups", || {
                let groups = [12_u32, 13];
                raw(libc::SYS_setgroups, [2, groups.as_ptr() as usize, 0]);
            }),
            ("capabilities", || {
                // The thread drops its first effective capability.
                let header = [0x2008_0522_u32, 0];
                let mut data = [0_u32; 6];
                raw(libc::SYS_capget, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0]);
                data[0] &= !1;
                raw(libc::SYS_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0]);
            }),
        ];
        for (name, change) in changes {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    change();
                    for template in [&template, &template.by_descriptor().expect("no script")] {
                        for error in [template.command().spawn().map(drop), template.revalidate()] {
                            let error = error.expect_err(name);
                            let found = (error.stage(), error.errno(), error.kind());
                            assert_eq!(
                                found,
                                (Stage::Credentials, Errno::EACCES, ErrorKind::Access),
                                "{name}: {error}"
                            );
                        }
                    }
                    // The cache creates a new template for the new credentials.
                    assert_eq!(code(cache.command("/bin/true").spawn()), Ok(0), "{name}");
                });
                thread.join().expect("the thread's assertions hold");
            });
            assert_eq!(code(template.command().spawn()), Ok(0), "the creator can still use it, after {name}");
            assert_eq!(code(cache.command("/bin/true").spawn()), Ok(0), "{name}");
        }
    });
}

#[test]
fn a_program_is_refused_to_a_user_without_permission() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let directory = scratch();
        let path = directory.path().join("program");
        common::executable(&path, common::exits_with(0));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("own file");
        // The caller may use its template, but exec checks the permissions of the command's user.
        let mut command = Template::open(&path).expect("a template").command();
        let error = command.uid(54_321).refused("that user may not run it");
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
        std::thread::spawn(move || {
            raw(libc::SYS_setresuid, [54_321; 3]);
            let error = Command::new(&path).refused("this user may not run it");
            assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::EACCES), "{error}");
        })
        .join()
        .expect("the thread's assertions hold");
    });
}

#[test]
fn an_undumpable_caller_can_spawn() {
    isolated!(|| {
        // The flag forbids every other process, even a child, to inspect this process. The library
        // falls back to a strategy that needs no such permission.
        // SAFETY: prctl takes integers, and changes a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
        let null = File::open("/dev/null").expect("it exists");
        for _ in 0..3 {
            assert_eq!(code(Command::new("/bin/true").descriptor(&null, 7).stdin(&null).spawn()), Ok(0));
        }
        // SAFETY: prctl takes integers and changes nothing.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }, 0, "the library has not changed it");
    });
}
