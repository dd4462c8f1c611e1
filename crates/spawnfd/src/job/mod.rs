// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs: the handle of a running program, its events, and the parts of its output.
//!
//! [`Command`](crate::Command) starts runs, [`Run`] has their options, and [`Output`] is the result.

// `command.rs` starts a run, and `run_state` holds its state. The caller, an event loop, or the thread of an `engine`
// drives the run. These modules neither handle processes nor start threads:
//
// - `record.rs`: the output so far, in memory; `spill.rs`: the rest, in a file.
// - `text.rs`, `lines.rs`: convert bytes to text and to lines. The result does not depend on how the bytes are split into
//   chunks.
// - `events.rs`: a bounded queue from the engine to a consumer that wants output while the program runs.
// - `input.rs`: the program's input. `pty.rs`: a terminal as all three streams.
//
// `run_state/supervised.rs` has what a run supervises: a program, or a command inside a shell.
//
// `futures.rs` lets tasks wait for runs and events, and `child_future.rs` for a child. `driven.rs` polls futures in the
// engine's thread. `tokio.rs` implements tokio's read and write traits. `tokio_loop.rs` lets a runtime drive runs.

mod child_future;
mod command;
pub(crate) mod driven;
mod engine;
mod events;
mod exit_error;
pub(crate) mod futures;
mod handle;
mod holders;
mod input;
mod kept;
pub(crate) mod limits;
mod lines;
pub(crate) mod options;
mod order;
mod output;
mod pty;
mod reader;
mod record;
#[cfg(feature = "remote")]
pub(crate) mod remote;
mod run_state;
#[cfg(feature = "serde")]
pub(crate) mod serialize;
pub(crate) mod spill;
#[cfg(feature = "serde")]
pub(crate) mod stored;
mod stream;
mod sweep;
mod text;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tokio")]
mod tokio_loop;

pub use crate::bytes::SharedBytes;
pub(crate) use command::{connect_events, start_job};
pub use engine::EngineOrder;
#[doc(hidden)]
pub use engine::EventLoop;
#[cfg(feature = "remote")]
pub use engine::RemoteRuns;
pub use engine::RunHandle;
pub(crate) use engine::{adopt, end_idle_helpers, end_if_idle};
pub(crate) use events::Producer;
use events::events;
pub use events::{Event, EventOptions, Events, Until, WhenFull};
pub use exit_error::ExitError;
pub use handle::Job;
pub(crate) use input::Source;
use input::{Feed, FeedStatus, InputWriter};
use limits::{Limit, Limits, Resource};
pub use lines::LineEnd;
pub use options::{Leftovers, Run};
pub use output::{Drain, Fate, Leftover, Omitted, Output, Piece, Stop};
pub(crate) use pty::Pty;
pub use pty::TerminalSize;
pub use reader::{OutputReader, ReadStatus};
pub use record::Chunk;
use record::{Keep, Recorded};
pub(crate) use run_state::{Connections, ProgramEnd, RunState, Supervised};
pub use spill::{Spill, SpillEnd, SpillFile, Spilled};
pub use stream::Stream;
pub use text::{Decoder, text_of};
#[cfg(feature = "tokio")]
pub use tokio::{JobInput, JobOutput};
#[cfg(feature = "tokio")]
pub use tokio_loop::drive_runs;
