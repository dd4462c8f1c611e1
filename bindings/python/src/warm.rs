// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of the Python class `Warm`: pools of parked processes from which programs start.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use spawnfd::error::{Errno, Stage};
use spawnfd::warm::{Mode, Park, WarmOptions, WarmStats};

use crate::actions::filter_of;
use crate::arguments::{boolean, descriptor, integer, os_string, os_strings, seconds, wrong_type, wrong_value};
use crate::env::environment;
use crate::errors;
use crate::template::{Template, TemplateCache};

/// The interval at which fill() runs pending signal handlers.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Keeps programs warm: until close(), processes that are parked for these programs wait for starts.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Warm {
    core: spawnfd::Warm,
    closed: AtomicBool,
}

impl Warm {
    /// Returns the core's object, also after close().
    pub fn core(&self) -> &spawnfd::Warm {
        &self.core
    }

    /// Returns the core's object; an error after close().
    pub fn open(&self) -> PyResult<&spawnfd::Warm> {
        if self.closed() { Err(wrong_value(&"warm", "the Warm is closed")) } else { Ok(&self.core) }
    }
}

fn mode(value: &Bound<'_, PyAny>) -> PyResult<Mode> {
    let expected = r#""reserve", "fork" or "auto""#;
    let Ok(name) = value.cast::<PyString>() else { return Err(wrong_type(&"mode", expected, value)) };
    match &*name.to_string_lossy() {
        "reserve" => Ok(Mode::Reserve),
        "fork" => Ok(Mode::Fork),
        "auto" => Ok(Mode::Auto),
        name => Err(wrong_value(&"mode", format_args!("expected {expected}, got {name:?}"))),
    }
}

