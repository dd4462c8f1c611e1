// SPDX-License-Identifier: MIT OR Apache-2.0
//! The installed files: programs find and link the libraries, and the functions have the versions of the version scripts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use spawnfd_tests::{isolated, scratch, skip};

use crate::preload::{HAS_OLD_VERSION, libraries, output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether a tool is installed. Skips the test otherwise.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("{tool} is not installed"));
    }
    found
}

#[test]
fn programs_link_with_the_installed_libraries() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let stage = directory.path().join("stage");
        let libraries = libraries.canonicalize().expect("it exists");
        let prefix = "/opt/spawnfd";
        let mut install = Command::new("scripts/install-capi.sh");
        output(install.current_dir(root()).arg(libraries).arg(&stage).arg(prefix));
        let installed = stage.join(prefix.trim_start_matches('/'));
        for file in ["lib/libspawnfd-spawn.so", "include/spawnfd.h", "share/man/man3/spawnfd_builder.3"] {
            assert!(installed.join(file).is_file(), "{file}");
        }
        if !has("pkg-config") {
            return;
        }
        let flags = |arguments: &[&str]| -> Vec<String> {
            let mut config = Command::new("pkg-config");
            config.args(arguments).arg("spawnfd").env("PKG_CONFIG_PATH", installed.join("lib/pkgconfig"));
            let flags = output(config.env("PKG_CONFIG_SYSROOT_DIR", &stage));
            flags.split_whitespace().map(str::to_owned).collect()
        };
        let (source, program) = (directory.path().join("program.c"), directory.path().join("program"));
        std::fs::write(&source, PROGRAM).expect("own directory");
        let compile = |arguments: &[String]| {
            let mut compiler = Command::new("cc");
            output(compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source).args(arguments));
            output(Command::new("readelf").args(["-d", "-W"]).arg(&program))
        };
        let library = installed.join("lib");
        let needed =
            compile(&[flags(&["--cflags", "--libs"]), vec![format!("-Wl,-rpath,{}", library.display())]].concat());
        assert!(needed.contains("[libspawnfd.so.0]"), "{needed}");
        assert_eq!(output(&mut Command::new(&program)), "child\n0\n3\n");
        let archive = flags(&["--cflags", "--libs", "--static"]).into_iter().map(|flag| match flag.as_str() {
            "-lspawnfd" => "-l:libspawnfd.a".to_owned(),
            _ => flag,
        });
        let needed = compile(&archive.collect::<Vec<_>>());
        assert!(!needed.contains("libspawnfd"), "{needed}");
        assert_eq!(output(&mut Command::new(&program)), "child\n0\n3\n");
        let version = flags(&["--modversion"]).concat();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    });
}

/// Uses posix_spawn and a builder.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <spawn.h>
#include <spawnfd.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    char *args[] = {(char *)"echo", (char *)"child", NULL};
    const char *script[] = {"sh", "-c", "exit 3", NULL};
    struct spawn_args run = {};
    siginfo_t info;
    pid_t pid;
    int error = posix_spawnp(&pid, "echo", NULL, NULL, args, environ);

    waitpid(pid, NULL, 0);
    printf("%d\n", error);
    int builder = spawnfd_builder_open(0);
    spawnfd_builder_config(builder, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, "/bin/sh", 0);
    spawnfd_builder_config(builder, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV, script, 0);
    int pidfd = spawnfd_builder_run(builder, &run, sizeof(run));
    if (pidfd < 0)
        return 1;
    waitid(P_PIDFD, pidfd, &info, WEXITED);
    printf("%d\n", info.si_status);
    return 0;
}
"#;

/// The functions that a library exports, with their versions, as readelf(1) shows them.
fn exported(library: &Path) -> BTreeSet<String> {
    let symbols = output(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(library));
    let fields = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defined = fields.filter(|fields| fields.get(3) == Some(&"FUNC") && fields.get(6) != Some(&"UND"));
    defined.map(|fields| fields[7].to_owned()).collect()
}

#[test]
fn functions_of_the_preload_have_the_versions_of_glibc() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        if !has("readelf") {
            return;
        }
        let map = std::fs::read_to_string(libraries.join("preload.map")).expect("it exists");
        let old: &[&str] = if HAS_OLD_VERSION { &["posix_spawn@GLIBC_2.2.5", "posix_spawnp@GLIBC_2.2.5"] } else { &[] };
        let mut expected: BTreeSet<String> = old.iter().map(|&name| name.to_owned()).collect();
        let mut version = "";
        for word in map.split(['{', '}', ';', ' ', '\n']).filter(|word| !word.is_empty()) {
            match word {
                _ if word.starts_with("GLIBC_") => version = word,
                _ if word.starts_with("posix_spawn") || word.starts_with("pidfd_spawn") => {
                    expected.insert(format!("{word}@@{version}"));
                }
                _ => {}
            }
        }
        assert_eq!(expected.len(), 29 + old.len());
        assert_eq!(exported(&libraries.join("libspawnfd-spawn.so")), expected);
    });
}

#[test]
fn functions_of_the_library_have_its_version() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        if !has("readelf") {
            return;
        }
        let found = exported(&libraries.join("libspawnfd.so.0"));
        let preloaded = exported(&libraries.join("libspawnfd-spawn.so"));
        let of_posix = preloaded.iter().filter_map(|symbol| symbol.split_once("@@")).map(|(name, _)| name);
        let header = std::fs::read_to_string(root().join("include/spawnfd.h")).expect("it exists");
        let declared = header.lines().filter(|line| !line.starts_with("//") && !line.starts_with(' '));
        let others: Vec<&str> = declared
            .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
            .filter(|name| name.starts_with("spawn"))
            .collect();
        assert!(others.len() > 40, "{others:?}");
        let expected: BTreeSet<String> =
            of_posix.chain(others.iter().copied()).map(|name| format!("{name}@@SPAWNFD_0.1")).collect();
        assert_eq!(found, expected);
    });
}
