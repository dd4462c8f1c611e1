// SPDX-License-Identifier: MIT OR Apache-2.0
//! Environments.

use std::ffi::OsString;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Env;

use crate::errors::{refused, wrong};
use crate::values::{is_absent, object, os_string};

#[napi]
pub struct NativeEnv {
    env: Env,
    /// The environment of a program on another machine, if it is another one.
    remote: Option<Env>,
}

impl NativeEnv {
    fn of(env: Env) -> NativeEnv {
        NativeEnv { env, remote: None }
    }

    fn change(&self, change: impl Fn(Env) -> Env) -> NativeEnv {
        NativeEnv { env: change(self.env.clone()), remote: self.remote.clone().map(change) }
    }
}

#[napi]
impl NativeEnv {
    /// The variables of an object; `null`: those of this process. `is_inherited`: the object has the variables of this
    /// process. A program on another machine inherits those of that machine in their place.
    #[napi(constructor)]
    pub fn new(given: Unknown<'_>, is_inherited: Option<bool>) -> Result<NativeEnv> {
        if is_absent(&given)? {
            return Ok(NativeEnv::of(Env::inherit()));
        }
        let strings = variables(&given)?.into_iter().filter_map(|(name, value)| {
            let string = [name.into_bytes(), b"=".to_vec(), value?.into_encoded_bytes()].concat();
            Some(string)
        });
        let env = Env::verbatim(strings).map_err(refused)?;
        Ok(NativeEnv { env, remote: is_inherited.unwrap_or(false).then(Env::inherit) })
    }

    #[napi]
    pub fn keep_only(&self, patterns: Vec<String>) -> NativeEnv {
        self.change(|env| env.keep_only(&patterns))
    }

    #[napi]
    pub fn deny(&self, patterns: Vec<String>) -> NativeEnv {
        self.change(|env| env.deny(&patterns))
    }

    #[napi]
    pub fn set(&self, given: Unknown<'_>) -> Result<NativeEnv> {
        let variables = variables(&given)?;
        Ok(self.change(|env| {
            variables.iter().fold(env, |env, (name, value)| match value {
                Some(value) => env.set(name, value),
                None => env.unset(name),
            })
        }))
    }

    #[napi]
    pub fn noninteractive(&self) -> NativeEnv {
        self.change(Env::noninteractive)
    }

    #[napi]
    pub fn get(&self, name: String) -> Option<String> {
        self.env.get(name).map(|value| value.to_string_lossy().into_owned())
    }

    #[napi]
    pub fn entries(&self) -> Vec<(String, String)> {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        self.env.iter().map(|(name, value)| (text(name), text(value))).collect()
    }
}

/// The environment of an option's value: one of the class, or an object of variables, or `null`. `is_remote`: the program
/// runs on another machine.
pub fn environment(value: Unknown<'_>, is_remote: bool) -> Result<Env> {
    // SAFETY: the conversion checks the class.
    match unsafe { value.cast::<ClassInstance<'_, NativeEnv>>() } {
        Ok(env) => Ok(env.remote.as_ref().filter(|_| is_remote).unwrap_or(&env.env).clone()),
        Err(_) => NativeEnv::new(value, None).map(|env| env.env),
    }
}

/// The variables of an object. `undefined` is no value.
pub fn variables(value: &Unknown<'_>) -> Result<Vec<(String, Option<OsString>)>> {
    let given = object(value, "env", "an object of strings, or null")?;
    let mut variables = Vec::new();
    for name in Object::keys(&given)? {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(wrong(format!("env: {name:?} is not a name of a variable")));
        }
        let value = given.get::<Unknown<'_>>(&name)?;
        let value = match value {
            Some(value) if !is_absent(&value)? => Some(os_string(&value, &format!("env.{name}"))?),
            _ => None,
        };
        variables.push((name, value));
    }
    Ok(variables)
}
