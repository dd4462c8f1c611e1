// SPDX-License-Identifier: MIT OR Apache-2.0
//! Help, completions and the manual page.

use crate::common::call;
use spawnfd_tests::isolated;

#[test]
fn the_manual_page_is_up_to_date() {
    isolated!(|| {
        let page = call(["man"]);
        assert_eq!(page.code, Some(0));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/spawnfd.1");
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == page.stdout, "man/spawnfd.1 is old: cargo run -p spawnfd-cli -- man > man/spawnfd.1");
    });
}

#[test]
fn every_flag_is_in_help_and_manual() {
    isolated!(|| {
        let help = call(["run", "--help"]).stdout;
        let page = call(["man"]).stdout.replace("\\-", "-");
        let flags: Vec<&str> =
            help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 4).collect();
        assert!(flags.len() > 50);
        for flag in ["--landlock-rw", "--close-range", "--capture", "--user-namespace", "--no-timing"] {
            assert!(page.contains(flag), "{flag}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100));
    });
}

#[test]
fn completions_for_each_shell() {
    isolated!(|| {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let called = call(["completions", shell]);
            assert_eq!(called.code, Some(0));
            assert!(called.stdout.contains("landlock-rw"), "{shell}");
        }
        assert_eq!(call(["completions", "csh"]).code, Some(125));
    });
}

#[test]
fn help_and_version() {
    isolated!(|| {
        for args in [&["--help"][..], &["run", "-h"], &["doctor", "--help"], &["--version"]] {
            let called = call(args);
            assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""), "{args:?}");
            assert!(!called.stdout.is_empty());
        }
        assert_eq!(call::<&str>([]).code, Some(125));
    });
}
