// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd shell`: a session for programs in any language, as lines of JSON.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{BufRead, stdin};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::{Arg, Args};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::{Map, Value, json};
use spawnfd::internal::CallOptions;
use spawnfd::job::{Stream, TerminalSize};
use spawnfd::options::{self, Call, Group, Kind, OptionSpec};
use spawnfd::session::{CommandText, SessionOptions};
use spawnfd::{Command, Error, Job, Output};

use crate::failure::{Failure, print_to};
use crate::options::{Flags, Subcommand};
use crate::run::Environment;

/// Keep a shell open that runs commands, as lines of JSON
///
/// The shell keeps its state from command to command: directory, variables, functions. This command reads one request a line
/// from standard input, and writes one response a line to standard output.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Shell {
    /// The shell, bash or dash, and its arguments. Without arguments, bash reads no startup files
    #[arg(trailing_var_arg = true, value_name = "SHELL", default_value = "bash", num_args = 1..)]
    program: Vec<OsString>,

    /// Start the shell in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    options: Flags<Session>,
    #[command(flatten)]
    environment: Environment,
}

/// The flags of a session's options.
#[derive(Debug)]
enum Session {}

impl Subcommand for Session {
    const CALL: Call = Call::Session;

    fn has(option: &OptionSpec) -> bool {
        !["cwd"].contains(&option.name)
    }

    fn place(arg: Arg, option: &OptionSpec) -> Arg {
        match option.name {
            "echo" => arg.requires("terminal"),
            _ if option.group == Group::Limits => arg.help_heading("Limits of the process tree"),
            _ => arg,
        }
    }
}

const NOTES: &str = "\
Each request is a JSON object with one of these members, and may have an id, which the response repeats:
  run: the text of a command; with these members (times are in seconds):
    yield_after: respond after this time even if the command still runs
    stream: true to write standard input by later requests
    env: an object of variables that this command alone has
    and each option of a command, such as timeout, input (text), keep ([head, tail] or \"all\") and spill (an object); the
    page https://github.com/spawnfd/spawnfd/blob/main/docs/options.md lists them
  wait: a time in seconds; wait for the running command, or get the result of the last one
  read: a position; the output since then
  write: text for the standard input of the running command; close_input: true ends that input
  interrupt: true; send SIGINT to the running command
  stop: a time in seconds; end the running command: SIGINT, SIGTERM, and SIGKILL after that time
  side: a program and its arguments, as a list; run it beside the running command, in the directory and with the exported
    variables of the last completed command; with the options of a run. Needs --restart
  processes: true; list the processes of the session
  resize: [rows, columns]; change the size of the terminal

The first response is {\"ready\": true}. Each other response has the id and one of these members:
  result: the result of a command, as spawnfd run --json prints it, with cwd; if the shell has exited, with shell_exited
    and shell_code (-N for signal N). If the shell has not proved the status, stop is lost, and code is null
  running: the output so far (text, next, lost) of a command that still runs
  output, processes, accepted (bytes of a write), done
  error: a message

While a run or a wait has no response yet, further ones wait in a queue. With --queue, a run also waits while an earlier \
command still runs after its yield_after. All other requests get their response at once.

A request is UTF-8. In the strings of run, cwd and env, the escapes \\udc80 to \\udcff stand for the bytes 0x80 to 0xff, as
Python's json.dumps(os.fsdecode(path)) writes them.

At the end of standard input, this command responds to the requests that it has read, ends the shell and its processes, and \
exits.

Example:
  printf '%s\\n' '{\"run\": \"cd /tmp; X=1\"}' '{\"run\": \"echo $X $PWD\"}' | spawnfd shell";

#[derive(Debug, Deserialize)]
struct Request {
    #[serde(default)]
    id: Value,
    run: Option<Text>,
    cwd: Option<Text>,
    env: Option<BTreeMap<String, Text>>,
    yield_after: Option<f64>,
    #[serde(default)]
    stream: bool,
    wait: Option<f64>,
    read: Option<u64>,
    write: Option<String>,
    #[serde(default)]
    close_input: bool,
    #[serde(default)]
    interrupt: bool,
    stop: Option<f64>,
    #[serde(default)]
    processes: bool,
    side: Option<Vec<String>>,
    /// Rows and columns.
    resize: Option<(u16, u16)>,
    /// The options of the library's table.
    #[serde(flatten)]
    options: Map<String, Value>,
}

/// A string that may have bytes that are not UTF-8.
#[derive(Debug)]
struct Text(OsString);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.into()))
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(OsString::from_vec(unescaped(bytes))))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

