// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between owner and parked process: the owner's half of `spawnfd_parked::protocol`.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spawnfd_child::{Arg, Check, ChildStage, Failure, Identity, Op, Outcome, PENDING, Plan, Step, SystemCall};
use spawnfd_parked::protocol::{
    self, Argument, CheckKind, Handshake as State, Op as Code, Page as Layout, ParkField, ReplyKind,
};
use spawnfd_sys::{Call, Errno, RawFd, SharedWords, abi};
use zerocopy::{FromBytes, IntoBytes};

use crate::child::interned;
use crate::cold_reason::ColdReason;
use crate::host::authority::Reported;

/// The longest message, in bytes.
pub(super) const MAX_MESSAGE: usize = protocol::MAX_MESSAGE;
/// The action index of a step that belongs to the context, not to an action of the caller.
pub(super) const CONTEXT: u16 = protocol::CONTEXT;

// Both crates must use the kernel's descriptor limit, and the same value for a pending report.
const _: () = assert!(protocol::MAX_DESCRIPTORS == spawnfd_sys::MAX_PASSED);
const _: () = assert!(protocol::REPORT_PENDING == PENDING);

/// The calls that a parked process does not make if a filter kills the process for them, and their bits.
const CALLS: [(Call, protocol::Call); 5] = [
    (Call::CloseRange, protocol::Call::CloseRange),
    (Call::Openat2, protocol::Call::Openat2),
    (Call::Statx, protocol::Call::Statx),
    (Call::Faccessat2, protocol::Call::Faccessat2),
    (Call::Execveat, protocol::Call::Execveat),
];

/// The calling thread's state. The owner writes this state to the shared page after it has sent the request.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Steps that the parked process performs before the caller's actions. They refer to sources by
    /// index in the request.
    pub(super) steps: Vec<Op<'static>>,
    pub(super) make_default: u64,
    pub(super) make_ignored: u64,
    pub(super) mask: u64,
}

/// The shared page, which is accessed word by word.
pub(super) type Page = SharedWords<WORDS>;
const WORDS: usize = Layout::SIZE / WORD;
const WORD: usize = size_of::<u64>();
/// The number of bytes in a request before its steps.
const HEAD: usize = size_of::<protocol::Request>();

/// Converts the offset of an eight-byte field to an index of words.
const fn word(offset: usize) -> usize {
    assert!(offset.is_multiple_of(WORD));
    offset / WORD
}

const HANDSHAKE: usize = word(Layout::HANDSHAKE);
const REPORT: usize = word(Layout::REPORT);

/// The value of the status word for this state of the request with this serial number.
fn status_word(state: State, serial: u32) -> u64 {
    u64::from(serial) * protocol::HANDSHAKE_STATES as u64 + state as u64
}

/// The owner's view of the handshake for one request.
#[derive(Debug)]
pub(super) struct Handshake {
    page: Arc<Page>,
    serial: u32,
}

impl Handshake {
    /// Begins the handshake of the next request: resets the page's report and sets its status word.
    pub(super) fn begin(page: &Arc<Page>, serial: u32) -> Handshake {
        page.get()[REPORT].store(PENDING, Ordering::Relaxed);
        page.get()[HANDSHAKE].store(status_word(State::Requested, serial), Ordering::Release);
        Handshake { page: page.clone(), serial }
    }

    /// The progress or the failure of the parked process; its success only if the process executes other programs.
    pub(super) fn report(&self) -> Outcome {
        Outcome::of(self.page.get()[REPORT].load(Ordering::Acquire))
    }

    /// The state of the request. A status word with another request's serial number counts as a
    /// refusal.
    pub(super) fn state(&self) -> State {
        let word = self.page.get()[HANDSHAKE].load(Ordering::Acquire);
        let all = [
            State::Requested,
            State::Committed,
            State::Withdrawn,
            State::Taken,
            State::Became,
            State::Failed,
            State::Refused,
        ];
        all.into_iter().find(|state| status_word(*state, self.serial) == word).unwrap_or(State::Refused)
    }

