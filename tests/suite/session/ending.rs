// SPDX-License-Identifier: MIT OR Apache-2.0
//! How commands and shells end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spawnfd::job::Stop;
use spawnfd::session::SessionOptions;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run};

use crate::common::eventually;
use crate::common::job::read_until;
use crate::common::tree::{is_alive, kill, reap};
use crate::{LONG, Shell, change, each_shell, run, shell_end, stdout};

each_shell! {
    a_timeout_ends_the_command_and_keeps_the_state
    a_host_that_ignores_or_blocks_signals_interrupts_commands
    an_interrupt_abandons_the_rest_of_the_command
    a_signal_for_a_completed_command_reaches_no_later_one
    sigint_before_a_command_runs_no_earlier_text
    a_command_that_ignores_signals_is_killed
    a_shell_that_does_not_return_is_killed
    a_background_job_outlives_each_shell_of_the_session
    a_shell_outlives_a_program_that_dies_slowly
    a_shell_that_cannot_report_a_status_is_killed_at_once
    errors_of_the_text_return_at_once
    a_shell_that_exits_is_reported_at_once
    a_forked_copy_of_the_host_delays_no_end
    a_shell_that_a_kill_does_not_end_has_not_exited
    a_background_job_survives_a_timeout
    a_process_that_is_forked_during_a_kill_does_not_survive
    processes_of_an_earlier_background_job_survive_a_timeout
    nothing_survives_the_session
    daemons_are_part_of_the_session
    no_end_frees_a_process_that_has_left_the_session
}

/// How long a command may take to return that returns at once. Much less than LONG.
const AT_ONCE: Duration = Duration::from_secs(20);

/// gptme#3805: each timeout ended the shell, so the directory and the variables were lost. OpenMinis#358: after a
/// timeout, each later command hung. apex#625: the processes of a pipeline survived the timeout.
fn a_timeout_ends_the_command_and_keeps_the_state(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "X=1");
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
    let output = session.run("sleep 600; echo no", &ends).expect("a result");
    assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Timeout, Some(130), false), "{output:?}");
    assert!(output.stdout.is_empty());
    // Without a grace time, SIGKILL comes at once.
    let at_once = Run::new().timeout(Duration::from_millis(50)).grace(Duration::ZERO);
    let output = session.run("sleep 600; exit_code=$?; (exit $exit_code)", &at_once).expect("a result");
    assert_eq!((output.stop, output.shell_exited), (Stop::Timeout, false), "{output:?}");
    assert_eq!(stdout(&session, "echo $X"), "1\n");
    for pipeline in ["sleep 600 | cat", "sh -c 'sleep 600; :' | cat", "(sleep 600; :) | (sleep 600; :) | cat"] {
        let output = session.run(pipeline, &ends).expect("a result");
        assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Timeout, Some(130), false), "{output:?}");
        // dash does not wait for the processes that it abandons.
        eventually(&format!("{pipeline}: no process is left"), || session.processes().is_empty());
        assert_eq!(stdout(&session, "echo $X"), "1\n", "{pipeline}");
    }
    let texts = [
        "echo on; sleep 600; echo no",
        "echo on; sleep 600 | cat; echo no",
        "echo on; (sleep 600; echo no); echo no",
        "echo on; Y=$(sleep 600; echo no); echo no",
        "echo on; f() { sleep 600; echo no; }; f; echo no",
        "echo on; while :; do :; done",
        "echo on; for i in 1 2 3; do sleep 600; done; echo no",
        "echo on; sleep 600 & wait; echo no",
    ];
    // SIGINT ends a bash 5.3 that is in `wait` (its wait_sigint_handler).
    let texts = if shell.name().contains("5.3") { &texts[..texts.len() - 1] } else { &texts[..] };
    for text in texts {
        let begun = Instant::now();
        let job = session.start(text, &Run::new().window(100)).expect("a job");
        read_until(&job, 0, "on\n");
        job.stop(LONG);
        let output = job.wait().expect("a result");
        assert_eq!((output.stop, output.code()), (Stop::Cancelled, Some(130)), "{text}: {output:?}");
        assert_eq!((&output.stdout[..], output.shell_exited), (&b"on\n"[..], false), "{text}: {output:?}");
        assert!(begun.elapsed() < AT_ONCE);
        assert_eq!(stdout(&session, "echo $X"), "1\n", "{text}");
    }
    session.close().expect("a result");
}

