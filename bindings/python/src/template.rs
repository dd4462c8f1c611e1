// SPDX-License-Identifier: MIT OR Apache-2.0
//! The native parts of Template and TemplateCache.

use std::ffi::{OsStr, OsString};

use pyo3::prelude::*;

use crate::arguments::{check_program, descriptor, integer, is_plain, os_string, wrong_type};
use crate::errors;

/// A pinned executable. If it has a Warm, the program starts from that Warm's parked processes.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Template(pub spawnfd::Template, pub Option<spawnfd::Warm>);

impl Template {
    pub fn command<'fd>(&self) -> spawnfd::Command<'fd> {
        with_warm(self.0.command(), self.1.as_ref())
    }
}

impl From<spawnfd::Template> for Template {
    fn from(template: spawnfd::Template) -> Template {
        Template(template, None)
    }
}

fn with_warm<'fd>(mut command: spawnfd::Command<'fd>, warm: Option<&spawnfd::Warm>) -> spawnfd::Command<'fd> {
    if let Some(warm) = warm {
        command.warm(warm);
    }
    command
}

/// Converts a program's name or absolute path. Refuses a descriptor.
fn program_name(value: &Bound<'_, PyAny>) -> PyResult<OsString> {
    let program = os_string(value, &"program")?;
    check_program(value.py(), &program, "program")?;
    Ok(program)
}

/// Returns the PATH to search: the value of `path`, or the PATH of this process.
fn search_path(path: Option<&Bound<'_, PyAny>>) -> PyResult<OsString> {
    match path {
        Some(path) if is_plain(path) => os_string(path, &"path"),
        Some(path) => Err(wrong_type(&"path", "str or bytes, as in PATH", path)),
        None => Ok(std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())),
    }
}

#[pymethods]
impl Template {
    #[new]
    #[pyo3(signature = (program, path = None))]
    fn new(py: Python<'_>, program: &Bound<'_, PyAny>, path: Option<&Bound<'_, PyAny>>) -> PyResult<Template> {
        let (name, path) = (program_name(program)?, search_path(path)?);
        py.detach(|| spawnfd::Template::search(&name, &path))
            .map(Template::from)
            .map_err(|error| errors::exception(py, &error, Some(&name)))
    }

    #[staticmethod]
    fn from_fd(py: Python<'_>, fd: &Bound<'_, PyAny>) -> PyResult<Template> {
        let fd = descriptor(fd, &"fd")?;
        py.detach(|| spawnfd::Template::from_descriptor(fd))
            .map(Template::from)
            .map_err(|error| errors::exception(py, &error, None))
    }

    fn by_descriptor(&self, py: Python<'_>) -> PyResult<Template> {
        self.0.by_descriptor().map(Template::from).map_err(|error| errors::exception(py, &error, Some(self.0.name())))
    }

    fn revalidate(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.revalidate()).map_err(|error| errors::exception(py, &error, Some(self.0.name())))
    }

    #[getter]
    fn path(&self) -> Option<&OsStr> {
        self.0.path().map(|path| path.as_os_str())
    }

    #[getter]
    fn name(&self) -> &OsStr {
        self.0.name()
    }

    #[getter]
    fn interpreters(&self) -> Vec<&OsStr> {
        self.0.interpreters().map(|path| path.as_os_str()).collect()
    }
}

/// A cache that creates templates on demand, and the Warm that keeps their programs warm.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct TemplateCache(pub spawnfd::template::TemplateCache, pub Option<spawnfd::Warm>);

impl TemplateCache {
    pub fn command<'fd>(&self, name: &OsStr) -> spawnfd::Command<'fd> {
        with_warm(self.0.command(name), self.1.as_ref())
    }
}

#[pymethods]
impl TemplateCache {
    #[new]
    fn new(capacity: &Bound<'_, PyAny>) -> PyResult<TemplateCache> {
        Ok(TemplateCache(spawnfd::template::TemplateCache::new(integer(capacity, &"capacity")?), None))
    }

    /// Returns the process-wide cache.
    #[staticmethod]
    fn shared() -> TemplateCache {
        TemplateCache(spawnfd::template::TemplateCache::global().clone(), None)
    }

    #[pyo3(signature = (program, path = None))]
    fn get(&self, py: Python<'_>, program: &Bound<'_, PyAny>, path: Option<&Bound<'_, PyAny>>) -> PyResult<Template> {
        let (name, path) = (program_name(program)?, search_path(path)?);
        py.detach(|| self.0.get(&name, Some(&path)))
            .map(|template| Template(template, self.1.clone()))
            .map_err(|error| errors::exception(py, &error, Some(&name)))
    }

    fn clear(&self) {
        self.0.clear();
    }

    /// Returns hits, misses, renewed, evicted and entries.
    fn stats(&self) -> (u64, u64, u64, u64, usize) {
        let stats = self.0.stats();
        (stats.hits, stats.misses, stats.renewed, stats.evicted, stats.entries)
    }
}
