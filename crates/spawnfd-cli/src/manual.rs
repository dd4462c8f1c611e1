// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion scripts and the manual page, generated from the command line's definition.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::Cli;
use crate::failure::{Failure, print, reason};

/// Prints the completion script.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "spawnfd", &mut script);
    print(&script)
}

/// Returns the manual page: one page, with a section for each subcommand.
pub fn page() -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    write_page(&mut page).map_err(|e| Failure::new(format!("man: {}", reason(&e))))?;
    Ok(page)
}

fn write_page(page: &mut Vec<u8>) -> io::Result<()> {
    let mut command = Cli::command();
    command.build();
    let man = Man::new(command.clone())
        .title("SPAWNFD")
        .section("1")
        .source(format!("spawnfd {}", env!("CARGO_PKG_VERSION")));
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let name = subcommand.get_name().to_owned();
        let man = Man::new(subcommand.clone());
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        man.render_extra_section(&mut part)?;
        let mut heading = Roff::new();
        heading.control("SH", [format!("SPAWNFD {}", name.to_uppercase()).as_str()]);
        heading.to_writer(page)?;
        let part = String::from_utf8_lossy(&part).into_owned();
        page.write_all(demote(&part).as_bytes())?;
    }
    let mut end = Roff::new();
    end.control("SH", ["EXAMPLES"]);
    end.to_writer(page)?;
    let mut end = Roff::new();
    for line in
        ["spawnfd run --time rg -n TODO", "spawnfd run --capture --timeout 30 --json -- make test", "spawnfd doctor"]
    {
        end.control("P", []);
        end.text([bold(line)]);
    }
    end.control("SH", ["SEE ALSO"]);
    end.text([roman("env(1), timeout(1), posix_spawn(3), pidfd_open(2), execveat(2)")]);
    end.to_writer(page)
}

/// Whether the line is the title of a part of the notes: a few words and a colon.
fn is_title(line: &str) -> bool {
    line.ends_with(':') && line.starts_with(char::is_uppercase) && line.split(' ').count() <= 4
}

/// Turns the sections of a subcommand's page into subsections.
fn demote(part: &str) -> String {
    let mut text = String::new();
    for line in part.lines() {
        match line.strip_prefix(".SH ") {
            // clap_mangen's heading for the text that follows the options in --help.
            Some("EXTRA") => text.push_str(".SS NOTES\n"),
            Some(heading) => text.push_str(&format!(".SS {heading}\n")),
            // Every part defines the quote macros; the page needs them once.
            None if line.starts_with(".ie ") || line.starts_with(".el ") => {}
            None if is_title(line) => {
                let title = line.trim_end_matches(':').to_uppercase();
                text.push_str(&format!(".SS \"{title}\"\n"));
            }
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text
}
