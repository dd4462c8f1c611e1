// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd doctor PROGRAM`: whether `spawnfd run --posix-spawn` has an effect in a program.

mod elf;
mod libraries;
mod script;
mod text;

use std::env::consts::ARCH;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::fgetxattr;
use rustix::process::{getgid, getuid};
use serde::Serialize;

use super::as_text;
use super::shims::{self, first_in_path};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, reason};
use elf::{Elf, REPLACED};
use libraries::Libraries;

/// The oldest glibc that libspawnfd-spawn.so can use.
const OLDEST_GLIBC: &str = "2.28";

/// The most files that start each other, as scripts do. The kernel has a similar limit.
const MAX_FILES: usize = 5;

/// The files that start if the user starts a program, with an ELF file or an unresolved shim as the last one.
#[derive(Debug, Serialize)]
pub struct ProgramReport {
    /// Whether `spawnfd run --posix-spawn` replaces a function in the last file.
    replaced: bool,
    files: Vec<Inspected>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Inspected {
    Script(Script),
    Shim(Shim),
    Elf(Box<Program>),
}

/// A script, and the program that reads it.
#[derive(Debug, Serialize)]
struct Script {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    #[serde(serialize_with = "as_text")]
    interpreter: PathBuf,
}

/// A program that only starts another one.
#[derive(Debug, Serialize)]
struct Shim {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    tool: &'static str,
    target: Option<String>,
    /// The reason why the target is unknown.
    note: Option<String>,
}

/// An ELF file. A user can also name a library.
#[derive(Debug, Serialize)]
struct Program {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    imports: Vec<&'static str>,
    /// The libraries of the program that import one of the known functions.
    libraries: Vec<Library>,
    missing_libraries: Vec<String>,
    /// The reason why the loader cannot load the preload.
    obstacle: Option<String>,
    /// The privileges that are an obstacle if another user starts the program.
    privileges: Option<&'static str>,
    replaced: bool,
}

#[derive(Debug, Serialize)]
struct Library {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    imports: Vec<&'static str>,
}

impl ProgramReport {
    /// Inspects a program: a name to search in PATH, or a path. With `run`, finds the target of a shim by running the
    /// shim's tool. Never runs the program itself.
    pub fn of(name: &OsStr, run: bool) -> Result<ProgramReport, Failure> {
        let mut path = if name.as_bytes().contains(&b'/') {
            std::path::absolute(name).map_err(|e| unreadable(Path::new(name), &e))?
        } else {
            let found = first_in_path(name);
            let failure = Failure::new(format!("{}: not found in PATH", name.display()));
            found.ok_or(Failure { code: NOT_FOUND, ..failure })?
        };
        let mut report = ProgramReport { replaced: false, files: Vec::new() };
        while report.files.len() < MAX_FILES {
            let (inspected, next) = inspect(&path, run)?;
            report.replaced = matches!(&inspected, Inspected::Elf(program) if program.replaced);
            report.files.push(inspected);
            match next {
                Some(next) => path = next,
                None => return Ok(report),
            }
        }
        Err(failed(&path, "too many scripts that start each other"))
    }

