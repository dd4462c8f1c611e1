// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper of a session whose shell runs in a sandbox. The sandbox command starts the helper, and the helper starts
//! the shell.
//!
//! The owner sends the files of the session, and then the files of each command, through a socket. The helper keeps
//! each file open at the number that the owner has chosen. The shell opens the file through the helper's
//! `/proc/PID/fd`. The kernel permits this, because helper and shell have the same namespaces, user and Landlock
//! domain. The shell opens the session's files as soon as it runs, so the helper receives these files before it starts
//! the shell.
//!
//! A message of the owner begins with the number of the command's status pipe. The numbers of files follow. If the
//! message carries descriptors, the helper keeps them open at these numbers. Otherwise it closes these numbers. In both
//! cases it then writes [`ANSWER`] to the status pipe.
//!
//! The helper sends two messages of four bytes. The first is the helper's pid as /proc shows it, and the process that
//! becomes the shell sends it. The second is the wait status of the shell.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::sys::{self, Errno, SIGCHLD, SIGKILL, Words};

/// The largest number of files in one message.
pub const MAX_FILES: usize = 8;

/// The helper's answer to a message: it writes this to the status pipe.
pub const ANSWER: &[u8] = b"\0A\0";

/// The variable of the shell's environment with the directory of the helper's files, which ends with a slash.
pub const FILES_VARIABLE: &str = "__spawnfd_files";

/// The number of the helper's socket. The files that it holds have higher numbers.
const SOCKET: i32 = 9;

/// Starts the shell and serves it until it ends. The arguments are the number of the socket, the number of the helper's
/// own file, and the shell's command line. Without arguments, exits: the owner checks that it can execute this program.
pub fn run(arguments: &Words, mut environment: Words) -> ! {
    let mut numbers = arguments.iter().map_while(number);
    let (Some(socket), Some(image)) = (numbers.next(), numbers.next()) else { sys::exit(0) };
    let command = arguments.skip(2);
    sys::set_dumpable(true);
    sys::close(image);
    sys::set_close_on_exec(socket);
    let mut own = [0; 16];
    let own = sys::read_link(c"/proc/self", &mut own).ok().and_then(|length| own.get(..length)).unwrap_or_default();
    let Some(pid) = CString::new(own).ok().and_then(|own| number(&own)) else {
        complain(&[b"the sandbox has no /proc, through which the shell opens its files"]);
        sys::exit(126);
    };
    let Ok(files) = receive(socket) else {
        complain(&[b"the session has ended before its shell started"]);
        sys::exit(126);
    };
    let directory = [FILES_VARIABLE.as_bytes(), b"=/proc/", own, b"/fd/\0"].concat();
    // The environment needs the string until the process ends.
    if let Ok(directory) = CStr::from_bytes_with_nul(directory.leak()) {
        environment.prepend(directory);
    }
    // Only SIGKILL can end the helper. As the first process of a pid namespace it must not ignore SIGCHLD, or it would
    // lose the status of the shell.
    let mask = sys::set_signal_mask(u64::MAX);
    let ignores_children = sys::set_ignored(SIGCHLD, false);
    match sys::fork_until_exec() {
        Ok(0) => {
            let _ = sys::write(socket, &pid.to_ne_bytes());
            sys::set_ignored(SIGCHLD, ignores_children);
            sys::set_signal_mask(mask);
            exec_shell(&command, &environment)
        }
        Ok(shell) => serve(shell, socket, files),
        Err(_) => {
            complain(&[b"cannot create the shell's process"]);
            sys::exit(126)
        }
    }
}

/// Executes the shell, which it searches in PATH.
fn exec_shell(command: &Words, environment: &Words) -> ! {
    let name = command.iter().next().unwrap_or(c"");
    let path = environment.iter().find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="));
    let mut failure = Errno::ENOENT;
    if name.to_bytes().contains(&b'/') {
        failure = sys::exec(name, command, environment);
    } else {
        for directory in path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|&byte| byte == b':') {
            let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            let Ok(file) = CString::new([directory, separator, name.to_bytes()].concat()) else { continue };
            match sys::exec(&file, command, environment) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                // A later directory may have another file with this name. If the directory cannot be searched, it counts
                // as one without the file.
                Errno::EACCES if sys::open(sys::CWD, &file, sys::PATH).is_ok() => failure = Errno::EACCES,
                Errno::EACCES => {}
                other => {
                    failure = other;
                    break;
                }
            }
        }
    }
    let (reason, code): (&[u8], _) = match failure {
        Errno::ENOENT => (b": the sandbox has no such program", 127),
        Errno::EACCES => (b": the sandbox does not permit to execute it", 126),
        _ => (b": execve failed", 126),
    };
    complain(&[name.to_bytes(), reason]);
    sys::exit(code)
}

