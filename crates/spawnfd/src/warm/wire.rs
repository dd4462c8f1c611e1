// SPDX-License-Identifier: MIT OR Apache-2.0
//! What owner and parked process say to each other: the owner's half of `warm/main/protocol.h`.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spawnfd_child::{CapabilitySets, Check, Identity, Op, Outcome, PENDING, Plan, Step};
use spawnfd_sys::{RawFd, SharedWords, abi};

const PROTOCOL: u32 = 1;
/// The longest message, in bytes.
pub(super) const MAX_MESSAGE: usize = 128 << 10;

/// What the owner has found of the calling thread, when the request is under way: left in the page.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Done first, and no action of the caller's. Sources by their place in the request.
    pub(super) steps: Vec<Op<usize>>,
    pub(super) make_default: u64,
    pub(super) make_ignored: u64,
    pub(super) mask: u64,
}

/// The page: struct spawnfd_page.
pub(super) type Page = SharedWords<WORDS>;
const WORDS: usize = FIRST_STEP + MAX_FIRST * STEP;
const CLAIM: usize = 0;
const CHILD: usize = 1;
const INDEX: usize = 2;
const FIRST: usize = 3;
/// What became of who is to execute something: [`spawnfd_child::Outcome::of`].
const REPORT: usize = 7;
const FIRST_STEP: usize = 8;
const STEP: usize = 5;
const MAX_FIRST: usize = 24;

/// Where a request stands: enum spawnfd_state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Offered,
    Go,
    Withdrawn,
    Taken,
    Became,
    /// A step failed: its index, and the error.
    Failed(u32, i32),
    Refused,
}

impl State {
    fn claim(self, serial: u32) -> u64 {
        let number = match self {
            State::Offered => 0,
            State::Go => 1,
            State::Withdrawn => 2,
            State::Taken => 3,
            State::Became => 4,
            State::Failed(..) => 5,
            State::Refused => 6,
        };
        u64::from(serial) * 8 + number
    }
}

/// A request that was offered, seen from here.
#[derive(Debug)]
pub(super) struct Claim {
    page: Arc<Page>,
    serial: u32,
}

impl Claim {
    /// The next request of this page.
    pub(super) fn offer(page: &Arc<Page>, serial: u32) -> Claim {
        page.get()[REPORT].store(PENDING, Ordering::Relaxed);
        page.get()[CLAIM].store(State::Offered.claim(serial), Ordering::Release);
        Claim { page: page.clone(), serial }
    }

    /// What became of the exec, for one that executes something.
    pub(super) fn report(&self) -> Outcome {
        Outcome::of(self.page.get()[REPORT].load(Ordering::Acquire))
    }

    pub(super) fn state(&self) -> State {
        let [word, failure, index] = [CLAIM, CHILD, INDEX].map(|at| self.page.get()[at].load(Ordering::Acquire));
        let failed = State::Failed(index as u32, (failure >> 32) as i32);
        let all = [State::Offered, State::Go, State::Withdrawn, State::Taken, State::Became, failed];
        all.into_iter().find(|state| state.claim(self.serial) == word).unwrap_or(State::Refused)
    }

    /// Takes it from one state to the next, if it is in that; and tells.
    pub(super) fn turn(&self, from: State, to: State) -> bool {
        let [from, to] = [from, to].map(|state| state.claim(self.serial));
        let turned = self.page.get()[CLAIM].compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.page.wake();
        turned
    }

    /// Waits while it is in that state, no longer than so.
    pub(super) fn wait(&self, while_in: State, timeout: Duration) {
        self.page.wait(while_in.claim(self.serial), timeout);
    }
}

/// The child that was born with this page, as the kernel has noted it.
pub(super) fn child(page: &Page) -> i32 {
    page.get()[CHILD].load(Ordering::Acquire) as i32
}

/// Leaves a context in the page.
///
/// # Errors
/// What a parked process cannot do.
pub(super) fn leave(page: &Page, context: &Context) -> Result<(), &'static str> {
    if context.steps.len() > MAX_FIRST {
        return Err("limits");
    }
    let words = page.get();
    let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
    set(FIRST, context.steps.len() as u64);
    set(FIRST + 1, context.make_default);
    set(FIRST + 2, context.make_ignored);
    set(FIRST + 3, context.mask);
    for (at, op) in (FIRST_STEP..).step_by(STEP).zip(&context.steps) {
        // None of these has a text.
        let Some(Wired { op, a, b, numbers, .. }) = wire(op, &mut Vec::new(), true)? else { continue };
        set(at, u64::from(op) | u64::from(CONTEXT) << 16 | u64::from(a as u32) << 32);
        set(at + 1, u64::from(b as u32));
        (at + 2..).zip(numbers).for_each(|(at, number)| set(at, number));
    }
    Ok(())
}

