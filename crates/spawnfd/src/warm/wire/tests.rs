// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that messages have the layout of `spawnfd_parked::protocol`. `make lint` compares that module with
//! `protocol.h`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::*;
use spawnfd_child::{CapabilitySets, Data, Pinned, Program};
use spawnfd_sys::{ArgBlock, CallSet};

#[test]
fn a_fork_request_has_a_header_and_an_empty_string() {
    let message = encode_fork(true);
    let (head, strings) = protocol::Request::read_from_prefix(&message).unwrap();
    assert_eq!(head.flags, protocol::FLAG_FORK | protocol::FLAG_MEASURE);
    assert_eq!((head.version, head.sources, head.program), (protocol::VERSION, 2, protocol::NO_SOURCE));
    assert_eq!((head.strings as usize, strings), (strings.len(), &b"\0"[..]));
}

#[test]
fn a_context_has_the_layout_that_the_parked_process_reads() {
    let page = Page::new().unwrap();
    let steps = vec![Op::Umask { mask: 0o27 }, Op::Scheduler { policy: 1, priority: 3 }];
    publish(&page, &Context { steps, make_default: 1, make_ignored: 2, mask: 3 }).unwrap();
    let bytes: Vec<u8> = page.get().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    let number = |at: usize| u64::from_ne_bytes(bytes[at..][..8].try_into().unwrap());
    let head = [Layout::FIRST, Layout::MAKE_DEFAULT, Layout::MAKE_IGNORED, Layout::MASK].map(number);
    assert_eq!(head, [2, 1, 2, 3]);
    let ([umask, scheduler], _) = <[protocol::Step; 2]>::read_from_prefix(&bytes[Layout::STEPS..]).unwrap();
    assert_eq!((umask.a, umask.x, umask.index), (abi::__NR_umask as i32, 0o27, CONTEXT));
    assert_eq!((scheduler.a, scheduler.y, scheduler.z.to_ne_bytes()[0]), (abi::__NR_sched_setscheduler as i32, 1, 3));
    assert_eq!(publish(&page, &Context { steps: vec![Op::Setsid; 25], ..Context::default() }), Err(ColdReason::Limits));
}

#[test]
fn a_handshake_has_the_layout_that_the_parked_process_writes() {
    let page = Arc::new(Page::new().unwrap());
    let handshake = Handshake::begin(&page, 3);
    assert_eq!((handshake.state(), handshake.report()), (State::Requested, Outcome::Killed(ChildStage::Descriptors)));
    assert!(
        handshake.change(State::Requested, State::Committed) && !handshake.change(State::Requested, State::Withdrawn)
    );
    page.get()[word(Layout::CHILD)].store(1234, Ordering::Relaxed);
    for state in [State::Withdrawn, State::Taken, State::Became, State::Failed, State::Refused] {
        page.get()[HANDSHAKE].store(3 * protocol::HANDSHAKE_STATES as u64 + state as u64, Ordering::Relaxed);
        assert_eq!(handshake.state(), state);
    }
    page.get()[HANDSHAKE].store(4 * protocol::HANDSHAKE_STATES as u64 + State::Taken as u64, Ordering::Relaxed);
    assert_eq!(handshake.state(), State::Refused, "another request's");
    let report = |index: u16| {
        let stage = (protocol::Stage::Action as u64) << protocol::REPORT_STAGE_SHIFT;
        page.get()[REPORT].store(stage | u64::from(index) << protocol::REPORT_INDEX_SHIFT | 13, Ordering::Relaxed);
        handshake.failed_action()
    };
    assert_eq!(report(CONTEXT), None, "a step of the context");
    assert_eq!(report(7), Some((7, Errno::EACCES)));
    assert_eq!(child(&page), 1234);
}

#[test]
fn a_zygotes_report_equals_that_of_the_clone_launcher() {
    for (number, stage, index) in [
        (protocol::Stage::Descriptors, ChildStage::Descriptors, 0),
        (protocol::Stage::Action, ChildStage::Action(7), 7),
        (protocol::Stage::Check, ChildStage::Check(7), 7),
        (protocol::Stage::Exec, ChildStage::Exec, 0),
    ] {
        let word = (number as u64) << protocol::REPORT_STAGE_SHIFT | index << protocol::REPORT_INDEX_SHIFT | 2;
        assert_eq!(Outcome::of(word), Outcome::Failed(Failure { stage, errno: Errno::ENOENT }));
    }
    assert_eq!(Outcome::of(protocol::REPORT_EXEC), Outcome::Program { renewed: false });
    assert_eq!(Outcome::of(protocol::REPORT_PENDING), Outcome::Killed(ChildStage::Descriptors));
}

