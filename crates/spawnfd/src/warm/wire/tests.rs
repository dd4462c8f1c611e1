// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages are encoded and read as `spawnfd_parked::protocol` lays them out. `scripts/protocol.py --check` compares that with `protocol.h`.

use super::*;
use spawnfd_child::{Failure, Stage};
use spawnfd_sys::Errno;

/// Reads every field from bytes that all differ, and writes it back.
macro_rules! round_trip {
    ($($structure:ident)*) => {$({
        let bytes: [u8; protocol::$structure::SIZE] = std::array::from_fn(|at| at as u8 + 1);
        assert_eq!(protocol::$structure::from_bytes(&bytes).to_bytes(), bytes);
    })*};
}

#[test]
fn structs_survive_a_round_trip_through_bytes() {
    round_trip!(Request Step Check Capabilities Reply);
}

#[test]
fn a_fork_request_has_a_header_and_an_empty_string() {
    let message = encode_fork(true);
    let (head, strings) = message.split_first_chunk().unwrap();
    let head = protocol::Request::from_bytes(head);
    assert_eq!(head.flags, protocol::FLAG_FORK | protocol::FLAG_MEASURE);
    assert_eq!((head.version, head.sources, head.program), (protocol::VERSION, 2, protocol::NO_SOURCE));
    assert_eq!((head.strings as usize, strings), (strings.len(), &b"\0"[..]));
}

#[test]
fn a_context_is_left_where_the_parked_process_reads_it() {
    let page = Page::new().unwrap();
    let steps = vec![Op::Umask { mask: 0o27 }, Op::Scheduler { policy: 1, priority: -3 }];
    leave(&page, &Context { steps, make_default: 1, make_ignored: 2, mask: 3 }).unwrap();
    let bytes: Vec<u8> = page.get().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    let number = |at: usize| u64::from_ne_bytes(bytes[at..][..8].try_into().unwrap());
    let head = [Layout::FIRST, Layout::MAKE_DEFAULT, Layout::MAKE_IGNORED, Layout::MASK].map(number);
    assert_eq!(head, [2, 1, 2, 3]);
    let (steps, _) = bytes[Layout::STEPS..].as_chunks();
    let scheduler = protocol::Step { op: Code::Scheduler as u16, index: CONTEXT, a: 1, b: -3, ..Default::default() };
    assert_eq!(protocol::Step::from_bytes(&steps[0]).a, 0o27);
    assert_eq!(protocol::Step::from_bytes(&steps[1]), scheduler);
    assert_eq!(leave(&page, &Context { steps: vec![Op::Setsid; 25], ..Context::default() }), Err("limits"));
}

#[test]
fn a_claim_is_read_as_the_parked_process_writes_it() {
    let page = Arc::new(Page::new().unwrap());
    let claim = Claim::offer(&page, 3);
    assert_eq!((claim.state(), claim.report()), (State::Offered, Outcome::Killed(Stage::Descriptors)));
    assert!(claim.turn(State::Offered, State::Go) && !claim.turn(State::Offered, State::Withdrawn));
    let write = |offset: usize, value: i32| {
        let word = &page.get()[offset / WORD];
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        bytes[offset % WORD..][..4].copy_from_slice(&value.to_ne_bytes());
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    };
    write(Layout::CHILD, 1234);
    write(Layout::ERROR, 13);
    page.get()[word(Layout::INDEX)].store(protocol::NO_STEP.into(), Ordering::Relaxed);
    for (number, state) in [
        (protocol::Claim::Withdrawn, State::Withdrawn),
        (protocol::Claim::Taken, State::Taken),
        (protocol::Claim::Became, State::Became),
        (protocol::Claim::Failed, State::Failed(u32::MAX, 13)),
        (protocol::Claim::Refused, State::Refused),
    ] {
        page.get()[CLAIM].store(3 * protocol::CLAIM_STATES as u64 + number as u64, Ordering::Relaxed);
        assert_eq!(claim.state(), state);
    }
    assert_eq!(child(&page), 1234);
}

#[test]
fn a_zygote_reports_as_a_child_of_the_clone_launcher() {
    for (number, stage, index) in [
        (protocol::Stage::Descriptors, Stage::Descriptors, 0),
        (protocol::Stage::Action, Stage::Action(7), 7),
        (protocol::Stage::Check, Stage::Check(7), 7),
        (protocol::Stage::Exec, Stage::Exec, 0),
    ] {
        let word = (number as u64) << protocol::REPORT_STAGE_SHIFT | index << protocol::REPORT_INDEX_SHIFT | 2;
        assert_eq!(Outcome::of(word), Outcome::Failed(Failure { stage, errno: Errno::ENOENT }));
    }
    assert_eq!(Outcome::of(protocol::REPORT_EXEC), Outcome::Program { renewed: false });
    assert_eq!(Outcome::of(protocol::REPORT_PENDING), Outcome::Killed(Stage::Descriptors));
}

