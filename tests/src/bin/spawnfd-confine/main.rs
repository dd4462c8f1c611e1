// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program for tests: confines its own process, then executes another program. It can install seccomp profiles,
//! refuse system calls, change the user, and set limits.
//!
//! It has no std runtime: the executed program inherits SIGPIPE and closed standard descriptors unchanged.

#![no_main]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use libc::{c_char, c_int};
use spawnfd_tests::confine::{self, Answer, Confinement, Profile};

const USAGE: &str = "\
usage: spawnfd-confine [OPTION...] [--] PROGRAM [ARGUMENT...]

  --docker             answer as Docker's default seccomp profile does, and drop the capabilities it drops
  --profile NAME       install the seccomp profile docker, podman, system-service or flatpak (sets no_new_privs);
                       NAME=kill: calls that it refuses kill the process (SIGSYS)
  --deny NAME=ERRNO    let one system call fail, as in clone3=ENOSYS or close_range=EPERM; may be repeated
  --kill NAME          let one system call kill the process (SIGSYS); may be repeated
  --user UID[:GID]     become this user (group: the same number), with no further groups
  --no-new-privs       set no_new_privs (also set where a filter needs it: without CAP_SYS_ADMIN)
  --nofile N           limit of open descriptors, soft and hard

exit status: 125 if confining fails, 126 if PROGRAM cannot be executed, 127 if it is not found, else PROGRAM's
";

/// Exit code for a failure of spawnfd-confine itself, as in env(1).
const OWN_FAILURE: c_int = 125;

/// # Safety
/// Only libc calls this function: once, with the kernel's argument vector.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: main's argv holds argc C strings, alive as long as the process.
    let words: Vec<&CStr> = (0..count).map(|at| unsafe { CStr::from_ptr(*argv.add(at)) }).collect();
    let (status, message) = match run(words.get(1..).unwrap_or_default()) {
        Ok(help) => {
            print(1, help);
            return 0;
        }
        Err(failure) => failure,
    };
    print(2, &format!("spawnfd-confine: {message}\n"));
    status
}

type Failure = (c_int, String);

/// Returns the text of --help, or a failure. On success exec does not return.
fn run(words: &[&CStr]) -> Result<&'static str, Failure> {
    let own = |message: String| (OWN_FAILURE, message);
    let Some((confinement, program)) = parse(words).map_err(own)? else {
        return Ok(USAGE);
    };
    // The arguments are allocated before the filter is installed, because the filter may refuse an allocation.
    let program: Vec<CString> = program.iter().map(|word| CString::from(*word)).collect();
    let mut pointers: Vec<*const c_char> = program.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    confinement.apply().map_err(|error| own(error.to_string()))?;
    // SAFETY: `pointers` is a non-empty, null-terminated array of C strings, which `program` keeps alive.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = std::io::Error::last_os_error();
    let status = if error.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 };
    Err((status, format!("{}: {error}", program[0].to_string_lossy())))
}

/// Parses the options; returns the confinement and the program with its arguments, or `None` for --help.
fn parse<'a>(mut words: &'a [&'a CStr]) -> Result<Option<(Confinement, &'a [&'a CStr])>, String> {
    let mut confinement = Confinement::default();
    while let Some((word, rest)) = words.split_first() {
        let word = word.to_str().unwrap_or("");
        if !word.starts_with('-') {
            break;
        }
        words = rest;
        let value = |rest: &[&CStr]| {
            rest.first().and_then(|v| v.to_str().ok()).map(str::to_owned).ok_or(format!("{word} needs a value"))
        };
        match word {
            "--" => break,
            "--help" => return Ok(None),
            "--docker" => confinement = confinement.docker(),
            "--no-new-privs" => confinement = confinement.no_new_privs(),
            "--profile" | "--deny" | "--kill" | "--user" | "--nofile" => {
                confinement = with_value(confinement, word, &value(rest)?)?;
                words = &rest[1..];
            }
            _ => return Err(format!("unknown option {word:?}; see --help")),
        }
    }
    if words.is_empty() { Err("no program; see --help".to_owned()) } else { Ok(Some((confinement, words))) }
}

fn with_value(confinement: Confinement, option: &str, value: &str) -> Result<Confinement, String> {
    let malformed = |form: &str| format!("{option} {value:?}: expected {form}");
    match option {
        "--profile" => {
            let (name, answer) = match value.split_once('=') {
                None => (value, Answer::Errno),
                Some((name, "kill")) => (name, Answer::Kill),
                Some(_) => return Err(malformed("NAME or NAME=kill")),
            };
            Ok(confinement.profile(Profile::named(name).map_err(|error| error.to_string())?, answer))
        }
        "--deny" => {
            let (name, errno) = value.split_once('=').ok_or_else(|| malformed("NAME=ERRNO"))?;
            let errno = confine::errno(errno).map_err(|error| error.to_string())?;
            confinement.deny(name, errno).map_err(|error| error.to_string())
        }
        "--kill" => confinement.kill(value).map_err(|error| error.to_string()),
        "--user" => {
            let (uid, gid) = value.split_once(':').unwrap_or((value, value));
            match (uid.parse(), gid.parse()) {
                (Ok(uid), Ok(gid)) => Ok(confinement.user(uid, gid)),
                _ => Err(malformed("UID or UID:GID, in numbers")),
            }
        }
        _ => value.parse().map(|limit| confinement.nofile(limit)).map_err(|_| malformed("a number")),
    }
}

/// Writes to a standard descriptor; a failure cannot be reported and is ignored.
fn print(fd: c_int, text: &str) {
    // SAFETY: `fd` is not negative. `file` only writes to it, and ManuallyDrop never closes it.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    file.write_all(text.as_bytes()).ok();
}
