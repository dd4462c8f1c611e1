// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child has no more authority than a fork in the calling *thread* would give it; and a template is not authority that can be
//! handed over.

use crate::common;
use std::fs::File;
use std::os::fd::OwnedFd;

use crate::common::{Launcher, Refused, code, every_launcher, output, state};
use ::landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::{Command, Errno, ErrorKind, Stage, Stdio, Template, TemplateCache};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{State, copy_of_program, isolated, require_root, require_syscall, scratch};

/// Confines a thread of its own after the library has been used by another, and compares child and fork there.
fn in_a_confined_thread(launcher: Launcher, confine: impl FnOnce() + Send) {
    seen_in_a_confined_thread(launcher, confine);
}

/// The same, and gives what the child saw.
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
        thread.join().expect("its assertions hold")
    });
    // The others are as free as before.
    assert_eq!(state(launcher.command(&oracle).stdin(Stdio::Null)).authority(), free);
    seen
}

/// By std's fork, which a pre_exec closure asks for.
fn by_fork(path: &std::path::Path) -> State {
    let mut command = std::process::Command::new(path);
    // SAFETY: does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
    let output = command.stdin(std::process::Stdio::null()).output().expect("starts");
    assert!(output.status.success());
    State::from_json(&output.stdout)
}

fn raw(number: libc::c_long, arguments: [usize; 3]) {
    // SAFETY: the callers pass integers and pointers to what outlives the call; only this thread is changed.
    let answer = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

every_launcher! {
    a_seccomp_filter [authority under No]: |launcher| {
        in_a_confined_thread(launcher, || confine::deny(&[("mkdirat", libc::EDOM), ("mkdir", libc::EDOM)]).expect("confined"));
        let directory = scratch();
        let path = directory.path().join("made");
        std::thread::scope(|scope| scope.spawn(|| {
            confine::deny(&[("mkdirat", libc::EDOM), ("mkdir", libc::EDOM)]).expect("confined");
            let mut command = launcher.command("/bin/mkdir");
            assert_ne!(code(command.arg(&path).stderr(Stdio::Null).spawn()), Ok(0));
        }).join().expect("its assertions hold"));
        assert!(!path.exists());
    };

    docker_s_profile [authority under No]: |launcher| in_a_confined_thread(launcher, || confine::docker().expect("confined"));

    no_new_privs [authority under Docker]: |launcher| {
        in_a_confined_thread(launcher, || Confinement::default().no_new_privs().apply().expect("confined"));
    };

    another_user [authority under Docker]: |launcher| {
        if require_root() {
            in_a_confined_thread(launcher, || Confinement::default().user(54_321, 54_322).apply().expect("confined"));
        }
    };

    other_groups [authority under No]: |launcher| {
        if require_root() {
            in_a_confined_thread(launcher, || {
                let groups = [7_u32, 8, 9];
                raw(libc::SYS_setgroups, [groups.len(), groups.as_ptr() as usize, 0]);
            });
        }
    };

    securebits_and_ambient_capabilities [authority under No]: |launcher| {
        if require_root() {
            let seen = seen_in_a_confined_thread(launcher, || {
                const NOROOT: usize = 1;
                const KILL: usize = 5;
                // What is ambient has to be inheritable.
                let header = [0x2008_0522_u32, 0];
                let mut data = [0_u32; 6];
                raw(libc::SYS_capget, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0]);
                data[2] |= 1 << KILL;
                raw(libc::SYS_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0]);
                // SAFETY: integers; this thread's own.
                unsafe {
                    assert_eq!(libc::prctl(libc::PR_SET_SECUREBITS, NOROOT), 0);
                    assert_eq!(libc::prctl(libc::PR_CAPBSET_DROP, 21), 0);
                    assert_eq!(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, KILL, 0, 0), 0);
                }
            });
            // Root has no others then.
            for name in ["ambient", "effective"] {
                assert_eq!(seen.capabilities[name].known().expect("the kernel answers"), &["kill"], "{name}");
            }
        }
    };

    own_namespaces [authority under No]: |launcher| {
        if require_root() && require_syscall("unshare") {
            in_a_confined_thread(launcher, || {
                let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;
                raw(libc::SYS_unshare, [kinds as usize, 0, 0]);
            });
        }
    };

    own_descriptor_table [authority under User]: |launcher| {
        if !require_syscall("unshare") {
            return;
        }
        // A thread whose table is its own: its numbers mean something else than everybody's.
        common::warm_up(launcher);
        // What parks is given it here: descriptors that a thread with such a table makes are nobody else's.
        drop(launcher.command("/bin/cat"));
        let (directory, null) = (scratch(), File::open("/dev/null").expect("there"));
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
        }).join().expect("its assertions hold"));
        launcher.drop_parked();
        assert_eq!(common::children(), Vec::<i32>::new());
    };

    own_directory_and_mask [authority under User]: |launcher| {
        if !require_syscall("unshare") {
            return;
        }
        let directory = scratch();
        let path = directory.path().to_owned();
        std::thread::spawn(move || {
            raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]);
            std::env::set_current_dir(&path).expect("own directory");
            // SAFETY: this thread's own since the call above.
            unsafe { libc::umask(0o057) };
            let child = state(&mut launcher.oracle());
            assert_eq!((child.umask.as_str(), child.cwd.path.known()), ("0057", Some(&path.display().to_string())));
        }).join().expect("its assertions hold");
    };

    a_landlock_domain [authority under No]: |launcher| {
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
                .handle_access(AccessFs::from_all(ABI::V1)).expect("known")
                .create().expect("a ruleset")
                .add_rules(rules).expect("rules")
                .add_rules(path_beneath_rules(["/dev"], AccessFs::from_all(ABI::V1))).expect("rules")
                .restrict_self().expect("confined");
            for _ in 0..3 {
                assert_eq!(read(), "no\n");
            }
            // A descriptor is handed over all the same, by whatever way that needs.
            let null = OwnedFd::from(common::pipe().0);
            assert_eq!(code(launcher.command("/bin/true").descriptor(&null, 9).spawn()), Ok(0));
        }).join().expect("its assertions hold"));
        assert_eq!(read(), "yes\n");
    };

    // Nothing that the thread has to look at is forbidden.
    a_landlock_domain_against_writing [authority under User]: |launcher| {
        // Without no_new_privs, which would tell the thread from others already, only CAP_SYS_ADMIN may.
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
        }).join().expect("its assertions hold"));
        assert_eq!(write(), "yes\n");
    };
}

