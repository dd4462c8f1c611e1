// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper of a shell in a sandbox: it starts the shell, and holds the files of each command for it
//! (`spawnfd_guard::broker`).

use std::ffi::OsString;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::net::sockopt::set_socket_passcred;
use spawnfd_sys::{Errno, receive_with_sender, send};

use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::CheckedFd;
use crate::host::features::socket_pair;
use crate::sandbox::{Sandbox, SandboxDescriptor};
use crate::tree::file_for_sandbox;

/// The lowest number that the library uses for its descriptors in a sandbox command, unless the caller uses it.
const FIRST_NUMBER: RawFd = 20;

/// The number of files of a session that the helper holds.
const SESSION_FILES: RawFd = 7;

/// How many messages of the helper the library reads at once. A program of the same user can take the helper's socket, and
/// write to it without end.
const MAX_MESSAGES: usize = 16;

/// The descriptors that a sandbox command gets for the helper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrokerNumbers {
    socket: RawFd,
    image: RawFd,
    /// The first of the numbers at which the helper holds the files of the session.
    files: RawFd,
}

impl BrokerNumbers {
    /// Changes a command so that it starts the helper in a sandbox, and the helper starts the command's program.
    ///
    /// # Errors
    /// EOPNOTSUPP: the library contains no helper. E2BIG, EMFILE: no descriptor is left for the sandbox.
    pub(crate) fn start_in(command: &mut Command<'_>, sandbox: &Sandbox) -> Result<BrokerNumbers> {
        let is_free = |number: &RawFd| {
            !command.uses_number(*number) && sandbox.descriptors.iter().all(|given| given.number != *number)
        };
        let mut free = (FIRST_NUMBER..).filter(is_free);
        let socket = free.next().unwrap_or(FIRST_NUMBER);
        let image = free.next().unwrap_or(FIRST_NUMBER + 1);
        let files = (image + 1..).find(|first| (*first..first + SESSION_FILES).all(|number| is_free(&number)));
        let numbers = BrokerNumbers { socket, image, files: files.unwrap_or(image + 1) };
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
pub(super) struct DescriptorBroker {
    socket: CheckedFd,
    /// The pids of helper and shell, once the helper has started the shell: the helper's as its own /proc shows it, and
    /// the shell's as this process sees it.
    pub(super) pids: Option<[i32; 2]>,
    /// The shell's status. `None`: the shell has not ended, or the helper could not report it.
    pub(super) end: Option<ExitStatus>,
    /// The first number at which the helper holds the files of the session. Those of a command follow them.
    first: RawFd,
}

impl DescriptorBroker {
    /// Connects with the helper of a start. Returns the descriptor that the sandbox command gets for it.
    pub(super) fn connect(numbers: BrokerNumbers) -> Result<(DescriptorBroker, SandboxDescriptor)> {
        let (near, far) = socket_pair().map_err(|errno| failed(errno, "socketpair(AF_UNIX, SOCK_SEQPACKET)"))?;
        set_socket_passcred(&near, true).map_err(|e| failed(errno(e), "setsockopt(SO_PASSCRED)"))?;
        let far = SandboxDescriptor::new(numbers.socket, far).map_err(|errno| failed(errno, "fcntl()"))?;
        Ok((DescriptorBroker { socket: CheckedFd::new(near), pids: None, end: None, first: numbers.files }, far))
    }

    /// Receives the helper's messages that have arrived.
    pub(super) fn receive(&mut self) {
        let mut message = [0; 4];
        for _ in 0..MAX_MESSAGES {
            let Some(socket) = self.socket.get() else { return };
            let Ok((4, sender)) = receive_with_sender(socket.as_raw_fd(), &mut message) else { return };
            let value = i32::from_ne_bytes(message);
            match self.pids {
                None => self.pids = Some([value, sender]),
                Some(_) => self.end = Some(ExitStatus::from_raw(value)),
            }
        }
    }

    /// The helper's pid, as its own /proc shows it. `None`: the helper has not started the shell.
    pub(super) fn helper(&mut self) -> Option<i32> {
        self.receive();
        self.pids.map(|[helper, _]| helper)
    }

    /// The number in the helper for each file of the session.
    pub(super) fn session_numbers(&self, files: &[BorrowedFd<'_>]) -> Vec<(RawFd, RawFd)> {
        files.iter().map(AsRawFd::as_raw_fd).zip(self.first..).collect()
    }

    /// The number in the helper for each file of a command.
    pub(super) fn command_numbers(&self, files: &[BorrowedFd<'_>]) -> Vec<(RawFd, RawFd)> {
        files.iter().map(AsRawFd::as_raw_fd).zip(self.first + SESSION_FILES..).collect()
    }

    /// Sends files to the helper, which answers through the first file of the session, the status pipe.
    ///
    /// # Errors
    /// Those of sendmsg(2), unless the helper has ended.
    pub(super) fn hold(&self, numbers: &[(RawFd, RawFd)]) -> Result<()> {
        let (files, numbers): (Vec<RawFd>, Vec<RawFd>) = numbers.iter().copied().unzip();
        match self.send(&numbers, &files) {
            // The shell has ended. The command reads the end of its status pipe.
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            sent => sent.map_err(|errno| failed(errno, "sendmsg(SCM_RIGHTS)")),
        }
    }

    /// Makes the helper close the files of the last command. It then answers.
    pub(super) fn close(&self, numbers: &[(RawFd, RawFd)]) {
        let numbers: Vec<RawFd> = numbers.iter().map(|(_, held)| *held).collect();
        // If the helper has ended, the kernel has closed the files.
        let _ = self.send(&numbers, &[]);
    }

    fn send(&self, numbers: &[RawFd], files: &[RawFd]) -> std::result::Result<(), Errno> {
        let mut message: Vec<u8> = [self.first].iter().chain(numbers).flat_map(|number| number.to_ne_bytes()).collect();
        let socket = self.socket.get().ok_or(Errno::EBADF)?;
        send(socket.as_raw_fd(), &mut message, files)
    }
}

fn failed(errno: Errno, call: &str) -> Error {
    Error::new(Stage::Capture, errno, call)
}
