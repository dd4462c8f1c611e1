// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that are parked inside Landlock and under a filter: what they become is what a child that was confined so would be.

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ::landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use common::{but_for_slow, in_good_time, output, state};
use spawnfd::{
    Command, Errno, FilterInstruction, Mode, Park, Sandbox, Stage, Started, Stdio, Template, TemplateCache, Warm,
    WarmOptions,
};
use spawnfd_tests::{State, isolated, program, require_syscall, skip};

const ALLOW: FilterInstruction = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };

/// Files may be read everywhere, and written nowhere.
fn reading_only() -> Option<Arc<OwnedFd>> {
    if !require_syscall("landlock_create_ruleset") {
        return None;
    }
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).expect("known").create();
    let everywhere = path_beneath_rules(["/"], AccessFs::from_read(ABI::V1));
    let ruleset: Option<OwnedFd> = ruleset.and_then(|set| set.add_rules(everywhere)).expect("a ruleset").into();
    let ruleset = ruleset.expect("this kernel has Landlock");
    if !tells_files_apart() {
        skip("nothing says whether two descriptors are one ruleset");
        return None;
    }
    Some(Arc::new(ruleset))
}

/// By F_DUPFD_QUERY (Linux 6.10) or kcmp(2), which Docker's profile refuses.
fn tells_files_apart() -> bool {
    // SAFETY: integers.
    unsafe {
        let own = libc::getpid();
        libc::fcntl(0, 1027, 0) == 1 || libc::syscall(libc::SYS_kcmp, own, own, 0, 0, 0) == 0
    }
}

fn both_modes(test: fn(Mode, Arc<OwnedFd>)) {
    if let Some(ruleset) = reading_only() {
        [Mode::Reserve, Mode::Fork].into_iter().for_each(|mode| test(mode, ruleset.clone()));
    }
}

fn warm(mode: Mode, template: &Template, park: Park) -> Warm {
    let warm = Warm::new(WarmOptions { mode, ..WarmOptions::default() }).expect("a Warm");
    warm.add_template(template, park).expect("a keeper");
    assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
    warm
}

#[test]
fn all_that_a_program_sees_is_the_same() {
    isolated("all_that_a_program_sees_is_the_same", || {
        both_modes(|mode, ruleset| {
            let template = Template::open(program("spawnfd-oracle")).expect("there");
            let park = Park {
                no_new_privs: true,
                landlock: Some(ruleset.clone()),
                seccomp: vec![ALLOW, ALLOW],
                ..Park::default()
            };
            let warm = warm(mode, &template, park);
            let command = || {
                let mut command = template.command();
                command.stdin(Stdio::Null).no_new_privs().umask(0o27).current_dir("/usr").seccomp([ALLOW, ALLOW]);
                command.landlock(ruleset.as_ref());
                command
            };
            let cold = state(&mut command());
            let warmed = in_good_time(&warm, || state(command().warm(&warm)));
            State::assert_same(&cold, &warmed, &["pid", "mappings", "fds.1.inode", "fds.1.target"]);
            let stats = warm.stats();
            assert_eq!((stats.reserve + stats.fork, but_for_slow(&stats).len()), (1, 0), "{stats:?}");
        });
    });
}

#[test]
fn it_is_confined_and_others_are_not() {
    isolated("it_is_confined_and_others_are_not", || {
        both_modes(|mode, ruleset| {
            let template = Template::open("/bin/sh").expect("there");
            let park = Park { no_new_privs: true, landlock: Some(ruleset.clone()), ..Park::default() };
            let warm = warm(mode, &template, park);
            let directory = spawnfd_tests::scratch();
            let touch = |command: &mut Command<'_>| {
                let script = "if (: >file) 2>/dev/null; then echo made; else echo refused; fi";
                output(command.args(["-c", script]).current_dir(directory.path()).warm(&warm))
            };
            assert_eq!(touch(&mut template.command()), "made\n");
            assert_eq!(touch(template.command().no_new_privs()), "made\n");
            let confined = || touch(template.command().no_new_privs().landlock(ruleset.as_ref()));
            assert_eq!(in_good_time(&warm, confined), "refused\n");
            let stats = warm.stats();
            assert_eq!(stats.cold.get("Landlock ruleset"), Some(&2), "{stats:?}");
            assert_eq!(stats.reserve + stats.fork, 1, "{stats:?}");
        });
    });
}

#[test]
fn what_is_asked_for_beyond_it_is_done_at_the_start() {
    isolated("what_is_asked_for_beyond_it_is_done_at_the_start", || {
        both_modes(|mode, ruleset| {
            // A second layer, in a process that is parked in the first.
            let template = Template::open("/bin/sh").expect("there");
            let warm = warm(mode, &template, Park { no_new_privs: true, ..Park::default() });
            let mut command = template.command();
            command.no_new_privs().landlock(ruleset.as_ref()).args(["-c", ": >/tmp/none"]).stderr(Stdio::Null);
            command.warm(&warm);
            let mut child = in_good_time(&warm, || command.spawn().expect("starts"));
            assert!(matches!(child.started(), Started::Reserve | Started::Fork), "{:?}", child.started());
            assert!(!child.wait().expect("own child").success());
        });
    });
}

#[test]
fn an_upgrade_costs_a_cache_one_cold_start() {
    isolated("an_upgrade_costs_a_cache_one_cold_start", || {
        let directory = spawnfd_tests::scratch();
        let tool = directory.path().join("tool");
        let replace = |by: &str| {
            let new = directory.path().join("new");
            std::fs::copy(by, &new).expect("own directory");
            std::fs::rename(&new, &tool).expect("own directory");
        };
        replace("/bin/true");
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        let cache = TemplateCache::with_warm(4, &warm);
        let code = || {
            let mut child = cache.command(&tool).spawn().expect("starts");
            (child.started(), child.wait().expect("own child").success())
        };
        for (by, success) in [("/bin/true", true), ("/bin/false", false)] {
            replace(by);
            let (started, first) = code();
            assert!(matches!(started, Started::Cold(_)), "{started:?}");
            assert_eq!((first, in_good_time(&warm, code)), (success, (Started::Reserve, success)));
            assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
        }
    });
}

#[test]
fn what_would_have_no_effect_is_refused() {
    isolated("what_would_have_no_effect_is_refused", || {
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        let parks = [
            Park { current_dir: Some("/".into()), ..Park::default() },
            Park { preload: vec!["json".into()], ..Park::default() },
            Park {
                sandbox: Some(Sandbox::new(["env"]).expect("there")),
                current_dir: Some("/\0".into()),
                ..Park::default()
            },
        ];
        for park in parks {
            let error = warm.add("true", park).expect_err("no effect");
            assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        }
        assert_eq!(warm.stats().cannot.len() + warm.stats().parked, 0);
    });
}
