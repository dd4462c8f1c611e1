// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of one session. Each call has the form `bash -c TEXT`, and the session runs TEXT.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use spawnfd::session::{Session, SessionOptions};
use spawnfd::{Command, Run};

use super::{Answer, CapturedCalls, JobFile};
use crate::Result;

struct Commands {
    session: Session,
    texts: HashMap<String, String>,
    options: Run,
    cwd: PathBuf,
}

pub(super) fn open(job: &JobFile) -> Result<Box<dyn CapturedCalls>> {
    let mut shell = None;
    let mut texts = HashMap::new();
    for reference in &job.references {
        let [program, option, text] = reference.argv.as_slice() else { bail!("{} has no text", reference.name) };
        ensure!(option == "-c", "{} is not bash -c TEXT", reference.name);
        shell = Some(program);
        texts.insert(reference.name.clone(), text.clone());
    }
    let env = job.environment();
    let mut command = Command::new(shell.context("no calls")?);
    command.environment(&env).current_dir(&job.cwd);
    let session = Session::open(command, SessionOptions::new())?;
    Ok(Box::new(Commands { session, texts, options: Run::new(), cwd: job.cwd.canonicalize()? }))
}

impl CapturedCalls for Commands {
    fn call(&mut self, name: &str) -> Result<Answer> {
        let output = self.session.run(&self.texts[name], &self.options)?;
        ensure!(output.cwd.as_deref() == Some(self.cwd.as_path()), "the shell is in {:?}", output.cwd);
        Ok(Answer { code: output.code(), stdout: output.stdout, stderr: output.stderr })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.session.close()?;
        Ok(())
    }
}
