// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs and reports.

use crate::common;
use std::time::{Duration, Instant};

use crate::common::run;
use serde_json::Value;
use spawnfd_tests::{confine, enough_time, isolated, require_root, skip};

fn json(args: &[&str]) -> (Option<i32>, Value) {
    let called = run(["--capture", "--json"].iter().chain(args));
    (called.code, serde_json::from_str(&called.stdout).unwrap_or_else(|e| panic!("{e}: {called:?}")))
}

#[test]
fn captured_streams_are_printed_separately() {
    isolated!(|| {
        let called = run(["--capture", "sh", "-c", "echo out; echo err >&2; cat"]);
        assert_eq!((called.code, called.stdout.as_str(), called.stderr.as_str()), (Some(0), "out\n", "err\n"));
    });
}

#[test]
fn json_describes_a_captured_run() {
    isolated!(|| {
        let (code, value) = json(&["sh", "-c", "echo out; echo err >&2; exit 4"]);
        assert_eq!((code, value["code"].as_i64(), value["ok"].as_bool()), (Some(4), Some(4), Some(false)));
        assert_eq!((value["stdout"].as_str(), value["stderr"].as_str()), (Some("out\n"), Some("err\n")));
        assert_eq!((value["stop"].as_str(), value["drain"].as_str()), (Some("exited"), Some("eof")));
        assert_eq!(value["status_lost"], false);
        assert_eq!(value["args"], serde_json::json!(["sh", "-c", "echo out; echo err >&2; exit 4"]));
        for field in ["wall_seconds", "cpu_seconds", "max_rss_bytes", "prepare_seconds", "omitted_bytes"] {
            assert!(value[field].is_number(), "{field}: {value}");
        }
        assert!(value["signal"].is_null());
        let (code, value) = json(&["sh", "-c", "kill -USR1 $$"]);
        assert_eq!((code, value["signal"].as_i64()), (Some(128 + 10), Some(10)));
    });
}

#[test]
fn json_of_an_uncaptured_run_goes_to_standard_error() {
    isolated!(|| {
        let called = run(["--json", "echo", "hello"]);
        assert_eq!(called.stdout, "hello\n");
        let value: Value = serde_json::from_str(&called.stderr).unwrap();
        assert_eq!(value["code"], 0);
        assert!(value["spawn_seconds"].as_f64().unwrap() > 0.0 && value["pid"].as_u64().unwrap() > 0);
        assert!(value.get("stdout").is_none());
    });
}

#[test]
fn timeout_ends_a_captured_run() {
    isolated!(|| {
        let start = Instant::now();
        let called = enough_time(Duration::from_millis(200), |time, mark| {
            let time = format!("{}ms", time.as_millis());
            let line = "echo begun; : >\"$0\"; sleep 1000";
            run(["--capture", "--timeout", &time, "sh", "-c", line, mark.to_str().unwrap()])
        });
        assert_eq!((called.code, called.stdout.as_str()), (Some(124), "begun\n"));
        assert!(called.stderr.contains("timed out after ") && start.elapsed().as_secs() < 300);
        let (code, value) = json(&["--timeout", "0.1", "--grace", "60", "sleep", "1000"]);
        assert_eq!((code, value["stop"].as_str(), value["signal"].as_i64()), (Some(124), Some("timeout"), Some(15)));
    });
}

