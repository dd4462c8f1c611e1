// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs to their end.

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::options::Call;

use crate::errors::{Failure, answer};
use crate::queue::Queue;
use crate::request::Request;
use crate::result::NativeResult;
use crate::warm::NativeWarm;

/// Runs a program. The library's thread starts it, and the queue gets the outcome under `key`.
#[napi]
pub fn run(queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Option<Failure>> {
    let request = Request::new(&argv, &options, Call::Run)?;
    Ok(queue.begin(key, |stop| async move { request.run(stop).await.map(NativeResult::new) }))
}

/// Runs a program to its end in the calling thread.
#[napi]
pub fn run_sync(argv: Unknown<'_>, options: Object<'_>) -> Result<Either<NativeResult, Failure>> {
    answer(Request::new(&argv, &options, Call::Run)?.run_sync().map(NativeResult::new))
}

/// How a run would start.
#[napi(object, object_from_js = false)]
pub struct NativeExplanation {
    pub started: String,
    pub saves: f64,
    pub meaning: Option<&'static str>,
    pub remedy: Option<&'static str>,
    pub text: String,
}

/// Finds out how a run would start.
#[napi]
pub fn explain(
    warm: &NativeWarm,
    argv: Unknown<'_>,
    options: Object<'_>,
) -> Result<Either<NativeExplanation, Failure>> {
    let explained = Request::new(&argv, &options, Call::Run)?.explain(warm.open()?);
    answer(explained.map(|explanation| NativeExplanation {
        started: explanation.started.name().into_owned(),
        saves: explanation.saves.as_secs_f64() * 1000.0,
        meaning: explanation.meaning(),
        remedy: explanation.remedy(),
        text: explanation.to_string(),
    }))
}
