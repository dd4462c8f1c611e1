// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of actions as JSON.

use serde_json::{Value, json};
use spawnfd::internal::{ACTIONS, ATTRIBUTES, Action, Argument};

pub fn rows() -> Vec<Value> {
    let argument = |argument: &Argument| {
        json!({
            "name": argument.name,
            "kind": format!("{:?}", argument.kind),
            "default": argument.default,
            "accepts_none": argument.accepts_none(),
        })
    };
    let row = |attribute: bool| {
        move |row: &Action| {
            json!({
                "name": row.name,
                "class": row.class(),
                "flag": row.flag(),
                "arguments": row.arguments.iter().map(argument).collect::<Vec<_>>(),
                "attribute": attribute,
                "effect": row.effect,
                "doc": row.doc,
            })
        }
    };
    ACTIONS.iter().map(row(false)).chain(ATTRIBUTES.iter().map(row(true))).collect()
}