/// The filter refuses PIDFD_GET_INFO, as a kernel before 6.15 does. SIGCHLD is ignored, so the
/// kernel reaps the program and its status is lost.
#[test]
fn a_lost_status_is_reported() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("filter.bpf");
        // The filter makes ioctl with PIDFD_GET_INFO fail with ENOTTY.
        let rules: [(u16, u8, u8, u32); 6] = [
            (0x20, 0, 0, 0),
            (0x15, 0, 3, 16),
            (0x20, 0, 0, 24),
            (0x15, 0, 1, 0xc040_ff0b),
            (0x06, 0, 0, 0x0005_0000 | libc::ENOTTY as u32),
            (0x06, 0, 0, 0x7fff_0000),
        ];
        let bytes =
            |(code, jt, jf, k): (u16, u8, u8, u32)| [&code.to_ne_bytes()[..], &[jt, jf], &k.to_ne_bytes()].concat();
        std::fs::write(&path, rules.map(bytes).concat()).unwrap();
        let lost = |flags: &[&str]| {
            let confined = ["--no-new-privs", "--seccomp", path.to_str().unwrap(), "env", "--ignore-signal=CHLD"];
            let inner = [env!("CARGO_BIN_EXE_spawnfd"), "run", "--capture"];
            run([&confined[..], &inner, flags, &["sh", "-c", "echo out; exit 3"]].concat())
        };
        let called = lost(&["--time"]);
        assert_eq!((called.code, called.stdout.as_str()), (Some(125), "out\n"), "{called:?}");
        assert!(
            called.stderr.contains("exit status is unknown") && called.stderr.contains("status unknown"),
            "{called:?}"
        );
        let called = lost(&["--json"]);
        let value: Value = serde_json::from_str(&called.stdout).unwrap_or_else(|e| panic!("{e}: {called:?}"));
        assert_eq!(
            (called.code, value["stdout"].as_str(), value["stop"].as_str()),
            (Some(125), Some("out\n"), Some("lost"))
        );
        assert!(value["code"].is_null() && value["signal"].is_null(), "{value}");
        assert_eq!((value["ok"].as_bool(), value["status_lost"].as_bool()), (Some(false), Some(true)));
    });
}

#[test]
fn keep_limits_the_output_to_head_and_tail() {
    isolated!(|| {
        let called = run(["--capture", "--keep", "4:5", "sh", "-c", "printf 0123456789abcdef"]);
        assert_eq!((called.stdout.as_str(), called.stderr.as_str()), ("0123\n[… 7 bytes omitted …]\nbcdef", ""));
        let (_, value) = json(&["--keep", "all", "seq", "100000"]);
        assert_eq!((&value["omitted_bytes"], value["stdout"].as_str().unwrap().len()), (&0.into(), 588_895));
        let (_, value) = json(&["--keep", "1K:0", "seq", "1000"]);
        assert!(value["stdout"].as_str().unwrap().ends_with("\n283\n[… 2,869 bytes omitted …]\n"), "{value}");
        assert_eq!(value["omitted_bytes"], 3893 - 1024);
        let omitted =
            serde_json::json!({"stdout": {"bytes": 2869, "offset": 1024}, "stderr": {"bytes": 0, "offset": 0}});
        assert_eq!(value["omitted"], omitted);
    });
}

#[test]
fn the_marker_can_be_changed_or_left_out() {
    isolated!(|| {
        let marked = |marker: &str| {
            let called = run(["--capture", "--keep", "1:2", "--marker", marker, "printf", "12345"]);
            (called.code, called.stdout, called.stderr)
        };
        assert_eq!(marked("-- {omitted} --"), (Some(0), "1\n-- 2 bytes --\n45".to_owned(), String::new()));
        let (code, out, err) = marked("");
        assert_eq!((code, out.as_str()), (Some(0), "145"));
        assert_eq!(err, "spawnfd: omitted 2 bytes from the middle of the output (--keep)\n");
        let (code, out, err) = marked("two\nlines");
        assert_eq!((code, out.as_str()), (Some(125), ""));
        assert!(err.starts_with("spawnfd: --marker: the marker must not contain a line break or a NUL"), "{err}");
    });
}

/// Writes lines to both streams in turn, each line after the command has read the previous one.
const ALTERNATES: &str = r#"
import array, fcntl, os, termios
def await_reader(fd):
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(fd, termios.FIONREAD, left)
for fd, text in (1, b"a\n"), (2, b"b\n"), (1, b"c\n"), (2, b"d\n"), (1, b"e\n"):
    os.write(fd, text)
    await_reader(fd)
"#;

