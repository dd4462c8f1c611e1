// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are started ahead and parked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use napi::ValueType;
use napi::bindgen_prelude::*;
use napi_derive::napi;
use serde_json::json;
use spawnfd::internal::filter;
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Env, Warm};

use crate::actions::Descriptors;
use crate::env::environment;
use crate::errors::{Failure, answer, wrong};
use crate::sandbox::NativeSandbox;
use crate::template::NativeTemplate;
use crate::values::{data, duration, instance, integer, is_absent, os_string, strings, typed};

#[napi]
pub struct NativeWarm {
    warm: Warm,
    is_closed: AtomicBool,
}

fn mode(value: &Unknown<'_>) -> Result<Mode> {
    match &*typed::<String>(value, ValueType::String, "mode", "'reserve', 'fork' or 'auto'")? {
        "reserve" => Ok(Mode::Reserve),
        "fork" => Ok(Mode::Fork),
        "auto" => Ok(Mode::Auto),
        other => Err(wrong(format!("mode must be 'reserve', 'fork' or 'auto', got {other:?}"))),
    }
}

/// The options that have a value, with their names.
fn options<'env>(given: &Object<'env>) -> Result<Vec<(String, Unknown<'env>)>> {
    let mut options = Vec::new();
    for name in Object::keys(given)? {
        if let Some(value) = given.get::<Unknown<'_>>(&name)?
            && !is_absent(&value)?
        {
            options.push((name, value));
        }
    }
    Ok(options)
}

fn unexpected(name: &str) -> Error {
    wrong(format!("unexpected option {name:?}"))
}

fn count(value: &Unknown<'_>, name: &str) -> Result<usize> {
    integer(value, name).map(|count| count as usize)
}

fn flag(value: &Unknown<'_>, name: &str) -> Result<bool> {
    typed(value, ValueType::Boolean, name, "true or false")
}

/// Creates a set of parked processes.
#[napi]
pub fn warm(given: Object<'_>) -> Result<Either<NativeWarm, Failure>> {
    let mut all = WarmOptions::new();
    for (name, value) in &options(&given)? {
        all = match &**name {
            "mode" => all.mode(mode(value)?),
            "trusted" => all.trusted(flag(value, name)?),
            "memory" => all.memory(integer(value, name)?),
            "processes" => all.processes(count(value, name)?),
            "keep" => all.keep(count(value, name)?),
            "idle" => all.idle(duration(value, name)?),
            "delay" => all.delay(duration(value, name)?),
            "forks" => all.forks(integer(value, name)?),
            "age" => all.age(duration(value, name)?),
            _ => return Err(unexpected(name)),
        };
    }
    answer(Warm::new(all).map(|warm| NativeWarm { warm, is_closed: AtomicBool::new(false) }))
}

impl NativeWarm {
    /// The processes, unless they have been closed.
    pub fn open(&self) -> Result<&Warm> {
        if self.closed() { Err(wrong("the Warm is closed")) } else { Ok(&self.warm) }
    }
}

#[napi]
impl NativeWarm {
    /// Adds a program: a template, a name or a path.
    #[napi]
    pub fn add(&self, program: Unknown<'_>, given: Object<'_>) -> Result<Option<Failure>> {
        let warm = self.open()?;
        let (mut park, mut env, mut descriptors) = (Park::new(), None, Descriptors::new());
        for (name, value) in &options(&given)? {
            park = match &**name {
                "depth" => park.depth(count(value, name)?),
                "mode" => park.mode(mode(value)?),
                "args" => park.args(strings(value, name)?),
                "env" => {
                    env = Some(environment(*value, false)?);
                    park
                }
                "preimport" => park.preload(strings(value, name)?),
                "entry" => park.entry(os_string(value, name)?),
                "sandbox" => park.sandbox(instance::<NativeSandbox>(value, name, "Sandbox")?.native().clone()),
                "cwd" => park.current_dir(os_string(value, name)?),
                "noNewPrivs" => park.no_new_privs(flag(value, name)?),
                "landlock" => park.landlock(descriptors.shared(value, name)?),
                "seccomp" => {
                    let filter = filter(&data(value, name)?).map_err(|reason| wrong(format!("{name} {reason}")))?;
                    park.seccomp(filter)
                }
                _ => return Err(unexpected(name)),
            };
        }
        let park = park.env(env.unwrap_or_else(Env::inherit));
        let added = match instance::<NativeTemplate>(&program, "", "") {
            Ok(template) => warm.add_template(template.native(), park),
            Err(_) => match os_string(&program, "program")? {
                name if name.is_empty() => return Err(wrong("program must not be empty")),
                name => warm.add(name, park),
            },
        };
        Ok(added.err().map(Failure::from))
    }

    /// Adds processes that execute any program.
    #[napi]
    pub fn add_any(&self, given: Object<'_>) -> Result<Option<Failure>> {
        let (mut depth, mut chosen) = (0, None);
        for (name, value) in &options(&given)? {
            match &**name {
                "depth" => depth = count(value, name)?,
                "mode" => chosen = Some(mode(value)?),
                _ => return Err(unexpected(name)),
            }
        }
        Ok(self.open()?.add_any(depth, chosen).err().map(Failure::from))
    }

    /// Whether all processes that can be parked are parked; null while the keeper parks them. `waited` is the time in
    /// milliseconds since the caller's first call.
    #[napi]
    pub fn fill(&self, waited: f64) -> Option<bool> {
        let now = Instant::now();
        self.warm.try_fill(now.checked_sub(Duration::from_secs_f64(waited / 1000.0)).unwrap_or(now))
    }

    /// Returns the same template, which starts from parked processes. Adds its program if necessary.
    #[napi]
    pub fn template(&self, template: &NativeTemplate) -> Result<Either<NativeTemplate, Failure>> {
        let warm = self.open()?;
        answer(warm.add_once(template.native()).map(|()| template.warm(warm)))
    }

    /// The counters. Times are in milliseconds.
    #[napi]
    pub fn stats<'env>(&self, env: &'env napi::Env) -> Result<Unknown<'env>> {
        let stats = self.warm.stats();
        let cannot = stats.cannot.iter().map(|(name, why)| (name.to_string_lossy(), why));
        // An integer of more than 32 bits would become a BigInt.
        env.to_js_value(&json!({
            "reserve": stats.reserve as f64,
            "fork": stats.fork as f64,
            "zygote": stats.zygote as f64,
            "pool": stats.pool as f64,
            "cold": stats.cold,
            "parked": stats.parked as f64,
            "memory": stats.memory as f64,
            "made": stats.made as f64,
            "timeSaved": milliseconds(stats.time_saved),
            "refillTime": milliseconds(stats.refill_time),
            "cannot": cannot.collect::<BTreeMap<_, _>>(),
        }))
    }

    #[napi(getter)]
    pub fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    #[napi]
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.warm.close();
    }
}

#[napi]
pub fn turn_off_warm() {
    Warm::turn_off();
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
