// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python class `spawnfd.Env`: the environment of a program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyList, PyMapping, PyTuple};

use crate::arguments::{os_string, os_strings, variable, variables as all_variables, wrong_type};
use crate::classes::restored_by;

/// An immutable environment for spawns: inherited, removed and set variables.
///
/// The Env is encoded once, and every spawn reuses the encoded form. Every method returns a new Env
/// and leaves the original unchanged.
#[pyclass(frozen, module = "spawnfd", mapping)]
#[derive(Debug)]
pub struct Env(spawnfd::Env);

impl Env {
    /// Creates the Python object for an environment.
    pub fn of(env: spawnfd::Env) -> Env {
        Env(env)
    }

    /// Returns a copy that shares the encoded environment.
    pub fn core(&self) -> spawnfd::Env {
        self.0.clone()
    }

    fn patterns(value: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Vec<OsString>> {
        value.map_or(Ok(Vec::new()), |value| os_strings(value, name))
    }
}

#[pymethods]
impl Env {
    #[new]
    #[pyo3(signature = (*_args, **_options), text_signature = None)]
    fn new(_args: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> PyResult<Env> {
        Err(PyTypeError::new_err("an Env cannot be created directly; use Env.inherit(), Env.only() or Env.empty()"))
    }

    /// Returns this process's current environment without the variables that match `deny`.
    ///
    /// In a pattern `*` matches any characters and `?` matches one:
    /// `Env.inherit(deny=["*_TOKEN", "*_KEY"])`.
    ///
    /// Without a sandbox, a program of the same user can still read them in /proc/PID/environ of
    /// this process.
    ///
    /// Raises:
    ///     TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
    #[staticmethod]
    #[pyo3(signature = (*, deny = None))]
    fn inherit(deny: Option<&Bound<'_, PyAny>>) -> PyResult<Env> {
        Ok(Env(spawnfd::Env::inherit().deny(Env::patterns(deny, "deny")?)))
    }

    /// Returns only those variables of this process that match one of `patterns`.
    ///
    /// `Env.only(["PATH", "HOME", "LC_*"])`. The pattern syntax is that of inherit().
    ///
    /// Raises:
    ///     TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
    #[staticmethod]
    fn only(patterns: &Bound<'_, PyAny>) -> PyResult<Env> {
        Ok(Env(spawnfd::Env::only(Env::patterns(Some(patterns), "patterns")?)))
    }

    /// Returns an environment without variables.
    #[staticmethod]
    fn empty() -> Env {
        Env(spawnfd::Env::empty())
    }

    /// Returns a copy with one variable set: `env.set("LANG", "C.UTF-8")`.
    ///
    /// Raises:
    ///     ValueError: `name` is empty or contains "=", or `name` or `value` contains a null byte.
    ///     TypeError: `name` or `value` is neither str, bytes nor a path.
    fn set(&self, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<Env> {
        let (name, value) = variable(name, value, "env")?;
        Ok(Env(self.core().set(name, value)))
    }

    /// Returns a copy with all variables of a mapping set.
    ///
    /// Raises:
    ///     TypeError, ValueError: In the same cases as set().
    fn update(&self, variables: &Bound<'_, PyAny>) -> PyResult<Env> {
        let Ok(mapping) = variables.cast::<PyMapping>() else {
            return Err(wrong_type(&"variables", "a mapping of str", variables));
        };
        let all = all_variables(mapping, "variables")?;
        Ok(Env(all.into_iter().fold(self.core(), |env, (name, value)| env.set(name, value))))
    }

    /// Returns a copy without these variables. Absent names are ignored.
    ///
    /// Raises:
    ///     TypeError, ValueError: A name is not a str, bytes or path, or contains a null byte.
    #[pyo3(signature = (*names))]
    fn unset(&self, names: &Bound<'_, PyAny>) -> PyResult<Env> {
        Ok(Env(os_strings(names, "names")?.into_iter().fold(self.core(), spawnfd::Env::unset)))
    }

    /// Returns a copy without the variables that match one of `patterns`.
    ///
    /// Raises:
    ///     TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
    fn deny(&self, patterns: &Bound<'_, PyAny>) -> PyResult<Env> {
        Ok(Env(self.core().deny(Env::patterns(Some(patterns), "patterns")?)))
    }

    /// Returns a copy in which common tools do not prompt, page or colour their output.
    ///
    /// Sets PAGER, GIT_PAGER, MANPAGER and SYSTEMD_PAGER to "cat", GIT_TERMINAL_PROMPT=0,
    /// GIT_EDITOR, EDITOR and VISUAL to "true", DEBIAN_FRONTEND=noninteractive, PIP_NO_INPUT=1,
    /// npm_config_yes=true, NO_COLOR=1, CLICOLOR=0, TERM=dumb and CI=1. Removes the variables that
    /// force colour.
    fn noninteractive(&self) -> Env {
        Env(self.core().noninteractive())
    }

    /// Returns the value of a variable, or `default` if it is not set.
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get(os_string(name, &"name")?) {
            Some(value) => Ok(Some(value.into_pyobject(py)?.into_any())),
            None => Ok(default),
        }
    }

    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<OsString> {
        match self.0.get(os_string(name, &"name")?) {
            Some(value) => Ok(value.to_owned()),
            None => Err(PyKeyError::new_err(name.clone().unbind())),
        }
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        os_string(name, &"name").is_ok_and(|name| self.0.get(name).is_some())
    }

    fn __len__(&self) -> usize {
        self.0.iter().count()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    /// Returns the sorted names.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.iter().map(|(name, _)| name).collect::<Vec<&OsStr>>())
    }

    /// Returns the values, in the order of the names.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.iter().map(|(_, value)| value).collect::<Vec<&OsStr>>())
    }

    /// Returns pairs of name and value, in the order of the names.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.iter().collect::<Vec<_>>())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Env>().is_ok_and(|other| self.0.iter().eq(other.get().0.iter()))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = |string: &OsStr| PyBytes::new(py, string.as_bytes());
        let all: Vec<_> = self.0.iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
        restored_by(py, "restore_env", (all,))
    }

    /// Shows names only, as values may be secrets.
    fn __repr__(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|(name, _)| name.to_string_lossy()).collect();
        format!("<spawnfd.Env of {} variables: {}>", names.len(), names.join(" "))
    }
}

/// Recreates an Env from its pickled variables.
#[pyfunction]
pub fn restore_env(variables: Vec<(Vec<u8>, Vec<u8>)>) -> Env {
    let string = OsString::from_vec;
    Env(variables.into_iter().map(|(name, value)| (string(name), string(value))).collect())
}

/// Returns the environment for an Env or a mapping; for None, this process's current environment.
///
/// The caller holds the GIL. So no assignment to `os.environ` changes the C library's `environ` during the copy.
pub fn environment(value: Option<&Bound<'_, PyAny>>) -> PyResult<spawnfd::Env> {
    let Some(value) = value else { return Ok(spawnfd::Env::inherit()) };
    if let Ok(env) = value.cast::<Env>() {
        return Ok(env.get().core());
    }
    let Ok(mapping) = value.cast::<PyMapping>() else {
        return Err(wrong_type(&"env", "spawnfd.Env, a mapping of str, or None", value));
    };
    all_variables(mapping, "env").map(|variables| variables.into_iter().collect())
}
