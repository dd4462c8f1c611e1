// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings of `spawnfd doctor`, on this machine and on shims that the tests create.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::common::{command, finish};
use serde_json::Value;
use spawnfd_tests::{confine, isolated, require_root, skip};

fn doctor(path: &str, flags: &[&str]) -> Value {
    let called = finish(command().env("PATH", path).args(["doctor", "--json"]).args(flags));
    assert_eq!(called.code, Some(0), "{}", called.stderr);
    serde_json::from_str(&called.stdout).unwrap()
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_size_limit_of_zero_is_survived() {
    isolated!(|| {
        let line = format!("ulimit -f 0; exec {} doctor --json --no-timing", env!("CARGO_BIN_EXE_spawnfd"));
        let called = finish(std::process::Command::new("sh").args(["-c", &line]));
        assert_eq!(called.code, Some(0), "{}", called.stderr);
        let value: Value = serde_json::from_str(&called.stdout).unwrap();
        assert!(value["features"].as_array().unwrap().iter().any(|feature| feature["name"] == "reflink (FICLONE)"));
    });
}

#[test]
fn json_has_all_features_and_facts() {
    isolated!(|| {
        let value = doctor("/usr/bin:/bin", &["--no-timing"]);
        let names: Vec<&str> =
            value["features"].as_array().unwrap().iter().map(|feature| feature["name"].as_str().unwrap()).collect();
        for name in [
            "pidfd_spawn_run",
            "clone3",
            "clone CLONE_PIDFD",
            "clone3 CLONE_INTO_CGROUP",
            "close_range CLOSE_RANGE_UNSHARE",
            "close_range CLOSE_RANGE_CLOEXEC",
            "pidfd_open",
            "pidfd_open PIDFD_THREAD",
            "pidfd_getfd",
            "pidfd_send_signal",
            "waitid P_PIDFD",
            "openat2",
            "faccessat2",
            "execveat",
            "memfd_create MFD_EXEC",
            "madvise MADV_WIPEONFORK",
            "Landlock",
            "seccomp filter",
            "user namespaces",
            "reflink (FICLONE)",
            "ioctl PIDFD_GET_INFO",
            "io_uring",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        for feature in value["features"].as_array().unwrap() {
            assert!(feature["available"].is_boolean() && feature["since"].is_string(), "{feature}");
            assert!(!feature["if_missing"].as_str().unwrap().is_empty(), "{feature}");
            // Each missing feature has a reason.
            assert!(feature["available"] == true || feature["detail"].is_string(), "{feature}");
        }
        let unused = value["features"].as_array().unwrap().iter().filter(|feature| feature["used"] == false);
        assert!(unused.into_iter().all(|feature| feature["name"] == "io_uring"), "{value}");
        assert_eq!(value["machine"]["uid"], rustix::process::getuid().as_raw());
        assert!(value["machine"]["kernel"].is_string() && value["cgroup"]["writable"].is_boolean());
        let has =
            |name| value["features"].as_array().unwrap().iter().any(|f| f["name"] == name && f["available"] == true);
        let spawn_call = ["pidfd_spawn_run", "clone3"].into_iter().find(|name| has(*name)).unwrap_or("clone");
        assert_eq!(value["library"]["spawn_call"], spawn_call, "the library uses the best call that is available");
    });
}

#[test]
fn facts_of_refused_calls_are_omitted() {
    isolated!(|| {
        let call = |flags: &[&str]| {
            std::thread::scope(|scope| {
                let confined = scope.spawn(|| {
                    confine::deny(&[("prlimit64", libc::EPERM), ("uname", libc::EPERM)]).unwrap();
                    finish(command().args(["doctor", "--no-timing"]).args(flags))
                });
                confined.join().unwrap()
            })
        };
        let called = call(&["--json"]);
        assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""));
        let value: Value = serde_json::from_str(&called.stdout).unwrap();
        let machine = value["machine"].as_object().unwrap();
        for (name, present) in [("kernel", false), ("architecture", false), ("nofile_soft", false), ("uid", true)] {
            assert_eq!(machine.contains_key(name), present, "{value}");
        }
        let called = call(&[]);
        assert_eq!((called.code, called.stdout.matches(" unknown\n").count()), (Some(0), 2), "{}", called.stdout);
    });
}

#[test]
fn required_features_are_found_without_proc() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let script = "umount -l /proc || exit 77; exec \"$0\" doctor --json --no-timing";
        let unshare = ["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_spawnfd")];
        let called = finish(std::process::Command::new("unshare").args(unshare).env("PATH", "/usr/bin:/bin"));
        if called.code == Some(77) || called.stderr.contains("unshare") {
            return skip("a mount namespace is refused");
        }
        assert_eq!(called.code, Some(0), "{}", called.stderr);
        let value: Value = serde_json::from_str(&called.stdout).unwrap();
        for feature in value["features"].as_array().unwrap() {
            let required = ["clone CLONE_PIDFD", "waitid P_PIDFD"].contains(&feature["name"].as_str().unwrap());
            assert!(!required || feature["available"] == true, "{feature}");
        }
    });
}

