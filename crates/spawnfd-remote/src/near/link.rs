// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pipe to the server, and the calls on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use spawnfd::error::{Errno, Stage};
use spawnfd::internal::{EngineOrder, PerProcess, RemoteRun, RemoteRuns, Stored, error, remote_job};
use spawnfd::job::{Event, EventOptions, Events, Stop, Stream};
use spawnfd::limits::Permit;
use spawnfd::tree::Tier;
use spawnfd::{Command, Error, Job, Output, Result, Run};

use super::call::{Form, NearCall};
use super::inject::{Injection, Request};
use super::waiting::Begun;
use super::{RemoteOptions, max_kept};
use crate::frame::{Decoder, Frame, Kind, MAX_PAYLOAD, Malformed, Marker};
use crate::message::{
    CallMessage, FarHello, NearHello, OrderMessage, ProcessMessage, ResultMessage, VERSION, What, pack, unpack,
};
use crate::outbox::Outbox;
use crate::turns::Turns;

/// The size in bytes of the queue in front of the transport. More waits in the outbox.
const QUEUE: usize = 256 << 10;

/// How long the transport may take to end.
const GRACE: Duration = Duration::from_millis(500);

/// The pause between two searches for calls that are overdue.
const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// While more bytes than this wait for the server, this side answers no ping. Any frame is a sign of life.
const MAX_WAITING: usize = 1 << 20;

/// The pipe to the server.
pub(super) struct Link {
    transport: Job,
    /// The name of the transport's program.
    name: String,
    /// In a forked copy of the host, the connection is lost.
    state: PerProcess<LinkState>,
    reader: Turns<Option<Reader>>,
    hello: OnceLock<FarHello>,
    /// Has its result once the server has answered, or cannot answer any more.
    answered: Job,
    lease: Option<Duration>,
    this: Weak<Link>,
}

#[derive(Debug, Default)]
struct LinkState {
    outgoing: Outbox,
    /// The bytes of a server program, which go before all frames, and how many of them have been written.
    program: (Vec<u8>, usize),
    /// No frame may go out: a shell on the other side does not run the server yet.
    is_held: bool,
    calls: HashMap<u32, Arc<NearCall>>,
    questions: HashMap<u32, Arc<Question>>,
    /// The number of the last call.
    last: u32,
    /// All numbers have been used.
    has_wrapped: bool,
    /// The transport reads no more.
    is_deaf: bool,
    answered: Option<RemoteRun>,
    /// Why the connection is lost.
    lost: Option<Error>,
}

impl LinkState {
    fn in_fork() -> LinkState {
        LinkState { lost: Some(lost_error("a forked process cannot use this connection")), ..LinkState::default() }
    }

