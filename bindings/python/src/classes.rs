// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookup of the package's Python classes and functions by name.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

/// A class or function of the package's Python part. Each use looks it up by name again, because an application may
/// re-import the package and then expects the new class.
pub struct PythonClass {
    module: &'static str,
    name: &'static str,
    /// The result of the first lookup. It replaces a lookup that fails because the interpreter is ending.
    first: PyOnceLock<Py<PyAny>>,
}

impl PythonClass {
    pub const fn of(module: &'static str, name: &'static str) -> PythonClass {
        PythonClass { module, name, first: PyOnceLock::new() }
    }

    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match py.import(self.module).and_then(|module| module.getattr(self.name)) {
            Ok(class) => {
                self.first.get_or_init(py, || class.clone().unbind());
                Ok(class)
            }
            Err(error) if error.is_instance_of::<PyImportError>(py) => {
                self.first.get(py).map(|class| class.bind(py).clone()).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// Builds the result of `__reduce__`: a function of the native module, and its arguments.
pub fn restored_by<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl IntoPyObject<'py, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
) -> PyResult<Bound<'py, PyAny>> {
    let restore = py.import("spawnfd._spawnfd")?.getattr(function)?;
    let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
    Ok((restore, arguments).into_pyobject(py)?.into_any())
}
