// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of each flag of `spawnfd run`, as the program itself sees it.

use std::path::Path;

use crate::common::{command, complaint, finish, run, shell};
use spawnfd_tests::{isolated, skip};

#[track_caller]
fn status(flags: &[&str], field: &str) -> String {
    // No shell runs in between, because some shells change the signal mask.
    let pattern = format!("^{field}:");
    let called = run(flags.iter().copied().chain(["grep", &pattern, "/proc/self/status"]));
    assert_eq!(called.code, Some(0), "{flags:?}: {}", called.stderr);
    called.stdout.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Returns the open descriptors of `ls`. They include the lowest free number, by which `ls` reads
/// the directory.
#[track_caller]
fn listed(flags: &[&str]) -> String {
    let called = run(flags.iter().copied().chain(["ls", "/proc/self/fd"]));
    assert_eq!(called.code, Some(0), "{flags:?}: {}", called.stderr);
    called.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn actions_run_in_the_order_given() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        for name in ["one", "two"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        let (one, two) = (format!("{root}/one"), format!("{root}/two"));
        let script = "cat <&7; echo; cat <&8; echo; pwd";
        let flags = ["--chdir", &one, "--open", "r:file:7", "--chdir", &two, "--open", "r:file:8", "--chdir", "/"];
        assert_eq!(shell(flags, script), "one\ntwo\n/");
        // These two commands have the same flags in opposite orders.
        assert_eq!(listed(&["--open", "r:/etc/passwd:7", "--close", "7"]), "0 1 2 3");
        assert_eq!(listed(&["--close", "7", "--open", "r:/etc/passwd:7"]), "0 1 2 3 7");
        assert_eq!(shell(["--setsid", "--umask", "027", "--nice", "19", "--umask", "077"], "umask; nice"), "0077\n19");
    });
}

#[test]
fn inherited_descriptors_can_be_passed() {
    isolated!(|| {
        // A shell opens descriptors 6 and 7 for the command.
        let own = |args: &str| {
            let script = format!("exec \"$0\" run {args} 6</etc/passwd 7</");
            let called = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
            assert_eq!(called.code, Some(0), "{}", called.stderr);
            called.stdout
        };
        assert_eq!(own("--fd 6:4 readlink /proc/self/fd/4"), "/etc/passwd\n");
        assert_eq!(own("ls /proc/self/fd"), "0\n1\n2\n3\n");
        assert_eq!(own("--inherit-descriptors readlink /proc/self/fd/6"), "/etc/passwd\n");
        assert_eq!(own("--fchdir 7 pwd"), "/\n");
        assert_eq!(own("--open-at 7:r:etc/passwd:3 readlink /proc/self/fd/3"), "/etc/passwd\n");
    });
}

#[test]
fn relative_parts_of_path_start_at_the_programs_directory() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::copy("/bin/echo", bin.join("only-here")).unwrap();
        let cwd = directory.path().to_str().unwrap();
        for flags in [&[][..], &["--strict"], &["--snapshot"], &["--capture"]] {
            for (cwd, path) in [(cwd, "PATH=/bin:bin"), (bin.to_str().unwrap(), "PATH=:/bin")] {
                let called = run(flags.iter().chain(&["--cwd", cwd, "--env", path, "only-here", "found"]));
                assert_eq!((called.stdout.as_str(), called.stderr.as_str()), ("found\n", ""), "{flags:?} {path}");
            }
        }
        let called = run(["--env", "PATH=/bin:bin", "only-here"]);
        assert_eq!(called.code, Some(127), "{called:?}");
    });
}

#[test]
fn cwd_arg0_strict_and_snapshot_apply_to_the_program() {
    isolated!(|| {
        assert_eq!(run(["--cwd", "/usr", "pwd"]).stdout, "/usr\n");
        assert_eq!(run(["--cwd", "/usr", "--chdir", "bin", "pwd"]).stdout.trim_end_matches('\n'), "/usr/bin");
        assert_eq!(
            run(["--arg0", "other", "sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1"]).stdout,
            "other\n"
        );
        assert_eq!(run(["--strict", "bash", "-c", "echo $0"]).stdout, "bash\n");
        let snapshot = run(["--snapshot", "bash", "-c", "echo $0; readlink /proc/$$/exe; true"]);
        let (name, file) = snapshot.stdout.split_once('\n').unwrap();
        assert_eq!(name, "bash");
        assert!(file.contains("(deleted)"), "{file}: a file without a path");
    });
}

#[test]
fn environment_flags_apply_in_the_documented_order() {
    isolated!(|| {
        let env = |flags: &[&str]| {
            let mut command = command();
            command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("A_TOKEN", "secret"), ("LC_X", "1"), ("LC_Y", "2")]);
            let called = finish(command.arg("run").args(flags).arg("env"));
            assert_eq!(called.code, Some(0), "{}", called.stderr);
            let mut lines: Vec<String> = called.stdout.lines().map(str::to_owned).collect();
            lines.sort();
            lines.join(" ")
        };
        assert_eq!(env(&[]), "A_TOKEN=secret LC_X=1 LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env-deny", "*_TOKEN"]), "LC_X=1 LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env-only", "PATH", "--env-only", "LC_*", "--unset", "LC_X"]), "LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env", "X=1=2", "--env-clear"]), "X=1=2");
        assert_eq!(env(&["--env-clear", "--env", "X=1", "--unset", "X", "--env", "Y=2"]), "Y=2");
        assert_eq!(env(&["--env-clear", "--unset", "X", "--env", "X=1"]), "X=1");
        assert_eq!(env(&["--env-only", "LC_X", "--env-deny", "*", "--env", "LC_X=3"]), "LC_X=3");
        assert!(env(&["--noninteractive"]).contains("PAGER=cat"));
        assert!(env(&["--noninteractive", "--env", "PAGER=less"]).contains(" PAGER=less"));
    });
}

