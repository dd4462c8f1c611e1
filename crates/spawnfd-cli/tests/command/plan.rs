// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan that the flags of actions and attributes result in. tests/suite/spawn tests the effect of a plan.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{complaint, run};
use spawnfd::internal::Action;
use spawnfd_tests::isolated;

/// Returns the plan that the flags result in, without the attributes that every plan has.
#[track_caller]
fn plan(flags: &[&str]) -> Vec<String> {
    let called = run([&["--print-plan"], flags, &["true"]].concat());
    assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""), "{flags:?}");
    let always = ["sigprocmask(0x0)", "default_signals(0x1001000)"];
    called.stdout.lines().filter(|line| !always.contains(line)).map(str::to_owned).collect()
}

#[test]
fn each_flag_results_in_its_plan() {
    isolated!(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/actions.json");
        let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let filter = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(filter.path(), [0; 16]).unwrap();
        let mut seen = BTreeSet::from(["cgroup"]);
        for case in &cases {
            let action = Action::find(case["name"].as_str().unwrap()).unwrap();
            let flag = format!("--{}", action.flag());
            let text = match &case["text"] {
                Value::Null if action.syntax.is_empty() => None,
                Value::Null => continue,
                text => text.as_str().map(|text| text.replace("FILTER", filter.path().to_str().unwrap())),
            };
            let flags: Vec<&str> = [flag.as_str()].into_iter().chain(text.as_deref()).collect();
            let (user, group) = (rustix::process::geteuid().to_string(), rustix::process::getegid().to_string());
            let expected = case["plan"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
            let expected: Vec<String> =
                expected.map(|line| line.replace("EUID", &user).replace("EGID", &group)).collect();
            assert_eq!(plan(&flags), expected, "{flags:?}");
            seen.insert(action.name);
        }
        assert_eq!(seen, Action::all().map(|action| action.name).collect());
    });
}

#[test]
fn each_capability_set_can_be_named() {
    isolated!(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"].map(|field| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            u64::from_str_radix(line.trim_start_matches([':', '\t']), 16).unwrap()
        });
        let [effective, permitted, inheritable, bounding, ambient] = own;
        let (chown, kill) = (1, 1 << 5);
        for (flags, expected) in [
            (
                &["permitted=chown,kill"][..],
                [effective & 0x21, 0x21, inheritable, bounding, ambient & inheritable & 0x21],
            ),
            (&["inheritable=kill"], [effective, permitted, kill, bounding, ambient & permitted & kill]),
            (&["bounding=chown:inheritable=none"], [effective, permitted, 0, chown, 0]),
            // A set that the second flag does not name is that of the first.
            (&["bounding=chown", "--capabilities", "inheritable=none"], [effective, permitted, 0, chown, 0]),
        ] {
            let lines = plan(&[&["--capabilities"], flags].concat());
            assert_eq!(lines.last(), Some(&capset(expected)), "{flags:?}");
        }
        // A change of ids clears capabilities; only an explicit flag restores them.
        for (ids, expected) in [
            (["--uid", "65534"], [0, permitted, inheritable, kill, 0]),
            (["--uid", "0"], [effective, permitted, inheritable, kill, 0]),
            (["--user-ids", "65534:keep:keep"], [effective, permitted, inheritable, kill, 0]),
        ] {
            let lines = plan(&[&ids[..], &["--capabilities", "bounding=kill"]].concat());
            assert_eq!(lines.last(), Some(&capset(expected)), "{ids:?}");
        }
    });
}

fn capset([effective, permitted, inheritable, bounding, ambient]: [u64; 5]) -> String {
    format!("capset({effective:#x}, {permitted:#x}, {inheritable:#x}), bounding {bounding:#x}, ambient {ambient:#x}")
}

#[test]
fn namespaces_are_found_by_path_and_by_process() {
    isolated!(|| {
        let own = std::process::id();
        for (source, kinds) in [("/proc/self/ns/uts".to_owned(), "0x0)"), (format!("pid={own}:uts,net"), "0x44000000)")]
        {
            let lines = plan(&["--join-namespace", &source]);
            assert!(matches!(&lines[..], [line] if line.starts_with("setns(") && line.ends_with(kinds)), "{lines:?}");
        }
        let called = run(["--join-namespace", "pid=4194304:net", "true"]);
        let expected = "--join-namespace pid=4194304:net: process 4194304: No such";
        assert!(complaint(&called, 125).starts_with(expected), "{called:?}");
    });
}
