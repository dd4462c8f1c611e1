// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library under test. It opens the template and encodes the environment once, and spawns
//! repeatedly.

use std::env;
use std::io;

use spawnfd::{Child, Env, Stdio, Template};

use super::{Method, Output, Target, killed};

struct Ours {
    template: Template,
    env: Env,
    child: Option<Child>,
}

pub(super) fn open(target: &Target) -> io::Result<Box<dyn Method>> {
    let template = match target {
        Target::Path(path) => Template::open(path),
        Target::Name(name) => Template::search(name, env::var_os("PATH").unwrap_or_default()),
    };
    let template = template.map_err(io::Error::other)?;
    Ok(Box::new(Ours { template, env: Env::inherit(), child: None }))
}

impl Method for Ours {
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()> {
        let stdout = match stdout {
            Output::Owned(fd) => Stdio::from(fd),
            Output::Borrowed(fd) => Stdio::from(fd),
            Output::Null => Stdio::Null,
        };
        let mut command = self.template.command();
        command.environment(&self.env).stdout(stdout);
        self.child = Some(command.spawn().map_err(io::Error::other)?);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<i32> {
        let mut child = self.child.take().ok_or_else(|| io::Error::other("nothing was started"))?;
        child.wait().map_err(io::Error::other)?.code().ok_or_else(killed)
    }

    fn for_thread(&self) -> io::Result<Box<dyn Method>> {
        Ok(Box::new(Ours { template: self.template.clone(), env: self.env.clone(), child: None }))
    }
}