/// The operation that no plan has.
const REPLACE: u16 = 20;

/// The index that steps of the context have.
pub(super) const CONTEXT: u16 = u16::MAX;

/// struct spawnfd_step, but for its padding there is none.
#[derive(Default)]
struct Wired {
    op: u16,
    a: i32,
    b: i32,
    text: u32,
    numbers: [u64; 3],
}

/// What is asked beside the plan.
pub(super) struct Request<'a> {
    /// The cgroup that a child would be born in: joined first.
    pub(super) birth: Option<Step>,
    /// The steps: the plan's, or what is left of them in a sandbox.
    pub(super) steps: &'a [Step],
    /// So many of the plan's arguments are another program's.
    pub(super) skip: usize,
    /// Sources to put in the place of what the program has as that number, if that is the same.
    pub(super) handed_on: &'a [(usize, RawFd)],
    /// The environment stays what it is.
    pub(super) own_environment: bool,
    /// It is to be executed, by who can do what exec is needed for.
    pub(super) executes: bool,
    pub(super) sources: Vec<RawFd>,
}

/// A message that asks for `plan`.
///
/// # Errors
/// What a parked process cannot do.
pub(super) fn encode(serial: u32, plan: &Plan, request: &Request<'_>) -> Result<Vec<u8>, &'static str> {
    let Some(keep) = &plan.keep else { return Err("inherited descriptors") };
    // The numbers that sources wait at lie between those that count.
    if plan.highest >= plan.above && plan.highest > 2 {
        return Err("descriptor numbers");
    }
    let mut strings = Vec::with_capacity(8 << 10);
    let argv_length = copy(plan.argv.iter().skip(request.skip), &mut strings);
    let envc = if request.own_environment { 0 } else { plan.envp.len() };
    let env_length = copy(plan.envp.iter().take(envc), &mut strings);
    let mut wired = Vec::with_capacity(1 + plan.steps.len());
    for &(source, number) in request.handed_on {
        wired.push((CONTEXT, Wired { op: REPLACE, a: source as i32, b: number, ..Wired::default() }));
    }
    for Step { index, op } in request.birth.iter().chain(request.steps) {
        if let Some(step) = wire(op, &mut strings, request.executes)? {
            wired.push((*index, step));
        }
    }
    let (path, checks) = if request.executes { program(plan, &mut strings) } else { (0, Vec::new()) };
    let source = plan.program.source.map_or(-1, |source| source as i32);
    let mut message = Vec::with_capacity(512 + strings.len());
    let flags = if request.own_environment { OWN_ENVIRONMENT } else { 0 };
    let counts = [
        wired.len(),
        request.sources.len(),
        keep.len(),
        plan.argv.len() - request.skip,
        envc,
        argv_length,
        env_length,
        strings.len(),
    ];
    head(&mut message, serial, counts, plan.above, flags, [source as u32, path, checks.len() as u32]);
    for (index, Wired { op, a, b, text, numbers }) in wired {
        message.extend_from_slice(&op.to_ne_bytes());
        message.extend_from_slice(&index.to_ne_bytes());
        message.extend_from_slice(&a.to_ne_bytes());
        message.extend_from_slice(&b.to_ne_bytes());
        message.extend_from_slice(&text.to_ne_bytes());
        numbers.iter().for_each(|number| message.extend_from_slice(&number.to_ne_bytes()));
    }
    checks.iter().for_each(|check| message.extend_from_slice(check));
    keep.iter().for_each(|fd| message.extend_from_slice(&fd.to_ne_bytes()));
    message.extend_from_slice(&strings);
    if message.len() > MAX_MESSAGE { Err("arguments too long") } else { Ok(message) }
}

/// A message that asks for a child that waits, with a socket and a page of its own.
pub(super) fn encode_fork(measure: bool) -> Vec<u8> {
    let mut message = Vec::with_capacity(64);
    let flags = FORK | if measure { MEASURE } else { 0 };
    head(&mut message, 0, [0, 2, 0, 0, 0, 0, 0, 1], 3, flags, [u32::MAX, 0, 0]);
    message.push(0);
    message
}

const OWN_ENVIRONMENT: u32 = 1;
const FORK: u32 = 2;
const MEASURE: u32 = 4;

/// struct spawnfd_request.
fn head(message: &mut Vec<u8>, serial: u32, counts: [usize; 8], above: i32, flags: u32, program: [u32; 3]) {
    [PROTOCOL, serial].iter().for_each(|number| message.extend_from_slice(&number.to_ne_bytes()));
    counts.iter().for_each(|count| message.extend_from_slice(&(*count as u32).to_ne_bytes()));
    message.extend_from_slice(&above.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    program.iter().chain(&[0]).for_each(|number| message.extend_from_slice(&number.to_ne_bytes()));
}

/// Adds strings; how many bytes they are.
fn copy<'a>(list: impl Iterator<Item = &'a CStr>, strings: &mut Vec<u8>) -> usize {
    let before = strings.len();
    list.for_each(|string| strings.extend_from_slice(string.to_bytes_with_nul()));
    strings.len() - before
}

/// What is to be executed: where its path lies, and what must hold of it, each a struct spawnfd_check.
fn program(plan: &Plan, strings: &mut Vec<u8>) -> (u32, Vec<Vec<u8>>) {
    let mut text = |string: &CStr| {
        let at = strings.len() as u32;
        strings.extend_from_slice(string.to_bytes_with_nul());
        at
    };
    let path = text(&plan.program.pinned.path);
    let check = |check: &Check| match check {
        Check::Same { path, identity } => lay(0, text(path), Some(identity)),
        Check::SameSource { identity } => lay(1, path, Some(identity)),
        Check::Absent { path } => lay(2, text(path), None),
    };
    (path, plan.program.pinned.checks.iter().map(check).collect())
}

fn lay(kind: u32, path: u32, identity: Option<&Identity>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CHECK);
    [kind, path].iter().for_each(|number| bytes.extend_from_slice(&number.to_ne_bytes()));
    if let Some(file) = identity {
        let mode = u32::from(file.mode);
        let (major, minor) = file.device;
        for number in [major, minor, mode, file.owner, file.group, file.ctime.1, file.mtime.1, 0] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [file.inode, file.size, file.ctime.0 as u64, file.mtime.0 as u64] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
    }
    bytes.resize(CHECK, 0);
    bytes
}

