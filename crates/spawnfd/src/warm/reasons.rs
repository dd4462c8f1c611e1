// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes the reasons that programs report.

use crate::child::interned;
use crate::cold_reason::ColdReason;

impl ColdReason {
    /// Decodes the reason that a program reports.
    pub(super) fn decode(text: &[u8]) -> ColdReason {
        let text = &*String::from_utf8_lossy(text);
        let begins = |pattern: &str| pattern.strip_suffix('…').is_some_and(|begin| text.starts_with(begin));
        let fixed = ColdReason::FIXED.iter().find(|reason| reason.word() == text);
        let varying = ColdReason::VARYING.iter().find(|(pattern, _)| begins(pattern));
        fixed
            .copied()
            .or(varying.map(|(_, reason)| ColdReason::with_text(*reason, text)))
            .unwrap_or(ColdReason::Unknown)
    }

    /// The reason with this text. [`ColdReason::Unknown`] if there have been too many texts.
    pub(super) fn with_text(reason: fn(&'static str) -> ColdReason, text: &str) -> ColdReason {
        interned(text).map_or(ColdReason::Unknown, reason)
    }
}

#[cfg(test)]
mod tests;
