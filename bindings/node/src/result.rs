// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run. TypeScript's `Result` reads its fields.

use std::sync::Arc;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Output;
use spawnfd::internal::Details;
use spawnfd::job::Stream;

#[napi]
pub struct NativeResult(Arc<Output>);

impl NativeResult {
    pub fn new(output: impl Into<Arc<Output>>) -> NativeResult {
        NativeResult(output.into())
    }
}

#[napi]
impl NativeResult {
    /// The fields of the command's `--json`, as JSON: napi would make a BigInt of an integer of more than 32 bits.
    #[napi]
    pub fn fields(&self) -> Result<String> {
        Ok(serde_json::to_string(&*self.0)?)
    }

    /// The fields except the text of both streams, as JSON.
    #[napi]
    pub fn details(&self) -> Result<String> {
        Ok(serde_json::to_string(&Details(&self.0))?)
    }

    #[napi(getter)]
    pub fn stdout<'env>(&self, env: &'env Env) -> Result<BufferSlice<'env>> {
        BufferSlice::copy_from(env, &self.0.stdout)
    }

    #[napi(getter)]
    pub fn stderr<'env>(&self, env: &'env Env) -> Result<BufferSlice<'env>> {
        BufferSlice::copy_from(env, &self.0.stderr)
    }

    /// The output as text; invalid bytes become U+FFFD.
    #[napi]
    pub fn text(&self, is_stderr: bool) -> String {
        let text = if is_stderr { self.0.stderr_text() } else { self.0.stdout_text() };
        text.into_owned()
    }

    /// The kept bytes of a stream before and after omitted ones.
    #[napi]
    pub fn part<'env>(&self, env: &'env Env, is_stderr: bool, is_tail: bool) -> Result<BufferSlice<'env>> {
        let stream = Stream::ALL[usize::from(is_stderr)];
        BufferSlice::copy_from(env, if is_tail { self.0.tail(stream) } else { self.0.head(stream) })
    }

    /// The text of the ExitError, or null if the run was ok.
    #[napi]
    pub fn failure(&self) -> Option<String> {
        self.0.check().err().map(|error| error.to_string())
    }
}
