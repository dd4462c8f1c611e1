// SPDX-License-Identifier: MIT OR Apache-2.0
//! One timed call, its result checked.

use std::fs::File;
use std::io::Read;

use anyhow::{bail, ensure};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, waitpid};

use crate::Result;
use crate::clock::{now_ns, timespec_ns};
use crate::methods::{Method, Output};

/// Time from before the call to the child's first instruction, in ns.
pub fn first_instruction(method: &mut dyn Method) -> Result<u64> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut reader = File::from(reader);
    let mut raw = [0u8; 16];
    let start = now_ns();
    method.start(Output::To(writer))?;
    let read = reader.read_exact(&mut raw);
    let end = now_ns();
    let code = method.finish()?;
    ensure!(code == 0, "the child exited with {code}");
    read?;
    let child = timespec_ns(raw);
    ensure!(start <= child && child <= end, "the child's clock {child} lies outside {start}..{end}");
    Ok(child - start)
}

/// Time to spawn and wait, stdout to /dev/null, in ns.
pub fn lifecycle(method: &mut dyn Method) -> Result<u64> {
    whole_life(method, Output::Null)
}

/// Time to spawn and wait, in ns.
pub fn whole_life(method: &mut dyn Method, stdout: Output<'_>) -> Result<u64> {
    let start = now_ns();
    method.start(stdout)?;
    let code = method.finish()?;
    let end = now_ns();
    ensure!(code == 0, "the child exited with {code}");
    Ok(end - start)
}

/// How many descriptors this process has.
pub fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Checks that a block left no descriptor, of which there were `before`, and no child that nobody waited for.
pub fn nothing_left(before: usize) -> Result<()> {
    let now = descriptors()?;
    ensure!(now == before, "{before} descriptors before the block, {now} after it");
    match waitpid(None, WaitOptions::NOHANG) {
        // The process with the busy threads is a child that lives on.
        Ok(None) | Err(rustix::io::Errno::CHILD) => Ok(()),
        Ok(Some((pid, _))) => bail!("child {pid} was left as a zombie"),
        Err(error) => Err(error.into()),
    }
}

/// Checks that a child of `method` has descriptors 0, 1 and 2 and no other.
pub fn only_stdio(name: &str, method: &mut dyn Method) -> Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    method.start(Output::To(writer))?;
    let mut seen = String::new();
    File::from(reader).read_to_string(&mut seen)?;
    let code = method.finish()?;
    if code != 0 || seen.trim_end() != "0 1 2" {
        let shown: String = seen.chars().take(200).collect();
        bail!("{name}: the child (exit code {code}) has descriptors {shown}");
    }
    Ok(())
}
