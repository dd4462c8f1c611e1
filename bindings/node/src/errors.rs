// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the core, as JavaScript objects and exceptions.

use napi::bindgen_prelude::*;
use napi_derive::napi;

/// A start that failed. TypeScript makes a `SpawnError` of it.
#[napi(object, object_from_js = false)]
#[derive(Clone, Debug)]
pub struct Failure {
    /// One sentence for the user.
    pub message: String,
    /// Stage, call and errno, in the notation of strace.
    pub detail: String,
    /// The name of the errno.
    pub code: String,
    /// The negative errno, as in Node's errors.
    pub errno: i32,
    pub stage: String,
    /// The system call, with its arguments.
    pub syscall: String,
    /// The index of the failed action.
    pub action: Option<u32>,
}

impl From<spawnfd::Error> for Failure {
    fn from(error: spawnfd::Error) -> Failure {
        Failure {
            message: error.message().into_owned(),
            detail: error.detail(),
            code: error.errno().name().to_owned(),
            errno: -error.errno().raw(),
            stage: error.stage().name().to_owned(),
            syscall: error.call().to_owned(),
            action: error.action().map(|action| action as u32),
        }
    }
}

impl Failure {
    /// A call whose outcome the library's thread did not deliver.
    pub fn lost() -> Failure {
        Failure {
            message: "the library's thread has ended without a result".to_owned(),
            detail: String::new(),
            code: "EIO".to_owned(),
            errno: -5,
            stage: "capture".to_owned(),
            syscall: String::new(),
            action: None,
        }
    }
}

/// For each action of a command, its index in the caller's list.
#[derive(Clone, Default)]
pub struct Origins(Vec<u32>);

impl Origins {
    /// The actions up to this number are those of an item of the list.
    pub fn extend(&mut self, count: usize, item: usize) {
        self.0.resize(count, item as u32);
    }

    /// An error of the command, with the index of the action in the list.
    pub fn failure(&self, error: spawnfd::Error) -> Failure {
        let action = error.action().and_then(|own| Some((own, *self.0.get(own)?)));
        let mut failure = Failure::from(error);
        if let Some((own, item)) = action {
            failure.action = Some(item);
            failure.detail = failure.detail.replacen(&format!("action {own}:"), &format!("action {item}:"), 1);
        }
        failure
    }
}

/// An object, or why it cannot be created.
pub fn answer<T>(created: std::result::Result<T, impl Into<Failure>>) -> Result<Either<T, Failure>> {
    Ok(match created {
        Ok(created) => Either::A(created),
        Err(error) => Either::B(error.into()),
    })
}

/// An argument that is not valid. TypeScript throws a TypeError of the same text.
pub fn wrong(text: impl Into<String>) -> Error {
    Error::new(Status::InvalidArg, text.into())
}

/// The exception for an argument that the core refuses.
pub fn refused(error: spawnfd::Error) -> Error {
    wrong(error.message())
}
