// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the library's tables as JSON. `scripts/generate` writes signatures, stubs and pages from them.

#[path = "tables/actions.rs"]
mod actions;

use serde_json::{Value as Json, json};
use spawnfd::internal::NONINTERACTIVE;
use spawnfd::job::Stop;
use spawnfd::options::{self, Kind, OptionSpec, Value, Word};

fn main() {
    let stops: Vec<_> = Stop::ALL.iter().map(|stop| stop.name()).collect();
    let tables = json!({
        "actions": actions::rows(),
        "noninteractive": NONINTERACTIVE,
        "options": options::all().map(option).collect::<Vec<_>>(),
        "stops": stops,
    });
    println!("{tables}");
}

fn option(option: &OptionSpec) -> Json {
    let (kind, words) = match option.kind {
        Kind::Word(words) => ("Word".to_owned(), words),
        Kind::Stream(words) => ("Stream".to_owned(), words),
        kind => (format!("{kind:?}"), &[][..]),
    };
    json!({
        "name": option.name,
        "kind": kind,
        "words": words.iter().map(|(word, doc): &Word| json!([word, doc])).collect::<Vec<_>>(),
        "optional": option.optional,
        "group": option.group.name(),
        "calls": option.calls.iter().map(|call| call.name()).collect::<Vec<_>>(),
        "default": value((option.default)()),
        "doc": option.doc,
    })
}

fn value(value: Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Integer(number) => json!(number),
        Value::Number(number) => json!(number),
        Value::Duration(time) => json!(time.as_secs_f64()),
        Value::Text(text) => json!(text.to_string_lossy()),
        Value::Pair(first, second) => json!([first, second]),
        _ => Json::Null,
    }
}