impl Text {
    /// The text of a command, with the options of its request.
    fn with(&self, request: &Request) -> CommandText {
        let mut text = CommandText::new(&self.0);
        if let Some(Text(cwd)) = &request.cwd {
            text = text.cwd(cwd);
        }
        request.env.iter().flatten().fold(text, |text, (name, Text(value))| text.env(name, value))
    }
}

fn parse(line: &[u8]) -> Result<Request, Refused> {
    let line = std::str::from_utf8(line).map_err(|error| format!("it is not UTF-8 ({error})"))?;
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Replaces each lone surrogate from U+DC80 to U+DCFF by its byte. serde_json encodes a lone surrogate as if it were a
/// character.
fn unescaped(mut bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    while let [first, rest @ ..] = bytes {
        let (byte, after) = match bytes {
            [0xed, 0xb2, last @ 0x80..=0xbf, after @ ..] => (*last, after),
            [0xed, 0xb3, last @ 0x80..=0xbf, after @ ..] => (last + 0x40, after),
            _ => (*first, rest),
        };
        text.push(byte);
        bytes = after;
    }
    text
}

impl Request {
    /// Whether the response may have to wait for a command.
    fn waits(&self) -> bool {
        self.run.is_some() || self.wait.is_some()
    }

    /// The options of a run or a side command.
    fn options(&self, call: Call) -> Result<CallOptions, Refused> {
        let mut options = CallOptions::new(call);
        for (name, value) in &self.options {
            let given: Vec<(String, &Value)> = match value.as_object() {
                Some(fields) => fields.iter().map(|(field, value)| (format!("{name}.{field}"), value)).collect(),
                None => vec![(name.clone(), value)],
            };
            for (name, value) in given {
                let option = options::find(call, &name).filter(|option| option.kind != Kind::Object);
                let option = option.ok_or_else(|| format!("{name} is not an option of a {call}"))?;
                options.set(&name, native(option, value)?).map_err(refused)?;
            }
        }
        Ok(options)
    }
}

/// Converts a value of JSON to one that the library's table accepts.
fn native(option: &OptionSpec, value: &Value) -> Result<options::Value, Refused> {
    let pair = || Some((value.get(0)?.as_u64()?, value.get(1)?.as_u64()?));
    let converted = match option.kind {
        _ if value.is_null() => Some(options::Value::None),
        Kind::Flag => value.as_bool().map(options::Value::Bool),
        Kind::Count | Kind::Bytes => value.as_u64().map(options::Value::Integer),
        Kind::Number => value.as_f64().map(options::Value::Number),
        Kind::Duration => {
            let Some(number) = value.as_f64() else { return Err(format!("{} must be a time in seconds", option.name)) };
            Some(options::Value::Duration(seconds(option.name, number)?))
        }
        Kind::Data => value.as_str().map(|text| options::Value::Bytes(text.to_owned().into())),
        Kind::HeadTail | Kind::TerminalSize if value.is_array() => {
            pair().map(|(first, second)| options::Value::Pair(first, second))
        }
        _ => value.as_str().map(options::Value::from),
    };
    converted.ok_or_else(|| format!("{} cannot be {value}", option.name))
}

enum Event {
    Line(Vec<u8>),
    /// Standard input has ended.
    End,
    /// The running command, or a side command, is over.
    Done,
}

/// A request whose response waits for the end of the command.
struct Pending {
    id: Value,
    until: Option<Instant>,
}

struct Server {
    session: spawnfd::Session,
    events: Sender<Event>,
    job: Option<Job>,
    pending: Option<Pending>,
    /// The ids and jobs of side commands that run.
    sides: Vec<(Value, Job)>,
    /// Requests that wait until the pending one has its response.
    queue: VecDeque<Request>,
    /// Whether a run waits for the end of a running command.
    has_queue: bool,
}

/// The reason why a request failed.
type Refused = String;

/// How often this command checks, after the end of its input, that its output is still read.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Shell {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        if let Some(environment) = self.environment.build() {
            command.environment(&environment);
        }
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        let mut options = SessionOptions::new();
        self.options.apply(|name, value| options.set(name, value))?;
        let queue = matches!(options.get("queue"), options::Value::Bool(true));
        // Requests wait in a queue of this command.
        let session = spawnfd::Session::open(command, options.queue(false))
            .map_err(|error| Failure::program(&self.program[0], error))?;
        let (events, received) = channel();
        let lines = events.clone();
        std::thread::spawn(move || {
            let ended = stdin().lock().split(b'\n').try_for_each(|line| {
                let line = line.map_err(|_| ())?;
                lines.send(Event::Line(line)).map_err(|_| ())
            });
            // An input that cannot be read ends too.
            let _ = (ended, lines.send(Event::End));
        });
        respond(&json!({ "ready": true, "pid": session.id() }))?;
        Server {
            session,
            events,
            job: None,
            pending: None,
            sides: Vec::new(),
            queue: VecDeque::new(),
            has_queue: queue,
        }
        .serve(&received)?;
        Ok(0)
    }
}