#[test]
fn combined_output_is_in_order_of_arrival() {
    isolated!(|| {
        let (code, value) = json(&["--combined", "--keep", "2:2", "python3", "-c", ALTERNATES]);
        let expected = serde_json::json!([
            { "stream": "stdout", "text": "a\n" },
            { "stream": "stderr", "text": "b\n" },
            { "stream": "stdout", "text": "[… 2 bytes omitted …]\n", "omitted": 2 },
            { "stream": "stderr", "text": "d\n" },
            { "stream": "stdout", "text": "e\n" },
        ]);
        assert_eq!((code, &value["output"]), (Some(0), &expected));
        assert!(json(&["true"]).1.get("output").is_none());
        // Without --json, one file gets both streams.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("both");
        let file = std::fs::File::create(&path).unwrap();
        let mut command = common::command();
        command.args(["run", "--capture", "--combined", "python3", "-c", ALTERNATES]);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        assert!(command.status().unwrap().success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\nc\nd\ne\n");
        let called =
            run(["--capture", "--combined", "--marker", "", "--keep", "1", "sh", "-c", "printf 123; printf 456 >&2"]);
        assert_eq!(called.stdout, "13");
        assert_eq!(called.stderr, "46spawnfd: omitted 2 bytes from the middle of the output (--keep)\n");
    });
}

#[test]
fn input_is_read_and_streams_can_be_merged() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        std::fs::write(&path, "x".repeat(300_000)).unwrap();
        let called = run(["--capture", "--input", path.to_str().unwrap(), "wc", "-c"]);
        assert_eq!(called.stdout.trim(), "300000");
        let called = run(["--capture", "--stderr", "stdout", "sh", "-c", "echo one; echo two >&2"]);
        assert_eq!((called.stdout.as_str(), called.stderr.as_str()), ("one\ntwo\n", ""));
    });
}

#[test]
fn terminal_gives_the_program_a_terminal() {
    isolated!(|| {
        let (code, value) =
            json(&["--terminal=101x33", "sh", "-c", "tty >/dev/null && stty size; echo err >&2; echo x >/dev/tty"]);
        assert_eq!((code, value["stdout"].as_str()), (Some(0), Some("33 101\r\nerr\r\nx\r\n")));
        assert_eq!((value["stderr"].as_str(), value["drain"].as_str()), (Some(""), Some("eof")));
        // The terminal has the default size, and output bytes are unchanged. -echo keeps the typed
        // end-of-input character out of the output.
        let called =
            run(["--capture", "--terminal", "--", "sh", "-c", "stty size; stty raw -echo; echo; printf '\\t.'"]);
        assert_eq!((called.code, called.stdout.as_str(), called.stderr.as_str()), (Some(0), "24 80\r\n\n\t.", ""));
        let (code, value) = enough_time(Duration::from_millis(500), |time, mark| {
            let line = format!("echo begun; touch {}; exec sleep 1000", mark.display());
            json(&["--terminal", "--timeout", &time.as_secs_f64().to_string(), "sh", "-c", &line])
        });
        assert_eq!(
            (code, value["stop"].as_str(), value["stdout"].as_str()),
            (Some(124), Some("timeout"), Some("begun\r\n"))
        );
        assert_eq!(run(["--capture", "test", "-t", "1"]).code, Some(1));
    });
}

