// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured calls from Rust, for the job benchmark. bench/common/worker.py documents the orders on stdin.

mod run;
mod session;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use spawnfd::Env;

use crate::Result;
use crate::clock::now_ns;

/// How long children may take to end. The guard ends one second after its last tree.
const LINGER: Duration = Duration::from_secs(3);

/// The method, the calls, and the right answers.
#[derive(Debug, Deserialize)]
struct JobFile {
    method: MethodSpec,
    cwd: PathBuf,
    env: BTreeMap<String, String>,
    references: Vec<Reference>,
}

impl JobFile {
    /// The environment of each call.
    fn environment(&self) -> Env {
        self.env.iter().fold(Env::empty(), |env, (name, value)| env.set(name, value))
    }
}

#[derive(Debug, Deserialize)]
struct MethodSpec {
    name: String,
    #[serde(rename = "way")]
    kind: String,
    tree: Option<String>,
}

/// A call with its right answer. Each character of a stream stands for one byte.
#[derive(Debug, Deserialize)]
struct Reference {
    name: String,
    argv: Vec<String>,
    code: i32,
    stdout: String,
    stderr: String,
}

/// The exit code and output of a call.
struct Answer {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A method to make captured calls.
trait CapturedCalls {
    /// Makes a call.
    fn call(&mut self, name: &str) -> Result<Answer>;

    /// Ends what the calls have started.
    fn close(self: Box<Self>) -> Result<()>;
}

fn open(job: &JobFile) -> Result<Box<dyn CapturedCalls>> {
    match job.method.kind.as_str() {
        "native.run" => run::open(job),
        "native.session" => session::open(job),
        other => bail!("unknown method {other:?}"),
    }
}

/// Executes the driver's orders until "finish" or the end of stdin. Errors go to the driver as replies.
///
/// # Errors
///
/// The benchmark failed, or the driver has exited.
pub fn serve(job: &Path) -> Result<()> {
    let served = serve_orders(job);
    if let Err(error) = &served {
        reply(&json!({"error": format!("{error:#}")}))?;
    }
    served
}

fn serve_orders(job: &Path) -> Result<()> {
    let job: JobFile = serde_json::from_slice(&std::fs::read(job)?).with_context(|| job.display().to_string())?;
    let references: HashMap<_, _> = job.references.iter().map(|one| (one.name.as_str(), one)).collect();
    let mut method = open(&job)?;
    let mut requested = Vec::new();
    let mut descriptors_after_first = None;
    reply(&json!({"hello": true}))?;
    for line in std::io::stdin().lock().lines() {
        let order: Value = serde_json::from_str(&line?)?;
        match order["do"].as_str() {
            Some("prepare") => {
                let names = order["calls"].as_array().context("prepare without calls")?;
                let reference = |name: &Value| name.as_str().and_then(|name| references.get(name)).copied();
                requested = names.iter().map(|name| reference(name).context("unknown call")).collect::<Result<_>>()?;
                reply(&json!({"ready": true}))?;
            }
            Some("go") => {
                reply(&make_calls(method.as_mut(), &requested).with_context(|| job.method.name.clone())?)?;
                descriptors_after_first.get_or_insert(descriptors()?);
            }
            Some("finish") => {
                if let Some(before) = descriptors_after_first {
                    // The library may keep descriptors of each program.
                    let now = descriptors()?;
                    ensure!(now <= before + 2 + 2 * references.len(), "{now} descriptors open, {before} before");
                }
                method.close()?;
                check_no_children()?;
                return reply(&json!({"finished": true}));
            }
            _ => bail!("unknown order {order}"),
        }
    }
    Ok(())
}

/// Makes the calls, then checks the answers.
fn make_calls(method: &mut dyn CapturedCalls, requested: &[&Reference]) -> Result<Value> {
    let mut answers = Vec::with_capacity(requested.len());
    let mut ns = Vec::with_capacity(requested.len());
    let (cpu, begin) = (cpu_time(), now_ns());
    for reference in requested {
        let start = now_ns();
        answers.push(method.call(&reference.name)?);
        ns.push(now_ns() - start);
    }
    let (cpu, end) = (cpu_time() - cpu, now_ns());
    for (reference, answer) in requested.iter().zip(&answers) {
        check(reference, answer).with_context(|| format!("preset {}", reference.name))?;
    }
    let cpu = cpu.as_secs_f64();
    Ok(json!({"begin_ns": begin, "end_ns": end, "cpu_s": cpu, "calls": answers.len(), "late_us": [], "ns": ns}))
}

fn check(reference: &Reference, answer: &Answer) -> Result<()> {
    ensure!(answer.code == Some(reference.code), "exit code {:?}, expected {}", answer.code, reference.code);
    for (stream, got, expected) in
        [("stdout", &answer.stdout, &reference.stdout), ("stderr", &answer.stderr, &reference.stderr)]
    {
        let is_equal = got.iter().copied().map(char::from).eq(expected.chars());
        ensure!(is_equal, "{stream} differs: {} bytes, expected {}", got.len(), expected.chars().count());
    }
    Ok(())
}

/// The CPU time of this process and of its reaped children.
fn cpu_time() -> Duration {
    let used = |whose| {
        // SAFETY: all zeroes is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: getrusage fills the whole structure.
        unsafe { libc::getrusage(whose, &mut usage) };
        let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    used(libc::RUSAGE_SELF) + used(libc::RUSAGE_CHILDREN)
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn check_no_children() -> Result<()> {
    let until = Instant::now() + LINGER;
    loop {
        let mut left = String::new();
        for task in std::fs::read_dir("/proc/self/task")? {
            left += &std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        }
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "leftover children: {left}");
        sleep(Duration::from_millis(50));
    }
}

fn reply(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}
