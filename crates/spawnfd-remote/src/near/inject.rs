// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brings the server's program to the other side, through the transport itself.
//!
//! A shell on the other side runs `inject.sh`. It starts the server if the program is there already, under the hash of
//! its content. Otherwise it asks for the program, and this side writes the file into the pipe. Each version has a
//! directory of its own, which only its user can write, and which nobody deletes while it may be in use.

use std::ffi::OsString;
use std::fs;
use std::hash::Hasher;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;
use spawnfd::error::{Errno, Stage};
use spawnfd::internal::error;
use spawnfd::{Command, Result};

const SCRIPT: &str = include_str!("inject.sh");

/// A server program for one kind of processor: a static executable.
#[derive(Clone, Debug)]
pub struct ServerProgram {
    /// The processor, as `uname -m` prints it.
    pub machine: String,
    /// The file on this side.
    pub path: PathBuf,
}

impl ServerProgram {
    /// Describes a file by its ELF header.
    ///
    /// # Errors
    /// The file cannot be read. ENOEXEC: it is no program for x86_64 or aarch64.
    pub fn of(path: impl Into<PathBuf>) -> Result<ServerProgram> {
        let path = path.into();
        let mut header = [0; 20];
        let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut header));
        if let Err(cause) = read
            && cause.kind() != ErrorKind::UnexpectedEof
        {
            return Err(unreadable(&path, &cause));
        }
        let machine = match (&header[..6], u16::from_le_bytes([header[18], header[19]])) {
            (b"\x7fELF\x02\x01", EM_X86_64) => "x86_64",
            (b"\x7fELF\x02\x01", EM_AARCH64) => "aarch64",
            _ => {
                let message = format!("{} is no program for x86_64 or aarch64", path.display());
                return Err(error(Stage::Capture, Errno::ENOEXEC, &format!("read({path:?})"), &message));
            }
        };
        Ok(ServerProgram { machine: machine.to_owned(), path })
    }
}

/// The numbers of processors in an ELF header.
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

/// The server programs that a connection can bring to the other side.
#[derive(Debug)]
pub(super) struct Injection {
    programs: Vec<(String, Vec<u8>)>,
    /// How far the text from the other side has been searched.
    searched: usize,
}

/// A request of the script on the other side.
#[derive(Debug)]
pub(super) enum Request<'a> {
    /// The bytes of a program.
    Send(&'a [u8]),
    /// Nothing: it has failed.
    Fail(String),
}

impl Injection {
    /// Reads the programs. Returns the injection, and the script that asks for them.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn new(programs: &[ServerProgram]) -> Result<(Injection, String)> {
        let read = |ServerProgram { machine, path }: &ServerProgram| {
            Ok((machine.clone(), fs::read(path).map_err(|error| unreadable(path, &error))?))
        };
        let programs = programs.iter().map(read).collect::<Result<Vec<_>>>()?;
        let line = |(machine, bytes): &(String, Vec<u8>)| format!("{machine} {:016x} {}", hash(bytes), bytes.len());
        let list: Vec<String> = programs.iter().map(line).collect();
        let script = SCRIPT.replace("@LIST@", &list.join("\n"));
        Ok((Injection { programs, searched: 0 }, script))
    }

    /// Finds the next request in the text that has come from the other side so far.
    pub(super) fn next_request(&mut self, text: &[u8]) -> Option<Request<'_>> {
        while let Some(length) = text[self.searched..].iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&text[self.searched..self.searched + length]).into_owned();
            self.searched += length + 1;
            if let Some(machine) = line.strip_prefix("spawnfd-send ") {
                let found = self.programs.iter().find(|(known, _)| known == machine.trim_end());
                return Some(match found {
                    Some((_, bytes)) => Request::Send(bytes),
                    None => Request::Fail(format!("no server program for the processor {machine}")),
                });
            }
            if let Some(reason) = line.strip_prefix("spawnfd-fail ") {
                return Some(Request::Fail(reason.trim_end().to_owned()));
            }
        }
        None
    }
}

/// Adds the shell and its script to the arguments of a transport. `joins`: the transport joins its arguments to a line
/// for a shell on the other side, as ssh does.
pub(super) fn add_shell(transport: &mut Command<'_>, script: &str, joins: bool) {
    if joins {
        transport.arg(format!("exec sh -c {}", quoted(script)));
    } else {
        transport.args(["sh", "-c"].map(OsString::from)).arg(script);
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A hash that tells versions apart. It protects from nobody: the directory on the other side belongs to its user.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

fn unreadable(path: &Path, cause: &std::io::Error) -> spawnfd::Error {
    let errno = Errno::from_raw(cause.raw_os_error().unwrap_or(0));
    let message = format!("cannot read the server program {}: {cause}", path.display());
    error(Stage::Capture, errno, &format!("open({:?})", path), &message)
}
