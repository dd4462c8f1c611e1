// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run. TypeScript's `Result` reads its fields.

use std::sync::Arc;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Output;
use spawnfd::internal::Details;
use spawnfd::job::Stream;

/// A piece of a combined run's output.
#[napi(object, object_from_js = false)]
pub struct NativePiece {
    pub stream: &'static str,
    pub text: String,
    pub omitted: Option<f64>,
}

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

    /// The fields except `stdout`, `stderr` and `output`, as JSON. Their size does not depend on the output's.
    #[napi]
    pub fn details(&self) -> Result<String> {
        Ok(serde_json::to_string(&Details(&self.0))?)
    }

    #[napi(getter)]
    pub fn code(&self) -> Option<i32> {
        self.0.code()
    }

    #[napi(getter)]
    pub fn signal(&self) -> Option<i32> {
        self.0.signal()
    }

    #[napi(getter)]
    pub fn stop(&self) -> &'static str {
        self.0.stop.name()
    }

    /// The output of both streams in order of arrival; null without the option `combined`. The pieces are not JSON,
    /// because V8 limits the length of a string.
    #[napi(getter)]
    pub fn output(&self) -> Option<Vec<NativePiece>> {
        let pieces = self.0.pieces()?.into_iter().map(|piece| NativePiece {
            stream: piece.stream.name(),
            text: piece.text,
            omitted: (piece.omitted > 0).then_some(piece.omitted as f64),
        });
        Some(pieces.collect())
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
