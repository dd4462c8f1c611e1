// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts actions by the library's table of actions.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use napi::ValueType;
use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Command;
use spawnfd::internal::{Action, Argument, Kind, Value, printed};

use crate::errors::{Origins, wrong};
use crate::values::{data, is_absent, items, object, os_string, typed};

/// Copies of the caller's descriptors, which the caller may close after the call. They are open as long as the command.
pub struct Descriptors {
    copies: Vec<Arc<OwnedFd>>,
    /// The command is only printed, with the caller's numbers.
    is_dry: bool,
}

impl Descriptors {
    pub fn new() -> Descriptors {
        Descriptors { copies: Vec::new(), is_dry: false }
    }

    /// Copies a descriptor of the caller.
    pub fn copy(&mut self, value: &Unknown<'_>, name: &str) -> Result<BorrowedFd<'static>> {
        self.copy_number(number_of(value, name)?, name)
    }

    /// Copies the descriptor of this number.
    pub fn copy_number(&mut self, number: i32, name: &str) -> Result<BorrowedFd<'static>> {
        let number = if self.is_dry { number } else { self.share(number, name)?.as_raw_fd() };
        // SAFETY: `self` keeps the copy open, and is dropped after the command. A dry number is only printed.
        Ok(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Copies a descriptor of the caller, and shares the copy.
    pub fn shared(&mut self, value: &Unknown<'_>, name: &str) -> Result<Arc<OwnedFd>> {
        self.share(number_of(value, name)?, name)
    }

    fn share(&mut self, number: i32, name: &str) -> Result<Arc<OwnedFd>> {
        // SAFETY: the descriptor is only copied, which fails if it is not open.
        let own = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = own.try_clone_to_owned();
        let copy = copy.map_err(|error| wrong(format!("{name}: cannot copy descriptor {number}: {error}")))?;
        let copy = Arc::new(copy);
        self.copies.push(copy.clone());
        Ok(copy)
    }
}

fn number_of(value: &Unknown<'_>, name: &str) -> Result<i32> {
    let number: f64 = typed(value, ValueType::Number, name, "a descriptor number")?;
    if number.fract() != 0.0 || !(0.0..f64::from(i32::MAX)).contains(&number) {
        return Err(wrong(format!("{name} must be a descriptor number, got {number}")));
    }
    Ok(number as i32)
}

/// Converts a whole number, whose range the library knows.
fn number(value: &Unknown<'_>, name: &str) -> Result<i128> {
    let number: f64 = typed(value, ValueType::Number, name, "a whole number")?;
    if number.fract() != 0.0 || !number.is_finite() {
        return Err(wrong(format!("{name} must be a whole number, got {number}")));
    }
    Ok(number as i128)
}

fn value(
    argument: &Argument,
    given: &Unknown<'_>,
    name: &str,
    descriptors: &mut Descriptors,
) -> Result<Value<'static>> {
    Ok(match argument.kind {
        _ if is_absent(given)? && argument.accepts_none() => Value::None,
        Kind::Source | Kind::Cgroup | Kind::Namespace => Value::Descriptor(descriptors.copy(given, name)?),
        Kind::Path => Value::Path(os_string(given, name)?),
        Kind::Ids | Kind::Cpus | Kind::Signals => {
            let items = items(given, name, "an array of numbers")?;
            let numbers = items.iter().enumerate().map(|(index, item)| number(item, &format!("{name}[{index}]")));
            Value::Ints(numbers.collect::<Result<_>>()?)
        }
        Kind::Filter => Value::Bytes(data(given, name)?),
        _ => Value::Int(number(given, name)?),
    })
}

/// Adds a list of actions to a command: pairs of a name and an object of values. For each of the command's actions,
/// `origins` gets the index in the list.
pub fn add(
    command: &mut Command<'static>,
    list: &Unknown<'_>,
    descriptors: &mut Descriptors,
    origins: &mut Origins,
) -> Result<()> {
    for (index, item) in items(list, "actions", "an array of actions")?.iter().enumerate() {
        let unknown = || wrong(format!("actions[{index}] must be an Action, as the functions of `actions` return"));
        let pair = items(item, "", "").map_err(|_| unknown())?;
        let [name, values] = &pair[..] else { return Err(unknown()) };
        let name: String = typed(name, ValueType::String, "", "").map_err(|_| unknown())?;
        let row = Action::find(&name).ok_or_else(unknown)?;
        let values = object(values, "", "").map_err(|_| unknown())?;
        let shown = format!("actions[{index}]: {name}");
        let mut converted = Vec::new();
        for (place, argument) in row.arguments.iter().enumerate() {
            let given = values.get::<Unknown<'_>>(argument.name)?.ok_or_else(unknown)?;
            let mut value = value(argument, &given, &format!("{shown}.{}", argument.name), descriptors)?;
            // The same number as that of the caller's descriptor, of which the library gets a copy.
            if let (Value::None, "descriptor", 1) = (&value, &*name, place) {
                let source = values.get::<Unknown<'_>>("source")?.ok_or_else(unknown)?;
                value = Value::Int(number(&source, &shown)?);
            }
            converted.push(value);
        }
        row.add(command, &converted).map_err(|error| wrong(error.text(&shown)))?;
        origins.extend(command.action_count(), index);
    }
    Ok(())
}

/// The actions as system calls, for tests.
#[napi]
pub fn printed_actions(actions: Unknown<'_>) -> Result<Vec<String>> {
    let (mut command, mut descriptors) = (Command::new("/"), Descriptors { is_dry: true, ..Descriptors::new() });
    add(&mut command, &actions, &mut descriptors, &mut Origins::default())?;
    Ok(printed(&command))
}
