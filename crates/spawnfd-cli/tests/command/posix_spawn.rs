// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd run --posix-spawn`, and `spawnfd doctor PROGRAM`, which reports whether the flag has an effect.

use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;
use spawnfd_tests::{isolated, require_root, skip};

use crate::common::{Called, call, command, complaint, finish};

const LIBRARY: &str = "libspawnfd-spawn.so";

/// The library that scripts/build-capi.sh builds. Skips the test if the library does not exist.
fn built() -> Option<PathBuf> {
    let named = std::env::var_os("SPAWNFD_CAPI").map(PathBuf::from);
    let directory = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/capi"));
    let library = directory.join(LIBRARY).canonicalize().ok();
    if library.is_none() {
        skip("libspawnfd-spawn.so is not built: make capi");
    }
    library
}

/// Calls `spawnfd run --posix-spawn` with a library and further arguments.
fn run(library: impl AsRef<OsStr>, args: &[&str]) -> Called {
    let mut command = command();
    command.env("SPAWNFD_POSIX_SPAWN", library).env_remove("LD_PRELOAD").args(["run", "--posix-spawn"]);
    finish(command.args(args))
}

/// Creates an empty file. The loader prints an error for it, and starts the program.
fn empty(path: &Path) -> &Path {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
    path
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_preload_is_in_the_environment_that_the_flags_build() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("l.so");
        let own = empty(&library).to_str().unwrap();
        for (flags, expected) in [
            (&[][..], own.to_owned()),
            (&["--env-clear"], own.to_owned()),
            (&["--env-deny", "LD_*"], own.to_owned()),
            (&["--unset", "LD_PRELOAD"], own.to_owned()),
            (&["--capture"], own.to_owned()),
            (&["--env", "LD_PRELOAD=/a.so /b.so"], format!("/a.so:/b.so:{own}")),
            (&["--env-clear", "--env", &format!("LD_PRELOAD={own}:/a.so")], format!("/a.so:{own}")),
        ] {
            let called = run(&library, &[flags, &["/bin/sh", "-c", "echo $LD_PRELOAD"]].concat());
            assert_eq!((called.code, called.stdout.trim_end()), (Some(0), expected.as_str()), "{flags:?}");
        }
    });
}

#[test]
fn a_relative_library_path_starts_at_this_directory() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        empty(&dir.join("l.so"));
        let mut command = command();
        command.current_dir(&dir).env("SPAWNFD_POSIX_SPAWN", "l.so").env_remove("LD_PRELOAD");
        let script = ["--cwd", "/", "sh", "-c", "echo $LD_PRELOAD"];
        let called = finish(command.args(["run", "--posix-spawn"]).args(script));
        assert_eq!(called.stdout.trim_end(), dir.join("l.so").to_str().unwrap());
    });
}

#[test]
fn the_library_is_found_near_the_command() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let copy = root.join("bin/spawnfd");
        fs::create_dir(root.join("bin")).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_spawnfd"), &copy).unwrap();
        let preload = || {
            let mut command = Command::new(&copy);
            command.env_remove("SPAWNFD_POSIX_SPAWN").env_remove("LD_PRELOAD");
            finish(command.args(["run", "--posix-spawn", "sh", "-c", "echo $LD_PRELOAD"]))
        };
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        let system = ["/usr/local/lib".to_owned(), "/usr/lib".to_owned(), format!("/usr/lib/{triplet}")];
        if !system.iter().any(|directory| Path::new(directory).join(LIBRARY).exists()) {
            let called = preload();
            let line = complaint(&called, 125);
            assert!(line.starts_with("--posix-spawn: libspawnfd-spawn.so not found in "), "{line}");
            for place in ["bin", "lib", &format!("lib/{triplet}")] {
                assert!(line.contains(root.join(place).to_str().unwrap()), "{place}: {line}");
            }
            assert!(system.iter().all(|place| line.contains(place)) && line.contains("SPAWNFD_POSIX_SPAWN"), "{line}");
        }
        // Each place precedes the places before it in this list.
        for place in [format!("lib/{triplet}"), "lib".to_owned(), "bin".to_owned()] {
            let library = root.join(place).join(LIBRARY);
            empty(&library);
            assert_eq!(preload().stdout.trim_end(), library.to_str().unwrap());
        }
    });
}

