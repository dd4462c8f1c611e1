// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the command for a program's name: from the cache, strictly by descriptor, or from a snapshot.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use spawnfd::{Command, Template, snapshot};

use crate::failure::{Failure, NOT_EXECUTABLE, OURS, reason};

/// Creates the command. `path` is the PATH of the program's environment, if that differs from this process's.
pub fn command(
    name: &OsStr,
    path: Option<Option<OsString>>,
    strict: bool,
    snapshot: bool,
) -> Result<Command<'static>, Failure> {
    if name.is_empty() {
        return Err(Failure::new("PROGRAM: an empty name"));
    }
    // A relative path starts at the working directory, as in a shell. The library accepts absolute paths only.
    let program = if name.as_bytes().contains(&b'/') {
        let absolute = std::path::absolute(name);
        absolute.map_err(|e| Failure::new(format!("{}: {}", name.display(), reason(&e))))?.into_os_string()
    } else {
        name.to_owned()
    };
    let mut command = if strict || snapshot {
        let failed = |error| Failure::program(name, error);
        let path = path.flatten().or_else(|| std::env::var_os("PATH"));
        // The C library's default for an unset PATH, which the library uses, too.
        let path = path.as_deref().unwrap_or(OsStr::new("/bin:/usr/bin"));
        let template = Template::search(&program, path).map_err(failed)?;
        if snapshot { immutable(&template)?.command() } else { template.by_descriptor().map_err(failed)?.command() }
    } else {
        Command::new(&program)
    };
    command.arg0(name);
    Ok(command)
}

/// Creates a template from a snapshot of the executable, and checks that this is the file of the given template.
fn immutable(template: &Template) -> Result<Template, Failure> {
    let name = template.path().unwrap_or_else(|| template.name().as_ref()).display();
    let failed = |why: &str| Failure { code: NOT_EXECUTABLE, ..Failure::new(format!("--snapshot: {name}: {why}")) };
    if template.is_script() {
        return Err(failed("a script cannot run from a snapshot"));
    }
    let path = template.path().unwrap_or_else(|| template.name().as_ref());
    let file = File::open(path).map_err(|e| failed(&reason(&e)))?;
    let snapshot = snapshot::take(&file).map_err(|e| Failure { code: OURS, ..Failure::spawn(e, None) })?;
    if snapshot.source() != template.identity() {
        return Err(failed("the file has changed meanwhile"));
    }
    Ok(Template::from_descriptor(&snapshot)?)
}