impl Server {
    fn serve(mut self, events: &Receiver<Event>) -> Result<(), Failure> {
        let mut has_ended = false;
        while !has_ended || self.pending.is_some() || !self.sides.is_empty() || !self.queue.is_empty() {
            let until = self.pending.as_ref().and_then(|pending| pending.until);
            let check = has_ended.then(|| Instant::now() + CHECK_INTERVAL);
            let event = match until.into_iter().chain(check).min() {
                Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Line(line)) if line.trim_ascii().is_empty() => {}
                Ok(Event::Line(line)) => match parse(&line) {
                    Ok(request) if self.must_wait(&request) => self.queue.push_back(request),
                    Ok(request) => self.handle(request)?,
                    Err(why) => respond(&json!({ "id": null, "error": format!("not a request: {why}") }))?,
                },
                Ok(Event::End) => has_ended = true,
                Ok(Event::Done) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.respond_to_sides()?;
            self.resolve()?;
            while self.queue.front().is_some_and(|request| !self.must_wait(request))
                && let Some(request) = self.queue.pop_front()
            {
                self.handle(request)?;
                self.resolve()?;
            }
            if has_ended && !is_read() {
                break;
            }
        }
        self.session.close().map(drop).map_err(Failure::from)
    }

    fn must_wait(&self, request: &Request) -> bool {
        let is_running = || self.job.as_ref().is_some_and(|job| matches!(job.try_wait(), Ok(None)));
        self.pending.is_some() && request.waits() || self.has_queue && request.run.is_some() && is_running()
    }

    fn handle(&mut self, request: Request) -> Result<(), Failure> {
        let id = request.id.clone();
        match self.perform(request) {
            Ok(None) => Ok(()),
            Ok(Some(response)) => respond_to(&id, response),
            Err(refused) => respond_to(&id, json!({ "error": refused })),
        }
    }

    /// Performs a request. `None`: the response waits for the command.
    fn perform(&mut self, request: Request) -> Result<Option<Value>, Refused> {
        let done = || Some(json!({ "done": true }));
        let actions = [
            request.run.is_some(),
            request.wait.is_some(),
            request.read.is_some(),
            request.write.is_some(),
            request.close_input && request.write.is_none(),
            request.interrupt,
            request.stop.is_some(),
            request.processes,
            request.side.is_some(),
            request.resize.is_some(),
        ];
        if actions.into_iter().filter(|is_given| *is_given).count() != 1 {
            return Err("a request has one of run, wait, read, write, close_input, interrupt, stop, side, processes, \
                        resize"
                .to_owned());
        }
        if request.run.is_none()
            && request.side.is_none()
            && let Some((name, _)) = request.options.iter().next()
        {
            return Err(match options::find(Call::Command, name) {
                Some(_) => format!("{name} is an option of run"),
                None => format!("unknown member {name:?}"),
            });
        }
        if request.run.is_none() && (request.cwd.is_some() || request.env.is_some()) {
            return Err("cwd and env are options of run".to_owned());
        }
        if request.processes {
            let processes = self.session.processes().into_iter();
            let listed = processes.map(|process| json!({ "pid": process.pid, "name": process.name }));
            return Ok(Some(json!({ "processes": listed.collect::<Vec<_>>() })));
        }
        if let Some((rows, columns)) = request.resize {
            self.session.resize(TerminalSize::new(rows, columns)).map_err(|error| error.to_string())?;
            return Ok(done());
        }
        if request.interrupt {
            self.session.interrupt();
            return Ok(done());
        }
        if let Some(argv) = &request.side {
            self.start_side(argv, &request)?;
            return Ok(None);
        }
        if let Some(text) = &request.run {
            self.start(text.with(&request), &request)?;
            return Ok(None);
        }
        let job = self.job.as_ref().ok_or("no command has run yet")?;
        if let Some(since) = request.read {
            return Ok(Some(json!({ "output": output_from(job, since) })));
        }
        if let Some(grace) = request.stop {
            job.stop(seconds("stop", grace)?);
            return Ok(done());
        }
        if let Some(seconds_to_wait) = request.wait {
            let until = Instant::now().checked_add(seconds("wait", seconds_to_wait)?);
            self.pending = Some(Pending { id: request.id, until });
            return Ok(None);
        }
        let text = request.write.unwrap_or_default();
        let accepted = job.write(text.as_bytes()).map_err(refused)?;
        if request.close_input {
            job.close_stdin();
        }
        Ok(Some(json!({ "accepted": accepted })))
    }

