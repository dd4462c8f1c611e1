// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random lists of file actions: both implementations give the same descriptors and directory, or the same errno.

use std::ffi::{CString, c_int};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spawnfd_tests::{State, isolated, program};

use crate::implementation::{ANSWER, Action, Request, answer_path, at_number, libc, null, oracle, ours};

/// The lowest descriptor of the caller that lies above the numbers of most actions.
const DIRECTORY: c_int = 41;

fn number() -> impl Strategy<Value = c_int> {
    prop_oneof![8 => 0..12, 2 => 12..64, 1 => prop_oneof![Just(-1), Just(300), Just(ANSWER), Just(1 << 20)]]
}

fn text(path: &str) -> CString {
    CString::new(path).expect("no NUL")
}

fn path() -> impl Strategy<Value = CString> {
    prop_oneof![
        6 => Just("/dev/null"),
        3 => Just("/dev/zero"),
        2 => Just("/dev/fd/40"),
        2 => Just("self/fd/40"),
        1 => Just("zero"),
        1 => Just("/dev/missing"),
        1 => Just("/dev/null/below"),
    ]
    .prop_map(text)
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (number(), path()).prop_map(|(fd, path)| Action::Open { fd, path, flags: libc::O_RDONLY, mode: 0 }),
        2 => number().prop_map(Action::Close),
        4 => (number(), number()).prop_map(|(from, to)| Action::Dup2(from, to)),
        2 => prop_oneof![4 => Just("/dev"), 2 => Just("/proc"), 1 => Just("/missing")]
            .prop_map(|path| Action::Chdir(text(path))),
        1 => prop_oneof![3 => Just(DIRECTORY), 1 => number()].prop_map(Action::Fchdir),
        2 => number().prop_map(Action::Closefrom),
    ]
}

#[test]
fn random_lists_have_the_effect_of_libc() {
    isolated!(|| {
        let (null, root) = (null(), std::fs::File::open("/").expect("it exists"));
        let _open = [(at_number(&null, 5), at_number(&null, 40), at_number(&root, DIRECTORY), at_number(&null, 300))];
        let program = program("spawnfd-oracle");
        let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&proptest::collection::vec(action(), 0..10), |actions| {
            // The last action opens the answer again, because another action may have closed it.
            let mut request = Request { actions, ..oracle(&program) };
            let path = text(answer_path().to_str().expect("text"));
            request.actions.push(Action::Open { fd: ANSWER, path, flags: libc::O_WRONLY, mode: 0 });
            let seen =
                |by| request.state(by).map(|state: State| (format!("{:?}", state.fds), format!("{:?}", state.cwd)));
            prop_assert_eq!(seen(libc()), seen(ours()));
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    });
}
