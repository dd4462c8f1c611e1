// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds shims by the targets of links and the contents of scripts.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Shim;

/// The maximum size of a shim script, in bytes. A longer script does more than start another program.
const MAX_SIZE: u64 = 4096;

/// Managers whose shims are scripts that run `TOOL exec`.
const MANAGERS: [&str; 5] = ["pyenv", "rbenv", "nodenv", "asdf", "mise"];

/// Returns the shims in PATH that a user can start by name: each shim is the first file of its name in PATH.
pub fn in_path() -> Vec<Shim> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = HashSet::new();
    let mut names = HashSet::new();
    let mut shims = Vec::new();
    for directory in std::env::split_paths(&path).filter(|directory| directory.is_absolute()) {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        if !directories.insert(directory.clone()) {
            continue;
        }
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 || !names.insert(name.clone()) {
                continue;
            }
            shims.extend(of_file(&path, &metadata));
        }
    }
    shims
}

/// Returns the shim that a file is. Does not run its tool, so the target can be unknown.
pub fn of_file(path: &Path, metadata: &Metadata) -> Option<Shim> {
    let (tool, target) = classify(path, metadata)?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    Some(Shim { name, path: path.to_owned(), tool, target, note: None, cost: None })
}

/// Returns the shim's tool, and the shim's target if the file itself names the target. Returns `None` if the file is
/// not a shim.
fn classify(path: &Path, metadata: &Metadata) -> Option<(&'static str, Option<Vec<PathBuf>>)> {
    let real = fs::canonicalize(path).ok()?;
    let (name, real_name) = (path.file_name()?.to_str()?, real.file_name()?.to_str()?);
    match real_name {
        "volta-shim" => return Some(("volta", None)),
        "mise" | "rtx" if name != real_name => return Some(("mise", None)),
        "rustup" if !name.starts_with("rustup") => return Some(("rustup", None)),
        _ => {}
    }
    // rustup's proxies can also be hard links to rustup.
    let same = |other: Metadata| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino());
    if !name.starts_with("rustup") && fs::metadata(path.with_file_name("rustup")).is_ok_and(same) {
        return Some(("rustup", None));
    }
    let text = script(path)?;
    let first = text.lines().next()?;
    let linked = real != path && real.components().any(|part| part.as_os_str() == "node_modules");
    if linked && first.contains("node") {
        let node = first_in_path("node")?;
        return Some(("npm", Some(vec![node, real])));
    }
    if metadata.len() > MAX_SIZE || !is_shell(first) {
        return None;
    }
    for tool in MANAGERS {
        let mut calls = [format!("{tool}\" exec "), format!("{tool} exec "), format!("{tool} x ")].into_iter();
        if calls.any(|call| text.contains(&call)) {
            return Some((tool, None));
        }
    }
    let target = wrapped(&text).filter(|target| *target != real)?;
    Some(("script", Some(vec![target])))
}

/// Returns the first 4 KiB of a file that starts with `#!`.
fn script(path: &Path) -> Option<String> {
    let mut head = [0; 2];
    let mut file = File::open(path).ok()?;
    file.read_exact(&mut head).ok()?;
    if head != *b"#!" {
        return None;
    }
    let mut text = head.to_vec();
    file.take(MAX_SIZE).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn is_shell(first: &str) -> bool {
    first.split(['/', ' ']).any(|word| matches!(word, "sh" | "bash" | "dash" | "zsh"))
}

/// Returns the program of a script that ends in `exec /some/program "$@"`.
fn wrapped(text: &str) -> Option<PathBuf> {
    let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let last = text.lines().rfind(code)?.trim();
    let rest = last.strip_prefix("exec ")?.trim_start();
    if !rest.ends_with("\"$@\"") && !rest.ends_with("${1+\"$@\"}") {
        return None;
    }
    let word = rest.split_whitespace().next()?.trim_matches(['"', '\'']);
    let target = Path::new(word);
    (target.is_absolute() && target.is_file()).then(|| target.to_owned())
}

/// Returns the file that a search in PATH finds first.
pub fn first_in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(&name))
        .find(|path| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapper_target_is_found() {
        let script = "#!/bin/sh\n# comment\nexec /bin/sh -x \"$@\"\n# end\n";
        assert_eq!(wrapped(script), Some(PathBuf::from("/bin/sh")));
        for other in
            ["#!/bin/sh\nexec /bin/sh\n", "#!/bin/sh\nexec sh \"$@\"\n", "#!/bin/sh\necho \"$@\"\n", "#!/bin/sh\n"]
        {
            assert_eq!(wrapped(other), None, "{other}");
        }
        assert!(is_shell("#!/usr/bin/env bash") && is_shell("#!/bin/sh -e") && !is_shell("#!/usr/bin/python3"));
    }
}
