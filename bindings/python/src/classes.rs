// SPDX-License-Identifier: MIT OR Apache-2.0
//! The classes of the package's Python half.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// One of them, looked up each time: the package can be imported anew, and who does that means the new one.
pub struct Class {
    module: &'static str,
    name: &'static str,
    /// The first, for when nothing can be imported any more, as the interpreter ends.
    first: PyOnceLock<Py<PyAny>>,
}

impl Class {
    pub const fn of(module: &'static str, name: &'static str) -> Class {
        Class { module, name, first: PyOnceLock::new() }
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