    fn next(&mut self) -> u32 {
        loop {
            // 0 is no number of a call.
            self.has_wrapped |= self.last == u32::MAX;
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.calls.contains_key(&self.last) && !self.questions.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Whether a call has or had this number.
    fn has_used(&self, number: u32) -> bool {
        number != 0 && (self.has_wrapped || number <= self.last)
    }
}

/// A question that is no run, and what waits for its answer.
#[derive(Debug)]
struct Question {
    /// The question is a ping.
    is_ping: bool,
    waiting: RemoteRun,
    processes: OnceLock<Vec<ProcessMessage>>,
}

/// The reader of frames.
#[derive(Debug)]
struct Reader {
    events: Events,
    marker: Marker,
    injection: Option<Injection>,
    decoder: Decoder,
    /// When this side has last looked for calls that are overdue.
    checked: Instant,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("transport", &self.name).field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// The error of a connection that is lost.
fn lost_error(message: impl Into<String>) -> Error {
    error(Stage::Capture, Errno::ENOTCONN, "remote", &message.into())
}

/// The outcome of a run whose connection is lost: nobody knows how the program has ended, or whether it has started.
fn lost_output() -> Output {
    let mut output = Output::default();
    (output.stop, output.status_lost) = (Stop::Lost, true);
    output
}

impl Link {
    /// Starts the transport and greets the server. [`answered`](Link::answered) is the job that waits for its answer.
    pub(super) fn start(
        command: &Command<'_>,
        options: &RemoteOptions,
        injection: Option<Injection>,
    ) -> Result<Arc<Link>> {
        let mut run = Run::new().writable(QUEUE).keep(0, 16 << 10).marker(None).grace(GRACE);
        if let Some(lease) = options.lease {
            run = run.idle_timeout(lease);
        }
        let (transport, events) = command.start_events(&run, EventOptions::new())?;
        let name = command.get_program().to_string_lossy().into_owned();
        let link = Arc::new_cyclic(|this: &Weak<Link>| {
            let (answered, waiting, _) = remote_job(this.clone(), 0, &Run::new(), Vec::new(), None);
            let state = LinkState { answered: Some(waiting), is_held: injection.is_some(), ..LinkState::default() };
            let (marker, decoder) = Default::default();
            let reader = Reader { events, marker, injection, decoder, checked: Instant::now() };
            Link {
                transport,
                name,
                state: PerProcess::for_this_process(state, LinkState::in_fork),
                reader: Turns::new(Some(reader)),
                hello: OnceLock::new(),
                answered: answered.started(0, Tier::default()),
                lease: options.lease,
                this: this.clone(),
            }
        });
        let hello = NearHello {
            versions: (VERSION, VERSION),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            lease: options.lease.map_or(0.0, |lease| lease.as_secs_f64()),
        };
        link.send(Kind::Hello, 0, &[&pack(&hello)]);
        link.transport.on_writable(link.calling(Link::write_on));
        link.reader.change(|reader| {
            if let Some(reader) = reader {
                reader.events.on_event(link.calling(Link::receive));
            }
        });
        link.receive();
        link.transport.when_done(link.calling(|link| {
            link.receive();
            link.note_end();
        }));
        Ok(link)
    }

    /// A callback that calls `function`, as long as the link exists.
    fn calling(&self, function: fn(&Link)) -> impl Fn() + Send + Sync + 'static {
        let link = self.this.clone();
        move || {
            if let Some(link) = link.upgrade() {
                function(&link);
            }
        }
    }

    /// The job that has its result once the server has answered.
    pub(super) fn answered(&self) -> &Job {
        &self.answered
    }

    /// Waits for the server's answer.
    pub(super) fn wait_for_answer(&self, timeout: Option<Duration>) -> Result<()> {
        match timeout {
            None => self.answered.wait().map(drop),
            Some(timeout) if self.answered.wait_timeout(timeout)?.is_some() => Ok(()),
            Some(timeout) => Err(self.give_up(timeout)),
        }
    }

    /// Ends a connection whose server has not answered in time. Returns the error, which further calls have, too.
    pub(super) fn give_up(&self, timeout: Duration) -> Error {
        let message = format!("{}: no spawnfd server has answered within {timeout:?}", self.name);
        let error = error(Stage::Capture, Errno::ETIMEDOUT, "remote", &message);
        self.end(&error);
        error
    }

    pub(super) fn hello(&self) -> Option<&FarHello> {
        self.hello.get()
    }

    /// Sends a frame. `parts` are the parts of the payload.
    fn send(&self, kind: Kind, call: u32, parts: &[&[u8]]) {
        let mut state = self.state.lock();
        if state.lost.is_none() {
            state.outgoing.push(kind, call, parts);
            self.write(&mut state);
        }
    }

    /// Sends an order to a call.
    pub(super) fn send_order(&self, call: u32, order: &OrderMessage) {
        self.send(Kind::Order, call, &[&pack(order)]);
    }

    /// The queue has room, or the transport reads no more.
    fn write_on(&self) {
        let mut state = self.state.lock();
        self.write(&mut state);
        if state.lost.is_none() && self.transport.write(&[]).is_err() {
            self.note_deaf(&mut state);
        }
    }

    /// The transport has closed its input. Usually it ends now by itself.
    fn note_deaf(&self, state: &mut LinkState) {
        (state.outgoing, state.program) = (Outbox::default(), (Vec::new(), 0));
        if !std::mem::replace(&mut state.is_deaf, true) {
            self.transport.stop(GRACE);
        }
    }

    /// Writes as much as the transport's queue accepts. The queue calls again once it has room.
    fn write(&self, state: &mut LinkState) {
        let (program, written) = &mut state.program;
        while *written < program.len() {
            match self.transport.write(&program[*written..]) {
                Ok(0) => return,
                Ok(count) => *written += count,
                Err(_) => return self.note_deaf(state),
            }
        }
        while !state.is_held && !state.outgoing.is_empty() {
            match self.transport.write(state.outgoing.bytes()) {
                Ok(0) => return,
                Ok(count) => state.outgoing.note_written(count),
                Err(_) => self.note_deaf(state),
            }
        }
    }

    /// Handles what the transport has written.
    fn receive(&self) {
        self.reader.serve(|reader| {
            if let Some(open) = reader
                && let Err(malformed) = self.handle_events(open)
            {
                *reader = None;
                self.refuse(&malformed);
            }
        });
    }

    fn handle_events(&self, reader: &mut Reader) -> std::result::Result<(), Malformed> {
        let Reader { events, marker, injection, decoder, checked } = reader;
        while let Some(event) = events.try_next() {
            match event {
                Event::Chunk { stream: Stream::Stdout, bytes, .. } => {
                    match (marker.after(&bytes)?, &mut *injection) {
                        (Some(bytes), _) => {
                            decoder.feed(bytes);
                            if injection.take().is_some() {
                                self.release();
                            }
                        }
                        (None, Some(injection)) => {
                            while let Some(request) = injection.next_request(&marker.noise) {
                                self.serve_request(request);
                            }
                        }
                        (None, None) => {}
                    }
                    while let Some(frame) = decoder.next_frame()? {
                        self.handle(frame)?;
                    }
                    // A server that sends nothing for the time of the lease is lost anyway.
                    if checked.elapsed() > CHECK_PAUSE {
                        *checked = Instant::now();
                        self.lose_overdue();
                    }
                }
                Event::End => break,
                _ => {}
            }
        }
        Ok(())
    }

    /// The server runs. Sends what has waited for it.
    fn release(&self) {
        let mut state = self.state.lock();
        (state.is_held, state.program) = (false, (Vec::new(), 0));
        self.write(&mut state);
    }

    /// Serves the shell on the other side that is to start the server.
    fn serve_request(&self, request: Request<'_>) {
        match request {
            Request::Send(program) => {
                let mut state = self.state.lock();
                state.program = (program.to_vec(), 0);
                self.write(&mut state);
            }
            Request::Fail(reason) => {
                let message = format!("{}: cannot start the server: {reason}", self.name);
                self.lose(&error(Stage::Capture, Errno::ENOEXEC, "remote", &message));
                self.transport.stop(Duration::ZERO);
            }
        }
    }

    fn handle(&self, frame: Frame) -> std::result::Result<(), Malformed> {
        // A kind of a later version is passed over.
        let Frame { kind: Some(kind), call: number, payload } = frame else { return Ok(()) };
        match kind {
            Kind::Hello if self.hello.get().is_some() => return Err(Malformed("a second hello".to_owned())),
            Kind::Hello => return self.note_hello(unpack(&payload, "hello")?),
            _ if self.hello.get().is_none() => return Err(Malformed(format!("{} before the hello", kind.phrase()))),
            Kind::Ping => {
                self.send_pong(number);
                return Ok(());
            }
            Kind::Call | Kind::Order => return Err(Malformed(format!("{}, which only a client sends", kind.phrase()))),
            _ => {}
        }
        let (call, question, has_used) = {
            let state = self.state.lock();
            (state.calls.get(&number).cloned(), state.questions.get(&number).cloned(), state.has_used(number))
        };
        match (call, question) {
            (Some(call), _) => self.handle_of_call(kind, number, &call, &payload),
            (None, Some(question)) => self.handle_answer(kind, number, &question, &payload),
            // The call has ended.
            (None, None) if has_used => Ok(()),
            (None, None) => Err(Malformed(format!("{} of the call {number}, which does not exist", kind.phrase()))),
        }
    }

    fn handle_of_call(
        &self,
        kind: Kind,
        number: u32,
        call: &NearCall,
        payload: &[u8],
    ) -> std::result::Result<(), Malformed> {
        match kind {
            Kind::Started => call.set_started(unpack(payload, "start")?)?,
            Kind::Output => {
                let (stream, bytes) = of_stream(payload)?;
                let credit = call.output(stream, bytes)?;
                self.give_credit(number, credit);
            }
            Kind::Kept => {
                let (stream, bytes) = of_stream(payload)?;
                call.keep(stream, bytes)?;
            }
            Kind::Input => {
                call.expect_started("refused input")?;
                call.run.refuse_input();
            }
            Kind::Credit => {
                call.add_input_credit(unpack(payload, "credit")?)?;
                self.feed(number, call);
            }
            Kind::Result => match (unpack(payload, "result")?, call.form) {
                _ if call.has_result() => return Err(Malformed("a second result of a call".to_owned())),
                (ResultMessage::Output(Stored(output)), Form::Run) => {
                    self.remove(number);
                    call.result(Ok(output));
                }
                (ResultMessage::Output(Stored(output)), Form::Job | Form::Adopting) => {
                    call.expect_started("a result")?;
                    call.result(Ok(output));
                }
                (ResultMessage::Closed, Form::Session) => {
                    self.remove(number);
                    call.note_start(Err(error(Stage::Capture, Errno::ECANCELED, "remote", "the session is closed")));
                    call.result(Ok(Output::default()));
                }
                _ => return Err(Malformed("a result of another kind than the call".to_owned())),
            },
            Kind::Error => {
                let Stored(error): Stored<Error> = unpack(payload, "error")?;
                self.remove(number);
                call.fail(|| Err(error.clone()), &error);
            }
            Kind::End => {
                call.expect_started("an end")?;
                if !call.has_result() {
                    return Err(Malformed("the end of a job that has no result".to_owned()));
                }
                if call.note_end() {
                    self.remove(number);
                }
                call.run.end(|| Ok(lost_output()));
            }
            _ => return Err(Malformed(format!("{} for a call", kind.phrase()))),
        }
        Ok(())
    }

    fn handle_answer(
        &self,
        kind: Kind,
        number: u32,
        question: &Question,
        payload: &[u8],
    ) -> std::result::Result<(), Malformed> {
        let answer = match kind {
            Kind::Pong if question.is_ping => Ok(Vec::new()),
            Kind::Result if !question.is_ping => match unpack(payload, "result")? {
                ResultMessage::<Stored<Output>>::Processes(processes) => Ok(processes),
                _ => return Err(Malformed("a result that is no list of processes".to_owned())),
            },
            Kind::Error => {
                let Stored(error): Stored<Error> = unpack(payload, "error")?;
                Err(error)
            }
            _ => return Err(Malformed(format!("{} as an answer", kind.phrase()))),
        };
        self.state.lock().questions.remove(&number);
        let answer = answer.map(|processes| _ = question.processes.set(processes));
        question.waiting.end(|| answer.map(|()| Output::default()));
        Ok(())
    }

    /// Answers a ping.
    fn send_pong(&self, number: u32) {
        let mut state = self.state.lock();
        if state.lost.is_none() && state.outgoing.len() <= MAX_WAITING {
            state.outgoing.push(Kind::Pong, number, &[]);
            self.write(&mut state);
        }
    }

    fn note_hello(&self, hello: FarHello) -> std::result::Result<(), Malformed> {
        let (least, greatest) = hello.versions;
        if !(least..=greatest).contains(&VERSION) {
            let program = &hello.program;
            return Err(Malformed(format!(
                "the server (spawnfd {program}) speaks versions {least} to {greatest} of the protocol, and this side {VERSION}"
            )));
        }
        let _ = self.hello.set(hello);
        let answered = self.state.lock().answered.take();
        if let Some(answered) = answered {
            answered.end(|| Ok(Output::default()));
        }
        Ok(())
    }

    fn remove(&self, number: u32) {
        let call = self.state.lock().calls.remove(&number);
        drop(call);
    }

    fn give_credit(&self, number: u32, credit: Option<u32>) {
        if let Some(credit) = credit {
            self.send(Kind::Credit, number, &[&pack(&credit)]);
        }
    }

    fn feed(&self, number: u32, call: &NearCall) {
        call.feed(|bytes| self.send(Kind::Input, number, &[bytes]));
    }

    /// Ends a connection whose other side does not speak the protocol.
    fn refuse(&self, malformed: &Malformed) {
        self.lose(&error(Stage::Capture, Errno::EPROTO, "remote", &format!("{}: {malformed}", self.name)));
        self.transport.stop(Duration::ZERO);
    }

    /// The transport has ended.
    fn note_end(&self) {
        let how = match self.transport.try_wait() {
            Ok(Some(output)) => {
                let words = output.stderr_text();
                let last = words.trim().lines().last().unwrap_or_default().to_owned();
                let mut output = Output::clone(&output);
                if self.state.lock().is_deaf && output.code().is_some() {
                    // The transport has ended by itself, although this side has told it to end.
                    output.stop = Stop::Exited;
                }
                let how = match output.stop {
                    Stop::IdleTimeout => "the other side is silent".to_owned(),
                    Stop::Cancelled => "the other side reads no more".to_owned(),
                    _ => output.exit_message(&self.name, false),
                };
                if last.is_empty() || how.contains(&last) { how } else { format!("{how}: {last}") }
            }
            Ok(None) => return,
            Err(error) => error.message().into_owned(),
        };
        let what = if self.hello.get().is_some() { "the connection is lost" } else { "no spawnfd server has answered" };
        self.lose(&lost_error(format!("{what}: {how}")));
    }

    /// Ends all calls.
    fn lose(&self, error: &Error) {
        let (calls, questions, answered) = {
            let mut state = self.state.lock();
            if state.lost.is_some() {
                return;
            }
            state.lost = Some(error.clone());
            state.outgoing = Outbox::default();
            (std::mem::take(&mut state.calls), std::mem::take(&mut state.questions), state.answered.take())
        };
        for call in calls.into_values() {
            let outcome = || if call.form == Form::Session { Err(error.clone()) } else { Ok(lost_output()) };
            call.fail(outcome, error);
        }
        for question in questions.into_values() {
            question.waiting.end(|| Err(error.clone()));
        }
        if let Some(answered) = answered {
            answered.end(|| Err(error.clone()));
        }
    }

    /// Ends the calls whose result a server that works would have sent by now.
    fn lose_overdue(&self) {
        let overdue: Vec<_> = {
            let mut state = self.state.lock();
            state.calls.extract_if(|_, call| call.is_overdue()).collect()
        };
        for (number, call) in overdue {
            self.send_order(number, &OrderMessage::Stop(Some(0.0)));
            let message = "the server has sent no result long after the time limit of the run";
            call.fail(|| Ok(lost_output()), &lost_error(message));
        }
    }

    /// The time by which a server that works has sent the result of a call that begins now.
    fn due(&self, what: What, run: &Run) -> Option<Instant> {
        // A command may wait for others first.
        let is_bounded = matches!(what, What::Run | What::Start);
        let timeout = run.get("timeout").as_duration().filter(|_| is_bounded)?;
        let more = ["grace", "drain"].map(|name| run.get(name).as_duration().unwrap_or_default());
        let bound = more.into_iter().try_fold(timeout.checked_add(self.lease?)?, Duration::checked_add)?;
        Instant::now().checked_add(bound)
    }

    /// Begins a call. The caller has the permits of its limiter.
    pub(super) fn begin(
        &self,
        message: &CallMessage,
        form: Form,
        run: &Run,
        permits: Vec<Permit>,
        options: Option<EventOptions>,
    ) -> Result<Begun> {
        let payload = pack(message);
        if payload.len() > MAX_PAYLOAD {
            let message = format!("the call has {} bytes; a frame has at most {MAX_PAYLOAD}", payload.len());
            return Err(error(Stage::Validate, Errno::E2BIG, "remote", &message));
        }
        let plain = Run::new();
        // The call of a run has all input.
        let own = if form == Form::Run { &plain } else { run };
        let mut state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let number = state.next();
        let (job, remote, events) = remote_job(self.this.clone(), number.into(), own, permits, options);
        let (start, waiting, _) = remote_job(self.this.clone(), 0, &Run::new(), Vec::new(), None);
        let call = Arc::new(NearCall::new(remote, waiting, form, self.due(message.what, run), max_kept(run)));
        state.calls.insert(number, call.clone());
        state.outgoing.push(Kind::Call, number, &[&payload]);
        self.write(&mut state);
        drop(state);
        if call.run.has_input() {
            self.feed(number, &call);
        }
        Ok(Begun { number, job, events, start: start.started(0, Tier::default()), call })
    }

    /// Asks the server a question.
    fn ask(&self, is_ping: bool, send: impl FnOnce(u32)) -> Result<Asking> {
        let mut state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let number = state.next();
        let (job, waiting, _) = remote_job(self.this.clone(), 0, &Run::new(), Vec::new(), None);
        let question = Arc::new(Question { is_ping, waiting, processes: OnceLock::new() });
        state.questions.insert(number, question.clone());
        drop(state);
        let asked = Instant::now();
        send(number);
        Ok(Asking { job: job.started(0, Tier::default()), question, asked })
    }

    /// Asks the server for a sign of life.
    pub(super) fn ping(&self) -> Result<Asking> {
        self.ask(true, |number| self.send(Kind::Ping, number, &[]))
    }

    /// Asks for the processes of a session.
    pub(super) fn processes(&self, session: u32) -> Result<Asking> {
        self.ask(false, |number| self.send_order(session, &OrderMessage::Processes(number)))
    }

    /// Ends the transport, and with it all programs.
    pub(super) fn close(&self) {
        self.end(&lost_error("the connection is closed"));
    }

    fn end(&self, error: &Error) {
        self.lose(error);
        self.transport.close_stdin();
        self.transport.stop(GRACE);
    }

    /// The job of the transport.
    pub(super) fn transport(&self) -> &Job {
        &self.transport
    }
}

/// A question to the server.
#[derive(Debug)]
pub struct Asking {
    job: Job,
    question: Arc<Question>,
    asked: Instant,
}

impl Asking {
    /// The job that ends with the answer.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The time since the question.
    pub fn elapsed(&self) -> Duration {
        self.asked.elapsed()
    }

    /// Waits for the answer: the processes, if the question asks for those.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    pub fn wait(&self) -> Result<Vec<ProcessMessage>> {
        self.job.wait()?;
        Ok(self.question.processes.get().cloned().unwrap_or_default())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.lose(&lost_error("the connection is closed"));
    }
}

impl RemoteRuns for Link {
    fn order(&self, id: u64, order: EngineOrder) {
        let Ok(number) = u32::try_from(id) else { return };
        let call = self.state.lock().calls.get(&number).cloned();
        let Some(call) = call else { return };
        match order {
            EngineOrder::End { grace } => {
                self.send_order(number, &OrderMessage::Stop(grace.map(|grace| grace.as_secs_f64())));
                if call.note_stop() {
                    self.remove(number);
                }
            }
            EngineOrder::Feed => self.feed(number, &call),
            EngineOrder::Read => {
                call.run.deliver();
                self.give_credit(number, call.credit());
            }
            EngineOrder::Signal { signal, tree } => self.send_order(number, &OrderMessage::Signal(signal, tree)),
            EngineOrder::Resize(size) => self.send_order(number, &OrderMessage::Resize(size.rows, size.columns)),
        }
    }
}

/// Splits the payload of a frame with data into the stream and the bytes.
fn of_stream(payload: &[u8]) -> std::result::Result<(Stream, &[u8]), Malformed> {
    match payload.split_first() {
        Some((1, bytes)) => Ok((Stream::Stdout, bytes)),
        Some((2, bytes)) => Ok((Stream::Stderr, bytes)),
        _ => Err(Malformed("data of no stream".to_owned())),
    }
}