#[test]
fn input_is_typed_into_the_terminal() {
    isolated!(|| {
        // Without --input, the program reads end of file at once, even if the command's own input
        // stays open.
        let mut nothing = common::command();
        nothing.args(["run", "--capture", "--terminal", "--timeout", "30", "sh", "-c", "cat; echo over"]);
        let (ours, _theirs) = std::io::pipe().unwrap();
        let called = common::finish(nothing.stdin(ours));
        assert_eq!((called.code, called.stdout.as_str()), (Some(0), "over\r\n"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let flags = ["--terminal", "--timeout", "30", "--input", path.to_str().unwrap()];
        let (code, value) = json(&[&flags[..], &["sh", "-c", "stty -echo; cat; echo over"]].concat());
        assert!(value["stdout"].as_str().unwrap().ends_with("one\r\ntwo\r\nover\r\n"), "{value}");
        assert_eq!((code, value["input_refused"].as_bool()), (Some(0), Some(false)));
    });
}

#[test]
fn drain_names_the_process_that_holds_the_pipe() {
    isolated!(|| {
        let (code, value) = json(&["--drain", "50ms", "sh", "-c", "sleep 1000 & echo $!"]);
        assert_eq!(code, Some(0));
        let sleeper = value["stdout"].as_str().unwrap().trim().to_owned();
        assert_eq!(value["drain"].as_str().unwrap(), format!("cut: {sleeper}"));
        let _ = std::process::Command::new("kill").arg(sleeper).status();
    });
}

#[test]
fn leftovers_have_the_drain_time_in_runs_that_are_not_captured() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let line = "(sleep 0.05; echo late >\"$0\") & exit 3";
        let supervised = [["--timeout", "60"], ["--tree", "subreaper"], ["--memory", "4G"], ["--grace", "1"]];
        for (index, flags) in supervised.iter().enumerate() {
            let log = directory.path().join(index.to_string());
            let called = run(flags.iter().chain(&["--drain", "60", "sh", "-c", line, log.to_str().unwrap()]));
            assert_eq!((called.code, called.stderr.as_str()), (Some(3), ""), "{flags:?}");
            assert_eq!(std::fs::read_to_string(log).unwrap_or_default(), "late\n", "{flags:?}");
        }
    });
}

#[test]
fn time_prints_an_aligned_table() {
    isolated!(|| {
        let called = run(["--time", "true"]);
        let names: Vec<&str> = called.stderr.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["ended", "wall", "user+sys", "max", "prepare", "spawn"], "{}", called.stderr);
        let column = |line: &str| line.find("  ").map(|gap| gap + line[gap..].find(|c| c != ' ').unwrap());
        let columns: Vec<_> = called.stderr.lines().map(column).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{}", called.stderr);
        assert!(run(["--time", "sh", "-c", "kill -ABRT $$"]).stderr.contains("signal ABRT"));
    });
}

#[test]
fn cgroup_starts_the_program_in_a_cgroup() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let called = run(["--cgroup", "/tmp", "true"]);
        assert_eq!(called.code, Some(125), "/tmp is not a cgroup");
        assert!(called.stderr.starts_with("spawnfd: --cgroup /tmp: "), "{}", called.stderr);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let group = mount.map(|mount| std::path::Path::new(mount).join(format!("spawnfd-test-{}", std::process::id())));
        let Some(group) = group.filter(|group| std::fs::create_dir(group).is_ok()) else {
            return skip("no writable cgroup v2");
        };
        let called = run(["--cgroup", group.to_str().unwrap(), "cat", "/proc/self/cgroup"]);
        std::fs::remove_dir(&group).unwrap();
        let name = group.file_name().unwrap().to_str().unwrap();
        assert!(called.stdout.lines().any(|line| line.starts_with("0::") && line.ends_with(name)), "{called:?}");
    });
}

#[test]
fn output_limit_ends_the_program_and_spill_writes_a_file() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let flags = ["--output-limit", "1M", "--grace", "60", "--keep", "5", "--spill", path, "--spill-limit", "10K"];
        let (_, value) = json(&[&flags[..], &["yes"]].concat());
        assert_eq!((value["stop"].as_str(), value["signal"].as_i64()), (Some("output_limit"), Some(15)));
        assert!(value["seen_bytes"].as_u64().unwrap() > 1 << 20);
        let spilled = std::fs::read(value["spill_path"].as_str().unwrap()).unwrap();
        assert_eq!((spilled.len(), &spilled[..4]), (10 << 10, &b"y\ny\n"[..]));
        assert_eq!(value["spilled"], serde_json::json!({ "bytes": 10 << 10, "end": "capped" }));
        assert_eq!(value["input_refused"], false);
        let called = run(["--capture", "--keep", "2", "--spill", path, "echo", "0123456789"]);
        let line = called.stderr.lines().find(|line| line.contains("the complete output is in")).expect("the path");
        assert_eq!(std::fs::read_to_string(line.rsplit(' ').next().unwrap()).unwrap(), "0123456789\n");
    });
}