/// As a host that a script starts with `&`, or the entrypoint of a container.
fn a_host_that_ignores_or_blocks_signals_interrupts_commands(shell: Shell) {
    let signals = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
    // SAFETY: the calls change how this process of one test treats signals that nothing sends to it.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        for signal in signals {
            libc::signal(signal, libc::SIG_IGN);
            libc::sigaddset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
    }
    let session = shell.open(SessionOptions::new());
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
    let begun = Instant::now();
    let output = session.run("sleep 600; echo no", &ends).expect("a result");
    assert_eq!((output.stop, output.code()), (Stop::Timeout, Some(130)), "{output:?}");
    assert!(begun.elapsed() < AT_ONCE);
}

/// A daemon has a session of its own and no parent among the session's processes.
fn daemons_are_part_of_the_session(shell: Shell) {
    let session = shell.open(SessionOptions::new().tree(TreeControl::Subreaper));
    change(&session, "setsid -f sleep 600");
    let daemon = || session.processes().into_iter().find(|process| process.name == "sleep");
    eventually("the daemon is listed", || daemon().is_some());
    let first = daemon().expect("listed").pid as i32;
    // A timeout ends the daemons that its command has started, and no others.
    let ends = Run::new().timeout(Duration::from_millis(300)).grace(LONG);
    let output = session.run("setsid -f sleep 600; sleep 600", &ends).expect("a result");
    assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Timeout, Some(130), false), "{output:?}");
    eventually("one daemon is left", || session.processes().len() == 1);
    assert!(is_alive(first));
    session.close().expect("a result");
    eventually("the daemon has ended", || !is_alive(first));
}

/// The parent of such a process ends with the shell, or with a command. The tier `guard` must have seen the process before.
fn no_end_frees_a_process_that_has_left_the_session(shell: Shell) {
    let started = "setsid sleep 600 >/dev/null 2>&1 & echo $!";
    let in_command = format!("sh -c '{started}; wait'");
    for tree in [TreeControl::Guard, TreeControl::Subreaper] {
        for (text, closes) in [(started, true), (started, false), (&in_command, true), (&in_command, false)] {
            let session = shell.open(SessionOptions::new().tree(tree));
            let ends = Run::new().timeout(Duration::from_millis(500)).grace(LONG).drain(Duration::ZERO);
            let output = session.run(text, &ends).expect("a result");
            let process: i32 = output.stdout_text().trim().parse().expect("a pid");
            if closes {
                session.close().expect("a result");
            } else {
                drop(session);
            }
            eventually("the process has ended", || !is_alive(process));
        }
    }
}

fn an_interrupt_abandons_the_rest_of_the_command(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    for text in ["sleep 600; echo no", "while :; do :; done; echo no", "read x; echo no", "cat; echo no"] {
        let job = session.start(text, &Run::new().writable(1)).expect("a job");
        std::thread::sleep(Duration::from_millis(20));
        session.interrupt();
        let output = job.wait().expect("a result");
        assert_eq!((output.stop, output.code(), &output.stdout[..]), (Stop::Exited, Some(130), &b""[..]), "{text}");
    }
    session.interrupt();
    assert_eq!(stdout(&session, "echo still here"), "still here\n");
    // The command interrupts itself.
    assert_eq!(run(&session, "kill -INT $$; echo no").code(), Some(130));
    assert_eq!(stdout(&session, "echo $?"), "130\n");
}

/// The library still reads the output of the completed command's background job.
fn a_signal_for_a_completed_command_reaches_no_later_one(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let completed = session.start("sleep 600 &", &Run::new()).expect("a job");
    completed.wait().expect("a result");
    let later = session.start("echo on; sleep 600", &Run::new().window(100)).expect("a job");
    read_until(&later, 0, "on\n");
    eventually("both programs run", || session.processes().iter().filter(|it| it.name == "sleep").count() == 2);
    for (signal, tree) in
        [libc::SIGINT, libc::SIGTERM, libc::SIGKILL].into_iter().flat_map(|it| [(it, false), (it, true)])
    {
        completed.signal(signal, tree).expect("a signal");
    }
    completed.stop(Duration::ZERO);
    assert!(later.wait_timeout(Duration::from_millis(200)).expect("watched").is_none());
    assert_eq!(session.processes().len(), 2);
    later.signal(libc::SIGINT, true).expect("a signal");
    assert_eq!(later.wait().expect("a result").code(), Some(130));
}

