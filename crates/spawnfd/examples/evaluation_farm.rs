// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evaluates 5,000 samples, each by a program: `cargo run --release --example evaluation_farm`.
//!
//! One thread runs all of them with tokio; any other executor works, too. A limiter bounds the number of programs that
//! run at once, whatever the number of tasks. A sample that hangs costs its timeout, and the farm goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use spawnfd::job::Stop;
use spawnfd::limits::Limiter;
use spawnfd::{Command, Env, Run};
use tokio::task::JoinSet;

/// The program that a model wrote for a sample: print the square of the input.
///
/// Stands for a model: each 100th program is wrong, and each 1,000th hangs.
fn candidate(number: u64) -> &'static str {
    match number {
        _ if number % 1_000 == 500 => "sleep 600",
        _ if number % 100 == 50 => "read n; echo $((n + n))",
        _ => "read n; echo $((n * n))",
    }
}

/// Runs one sample's program, and returns its grade.
async fn evaluate(number: u64, run: Run, env: Env) -> Result<&'static str, spawnfd::Error> {
    let run = run.input(format!("{number}\n"));
    let output = Command::new("sh").args(["-c", candidate(number)]).environment(&env).run_async(&run).await?;
    Ok(match output.stop {
        Stop::Exited if output.ok() && output.stdout == format!("{}\n", number * number).as_bytes() => "right",
        Stop::Exited => "wrong",
        _ => "timeout",
    })
}

/// Evaluates the samples, and counts the grades.
async fn farm(samples: u64) -> Result<BTreeMap<&'static str, u64>, spawnfd::Error> {
    // Programs mostly wait for the kernel: a few for each processor keep all processors busy.
    let parallel = 4 * std::thread::available_parallelism().map_or(1, Into::into);
    let run = Run::new().timeout(Duration::from_secs(3)).grace(Duration::ZERO).limiter(&Limiter::new(parallel));
    let env = Env::only(["PATH"]);
    let mut tasks: JoinSet<_> = (0..samples).map(|number| evaluate(number, run.clone(), env.clone())).collect();
    let mut grades = BTreeMap::new();
    while let Some(grade) = tasks.join_next().await {
        *grades.entry(grade.expect("evaluate() does not panic")?).or_default() += 1;
    }
    Ok(grades)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    println!("{:?}", runtime.block_on(farm(5_000))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_gets_its_grade() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let grades = runtime.block_on(farm(1_000)).unwrap();
        assert_eq!(grades, BTreeMap::from([("right", 989), ("timeout", 1), ("wrong", 10)]));
    }
}