    /// The action that failed, once the state is [`State::Failed`]: the action's index, and the
    /// errno. `None` if a step of the context (the calling thread's state) failed.
    pub(super) fn failed_action(&self) -> Option<(u16, Errno)> {
        match self.report() {
            Outcome::Failed(Failure { stage: ChildStage::Action(index), errno }) if index < CONTEXT => {
                Some((index, errno))
            }
            _ => None,
        }
    }

    /// Changes the state from `from` to `to`, and wakes the parked process. Returns false if the
    /// state was not `from`.
    pub(super) fn change(&self, from: State, to: State) -> bool {
        let [from, to] = [from, to].map(|state| status_word(state, self.serial));
        let changed =
            self.page.get()[HANDSHAKE].compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.page.wake();
        changed
    }

    /// Waits while the request is in the state `while_in`, for `timeout` at most.
    pub(super) fn wait(&self, while_in: State, timeout: Duration) {
        self.page.wait(status_word(while_in, self.serial), timeout);
    }
}

/// The pid that the kernel noted in the page when it created the child.
pub(super) fn child(page: &Page) -> i32 {
    let [first, second, third, fourth, ..] = page.get()[word(Layout::CHILD)].load(Ordering::Acquire).to_ne_bytes();
    i32::from_ne_bytes([first, second, third, fourth])
}

/// Writes a context (the calling thread's state) to the shared page.
///
/// # Errors
/// An action that a parked process cannot perform.
pub(super) fn publish(page: &Page, context: &Context) -> Result<(), ColdReason> {
    if context.steps.len() > protocol::MAX_FIRST {
        return Err(ColdReason::Limits);
    }
    let words = page.get();
    let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
    set(word(Layout::FIRST), context.steps.len() as u64);
    set(word(Layout::MAKE_DEFAULT), context.make_default);
    set(word(Layout::MAKE_IGNORED), context.make_ignored);
    set(word(Layout::MASK), context.mask);
    for (first, op) in (word(Layout::STEPS)..).step_by(word(size_of::<protocol::Step>())).zip(&context.steps) {
        // None of these steps has a string.
        let Some(step) = encode_step(CONTEXT, op, &mut Vec::new(), true)? else { continue };
        for (at, bytes) in (first..).zip(step.as_bytes().as_chunks().0) {
            set(at, u64::from_ne_bytes(*bytes));
        }
    }
    Ok(())
}

/// The parts of a request besides the plan.
pub(super) struct StartRequest<'a> {
    /// The cgroup of the program, which the parked process joins first.
    pub(super) join: Option<Step<'static>>,
    /// The steps of the plan. In a sandbox, the steps that the sandbox command has not performed.
    pub(super) steps: &'a [Step<'static>],
    /// The number of leading arguments of the plan that belong to the sandbox command.
    pub(super) skip: usize,
    /// Sources that replace the program's descriptors at these numbers. A source replaces a
    /// descriptor only if both refer to the same file.
    pub(super) handed_on: &'a [(usize, RawFd)],
    /// True if the program keeps the environment of the parked process.
    pub(super) own_environment: bool,
    /// True if the parked process execs the program. Then actions that take effect only at exec are allowed.
    pub(super) executes: bool,
    /// The number of sources.
    pub(super) sources: usize,
}