/// How many times slower than usual the machine is, as for the time limits of tests.
fn slowness() -> u64 {
    std::env::var("SPAWNFD_SLOWNESS").map_or(1, |text| text.parse().expect("a number"))
}

/// A SIGINT from outside the library may come at any moment between two commands.
fn sigint_before_a_command_runs_no_earlier_text(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let pid = session.id().expect("the shell runs") as i32;
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // On a busy or slow machine, a shell makes progress only in the longer pauses.
            for pause in (1..=16 * slowness()).cycle() {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                kill(pid, libc::SIGINT);
                std::thread::sleep(Duration::from_millis(pause));
            }
        });
        let wrong = (0..200).find_map(|number| {
            // If bash read the rest of a line as a command, the line feed would separate two commands.
            let output = session.run(&format!("echo 'begin\n{number}'"), &Run::new().timeout(LONG)).expect("a result");
            let is_own = format!("begin\n{number}\n").as_bytes().starts_with(&output.stdout);
            // A SIGINT just before the text prevents it, and its status is unknown.
            let is_right = is_own
                && match output.code() {
                    Some(0) => output.stdout_text() == format!("begin\n{number}\n"),
                    Some(130) => true,
                    _ => output.stop == Stop::Lost && output.stdout.is_empty() && !output.shell_exited,
                };
            (!is_right).then(|| format!("{number}: {output:?}"))
        });
        has_ended.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
    assert_eq!(stdout(&session, "echo last"), "last\n");
}

/// OpenMinis#358, with a command that SIGKILL must end.
fn a_command_that_ignores_signals_is_killed(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "X=1");
    for ignored in ["trap : INT", "trap '' INT TERM"] {
        let text = format!("sh -c \"{ignored}; echo on; while :; do sleep 0.01; done\"");
        let job = session.start(&text, &Run::new().window(100)).expect("a job");
        read_until(&job, 0, "on\n");
        job.stop(Duration::from_millis(100));
        let output = job.wait().expect("a result");
        assert_eq!((output.stop, output.shell_exited), (Stop::Cancelled, false), "{output:?}");
        assert_eq!(stdout(&session, "echo $X"), "1\n");
    }
    eventually("its processes have ended", || session.processes().is_empty());
}

fn a_shell_that_does_not_return_is_killed(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    change(&session, "export X=1");
    let job = session.start("trap '' INT; echo on; while :; do :; done", &Run::new().window(100)).expect("a job");
    read_until(&job, 0, "on\n");
    job.stop(Duration::from_millis(50));
    let output = job.wait().expect("a result");
    assert_eq!((output.stop, output.shell_exited, output.status), (Stop::Cancelled, true, None), "{output:?}");
    assert_eq!(stdout(&session, "echo $X"), "1\n");
}

fn a_background_job_outlives_each_shell_of_the_session(shell: Shell) {
    for tree in [TreeControl::Group, TreeControl::Guard, TreeControl::Subreaper, TreeControl::Auto] {
        let session = shell.open(SessionOptions::new().restart(true).tree(tree));
        let job: u32 = stdout(&session, "sleep 600 >/dev/null 2>&1 & echo $!").trim().parse().expect("a pid");
        // It has executed its program.
        eventually("the job runs", || session.processes().iter().any(|process| process.name == "sleep"));
        let is_listed = || session.processes().iter().any(|process| process.pid == job);
        for _ in 0..3 {
            assert!(run(&session, "exit 1").shell_exited);
            assert!(is_listed(), "{tree:?}: after the end of the shell");
            assert_eq!(stdout(&session, "echo next"), "next\n");
            assert!(is_listed(), "{tree:?}: after the restart");
        }
        session.close().expect("a result");
        eventually("the job ends with the session", || !is_alive(job as i32));
    }
}

