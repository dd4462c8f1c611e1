// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the command for a program's name: from the cache, strictly by descriptor, or from a snapshot.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use spawnfd::{Command, Env, Template, snapshot};

use crate::failure::{FAILED, Failure, NOT_EXECUTABLE, reason};

/// Returns the PATH to search: the PATH of the program's environment, or else the PATH of this process.
///
/// If neither has a PATH, returns the C library's default, which the library `spawnfd` also uses.
pub fn search_path(environment: Option<&Env>) -> OsString {
    let path = environment.and_then(|env| env.get("PATH").map(OsStr::to_owned));
    path.or_else(|| std::env::var_os("PATH")).unwrap_or_else(|| OsString::from("/bin:/usr/bin"))
}

/// Creates the command. `path` is the PATH to search for a name without a slash. Its relative parts start at `cwd`, the
/// program's directory, or at this command's directory.
pub fn command(
    name: &OsStr,
    path: &OsStr,
    cwd: Option<&Path>,
    strict: bool,
    snapshot: bool,
) -> Result<Command<'static>, Failure> {
    if name.is_empty() {
        return Err(Failure::new("PROGRAM must not be an empty string"));
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
        let directory = std::path::absolute(cwd.unwrap_or(Path::new("."))).ok();
        let template = Template::search_from(&program, path, directory.as_deref()).map_err(failed)?;
        if snapshot { of_snapshot(&template)?.command() } else { template.by_descriptor().map_err(failed)?.command() }
    } else {
        let mut command = Command::new(&program);
        // As env(1) does.
        spawnfd::internal::fall_back_to_shell(&mut command);
        command
    };
    command.arg0(name);
    Ok(command)
}

/// Creates a template from a snapshot of the executable. Fails if the file is no longer the one that `template`
/// recorded.
fn of_snapshot(template: &Template) -> Result<Template, Failure> {
    let name = template.path().unwrap_or_else(|| template.name().as_ref()).display();
    let failed = |why: &str| Failure { code: NOT_EXECUTABLE, ..Failure::new(format!("--snapshot: {name}: {why}")) };
    if template.is_script() {
        return Err(failed("the file is a script, and only binaries can run from a snapshot"));
    }
    let path = template.path().unwrap_or_else(|| template.name().as_ref());
    let file = File::open(path).map_err(|e| failed(&reason(&e)))?;
    let snapshot = snapshot::take(&file).map_err(|e| Failure { code: FAILED, ..Failure::spawn(e, None) })?;
    if snapshot.source() != template.identity() {
        return Err(failed("the file changed while it was copied; run the command again"));
    }
    Ok(Template::from_descriptor(&snapshot)?)
}
