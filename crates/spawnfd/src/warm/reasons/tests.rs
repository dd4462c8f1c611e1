// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the decoder, and of the agreement of the reasons with the reference of warm starts.

use std::collections::BTreeSet;

use super::*;

#[test]
fn reported_texts_are_decoded() {
    let decode = |text: &str| ColdReason::decode(text.as_bytes());
    for reason in ColdReason::FIXED {
        assert_eq!(decode(reason.word()), *reason);
    }
    assert_eq!(decode("cannot import json"), ColdReason::CannotImport("cannot import json"));
    let entry = "cannot import the entry's modules: ValueError: x";
    assert_eq!(decode(entry), ColdReason::CannotImportEntry(entry));
    assert_eq!(decode("start-up code writes: x"), ColdReason::StartUpWritesText("start-up code writes: x"));
    assert_eq!(decode("Fatal error"), ColdReason::Reported("Fatal error"));
    assert_eq!(decode("Fatal error").word(), "Fatal error");
}

#[test]
fn the_reference_has_every_reason() {
    let Ok(text) = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/warm-reference.md")) else {
        return spawnfd_tests::skip("a packaged crate has no documentation");
    };
    let section = text.split_once("\n## When a start is cold").expect("a section").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let documented = section.lines().filter(|line| line.starts_with("| `")).flat_map(|line| {
        let cell = line.split(" | ").next().unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    });
    // The reference has failed system calls as examples.
    let documented: BTreeSet<_> = documented.filter(|reason| !reason.contains("()")).collect();
    let patterns = ColdReason::VARYING.iter().map(|(pattern, _)| *pattern);
    let patterns = patterns.filter(|pattern| !["…(): …", "…"].contains(pattern));
    let reasons: BTreeSet<_> = ColdReason::FIXED.iter().map(|reason| reason.word()).chain(patterns).collect();
    assert_eq!(documented, reasons);
}
