// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a builder, and its form in a record.

use std::ffi::CString;

use serde::{Deserialize, Serialize};
use spawnfd_sys::Errno;
use spawnfd_sys::spawn_abi::*;

use super::action::{self, Action, NAMESPACES};
use crate::copy;

/// The program of a builder. A builder has at most one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Program {
    /// A path.
    Path(CString),
    /// A name to search for, or a path with a slash.
    Name(CString),
    /// The number of the caller's descriptor.
    Descriptor(i32),
}

/// The values of all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Config {
    pub(super) program: Option<Program>,
    pub(super) search_path: Option<CString>,
    pub(super) argv: Option<Vec<CString>>,
    pub(super) envp: Option<Vec<CString>>,
    pub(super) actions: Vec<Action>,
    pub(super) cwd: Option<i32>,
    pub(super) cgroup: Option<i32>,
    pub(super) namespaces: u32,
}

impl Config {
    /// Performs one call of `spawnfd_builder_config`.
    ///
    /// # Errors
    /// The errors of that function. The configuration is unchanged.
    ///
    /// # Safety
    /// `value` is 0 or the address of data as the command needs it.
    pub(super) unsafe fn set(&mut self, command: u32, key: u32, value: u64, aux: i32) -> Result<(), Errno> {
        // SAFETY: the caller guarantees the data of the command.
        unsafe {
            match (command, key, value, aux) {
                (PIDFD_CONFIG_RESET, _, 0, 0) => return self.reset(key),
                (PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, _, 0) => {
                    self.program = Some(Program::Path(path(value)?));
                }
                (PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_NAME, _, 0) => {
                    self.program = Some(Program::Name(path(value)?));
                }
                (PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_SEARCH_PATH, _, 0) => {
                    self.search_path = Some(copy::string(value, copy::MAX_STRING, Errno::E2BIG)?);
                }
                (PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV, _, 0) => {
                    let argv = copy::strings(value)?;
                    self.argv = Some(Some(argv).filter(|argv| !argv.is_empty()).ok_or(Errno::EINVAL)?);
                }
                (PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ENVP, _, 0) => self.envp = Some(copy::strings(value)?),
                (PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, _, size) => self.set_actions(value, size)?,
                (PIDFD_CONFIG_SET_FD, PIDFD_CONFIG_KEY_EXEC_FD, 0, fd) => {
                    self.program = Some(Program::Descriptor(number(fd)?));
                }
                (PIDFD_CONFIG_SET_FD, PIDFD_CONFIG_KEY_CWD, 0, fd) => self.cwd = Some(number(fd)?),
                (PIDFD_CONFIG_SET_FD, PIDFD_CONFIG_KEY_CGROUP, 0, fd) => self.cgroup = Some(number(fd)?),
                (PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, 0, flags) if flags as u32 & !NAMESPACES == 0 => {
                    self.namespaces = flags as u32;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(())
    }

    fn reset(&mut self, key: u32) -> Result<(), Errno> {
        match key {
            PIDFD_CONFIG_KEY_ALL => *self = Config::default(),
            PIDFD_CONFIG_KEY_PATH => _ = self.program.take_if(|program| matches!(program, Program::Path(_))),
            PIDFD_CONFIG_KEY_NAME => _ = self.program.take_if(|program| matches!(program, Program::Name(_))),
            PIDFD_CONFIG_KEY_EXEC_FD => _ = self.program.take_if(|program| matches!(program, Program::Descriptor(_))),
            PIDFD_CONFIG_KEY_SEARCH_PATH => self.search_path = None,
            PIDFD_CONFIG_KEY_ARGV => self.argv = None,
            PIDFD_CONFIG_KEY_ENVP => self.envp = None,
            PIDFD_CONFIG_KEY_ACTIONS => self.actions.clear(),
            PIDFD_CONFIG_KEY_CWD => self.cwd = None,
            PIDFD_CONFIG_KEY_CGROUP => self.cgroup = None,
            PIDFD_CONFIG_KEY_NAMESPACES => self.namespaces = 0,
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Sets the actions, and stores the index of a refused action in the list.
    ///
    /// # Safety
    /// `value` is 0, or the address of a list of this size, which is valid for writes, and whose actions are valid.
    unsafe fn set_actions(&mut self, value: u64, size: i32) -> Result<(), Errno> {
        let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the caller guarantees the list.
        let list: SpawnActionList = unsafe { copy::extensible(value, size) }?;
        if list.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        action::check_list(list.actions, list.nr_actions, list.action_size)?;
        let store = |failed: i32| {
            // SAFETY: the address is not 0, so the caller guarantees the list.
            unsafe { (&raw mut (*(value as usize as *mut SpawnActionList)).failed).write_unaligned(failed) };
        };
        store(SPAWN_FAILED_SETUP);
        // SAFETY: the caller guarantees the actions.
        let copied = unsafe { action::copy_all(list.actions, list.nr_actions, list.action_size) };
        self.actions = copied.map_err(|(index, errno)| {
            store(index as i32);
            errno
        })?;
        Ok(())
    }

    /// Encodes the configuration for a record.
    pub(super) fn encode(&self) -> Vec<u8> {
        // Only a value that cannot tell its length has no encoding.
        postcard::to_extend(self, Vec::new()).unwrap_or_default()
    }

    /// Decodes the contents of a record. `None` if this version of the library has not encoded them.
    pub(super) fn decode(contents: &[u8]) -> Option<Config> {
        postcard::from_bytes(contents).ok()
    }
}

/// Checks the number of a descriptor.
///
/// # Errors
/// EBADF: the number is negative.
fn number(fd: i32) -> Result<i32, Errno> {
    if fd < 0 { Err(Errno::EBADF) } else { Ok(fd) }
}

/// Copies the path or the name of a program.
///
/// # Errors
/// EFAULT: the address is NULL. ENAMETOOLONG. ENOENT: the string is empty.
///
/// # Safety
/// The address is 0 or that of a C string.
pub(super) unsafe fn path(address: u64) -> Result<CString, Errno> {
    // SAFETY: the caller guarantees the string.
    let path = unsafe { copy::string(address, copy::MAX_PATH, Errno::ENAMETOOLONG) }?;
    if path.is_empty() { Err(Errno::ENOENT) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_its_encoding() {
        let action = |data: &[u8]| Action {
            kind: SPAWN_ACTION_OPEN,
            flags: 0,
            fd: libc::AT_FDCWD,
            newfd: 7,
            arg: 1 << 40,
            data: data.to_vec(),
        };
        let whole = Config {
            program: Some(Program::Name(c"cat".to_owned())),
            search_path: Some(c"".to_owned()),
            argv: Some(vec![c"cat".to_owned(), c"".to_owned()]),
            envp: Some(Vec::new()),
            actions: vec![action(&[1, 2, 3]), action(&[])],
            cwd: Some(0),
            cgroup: Some(i32::MAX),
            namespaces: NAMESPACES,
        };
        let descriptor = Config { program: Some(Program::Descriptor(5)), ..Config::default() };
        for config in [Config::default(), descriptor, whole] {
            let encoded = config.encode();
            assert_eq!(Config::decode(&encoded), Some(config));
            assert_eq!(Config::decode(&encoded[..encoded.len() - 1]), None);
        }
    }
}
