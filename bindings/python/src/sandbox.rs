// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd.Sandbox`: a command through which programs are started.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyMapping;

use crate::arguments::{descriptor, integer, os_strings, runnable, wrong_type, wrong_value};
use crate::errors;

/// A command through which programs are started, and descriptors it is given.
///
///     box = sf.Sandbox(["bwrap", "--ro-bind", "/", "/", "--seccomp", "9", "--"], fds={9: filter})
///     sf.run(["bash", "-c", command], sandbox=box)
///
/// It is started with its own arguments, then the program and its; what it confines, and how, is its own affair. A value: any
/// number of calls can have it, at once too, and Warm.add() keeps programs parked inside it.
///
/// Args:
///     argv: The command: an absolute path, or a name that is searched now, in this process's PATH (not in that of the calls,
///         which is for what is confined), and its arguments.
///     fds: Descriptors it is given, 64 at most, by the number it has them as, 3 or more. They are duplicated, and kept as long
///         as this is. A regular file that can be read is there for reading only, and each start reads for itself, from where
///         yours stands now: what one call has read is not missing in the next. Anything else is shared by all calls; so
///         give what is to be written a descriptor that is for writing only.
///
/// Raises:
///     SpawnError: There is no such command (FileNotFoundError); EMFILE; E2BIG; EINVAL: it is a relative path.
///     TypeError, ValueError: An argument cannot be what it is; the message names it.
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug)]
pub struct Sandbox {
    pub core: spawnfd::Sandbox,
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
            return Err(wrong_value(&"argv", "empty: its first item names the program"));
        };
        runnable(py, program, "argv[0]")?;
        // It looks for the program, on disks that may be slow: others need not wait for that.
        let made = py.detach(|| spawnfd::Sandbox::new(&argv));
        let mut core = made.map_err(|error| errors::exception(py, &error, Some(program)))?;
        let mut numbers = Vec::new();
        if let Some(fds) = fds {
            let expected = "a mapping of number (int) and descriptor";
            let Ok(mapping) = fds.cast::<PyMapping>() else { return Err(wrong_type(&"fds", expected, fds)) };
            for item in mapping.items()? {
                let (number, fd) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                let number: i32 = integer(&number, &"fds: number")?;
                if number < 3 {
                    return Err(wrong_value(&"fds", format_args!("{number} is a standard stream, or none")));
                }
                let fd = descriptor(&fd, &format_args!("fds[{number}]"))?;
                core = core.descriptor(fd, number).map_err(|error| errors::exception(py, &error, None))?;
                numbers.push(number);
            }
        }
        Ok(Sandbox { core, argv, numbers })
    }

    /// The command.
    #[getter]
    fn argv(&self) -> Vec<OsString> {
        self.argv.clone()
    }

    fn __repr__(&self) -> String {
        let fds = if self.numbers.is_empty() { String::new() } else { format!(" fds={:?}", self.numbers) };
        format!("<spawnfd.Sandbox {:?}{fds}>", self.argv)
    }
}

/// The sandbox an option names.
pub fn sandbox<'a, 'py>(value: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, Sandbox>> {
    value.cast::<Sandbox>().map_err(|_| wrong_type(&"sandbox", "spawnfd.Sandbox or None", value))
}
