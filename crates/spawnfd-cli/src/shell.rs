// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd shell`: a session for programs in any language, as lines of JSON.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spawnfd::job::{Chunk, Stream, TerminalSize};
use spawnfd::session::{Session, SessionOptions};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Error, Job, Output, Run};

use crate::failure::{Failure, print_to};
use crate::run::{Control, Environment, terminal_size};

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
    /// Start a login shell
    #[arg(long)]
    login: bool,
    /// After the shell has exited, start another one with the same directory, exported variables and umask
    #[arg(long)]
    restart: bool,
    /// Write the standard error of each command to its standard output
    #[arg(long)]
    merge: bool,
    /// Give the session a terminal of this size (default 80x24), which all commands share. All output is standard output
    #[arg(
        long,
        value_name = "COLSxROWS",
        value_parser = terminal_size,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "80x24"
    )]
    terminal: Option<TerminalSize>,
    /// Let the terminal write its input back to the output
    #[arg(long, requires = "terminal")]
    echo: bool,
    /// How to control the process tree [default: auto]
    #[arg(long, value_name = "TIER")]
    tree: Option<Control>,

    #[command(flatten)]
    environment: Environment,
}

const NOTES: &str = "\
Each request is a JSON object with one of these members, and may have an id, which the response repeats:
  run: the text of a command; with these options, all of them times in seconds:
    timeout, idle_timeout, grace: as for spawnfd run
    yield_after: respond after this time even if the command still runs
    input: text for standard input
    stream: true to write standard input by later requests
  wait: a time in seconds; wait for the running command, or get the result of the last one
  read: a position; the output since then
  write: text for the standard input of the running command; close_input: true ends that input
  interrupt: true; send SIGINT to the running command
  stop: a time in seconds; end the running command: SIGINT, SIGTERM, and SIGKILL after that time
  processes: true; list the processes of the session
  resize: [rows, columns]; change the size of the terminal

The first response is {\"ready\": true}. Each other response has the id and one of these members:
  result: the result of a command, as spawnfd run --json prints it, with cwd and shell_exited
  running: the output so far (text, next, lost) of a command that still runs
  output, processes, accepted (bytes of a write), done
  error: a message

While a run or a wait has no response yet, further ones wait in a queue. All other requests get their response at once.

At the end of standard input, this command responds to the requests that it has read, ends the shell and its processes, and \
exits.

Example:
  printf '%s\\n' '{\"run\": \"cd /tmp; X=1\"}' '{\"run\": \"echo $X $PWD\"}' | spawnfd shell";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    #[serde(default)]
    id: Value,
    run: Option<String>,
    timeout: Option<f64>,
    idle_timeout: Option<f64>,
    grace: Option<f64>,
    yield_after: Option<f64>,
    input: Option<String>,
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
    /// Rows and columns.
    resize: Option<(u16, u16)>,
}

impl Request {
    /// Whether the response may have to wait for a command.
    fn waits(&self) -> bool {
        self.run.is_some() || self.wait.is_some()
    }
}

#[derive(Serialize)]
struct OutputSoFar<'a> {
    text: &'a str,
    next: u64,
    lost: u64,
}

enum Event {
    Line(String),
    /// Standard input has ended.
    End,
    /// The running command is over.
    Done,
}

/// A request whose response waits for the end of the command.
struct Pending {
    id: Value,
    until: Option<Instant>,
}

struct Server {
    session: Session,
    events: Sender<Event>,
    job: Option<Job>,
    pending: Option<Pending>,
    /// Requests that wait until the pending one has its response.
    queue: VecDeque<Request>,
}

/// The reason why a request failed.
type Refused = String;