const CHECK: usize = 72;

/// One step; `None` for one that the owner has done. `executes`: exec follows.
fn wire(op: &Op<usize>, strings: &mut Vec<u8>, executes: bool) -> Result<Option<Wired>, &'static str> {
    let mut bytes = |bytes: &[u8]| {
        let at = strings.len() as u32;
        strings.extend_from_slice(bytes);
        at
    };
    let mut text = |string: &CStr| bytes(string.to_bytes_with_nul());
    let step = |op: u16, a: i32, b: i32| Wired { op, a, b, ..Wired::default() };
    let source = |source: usize| source as i32;
    Ok(Some(match *op {
        Op::Place { source: from, to } => step(0, source(from), to),
        Op::Dup2 { from, to } => step(1, from, to),
        Op::Close { fd } => step(2, fd, 0),
        Op::CloseRange { first, last } => Wired { numbers: [first.into(), last.into(), 0], ..step(3, 0, 0) },
        Op::Open { dir, ref path, ref how, to } => {
            // Cold, should it have to be done again: the second time it would fail.
            if how.flags & u64::from(abi::O_EXCL) != 0 && !executes {
                return Err("O_EXCL");
            }
            let numbers = [how.flags, how.mode, how.resolve];
            Wired { text: text(path), numbers, ..step(4, dir.map_or(-1, source), to) }
        }
        Op::OpenNull { to } => step(5, 0, to),
        Op::Chdir { ref path } => Wired { text: text(path), ..step(6, 0, 0) },
        Op::Fchdir { dir } => step(7, source(dir), 0),
        Op::Umask { mask } => step(8, mask as i32, 0),
        Op::Setsid => step(9, 0, 0),
        Op::Setpgid { group } => step(10, group, 0),
        Op::Tcsetpgrp { fd } => step(11, fd, 0),
        Op::ControllingTerminal { fd } => step(12, fd, 0),
        Op::Limit { resource: abi::RLIMIT_STACK | abi::RLIMIT_AS | abi::RLIMIT_DATA, .. } if !executes => {
            return Err("memory limits");
        }
        Op::Limit { resource, ref limit } => {
            Wired { numbers: [limit.rlim_cur, limit.rlim_max, 0], ..step(13, resource as i32, 0) }
        }
        Op::Nice { nice } => step(14, nice, 0),
        Op::Scheduler { policy, priority } => step(15, policy as i32, priority),
        Op::NoNewPrivs => step(16, 0, 0),
        Op::OomScoreAdj { value, .. } => step(17, value, 0),
        Op::Cgroup { dir } => step(18, source(dir), 0),
        Op::Landlock { ruleset } => step(19, source(ruleset), 0),
        Op::Announce { .. } => return Ok(None),
        Op::Chroot { ref path } if executes => Wired { text: text(path), ..step(21, 0, 0) },
        Op::Affinity { ref mask } if executes => {
            let mask: Vec<u8> = mask.iter().flat_map(|word| word.to_ne_bytes()).collect();
            Wired { text: bytes(&mask), numbers: [mask.len() as u64, 0, 0], ..step(22, 0, 0) }
        }
        Op::UserIds { real, effective, saved } if executes => {
            Wired { numbers: [saved.into(), 0, 0], ..step(23, real as i32, effective as i32) }
        }
        Op::GroupIds { real, effective, saved } if executes => {
            Wired { numbers: [saved.into(), 0, 0], ..step(24, real as i32, effective as i32) }
        }
        Op::Groups { ref groups } if executes => {
            let groups: Vec<u8> = groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
            Wired { text: bytes(&groups), numbers: [groups.len() as u64, 0, 0], ..step(25, 0, 0) }
        }
        Op::KeepCapabilities if executes => step(26, 0, 0),
        Op::Capabilities { sets: CapabilitySets { effective, permitted, inheritable, bounding, ambient } }
            if executes =>
        {
            let sets: Vec<u8> = [effective, permitted, inheritable, bounding, ambient]
                .iter()
                .flat_map(|set| set.to_ne_bytes())
                .collect();
            Wired { text: bytes(&sets), numbers: [sets.len() as u64, 0, 0], ..step(27, 0, 0) }
        }
        Op::Chroot { .. } => return Err("chroot"),
        Op::Affinity { .. } => return Err("affinity"),
        Op::UserIds { .. }
        | Op::GroupIds { .. }
        | Op::Groups { .. }
        | Op::Capabilities { .. }
        | Op::KeepCapabilities => return Err("ids or capabilities"),
        Op::DenySetgroups | Op::UserMap { .. } | Op::GroupMap { .. } | Op::JoinNamespace { .. } => {
            return Err("namespaces");
        }
    }))
}

