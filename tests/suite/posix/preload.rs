// SPDX-License-Identifier: MIT OR Apache-2.0
//! libspawnfd-spawn.so, preloaded into unmodified programs.

use std::path::PathBuf;
use std::process::{Command, Output};

use spawnfd_tests::{isolated, scratch, skip};

/// Whether glibc has a second version of posix_spawn, which runs a file of unknown format by the shell.
pub const HAS_OLD_VERSION: bool = cfg!(target_arch = "x86_64");

/// The directory of the libraries that scripts/build-capi.sh builds, if it has.
pub fn libraries() -> Option<PathBuf> {
    let built = std::env::var_os("SPAWNFD_CAPI").map(PathBuf::from);
    let directory = built.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../build/capi"));
    if directory.join("libspawnfd-spawn.so").is_file() {
        return Some(directory);
    }
    skip("build/capi is missing: make capi");
    None
}

/// Runs a command, and returns its output.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("starts");
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

#[test]
fn make_builds_the_same_files() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let makefile = "all: a b c\na: ; echo $@ >$@\nb: a ; cp a b\nc: b ; @false || cat a b\n";
        std::fs::write(directory.path().join("Makefile"), makefile).expect("own directory");
        let build = |preload: bool| {
            let mut make = Command::new("make");
            make.args(["-B", "-j4"]).current_dir(directory.path()).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
            if preload {
                make.env("LD_PRELOAD", libraries.join("libspawnfd-spawn.so"));
            }
            output(&mut make)
        };
        assert_eq!(build(false), build(true));
    });
}

/// A program whose child shows which posix_spawn it was started by: glibc maps a stack of its own for each call.
#[test]
fn the_preloaded_function_is_used() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let script = "import os\npid = os.posix_spawn('/bin/true', ['true'], os.environ)\nos.waitpid(pid, 0)\n\
                      print('libspawnfd-spawn' in open('/proc/self/maps').read())\n";
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-S", "-c", script]).env("LD_PRELOAD", libraries.join("libspawnfd-spawn.so"));
        assert_eq!(output(&mut python), "True\n");
    });
}

/// The old version of posix_spawn runs a file of unknown format by the shell, and the new version does not.
#[test]
fn only_the_old_symbol_version_falls_back_to_the_shell() {
    isolated!(|| {
        if !HAS_OLD_VERSION {
            return skip("glibc has no old version of posix_spawn for this processor");
        }
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("versions.c"), VERSIONS).expect("own directory");
        std::fs::write(path("script"), "echo \"$0 $1 $#\"\n").expect("own directory");
        output(Command::new("chmod").arg("755").arg(path("script")));
        output(Command::new("cc").arg("-o").arg(path("versions")).arg(path("versions.c")));
        for preload in [false, true] {
            let mut versions = Command::new(path("versions"));
            versions.current_dir(directory.path()).env("PATH", directory.path());
            if preload {
                versions.env("LD_PRELOAD", libraries.join("libspawnfd-spawn.so"));
            }
            // Without a list, and with a list of libc.
            let expected = "./script one 2\n0\nscript one 2\n0\n8\n8\n".repeat(2);
            assert_eq!(output(&mut versions), expected, "preload: {preload}");
            // The dynamic linker prints which library has each function.
            let Output { stderr, .. } = versions.env("LD_DEBUG", "bindings").output().expect("starts");
            let bound = String::from_utf8_lossy(&stderr);
            let to_ours = |line: &&str| line.contains("versions [0] to") && line.contains("libspawnfd-spawn.so");
            for name in ["posix_spawn' [GLIBC_2.2.5]", "posix_spawnp' [GLIBC_2.2.5]", "posix_spawn' [GLIBC_2.15]"] {
                let count = bound.lines().filter(to_ours).filter(|line| line.contains(name)).count();
                assert_eq!(count, usize::from(preload), "{name}: {bound}");
            }
        }
    });
}

/// Calls both versions of posix_spawn and posix_spawnp, and prints what they return. The second round passes a list of
/// file actions that libc initialised.
const VERSIONS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
extern char **environ;
typedef int spawn(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                  char *const *, char *const *);
extern spawn old_spawn, old_spawnp;
__asm__(".symver old_spawn,posix_spawn@GLIBC_2.2.5");
__asm__(".symver old_spawnp,posix_spawnp@GLIBC_2.2.5");

static void run(spawn *function, const char *file, const posix_spawn_file_actions_t *list)
{
    char *argv[] = {"name", "one", "two", 0};
    pid_t pid;
    int errno_ = function(&pid, file, list, 0, argv, environ);

    if (!errno_)
        waitpid(pid, 0, 0);
    printf("%d\n", errno_);
    fflush(stdout);
}

int main(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    int (*init)(posix_spawn_file_actions_t *) = dlsym(libc, "posix_spawn_file_actions_init");
    int (*addclose)(posix_spawn_file_actions_t *, int) = dlsym(libc, "posix_spawn_file_actions_addclose");
    posix_spawn_file_actions_t list, *lists[] = {0, &list};

    init(&list);
    addclose(&list, 9);
    for (int i = 0; i < 2; i++) {
        run(old_spawn, "./script", lists[i]);
        run(old_spawnp, "script", lists[i]);
        run(posix_spawn, "./script", lists[i]);
        run(posix_spawnp, "script", lists[i]);
    }
    return 0;
}
"#;

/// A library before ours in LD_PRELOAD that wraps posix_spawn gets the calls, and calls ours.
#[test]
fn a_wrapper_before_the_library_keeps_its_effect() {
    isolated!(|| {
        let Some(libraries) = libraries() else { return };
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        let compile = |code: &str, flags: &[&str], to: &str| {
            std::fs::write(path("code.c"), code).expect("own directory");
            output(Command::new("cc").arg("-o").arg(path(to)).args(flags).arg(path("code.c")));
            path(to)
        };
        let wrapper = compile(WRAPPER, &["-shared", "-fPIC"], "wrapper.so");
        let program = compile(WRAPPED, &[], "program");
        let ours = libraries.join("libspawnfd-spawn.so").canonicalize().expect("it exists");
        let preload = format!("{}:{}", wrapper.display(), ours.display());
        let shown = output(Command::new(program).env("LD_PRELOAD", preload));
        assert_eq!(shown, format!("wrapped {}\n0\n", ours.display()));
    });
}

/// Prints the file of the function that it calls.
const WRAPPER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>

int posix_spawn(pid_t *restrict pid, const char *restrict file, const posix_spawn_file_actions_t *restrict actions,
                const posix_spawnattr_t *restrict attributes, char *const argv[restrict], char *const envp[restrict])
{
    int (*next)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                char *const *, char *const *) = dlsym(RTLD_NEXT, "posix_spawn");
    Dl_info info;

    dladdr((void *)next, &info);
    printf("wrapped %s\n", info.dli_fname);
    return next(pid, file, actions, attributes, argv, envp);
}
"#;

/// Calls posix_spawn, and prints what it returns.
const WRAPPED: &str = r#"
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

int main(void)
{
    char *none[] = {0}, *argv[] = {"true", 0};
    int outcome = posix_spawn(0, "/bin/true", 0, 0, argv, none);

    wait(0);
    printf("%d\n", outcome);
    return 0;
}
"#;
