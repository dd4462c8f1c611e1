// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the tool calls of an agent, with time limits and bounded output: `cargo run --example tool_executor`.
//!
//! Each call gets an answer of bounded size and in bounded time. A program that fails, hangs, writes without end or
//! does not exist is an answer for the model, not an error of the agent. If the agent ends in any way, the programs and
//! their process trees end, too.

use std::time::Duration;

use spawnfd::job::Stop;
use spawnfd::limits::{Enforce, Limiter, Limits};
use spawnfd::{Command, Env, Output, Run, Stdio};

/// Runs programs in one directory, a bounded number of them at once. Any thread can call it.
struct ToolExecutor {
    directory: String,
    env: Env,
    run: Run,
}

impl ToolExecutor {
    fn new(directory: &str, parallel: usize) -> ToolExecutor {
        // Where no cgroup is available, rlimits and the library enforce the limits.
        let limits = Limits::new().pids(256).cpu_time(Duration::from_secs(300)).enforce(Enforce::BestEffort);
        ToolExecutor {
            directory: directory.to_owned(),
            // The programs do not see the agent's credentials, and do not prompt, page or colour.
            env: Env::inherit().deny(["*_TOKEN", "*_KEY", "*SECRET*", "*PASSWORD*"]).noninteractive(),
            run: Run::new()
                .keep(2_000, 2_000) // bytes of the output's beginning and end
                .output_limit(64 << 20) // ends a program that writes without end
                .limits(limits)
                .limiter(&Limiter::new(parallel)),
        }
    }

    /// Runs one program, and returns the text for the model.
    fn call(&self, argv: &[&str], timeout: Duration) -> String {
        let Some((program, args)) = argv.split_first() else { return "[not started: no program]".to_owned() };
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.directory).environment(&self.env).stderr(Stdio::SameAsStdout);
        // After the timeout the process tree gets SIGTERM, and 2 s later SIGKILL.
        match command.run_with(&self.run.clone().timeout(timeout)) {
            Ok(output) => describe(&output),
            Err(error) => format!("[not started: {error}]"),
        }
    }
}

/// The output, and how the program ended unless its exit code is 0.
fn describe(output: &Output) -> String {
    let end = match (output.stop, output.code(), output.signal()) {
        (Stop::Exited, Some(0), _) => String::new(),
        (Stop::Exited, Some(code), _) => format!("[exit code {code}]"),
        (Stop::Exited, None, Some(signal)) => format!("[ended by signal {signal}]"),
        (stop, ..) => format!("[stopped: {stop}]"),
    };
    output.stdout_text().into_owned() + &end
}

fn main() {
    let tools = ToolExecutor::new("/", 8);
    for argv in [
        &["echo", "hello"][..],
        &["sh", "-c", "echo oops >&2; exit 3"],
        &["no-such-tool"],
        &["sh", "-c", "echo working; sleep 600"],
        &["seq", "100000"],
    ] {
        println!("{argv:?}:\n{}\n", tools.call(argv, Duration::from_secs(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_program_is_an_answer() {
        let (tools, minute) = (ToolExecutor::new("/", 2), Duration::from_secs(60));
        assert_eq!(tools.call(&["pwd"], minute), "/\n");
        assert_eq!(tools.call(&["sh", "-c", "echo oops >&2; exit 3"], minute), "oops\n[exit code 3]");
        assert_eq!(tools.call(&["sh", "-c", "kill -9 $$"], minute), "[ended by signal 9]");
        assert_eq!(tools.call(&["sh", "-c", "sleep 600 & sleep 600"], Duration::ZERO), "[stopped: timeout]");
        assert!(tools.call(&["no-such-tool"], minute).starts_with("[not started: no-such-tool: not found in PATH"));
        assert!(tools.call(&["yes"], minute).ends_with("[stopped: output_limit]"));
        let answer = tools.call(&["seq", "100000"], minute);
        assert!(answer.starts_with("1\n2\n") && answer.ends_with("\n100000\n") && answer.len() < 5_000, "{answer}");
    }
}