/// Encodes the request for `plan`.
///
/// # Errors
/// An action that a parked process cannot perform.
pub(super) fn encode(serial: u32, plan: &Plan<'_>, request: &StartRequest<'_>) -> Result<Vec<u8>, ColdReason> {
    let Some(keep) = &plan.keep else { return Err(ColdReason::InheritedDescriptors) };
    // No parked process sees other owners of files than its owner.
    if plan.owners_mapped {
        return Err(ColdReason::Namespaces);
    }
    // No parked process runs a shell instead of a program of an unknown format, and no command asks for both.
    if plan.shell.is_some() {
        return Err(ColdReason::Unknown);
    }
    // The parked process keeps the sources at numbers from `above` on, so the plan must not use such a number.
    if plan.highest >= plan.above && plan.highest > 2 {
        return Err(ColdReason::DescriptorNumbers);
    }
    let mut strings = Vec::with_capacity(8 << 10);
    let argv_length = copy(plan.argv.iter().skip(request.skip), &mut strings);
    let envc = if request.own_environment { 0 } else { plan.envp.len() };
    let env_length = copy(plan.envp.iter().take(envc), &mut strings);
    // The header needs the counts of the parts behind it, so write it last.
    let mut message = Vec::with_capacity(512 + strings.len());
    message.extend_from_slice(&[0; HEAD]);
    for &(source, number) in request.handed_on {
        let (op, a) = (Code::Replace as u16, source as i32);
        let step = protocol::Step { op, index: CONTEXT, a, b: number, ..Default::default() };
        message.extend_from_slice(step.as_bytes());
    }
    for Step { index, op } in request.join.iter().chain(request.steps) {
        if let Some(step) = encode_step(*index, op, &mut strings, request.executes)? {
            message.extend_from_slice(step.as_bytes());
        }
    }
    let steps = (message.len() - HEAD) / size_of::<protocol::Step>();
    let (path, checks) = if request.executes { encode_program(plan, &mut strings, &mut message) } else { (0, 0) };
    keep.iter().for_each(|fd| message.extend_from_slice(&fd.to_ne_bytes()));
    message.extend_from_slice(&strings);
    let head = protocol::Request {
        version: protocol::VERSION,
        serial,
        steps: steps as u32,
        sources: request.sources as u32,
        keep: keep.len() as u32,
        argc: (plan.argv.len() - request.skip) as u32,
        envc: envc as u32,
        argv_length: argv_length as u32,
        env_length: env_length as u32,
        strings: strings.len() as u32,
        above: plan.above,
        flags: if request.own_environment { protocol::FLAG_OWN_ENVIRONMENT } else { 0 },
        program: plan.program.source.map_or(protocol::NO_SOURCE, |source| source as i32),
        path,
        checks: checks as u32,
        killed: CALLS
            .iter()
            .filter(|(call, _)| plan.killed_calls.contains(*call))
            .map(|(_, bit)| 1 << *bit as u32)
            .sum(),
    };
    message[..HEAD].copy_from_slice(head.as_bytes());
    if message.len() > MAX_MESSAGE { Err(ColdReason::ArgumentsTooLong) } else { Ok(message) }
}

/// Encodes the request to fork a parked child that has its own socket and page.
pub(super) fn encode_fork(measure: bool) -> Vec<u8> {
    let head = protocol::Request {
        version: protocol::VERSION,
        sources: protocol::FORK_COUNT as u32,
        strings: 1,
        above: protocol::FIRST_DESCRIPTOR as i32,
        flags: protocol::FLAG_FORK | if measure { protocol::FLAG_MEASURE } else { 0 },
        program: protocol::NO_SOURCE,
        ..Default::default()
    };
    // The strings of every request end with a NUL.
    [head.as_bytes(), &[0]].concat()
}

/// Appends the strings of a list. Returns their length in bytes.
fn copy<'a>(list: impl Iterator<Item = &'a CStr>, strings: &mut Vec<u8>) -> usize {
    let before = strings.len();
    list.for_each(|string| strings.extend_from_slice(string.to_bytes_with_nul()));
    strings.len() - before
}

/// Adds the checks of the program to execute. Returns the offset of its path, and the number of checks.
fn encode_program(plan: &Plan<'_>, strings: &mut Vec<u8>, message: &mut Vec<u8>) -> (u32, usize) {
    let mut text = |string: &CStr| append(string.to_bytes_with_nul(), strings);
    let path = text(&plan.program.pinned.path);
    for check in &*plan.program.pinned.checks {
        let check = match check {
            Check::Same { path, identity } => encode_check(CheckKind::Same, text(path), identity),
            Check::SameSource { identity } => encode_check(CheckKind::SameSource, path, identity),
            Check::Absent { path } => {
                protocol::Check { kind: CheckKind::Absent as u32, path: text(path), ..Default::default() }
            }
        };
        message.extend_from_slice(check.as_bytes());
    }
    (path, plan.program.pinned.checks.len())
}

fn encode_check(kind: CheckKind, path: u32, file: &Identity) -> protocol::Check {
    protocol::Check {
        kind: kind as u32,
        path,
        device_major: file.device.0,
        device_minor: file.device.1,
        mode: file.mode.into(),
        owner: file.owner,
        group: file.group,
        ctime_nanoseconds: file.ctime.1,
        mtime_nanoseconds: file.mtime.1,
        unused: 0,
        inode: file.inode,
        size: file.size,
        ctime: file.ctime.0,
        mtime: file.mtime.0,
    }
}

