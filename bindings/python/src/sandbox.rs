// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python class `spawnfd.Sandbox`: a command that starts other programs in confinement.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::arguments::{check_program, descriptor, integer, os_strings, wrong_type, wrong_value};
use crate::errors;

/// A command that starts other programs in confinement, and the descriptors it receives.
///
///     box = sf.Sandbox(["bwrap", "--ro-bind", "/", "/", "--seccomp", "9", "--"], fds={9: filter})
///     sf.run(["bash", "-c", command], sandbox=box)
///
/// The command gets its own arguments, followed by the program and the program's arguments. The
/// command alone decides what it confines, and how. A Sandbox is immutable: any number of calls
/// can share it, also concurrently. Warm.add() can keep programs parked inside it.
///
/// Args:
///     argv: The command and its arguments. The command is an absolute path, or a name that is
///         searched now in this process's PATH. The PATH of a call's `env` applies to the
///         confined program only.
///     fds: Descriptors that the command receives, at most 64, by their number in the command
///         (3 or more). They are duplicated, and kept as long as this object exists. Each start
///         opens a readable regular file again, read-only, at the offset that the descriptor
///         has now, so one call's reads do not affect the next call. All calls share any other
///         descriptor. For a file that the command writes, pass a write-only descriptor.
///
/// Raises:
///     SpawnError: FileNotFoundError: the command does not exist. EINVAL: it is a relative
///         path. EMFILE, E2BIG.
///     TypeError, ValueError: An argument is invalid; the message names it.
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug)]
pub struct Sandbox {
    pub core: spawnfd::sandbox::Sandbox,
    pub argv: Vec<OsString>,
    numbers: Vec<i32>,
}

#[pymethods]
impl Sandbox {
    #[new]
    #[pyo3(signature = (argv, *, fds = None))]
    fn new(argv: &Bound<'_, PyAny>, fds: Option<&Bound<'_, PyAny>>) -> PyResult<Sandbox> {
        let py = argv.py();
        let argv = os_strings(argv, "argv")?;
        let Some(program) = argv.first() else {
            return Err(wrong_value(&"argv", "must not be empty; its first item names the command"));
        };
        check_program(py, program, "argv[0]")?;
        // Release the GIL, because the search for the program may access slow disks.
        let created = py.detach(|| spawnfd::sandbox::Sandbox::new(&argv));
        let mut core = created.map_err(|error| errors::exception(py, &error, Some(program)))?;
        let mut numbers = Vec::new();
        if let Some(fds) = fds {
            let expected = "a mapping of number (int) and descriptor";
            let Ok(mapping) = fds.cast::<PyMapping>() else { return Err(wrong_type(&"fds", expected, fds)) };
            for item in mapping.items()? {
                let (number, fd) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                let number: i32 = integer(&number, &"fds: number")?;
                if number < 3 {
                    return Err(wrong_value(
                        &"fds",
                        format_args!("a number must be >= 3, got {number}; 0 to 2 are the standard streams"),
                    ));
                }
                let fd = descriptor(&fd, &format_args!("fds[{number}]"))?;
                core = core.descriptor(fd, number).map_err(|error| errors::exception(py, &error, None))?;
                numbers.push(number);
            }
        }
        Ok(Sandbox { core, argv, numbers })
    }

    /// The command and its arguments.
    #[getter]
    fn argv(&self) -> Vec<OsString> {
        self.argv.clone()
    }

    fn __repr__(&self) -> String {
        let fds = if self.numbers.is_empty() { String::new() } else { format!(" fds={:?}", self.numbers) };
        format!("<spawnfd.Sandbox {:?}{fds}>", self.argv)
    }
}

/// Returns the Sandbox of an option.
pub fn sandbox<'a, 'py>(value: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, Sandbox>> {
    value.cast::<Sandbox>().map_err(|_| wrong_type(&"sandbox", "spawnfd.Sandbox or None", value))
}