#[test]
fn a_template_is_not_handed_over() {
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
                // Everything but the last of the effective ones.
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
                    // A cache makes one for the new credentials.
                    assert_eq!(code(cache.command("/bin/true").spawn()), Ok(0), "{name}");
                });
                thread.join().expect("its assertions hold");
            });
            assert_eq!(code(template.command().spawn()), Ok(0), "the creator still can, after {name}");
            assert_eq!(code(cache.command("/bin/true").spawn()), Ok(0), "{name}");
        }
    });
}

#[test]
fn a_program_only_root_may_run() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let directory = scratch();
        let path = directory.path().join("program");
        common::executable(&path, common::exits_with(0));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("own file");
        // The command's own user counts: the kernel asks again.
        let mut command = Template::open(&path).expect("a template").command();
        let error = command.uid(54_321).refused("not for that user");
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
        std::thread::spawn(move || {
            raw(libc::SYS_setresuid, [54_321; 3]);
            let error = Command::new(&path).refused("not for this user");
            assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::EACCES), "{error}");
        })
        .join()
        .expect("its assertions hold");
    });
}

#[test]
fn an_undumpable_caller() {
    isolated!(|| {
        // Nobody may look into it, its own children neither: what needs that is done another way.
        // SAFETY: integers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
        let null = File::open("/dev/null").expect("there");
        for _ in 0..3 {
            assert_eq!(code(Command::new("/bin/true").descriptor(&null, 7).stdin(&null).spawn()), Ok(0));
        }
        // SAFETY: integers.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }, 0, "and it stays so");
    });
}