/// Checks that a parked process can perform an action. `executes` is true if it then execs the program. Other parked
/// processes have read the affected state already, when they started.
fn check_action(op: &Op<'_>, executes: bool) -> Result<(), ColdReason> {
    Err(match op {
        Op::DenySetgroups | Op::UserMap { .. } | Op::GroupMap { .. } | Op::JoinNamespace { .. } => {
            ColdReason::Namespaces
        }
        _ if executes => return Ok(()),
        // If a later action of the parked process fails, a cold start repeats this action. Then the file exists, and
        // O_EXCL fails.
        Op::Open { how, .. } if how.flags & u64::from(abi::O_EXCL) != 0 => ColdReason::ExclusiveOpen,
        Op::Limit { resource: abi::RLIMIT_STACK | abi::RLIMIT_AS | abi::RLIMIT_DATA, .. } => ColdReason::MemoryLimits,
        Op::Chroot { .. } => ColdReason::Chroot,
        Op::Affinity { .. } => ColdReason::Affinity,
        Op::UserIds { .. }
        | Op::GroupIds { .. }
        | Op::Groups { .. }
        | Op::Capabilities { .. }
        | Op::KeepCapabilities => ColdReason::IdsOrCapabilities,
        _ => return Ok(()),
    })
}

/// Encodes one step. Returns `None` if the owner performs the step. `executes` is true if the parked
/// process execs the program.
fn encode_step(
    index: u16,
    op: &Op<'_>,
    strings: &mut Vec<u8>,
    executes: bool,
) -> Result<Option<protocol::Step>, ColdReason> {
    use protocol::Step;
    check_action(op, executes)?;
    if let Some(call) = op.call() {
        return Ok(Some(encode_call(index, &call, strings)));
    }
    let mut text = |bytes: &[u8]| append(bytes, strings);
    let step = |op: Code, a: i32, b: i32| Step { op: op as u16, index, a, b, ..Step::default() };
    let source = |source: usize| source as i32;
    let close_range = |first, last| Step { x: first, y: last, ..step(Code::CloseRange, 0, 0) };
    Ok(Some(match *op {
        Op::Place { source, to } => {
            let args = [Arg::Source(source), Arg::Number(to as usize), Arg::Number(0)];
            encode_call(index, &SystemCall { number: abi::__NR_dup3, args }, strings)
        }
        Op::Close { fd } => close_range(fd as u64, fd as u64),
        Op::CloseRange { first, last } => close_range(first.into(), last.into()),
        Op::Open { dir, ref path, ref how, to } => {
            let (dir, path) = (dir.map_or(protocol::NO_SOURCE, source), text(path.to_bytes_with_nul()));
            Step { text: path, x: how.flags, y: how.mode, z: how.resolve, ..step(Code::Open, dir, to) }
        }
        Op::OpenNull { to } => {
            let flags = if to == 0 { abi::O_RDONLY } else { abi::O_WRONLY };
            Step { text: text(b"/dev/null\0"), x: flags.into(), ..step(Code::Open, protocol::NO_SOURCE, to) }
        }
        Op::Tcsetpgrp { fd } => step(Code::Tcsetpgrp, fd, 0),
        Op::OomScoreAdj { value, .. } => step(Code::OomScoreAdj, value, 0),
        Op::Cgroup { dir } => step(Code::Cgroup, source(dir), 0),
        Op::Capabilities { ref sets } => {
            Step { text: text(sets.words().map(u64::to_ne_bytes).as_flattened()), ..step(Code::Capabilities, 0, 0) }
        }
        Op::Register { .. } => return Ok(None),
        // Not reached: `check_action` has refused every other action, or `op.call()` has encoded it.
        _ => return Err(ColdReason::Unknown),
    }))
}

