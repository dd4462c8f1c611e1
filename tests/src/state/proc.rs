// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads /proc. If the calling thread's directory has a file, that file is used, because most of a
//! task's state is per-thread.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use super::answer::{Answer, text};

/// The content of a file in the calling thread's directory in /proc.
pub(super) fn of_thread(name: &str) -> Answer<Vec<u8>> {
    fs::read(format!("/proc/thread-self/{name}")).into()
}

/// The content of a file in the process's directory in /proc.
pub(super) fn of_process(name: &str) -> Answer<Vec<u8>> {
    fs::read(format!("/proc/self/{name}")).into()
}

/// Content as text without the newline at its end.
pub(super) fn line(content: Answer<Vec<u8>>) -> Answer<String> {
    content.map(|bytes| text(bytes.trim_ascii_end()).trim_end_matches('\0').to_owned())
}

/// Content as lines, with runs of blanks collapsed.
pub(super) fn lines(content: Answer<Vec<u8>>) -> Answer<Vec<String>> {
    content.map(|bytes| {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text(&bytes).lines().map(words).collect()
    })
}

/// The target of a link in the calling thread's directory in /proc.
pub(super) fn link(name: &str) -> Answer<String> {
    fs::read_link(format!("/proc/thread-self/{name}")).map(|to| text(&to.into_os_string().into_vec())).into()
}

/// The names in a subdirectory of the calling thread's directory in /proc.
pub(super) fn names(directory: &str) -> Answer<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/thread-self/{directory}"));
    entries.map(|all| all.flatten().map(|entry| text(&entry.file_name().into_vec())).collect()).into()
}

/// The lines of /proc/thread-self/status, by name.
#[derive(Debug)]
pub(super) struct Status(Answer<BTreeMap<String, String>>);

impl Status {
    pub fn read() -> Self {
        Self(of_thread("status").map(|bytes| {
            let content = String::from_utf8_lossy(&bytes).into_owned();
            let pairs = content.lines().filter_map(|line| line.split_once(':'));
            pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
        }))
    }

    /// The value of a line; `None` if this kernel has no such line.
    pub fn get(&self, name: &str) -> Answer<Option<String>> {
        match &self.0 {
            Answer::Known(lines) => Answer::Known(lines.get(name).cloned()),
            Answer::Refused(refusal) => Answer::Refused(refusal.clone()),
        }
    }
}

/// The fields of /proc/self/stat, numbered as in proc_pid_stat(5).
#[derive(Debug)]
pub(super) struct Stat(Answer<Vec<i64>>);

impl Stat {
    pub fn read() -> Self {
        Self(of_process("stat").map(|bytes| {
            let content = String::from_utf8_lossy(&bytes).into_owned();
            // Field 2, the name, may contain blanks and parentheses, so the split starts after its last parenthesis.
            // Field 3, the state, is skipped because it is not a number.
            let after_name = content.rsplit_once(')').map_or("", |(_, rest)| rest);
            after_name.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(-1)).collect()
        }))
    }

    /// Field `number`, which must be 4 or more.
    pub fn get(&self, number: usize) -> Answer<Option<i64>> {
        match &self.0 {
            Answer::Known(fields) => Answer::Known(fields.get(number - 4).copied()),
            Answer::Refused(refusal) => Answer::Refused(refusal.clone()),
        }
    }
}
