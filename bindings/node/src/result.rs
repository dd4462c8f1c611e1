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
pub struct NativeResult {
    output: Arc<Output>,
    /// Where the program ran, if that was another machine.
    place: Option<String>,
}

impl NativeResult {
    pub fn new(output: impl Into<Arc<Output>>) -> NativeResult {
        NativeResult::at(output, None)
    }

    pub fn at(output: impl Into<Arc<Output>>, place: Option<String>) -> NativeResult {
        NativeResult { output: output.into(), place }
    }
}

#[napi]
impl NativeResult {
    /// The fields of the command's `--json`, as JSON: napi would make a BigInt of an integer of more than 32 bits.
    #[napi]
    pub fn fields(&self) -> Result<String> {
        Ok(serde_json::to_string(&*self.output)?)
    }

    /// The fields except `stdout`, `stderr` and `output`, as JSON. Their size does not depend on the output's.
    #[napi]
    pub fn details(&self) -> Result<String> {
        Ok(serde_json::to_string(&Details(&self.output))?)
    }

    #[napi(getter, js_name = "where")]
    pub fn place(&self) -> Option<String> {
        self.place.clone()
    }

    #[napi(getter)]
    pub fn code(&self) -> Option<i32> {
        self.output.code()
    }

    #[napi(getter)]
    pub fn signal(&self) -> Option<i32> {
        self.output.signal()
    }

    #[napi(getter)]
    pub fn stop(&self) -> &'static str {
        self.output.stop.name()
    }

    /// The output of both streams in order of arrival; null without the option `combined`. The pieces are not JSON,
    /// because V8 limits the length of a string.
    #[napi(getter)]
    pub fn output(&self) -> Option<Vec<NativePiece>> {
        let pieces = self.output.pieces()?.into_iter().map(|piece| NativePiece {
            stream: piece.stream.name(),
            text: piece.text,
            omitted: (piece.omitted > 0).then_some(piece.omitted as f64),
        });
        Some(pieces.collect())
    }

    #[napi(getter)]
    pub fn stdout<'env>(&self, env: &'env Env) -> Result<BufferSlice<'env>> {
        BufferSlice::copy_from(env, &self.output.stdout)
    }

    #[napi(getter)]
    pub fn stderr<'env>(&self, env: &'env Env) -> Result<BufferSlice<'env>> {
        BufferSlice::copy_from(env, &self.output.stderr)
    }

    /// The output as text; invalid bytes become U+FFFD.
    #[napi]
    pub fn text(&self, is_stderr: bool) -> String {
        let text = if is_stderr { self.output.stderr_text() } else { self.output.stdout_text() };
        text.into_owned()
    }

    /// The kept bytes of a stream before and after omitted ones.
    #[napi]
    pub fn part<'env>(&self, env: &'env Env, is_stderr: bool, is_tail: bool) -> Result<BufferSlice<'env>> {
        let stream = Stream::ALL[usize::from(is_stderr)];
        BufferSlice::copy_from(env, if is_tail { self.output.tail(stream) } else { self.output.head(stream) })
    }

    /// The text of the ExitError, or null if the run was ok.
    #[napi]
    pub fn failure(&self) -> Option<String> {
        self.output.check().err().map(|error| error.to_string())
    }
}
