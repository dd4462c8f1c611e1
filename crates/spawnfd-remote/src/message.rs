// SPDX-License-Identifier: MIT OR Apache-2.0
//! The payloads of frames. All but data are MessagePack; structs are maps with the names of their fields.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use spawnfd::internal::{RemoteCall, Stored};
use spawnfd::{Error, Output};

use crate::frame::Malformed;

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The bytes that a side accepts of each call before it sends a `Credit` frame.
pub const FIRST_CREDIT: u32 = 256 << 10;

/// The largest credit of a call.
pub const MAX_CREDIT: i64 = 16 << 20;

/// The payload of `Hello` from the far side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FarHello {
    /// The least and the greatest version that the server speaks.
    pub versions: (u32, u32),
    /// The version of the program.
    pub program: String,
    /// The host name.
    pub host: String,
    /// The processor, as `uname -m` prints it.
    pub machine: String,
    /// The server's process id.
    pub pid: u32,
    /// The calls that the server knows.
    pub calls: Vec<String>,
    /// The command on the server's machine that packs and unpacks files. Empty: there is none.
    pub files: Vec<ByteBuf>,
}

/// The payload of `Hello` from the near side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NearHello {
    /// The least and the greatest version that the client speaks.
    pub versions: (u32, u32),
    /// The version of the program.
    pub program: String,
    /// The time in seconds without a frame after which a side regards the connection as lost. 0: no such time.
    pub lease: f64,
}

/// The effect of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Runs a program to its end.
    #[default]
    Run,
    /// Starts a program as a job.
    Start,
    /// Opens a session.
    Session,
    /// Starts a command in a session as a job.
    Command,
}

/// The payload of `Call`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallMessage {
    /// The effect of the call.
    pub what: What,
    /// The program, its options and its environment. Of a command of a session: its text as the first item of argv, and
    /// the variables that it alone has.
    pub call: RemoteCall,
    /// The call that has opened the session, for a command.
    pub session: u32,
    /// Of a job: its output is not wanted, only its result.
    pub is_silent: bool,
    /// The program's whole input.
    pub input: Option<ByteBuf>,
    /// The length of the program's whole input, which comes in `Input` frames. `None`: there is no such input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_length: Option<u64>,
}

/// The payload of `Started`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartedMessage {
    /// The program's process id on its machine.
    pub pid: u32,
    /// The tier of control of the process tree, as in a result.
    pub tree: String,
}

/// The payload of `Order`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderMessage {
    /// Ends the call: SIGTERM to the tree, and SIGKILL after this number of seconds. Nothing: after the call's own grace.
    Stop(Option<f64>),
    /// Sends a signal to the program, or to the whole tree.
    Signal(i32, bool),
    /// Changes the size of the terminal: rows and columns.
    Resize(u16, u16),
    /// Interrupts the running command of a session.
    Interrupt,
    /// Asks for the processes of a session: the result of this call lists them.
    Processes(u32),
    /// Closes a session: the shell reads the end of its input, and is killed after the session's grace.
    Close,
}

/// A process of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMessage {
    /// The process id on its machine.
    pub pid: u32,
    /// The name (comm).
    pub name: String,
}

/// The payload of `Result`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultMessage<O = Stored<Output>> {
    /// The result of a run, a job or a command. Output that came in `Kept` frames precedes that of the result.
    Output(O),
    /// The processes of a session.
    Processes(Vec<ProcessMessage>),
    /// The session has ended.
    Closed,
}

/// The payload of `Error`.
pub type ErrorMessage = Stored<Error>;

/// Encodes a payload.
///
/// # Panics
/// Never: the messages have no value that cannot be encoded.
pub fn pack(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("a message can be encoded")
}

/// How deep values can be nested. No message comes near it.
const MAX_DEPTH: usize = 64;

/// Decodes a payload.
///
/// # Errors
/// The payload is not this message. `what` names it.
pub fn unpack<T: DeserializeOwned>(payload: &[u8], what: &str) -> Result<T, Malformed> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    // The default lets a payload use more stack than a thread has.
    deserializer.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut deserializer).map_err(|error| Malformed(format!("a wrong {what}: {error}")))
}