/// What a parked process answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// It waits. The names of variables it has looked at, the files it was made of, and its own memory in bytes.
    Parked { pid: i32, private: u64, variables: Vec<&'a [u8]>, files: Vec<&'a [u8]> },
    /// It cannot be parked.
    Cannot { why: &'a [u8] },
}

const REPLY: usize = 24;

/// Reads a reply. `None`: it is none.
pub(super) fn decode(message: &[u8]) -> Option<Reply<'_>> {
    let (head, text) = message.split_at_checked(REPLY)?;
    let number = |at: usize| u32::from_ne_bytes(head[at * 4..][..4].try_into().expect("four bytes"));
    if number(0) != PROTOCOL {
        return None;
    }
    Some(match number(1) {
        0 => {
            let mut lists = text.split(|&byte| byte == 0);
            let mut list = || lists.by_ref().take_while(|text| !text.is_empty()).collect();
            let (variables, files) = (list(), list());
            let private = u64::from_ne_bytes(head[16..].try_into().ok()?);
            Reply::Parked { pid: number(2) as i32, private, variables, files }
        }
        1 => Reply::Cannot { why: text },
        _ => return None,
    })
}

/// The most descriptors a request has.
const MAX_SOURCES: usize = spawnfd_sys::MAX_PASSED;

/// Checks that `fds` can be sent at all.
pub(super) fn fits(fds: &[RawFd]) -> Result<(), &'static str> {
    if fds.len() > MAX_SOURCES { Err("too many descriptors") } else { Ok(()) }
}

#[cfg(test)]
mod tests;