/// The bytes of output that `read` can return, and the bytes of input that may wait for the command.
const WINDOW: usize = 1 << 20;

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
        let options = SessionOptions::new().login(self.login).restart(self.restart).merge(self.merge);
        let options =
            options.terminal(self.terminal).echo(self.echo).run(&Run::new().tree(self.tree.map(TreeControl::from)));
        let session = Session::open(command, options).map_err(|error| Failure::program(&self.program[0], error))?;
        let (events, received) = channel();
        let lines = events.clone();
        std::thread::spawn(move || {
            let ended = stdin().lock().lines().try_for_each(|line| {
                let line = line.map_err(|_| ())?;
                lines.send(Event::Line(line)).map_err(|_| ())
            });
            // An unreadable line ends the input too.
            let _ = (ended, lines.send(Event::End));
        });
        respond(&json!({ "ready": true, "pid": session.id() }))?;
        Server { session, events, job: None, pending: None, queue: VecDeque::new() }.serve(&received)?;
        Ok(0)
    }
}

impl Server {
    fn serve(mut self, events: &Receiver<Event>) -> Result<(), Failure> {
        let mut has_ended = false;
        while !has_ended || self.pending.is_some() {
            let until = self.pending.as_ref().and_then(|pending| pending.until);
            let check = has_ended.then(|| Instant::now() + CHECK_INTERVAL);
            let event = match until.into_iter().chain(check).min() {
                Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Line(line)) if line.trim().is_empty() => {}
                Ok(Event::Line(line)) => match serde_json::from_str::<Request>(&line) {
                    Ok(request) if self.pending.is_some() && request.waits() => self.queue.push_back(request),
                    Ok(request) => self.handle(request)?,
                    Err(error) => respond(&json!({ "id": null, "error": format!("not a request: {error}") }))?,
                },
                Ok(Event::End) => has_ended = true,
                Ok(Event::Done) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.resolve()?;
            while self.pending.is_none()
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
            request.resize.is_some(),
        ];
        if actions.into_iter().filter(|is_given| *is_given).count() != 1 {
            return Err("a request has one of run, wait, read, write, close_input, interrupt, stop, processes, resize"
                .to_owned());
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
        if let Some(text) = &request.run {
            self.start(text, &request)?;
            return Ok(None);
        }
        let job = self.job.as_ref().ok_or("no command has run yet")?;
        if let Some(since) = request.read {
            let chunk = job.read(since);
            return Ok(Some(json!({ "output": so_far(&chunk, &chunk.text()) })));
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

    fn start(&mut self, text: &str, request: &Request) -> Result<(), Refused> {
        let time = |name, value: Option<f64>| value.map(|value| seconds(name, value)).transpose();
        let mut run = Run::new().window(WINDOW).timeout(time("timeout", request.timeout)?);
        run = run.idle_timeout(time("idle_timeout", request.idle_timeout)?);
        if let Some(grace) = time("grace", request.grace)? {
            run = run.grace(grace);
        }
        if let Some(input) = &request.input {
            run = run.input(input.clone());
        }
        if request.stream {
            run = run.writable(WINDOW);
        }
        let until = time("yield_after", request.yield_after)?;
        let job = self.session.start(text, &run).map_err(refused)?;
        let events = self.events.clone();
        job.when_done(move || _ = events.send(Event::Done));
        if let Some(before) = self.job.replace(job) {
            before.detach();
        }
        let until = until.and_then(|after| Instant::now().checked_add(after));
        self.pending = Some(Pending { id: request.id.clone(), until });
        Ok(())
    }

    /// Responds to the pending request if the command is over, or the request's time is.
    fn resolve(&mut self) -> Result<(), Failure> {
        let (Some(pending), Some(job)) = (&self.pending, &self.job) else { return Ok(()) };
        let response = match job.try_wait() {
            Ok(Some(output)) => json!({ "result": result(&output) }),
            Err(error) => json!({ "error": error.to_string() }),
            Ok(None) if pending.until.is_some_and(|until| until <= Instant::now()) => {
                let chunk = job.read(0);
                json!({ "running": so_far(&chunk, &chunk.text()) })
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

fn so_far<'a>(chunk: &Chunk, text: &'a str) -> OutputSoFar<'a> {
    OutputSoFar { text, next: chunk.next, lost: chunk.lost }
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