#[test]
fn leftovers_are_listed_and_killed() {
    isolated!(|| {
        let line = "sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $!";
        for tier in ["group", "guard"] {
            let (_, value) = json(&["--tree", tier, "sh", "-c", line]);
            assert_eq!((value["tree"].as_str(), value["tree_complete"].as_bool()), (Some(tier), Some(false)));
            assert_eq!(value["leftovers"][0]["pid"].to_string(), value["stdout"].as_str().unwrap().trim());
        }
        let called = run(["--capture", "sh", "-c", line]);
        assert!(called.stderr.contains("(sleep) outlived the program: killed"), "{}", called.stderr);
    });
}

#[test]
fn a_program_that_cannot_be_killed_is_listed() {
    isolated!(|| {
        // The filter makes pidfd_send_signal return success without sending a signal.
        confine::deny(&[("pidfd_send_signal", 0)]).unwrap();
        for format in [&["--time"][..], &["--json"]] {
            // The program ends when the test closes the pipe that it reads.
            let (called, writer) = enough_time(Duration::from_millis(300), |time, mark| {
                let (reader, writer) = std::io::pipe().unwrap();
                let time = format!("{}ms", time.as_millis());
                let flags = ["--capture", "--stdin", "inherit", "--timeout", &time, "--grace", "0"];
                let program = ["sh", "-c", "echo $$; : >\"$0\"; exec cat", mark.to_str().unwrap()];
                let mut command = common::command();
                command.stdin(reader).arg("run").args(flags).args(format).args(program);
                (common::finish(&mut command), writer)
            });
            assert_eq!(called.code, Some(124), "{called:?}");
            if format == ["--json"] {
                let value: Value = serde_json::from_str(&called.stdout).unwrap();
                let pid: u64 = value["stdout"].as_str().unwrap().trim().parse().unwrap();
                let left = serde_json::json!([{ "pid": pid, "name": "cat", "fate": "uninterruptible" }]);
                assert_eq!((&value["leftovers"], &value["stop"]), (&left, &"timeout".into()));
                assert_eq!(
                    (&value["status_lost"], &value["code"], &value["signal"]),
                    (&false.into(), &Value::Null, &Value::Null)
                );
            } else {
                let line = format!("process {} (cat) is still running: SIGKILL had no effect\n", called.stdout.trim());
                assert!(called.stderr.contains(&line) && !called.stderr.contains("status"), "{called:?}");
            }
            drop(writer);
        }
    });
}

#[test]
fn a_reached_limit_is_reported() {
    isolated!(|| {
        let burn = "while :; do :; done";
        let (code, value) = json(&["--tree", "guard", "--cpu-time", "0.5", "sh", "-c", burn]);
        assert_eq!(
            (code, value["stop"].as_str(), value["limit"].as_str()),
            (Some(152), Some("limit"), Some("cpu_time (rlimit)"))
        );
        assert_eq!(value["limits"], serde_json::json!({"cpu_time": "rlimit"}));
        let called = run(["--capture", "--tree", "guard", "--cpu-time", "0.5", "sh", "-c", burn]);
        assert!(
            called.stderr.contains("the program reached its cpu_time limit (rlimit) (--cpu-time)"),
            "{}",
            called.stderr
        );
        let called = run(["--capture", "--tree", "guard", "--cpu-quota", "1", "true"]);
        assert_eq!(called.code, Some(125));
        assert!(called.stderr.starts_with("spawnfd: --cpu-quota: "), "{}", called.stderr);
        let (code, value) = json(&["--tree", "guard", "--cpu-quota", "1", "--enforce", "best-effort", "true"]);
        assert_eq!((code, &value["limits"]), (Some(0), &serde_json::json!({"cpus": "unenforced"})));
        let watch = ["--capture", "--tree", "guard", "--memory", "100M", "--enforce", "watch"];
        let called = run(watch.iter().chain(&["perl", "-e", "$x = 'x' x (200 << 20); sleep 1000"]));
        assert_eq!(called.code, Some(137));
        assert!(called.stderr.contains("the program reached its memory limit (watch) (--memory)"), "{}", called.stderr);
    });
}