#[test]
fn a_library_that_cannot_be_preloaded_is_refused() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        for (name, problem) in [("a b.so", "contains ' '"), ("a:b.so", "contains ':'"), ("$LIB.so", "contains '$'")] {
            let called = run(empty(&dir.path().join(name)), &["true"]);
            let line = complaint(&called, 125);
            assert!(line.starts_with("--posix-spawn: ") && line.contains(problem), "{line}");
        }
        let called = run("/nowhere/l.so", &["true"]);
        assert_eq!(
            complaint(&called, 125),
            "--posix-spawn: SPAWNFD_POSIX_SPAWN=/nowhere/l.so: No such file or directory"
        );
        let called = run("/", &["--json", "true"]);
        let value: Value = serde_json::from_str(&called.stderr).unwrap();
        assert_eq!((called.code, &value["error"]["argument"]), (Some(125), &"--posix-spawn".into()), "{value}");
    });
}

#[test]
fn the_program_loads_the_library() {
    isolated!(|| {
        let Some(library) = built() else { return };
        for flags in [&[][..], &["--env-clear"], &["--capture"], &["--timeout", "60"]] {
            let called = run(&library, &[flags, &["cat", "/proc/self/maps"]].concat());
            assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""), "{flags:?}");
            assert!(called.stdout.contains(LIBRARY), "{flags:?}");
        }
    });
}

#[test]
fn make_starts_its_recipes_with_the_library() {
    isolated!(|| {
        let Some(library) = built() else { return };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("Makefile"), "all: a b\na b:\n\t@cat /proc/self/maps > $@; echo $@\n").unwrap();
        let called = run(&library, &["--cwd", dir.path().to_str().unwrap(), "make", "-s"]);
        if called.code == Some(127) {
            return skip("make is not installed");
        }
        assert_eq!((called.code, called.stdout.as_str(), called.stderr.as_str()), (Some(0), "a\nb\n", ""));
        let maps = fs::read_to_string(dir.path().join("a")).unwrap();
        assert!(maps.contains(LIBRARY), "the descendants inherit the preload");
    });
}

/// Returns the lines of the report on a program, without the path at the start of each line.
#[track_caller]
fn lines(program: &Path) -> Vec<String> {
    let called = call([OsStr::new("doctor"), program.as_os_str()]);
    assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""));
    called.stdout.lines().map(|line| line.split_once(": ").unwrap().1.to_owned()).collect()
}

