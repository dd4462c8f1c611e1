// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits the number of programs that run at once.

use napi::bindgen_prelude::*;
use napi_derive::napi;

use crate::errors::wrong;

#[napi]
pub struct NativeLimiter(spawnfd::limits::Limiter);

impl NativeLimiter {
    pub fn native(&self) -> &spawnfd::limits::Limiter {
        &self.0
    }
}

fn count(limit: f64) -> Result<usize> {
    let is_count = limit.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(&limit);
    if is_count { Ok(limit as usize) } else { Err(wrong(format!("limit must be a whole number > 0, got {limit}"))) }
}

#[napi]
impl NativeLimiter {
    #[napi(constructor)]
    pub fn new(limit: f64) -> Result<NativeLimiter> {
        count(limit).map(|limit| NativeLimiter(spawnfd::limits::Limiter::new(limit)))
    }

    #[napi(getter)]
    pub fn limit(&self) -> u32 {
        self.0.limit() as u32
    }

    #[napi(setter)]
    pub fn set_limit(&self, limit: f64) -> Result<()> {
        count(limit).map(|limit| self.0.set_limit(limit))
    }

    #[napi(getter)]
    pub fn running(&self) -> u32 {
        self.0.running() as u32
    }

    #[napi(getter)]
    pub fn waiting(&self) -> u32 {
        self.0.waiting() as u32
    }
}