#[test]
fn a_shim_in_a_directory_whose_name_is_not_utf8() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir(&odd).unwrap();
        script(&odd.join("python"), "#!/bin/sh\nexec /bin/true \"$@\"\n");
        let called = finish(command().env("PATH", &odd).args(["doctor", "--json", "--no-timing"]));
        assert_eq!(called.code, Some(0), "{}", called.stderr);
        let value: Value = serde_json::from_str(&called.stdout).unwrap();
        assert!(value["shims"][0]["path"].as_str().unwrap().ends_with("/python"), "{value}");
    });
}

#[test]
fn the_cgroup_is_found_at_any_mount_point() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("the last");
        fs::create_dir(&point).unwrap();
        let script = "mount -t cgroup2 none \"$1\" || exit 77; exec \"$0\" doctor --json --no-timing";
        let unshare = ["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_spawnfd")];
        let called =
            finish(std::process::Command::new("unshare").args(unshare).arg(&point).env("PATH", "/usr/bin:/bin"));
        if called.code == Some(77) || called.stderr.contains("unshare") {
            return skip("mounting is refused");
        }
        assert_eq!(called.code, Some(0), "{}", called.stderr);
        let value: Value = serde_json::from_str(&called.stdout).unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        assert_eq!(value["cgroup"]["directory"], point.join(own).to_str().unwrap());
    });
}

#[test]
fn text_has_all_sections() {
    isolated!(|| {
        let called = finish(command().env("PATH", "/nowhere").args(["doctor", "--no-timing"]));
        assert_eq!(called.code, Some(0));
        for part in ["This machine", "Kernel features", "Shims in PATH\n  none\n", "since"] {
            assert!(called.stdout.contains(part), "{part}: {}", called.stdout);
        }
        assert!(called.stdout.lines().all(|line| line.trim_end() == line), "no trailing blanks");
    });
}

#[test]
fn a_managers_shim_is_resolved_and_timed() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let real = root.join("versions/1/bin/python");
        script(&real, "#!/bin/sh\necho Python 1\n");
        let manager = format!(
            "#!/bin/sh\ncase $1 in\nwhich) [ $2 = python ] && echo {0} || {{ echo \"pyenv: $2: no\" >&2; exit 127; }} ;;\n\
         exec) shift 2; sleep 0.5; exec {0} \"$@\" ;;\nesac\n",
            real.display()
        );
        script(&root.join("bin/pyenv"), &manager);
        let shim =
            format!("#!/usr/bin/env bash\nexec \"{}\" exec \"$program\" \"$@\"\n", root.join("bin/pyenv").display());
        for name in ["python", "pip", "moto"] {
            script(&root.join("shims").join(name), &shim.replace("$program", name));
        }
        // The other directory in PATH has no shim, on any machine.
        fs::create_dir(root.join("tools")).unwrap();
        for (name, target) in [("bash", "/bin/bash"), ("sleep", "/bin/sleep")] {
            symlink(target, root.join("tools").join(name)).unwrap();
        }
        let path = format!("{}:{}", root.join("shims").display(), root.join("tools").display());
        let found = |value: &Value, name: &str| {
            value["shims"].as_array().unwrap().iter().find(|shim| shim["name"] == name).cloned().unwrap()
        };
        let value = doctor(&path, &[]);
        let python = found(&value, "python");
        assert_eq!((python["tool"].as_str(), python["target"][0].as_str()), (Some("pyenv"), real.to_str()));
        assert!(python["cost_seconds"].as_f64().unwrap() > 0.03, "{python}");
        assert_eq!(found(&value, "pip")["note"], "pyenv: pip: no");
        let moto = found(&value, "moto");
        assert!(
            moto["target"].is_null() && moto.get("cost_seconds").is_none(),
            "only well-known tools are run: {moto}"
        );
        let value = doctor(&path, &["--no-timing"]);
        assert!(found(&value, "python")["target"].is_null(), "nothing is run");
    });
}

#[test]
fn npm_links_and_exec_scripts_are_shims() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        script(&root.join("bin/node"), "#!/bin/sh\necho node\n");
        script(&root.join("lib/node_modules/tool/cli.js"), "#!/usr/bin/env node\n");
        symlink("../lib/node_modules/tool/cli.js", root.join("bin/tool")).unwrap();
        script(&root.join("bin/wrapper"), "#!/bin/sh\nX=1\nexec /bin/cat -u \"$@\"\n");
        script(&root.join("bin/program"), "#!/bin/sh\necho does more\n");
        fs::copy("/bin/sh", root.join("bin/rustup")).unwrap();
        fs::hard_link(root.join("bin/rustup"), root.join("bin/cargo-thing")).unwrap();
        let value = doctor(root.join("bin").to_str().unwrap(), &["--no-timing"]);
        let mut found: Vec<(String, String)> = value["shims"]
            .as_array()
            .unwrap()
            .iter()
            .map(|shim| (shim["name"].as_str().unwrap().to_owned(), shim["tool"].as_str().unwrap().to_owned()))
            .collect();
        found.sort();
        let wanted = [("cargo-thing", "rustup"), ("tool", "npm"), ("wrapper", "script")];
        assert_eq!(found, wanted.map(|(name, tool)| (name.to_owned(), tool.to_owned())));
        let wrapper = value["shims"].as_array().unwrap().iter().find(|shim| shim["name"] == "wrapper").unwrap();
        assert_eq!(wrapper["target"][0], "/bin/cat");
    });
}
