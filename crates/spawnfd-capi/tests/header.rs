// SPDX-License-Identifier: MIT OR Apache-2.0
//! include/spawnfd.h is the header that cbindgen generates from this crate and from the kernel series' structs. C and
//! C++ compilers accept it, and its values are those of the kernel series.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use spawnfd_capi::builder::*;
use spawnfd_capi::run::{spawnfd_error, spawnfd_line};
use spawnfd_capi::template::*;

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/spawnfd.h")
}

#[test]
fn header_is_current() {
    let directory = env!("CARGO_MANIFEST_DIR");
    let config = cbindgen::Config::from_file(Path::new(directory).join("cbindgen.toml")).expect("valid");
    let abi = Path::new(directory).join("../spawnfd-sys/src/spawn_abi.rs");
    let builder = cbindgen::Builder::new().with_src(abi).with_crate(directory).with_config(config);
    let bindings = builder.generate().expect("generated");
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    if std::env::var_os("SPAWNFD_WRITE_HEADER").is_some() {
        std::fs::write(header(), &generated).expect("written");
    }
    let found = std::fs::read(header()).expect("the header exists");
    let advice = "SPAWNFD_WRITE_HEADER=1 cargo test -p spawnfd-capi --test header writes include/spawnfd.h";
    assert!(found == generated, "include/spawnfd.h differs from the source: {advice}");
}

