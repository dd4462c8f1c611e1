// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry point of an interpreter: the script or module that every start runs. The parked process has imported its
//! modules. So a start must find the same modules in the directory that CPython searches first.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cold_reason::ColdReason;
use crate::error::{Error, Result};

/// The script or module that every start runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EntryPoint {
    program: EntryProgram,
    /// The absolute path of the working directory. `None` if each start may have another one.
    pub(super) directory: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum EntryProgram {
    /// The module after `-m`.
    Module(OsString),
    /// The absolute path of a script.
    Script(PathBuf),
}

impl EntryPoint {
    /// Reads `-m` and the name of a module, or the path of a script.
    ///
    /// # Errors
    /// EINVAL: there is no module or script. The errors of getcwd(3).
    pub(super) fn parse(entry: &OsStr, directory: Option<&Path>) -> Result<EntryPoint> {
        let invalid = |why: &str| Error::invalid(format!("add(entry = {entry:?}): {why}"));
        let absolute = |path: &Path| std::path::absolute(path).map_err(|error| invalid(&error.to_string()));
        let program = match entry.as_bytes().strip_prefix(b"-m ").map(<[u8]>::trim_ascii) {
            Some(name) if !name.is_empty() && !name.iter().any(|byte| b" -/".contains(byte)) => {
                EntryProgram::Module(OsString::from_vec(name.to_owned()))
            }
            None if !entry.is_empty() && !entry.as_bytes().starts_with(b"-") => {
                EntryProgram::Script(absolute(Path::new(entry))?)
            }
            _ => return Err(invalid("expected the path of a script, or -m and the name of a module")),
        };
        Ok(EntryPoint { program, directory: directory.map(absolute).transpose()? })
    }

    /// The value of the variable by which the parked process learns its entry point.
    pub(super) fn variable(&self) -> OsString {
        match &self.program {
            EntryProgram::Module(name) => [OsStr::new("-m "), name].into_iter().collect(),
            EntryProgram::Script(path) => path.into(),
        }
    }

    /// The directory that CPython searches first. `None` if each start has another one, or if the directory is
    /// missing.
    pub(super) fn first_path(&self) -> Option<PathBuf> {
        match &self.program {
            EntryProgram::Module(_) => self.directory.as_ref()?.canonicalize().ok(),
            EntryProgram::Script(path) => path.canonicalize().ok()?.parent().map(Path::to_owned),
        }
    }

    /// Checks that a command runs this entry point. `rest` are its arguments after the interpreter's options.
    /// `directory` returns its working directory.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn fits(
        &self,
        rest: &[OsString],
        directory: impl Fn() -> PathBuf,
    ) -> std::result::Result<(), ColdReason> {
        let is_same = match &self.program {
            EntryProgram::Module(name) => matches!(rest, [option, module, ..] if option == "-m" && module == name),
            EntryProgram::Script(path) => rest.first().is_some_and(|word| {
                // Most other scripts have another name. Then the directory does not matter.
                path.ends_with(word) && std::path::absolute(directory().join(word)).is_ok_and(|script| script == *path)
            }),
        };
        match &self.directory {
            _ if !is_same => Err(ColdReason::Entry),
            Some(own) if !is_same_directory(own, &directory()) => Err(ColdReason::WorkingDirectory),
            _ => Ok(()),
        }
    }

    /// Checks that a program in `directory` finds the same modules as the parked process.
    ///
    /// # Errors
    /// The reason for a cold start.
    pub(super) fn check_modules(&self, modules: &ModuleNames, directory: &Path) -> std::result::Result<(), ColdReason> {
        // inotify reports changes of a script's directory, and of a known working directory.
        let may_differ = matches!(self.program, EntryProgram::Module(_)) && self.directory.is_none();
        if may_differ && modules.are_shadowed_in(directory) { Err(ColdReason::ShadowedModule) } else { Ok(()) }
    }
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// The top-level modules that a parked process has imported or looked up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ModuleNames {
    names: HashSet<Vec<u8>>,
    /// True if the process has read the metadata of installed packages, which importlib.metadata also searches in the
    /// first path.
    has_read_metadata: bool,
}

