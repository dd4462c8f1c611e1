// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust example of the README, as a program.

use std::time::Duration;

use spawnfd::{Command, Env, Run, Template};

fn main() -> Result<(), spawnfd::Error> {
    // By name: found in PATH once, checked at each spawn, found again after an upgrade.
    let output = Command::new("git").arg("--version").run_with(&Run::new().timeout(Duration::from_secs(10)))?;
    println!("{}", output.check()?.stdout_text());

    // A template pins one executable: a spawn fails if the file has changed. An Env is encoded once and shared.
    let cat = Template::open("/bin/cat")?;
    let env = Env::only(["PATH", "LANG"]).noninteractive();
    let output = cat.command().environment(&env).run_with(&Run::new().input("hello\n"))?;
    assert_eq!(output.stdout, b"hello\n");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
