// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs. `command.rs` starts them; `run_state` holds the state of one, which its caller's thread or the engine's thread
//! (`engine.rs`) moves on. `handle.rs` is the caller's handle, `options.rs` the request and `output.rs` the result. The other modules neither
//! know a process nor start a thread:
//!
//! - [`Record`]: what has come out, in memory; its rest in a [`Spill`].
//! - [`Decoder`], [`Lines`]: bytes as text, however they are cut.
//! - [`events()`]: a bounded queue from the engine to who wants to see output as it comes.
//! - [`Source`], [`Feed`]: what goes in. [`Pty`]: a terminal for it all.
//! - [`Limits`]: what a run may use. [`Limiter`]: how many runs at once.
//!
//! `futures.rs` waits for runs and events in tasks; `tokio.rs` reads and writes as tokio does.

mod command;
mod engine;
mod events;
mod futures;
mod handle;
mod holders;
mod input;
mod kept;
mod leftovers;
mod limits;
mod lines;
mod options;
mod output;
mod pty;
mod record;
mod run_state;
mod spill;
mod sweep;
mod text;
#[cfg(feature = "tokio")]
mod tokio;

pub use engine::RunHandle;
pub(crate) use engine::{end_if_idle, is_leaving};
pub use events::{Event, EventOptions, Events, Producer, WhenFull, events};
pub use handle::Job;
pub use input::{Feed, Feeding, InputWriter, SharedBytes, Source};
pub use limits::{Enforce, Enforcer, Limit, Limits, Resource};
pub use lines::LineEnd;
pub use options::{Leftovers, Run};
pub use output::{Drain, ExitError, Fate, Leftover, Output, Stop};
pub use pty::{Pty, TerminalSize};
pub use record::{Chunk, Keep, Record, Recorded, Stream};
pub use spill::{Spill, SpillEnd, SpillFile, Spilled};
pub use text::Decoder;
#[cfg(feature = "tokio")]
pub use tokio::{JobInput, JobOutput};