#[pymethods]
impl Warm {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python half")]
    fn new(
        py: Python<'_>,
        mode: &Bound<'_, PyAny>,
        trusted: &Bound<'_, PyAny>,
        memory: &Bound<'_, PyAny>,
        processes: &Bound<'_, PyAny>,
        keep: &Bound<'_, PyAny>,
        idle: Option<&Bound<'_, PyAny>>,
        delay: Option<&Bound<'_, PyAny>>,
        forks: &Bound<'_, PyAny>,
        age: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Warm> {
        let options = WarmOptions::new()
            .mode(self::mode(mode)?)
            .trusted(boolean(trusted, "trusted")?)
            .memory(integer(memory, &"memory")?)
            .processes(integer(processes, &"processes")?)
            .keep(integer(keep, &"keep")?)
            .idle(seconds(idle, "idle")?.unwrap_or(Duration::MAX))
            .delay(seconds(delay, "delay")?.unwrap_or(Duration::MAX))
            .forks(integer(forks, &"forks")?)
            .age(seconds(age, "age")?.unwrap_or(Duration::MAX));
        match py.detach(|| spawnfd::Warm::new(options)) {
            Ok(core) => Ok(Warm { core, closed: AtomicBool::new(false) }),
            Err(error) => Err(errors::exception(py, &error, None)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "keywords of the Python half")]
    fn add(
        &self,
        program: &Bound<'_, PyAny>,
        depth: &Bound<'_, PyAny>,
        args: &Bound<'_, PyAny>,
        env: Option<&Bound<'_, PyAny>>,
        preimport: &Bound<'_, PyAny>,
        entry: Option<&Bound<'_, PyAny>>,
        sandbox: Option<&Bound<'_, PyAny>>,
        cwd: Option<&Bound<'_, PyAny>>,
        mode: Option<&Bound<'_, PyAny>>,
        no_new_privs: &Bound<'_, PyAny>,
        landlock: Option<&Bound<'_, PyAny>>,
        seccomp: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = program.py();
        self.open()?;
        let mut park = Park::new()
            .depth(integer(depth, &"depth")?)
            .mode(mode.map(self::mode).transpose()?)
            .args(os_strings(args, "args")?)
            // Call `environment` with the GIL, because it may read this process's environment.
            .env(environment(env)?)
            .preload(os_strings(preimport, "preimport")?)
            .sandbox(sandbox.map(crate::sandbox::sandbox).transpose()?.map(|sandbox| sandbox.get().core.clone()))
            .no_new_privs(boolean(no_new_privs, "no_new_privs")?)
            .seccomp(seccomp.map(|filter| filter_of(filter, &"seccomp")).transpose()?.unwrap_or_default());
        if let Some(entry) = entry {
            park = park.entry(os_string(entry, &"entry")?);
        }
        if let Some(ruleset) = landlock {
            park = park.landlock(duplicate(ruleset, &"landlock")?);
        }
        if let Some(cwd) = cwd {
            park = park.current_dir(os_string(cwd, &"cwd")?);
        }
        if cwd.is_some() && sandbox.is_none() && entry.is_none() {
            return Err(wrong_value(&"cwd", "requires sandbox or entry; without them, pass cwd to each start"));
        }
        let (added, file) = match program.cast::<Template>() {
            Ok(template) => {
                let template = &template.get().0;
                (py.detach(|| self.core.add_template(template, park)), template.name().to_owned())
            }
            Err(_) => {
                let program = os_string(program, &"program")?;
                if program.is_empty() {
                    return Err(wrong_value(&"program", "must not be empty"));
                }
                let program = absolute(program);
                (py.detach(|| self.core.add(&program, park)), program)
            }
        };
        added.map_err(|error| {
            let concerns_program = matches!(error.stage(), Stage::Template | Stage::Revalidate | Stage::Exec);
            errors::exception(py, &error, concerns_program.then_some(&file))
        })
    }

    /// Returns the same template, which starts programs warm. `adds`: adds the template's program to this Warm first.
    fn template(&self, py: Python<'_>, cold: &Bound<'_, Template>, adds: bool) -> PyResult<Template> {
        let cold = &cold.get().0;
        py.detach(|| if adds { self.core.add_once(cold) } else { Ok(()) })
            .map(|()| Template(cold.clone(), Some(self.core.clone())))
            .map_err(|error| errors::exception(py, &error, Some(cold.name())))
    }

    /// Creates a cache that parks its programs in this Warm.
    fn cache(&self, capacity: &Bound<'_, PyAny>) -> PyResult<TemplateCache> {
        let capacity: usize = integer(capacity, &"capacity")?;
        let warm = self.core.keeping(capacity.max(1));
        Ok(TemplateCache(spawnfd::template::TemplateCache::new(capacity), Some(warm)))
    }

    fn add_any(&self, py: Python<'_>, depth: &Bound<'_, PyAny>, mode: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.open()?;
        let depth = integer(depth, &"depth")?;
        let mode = mode.map(self::mode).transpose()?;
        py.detach(|| self.core.add_any(depth, mode)).map_err(|error| errors::exception(py, &error, None))
    }

    fn fill(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let timeout = seconds(timeout, "timeout")?.unwrap_or(Duration::MAX);
        let begin = Instant::now();
        loop {
            let slice = timeout.saturating_sub(begin.elapsed()).min(SIGNAL_INTERVAL);
            let began = Instant::now();
            if py.detach(|| self.core.fill(slice)) {
                return Ok(true);
            }
            py.check_signals()?;
            // If fill() returns before the slice ends, the keeper cannot park the programs at present. Do not retry.
            if began.elapsed() < slice || begin.elapsed() >= timeout {
                return Ok(false);
            }
        }
    }

    /// Returns the fields of WarmStats.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let stats = self.core.stats();
        let (time_saved, refill_time) = (stats.time_saved.as_secs_f64(), stats.refill_time.as_secs_f64());
        let WarmStats { reserve, fork, zygote, pool, cold, parked, memory, made, cannot, .. } = stats;
        (reserve, fork, zygote, pool, cold, parked, memory, made, time_saved, refill_time, cannot).into_pyobject(py)
    }

    #[staticmethod]
    fn turn_off() {
        spawnfd::Warm::turn_off();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Relaxed);
        py.detach(|| self.core.close());
    }
}

/// Duplicates a descriptor of the caller to a number above 2.
fn duplicate(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<Arc<OwnedFd>> {
    let owned = rustix::io::fcntl_dupfd_cloexec(descriptor(value, name)?, 3);
    owned.map(Arc::new).map_err(|errno| {
        let failure = errors::Failure {
            errno: Errno::from_raw(errno.raw_os_error()),
            stage: Stage::Validate.name(),
            action: None,
            file: None,
            call: &format!("{name}: fcntl({value}, F_DUPFD_CLOEXEC)"),
            message: "".into(),
            reason: None,
        };
        failure.exception(value.py())
    })
}

/// Makes a relative path absolute, from the working directory. A name without a slash is returned unchanged.
fn absolute(program: OsString) -> OsString {
    let path = Path::new(&program);
    if !program.as_bytes().contains(&b'/') || path.is_absolute() {
        return program;
    }
    std::env::current_dir().map_or_else(|_| program.clone(), |directory| directory.join(path).into())
}

/// Returns the Warm of an option.
pub fn warm(value: &Bound<'_, PyAny>) -> PyResult<spawnfd::Warm> {
    let core = value.getattr_opt("_core")?;
    let Some(native) = core.as_ref().and_then(|core| core.cast::<Warm>().ok()) else {
        return Err(wrong_type(&"warm", "spawnfd.Warm or None", value));
    };
    native.get().open().cloned()
}