    fn start(&mut self, text: CommandText, request: &Request) -> Result<(), Refused> {
        let mut options = request.options(Call::Command)?;
        if request.stream {
            options.set("stdin", "stream".into()).map_err(refused)?;
        }
        let until = request.yield_after.map(|after| seconds("yield_after", after)).transpose()?;
        let job = self.session.start(text, &options.run).map_err(refused)?;
        let events = self.events.clone();
        job.when_done(move || _ = events.send(Event::Done));
        if let Some(before) = self.job.replace(job) {
            before.detach();
        }
        let until = until.and_then(|after| Instant::now().checked_add(after));
        self.pending = Some(Pending { id: request.id.clone(), until });
        Ok(())
    }

    /// Starts a command beside the shell. The response follows its end.
    fn start_side(&mut self, argv: &[String], request: &Request) -> Result<(), Refused> {
        let mut command = self.session.side_command(argv).map_err(refused)?;
        let mut options = request.options(Call::Run)?;
        options.apply(&mut command);
        let job = command.start(&options.run).map_err(refused)?;
        let events = self.events.clone();
        job.when_done(move || _ = events.send(Event::Done));
        self.sides.push((request.id.clone(), job));
        Ok(())
    }

    /// Responds to the requests whose side commands are over.
    fn respond_to_sides(&mut self) -> Result<(), Failure> {
        let (ended, running) = self.sides.drain(..).partition(|(_, job)| !matches!(job.try_wait(), Ok(None)));
        self.sides = running;
        let ended: Vec<(Value, Job)> = ended;
        ended.iter().try_for_each(|(id, job)| match job.wait() {
            Ok(output) => respond_to(id, json!({ "result": result(&output) })),
            Err(error) => respond_to(id, json!({ "error": error.to_string() })),
        })
    }

    /// Responds to the pending request if the command is over, or the request's time is.
    fn resolve(&mut self) -> Result<(), Failure> {
        let (Some(pending), Some(job)) = (&self.pending, &self.job) else { return Ok(()) };
        let response = match job.try_wait() {
            Ok(Some(output)) => json!({ "result": result(&output) }),
            Err(error) => json!({ "error": error.to_string() }),
            Ok(None) if pending.until.is_some_and(|until| until <= Instant::now()) => {
                json!({ "running": output_from(job, 0) })
            }
            Ok(None) => return Ok(()),
        };
        respond_to(&pending.id, response)?;
        self.pending = None;
        Ok(())
    }
}

fn result(output: &Arc<Output>) -> Value {
    serde_json::to_value(&**output).unwrap_or_default()
}

/// The output of a command from a position on.
fn output_from(job: &Job, since: u64) -> Value {
    let chunk = job.read(since);
    json!({ "text": chunk.text(), "next": chunk.next, "lost": chunk.lost })
}

fn refused(error: Error) -> Refused {
    error.to_string()
}

fn seconds(name: &str, value: f64) -> Result<Duration, Refused> {
    Duration::try_from_secs_f64(value).map_err(|_| format!("{name} must be a time in seconds, got {value}"))
}

/// Writes a response with the request's id.
fn respond_to(id: &Value, mut response: Value) -> Result<(), Failure> {
    response["id"] = id.clone();
    respond(&response)
}

fn respond(response: &Value) -> Result<(), Failure> {
    print_to(Stream::Stdout, format!("{response}\n").as_bytes()).map(drop)
}

/// Whether another process may still read standard output.
fn is_read() -> bool {
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let _ = poll(&mut polled, Some(&Timespec::default()));
    !polled[0].revents().contains(PollFlags::ERR)
}