#[test]
fn timeout_without_capture_ends_the_tree() {
    isolated!(|| {
        let called = enough_time(Duration::from_millis(200), |time, mark| {
            let time = format!("{}ms", time.as_millis());
            let line = "sleep 1000 & echo $!; : >\"$0\"; wait";
            run(["--timeout", &time, "sh", "-c", line, mark.to_str().unwrap()])
        });
        assert_eq!(called.code, Some(124), "{called:?}");
        assert!(called.stderr.contains("timed out after "), "{called:?}");
        // The supervisor of this test would report a surviving `sleep`.
        assert!(called.stdout.trim().parse::<i32>().is_ok(), "{called:?}");
    });
}

#[test]
fn a_controlled_run_without_capture_keeps_the_streams_and_the_session() {
    isolated!(|| {
        let mut command = crate::common::command();
        let script = "cat; cut -d ' ' -f 5,6 /proc/$$/stat; echo $$; echo err >&2; exit 7";
        let mut child = command
            .args(["run", "--timeout", "300", "--json", "--", "sh", "-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"typed\n").unwrap();
        let output = crate::common::wait(child);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = stdout.lines().map(str::trim).collect();
        let [typed, groups, pid] = lines[..] else { panic!("{stdout}") };
        // The session is the fourth field after the name.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_owned();
        assert_eq!((typed, groups), ("typed", format!("{pid} {session}").as_str()));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let (error, json) = stderr.split_once('\n').unwrap();
        let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {stderr}"));
        assert_eq!((error, output.status.code(), value["code"].as_i64()), ("err", Some(7), Some(7)));
        assert_eq!((value["stdout"].as_str(), value["tree"].as_str()), (Some(""), Some("guard")));
    });
}

#[test]
fn idle_timeout_ends_a_silent_program() {
    isolated!(|| {
        let (code, value) = json(&["--idle-timeout", "0.1", "sh", "-c", "echo begun; sleep 1000"]);
        assert_eq!(
            (code, value["stop"].as_str(), value["stdout"].as_str()),
            (Some(124), Some("idle_timeout"), Some("begun\n"))
        );
        let called = run(["--capture", "--idle-timeout", "100ms", "sleep", "1000"]);
        assert_eq!(
            (called.code, called.stderr.as_str()),
            (Some(124), "spawnfd: the program wrote no output for 0.1 s (--idle-timeout)\n")
        );
        let called = run(["--idle-timeout", "1", "true"]);
        assert!(called.code == Some(125) && called.stderr.contains("--capture"), "{called:?}");
    });
}

#[test]
fn stream_prints_output_while_the_program_runs() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let mut child = crate::common::command()
            .args(["run", "--capture", "--stream", "--json", "--", "sh", "-c", "echo one; cat \"$0\"; echo err >&2"])
            .arg(&fifo)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 4];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        assert_eq!(&first, b"one\n");
        // The program ends only after this write.
        std::fs::write(&fifo, "two\n").unwrap();
        let output = crate::common::wait(child);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"two\n"[..]));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let (error, json) = stderr.split_once('\n').unwrap();
        let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {stderr}"));
        assert_eq!(
            (error, value["stdout"].as_str(), value["stderr"].as_str()),
            ("err", Some("one\ntwo\n"), Some("err\n"))
        );
    });
}

#[test]
fn stream_ends_the_program_when_its_reader_is_gone() {
    isolated!(|| {
        let mut child = crate::common::command()
            .args(["run", "--capture", "--stream", "yes"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(crate::common::wait(child).status.code(), Some(128 + 13));
    });
}