#[track_caller]
fn json(program: &Path) -> Value {
    let called = call([OsStr::new("doctor"), OsStr::new("--json"), program.as_os_str()]);
    assert_eq!((called.code, called.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(&called.stdout).unwrap()
}

/// Returns this test's own file, which imports posix_spawnp. Skips the test if the preload does not support the file.
fn own_file() -> Option<PathBuf> {
    if cfg!(target_env = "gnu") {
        return std::env::current_exe().ok();
    }
    skip("this test is not a program for glibc");
    None
}

/// Replaces the strings that equal `from` in the first MiB of an ELF file, which contains the dynamic strings.
fn replace(file: &mut [u8], from: &str, to: &str) {
    let (from, length) = (format!("{from}\0"), from.len());
    let places: Vec<_> =
        (0..file.len().min(1 << 20) - length).filter(|place| file[*place..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty() && to.len() <= length, "{from}");
    for place in places {
        file[place..place + length].fill(0);
        file[place..place + to.len()].copy_from_slice(to.as_bytes());
    }
}

#[test]
fn a_program_that_imports_posix_spawn_is_reported() {
    isolated!(|| {
        let Some(own) = own_file() else { return };
        let lines = lines(&own);
        assert!(lines[0].starts_with("imports posix_spawnp"), "{lines:?}");
        assert!(lines[0].contains(": `spawnfd run --posix-spawn` replaces"), "{lines:?}");
        let value = json(&own);
        let program = &value["files"][0];
        assert_eq!((&value["replaced"], &program["replaced"]), (&true.into(), &true.into()), "{value}");
        assert_eq!((&program["kind"], &program["path"]), (&"elf".into(), &own.to_str().unwrap().into()), "{value}");
        assert!(program["imports"].as_array().unwrap().contains(&"posix_spawnp".into()), "{value}");
        assert!(program["obstacle"].is_null() && program["missing_libraries"] == Value::Array(vec![]), "{value}");
    });
}

#[test]
fn obstacles_are_reported() {
    isolated!(|| {
        let Some(own) = own_file() else { return };
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("program");
        let whole = fs::read(own).unwrap();
        let changed = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            fs::write(&copy, bytes).unwrap();
            (lines(&copy), json(&copy)["replaced"].as_bool().unwrap())
        };
        // EM_RISCV, in the field `e_machine`.
        let (found, replaced) = changed(&|file| file[18] = 243);
        let other = format!("not for {ARCH}, but the preload is built for {ARCH}");
        assert_eq!((found[0].as_str(), replaced), (other.as_str(), false));
        let loader = if ARCH == "aarch64" { "/lib/ld-linux-aarch64.so.1" } else { "/lib64/ld-linux-x86-64.so.2" };
        let musl = format!("/lib/ld-musl-{ARCH}.so.1");
        let (found, replaced) = changed(&|file| replace(file, loader, &musl));
        assert!(found[0].starts_with(&format!("linked with musl ({musl})")) && !replaced, "{found:?}");
        let (found, replaced) = changed(&|file| {
            // Removes PT_DYNAMIC (2) and PT_INTERP (3) from the program headers, which follow the header.
            let entries = file[64..].chunks_exact_mut(56).take(8);
            entries.filter(|entry| [2, 3].contains(&entry[0])).for_each(|entry| entry[0] = 0);
        });
        assert_eq!((found[0].as_str(), replaced), ("statically linked, so no preload reaches it", false));
        let (found, replaced) = changed(&|file| replace(file, "libgcc_s.so.1", "libno_such.so"));
        assert!(found[1] == "needs libno_such.so, not found: the imports are unknown" && replaced, "{found:?}");
        let (found, replaced) = changed(&|file| replace(file, "libgcc_s.so.1", "libasan.so.8"));
        assert!(found[0].starts_with("needs libasan.so.8, which aborts") && !replaced, "{found:?}");
        let (found, replaced) = changed(&|file| {
            replace(file, "posix_spawnp", "posix_other");
            replace(file, "pidfd_spawnp", "pidfd_other");
        });
        assert!(found[0].contains("but not posix_spawn, so the preload has ") && !replaced, "{found:?}");
    });
}

#[test]
fn privileges_of_the_file_are_obstacles_for_other_users() {
    isolated!(|| {
        let Some(own) = own_file() else { return };
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("program");
        fs::copy(own, &copy).unwrap();
        let set_mode = |mode| fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o4755);
        let ours = fs::metadata(&copy).unwrap();
        let value = json(&copy);
        assert_eq!((&value["replaced"], &value["files"][0]["privileges"]), (&true.into(), &"set-user-ID".into()));
        let last = lines(&copy).pop().unwrap();
        assert_eq!(last, "set-user-ID: the loader ignores LD_PRELOAD if another user starts the program");
        if !require_root() {
            return;
        }
        let other = ours.uid() + 1;
        // chown clears the set-ID bits.
        std::os::unix::fs::chown(&copy, Some(other), Some(other)).unwrap();
        for (mode, name) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
            set_mode(mode);
            assert_eq!(lines(&copy), [format!("{name}, so the loader ignores LD_PRELOAD")]);
        }
        // Without the permission to execute, the bit means something else.
        set_mode(0o2745);
        assert_eq!(json(&copy)["replaced"], true);
        // Version 2, permitted: CAP_NET_BIND_SERVICE.
        let mut capability = [0; 20];
        (capability[3], capability[5]) = (2, 4);
        if setxattr(&copy, "security.capability", &capability, XattrFlags::empty()).is_err() {
            return skip("file capabilities are refused");
        }
        assert_eq!(json(&copy)["files"][0]["privileges"], "has file capabilities");
        let doctor = ["doctor", copy.to_str().unwrap()];
        let mut user = Command::new("setpriv");
        user.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_spawnfd")]);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let called = finish(user.args(doctor));
        // The user may be unable to reach the build directory.
        if called.code == Some(0) {
            assert!(called.stdout.contains("has file capabilities, so the loader ignores LD_PRELOAD"), "{called:?}");
        }
    });
}

