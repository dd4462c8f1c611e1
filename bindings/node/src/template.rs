// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned executables.

use std::path::Path;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::{Command, Template, Warm};

use crate::errors::{Failure, answer, wrong};
use crate::values::{is_absent, os_string};

/// A pinned executable, and the parked processes from which it starts, if there are any.
#[napi]
pub struct NativeTemplate {
    template: Template,
    warm: Option<Warm>,
}

/// Records a program, given by an absolute path or a name to search in `path`, in the format of PATH.
#[napi]
pub fn template(program: Unknown<'_>, path: Unknown<'_>) -> Result<Either<NativeTemplate, Failure>> {
    let program = os_string(&program, "program")?;
    if program.is_empty() {
        return Err(wrong("program must not be empty"));
    }
    let path = match is_absent(&path)? {
        true => "/bin:/usr/bin".into(),
        false => os_string(&path, "path")?,
    };
    answer(Template::search(&program, &path).map(|template| NativeTemplate { template, warm: None }))
}

impl NativeTemplate {
    pub fn native(&self) -> &Template {
        &self.template
    }

    /// The same template, which starts from parked processes.
    pub fn warm(&self, warm: &Warm) -> NativeTemplate {
        NativeTemplate { template: self.template.clone(), warm: Some(warm.clone()) }
    }

    pub fn command(&self) -> Command<'static> {
        let mut command = self.template.command();
        self.warm.as_ref().map(|warm| command.warm(warm));
        command
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[napi]
impl NativeTemplate {
    /// Compares the executable and the credentials with the recorded ones. Returns why they differ.
    #[napi]
    pub fn revalidate(&self) -> Option<Failure> {
        self.template.revalidate().err().map(Failure::from)
    }

    #[napi(getter)]
    pub fn path(&self) -> Option<String> {
        self.template.path().map(text)
    }

    #[napi(getter)]
    pub fn name(&self) -> String {
        text(Path::new(self.template.name()))
    }

    #[napi(getter)]
    pub fn interpreters(&self) -> Vec<String> {
        self.template.interpreters().map(text).collect()
    }
}
