// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C examples of docs/guides/c.md and of the manual pages compile. Those of the guide print the output that the
//! guide shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use spawnfd_tests::{isolated, scratch};

use crate::preload::libraries;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compiles a program against the built library, and returns its path.
fn compile(code: &str, libraries: &Path, directory: &Path) -> PathBuf {
    let (source, program) = (directory.join("example.c"), directory.join("example"));
    std::fs::write(&source, code).expect("own directory");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    compiler.arg(format!("-I{}", root().join("include").display())).arg(format!("-L{}", libraries.display()));
    compiler.arg("-lspawnfd").arg(format!("-Wl,-rpath,{}", libraries.display()));
    let output = compiler.output().expect("cc starts");
    assert!(output.status.success(), "{}\n{code}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn examples_of_the_guide_print_their_output() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let guide = std::fs::read_to_string(root().join("docs/guides/c.md")).expect("the guide exists");
        let mut count = 0;
        for block in guide.split("```c\n").skip(1) {
            let (code, rest) = block.split_once("```\n").expect("a closed block");
            let shown = rest.strip_prefix("\n```text\n").and_then(|rest| rest.split_once("```\n")).expect("output").0;
            let output = Command::new(compile(code, &libraries, directory.path())).output().expect("starts");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!((printed.as_ref(), output.stderr.as_slice()), (shown, &b""[..]), "{code}");
            count += 1;
        }
        assert_eq!(count, 4);
    });
}

#[test]
fn examples_of_the_manual_pages_compile() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let mut count = 0;
        for page in std::fs::read_dir(root().join("man")).expect("the pages exist") {
            let page = std::fs::read_to_string(page.expect("readable").path()).expect("text");
            for block in page.split(".EX\n").skip(1) {
                let code = block.split_once(".EE").expect("a closed example").0;
                // The escapes of roff, and the zero-width character that protects a dot at the start of a line.
                let code = code.replace("\\&", "").replace("\\-", "-").replace("\\[aq]", "'").replace("\\e", "\\");
                if code.contains("int\nmain(") || code.contains("int main(") {
                    compile(&code, &libraries, directory.path());
                    count += 1;
                }
            }
        }
        assert!(count >= 4, "{count} examples");
    });
}
