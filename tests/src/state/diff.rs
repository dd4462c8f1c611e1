// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two states field by field, in readable lines.

use serde_json::Value;

use super::State;

impl State {
    /// A line for each place where `b` differs from `a`, as in `umask: "0022" -> "0077"`; none if they are equal.
    ///
    /// `ignoring` names fields (`pid`) or places within them (`fds.3`, `fds.3.offset`, `rlimits.nofile.soft`,
    /// `environ`). The comparison skips everything below a named place.
    pub fn diff(a: &Self, b: &Self, ignoring: &[&str]) -> Vec<String> {
        let value = |state| serde_json::to_value(state).expect("a state is serialisable");
        let mut lines = Vec::new();
        compare("", &value(a), &value(b), ignoring, &mut lines);
        lines
    }

    /// Panics with the lines of [`State::diff`], if there are any.
    ///
    /// # Panics
    /// If the states differ.
    #[track_caller]
    pub fn assert_same(a: &Self, b: &Self, ignoring: &[&str]) {
        let lines = Self::diff(a, b, ignoring);
        assert!(lines.is_empty(), "{} differences of state:\n  {}", lines.len(), lines.join("\n  "));
    }
}

fn compare(path: &str, a: &Value, b: &Value, ignoring: &[&str], lines: &mut Vec<String>) {
    if a == b || ignoring.contains(&path) {
        return;
    }
    match (a, b) {
        (Value::Object(left), Value::Object(right)) => {
            let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
            keys.sort_by_key(|key| (key.parse::<u64>().ok(), *key));
            keys.dedup();
            for key in keys {
                let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (left.get(key), right.get(key)) {
                    (Some(a), Some(b)) => compare(&place, a, b, ignoring, lines),
                    _ if ignoring.contains(&place.as_str()) => {}
                    (a, b) => lines.push(format!("{place}: {} -> {}", shown(a), shown(b))),
                }
            }
        }
        (Value::Array(left), Value::Array(right)) => list(path, left, right, lines),
        _ => lines.push(format!("{path}: {a} -> {b}")),
    }
}

/// Adds a line for each element that only one list has. If both lists have the same elements, adds one line with both
/// orders.
fn list(path: &str, left: &[Value], right: &[Value], lines: &mut Vec<String>) {
    let gone = only_in(left, right);
    let new = only_in(right, left);
    if gone.is_empty() && new.is_empty() {
        lines.push(format!("{path}: the same in another order: {} -> {}", together(left), together(right)));
    } else {
        let part = |word: &str, items: &[&Value]| {
            let items: Vec<String> = items.iter().map(ToString::to_string).collect();
            if items.is_empty() { String::new() } else { format!(" {word} {}", items.join(", ")) }
        };
        let comma = if gone.is_empty() || new.is_empty() { "" } else { ";" };
        lines.push(format!("{path}:{}{comma}{}", part("lost", &gone), part("gained", &new)));
    }
}

/// Elements of `a` that `b` lacks. An element that `a` has twice and `b` once is returned once.
fn only_in<'a>(a: &'a [Value], b: &[Value]) -> Vec<&'a Value> {
    let mut rest: Vec<&Value> = b.iter().collect();
    a.iter()
        .filter(|item| rest.iter().position(|other| other == item).map(|at| rest.swap_remove(at)).is_none())
        .collect()
}

fn together(items: &[Value]) -> String {
    Value::Array(items.to_vec()).to_string()
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), ToString::to_string)
}
