// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the explanations, and of their agreement with the reference of warm starts.

use super::*;

#[test]
fn patterns_match_the_variable_part() {
    let meaning = |reason| explain(reason).map(|(meaning, _)| meaning);
    assert_eq!(meaning("exec changes groups"), meaning("setuid"));
    assert_eq!(meaning("pidfd_open(): EMFILE"), meaning("descriptors"));
    assert_eq!(meaning("cannot import json"), meaning("start-up code replaces sys.stdout"));
    assert!(meaning("capabilities changed").is_some());
    assert_eq!(meaning("Fatal error"), None);
}

#[test]
fn each_reason_has_the_explanation_of_its_group() {
    for (reasons, meaning, remedy) in GROUPS {
        for reason in *reasons {
            assert_eq!(explain(&reason.replace('…', "x")), Some((*meaning, *remedy)), "{reason}");
        }
    }
}

#[test]
fn documented_reasons_have_an_explanation() {
    let Ok(text) = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/warm-reference.md")) else {
        return spawnfd_tests::skip("a packaged crate has no documentation");
    };
    let section = text.split_once("\n## When a start is cold").expect("a section").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let reasons = section.lines().filter(|line| line.starts_with("| `")).flat_map(|line| {
        let cell = line.split(" | ").next().unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    });
    let unexplained: Vec<_> = reasons.filter(|reason| explain(reason).is_none()).collect();
    assert_eq!(unexplained, Vec::<&str>::new());
}
