// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of CPython that are parked with an entry point. bindings/python/tests/warm/test_warm_entry.py has the
//! other tests.

use crate::common::retry_while_slow;
use spawnfd::child::Started;
use spawnfd::warm::{Park, WarmOptions};
use spawnfd::{Command, Warm};
use spawnfd_tests::isolated;

#[test]
fn an_entry_serves_its_own_program_only() {
    isolated!(|| {
        let python = "/usr/bin/python3";
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        warm.add(python, Park::new().depth(1).entry("-m json.tool")).expect("it exists");
        let run = |args: &[&str]| {
            retry_while_slow(&warm, || {
                Command::new(python).args(args).current_dir("/").warm(&warm).run().expect("runs")
            })
        };
        let own = run(&["-m", "json.tool", "--help"]);
        assert_eq!((own.started, own.check().is_ok()), (Started::Reserve, true));
        assert_eq!(run(&["-c", "pass"]).started, Started::Cold("entry"));
    });
}
