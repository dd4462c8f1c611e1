// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the README shows, to run.

use std::time::Duration;

use spawnfd::{Command, Env, Run, Template};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A name: searched once, checked at each spawn, made anew when the program is upgraded.
    let output =
        Command::new("git").arg("--version").run_with(&Run::new().timeout(Duration::from_secs(10)))?.check()?;
    println!("{}", output.text());

    // A template, held: fails as stale instead. An Env is encoded once and shared.
    let cat = Template::open("/bin/cat")?;
    let env = Env::only(["PATH", "LANG"]).noninteractive();
    let output = cat.command().environment(&env).run_with(&Run::new().input("hello\n"))?;
    assert_eq!(output.stdout, b"hello\n");
    Ok(())
}
