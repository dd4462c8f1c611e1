// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper of a shell in a sandbox: it starts the shell, and holds the files of each command for it
//! (`spawnfd_guard::hold`).

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::net::sockopt::set_socket_passcred;
use spawnfd_guard::hold::{FILES_VARIABLE, FIRST_FILE};
use spawnfd_sys::{Errno, receive_with_sender, send};

use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::{CheckedFd, socket_pair};
use crate::sandbox::{Sandbox, SandboxDescriptor};
use crate::tree::file_for_sandbox;

/// The lowest number that the library uses for its descriptors in a sandbox command, unless the caller uses it.
const FIRST_NUMBER: RawFd = 20;

/// The numbers in the helper of the two status pipes that may be open at once.
const STATUS_FILES: [RawFd; 2] = [FIRST_FILE, FIRST_FILE + 1];

/// The descriptors that a sandbox command gets for the helper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderNumbers {
    socket: RawFd,
    image: RawFd,
}

impl HolderNumbers {
    /// Changes a command so that it starts the helper in a sandbox, and the helper starts the command's program.
    ///
    /// # Errors
    /// EOPNOTSUPP: the library contains no helper. E2BIG, EMFILE: no descriptor is left for the sandbox.
    pub(crate) fn start_in(command: &mut Command<'_>, sandbox: &Sandbox) -> Result<HolderNumbers> {
        let is_free = |number: &RawFd| {
            !command.uses_number(*number) && sandbox.descriptors.iter().all(|given| given.number != *number)
        };
        let mut free = (FIRST_NUMBER..).filter(is_free);
        let numbers = HolderNumbers {
            socket: free.next().unwrap_or(FIRST_NUMBER),
            image: free.next().unwrap_or(FIRST_NUMBER + 1),
        };
        if command.is_named() {
            let mut args: Vec<OsString> = vec!["hold".into()];
            args.extend([numbers.socket, numbers.image].map(|number| number.to_string().into()));
            args.push(command.get_program().into());
            args.extend(command.get_args().map(OsString::from));
            command.replace_args(args);
            command.program(format!("/proc/self/fd/{}", numbers.image));
        }
        let sandbox = sandbox.clone().descriptor(file_for_sandbox()?, numbers.image)?;
        command.sandbox(&sandbox);
        Ok(numbers)
    }
}

/// The library's end of the socket to a helper.
#[derive(Debug)]
pub(super) struct Holder {
    socket: CheckedFd,
    /// The pids of helper and shell, once the helper has started the shell: the helper's as its own /proc shows it, and
    /// the shell's as this process sees it.
    pids: Option<[i32; 2]>,
    end: Option<ExitStatus>,
    /// The number of commands so far.
    commands: usize,
}

impl Holder {
    /// Connects the next start of a command with a new helper. Call [`started`](Holder::started) after the start.
    pub(super) fn connect(command: &mut Command<'_>, numbers: HolderNumbers) -> Result<Holder> {
        let (near, far) = socket_pair().map_err(|errno| failed(errno, "socketpair(AF_UNIX, SOCK_SEQPACKET)"))?;
        set_socket_passcred(&near, true).map_err(|e| failed(errno(e), "setsockopt(SO_PASSCRED)"))?;
        let far = SandboxDescriptor::new(numbers.socket, far).map_err(|errno| failed(errno, "fcntl()"))?;
        command.give(far);
        Ok(Holder { socket: CheckedFd::new(near), pids: None, end: None, commands: 0 })
    }

    /// Closes this process's copy of the helper's end.
    pub(super) fn started(command: &mut Command<'_>, numbers: HolderNumbers) {
        command.take_back(numbers.socket);
    }

    /// Receives the helper's messages that have arrived.
    pub(super) fn receive(&mut self) {
        let mut message = [0; 4];
        while let Some(socket) = self.socket.get()
            && let Ok((4, sender)) = receive_with_sender(socket.as_raw_fd(), &mut message)
        {
            let value = i32::from_ne_bytes(message);
            match self.pids {
                None => self.pids = Some([value, sender]),
                Some(_) => self.end = Some(ExitStatus::from_raw(value)),
            }
        }
    }

    /// The shell's pid. `None`: the helper has not started the shell.
    pub(super) fn shell(&self) -> Option<i32> {
        self.pids.map(|[_, shell]| shell)
    }

    /// The shell's status. `None`: the shell has not ended, or the helper could not report it.
    pub(super) fn end(&self) -> Option<ExitStatus> {
        self.end
    }

    /// The directory through which the shell opens the helper's files, as a word of the shell.
    pub(super) fn directory(&mut self) -> String {
        self.receive();
        match self.pids {
            Some([helper, _]) => format!("/proc/{helper}/fd/"),
            None => format!("\"${{{FILES_VARIABLE}:?}}\""),
        }
    }

    /// The numbers of the next command's files in the helper: its status pipe, and `others` more.
    pub(super) fn numbers(&self, others: usize) -> Vec<RawFd> {
        let status = STATUS_FILES[self.commands % 2];
        let first = FIRST_FILE + STATUS_FILES.len() as RawFd;
        [status].into_iter().chain((first..).take(others)).collect()
    }

    /// Sends the files of the next command. The helper answers through the first file, the status pipe.
    ///
    /// # Errors
    /// Those of sendmsg(2), unless the helper has ended.
    pub(super) fn hold(&mut self, numbers: &[RawFd], files: &[BorrowedFd<'_>]) -> Result<()> {
        self.commands += 1;
        let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        match self.send(numbers[0], numbers, &files) {
            // The shell has ended. The command reads the end of its status pipe.
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            sent => sent.map_err(|errno| failed(errno, "sendmsg(SCM_RIGHTS)")),
        }
    }

    /// Makes the helper close the files of the last command. It then answers through the status pipe. `keep_status`: it
    /// closes that file after the next command.
    pub(super) fn close(&self, numbers: &[RawFd], keep_status: bool) {
        let [status, others @ ..] = numbers else { return };
        let earlier = STATUS_FILES.into_iter().filter(|file| file != status);
        let own = Some(*status).filter(|_| !keep_status);
        let closed: Vec<RawFd> = others.iter().copied().chain(earlier).chain(own).collect();
        // If the helper has ended, the kernel has closed the files.
        let _ = self.send(*status, &closed, &[]);
    }

    fn send(&self, answer: RawFd, numbers: &[RawFd], files: &[RawFd]) -> std::result::Result<(), Errno> {
        let mut message: Vec<u8> = [answer].iter().chain(numbers).flat_map(|number| number.to_ne_bytes()).collect();
        let socket = self.socket.get().ok_or(Errno::EBADF)?;
        send(socket.as_raw_fd(), &mut message, files)
    }
}

fn failed(errno: Errno, call: &str) -> Error {
    Error::new(Stage::Capture, errno, call)
}
