// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs. `command.rs` starts a run, and `run_state` holds its state. The caller's thread or the engine's
//! thread (`engine.rs`) drives the run. `handle.rs` is the caller's handle, `options.rs` the request and
//! `output.rs` the result. The following modules neither handle processes nor start threads:
//!
//! - [`Record`]: the output so far, in memory; the rest goes to a [`Spill`].
//! - [`Decoder`], [`Lines`]: convert bytes to text and to lines. The result does not depend on how the bytes are
//!   split into chunks.
//! - [`events()`]: a bounded queue from the engine to a consumer that wants output while the program runs.
//! - [`Source`], [`Feed`]: the program's input. [`Pty`]: a terminal as all three streams.
//! - [`Limits`]: the resources that a run may use. [`Limiter`]: the number of runs at once.
//!
//! `futures.rs` lets tasks wait for runs and events; `tokio.rs` implements tokio's read and write traits.

mod command;
mod engine;
mod events;
mod exit_error;
mod futures;
mod handle;
mod holders;
mod input;
mod kept;
mod leftovers;
mod limits;
mod lines;
mod options;
mod order;
mod output;
mod pty;
mod reader;
mod record;
mod run_state;
#[cfg(feature = "serde")]
mod serialize;
mod spill;
mod sweep;
mod text;
#[cfg(feature = "tokio")]
mod tokio;

pub use engine::RunHandle;
pub(crate) use engine::{end_if_idle, is_leaving};
pub use events::{Event, EventOptions, Events, Producer, WhenFull, events};
pub use exit_error::ExitError;
pub use handle::Job;
pub use input::{Feed, FeedStatus, InputWriter, SharedBytes, Source};
pub use limits::{Enforce, Enforcer, Limit, Limits, Resource};
pub use lines::LineEnd;
pub use options::{Leftovers, Run};
pub use output::{Drain, Fate, Leftover, Omitted, Output, Piece, Stop};
pub use pty::{Pty, TerminalSize};
pub use reader::{OutputReader, ReadStatus};
pub use record::{Chunk, Keep, Record, Recorded, Stream};
pub use spill::{Spill, SpillEnd, SpillFile, Spilled};
pub use text::{Decoder, text_of};
#[cfg(feature = "tokio")]
pub use tokio::{JobInput, JobOutput};