#[test]
fn replies_are_parsed_by_version_and_kind() {
    let head = protocol::Reply { version: protocol::VERSION, kind: 0, pid: 5, securebits: 7, private_bytes: 6 };
    let message = |head: protocol::Reply, text: &[u8]| [head.as_bytes(), text].concat();
    let authority = Reported { status: b"Uid:\t0\n", label: b"unconfined\n", securebits: 7 };
    let (variables, files, modules) = (vec![&b"A"[..], b"B"], vec![&b"/f"[..]], vec![&b"m"[..]]);
    let parked = Reply::Parked { pid: 5, private: 6, variables, files, modules, authority };
    assert_eq!(decode(&message(head, b"A\0B\0\0/f\0\0m\0\0Uid:\t0\n\0unconfined\n\0")), Some(parked));
    // A forked child sends no text.
    let authority = Reported { status: b"", label: b"", securebits: 7 };
    let forked = Reply::Parked { pid: 5, private: 6, variables: vec![], files: vec![], modules: vec![], authority };
    assert_eq!(decode(&message(head, b"")), Some(forked));
    let cannot = protocol::Reply { kind: ReplyKind::Cannot as u32, ..head };
    assert_eq!(decode(&message(cannot, b"threads")), Some(Reply::Cannot { why: b"threads" }));
    assert_eq!(decode(&message(protocol::Reply { kind: 2, ..head }, b"")), None);
    assert_eq!(decode(&message(protocol::Reply { version: protocol::VERSION + 1, ..head }, b"")), None);
    assert_eq!(decode(&head.as_bytes()[1..]), None);
}

#[test]
fn the_park_variable_has_its_fields_in_order() {
    let value = park_variable(|field| (field as u32).to_string());
    assert_eq!(value, "0:1:2:3:4:5:6:7:8");
}

#[test]
fn each_operation_of_a_plan_has_its_own_step() {
    let how = abi::open_how { flags: 0, mode: 0, resolve: 0 };
    let sets = CapabilitySets::new();
    let all = [
        (Code::Call, Op::Place { source: 0, to: 0 }),
        (Code::CloseRange, Op::Close { fd: 0 }),
        (Code::CloseRange, Op::CloseRange { first: 0, last: 0 }),
        (Code::Open, Op::Open { dir: None, path: Data::Borrowed(c"/"), how, to: 0 }),
        (Code::Open, Op::OpenNull { to: 0 }),
        (Code::Tcsetpgrp, Op::Tcsetpgrp { fd: 0 }),
        (Code::OomScoreAdj, Op::OomScoreAdj { value: 0, text: Data::Borrowed(&[0]) }),
        (Code::Cgroup, Op::Cgroup { dir: 0 }),
        (Code::Capabilities, Op::Capabilities { sets }),
        (Code::Call, Op::Setsid),
    ];
    for (code, op) in &all {
        let step = encode_step(7, op, &mut Vec::new(), true).unwrap().unwrap();
        assert_eq!((step.op, step.index), (*code as u16, 7));
    }
    // REPLACE is the only operation that no step of a plan uses.
    let codes = 0..protocol::OP_COUNT as u16;
    let rest: Vec<_> = codes.filter(|&code| all.iter().all(|(known, _)| *known as u16 != code)).collect();
    assert_eq!(rest, [Code::Replace as u16]);
}

#[test]
fn a_system_call_step_has_the_kind_of_each_argument() {
    const NUMBER: i32 = Argument::Number as i32;
    const SOURCE: i32 = Argument::Source as i32;
    const TEXT: i32 = Argument::Text as i32;
    const DATA: i32 = Argument::Data as i32;
    let limit = [1, u64::MAX];
    let many: Arc<[u64]> = Arc::new([1, 2, 3]);
    let bytes: Vec<u8> = many.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for (op, number, kinds, [x, y, z, w], text) in [
        (Op::Place { source: 2, to: 9 }, abi::__NR_dup3, [SOURCE, NUMBER, NUMBER], [2, 9, 0, 0], &b""[..]),
        (Op::Dup2 { from: 8, to: 9 }, abi::__NR_dup3, [NUMBER; 3], [8, 9, 0, 0], b""),
        (Op::Dup2 { from: 9, to: 9 }, abi::__NR_fcntl, [NUMBER; 3], [9, abi::F_SETFD.into(), 0, 0], b""),
        (Op::Setpgid { group: 9 }, abi::__NR_setpgid, [NUMBER; 3], [0, 9, 0, 0], b""),
        (Op::Fchdir { dir: 2 }, abi::__NR_fchdir, [SOURCE, NUMBER, NUMBER], [2, 0, 0, 0], b""),
        (Op::Chdir { path: Data::Borrowed(c"/tmp") }, abi::__NR_chdir, [TEXT, NUMBER, NUMBER], [1, 0, 0, 0], b"/tmp\0"),
        (Op::Limit { resource: 7, limit }, abi::__NR_prlimit64, [NUMBER, NUMBER, DATA], [0, 7, 1, u64::MAX], b""),
        (
            Op::Affinity { mask: Data::Shared(many) },
            abi::__NR_sched_setaffinity,
            [NUMBER, NUMBER, TEXT],
            [0, 24, 1, 0],
            &bytes,
        ),
        (Op::Groups { groups: Data::Borrowed(&[]) }, abi::__NR_setgroups, [NUMBER, TEXT, NUMBER], [0, 1, 0, 0], b""),
    ] {
        let mut strings = vec![0];
        let step = encode_step(7, &op, &mut strings, true).unwrap().unwrap();
        let [first, second, third] = kinds;
        let expected = protocol::Step {
            op: Code::Call as u16,
            index: 7,
            a: number as i32,
            b: first | second << protocol::ARGUMENT_BITS | third << (2 * protocol::ARGUMENT_BITS),
            text: text.len() as u32,
            x,
            y,
            z,
            w,
        };
        assert_eq!((step, &strings[1..]), (expected, text), "{op:?}");
    }
}

