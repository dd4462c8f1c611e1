// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates the classes of `spawnfd.actions` into calls of the command builder.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spawnfd::Command;
use spawnfd::command::{CapabilitySets, FilterInstruction, Namespaces, OpenHow};
use spawnfd::signal::SignalSet;

use crate::arguments::{descriptor, descriptor_number, integer, os_string, sequence, wrong_type, wrong_value};
use crate::classes::PythonClass;
use crate::errors::Origin;

/// One action during its translation: the action's fields by name, and the names for errors.
struct ActionFields<'a, 'py> {
    action: &'a Bound<'py, PyAny>,
    index: usize,
    class: String,
    /// The path field, if the action has one.
    path: OnceCell<OsString>,
}

struct FieldName<'a, 'b, 'py>(&'a ActionFields<'b, 'py>, &'static str);

impl Display for FieldName<'_, '_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "actions[{}]: {}.{}", self.0.index, self.0.class, self.1)
    }
}

impl<'py> ActionFields<'_, 'py> {
    fn get(&self, field: &'static str) -> PyResult<Bound<'py, PyAny>> {
        self.action.getattr(field)
    }

    fn optional(&self, field: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.get(field).map(|value| (!value.is_none()).then_some(value))
    }

    fn name(&self, field: &'static str) -> FieldName<'_, '_, 'py> {
        FieldName(self, field)
    }

    fn int<T>(&self, field: &'static str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        integer(&self.get(field)?, &self.name(field))
    }

    fn fd(&self, field: &'static str) -> PyResult<std::os::fd::BorrowedFd<'static>> {
        descriptor(&self.get(field)?, &self.name(field))
    }

    fn path(&self, field: &'static str) -> PyResult<&OsStr> {
        let path = os_string(&self.get(field)?, &self.name(field))?;
        Ok(self.path.get_or_init(|| path))
    }

    fn ints<T>(&self, field: &'static str) -> PyResult<Vec<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let name = self.name(field).to_string();
        sequence(&self.get(field)?, &name, "a sequence of int")?.iter().map(|item| integer(item, &name)).collect()
    }

    fn signals(&self, field: &'static str) -> PyResult<SignalSet> {
        let mut set = SignalSet::EMPTY;
        for signal in self.ints::<i32>(field)? {
            set = set
                | SignalSet::of(signal)
                    .ok_or_else(|| wrong_value(&self.name(field), format_args!("{signal} is not a signal number")))?;
        }
        Ok(set)
    }

    /// Returns a resource limit. None and RLIM_INFINITY (-1) mean unlimited.
    fn limit(&self, field: &'static str) -> PyResult<Option<u64>> {
        match self.optional(field)? {
            Some(value) if value.extract::<i64>().is_ok_and(|value| value == -1) => Ok(None),
            Some(value) => integer(&value, &self.name(field)).map(Some),
            None => Ok(None),
        }
    }

    fn filter(&self, field: &'static str) -> PyResult<Vec<FilterInstruction>> {
        filter_of(&self.get(field)?, &self.name(field))
    }
}

/// Converts a Python value to a seccomp filter.
///
/// # Errors
/// TypeError, ValueError: the value is not a filter.
pub fn filter_of(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<Vec<FilterInstruction>> {
    let expected = "bytes of struct sock_filter (8 each)";
    let Ok(bytes) = value.cast::<PyBytes>() else { return Err(wrong_type(&name, expected, value)) };
    let (instructions, []) = bytes.as_bytes().as_chunks::<8>() else {
        return Err(wrong_value(&name, format_args!("expected {expected}, got {} bytes", bytes.as_bytes().len())));
    };
    if !(1..=4096).contains(&instructions.len()) {
        return Err(wrong_value(&name, format_args!("must have 1 to 4096 instructions, got {}", instructions.len())));
    }
    Ok(instructions.iter().map(FilterInstruction::from_bytes).collect())
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
        if !action.is_instance(&class)? {
            return Err(wrong_type(&format_args!("actions[{index}]"), "one of spawnfd.actions", action));
        }
        // Do not use Display here: it runs signal handlers and cannot return their exceptions.
        let class = action.get_type().name()?.to_str()?.to_owned();
        let fields = ActionFields { action, index, class, path: OnceCell::new() };
        add_one(command, &fields)?;
        origins.resize(command.action_count(), Origin::Action(index, fields.path.into_inner()));
    }
    Ok(())
}

fn add_one(command: &mut Command<'static>, fields: &ActionFields<'_, '_>) -> PyResult<()> {
    match fields.class.as_str() {
        "Descriptor" => {
            let number = descriptor_number(&fields.get("source")?, &fields.name("source"))?;
            let to = if fields.optional("to")?.is_some() { fields.int("to")? } else { number };
            command.descriptor(fields.fd("source")?, to)
        }
        "Dup2" => command.dup2(fields.int::<i32>("number")?, fields.int::<i32>("to")?),
        "Close" => command.close(fields.int::<i32>("number")?),
        "CloseRange" => command.close_range(fields.int("first")?, fields.int("last")?),
        "Open" => {
            const O_TMPFILE: u64 = 0o20000000;
            const O_CREAT: u64 = 0o100;
            let flags: u64 = fields.int("flags")?;
            // openat2 refuses a nonzero mode unless the flags create a file.
            let mode = if flags & (O_CREAT | O_TMPFILE) == 0 { 0 } else { fields.int("mode")? };
            let how = OpenHow::new(flags).mode(mode).resolve(fields.int("resolve")?);
            let to: i32 = fields.int("to")?;
            match fields.optional("dir")? {
                Some(_) => command.open_at(fields.fd("dir")?, fields.path("path")?, how, to),
                None => command.open(fields.path("path")?, how, to),
            }
        }
        "Chdir" => command.chdir(fields.path("path")?),
        "Fchdir" => command.fchdir(fields.fd("dir")?),
        "Chroot" => command.chroot(fields.path("path")?),
        "Umask" => command.umask(fields.int("mask")?),
        "Setsid" => command.setsid(),
        "ProcessGroup" => command.process_group(fields.int("group")?),
        "Foreground" => command.foreground(fields.int::<i32>("number")?),
        "ControllingTerminal" => command.controlling_terminal(fields.int::<i32>("number")?),
        "Limit" => command.limit(fields.int("resource")?, fields.limit("soft")?, fields.limit("hard")?),
        "Nice" => command.nice(fields.int("value")?),
        "Scheduler" => command.scheduler(fields.int("policy")?, fields.int("priority")?),
        "Affinity" => command.affinity(fields.ints::<usize>("cpus")?),
        "Uid" => command.uid(fields.int("uid")?),
        "Gid" => command.gid(fields.int("gid")?),
        "UserIds" => command.user_ids(id(fields, "real")?, id(fields, "effective")?, id(fields, "saved")?),
        "GroupIds" => command.group_ids(id(fields, "real")?, id(fields, "effective")?, id(fields, "saved")?),
        "Groups" => command.groups(fields.ints::<u32>("groups")?),
        "Capabilities" => {
            let mut sets = CapabilitySets::new();
            sets.effective = fields.int("effective")?;
            sets.permitted = fields.int("permitted")?;
            sets.inheritable = fields.int("inheritable")?;
            sets.bounding = fields.int("bounding")?;
            sets.ambient = fields.int("ambient")?;
            command.capabilities(sets)
        }
        "NoNewPrivs" => command.no_new_privs(),
        "Cgroup" => command.cgroup(fields.fd("dir")?),
        "JoinNamespace" => command.join_namespace(fields.fd("namespace")?, fields.int("kinds")?),
        "OomScoreAdj" => command.oom_score_adj(fields.int("value")?),
        "Landlock" => command.landlock(fields.fd("ruleset")?),
        "InheritDescriptors" => command.inherit_descriptors(true),
        "InheritSignals" => command.inherit_signals(),
        "SignalMask" => command.signal_mask(fields.signals("blocked")?),
        "DefaultSignals" => command.default_signals(fields.signals("signals")?),
        "ParentDeathSignal" => {
            let signal: i32 = fields.int("signal")?;
            if SignalSet::of(signal).is_none() {
                return Err(wrong_value(&fields.name("signal"), format_args!("{signal} is not a signal number")));
            }
            command.parent_death_signal(signal)
        }
        "Namespaces" => {
            let kinds: u32 = fields.int("kinds")?;
            let Some(namespaces) = Namespaces::from_flags(kinds) else {
                let reason = format!(
                    "{kinds:#x} has flags other than CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET and NEWCGROUP; \
                     for a user namespace use UserNamespace"
                );
                return Err(wrong_value(&fields.name("kinds"), reason));
            };
            command.namespaces(namespaces)
        }
        "UserNamespace" => command.user_namespace(fields.int("uid")?, fields.int("gid")?),
        "Seccomp" => command.seccomp(fields.filter("filter")?),
        _ => {
            return Err(wrong_type(
                &format_args!("actions[{}]", fields.index),
                "one of spawnfd.actions",
                fields.action,
            ));
        }
    };
    Ok(())
}

/// Returns the user or group id to set. For None the result is (uid_t)-1, and the kernel leaves the id unchanged.
fn id(fields: &ActionFields<'_, '_>, field: &'static str) -> PyResult<u32> {
    const UNCHANGED: u32 = u32::MAX;
    if fields.optional(field)?.is_none() {
        return Ok(UNCHANGED);
    }
    match fields.int(field)? {
        UNCHANGED => Err(wrong_value(&fields.name(field), format_args!("{UNCHANGED} is out of range"))),
        id => Ok(id),
    }
}
