// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that confine the program which they start.

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::sandbox::Sandbox;

use crate::actions::Descriptors;
use crate::errors::{Failure, refused, wrong};
use crate::values::{object, strings};

#[napi]
pub struct NativeSandbox(Sandbox);

impl NativeSandbox {
    pub fn native(&self) -> &Sandbox {
        &self.0
    }
}

/// Creates a sandbox from a command and its descriptors: an object of numbers in the command and the caller's descriptors.
#[napi]
pub fn sandbox(argv: Unknown<'_>, fds: Unknown<'_>) -> Result<Either<NativeSandbox, Failure>> {
    let argv = strings(&argv, "argv")?;
    if argv.is_empty() {
        return Err(wrong("argv must not be empty; its first item names the command"));
    }
    let mut sandbox = match Sandbox::new(argv) {
        Ok(sandbox) => sandbox,
        Err(error) => return Ok(Either::B(Failure::from(error))),
    };
    let fds = object(&fds, "fds", "an object of descriptor numbers")?;
    let mut descriptors = Descriptors::new();
    for key in Object::keys(&fds)? {
        let name = format!("fds[{key}]");
        let number = key.parse().map_err(|_| wrong(format!("fds: {key:?} must be a descriptor number")))?;
        let Some(value) = fds.get::<Unknown<'_>>(&key)? else { continue };
        let fd = descriptors.copy(&value, &name)?;
        sandbox = sandbox.descriptor(fd, number).map_err(refused)?;
    }
    Ok(Either::A(NativeSandbox(sandbox)))
}
