// SPDX-License-Identifier: MIT OR Apache-2.0
//! One spawn: templates, actions, attributes, authority, descriptors, errors. A test in which the
//! launcher matters runs through all launchers.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/model.rs"]
mod model;

mod actions;
mod asynchronous;
mod attributes;
mod authority;
mod blocking;
mod errors;
mod fallbacks;
mod fork;
mod hygiene;
mod kernel;
mod killed;
mod messages;
mod random;
mod relative;
mod sandbox;
mod shared;
mod signals;
mod snapshot;
mod stale;
mod state;
mod thread_authority;
mod trimmed;
mod validation;

use common::{Confined, Launcher};

/// In `make test` each body runs through some launchers and under one confinement. Over all bodies,
/// every pair of launcher and confinement must occur.
#[test]
fn each_launcher_meets_each_confinement() {
    let suites = [actions::MATRIX, attributes::MATRIX, authority::MATRIX, sandbox::MATRIX, state::MATRIX];
    let bodies = suites.concat();
    for &launcher in Launcher::ALL {
        for confined in [Confined::No, Confined::Docker, Confined::User] {
            let meets = bodies.iter().any(|&(under, set)| under == confined && launcher.is_in(set));
            assert!(meets, "{launcher:?} runs nothing under {confined:?}");
        }
    }
}