    pub fn text(&self) -> String {
        text::of(&self.files)
    }
}

/// Inspects a file. Also returns the file that starts next.
fn inspect(path: &Path, run: bool) -> Result<(Inspected, Option<PathBuf>), Failure> {
    let file = File::open(path).map_err(|e| unreadable(path, &e))?;
    let metadata = file.metadata().map_err(|e| unreadable(path, &e))?;
    if !metadata.is_file() {
        return Err(failed(path, "not a file"));
    }
    // npm's links are scripts of node.
    if let Some(shim) = shims::of_file(path, &metadata).filter(|shim| shim.tool != "npm") {
        let target = match &shim.target {
            None if !run => Err("--no-timing".to_owned()),
            _ => shims::target(&shim),
        };
        let next = target.as_ref().ok().and_then(|target| target.first()).cloned();
        let target_text = next.as_ref().map(|next| next.to_string_lossy().into_owned());
        let shim = Shim { path: path.to_owned(), tool: shim.tool, target: target_text, note: target.err() };
        return Ok((Inspected::Shim(shim), next));
    }
    let mut head = [0; script::MAX_LINE];
    let length = file.read_at(&mut head, 0).map_err(|e| unreadable(path, &e))?;
    let head = &head[..length];
    if let Some(line) = script::first_line(head) {
        let interpreter = script::interpreter(line).ok_or_else(|| {
            let line = String::from_utf8_lossy(line).trim().to_owned();
            Failure { code: NOT_FOUND, ..failed(path, &format!("its interpreter '{line}' was not found")) }
        })?;
        let script = Script { path: path.to_owned(), interpreter: interpreter.clone() };
        return Ok((Inspected::Script(script), Some(interpreter)));
    }
    if !head.starts_with(elf::MAGIC) {
        return Err(failed(path, "neither an ELF file nor a script with a '#!' line"));
    }
    let elf = Elf::read(&file).ok_or_else(|| failed(path, "the ELF file is damaged"))?;
    Ok((Inspected::Elf(Box::new(program(path, &file, &metadata, elf))), None))
}

fn program(path: &Path, file: &File, metadata: &Metadata, elf: Elf) -> Program {
    // The loader replaces $ORIGIN by the directory of the real file.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let libraries = Libraries::of(&real, &elf);
    let privileges = privileges(file, metadata);
    let refused = privileges.filter(|(_, is_refused)| *is_refused).map(|(name, _)| name);
    let obstacle = obstacle(&elf, refused, &libraries);
    let spawns = |imports: &[&str]| imports.iter().any(|name| REPLACED.contains(name));
    let of_libraries = libraries.found.into_iter().map(|(path, elf)| Library { path, imports: elf.imports });
    let importing: Vec<_> = of_libraries.filter(|library| !library.imports.is_empty()).collect();
    let imported = spawns(&elf.imports) || importing.iter().any(|library| spawns(&library.imports));
    Program {
        path: path.to_owned(),
        imports: elf.imports,
        libraries: importing,
        missing_libraries: libraries.missing.iter().map(|name| name.to_string_lossy().into_owned()).collect(),
        replaced: obstacle.is_none() && imported,
        obstacle,
        privileges: privileges.map(|(name, _)| name),
    }
}

/// Returns the reason why the loader cannot load the preload.
fn obstacle(elf: &Elf, privileges: Option<&str>, libraries: &Libraries) -> Option<String> {
    if !elf.is_for_this_machine {
        return Some(format!("not for {ARCH}, but the preload is built for {ARCH}"));
    }
    if elf.is_static {
        return Some("statically linked, so no preload reaches it".to_owned());
    }
    if let Some(loader) = &elf.loader {
        let name = loader.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(b"ld-musl-") {
            return Some(format!("linked with musl ({}), but the preload requires glibc", loader.display()));
        }
        if !name.starts_with(b"ld-linux") {
            return Some(format!("{} loads it, but the preload requires the loader of glibc", loader.display()));
        }
    }
    if let Some(privileges) = privileges {
        return Some(format!("{privileges}, so the loader ignores LD_PRELOAD"));
    }
    if let Some(name) = asan(elf, libraries) {
        let name = name.display();
        return Some(format!(
            "needs {name}, which aborts the program if a preload precedes it, unless ASAN_OPTIONS contains \
             verify_asan_link_order=0"
        ));
    }
    let (path, _) =
        libraries.libc.as_ref().filter(|(_, libc)| !libc.defines_version(&format!("GLIBC_{OLDEST_GLIBC}")))?;
    Some(format!("{} is older than glibc {OLDEST_GLIBC}, which the preload requires", path.display()))
}

/// Returns the name of GCC's AddressSanitizer, if the program or one of its libraries needs it.
fn asan<'a>(elf: &'a Elf, libraries: &'a Libraries) -> Option<&'a OsStr> {
    let needed = libraries.found.iter().flat_map(|(_, library)| &library.needed).chain(&elf.needed);
    needed.map(OsString::as_os_str).find(|name| name.as_bytes().starts_with(b"libasan.so"))
}

/// Returns the kind of privileges that a program gains from its file, and whether the loader ignores LD_PRELOAD for
/// that reason if this user starts the program.
fn privileges(file: &File, metadata: &Metadata) -> Option<(&'static str, bool)> {
    const GROUP_EXECUTES: u32 = 0o010;
    let mode = metadata.mode();
    // The kernel tells the loader to ignore LD_PRELOAD if the effective and the real id differ (AT_SECURE).
    let set_user = (mode & libc::S_ISUID != 0).then(|| ("set-user-ID", metadata.uid() != getuid().as_raw()));
    let has_set_group = mode & libc::S_ISGID != 0 && mode & GROUP_EXECUTES != 0;
    let set_group = has_set_group.then(|| ("set-group-ID", metadata.gid() != getgid().as_raw()));
    let has_capabilities = fgetxattr(file, "security.capability", &mut [0_u8; 64][..]).is_ok();
    let capabilities = has_capabilities.then(|| ("has file capabilities", !getuid().is_root()));
    let given = [set_user, set_group, capabilities].into_iter().flatten();
    given.clone().find(|(_, is_refused)| *is_refused).or_else(|| given.clone().next())
}

fn failed(path: &Path, why: &str) -> Failure {
    Failure { code: NOT_EXECUTABLE, ..Failure::new(format!("{}: {why}", path.display())) }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    Failure { code, ..failed(path, &reason(error)) }
}
