// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs to their end.

use std::sync::Arc;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::options::Call;

use crate::errors::Failure;
use crate::queue::{Outcome, Queue};
use crate::request::Request;
use crate::result::NativeResult;
use crate::warm::NativeWarm;

/// Runs a program. The library's thread starts it, and the queue gets the outcome under `key`.
#[napi]
pub fn run(queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Option<Failure>> {
    let request = Request::new(&argv, &options, Call::Run)?;
    let driven = queue.shared().drive(key, |stop| async move {
        match request.run(stop.wait()).await {
            Ok(output) => Outcome::of(NativeResult::new(Arc::new(output))),
            Err(failure) => Outcome::of(failure),
        }
    });
    Ok(driven.err().map(|error| Failure::from(&error)))
}

/// Runs a program to its end in the calling thread.
#[napi]
pub fn run_sync(argv: Unknown<'_>, options: Object<'_>) -> Result<Either<NativeResult, Failure>> {
    Ok(match Request::new(&argv, &options, Call::Run)?.run_sync() {
        Ok(output) => Either::A(NativeResult::new(Arc::new(output))),
        Err(failure) => Either::B(failure),
    })
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
    Ok(match Request::new(&argv, &options, Call::Run)?.explain(warm.open()?) {
        Ok(explanation) => Either::A(NativeExplanation {
            started: explanation.started.name().into_owned(),
            saves: explanation.saves.as_secs_f64() * 1000.0,
            meaning: explanation.meaning(),
            remedy: explanation.remedy(),
            text: explanation.to_string(),
        }),
        Err(failure) => Either::B(failure),
    })
}