/// A process ends only after the tracer of each of its threads has taken the thread's status.
fn a_shell_outlives_a_program_that_dies_slowly(shell: Shell) {
    if !Command::new("python3").arg("--version").run().is_ok_and(|output| output.ok()) {
        return spawnfd_tests::skip("no python3");
    }
    // The library kills the shell 1 s after its first SIGKILL. On a busy machine, an attempt may take longer.
    for _ in 0..10 {
        let session = shell.open(SessionOptions::new());
        let text = "python3 -c 'import threading, time\nthread = threading.Thread(target=time.sleep, args=(600,))\n\
                    thread.start(); print(thread.native_id, flush=True)'";
        let job = session.start(text, &Run::new().window(100)).expect("a job");
        let (printed, _) = read_until(&job, 0, "\n");
        let thread: i32 = printed.trim().parse().expect("a thread id");
        let begun;
        // SAFETY: the calls stop no thread, and waitpid stores an int.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) != 0 {
                return spawnfd_tests::skip("ptrace is not permitted");
            }
            begun = Instant::now();
            job.stop(Duration::ZERO);
            std::thread::sleep(Duration::from_millis(400));
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        let output = job.wait().expect("a result");
        if begun.elapsed() < Duration::from_millis(700) {
            let ended = (output.stop, output.code(), output.shell_exited);
            return assert_eq!(ended, (Stop::Cancelled, Some(137), false), "{output:?}");
        }
    }
    spawnfd_tests::skip("the machine is too busy");
}

fn a_shell_that_cannot_report_a_status_is_killed_at_once(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    let begun = Instant::now();
    let output = run(&session, "builtin() { :; }; command() { :; }");
    assert!(output.shell_exited && output.stop == Stop::Lost, "{output:?}");
    assert!(begun.elapsed() < AT_ONCE);
    assert_eq!(stdout(&session, "echo next"), "next\n");
}

/// gptme#3805: after `exec 1>&-`, the tool waited for its timeout of 20 minutes.
fn errors_of_the_text_return_at_once(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let begun = Instant::now();
    for text in ["echo 'unfinished", "echo \"unfinished", "if", "case x in", "f() {", "echo ${", ")", "&&"] {
        let output = run(&session, text);
        assert!(!output.ok() && !output.shell_exited && !output.stderr.is_empty(), "{text}: {output:?}");
        assert_eq!(stdout(&session, "echo next"), "next\n", "{text}");
    }
    // bash 5.2.15 corrupts its memory here, so the shell may end later.
    assert!(!run(&shell.open(SessionOptions::new()), "echo $(").ok());
    for text in
        ["cat <<END\nunfinished", "exec 1>&-", "exec 0<&- 1>&- 2>&-", "break", "set -u; echo $unset; echo no", "set +u"]
    {
        assert!(!run(&session, text).shell_exited, "{text}");
        assert_eq!(stdout(&session, "echo next"), "next\n", "{text}");
    }
    assert!(begun.elapsed() < AT_ONCE);
}

/// gptme#3805: after `exit`, `exec`, `kill -9 $$` or `set -e`, the tool waited for its timeout of 20 minutes.
fn a_shell_that_exits_is_reported_at_once(shell: Shell) {
    let texts = [
        ("exit 3", Some(3), None),
        ("exec sh -c 'exit 4'", Some(4), None),
        ("kill -9 $$", None, Some(9)),
        ("set -e; false; echo no", Some(1), None),
        ("f() { exit 5; }; f", Some(5), None),
        ("kill -9 $$; sleep 600", None, Some(9)),
        ("sleep 600 & exit 6", Some(6), None),
    ];
    for (text, code, signal) in texts {
        let session = shell.open(SessionOptions::new());
        let begun = Instant::now();
        let output = run(&session, text);
        assert_eq!(shell_end(&output), (true, code, signal), "{text}: {output:?}");
        assert!(output.cwd.is_none(), "{text}");
        assert!(begun.elapsed() < AT_ONCE, "{text}");
        eventually("its processes have ended", || session.processes().is_empty());
    }
}

