// SPDX-License-Identifier: MIT OR Apache-2.0
//! Says how a command would start, without starting it.

use std::fmt;
use std::time::Duration;

use super::Warm;
use crate::child::Started;
use crate::cold_reason::ColdReason;
use crate::command::{Command, Start, WouldStart};
use crate::error::Result;
use crate::launch;

/// How a command would start now, and why. Displayed as sentences.
///
/// # Examples
/// ```
/// use spawnfd::warm::{Park, WarmOptions};
/// use spawnfd::{Command, Warm};
/// let warm = Warm::new(WarmOptions::new())?;
/// let cold = warm.explain(&Command::new("sh"))?;
/// assert_eq!(cold.reason(), Some("not added"));
/// warm.add("sh", Park::new())?;
/// warm.fill(std::time::Duration::from_secs(10));
/// let explanation = warm.explain(&Command::new("sh"))?;
/// assert!(explanation.is_warm(), "{explanation}");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// How the command would start.
    pub started: Started,
    /// The start-up time that a warm start would save. 0 for a cold start, and for [`Warm::add_any`].
    pub saves: Duration,
    reason: Option<ColdReason>,
}

impl Explanation {
    /// Whether the start would be warm.
    pub fn is_warm(&self) -> bool {
        self.reason.is_none()
    }

    /// Why the start would be cold: a word as in [`Started::Cold`].
    pub fn reason(&self) -> Option<&'static str> {
        self.reason.map(ColdReason::word)
    }

    /// Why the start would be cold, as a sentence.
    pub fn meaning(&self) -> Option<&'static str> {
        self.reason.map(|reason| reason.explanation().0)
    }

    /// The change that makes the start warm, as a sentence.
    pub fn remedy(&self) -> Option<&'static str> {
        self.reason.map(|reason| reason.explanation().1)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.meaning(), self.remedy()) {
            (Some(meaning), Some(remedy)) => write!(f, "{}: {meaning} {remedy}", self.started.name()),
            _ if self.saves > Duration::ZERO => {
                let milliseconds = self.saves.as_secs_f64() * 1e3;
                write!(f, "{}: The start would save {milliseconds:.1} ms of start-up.", self.started.name())
            }
            _ => write!(f, "{}: A parked process would execute the program.", self.started.name()),
        }
    }
}

impl Warm {
    /// Finds out how a run of the command would start now, and starts nothing. The check is that of a start by the
    /// calling thread. A start a moment later can differ, for example if it is the second of two and one process is
    /// parked.
    ///
    /// # Errors
    /// Those of [`Command::run`] before a program starts.
    pub fn explain(&self, command: &Command<'_>) -> Result<Explanation> {
        let explaining = Warm { explains: true, ..self.clone() };
        let mut start = Start::of_run(command, false);
        start.parked = Some(&explaining);
        Ok(match launch::explain(&start)? {
            Ok(WouldStart { started, saves }) => Explanation { started, saves, reason: None },
            Err(reason) => {
                Explanation { started: Started::Cold(reason.word()), saves: Duration::ZERO, reason: Some(reason) }
            }
        })
    }
}