/// Encodes a system call. If the data of its last argument fit, the step contains them, because a step in the page has
/// no strings.
fn encode_call(index: u16, call: &SystemCall<'_>, strings: &mut Vec<u8>) -> protocol::Step {
    let (mut kinds, mut length, mut fields) = (0, 0, [0; 4]);
    for (at, arg) in call.args.iter().enumerate() {
        let data: Vec<u8> = match *arg {
            Arg::Number(_) | Arg::Source(_) => Vec::new(),
            Arg::Text(text) => text.to_bytes_with_nul().to_vec(),
            Arg::Words(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            Arg::Ints(ints) => ints.iter().flat_map(|int| int.to_ne_bytes()).collect(),
        };
        let kind = match *arg {
            Arg::Number(number) => {
                fields[at] = number as u64;
                Argument::Number
            }
            Arg::Source(source) => {
                fields[at] = source as u64;
                Argument::Source
            }
            Arg::Words(_) | Arg::Ints(_) if at == 2 && data.len() <= 2 * WORD => {
                let mut both = [0; 2 * WORD];
                both[..data.len()].copy_from_slice(&data);
                let (words, _) = both.as_chunks();
                (fields[2], fields[3]) = (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]));
                Argument::Data
            }
            _ => {
                length = data.len() as u32;
                fields[at] = append(&data, strings).into();
                Argument::Text
            }
        };
        kinds |= (kind as i32) << (at * protocol::ARGUMENT_BITS);
    }
    let [x, y, z, w] = fields;
    protocol::Step { op: Code::Call as u16, index, a: call.number as i32, b: kinds, text: length, x, y, z, w }
}

/// Appends bytes to the strings. Returns their offset.
fn append(bytes: &[u8], strings: &mut Vec<u8>) -> u32 {
    let at = strings.len() as u32;
    strings.extend_from_slice(bytes);
    at
}

/// Builds the value of the environment variable that tells a program to park.
pub(super) fn park_variable(value: impl FnMut(ParkField) -> String) -> String {
    ParkField::ALL.map(value).join(":")
}

/// A reply of a parked process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// The process is parked. It reports the names of the variables that it has read, the files
    /// that it has loaded, the modules that it has looked up, its private memory in bytes, and its
    /// authority. A forked child has its parent's variables, files, modules and authority.
    Parked {
        pid: i32,
        private: u64,
        variables: Vec<&'a [u8]>,
        files: Vec<&'a [u8]>,
        modules: Vec<&'a [u8]>,
        authority: Reported<'a>,
    },
    /// The process cannot be parked.
    Cannot { why: &'a [u8] },
}

/// Decodes a reply. Returns `None` if the message is not a reply.
pub(super) fn decode(message: &[u8]) -> Option<Reply<'_>> {
    let (head, text) = protocol::Reply::read_from_prefix(message).ok()?;
    if head.version != protocol::VERSION {
        return None;
    }
    if head.kind == ReplyKind::Cannot as u32 {
        return Some(Reply::Cannot { why: text });
    }
    (head.kind == ReplyKind::Parked as u32).then(|| {
        let mut strings = text.split(|&byte| byte == 0);
        let mut list = || strings.by_ref().take_while(|text| !text.is_empty()).collect();
        let (variables, files, modules) = (list(), list(), list());
        let mut string = || strings.next().unwrap_or_default();
        let authority = Reported { status: string(), label: string(), securebits: head.securebits };
        Reply::Parked { pid: head.pid, private: head.private_bytes, variables, files, modules, authority }
    })
}

impl ColdReason {
    /// Decodes the reason that a program reports.
    pub(super) fn decode(text: &[u8]) -> ColdReason {
        let text = &*String::from_utf8_lossy(text);
        let begins = |pattern: &str| pattern.strip_suffix('…').is_some_and(|begin| text.starts_with(begin));
        let fixed = ColdReason::FIXED.iter().find(|reason| reason.word() == text);
        let varying = ColdReason::VARYING.iter().find(|(pattern, _)| begins(pattern));
        fixed
            .copied()
            .or(varying.map(|(_, reason)| ColdReason::with_text(*reason, text)))
            .unwrap_or(ColdReason::Unknown)
    }

    /// The reason with this text. [`ColdReason::Unknown`] if there have been too many texts.
    pub(super) fn with_text(reason: fn(&'static str) -> ColdReason, text: &str) -> ColdReason {
        interned(text).map_or(ColdReason::Unknown, reason)
    }
}

#[cfg(test)]
mod tests;