#[test]
fn a_library_that_imports_posix_spawn_is_found_by_its_runpath() {
    isolated!(|| {
        if own_file().is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let source = "#include <spawn.h>\n#include <unistd.h>\n";
        let library = "int start(void) { return posix_spawn(0, \"\", 0, 0, 0, 0); }";
        fs::write(root.join("l.c"), format!("{source}{library}")).unwrap();
        fs::write(root.join("p.c"), format!("{source}int start(void); int main() {{ return start() + fork(); }}"))
            .unwrap();
        fs::create_dir(root.join("lib")).unwrap();
        let build = "cc -shared -fPIC -o lib/libl.so l.c && cc -o p p.c -Llib -ll";
        for (flags, found) in [
            ("-Wl,--enable-new-dtags,-rpath,'$ORIGIN/lib'", true),
            ("-Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib'", true),
            ("", false),
        ] {
            let called = finish(
                Command::new("sh").current_dir(&root).args(["-c", &format!("{build} -Wl,--no-as-needed {flags}")]),
            );
            if called.code != Some(0) {
                return skip("there is no C compiler");
            }
            let path = root.join("lib/libl.so");
            let found = match found {
                true => vec![format!(
                    "loads {}, which imports posix_spawn: `spawnfd run --posix-spawn` replaces it",
                    path.display()
                )],
                false => vec![
                    "imports fork but not posix_spawn, so the preload has no effect".to_owned(),
                    "needs libl.so, not found: the imports are unknown".to_owned(),
                ],
            };
            assert_eq!(lines(&root.join("p")), found, "{flags}");
        }
        let of_library = ["imports posix_spawn: `spawnfd run --posix-spawn` replaces it"];
        assert_eq!(lines(&root.join("lib/libl.so")), of_library);
    });
}

#[test]
fn the_interpreter_of_a_script_and_the_target_of_a_shim_are_inspected() {
    isolated!(|| {
        let Some(own) = own_file() else { return };
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let own = own.display();
        script(&root.join("direct"), &format!("#!{own} -x\n"));
        script(&root.join("by-env"), &format!("#!/usr/bin/env -S A=b {own}\n"));
        script(&root.join("wrapper"), &format!("#!/bin/sh\nexec {own} \"$@\"\n"));
        let read = format!("a script that {own} runs");
        for (name, first) in [
            ("direct", read.clone()),
            ("by-env", read.clone()),
            ("wrapper", format!("a script that only starts {own}")),
        ] {
            let found = lines(&root.join(name));
            assert_eq!(found[0], first);
            assert!(found[1].starts_with("imports posix_spawnp"), "{found:?}");
        }
        let value = json(&root.join("direct"));
        assert_eq!((&value["files"][0]["kind"], &value["files"][1]["kind"]), (&"script".into(), &"elf".into()));
        // Only the shim's tool knows the target, and --no-timing keeps the tool from running.
        script(&root.join("tool"), "#!/bin/sh\nexec pyenv exec tool \"$@\"\n");
        fs::create_dir(root.join("bin")).unwrap();
        script(&root.join("bin/pyenv"), &format!("#!/bin/sh\n[ $1 = which ] && echo {own}\n"));
        let called = |flags: &[&str]| {
            let path = format!("{}:{}:/usr/bin:/bin", root.display(), root.join("bin").display());
            finish(command().env("PATH", path).args(["doctor", "tool"]).args(flags)).stdout
        };
        let found = called(&[]);
        assert!(found.contains(&format!("a pyenv shim that starts {own}\n")) && found.contains("imports posix_spawnp"));
        let found = called(&["--no-timing"]);
        assert!(
            found.contains("pass the path that 'pyenv which tool' prints") && found.lines().count() == 1,
            "{found}"
        );
    });
}

#[test]
fn a_program_that_cannot_be_inspected_is_an_error() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        script(&root.join("text"), "echo\n");
        script(&root.join("loop"), &format!("#!{}\n", root.join("loop").display()));
        script(&root.join("orphan"), "#!/usr/bin/env no-such-program-anywhere\n");
        fs::write(root.join("damaged"), b"\x7fELF").unwrap();
        let doctor = |program: &Path| call([OsStr::new("doctor"), program.as_os_str()]);
        let called = doctor(Path::new("no-such-program-anywhere"));
        assert_eq!(complaint(&called, 127), "no-such-program-anywhere: not found in PATH");
        for (name, code, problem) in [
            ("nothing", 127, "No such file or directory"),
            ("orphan", 127, "its interpreter '/usr/bin/env no-such-program-anywhere' was not found"),
            (".", 126, "not a file"),
            ("text", 126, "neither an ELF file nor a script with a '#!' line"),
            ("loop", 126, "too many scripts that start each other"),
            ("damaged", 126, "the ELF file is damaged"),
        ] {
            let called = doctor(&root.join(name));
            let line = complaint(&called, code);
            assert!(line.ends_with(&format!(": {problem}")), "{line}");
        }
        assert_eq!(call(["doctor", "--all", "sh"]).code, Some(125));
    });
}