impl ModuleNames {
    pub(super) fn new(names: Vec<Vec<u8>>, files: &[Vec<u8>]) -> ModuleNames {
        let is_metadata = |file: &Vec<u8>| {
            Path::new(OsStr::from_bytes(file)).ancestors().skip(1).any(|above| is_metadata_directory(above.as_os_str()))
        };
        ModuleNames {
            has_read_metadata: !names.is_empty() && files.iter().any(is_metadata),
            names: names.into_iter().collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len() + usize::from(self.has_read_metadata)
    }

    pub(super) fn extend(&mut self, more: ModuleNames) {
        self.names.extend(more.names);
        self.has_read_metadata |= more.has_read_metadata;
    }

    /// Whether a file or directory of this name in the first path could change the result of an import.
    pub(super) fn contain(&self, file_name: &[u8]) -> bool {
        let (stem, suffix) = match file_name.iter().position(|byte| *byte == b'.') {
            Some(dot) => (&file_name[..dot], &file_name[dot + 1..]),
            None => (file_name, &b""[..]),
        };
        let is_module = suffix.is_empty() || suffix == b"py" || suffix == b"pyc" || suffix.ends_with(b"so");
        is_module && self.names.contains(stem)
            || self.has_read_metadata && is_metadata_directory(OsStr::from_bytes(file_name))
    }

    /// Whether CPython would find one of the modules in `directory`. CPython takes an unreadable directory for an empty
    /// one.
    fn are_shadowed_in(&self, directory: &Path) -> bool {
        if self.names.is_empty() {
            return false;
        }
        std::fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| {
            let name = entry.file_name();
            let is_plain_file = || entry.file_type().is_ok_and(|kind| kind.is_file());
            self.contain(name.as_bytes()) && (name.as_bytes().contains(&b'.') || !is_plain_file())
        })
    }
}

fn is_metadata_directory(path: &OsStr) -> bool {
    [&b".dist-info"[..], b".egg-info", b".egg"].iter().any(|suffix| path.as_bytes().ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entry: &str) -> Result<EntryPoint> {
        EntryPoint::parse(OsStr::new(entry), None)
    }

    fn fits(entry: &str, rest: &[&str], directory: &str) -> bool {
        let rest: Vec<OsString> = rest.iter().map(OsString::from).collect();
        parse(entry).expect("it is valid").fits(&rest, || directory.into()).is_ok()
    }

    #[test]
    fn an_entry_is_a_module_or_a_script() {
        for (entry, variable) in [("-m pytest", "-m pytest"), ("-m  a.b ", "-m a.b"), ("/x/tool.py", "/x/tool.py")] {
            assert_eq!(parse(entry).expect(entry).variable(), variable);
        }
        let here = std::env::current_dir().expect("it exists");
        assert_eq!(parse("tool.py").expect("it is valid").variable(), here.join("tool.py"));
        for entry in ["", "-m", "-m ", "-mpytest", "-m a b", "-m a/b", "-m -x", "-c", "-"] {
            assert!(parse(entry).is_err(), "{entry:?}");
        }
    }

    #[test]
    fn an_entry_fits_its_own_arguments() {
        assert!(fits("-m pytest", &["-m", "pytest"], "/"));
        assert!(fits("-m pytest", &["-m", "pytest", "-q"], "/"));
        for rest in [&[][..], &["-m"], &["-m", "black"], &["-mpytest"], &["pytest"]] {
            assert!(!fits("-m pytest", rest, "/"), "{rest:?}");
        }
        for (rest, directory) in [(&["/x/tool.py", "-q"][..], "/y"), (&["tool.py"], "/x"), (&["x/tool.py"], "/")] {
            assert!(fits("/x/tool.py", rest, directory), "{rest:?} in {directory}");
        }
        for rest in [&[][..], &["/y/tool.py"], &["other.py"], &["-m", "tool"], &["tool.py"], &["x/tool.py"]] {
            assert!(!fits("/x/tool.py", rest, "/y"), "{rest:?}");
        }
    }

    #[test]
    fn an_entry_with_a_directory_fits_this_directory() {
        let entry = EntryPoint::parse(OsStr::new("-m tool"), Some(Path::new("/proc"))).expect("it is valid");
        let fits = |directory: &str| entry.fits(&["-m".into(), "tool".into()], || directory.into());
        assert_eq!(["/proc", "/sys/../proc"].map(fits), [Ok(()); 2]);
        assert_eq!(["/", "/missing"].map(fits), [Err(ColdReason::WorkingDirectory); 2]);
    }

    #[test]
    fn names_of_files_shadow_modules() {
        let own = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let names = ModuleNames::new(own(&["json", "mypy"]), &own(&["/lib/json/__init__.py"]));
        for file in ["json", "json.py", "json.pyc", "json.so", "json.abi3.so", "json.cpython-312-x86_64-linux-gnu.so"] {
            assert!(names.contain(file.as_bytes()), "{file}");
        }
        for file in ["mypy.ini", "jsonx.py", "js", "json.txt", ".json.py", "tool.egg-info", "__pycache__"] {
            assert!(!names.contain(file.as_bytes()), "{file}");
        }
        let names = ModuleNames::new(own(&["json"]), &own(&["/lib/tool-1.0.dist-info/METADATA"]));
        for file in ["json", "other.dist-info", "tool.egg-info"] {
            assert!(names.contain(file.as_bytes()), "{file}");
        }
        assert!(!ModuleNames::default().contain(b"json.py"));
    }
}
