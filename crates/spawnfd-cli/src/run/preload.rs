// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--posix-spawn`: puts libspawnfd-spawn.so into the program's LD_PRELOAD.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use spawnfd::Env;

use crate::failure::{Failure, reason};

const FLAG: &str = "--posix-spawn";
const LIBRARY: &str = "libspawnfd-spawn.so";
/// The variable of this command's environment that names the library.
const LOCATION: &str = "SPAWNFD_POSIX_SPAWN";
const VARIABLE: &str = "LD_PRELOAD";

/// Adds the library to the program's environment.
pub fn add(environment: Env) -> Result<Env, Failure> {
    let list = append(&library()?, environment.get(VARIABLE).unwrap_or_default())?;
    Ok(environment.set(VARIABLE, list))
}

/// Returns the library's absolute path.
fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = env::var_os(LOCATION).filter(|path| !path.is_empty()) {
        let failed = |why: &str| Failure::flag(FLAG, format!("{LOCATION}={}: {why}", path.display()));
        // The program can have another working directory.
        let absolute = std::path::absolute(&path).map_err(|e| failed(&reason(&e)))?;
        let file = absolute.metadata().map_err(|e| failed(&reason(&e)))?;
        return if file.is_file() { Ok(absolute) } else { Err(failed("not a file")) };
    }
    let directories = directories();
    if let Some(path) = directories.iter().map(|directory| directory.join(LIBRARY)).find(|path| path.is_file()) {
        return Ok(path);
    }
    let searched: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
    let searched = searched.join(", ");
    Err(Failure::flag(FLAG, format!("{LIBRARY} not found in {searched}; set {LOCATION} to the path of the library")))
}

/// Returns the directories to search: near this command first, then those of the system.
fn directories() -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let mut directories = Vec::new();
    if let Some(own) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        directories.push(own.to_owned());
        if let Some(prefix) = own.parent() {
            directories.extend([prefix.join("lib"), prefix.join("lib").join(&triplet)]);
        }
    }
    for directory in [Path::new("/usr/local/lib"), Path::new("/usr/lib"), &Path::new("/usr/lib").join(triplet)] {
        if !directories.iter().any(|known| known == directory) {
            directories.push(directory.to_owned());
        }
    }
    directories
}

/// Returns the value of LD_PRELOAD that has `library` last. The list keeps no second entry for `library`.
///
/// A library that wraps posix_spawn (bear, fakechroot) precedes `library`. So the wrapper still gets the program's calls,
/// and its RTLD_NEXT is `library`.
fn append(library: &Path, list: &OsStr) -> Result<OsString, Failure> {
    let name = library.as_os_str().as_bytes();
    // ld.so(8): colons and spaces separate the entries, and the loader expands $ORIGIN, $LIB and $PLATFORM.
    if let Some(byte) = name.iter().find(|byte| b": $".contains(byte)) {
        let path = library.display();
        let why = format!("{VARIABLE} cannot hold the path {path}, because it contains '{}'", char::from(*byte));
        return Err(Failure::flag(FLAG, format!("{why}; copy the library, and set {LOCATION} to the copy")));
    }
    let entries = list.as_bytes().split(|byte| b": ".contains(byte));
    let others = entries.filter(|entry| !entry.is_empty() && *entry != name);
    let list: Vec<&[u8]> = others.chain([name]).collect();
    Ok(OsString::from_vec(list.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_last_and_once() {
        let value = |list: &str| append(Path::new("/l.so"), list.as_ref()).unwrap();
        assert_eq!(value(""), "/l.so");
        assert_eq!(value("/a.so b.so"), "/a.so:b.so:/l.so");
        assert_eq!(value(":/l.so::/a.so "), "/a.so:/l.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_or_expand_is_refused() {
        for path in ["/a b/l.so", "/a:b/l.so", "/$LIB/l.so"] {
            let failure = append(Path::new(path), OsStr::new("")).unwrap_err();
            assert!(failure.message.contains(path), "{}", failure.message);
        }
    }
}
