// SPDX-License-Identifier: MIT OR Apache-2.0
//! `std::process::Command`, used as in its documentation and in seed 003.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};

use super::{Method, Output, Target, killed};

/// The standard library's method.
#[derive(Debug)]
pub struct Standard {
    program: OsString,
    child: Option<Child>,
}

impl Standard {
    pub(super) fn open(target: &Target) -> Self {
        let program = match target {
            Target::Path(path) => path.clone().into_os_string(),
            Target::Name(name) => name.into(),
        };
        Self { program, child: None }
    }
}

impl Method for Standard {
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()> {
        let stdout = match stdout {
            Output::Owned(fd) => Stdio::from(fd),
            Output::Borrowed(fd) => Stdio::from(fd.try_clone_to_owned()?),
            Output::Null => Stdio::null(),
        };
        self.child = Some(Command::new(&self.program).stdout(stdout).spawn()?);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<i32> {
        let mut child = self.child.take().ok_or_else(|| io::Error::other("nothing was started"))?;
        child.wait()?.code().ok_or_else(killed)
    }

    fn for_thread(&self) -> io::Result<Box<dyn Method>> {
        Ok(Box::new(Self { program: self.program.clone(), child: None }))
    }
}

impl Drop for Standard {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = self.finish();
        }
    }
}
