// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd warm explain`.

use serde_json::Value;
use spawnfd_tests::isolated;

use crate::common::{call, complaint};

#[test]
fn a_program_that_parks_would_start_warm() {
    isolated!(|| {
        for mode in ["reserve", "fork"] {
            let called = call(["warm", "explain", "--json", "--mode", mode, "--", "sh", "-c", "echo never"]);
            let value: Value = serde_json::from_str(&called.stdout).unwrap();
            assert_eq!((called.code, value["started"].as_str()), (Some(0), Some(mode)));
            assert!(value["saves_seconds"].as_f64() > Some(0.0) && value["memory_bytes"].as_u64() > Some(0), "{value}");
            assert_eq!((&value["meaning"], &value["remedy"]), (&Value::Null, &Value::Null));
        }
        let text = call(["warm", "explain", "sh"]).stdout;
        assert!(text.starts_with("reserve: ") && text.lines().count() == 2, "{text}");
    });
}

#[test]
fn a_script_would_start_cold_with_a_remedy() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let called = call(["warm".as_ref(), "explain".as_ref(), script.as_os_str()]);
        assert_eq!(called.code, Some(0));
        assert!(called.stdout.starts_with("cold: script: ") && called.stdout.contains("Add the interpreter"));
    });
}

#[test]
fn a_missing_program_is_not_found() {
    isolated!(|| {
        let called = call(["warm", "explain", "--", "spawnfd-no-such-program"]);
        assert!(complaint(&called, 127).starts_with("spawnfd-no-such-program: not found in PATH"), "{called:?}");
    });
}
