// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates the classes of `spawnfd.actions` by the library's table of actions.

use std::ffi::OsString;
use std::fmt::Display;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spawnfd::Command;
use spawnfd::command::FilterInstruction;
use spawnfd::internal::{Action, Argument, Kind, Value, filter};

use crate::arguments::{descriptor, integer, os_string, sequence, wrong_type, wrong_value};
use crate::classes::PythonClass;
use crate::errors::Origin;

/// Converts a Python value to a seccomp filter.
///
/// # Errors
/// TypeError, ValueError: the value is not a filter.
pub fn filter_of(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<Vec<FilterInstruction>> {
    filter(filter_bytes(value, name)?.as_bytes()).map_err(|reason| wrong_value(name, reason))
}

fn filter_bytes<'a, 'py>(value: &'a Bound<'py, PyAny>, name: &dyn Display) -> PyResult<&'a Bound<'py, PyBytes>> {
    value.cast().map_err(|_| wrong_type(name, "bytes of struct sock_filter (8 each)", value))
}

/// Converts an int for the library, which knows the argument's range.
fn number(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<i128> {
    integer::<i64>(value, name).map(i128::from).or_else(|_| integer(value, name))
}

/// Converts the value of an argument.
fn value(argument: &Argument, given: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<Value<'static>> {
    Ok(match argument.kind {
        _ if given.is_none() && argument.accepts_none() => Value::None,
        Kind::Source | Kind::Cgroup | Kind::Namespace => Value::Descriptor(descriptor(given, name)?),
        Kind::Path => Value::Path(os_string(given, name)?),
        Kind::Ids | Kind::Cpus | Kind::Signals => {
            let items = sequence(given, &name.to_string(), "a sequence of int")?;
            Value::Ints(items.iter().map(|item| number(item, name)).collect::<PyResult<_>>()?)
        }
        Kind::Filter => Value::Bytes(filter_bytes(given, name)?.as_bytes().to_vec()),
        _ => Value::Int(number(given, name)?),
    })
}

/// Adds the caller's list of actions to a command. For each of the command's actions, `origins` gets the action's
/// index in that list.
///
/// # Errors
/// TypeError, ValueError: a field has an invalid value. The core makes further checks when it starts the command, and
/// its errors have the action's index.
pub fn add(command: &mut Command<'static>, list: &Bound<'_, PyAny>, origins: &mut Vec<Origin>) -> PyResult<()> {
    static ACTION: PythonClass = PythonClass::of("spawnfd.actions", "Action");
    let expected = "a sequence of spawnfd.actions";
    let class = ACTION.get(list.py())?;
    for (index, action) in sequence(list, "actions", expected)?.iter().enumerate() {
        let unknown = || wrong_type(&format_args!("actions[{index}]"), "one of spawnfd.actions", action);
        if !action.is_instance(&class)? {
            return Err(unknown());
        }
        // Do not use Display here: it runs signal handlers and cannot return their exceptions.
        let class = action.get_type().name()?;
        let class = class.to_str()?;
        let row = Action::of_class(class).ok_or_else(unknown)?;
        let path = add_one(command, row, action, &format_args!("actions[{index}]: {class}"))?;
        origins.resize(command.action_count(), Origin::Action(index, path));
    }
    Ok(())
}

/// Adds an action to a command, and returns the path that it names.
fn add_one(
    command: &mut Command<'static>,
    row: &Action,
    action: &Bound<'_, PyAny>,
    name: &dyn Display,
) -> PyResult<Option<OsString>> {
    let field = |argument: &Argument| {
        let given = action.getattr(argument.name)?;
        value(argument, &given, &format_args!("{name}.{}", argument.name))
    };
    let values = row.arguments.iter().map(field).collect::<PyResult<Vec<_>>>()?;
    row.add(command, &values).map_err(|wrong| pyo3::exceptions::PyValueError::new_err(wrong.text(name)))?;
    Ok(values.into_iter().find_map(|value| if let Value::Path(path) = value { Some(path) } else { None }))
}

/// The actions as system calls, for tests.
#[pyfunction]
pub fn printed_actions(actions: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let mut command = Command::new("/");
    add(&mut command, actions, &mut Vec::new())?;
    Ok(spawnfd::internal::printed(&command))
}
