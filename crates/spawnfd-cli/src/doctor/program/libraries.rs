// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the libraries that a program needs in the places of ld.so(8).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::elf::{Elf, string};

const LIBC: &str = "libc.so.6";
/// The libraries of glibc. Their own calls do not reach a preload.
const GLIBC: [&str; 7] = [LIBC, LOADER, "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libutil.so.1"];
const LOADER: &str = if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };
const CACHE: &str = "/etc/ld.so.cache";
const DEFAULTS: [&str; 6] = if cfg!(target_arch = "aarch64") {
    ["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
} else {
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
};

/// Libraries that load another one from their own directory, by dlopen. Java starts programs in libjava.so.
const LOADS: [(&str, &str); 1] = [("libjli.so", "libjava.so")];

/// The libraries that a program needs, directly or not.
#[derive(Debug, Default)]
pub struct Libraries {
    pub found: Vec<(PathBuf, Elf)>,
    /// The names of the libraries that are in none of the places.
    pub missing: Vec<OsString>,
    /// glibc's libc, which `found` does not contain.
    pub libc: Option<(PathBuf, Elf)>,
}

/// The libraries that one file needs, and its directories to search.
struct Needs {
    names: Vec<OsString>,
    /// The directories before those of LD_LIBRARY_PATH: DT_RPATH of the file and of the files that need it.
    before: Vec<PathBuf>,
    /// The directories after those of LD_LIBRARY_PATH: DT_RUNPATH.
    after: Vec<PathBuf>,
    /// The DT_RPATH that the file's libraries inherit.
    inherited: Vec<PathBuf>,
}

impl Needs {
    fn new(file: &Path, elf: &Elf, inherited: &[PathBuf]) -> Needs {
        let directories = |list: &Option<OsString>| list.as_ref().map_or_else(Vec::new, |list| expand(list, file));
        let (names, after) = (elf.needed.clone(), directories(&elf.runpath));
        // The loader ignores the DT_RPATH of a file that has DT_RUNPATH.
        if elf.runpath.is_some() {
            return Needs { names, before: Vec::new(), after, inherited: inherited.to_vec() };
        }
        let before: Vec<_> = directories(&elf.rpath).into_iter().chain(inherited.iter().cloned()).collect();
        Needs { names, inherited: before.clone(), before, after }
    }
}

impl Libraries {
    /// Finds the libraries of a program. `program` is a path without symbolic links.
    pub fn of(program: &Path, elf: &Elf) -> Libraries {
        let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let listed: Vec<_> = std::env::split_paths(&variable).filter(|path| path.is_absolute()).collect();
        let cache = fs::read(CACHE).unwrap_or_default();
        let mut libraries = Libraries::default();
        let mut seen = HashSet::new();
        let mut waiting = vec![Needs::new(program, elf, &[])];
        while let Some(needs) = waiting.pop() {
            for name in needs.names.iter().filter(|name| seen.insert((*name).clone())) {
                let own = needs.before.iter().chain(&listed).chain(&needs.after).map(|directory| directory.join(name));
                let cached = in_cache(&cache, name).into_iter();
                let default = DEFAULTS.iter().map(|directory| Path::new(directory).join(name));
                // `join` returns a name with a slash, which is an absolute path, unchanged.
                match own.chain(cached).chain(default).find_map(open) {
                    Some(found) if name == LIBC => libraries.libc = Some(found),
                    _ if GLIBC.iter().any(|known| name == known) => {}
                    Some((path, elf)) => {
                        waiting.push(Needs::new(&path, &elf, &needs.inherited));
                        let loaded = LOADS.iter().filter(|(library, _)| name == library);
                        libraries.found.extend(loaded.filter_map(|(_, loaded)| open(path.with_file_name(loaded))));
                        libraries.found.push((path, elf));
                    }
                    None => libraries.missing.push(name.clone()),
                }
            }
        }
        libraries
    }
}

/// Reads a library. Like the loader, skips a file for another machine.
fn open(path: PathBuf) -> Option<(PathBuf, Elf)> {
    let elf = Elf::read(&File::open(&path).ok()?).filter(|elf| elf.is_for_this_machine)?;
    // A path through $ORIGIN often contains `..`.
    Some((path.parent()?.canonicalize().ok()?.join(path.file_name()?), elf))
}

/// Returns the directories of a DT_RPATH or DT_RUNPATH, with $ORIGIN replaced by the directory of the file.
fn expand(list: &OsStr, file: &Path) -> Vec<PathBuf> {
    let origin = file.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes();
    let expanded = list.as_bytes().split(|byte| *byte == b':').map(|entry| {
        let rest = entry.strip_prefix(b"$ORIGIN").or_else(|| entry.strip_prefix(b"${ORIGIN}"));
        rest.map_or_else(|| entry.to_vec(), |rest| [origin, rest].concat())
    });
    expanded.map(|path| PathBuf::from(OsString::from_vec(path))).filter(|path| path.is_absolute()).collect()
}

/// Returns the paths of a library in ld.so.cache.
fn in_cache(cache: &[u8], name: &OsStr) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER_SIZE: usize = 48;
    const ENTRY_SIZE: usize = 24;
    // glibc before 2.32 puts another format before this one, whose offsets count from here.
    let Some(start) = cache.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) else { return Vec::new() };
    let cache = &cache[start..];
    let number = |bytes: &[u8], place| Some(u32::from_le_bytes(*bytes.get(place..)?.first_chunk()?) as usize);
    let count = number(cache, MAGIC.len()).unwrap_or(0);
    let entries = cache.get(HEADER_SIZE..).unwrap_or_default().chunks_exact(ENTRY_SIZE).take(count);
    let text = |entry: &[u8], place| string(cache, number(entry, place)?);
    let named = entries.filter(|entry| text(entry, 4).is_some_and(|key| key == name));
    named.filter_map(|entry| text(entry, 8)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_the_directory_of_the_file() {
        let expanded = expand(OsStr::new("$ORIGIN/../lib:/opt:relative:${ORIGIN}"), Path::new("/a/b/program"));
        assert_eq!(expanded, ["/a/b/../lib", "/opt", "/a/b"].map(PathBuf::from));
    }
}
