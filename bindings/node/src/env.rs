// SPDX-License-Identifier: MIT OR Apache-2.0
//! Environments.

use std::ffi::OsString;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Env;

use crate::errors::{refused, wrong};
use crate::values::{is_absent, object, os_string};

#[napi]
pub struct NativeEnv(Env);

#[napi]
impl NativeEnv {
    /// The variables of an object; `null`: those of this process.
    #[napi(constructor)]
    pub fn new(given: Unknown<'_>) -> Result<NativeEnv> {
        if is_absent(&given)? {
            return Ok(NativeEnv(Env::inherit()));
        }
        let strings = variables(&given)?.into_iter().filter_map(|(name, value)| {
            let string = [name.into_bytes(), b"=".to_vec(), value?.into_encoded_bytes()].concat();
            Some(string)
        });
        Env::verbatim(strings).map(NativeEnv).map_err(refused)
    }

    #[napi]
    pub fn keep_only(&self, patterns: Vec<String>) -> NativeEnv {
        NativeEnv(self.0.clone().keep_only(patterns))
    }

    #[napi]
    pub fn deny(&self, patterns: Vec<String>) -> NativeEnv {
        NativeEnv(self.0.clone().deny(patterns))
    }

    #[napi]
    pub fn set(&self, given: Unknown<'_>) -> Result<NativeEnv> {
        let changed = variables(&given)?.into_iter().fold(self.0.clone(), |env, (name, value)| match value {
            Some(value) => env.set(name, value),
            None => env.unset(name),
        });
        Ok(NativeEnv(changed))
    }

    #[napi]
    pub fn noninteractive(&self) -> NativeEnv {
        NativeEnv(self.0.clone().noninteractive())
    }

    #[napi]
    pub fn get(&self, name: String) -> Option<String> {
        self.0.get(name).map(|value| value.to_string_lossy().into_owned())
    }

    #[napi]
    pub fn entries(&self) -> Vec<(String, String)> {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        self.0.iter().map(|(name, value)| (text(name), text(value))).collect()
    }
}

/// The environment of an option's value: one of the class, or an object of variables, or `null`.
pub fn environment(value: Unknown<'_>) -> Result<Env> {
    // SAFETY: the conversion checks the class.
    match unsafe { value.cast::<ClassInstance<'_, NativeEnv>>() } {
        Ok(env) => Ok(env.0.clone()),
        Err(_) => NativeEnv::new(value).map(|env| env.0),
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
