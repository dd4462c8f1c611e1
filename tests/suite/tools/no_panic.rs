// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code between clone and exec cannot panic. The test checks that its object code refers to
//! nothing in core::panicking, in an allocator or in std.

use std::path::Path;
use std::process::Command;

use spawnfd_tests::{isolated, scratch, skip};

/// Names that the object code must not refer to. `panic_cannot_unwind` is not in the list: an
/// `extern "C"` function may refer to it, but only another panic could reach it.
const BAD: [&str; 11] = [
    "drop_in_place",
    "panicking::panic_fmt",
    "panicking::panic",
    "panic_bounds_check",
    "panic_const",
    "unwrap_failed",
    "expect_failed",
    "slice_index",
    "__rust_alloc",
    "alloc::",
    "std::",
];

/// Functions and modules of spawnfd-sys that run in a child.
const SYS: [&str; 4] = ["spawnfd_sys::call::", "spawnfd_sys::arch::", "receive_descriptors", "clone_child"];

#[test]
fn the_childs_code_cannot_panic() {
    isolated!(|| {
        for (package, parts) in [
            (
                "spawnfd-child",
                &[
                    "spawnfd_child::action::",
                    "spawnfd_child::child::",
                    "spawnfd_child::descriptors::",
                    "spawnfd_child::plan::",
                    "spawnfd_child::posix::",
                    "spawnfd_child::report::",
                    "spawnfd_child::template::",
                ][..],
            ),
            ("spawnfd-sys", &SYS[..]),
        ] {
            let Some(text) = disassembly(package) else { return skip("no cargo, or no objdump") };
            let (mut function, mut of_child, mut seen, mut found) = (String::new(), false, 0, Vec::new());
            for line in text.lines() {
                if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
                    function = name.1.to_owned();
                    // Functions that free a plan run in the parent and are in the same object. The
                    // test leaves them out.
                    of_child = parts.iter().any(|part| function.contains(part)) && !function.contains("drop_in_place");
                    seen += usize::from(of_child);
                } else if of_child && ["R_X86_64", "R_AARCH64"].iter().any(|kind| line.contains(kind)) {
                    let target = line.rsplit('\t').next().unwrap_or(line);
                    if BAD.iter().any(|bad| target.contains(bad)) && !target.contains("panic_cannot_unwind") {
                        found.push(format!("{function}: {target}"));
                    }
                }
            }
            assert!(seen > 0, "{package}: no function of {parts:?} was found");
            assert!(found.is_empty(), "{package}: {found:#?}");
        }
    });
}

/// Returns the object code of a crate in release mode, with relocations and demangled names.
/// Returns `None` if cargo or objdump fails.
fn disassembly(package: &str) -> Option<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = scratch();
    let built = Command::new(cargo)
        .current_dir(workspace)
        .args(["rustc", "--release", "--offline", "-p", package, "--lib"])
        // One codegen unit, without link-time optimisation, puts all functions into one object.
        .args(["--config", "profile.release.lto='off'", "--", "--emit=obj", "-Ccodegen-units=1", "-Clto=off"])
        .env("CARGO_TARGET_DIR", target.path())
        .env_remove("RUSTFLAGS")
        .output()
        .ok()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let stem = package.replace('-', "_");
    let object = std::fs::read_dir(target.path().join("release/deps"))
        .expect("built")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(&stem) && name.ends_with(".o")
        })
        .expect("cargo leaves an object file");
    let text = Command::new("objdump").args(["-drC", "--no-show-raw-insn"]).arg(object).output().ok()?;
    text.status.success().then(|| String::from_utf8_lossy(&text.stdout).into_owned())
}
