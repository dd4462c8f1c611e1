// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the library's tables as JSON. `scripts/generate` writes signatures, stubs and pages from them.

#[path = "tables/actions.rs"]
mod actions;

use serde_json::json;

fn main() {
    println!("{}", json!({ "actions": actions::rows() }));
}