#[test]
fn replies_are_read_by_version_and_kind() {
    let head = protocol::Reply { version: protocol::VERSION, kind: 0, pid: 5, securebits: 7, private_bytes: 6 };
    let message = |head: protocol::Reply, text: &[u8]| [&head.to_bytes()[..], text].concat();
    let authority = Reported { status: b"Uid:\t0\n", label: b"unconfined\n", securebits: 7 };
    let parked = Reply::Parked { pid: 5, private: 6, variables: vec![b"A", b"B"], files: vec![b"/f"], authority };
    assert_eq!(decode(&message(head, b"A\0B\0\0/f\0\0Uid:\t0\n\0unconfined\n\0")), Some(parked));
    // A forked child sends no text.
    let authority = Reported { status: b"", label: b"", securebits: 7 };
    let forked = Reply::Parked { pid: 5, private: 6, variables: vec![], files: vec![], authority };
    assert_eq!(decode(&message(head, b"")), Some(forked));
    let cannot = protocol::Reply { kind: ReplyKind::Cannot as u32, ..head };
    assert_eq!(decode(&message(cannot, b"threads")), Some(Reply::Cannot { why: b"threads" }));
    assert_eq!(decode(&message(protocol::Reply { kind: 2, ..head }, b"")), None);
    assert_eq!(decode(&message(protocol::Reply { version: protocol::VERSION + 1, ..head }, b"")), None);
    assert_eq!(decode(&head.to_bytes()[1..]), None);
}

#[test]
fn the_park_variable_has_its_fields_in_order() {
    let value = park_variable(|field| (field as u32).to_string());
    assert_eq!(value, "0:1:2:3:4:5:6:7:8");
}

#[test]
fn each_operation_of_a_plan_has_its_own_step() {
    let text = || Arc::<CStr>::from(c"/");
    let how = abi::open_how { flags: 0, mode: 0, resolve: 0 };
    let limit = abi::rlimit64 { rlim_cur: 1, rlim_max: 2 };
    let sets = CapabilitySets { effective: 0, permitted: 0, inheritable: 0, bounding: 0, ambient: 0 };
    let all = [
        (Code::Place, Op::Place { source: 0, to: 0 }),
        (Code::Dup2, Op::Dup2 { from: 0, to: 0 }),
        (Code::Close, Op::Close { fd: 0 }),
        (Code::CloseRange, Op::CloseRange { first: 0, last: 0 }),
        (Code::Open, Op::Open { dir: None, path: text(), how, to: 0 }),
        (Code::OpenNull, Op::OpenNull { to: 0 }),
        (Code::Chdir, Op::Chdir { path: text() }),
        (Code::Fchdir, Op::Fchdir { dir: 0 }),
        (Code::Umask, Op::Umask { mask: 0 }),
        (Code::Setsid, Op::Setsid),
        (Code::Setpgid, Op::Setpgid { group: 0 }),
        (Code::Tcsetpgrp, Op::Tcsetpgrp { fd: 0 }),
        (Code::Ctty, Op::ControllingTerminal { fd: 0 }),
        (Code::Rlimit, Op::Limit { resource: abi::RLIMIT_CORE, limit }),
        (Code::Nice, Op::Nice { nice: 0 }),
        (Code::Scheduler, Op::Scheduler { policy: 0, priority: 0 }),
        (Code::NoNewPrivs, Op::NoNewPrivs),
        (Code::OomScoreAdj, Op::OomScoreAdj { value: 0, text: Arc::new([0]) }),
        (Code::Cgroup, Op::Cgroup { dir: 0 }),
        (Code::Landlock, Op::Landlock { ruleset: 0 }),
        (Code::Chroot, Op::Chroot { path: text() }),
        (Code::Affinity, Op::Affinity { mask: Arc::new([1]) }),
        (Code::UserIds, Op::UserIds { real: 0, effective: 0, saved: 0 }),
        (Code::GroupIds, Op::GroupIds { real: 0, effective: 0, saved: 0 }),
        (Code::Groups, Op::Groups { groups: Arc::new([1]) }),
        (Code::KeepCapabilities, Op::KeepCapabilities),
        (Code::Capabilities, Op::Capabilities { sets }),
    ];
    for (code, op) in &all {
        let step = encode_step(7, op, &mut Vec::new(), true).unwrap().unwrap();
        assert_eq!((step.op, step.index), (*code as u16, 7));
    }
    // No plan has REPLACE.
    let rest: Vec<_> = Code::ALL.into_iter().filter(|code| all.iter().all(|(known, _)| known != code)).collect();
    assert_eq!(rest, [Code::Replace]);
}