#[test]
fn standard_streams_can_be_redirected() {
    isolated!(|| {
        assert_eq!(run(["--stdout", "null", "sh", "-c", "echo out"]).stdout, "");
        assert_eq!(run(["--stderr", "stdout", "sh", "-c", "echo err >&2"]).stdout, "err\n");
        assert_eq!(run(["--stderr", "null", "sh", "-c", "echo err >&2"]).stderr, "");
        assert_eq!(run(["--stdin", "null", "readlink", "/proc/self/fd/0"]).stdout, "/dev/null\n");
        // The following runs are captured, and redirect streams too.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        std::fs::write(&path, "from here").unwrap();
        let mut captured = command();
        captured.args(["run", "--capture", "--stdin", "inherit", "cat"]).stdin(std::fs::File::open(&path).unwrap());
        assert_eq!(finish(&mut captured).stdout, "from here");
        let inherits = ["--capture", "--json", "--stdout", "inherit", "--stderr", "inherit"];
        let called = run(inherits.into_iter().chain(["sh", "-c", "echo out; echo err >&2"]));
        assert_eq!(called.stderr, "err\n");
        let json: serde_json::Value = serde_json::from_str(called.stdout.strip_prefix("out\n").unwrap()).unwrap();
        assert_eq!((json["stdout"].as_str(), json["stderr"].as_str()), (Some(""), Some("")));
    });
}

#[test]
fn signal_mask_and_default_signals_are_set() {
    isolated!(|| {
        let ignoring = |flags: &str| {
            let script = format!("trap '' INT PIPE XFSZ; exec \"$0\" run {flags} grep SigIgn /proc/self/status");
            let called = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
            u64::from_str_radix(called.stdout.split_whitespace().last().unwrap(), 16).unwrap()
        };
        let (int, pipe, xfsz) = (1 << 1, 1 << 12, 1 << 24);
        let all = int | pipe | xfsz;
        assert_eq!(ignoring("") & all, int, "SIGPIPE and SIGXFSZ are reset; other ignored signals stay ignored");
        assert_eq!(ignoring("--default-signals INT,PIPE") & all, xfsz);
        assert_eq!(ignoring("--default-signals none") & all, all);
        assert_eq!(ignoring("--inherit-signals") & all, all);
        assert_eq!(ignoring("--inherit-signals --default-signals PIPE") & all, int | xfsz);
        // Only the Rust runtime of this command ignores SIGPIPE.
        for flags in [&["--inherit-signals"][..], &["--default-signals", "none"]] {
            assert_eq!(u64::from_str_radix(&status(flags, "SigIgn"), 16).unwrap() & pipe, 0, "{flags:?}");
        }
        let blocking = |flags: &[&str]| {
            let called = ["--block-signal=USR1", env!("CARGO_BIN_EXE_spawnfd"), "run"];
            let show = ["grep", "SigBlk", "/proc/self/status"];
            let shown = finish(std::process::Command::new("env").args(called).args(flags).args(show)).stdout;
            shown.split_whitespace().last().unwrap().to_owned()
        };
        assert_eq!(blocking(&[]), "0000000000000000");
        assert_eq!(blocking(&["--inherit-signals"]), "0000000000000200");
        assert_eq!(blocking(&["--inherit-signals", "--default-signals", "INT"]), "0000000000000200");
        assert_eq!(blocking(&["--inherit-signals", "--signal-mask", "HUP"]), "0000000000000001");
    });
}

#[test]
fn landlock_confines_the_program() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let (open, shut) = (dir.path().join("open"), dir.path().join("shut"));
        std::fs::create_dir(&open).unwrap();
        std::fs::create_dir(&shut).unwrap();
        let flags = ["--no-new-privs", "--landlock-ro", "/", "--landlock-rw", open.to_str().unwrap()];
        let script = format!("echo x > {}/file; echo x 2>&1 > {}/file", open.display(), shut.display());
        let called = run(flags.iter().copied().chain(["--", "sh", "-c", &script]));
        if called.code == Some(125) && called.stderr.contains("Landlock") {
            return skip(complaint(&called, 125));
        }
        assert!(called.code != Some(0) && called.stdout.contains("ermission denied"), "{called:?}");
        assert!(open.join("file").exists() && !shut.join("file").exists());
        // A descriptor that was opened before the ruleset stays usable, so the order of the flags matters.
        let hidden = shut.join("hidden");
        std::fs::write(&hidden, "seen").unwrap();
        let opened = format!("r:{}:7", hidden.display());
        let mut flags = vec!["--no-new-privs", "--open", &opened];
        for path in ["/usr", "/bin", "/lib", "/lib64", "/etc"].iter().filter(|path| Path::new(path).exists()) {
            flags.extend(["--landlock-ro", path]);
        }
        assert_eq!(shell(flags, "cat <&7"), "seen");
        let late = ["--no-new-privs", "--landlock-ro", "/usr", "--open", &opened, "true"];
        assert!(complaint(&run(late), 125).contains("EACCES"), "the ruleset applies to later actions");
    });
}