#[test]
fn compilers_accept_the_header() {
    for language in ["c", "c++"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", language]).arg(header());
        let output = compiler.output().expect("cc starts");
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The C expressions for the sizes of structs and the offsets of their members, with the values of Rust.
macro_rules! layouts {
    ($($type:ident as $name:literal { $($member:ident),+ })+) => {
        [$((concat!("sizeof(struct ", $name, ")").to_owned(), size_of::<$type>()),
            $((format!("offsetof(struct {}, {})", $name, stringify!($member).trim_start_matches("r#")),
                offset_of!($type, $member))),+),+]
    };
}

#[test]
fn structs_have_the_layout_of_the_header() {
    let structs = layouts! {
        spawnfd_error as "spawnfd_error" { size, error, action, stage, message }
        spawnfd_line as "spawnfd_line" { size, stream, position, lost, length, text }
        SpawnArgs as "spawn_args" {
            flags, nr_actions, path, argv, envp, actions, action_size, failed, pid, reserved0, reserved1
        }
        SpawnAction as "spawn_action" { r#type, flags, fd, newfd, arg, reserved }
        SpawnActionList as "spawn_action_list" { actions, nr_actions, action_size, failed, reserved }
        OpenHow as "open_how" { flags, mode, resolve }
        SpawnOpen as "spawn_open" { path, how_size, how }
        SpawnSigset as "spawn_sigset" { sigset, sigsetsize }
        SpawnCapabilities as "spawn_capabilities" { effective, permitted, inheritable, bounding, ambient }
        spawn_template_create_args as "spawn_template_create_args" {
            flags, execfd, exec_flags, filename, actions, actions_len, reserved
        }
        spawn_template_spawn_args as "spawn_template_spawn_args" {
            flags, pidfd, argv, envp, actions, actions_len, reserved
        }
        spawn_template_action as "spawn_template_action" { r#type, flags, fd, newfd, arg }
        spawn_template_open as "spawn_template_open" { path, how }
        spawn_template_sigset as "spawn_template_sigset" { sigset, sigsetsize }
    };
    let members = [
        ("sizeof(((struct spawnfd_error *)0)->stage)", 20),
        ("sizeof(((struct spawnfd_error *)0)->message)", 480),
        ("SPAWNFD_ERROR_SIZE_VER0", size_of::<spawnfd_error>()),
        ("SPAWNFD_LINE_SIZE_VER0", size_of::<spawnfd_line>()),
        ("SPAWN_ARGS_SIZE_VER0", size_of::<SpawnArgs>()),
        ("SPAWN_ACTION_SIZE_VER0", size_of::<SpawnAction>()),
        ("SPAWN_ACTION_LIST_SIZE_VER0", size_of::<SpawnActionList>()),
    ];
    let all = structs.into_iter().chain(members.map(|(name, value)| (name.to_owned(), value)));
    let asserts: String =
        all.map(|(expression, value)| format!("_Static_assert({expression} == {value}, \"\");\n")).collect();
    // The initial values have a value for each member.
    let objects = "struct spawnfd_error error = SPAWNFD_ERROR_INIT;\nstruct spawnfd_line line = SPAWNFD_LINE_INIT;\n";
    let directory = tempfile::tempdir().expect("a new directory");
    for (name, asserts) in [("layout.c", &asserts[..]), ("layout.cc", "")] {
        let source = directory.path().join(name);
        std::fs::write(&source, format!("#include {:?}\n{asserts}{objects}", header())).expect("own directory");
        let mut compiler = Command::new("cc");
        compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg(source);
        let output = compiler.output().expect("cc starts");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The kernel's `<linux/spawn.h>`, which three patches of the series create, and its `<linux/spawn_template.h>`.
fn kernel_header(directory: &Path) -> String {
    const PATCHES: [&str; 4] = [
        "0005-exec-add-empty-pidfds-that-spawn-programs.patch",
        "0006-exec-add-actions-that-prepare-spawned-processes.patch",
        "0008-exec-add-spawn-templates.patch",
        "0016-exec-let-spawned-processes-confine-themselves.patch",
    ];
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/patches");
    for patch in PATCHES {
        let mut git = Command::new("git");
        git.args(["apply", "--include=include/uapi/linux/spawn*.h"]).arg(series.join(patch));
        // Outside of a repository, git applies patches to the directory.
        git.current_dir(directory).env("GIT_CEILING_DIRECTORIES", directory.parent().expect("a directory above"));
        let output = git.output().expect("git starts");
        assert!(output.status.success(), "{patch}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let read = |name| std::fs::read_to_string(directory.join("include/uapi/linux").join(name)).expect("created");
    ["spawn.h", "spawn_template.h"].map(read).concat()
}

/// C expressions: the constants of a header, and the sizes and offsets of its structs and their members.
fn values(header: &str) -> Vec<String> {
    let mut values = Vec::new();
    let mut structure = None;
    for line in header.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&words[..], structure) {
            (["#define", name, _, ..], _) => values.push((*name).to_owned()),
            (["struct", name, "{"], _) => {
                structure = Some(*name);
                values.push(format!("sizeof(struct {name})"));
            }
            // The end of a union is indented.
            _ if line == "};" => structure = None,
            ([name, "=", ..], None) => values.push((*name).to_owned()),
            ([_, member, ..] | [_, _, member, ..], Some(name)) if member.ends_with(';') => {
                let member = format!("((struct {name} *)0)->{}", member.trim_end_matches(';'));
                values.extend([format!("&{member}"), format!("sizeof({member})")]);
            }
            _ => {}
        }
    }
    values
}

#[test]
fn values_equal_those_of_the_kernel_series() {
    let directory = std::env::temp_dir().join(format!("spawnfd-header-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a new directory");
    let kernel = kernel_header(&directory);
    std::fs::write(directory.join("kernel.h"), &kernel).expect("own directory");
    let values = values(&kernel);
    assert!(values.len() > 100, "{values:?}");
    let printed = |include: &Path| {
        let print = |value: &String| format!("printf(\"%s %ld\\n\", {value:?}, (long){value});\n");
        let prints: String = values.iter().map(print).collect();
        let code = format!("#include <stdio.h>\n#include {include:?}\nint main(void) {{\n{prints}return 0;\n}}\n");
        let (source, program) = (directory.join("values.c"), directory.join("values"));
        std::fs::write(&source, code).expect("own directory");
        let output = Command::new("cc").arg("-o").arg(&program).arg(&source).output().expect("cc starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(Command::new(&program).output().expect("own program").stdout).expect("text")
    };
    let (ours, theirs) = (printed(&header()), printed(&directory.join("kernel.h")));
    std::fs::remove_dir_all(&directory).expect("own directory");
    for value in ["->saved 16\n", "SPAWN_ACTION_SECCOMP 33\n", "SPAWN_TEMPLATE_ACTION_SIGDEFAULT 6\n"] {
        assert!(theirs.contains(value), "{value}: {theirs}");
    }
    assert_eq!(ours, theirs);
}
