// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the report on a program as text: one line for each fact.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::elf::{DLOPEN, OTHERS, REPLACED};
use super::{Inspected, Library, Program, Shim};

const RUN: &str = "`spawnfd run --posix-spawn`";
const PYTHON: &str =
    "Python's subprocess module uses posix_spawn only with close_fds=False, and otherwise vfork or fork";

pub fn of(files: &[Inspected]) -> String {
    let mut text = String::new();
    for file in files {
        let (path, facts) = match file {
            Inspected::Script(script) => {
                (&script.path, vec![format!("a script that {} runs", script.interpreter.display())])
            }
            Inspected::Shim(shim) => (&shim.path, vec![of_shim(shim)]),
            Inspected::Elf(program) => (&program.path, of_program(program)),
        };
        for fact in facts {
            text.push_str(&format!("{}: {fact}\n", path.display()));
        }
    }
    text
}

fn of_shim(shim: &Shim) -> String {
    let tool = shim.tool;
    match (&shim.target, &shim.note) {
        (Some(target), _) if tool == "script" => format!("a script that only starts {target}"),
        (Some(target), _) => format!("a {tool} shim that starts {target}"),
        (None, note) => {
            let name = shim.path.file_name().unwrap_or_default().display();
            let why = note.as_deref().unwrap_or_default();
            format!("a {tool} shim with an unknown target ({why}): pass the path that '{tool} which {name}' prints")
        }
    }
}

fn of_program(program: &Program) -> Vec<String> {
    if let Some(obstacle) = &program.obstacle {
        return vec![obstacle.clone()];
    }
    let mut facts = Vec::new();
    facts.extend(of_imports(&program.imports).map(|(names, effect)| format!("imports {names}: {effect}")));
    for Library { path, imports } in &program.libraries {
        let fact = |(names, effect)| format!("loads {}, which imports {names}: {effect}", path.display());
        facts.extend(of_imports(imports).map(fact));
    }
    if program.replaced {
        let mut paths = std::iter::once(&program.path).chain(program.libraries.iter().map(|library| &library.path));
        if paths.any(|path| is_python(path)) {
            facts.push(PYTHON.to_owned());
        }
    } else {
        let others = known(&program.imports, &OTHERS);
        let imports = match others.is_empty() {
            true => "neither this file nor its libraries import posix_spawn".to_owned(),
            false => format!("imports {} but not posix_spawn", list(&others, "and")),
        };
        let all = program.libraries.iter().map(|library| &library.imports).chain([&program.imports]);
        let effect = match all.flatten().any(|name| *name == DLOPEN) {
            true => "so the preload has an effect only if the program loads a library that imports it (dlopen)",
            false => "so the preload has no effect",
        };
        facts.push(format!("{imports}, {effect}"));
    }
    if !program.missing_libraries.is_empty() {
        let names: Vec<&str> = program.missing_libraries.iter().map(String::as_str).collect();
        facts.push(format!("needs {}, not found: the imports are unknown", list(&names, "and")));
    }
    if let Some(privileges) = program.privileges {
        facts.push(format!("{privileges}: the loader ignores LD_PRELOAD if another user starts the program"));
    }
    facts
}

/// Whether a file is CPython or its library.
fn is_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    [&b"python3"[..], b"libpython3"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the names of the imports that a preload replaces, and its effect on all imports.
fn of_imports(imports: &[&str]) -> Option<(String, String)> {
    let (replaced, others) = (known(imports, &REPLACED), known(imports, &OTHERS));
    let them = match replaced.len() {
        0 => return None,
        1 => "it",
        _ => "them",
    };
    let not = if others.is_empty() { String::new() } else { format!(", but not {}", list(&others, "or")) };
    Some((list(&replaced, "and"), format!("{RUN} replaces {them}{not}")))
}

/// Returns the imports that are in `names`, in the order of `names`.
fn known<'a>(imports: &[&str], names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().filter(|name| imports.contains(name)).collect()
}

/// Joins names: `a, b and c`.
fn list(names: &[&str], conjunction: &str) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}
