// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control lines that a session's shell reads from its standard input.
//!
//! The shell is interactive, without a terminal. So SIGINT makes it abandon the rest of a command and read the next
//! control line, and a syntax error or an unset variable does not end it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use spawnfd_guard::hold::FILES_VARIABLE;

use crate::error::{Error, Result, Stage, from_io};
use crate::job::shell::{ControlLines, Files, memory_file};

/// The language of a shell's control lines, and the files that its commands source.
#[derive(Debug)]
pub(super) struct Dialect {
    /// The word that makes the shell use its own command, not an alias or a function of the user.
    own: &'static str,
    /// Runs the text of the current command. In a sourced file, an interactive bash prints no messages about background
    /// jobs and ended programs. `eval` keeps the name of the file out of error messages.
    text: File,
    /// Sets `$?` for the current command.
    code: File,
}

impl Dialect {
    /// The dialect of a shell with this value of `$BASH_VERSION`. The value is empty in other shells than bash.
    pub(super) fn of_version(version: &Path) -> Result<Dialect> {
        let own = if version.as_os_str().is_empty() { "command" } else { "builtin" };
        Ok(Dialect { own, text: memory_file()?, code: memory_file()? })
    }

    /// The files that the control lines of a command use.
    pub(super) fn files<'a>(&'a self, saved: Option<&'a File>) -> Vec<BorrowedFd<'a>> {
        [&self.text, &self.code].into_iter().chain(saved).map(AsFd::as_fd).collect()
    }

    /// Writes the text of the next command, and returns its control lines. The command finds `last_code` in `$?`. After
    /// the command, the shell writes its exported variables and its umask to the file `saved`.
    ///
    /// SIGINT makes bash drop the characters that it has read. The rest of the first line then must not run as a command,
    /// so the line does not contain the text. Each line is one group: a rest of it is a syntax error. The space at its
    /// start is the character that bash drops if SIGINT came after the previous line.
    ///
    pub(super) fn command_lines(
        &self,
        text: &str,
        last_code: u8,
        saved: Option<&File>,
        files: &Files,
    ) -> Result<ControlLines> {
        let own = self.own;
        let mut script = Vec::new();
        if last_code != 0 {
            replace(&self.code, format!("return {last_code}").as_bytes())?;
            script.extend(format!("{own} . {}||", files.path(self.code.as_raw_fd())).bytes());
        }
        script.extend(format!("{own} eval ").bytes());
        script.extend(quoted(text.as_bytes()));
        replace(&self.text, &script)?;
        let stdin = files.stdin.map_or_else(|| "/dev/null".to_owned(), |fd| files.path(fd));
        let opened = if files.is_terminal { "1<>" } else { ">" };
        let stderr = files.stderr.map_or_else(|| "&1".to_owned(), |fd| files.path(fd));
        let command = format!(
            " {{ {own} . {} <{stdin} {opened}{} 2>{stderr}; }}\n",
            files.path(self.text.as_raw_fd()),
            files.path(files.stdout)
        );
        let save = saved.map(|file| {
            let file = files.path(file.as_raw_fd());
            format!("{own} export -p >|{file};{own} printf 'umask ' >>{file};{own} umask >>{file};")
        });
        let (pipe, save) = (files.path(files.status), save.unwrap_or_default());
        let status = format!(
            " {{ {{ {own} printf '\\0%s ' \"$?\";{own} times;{save}{own} printf '=%s\\0\\0' \"${{PWD-}}\"; }} >{pipe}||exit; }}\n"
        );
        let separate_status = format!(
            " {{ {own} printf '\\0%s ' \"$?\" >{pipe};{own} times >{pipe}||exit;{save}\
             {own} printf '=%s\\0\\0' \"${{PWD-}}\" >{pipe}; }}\n",
        );
        let [command, status, separate_status] = [command, status, separate_status].map(String::into_bytes);
        Ok(ControlLines { command, status, separate_status })
    }
}

/// Replaces the contents of a file in memory. The shell has read the earlier contents.
fn replace(file: &File, contents: &[u8]) -> Result<()> {
    let replaced = file.set_len(0).and_then(|()| file.write_all_at(contents, 0));
    replaced.map_err(|e| Error::new(Stage::Capture, from_io(&e), "pwrite64(memfd)"))
}

/// The control lines for a shell that has just started. It restores the directory and the file of an earlier shell, and
/// reports its version of bash in place of the directory.
pub(super) fn first_lines(restored: Option<(&Path, &File)>, files: &Files) -> ControlLines {
    // A shell with a terminal has job control. It would make each command a foreground process group, and background
    // jobs would not ignore SIGINT.
    let mut command = b"exec >/dev/null 2>&1\nset +m\n".to_vec();
    if let Some((directory, file)) = restored {
        command.extend(format!(". {}\ncd -- ", files.path(file.as_raw_fd())).bytes());
        command.extend(quoted(directory.as_os_str().as_bytes()));
        command.push(b'\n');
    }
    let pipe = files.path(files.status);
    let status = format!(
        "printf '\\0000 ' >{pipe}||exit;times >{pipe};printf '=%s\\0\\0' \"${{BASH_VERSION-}}\" >{pipe};\
         unset {FILES_VARIABLE}\n",
    );
    ControlLines { command, status: status.clone().into_bytes(), separate_status: status.into_bytes() }
}

/// Quotes a word for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [b"'", &parts.join(&b"'\\''"[..])[..], b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted(b"a'b\n\\ $c\xff"), b"'a'\\''b\n\\ $c\xff'");
    }
}