/// Keeps files open for the shell until the shell ends, and then ends in the same way. The session's files have the
/// numbers from `first` to `last`.
fn serve(shell: i32, socket: i32, (first, last): (i32, i32)) -> ! {
    if socket != SOCKET && sys::duplicate_to(socket, SOCKET).is_err() {
        end_shell(shell);
    }
    sys::close_range(0, SOCKET - 1);
    sys::close_range(SOCKET + 1, first - 1);
    sys::close_range(last + 1, i32::MAX);
    let Ok(children) = sys::pending_signal(SIGCHLD) else { end_shell(shell) };
    loop {
        let [has_message, has_child] = sys::wait_for_any([SOCKET, children.number()], None);
        if has_child {
            let _ = sys::read(children.number(), &mut [0; 128]);
            // In a pid namespace whose first process is this helper, orphans are its children too.
            while let Ok(Some((pid, status, _))) = sys::wait_for_child(false) {
                if pid == shell {
                    // A program that has taken the socket may have filled it.
                    let _ = sys::send_now(SOCKET, &status.to_ne_bytes());
                    end_like(status);
                }
            }
        }
        if has_message && receive(SOCKET).is_err() {
            end_shell(shell);
        }
    }
}

/// Carries out a message of the owner. Returns the lowest and the highest number in it.
///
/// # Errors
/// The owner has closed its end (ESRCH), or the descriptors did not arrive (EMFILE).
fn receive(socket: i32) -> sys::Result<(i32, i32)> {
    let (mut words, mut files) = ([0; 1 + MAX_FILES], [0; MAX_FILES]);
    let (length, received) = sys::receive_files(socket, &mut words, &mut files)?;
    let Some((&status, numbers)) = words.get(..length).and_then(<[i32]>::split_first) else { return Err(Errno::ESRCH) };
    if received == 0 {
        numbers.iter().for_each(|&number| sys::close(number));
    }
    for (&number, &file) in numbers.iter().zip(files.iter().take(received)) {
        // The kernel chose the number `file`. Another file of this message may belong at that number.
        if file != number {
            sys::duplicate_to(file, number)?;
            if !numbers.contains(&file) {
                sys::close(file);
            }
        }
    }
    let _ = sys::write(status, ANSWER);
    let bounds = numbers.iter().min().zip(numbers.iter().max());
    bounds.map(|(&first, &last)| (first, last)).ok_or(Errno::ESRCH)
}

/// Kills the shell and exits.
fn end_shell(shell: i32) -> ! {
    sys::kill(shell, SIGKILL);
    while let Ok(Some((pid, ..))) = sys::wait_for_child(true) {
        if pid == shell {
            break;
        }
    }
    sys::exit(128 + SIGKILL)
}

/// Ends the helper as the shell has ended: with its code, or by its signal. The first process of a pid namespace cannot
/// send itself a signal, so its code is then 128 plus the signal, as a shell's.
fn end_like(status: i32) -> ! {
    let signal = status & 0x7f;
    if signal == 0 {
        sys::exit(status >> 8 & 0xff);
    }
    // The shell has dumped core, if the system is configured so. The helper should not.
    sys::set_dumpable(false);
    sys::set_ignored(signal, false);
    sys::kill(sys::getpid(), signal);
    sys::set_signal_mask(!(1 << (signal - 1)));
    sys::exit(128 + signal)
}

/// Writes an error message to standard error.
fn complain(parts: &[&[u8]]) {
    let text: Vec<u8> = [b"spawnfd: ", parts.concat().as_slice(), b"\n"].concat();
    let _ = sys::write(2, &text);
}

/// Parses a positive number.
fn number(word: &CStr) -> Option<i32> {
    core::str::from_utf8(word.to_bytes()).ok()?.parse().ok().filter(|number| *number > 0)
}