fn plan() -> Plan<'static> {
    let block = |strings: &[&str]| ArgBlock::new(strings).unwrap();
    Plan {
        killed_calls: CallSet::NONE,
        sources: Cow::default(),
        above: 3,
        below: RawFd::MAX,
        highest: 2,
        steps: Cow::default(),
        keep: Some(Cow::default()),
        default_signals: 0,
        signal_mask: None,
        parent_death: None,
        program: Program { pinned: Data::Shared(Arc::new(Pinned::default())), source: None, renew: false },
        owners_mapped: false,
        filter: None,
        argv: block(&["true"]),
        shell: None,
        envp: Data::Shared(Arc::new(block(&[]))),
    }
}

fn encoded(plan: &Plan<'_>) -> Result<protocol::Request, ColdReason> {
    let request = StartRequest {
        join: None,
        steps: &[],
        skip: 0,
        handed_on: &[],
        own_environment: false,
        executes: true,
        sources: 0,
    };
    let message = encode(1, plan, &request)?;
    Ok(protocol::Request::read_from_prefix(&message).unwrap().0)
}

#[test]
fn a_request_names_the_calls_that_a_filter_kills() {
    assert_eq!(encoded(&plan()).unwrap().killed, 0);
    for (bit, (call, number)) in CALLS.into_iter().enumerate() {
        assert_eq!(number as usize, bit);
        let killed_calls = CallSet::NONE.with(call).with(Call::Kcmp);
        assert_eq!(encoded(&Plan { killed_calls, ..plan() }).unwrap().killed, 1 << bit);
    }
}

#[test]
fn a_plan_that_only_a_new_child_can_perform_is_refused() {
    assert_eq!(encoded(&Plan { owners_mapped: true, ..plan() }), Err(ColdReason::Namespaces));
    assert_eq!(encoded(&Plan { shell: Some(plan().argv), ..plan() }), Err(ColdReason::Unknown));
    assert_eq!(encoded(&Plan { keep: None, ..plan() }), Err(ColdReason::InheritedDescriptors));
}

#[test]
fn reported_texts_are_decoded() {
    let decode = |text: &str| ColdReason::decode(text.as_bytes());
    for reason in ColdReason::FIXED {
        assert_eq!(decode(reason.word()), *reason);
    }
    assert_eq!(decode("cannot import json"), ColdReason::CannotImport("cannot import json"));
    let entry = "cannot import the entry's modules: ValueError: x";
    assert_eq!(decode(entry), ColdReason::CannotImportEntry(entry));
    assert_eq!(decode("start-up code writes: x"), ColdReason::StartUpWritesText("start-up code writes: x"));
    assert_eq!(decode("Fatal error"), ColdReason::Reported("Fatal error"));
    assert_eq!(decode("Fatal error").word(), "Fatal error");
}

#[test]
fn the_reference_has_every_reason() {
    let Ok(text) = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/warm-reference.md")) else {
        return spawnfd_tests::skip("a packaged crate has no documentation");
    };
    let section = text.split_once("\n## When a start is cold").expect("a section").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let documented = section.lines().filter(|line| line.starts_with("| `")).flat_map(|line| {
        let cell = line.split(" | ").next().unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    });
    // The reference has failed system calls as examples.
    let documented: BTreeSet<_> = documented.filter(|reason| !reason.contains("()")).collect();
    let patterns = ColdReason::VARYING.iter().map(|(pattern, _)| *pattern);
    let patterns = patterns.filter(|pattern| !["…(): …", "…"].contains(pattern));
    let reasons: BTreeSet<_> = ColdReason::FIXED.iter().map(|reason| reason.word()).chain(patterns).collect();
    assert_eq!(documented, reasons);
}
