// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures single calls, and checks their results.

use std::fs::File;
use std::io::Read;

use anyhow::{bail, ensure};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, waitpid};

use crate::Result;
use crate::clock::{now_ns, timespec_ns};
use crate::methods::{Method, Output};

/// Returns the time from just before the call to the child's first instruction, in ns.
pub fn first_instruction(method: &mut dyn Method) -> Result<u64> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut reader = File::from(reader);
    let mut raw = [0u8; 16];
    let start = now_ns();
    method.start(Output::Owned(writer))?;
    let read = reader.read_exact(&mut raw);
    let end = now_ns();
    let code = method.finish()?;
    ensure!(code == 0, "the child exited with {code}");
    read?;
    let child = timespec_ns(raw);
    ensure!(start <= child && child <= end, "the child's time {child} is not between {start} and {end}");
    Ok(child - start)
}

/// Returns the time to spawn and wait, with stdout to /dev/null, in ns.
pub fn lifecycle(method: &mut dyn Method) -> Result<u64> {
    spawn_and_wait(method, Output::Null)
}

/// Returns the time to spawn and wait, in ns.
pub fn spawn_and_wait(method: &mut dyn Method, stdout: Output<'_>) -> Result<u64> {
    let start = now_ns();
    method.start(stdout)?;
    let code = method.finish()?;
    let end = now_ns();
    ensure!(code == 0, "the child exited with {code}");
    Ok(end - start)
}

/// Returns the number of open descriptors of this process.
pub fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Checks that a block left no descriptor open and no child unreaped. `before` is the number of
/// descriptors before the block.
pub fn check_nothing_left(before: usize) -> Result<()> {
    let now = descriptors()?;
    ensure!(now == before, "{before} descriptors before the block, {now} after it");
    match waitpid(None, WaitOptions::NOHANG) {
        // With Ok(None), a child still runs. It is the process with the busy threads.
        Ok(None) | Err(rustix::io::Errno::CHILD) => Ok(()),
        Ok(Some((pid, _))) => bail!("child {pid} was left as a zombie"),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a child of `method` has only descriptors 0, 1 and 2.
pub fn check_only_stdio(name: &str, method: &mut dyn Method) -> Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    method.start(Output::Owned(writer))?;
    let mut seen = String::new();
    File::from(reader).read_to_string(&mut seen)?;
    let code = method.finish()?;
    if code != 0 || seen.trim_end() != "0 1 2" {
        let shown: String = seen.chars().take(200).collect();
        bail!("{name}: the child (exit code {code}) has descriptors {shown}");
    }
    Ok(())
}
