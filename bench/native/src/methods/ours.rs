// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library under test: a template opened once, an environment encoded once, spawned again and again.

use std::env;
use std::io;

use spawnfd::{Child, Env, LauncherThread, Stdio, Template};

use super::{Method, Output, Target, killed};

struct Ours {
    template: Template,
    env: Env,
    /// By a launcher thread, which is there from `begin` to `rest`: beside it the fork of another method would be slower by half.
    by_thread: bool,
    launcher: Option<LauncherThread>,
    child: Option<Child>,
}

pub(super) fn open(target: &Target, by_thread: bool) -> io::Result<Box<dyn Method>> {
    let template = match target {
        Target::Path(path) => Template::open(path),
        Target::Name(name) => Template::search(name, env::var_os("PATH").unwrap_or_default()),
    };
    let template = template.map_err(io::Error::other)?;
    Ok(Box::new(Ours { template, env: Env::inherit(), by_thread, launcher: None, child: None }))
}

impl Method for Ours {
    fn begin(&mut self) -> io::Result<()> {
        if self.by_thread && self.launcher.is_none() {
            self.launcher = Some(LauncherThread::new().map_err(io::Error::other)?);
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.launcher = None;
    }

    fn start(&mut self, stdout: Output<'_>) -> io::Result<()> {
        self.begin()?;
        let stdout = match stdout {
            Output::To(fd) => Stdio::from(fd),
            Output::Into(fd) => Stdio::from(fd),
            Output::Null => Stdio::Null,
        };
        let mut command = self.template.command();
        command.environment(&self.env).stdout(stdout);
        if let Some(launcher) = &self.launcher {
            command.launcher(launcher);
        }
        self.child = Some(command.spawn().map_err(io::Error::other)?);
        match self.launcher.as_ref().map(LauncherThread::stats) {
            Some(stats) if !stats.fell_back.is_empty() => {
                Err(io::Error::other(format!("not by the thread: {stats:?}")))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<i32> {
        let mut child = self.child.take().ok_or_else(|| io::Error::other("nothing was started"))?;
        child.wait().map_err(io::Error::other)?.code().ok_or_else(killed)
    }

    fn another(&self) -> io::Result<Box<dyn Method>> {
        let Ours { template, env, by_thread, .. } = self;
        let (template, env) = (template.clone(), env.clone());
        Ok(Box::new(Ours { template, env, by_thread: *by_thread, launcher: None, child: None }))
    }
}
