// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs of programs, whose process trees one tier controls.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use spawnfd::tree::{Tier, TreeControl};
use spawnfd::{Command, Run};

use super::{Answer, CapturedCalls, JobFile};
use crate::Result;

struct Runs {
    commands: HashMap<String, Command<'static>>,
    options: Run,
    tier: Tier,
}

/// The control and the tier with a name.
fn tier(name: &str) -> Result<(TreeControl, Tier)> {
    Ok(match name {
        "group" => (TreeControl::Group, Tier::Group),
        "guard" => (TreeControl::Guard, Tier::Guard),
        "subreaper" => (TreeControl::Subreaper, Tier::Subreaper),
        other => bail!("unknown tier {other:?}"),
    })
}

pub(super) fn open(job: &JobFile) -> Result<Box<dyn CapturedCalls>> {
    let (control, tier) = tier(job.method.tree.as_deref().context("the method names no tier")?)?;
    let env = job.environment();
    let commands = job.references.iter().map(|reference| {
        let (program, arguments) = reference.argv.split_first().context("a call without a program")?;
        let mut command = Command::new(program);
        command.args(arguments).environment(&env).current_dir(&job.cwd);
        Ok((reference.name.clone(), command))
    });
    let commands = commands.collect::<Result<_>>()?;
    Ok(Box::new(Runs { commands, options: Run::new().tree(control), tier }))
}

impl CapturedCalls for Runs {
    fn call(&mut self, name: &str) -> Result<Answer> {
        let command = self.commands.get_mut(name).context("unknown call")?;
        let output = command.run_with(&self.options)?;
        ensure!(output.tree == self.tier, "the tree has tier {:?}", output.tree);
        Ok(Answer { code: output.code(), stdout: output.stdout, stderr: output.stderr })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