/// A copy of the host has copies of all pipes.
fn a_forked_copy_of_the_host_delays_no_end(shell: Shell) {
    let fork_copy = || {
        spawnfd_tests::copy::fork(|| {
            loop {
                // SAFETY: the call has no memory effects.
                unsafe { libc::pause() };
            }
        })
    };
    let options = || SessionOptions::new().grace(LONG);
    let writable = Run::new().writable(10).window(100);
    let begun = Instant::now();
    let mut copies = Vec::new();
    for (text, code, signal) in [("exit 3", Some(3), None), ("kill -9 $$", None, Some(9))] {
        let session = shell.open(options());
        let job = session.start(&format!("echo on; read x; {text}"), &writable).expect("a job");
        read_until(&job, 0, "on\n");
        copies.push(fork_copy());
        job.write(b"\n").expect("an open pipe");
        let output = job.wait().expect("a result");
        assert_eq!(shell_end(&output), (true, code, signal), "{text}: {output:?}");
        // The calling thread drives the command.
        let session = shell.open(options());
        let output = std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&session, &format!("sleep 0.2; {text}")));
            eventually("the command runs", || !session.processes().is_empty());
            copies.push(fork_copy());
            running.join().expect("a result")
        });
        assert_eq!(shell_end(&output), (true, code, signal), "{text}: {output:?}");
    }
    for text in [":", "sleep 600"] {
        let session = shell.open(options());
        let job = session.start(text, &Run::new()).expect("a job");
        copies.push(fork_copy());
        if text == ":" {
            job.wait().expect("a result");
        }
        let output = session.close().expect("a result");
        assert!(output.is_some_and(|output| output.signal().is_none()), "{text}");
    }
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    for copy in copies {
        kill(copy, libc::SIGKILL);
        reap(copy);
    }
}

fn a_shell_that_a_kill_does_not_end_has_not_exited(shell: Shell) {
    // Signals of this process have no effect.
    spawnfd_tests::confine::deny(&[("pidfd_send_signal", 0), ("kill", 0)]).expect("confined");
    let options = SessionOptions::new().tree(TreeControl::Group).grace(Duration::ZERO);
    let session = shell.open(options);
    let job = session.start("echo on; exec sleep 3", &Run::new().window(100)).expect("a job");
    read_until(&job, 0, "on\n");
    drop(session);
    let output = job.wait().expect("a result");
    assert_eq!((output.status_lost, output.shell_exited), (true, false), "{output:?}");
}

fn a_background_job_survives_a_timeout(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let pid: i32 = stdout(&session, "sleep 600 >/dev/null 2>&1 & echo $!").trim().parse().expect("a pid");
    std::thread::sleep(Duration::from_millis(20));
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(Duration::from_millis(50));
    let output = session.run("sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'", &ends).expect("a result");
    assert_eq!(output.stop, Stop::Timeout);
    assert_eq!(session.processes().iter().map(|process| process.pid as i32).collect::<Vec<_>>(), [pid]);
    drop(session);
    eventually("the job ends with the session", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

fn a_process_that_is_forked_during_a_kill_does_not_survive(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(Duration::ZERO);
    for round in 0..20 {
        let forks = "sh -c 'while :; do (exec sleep 600) >/dev/null 2>&1 & sleep 0.001; done'";
        let output = session.run(forks, &ends).expect("a result");
        assert_eq!(output.stop, Stop::Timeout);
        eventually(&format!("round {round}: no process is left"), || session.processes().is_empty());
    }
}

fn processes_of_an_earlier_background_job_survive_a_timeout(shell: Shell) {
    let dir = spawnfd_tests::scratch();
    let killed = dir.path().join("killed");
    let session = shell.open(SessionOptions::new());
    change(&session, &format!("(while :; do sleep 0.2 || echo >{}; done) >/dev/null 2>&1 &", killed.display()));
    let ends = Run::new().timeout(Duration::from_millis(300)).grace(Duration::ZERO);
    for _ in 0..5 {
        let output = session.run("sleep 600", &ends).expect("a result");
        assert_eq!((output.stop, output.shell_exited), (Stop::Timeout, false), "{output:?}");
    }
    assert!(!killed.exists(), "a child of the job was killed");
}

fn nothing_survives_the_session(shell: Shell) {
    for text in ["sleep 600 &", "sleep 600", "trap '' TERM INT HUP; sleep 600", "while :; do :; done"] {
        let session = shell.open(SessionOptions::new().grace(Duration::from_millis(100)));
        let shell_pid = session.id().expect("a shell");
        let job = session.start(text, &Run::new()).expect("a job");
        std::thread::sleep(Duration::from_millis(10));
        drop(session);
        job.wait().expect("a result");
        eventually("the shell has ended", || !std::path::Path::new(&format!("/proc/{shell_pid}")).exists());
    }
    let session = shell.open(SessionOptions::new());
    change(&session, "trap 'echo bye >/dev/shm/'$$ EXIT");
    let path = format!("/dev/shm/{}", session.id().expect("a shell"));
    assert!(session.close().expect("a result").is_some_and(|output| output.ok()));
    assert_eq!(std::fs::read_to_string(&path).expect("the trap has run"), "bye\n");
    std::fs::remove_file(path).expect("own file");
}
