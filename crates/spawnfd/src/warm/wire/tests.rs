// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two halves of the protocol agree: what this one writes is held against the other's header, by the C compiler.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use spawnfd_child::{Failure, Stage};
use spawnfd_sys::Errno;

/// Says that these expressions of C, over protocol.h, hold.
fn hold(expressions: &[String]) {
    let room = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../warm/main");
    let mut source = String::from("#include <stddef.h>\n#include \"protocol.h\"\n");
    for expression in expressions {
        source += &format!("_Static_assert({expression}, \"\");\n");
    }
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(room).args(["-std=c11", "-fsyntax-only", "-x", "c", "-"]).stdin(Stdio::piped());
    let mut compiler = compiler.stderr(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let told = compiler.wait_with_output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

/// `structure` has these fields, one after the other from `at` on, each of so many bytes.
fn fields(structure: &str, at: usize, names: &[(&str, usize)]) -> Vec<String> {
    let mut at = at;
    let mut expressions = Vec::new();
    for (name, size) in names {
        let field = format!("struct spawnfd_{structure}");
        expressions.push(format!("offsetof({field}, {name}) == {at}"));
        expressions.push(format!("sizeof((({field} *)0)->{name}) == {size}"));
        at += size;
    }
    expressions
}

#[test]
fn messages_are_laid_out_as_the_header_has_them() {
    let head = "protocol serial steps sources keep argc envc argv_length env_length strings above flags program path checks unused";
    let head: Vec<_> = head.split(' ').map(|name| (name, 4)).collect();
    let step = [("op", 2), ("index", 2), ("a", 4), ("b", 4), ("text", 4), ("x", 8), ("y", 8), ("z", 8)];
    let check = ["kind", "path", "device[0]", "device[1]", "mode", "owner", "group", "ctime_nanoseconds"];
    let check = check.into_iter().chain(["mtime_nanoseconds", "unused"]).map(|name| (name, 4));
    let check: Vec<_> = check.chain(["inode", "size", "ctime", "mtime"].map(|name| (name, 8))).collect();
    let reply = [("protocol", 4), ("word", 4), ("pid", 4), ("unused", 4), ("private_bytes", 8)];
    let sets = ["effective", "permitted", "inheritable", "bounding", "ambient"].map(|name| (name, 8));
    let mut expressions = fields("request", 0, &head);
    expressions.extend(fields("step", 0, &step));
    expressions.extend(fields("check", 0, &check));
    expressions.extend(fields("reply", 0, &reply));
    expressions.extend(fields("capabilities", 0, &sets));
    let mut message = Vec::new();
    self::head(&mut message, 0, [0; 8], 0, 0, [0; 3]);
    for (structure, size) in [("request", message.len()), ("step", STEP * 8), ("check", CHECK), ("reply", REPLY)] {
        expressions.push(format!("sizeof(struct spawnfd_{structure}) == {size}"));
    }
    for (name, value) in [
        ("PROTOCOL", PROTOCOL as usize),
        ("MAX_MESSAGE", MAX_MESSAGE),
        ("MAX_DESCRIPTORS", MAX_SOURCES),
        ("MAX_FIRST", MAX_FIRST),
        ("OWN_ENVIRONMENT", OWN_ENVIRONMENT as usize),
        ("FORK", FORK as usize),
        ("MEASURE", MEASURE as usize),
    ] {
        expressions.push(format!("SPAWNFD_{name} == {value}"));
    }
    hold(&expressions);
}

#[test]
fn the_page_is_laid_out_as_the_header_has_it() {
    let mut expressions = vec![format!("sizeof(struct spawnfd_page) == {}", WORDS * 8)];
    for (name, at) in [
        ("claim", CLAIM),
        ("child", CHILD),
        ("index", INDEX),
        ("first", FIRST),
        ("make_default", FIRST + 1),
        ("make_ignored", FIRST + 2),
        ("mask", FIRST + 3),
        ("report", REPORT),
        ("steps", FIRST_STEP),
    ] {
        expressions.push(format!("offsetof(struct spawnfd_page, {name}) == {}", at * 8));
    }
    expressions.push("offsetof(struct spawnfd_page, error) == offsetof(struct spawnfd_page, child) + 4".into());
    for (name, state) in [
        ("OFFERED", State::Offered),
        ("GO", State::Go),
        ("WITHDRAWN", State::Withdrawn),
        ("TAKEN", State::Taken),
        ("BECAME", State::Became),
        ("FAILED", State::Failed(0, 0)),
        ("REFUSED", State::Refused),
    ] {
        expressions.push(format!("3 * 8 + SPAWNFD_{name} == {}", state.claim(3)));
    }
    hold(&expressions);
}

#[test]
fn what_became_of_an_exec_is_told_as_by_a_child() {
    for (name, stage) in [
        ("DESCRIPTORS", Stage::Descriptors),
        ("ACTION", Stage::Action(7)),
        ("CHECK", Stage::Check(7)),
        ("EXEC", Stage::Exec),
    ] {
        let number = match stage {
            Stage::Descriptors => 1,
            Stage::Action(_) => 2,
            Stage::Check(_) => 4,
            _ => 6,
        };
        let index = u64::from(matches!(stage, Stage::Action(_) | Stage::Check(_))) * 7;
        let word = number << 48 | index << 32 | 2;
        let failure = Failure { stage, errno: Errno::ENOENT };
        assert_eq!(Outcome::of(word), Outcome::Failed(failure));
        hold(&[
            format!("SPAWNFD_REPORT_FAILED(SPAWNFD_AT_{name}, {index}, 2) == {word}"),
            "SPAWNFD_REPORT_EXEC == 0".into(),
        ]);
    }
    assert_eq!(Outcome::of(0), Outcome::Program { renewed: false });
}

#[test]
fn steps_have_the_numbers_that_the_header_gives_them() {
    let text = || Arc::<CStr>::from(c"/");
    let how = abi::open_how { flags: 0, mode: 0, resolve: 0 };
    let limit = abi::rlimit64 { rlim_cur: 1, rlim_max: 2 };
    let sets = CapabilitySets { effective: 0, permitted: 0, inheritable: 0, bounding: 0, ambient: 0 };
    let all = [
        ("PLACE", Op::Place { source: 0, to: 0 }),
        ("DUP2", Op::Dup2 { from: 0, to: 0 }),
        ("CLOSE", Op::Close { fd: 0 }),
        ("CLOSE_RANGE", Op::CloseRange { first: 0, last: 0 }),
        ("OPEN", Op::Open { dir: None, path: text(), how, to: 0 }),
        ("OPEN_NULL", Op::OpenNull { to: 0 }),
        ("CHDIR", Op::Chdir { path: text() }),
        ("FCHDIR", Op::Fchdir { dir: 0 }),
        ("UMASK", Op::Umask { mask: 0 }),
        ("SETSID", Op::Setsid),
        ("SETPGID", Op::Setpgid { group: 0 }),
        ("TCSETPGRP", Op::Tcsetpgrp { fd: 0 }),
        ("CTTY", Op::ControllingTerminal { fd: 0 }),
        ("RLIMIT", Op::Limit { resource: abi::RLIMIT_CORE, limit }),
        ("NICE", Op::Nice { nice: 0 }),
        ("SCHEDULER", Op::Scheduler { policy: 0, priority: 0 }),
        ("NO_NEW_PRIVS", Op::NoNewPrivs),
        ("OOM_SCORE_ADJ", Op::OomScoreAdj { value: 0, text: Arc::new([0]) }),
        ("CGROUP", Op::Cgroup { dir: 0 }),
        ("LANDLOCK", Op::Landlock { ruleset: 0 }),
        ("CHROOT", Op::Chroot { path: text() }),
        ("AFFINITY", Op::Affinity { mask: Arc::new([1]) }),
        ("USER_IDS", Op::UserIds { real: 0, effective: 0, saved: 0 }),
        ("GROUP_IDS", Op::GroupIds { real: 0, effective: 0, saved: 0 }),
        ("GROUPS", Op::Groups { groups: Arc::new([1]) }),
        ("KEEP_CAPABILITIES", Op::KeepCapabilities),
        ("CAPABILITIES", Op::Capabilities { sets }),
    ];
    // All but the one that no plan has.
    let mut expressions = vec![format!("SPAWNFD_OPS == {}", all.len() + 1), format!("SPAWNFD_REPLACE == {REPLACE}")];
    for (name, op) in &all {
        let wired = wire(op, &mut Vec::new(), true).unwrap().unwrap();
        expressions.push(format!("SPAWNFD_{name} == {}", wired.op));
    }
    hold(&expressions);
}
