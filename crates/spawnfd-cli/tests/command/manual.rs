// SPDX-License-Identifier: MIT OR Apache-2.0
//! Help, completions and the manual page.

use std::process::Command;

use crate::common::{call, finish};
use spawnfd_tests::isolated;

#[test]
fn the_manual_page_is_up_to_date() {
    isolated!(|| {
        let page = call(["man"]);
        assert_eq!(page.code, Some(0));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/spawnfd.1");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page.stdout,
            "man/spawnfd.1 is out of date: run cargo run -p spawnfd-cli -- man > man/spawnfd.1"
        );
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
fn completions_exist_for_each_shell() {
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
fn help_and_version_are_printed_on_standard_output() {
    isolated!(|| {
        for args in [&["--help"][..], &["run", "-h"], &["doctor", "--help"], &["--version"]] {
            let called = call(args);
            assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""), "{args:?}");
            assert!(!called.stdout.is_empty());
        }
        assert_eq!(call::<&str>([]).code, Some(125));
    });
}

/// Returns the flags of each `spawnfd run` in a page, up to the program.
fn flags_in(page: &str) -> Vec<&str> {
    let calls = page.split("spawnfd run --").skip(1).map(|rest| rest.split(['`', '\n']).next().unwrap());
    calls.map(|call| call.split(" -- ").next().unwrap()).filter(|flags| *flags != "help").collect()
}

#[test]
fn the_commands_in_the_pages_are_accepted() {
    isolated!(|| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let folders = ["docs", "docs/guides"].map(|folder| std::fs::read_dir(format!("{root}/{folder}")).unwrap());
        let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
        let pages = files.filter(|path| path.extension().is_some_and(|name| name == "md"));
        let mut count = 0;
        for path in pages.chain([format!("{root}/README.md").into()]) {
            for flags in flags_in(&std::fs::read_to_string(&path).unwrap()) {
                // The shell splits the flags as the reader's shell does.
                let script = format!("exec \"$0\" run --{flags} -- /no/such/program");
                let called = finish(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
                // Other errors than that of the program have status 125. The library is in build/capi, if anywhere.
                let has_no_library = called.stderr.contains("libspawnfd-spawn.so not found");
                assert!(called.code == Some(127) || has_no_library, "{}: {flags}: {called:?}", path.display());
                count += 1;
            }
        }
        assert!(count >= 8, "{count}");
    });
}
