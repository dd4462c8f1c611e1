// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares a command for a session's shell: its streams, and the files that the shell opens.

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spawnfd_guard::process::ticks_now;

use super::ShellCommand;
use crate::error::Result;
use crate::session::shell::channel::{Streams, new_pipe};
use crate::session::shell::report::Reports;
use crate::session::shell::{Number, Script, ScriptText, SessionTerminal, Shell, permit_all};

/// When a command first checks that the shell has begun with it.
const FIRST_CHECK: Duration = Duration::from_millis(20);

/// The library's ends of a command's standard input, and of its output streams.
type Pipes = (Option<OwnedFd>, [Option<PipeReader>; 2]);

impl ShellCommand {
    pub(in crate::session::shell) fn prepare(
        shell: &Arc<Shell>,
        script: &Script<'_>,
        has_input: bool,
    ) -> Result<(ShellCommand, Pipes)> {
        let terminal = script.terminal.map(SessionTerminal::number);
        script.terminal.map(SessionTerminal::reset).transpose()?;
        let text = match &script.text {
            ScriptText::Start(number) => return ShellCommand::start(shell, *number),
            ScriptText::Run(text) => text,
        };
        let stdin = (has_input && terminal.is_none()).then(new_pipe).transpose()?;
        let stdout = terminal.is_none().then(new_pipe).transpose()?;
        let stderr = (!script.merge && terminal.is_none()).then(new_pipe).transpose()?;
        let (stdin_file, stdin) = stdin.unzip();
        let (stdout, stdout_file) = stdout.unzip();
        let (stderr, stderr_file) = stderr.unzip();
        let foreground = script.terminal.and_then(|terminal| terminal.foreground_helper(shell));
        let number = |file: &Option<OwnedFd>| file.as_ref().map(AsRawFd::as_raw_fd);
        let [stdin_file, stdout_file, stderr_file] =
            [stdin_file.map(OwnedFd::from), stdout_file.map(OwnedFd::from), stderr_file.map(OwnedFd::from)];
        let streams = Streams {
            stdin: number(&stdin_file).or(terminal.filter(|_| has_input)),
            stdout: number(&stdout_file).or(terminal).unwrap_or(-1),
            stderr: number(&stderr_file),
            is_terminal: terminal.is_some(),
            foreground: foreground.map(|helper| helper.as_raw_fd()),
        };
        let mut kept: Vec<OwnedFd> = [stdout_file, stdin_file, stderr_file].into_iter().flatten().collect();
        let mut command = ShellCommand::new(shell, Number::random());
        let mut state = shell.shared.lock();
        if let (Some(channel), Some(dialect)) = (&state.channel, state.dialect) {
            let mut paths = state.paths.clone();
            if let Some(holder) = &state.holder {
                // See the same call in `Shell::start`.
                kept.iter().map(AsFd::as_fd).try_for_each(|pipe| permit_all(&pipe))?;
                let far_end = script.terminal.map(|terminal| terminal.far_end().as_fd());
                let files: Vec<BorrowedFd<'_>> =
                    kept.iter().map(AsFd::as_fd).chain(far_end).chain(foreground).collect();
                let numbers = holder.command_numbers(&files);
                holder.hold(&numbers)?;
                paths = paths.with(numbers.iter().copied());
                command.held = Some(numbers);
                command.awaited_answers = 1;
                // The helper has its own copies.
                kept.clear();
            }
            // A shell that is about to exit runs no further text. The command reads the end of the status pipe.
            command.is_sent = state.is_closing;
            if !state.is_closing {
                let number = command.reports.number();
                channel.prepare(&paths, (dialect, &state.options, number), &streams, text)?;
            }
            command.status = Some(channel.status()?);
            state.is_busy = true;
        }
        drop(state);
        command.files = kept;
        command.returns_to = text.cwd.and(text.directory).map(Path::to_owned);
        Ok((command, (stdin.map(Into::into), [stdout, stderr])))
    }

    /// The start of the shell, which runs its first text by itself.
    fn start(shell: &Arc<Shell>, number: Number) -> Result<(ShellCommand, Pipes)> {
        let mut command = ShellCommand::new(shell, number);
        let mut state = shell.shared.lock();
        if let Some(channel) = &state.channel {
            command.status = Some(channel.status()?);
            state.is_busy = true;
        }
        drop(state);
        (command.is_start, command.is_sent) = (true, true);
        Ok((command, (None, [None, None])))
    }

    fn new(shell: &Arc<Shell>, number: Number) -> ShellCommand {
        ShellCommand {
            shell: shell.clone(),
            is_start: false,
            returns_to: None,
            status: None,
            reports: Reports::new(number),
            files: Vec::new(),
            held: None,
            awaited_answers: 0,
            is_sent: false,
            is_closed: false,
            ends_shell: false,
            began: ticks_now(),
            idle_checks: 0,
            seen_lines: 0,
            seen_interrupts: 0,
            busy_from: None,
            read_again_at: None,
            answer_checks: 0,
            next_check: Instant::now().checked_add(FIRST_CHECK),
            terminate_at: None,
            interrupt: None,
            is_signaled: false,
            delivery: None,
            killed: None,
            dying: Vec::new(),
            dying_at: None,
            is_over: false,
        }
    }
}
