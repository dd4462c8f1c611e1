// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd shell`: requests and responses.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use spawnfd_tests::isolated;

use crate::common::command;

/// A running `spawnfd shell`.
struct Server {
    child: Child,
    requests: Option<ChildStdin>,
    responses: BufReader<ChildStdout>,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut child = command().arg("shell").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (requests, responses) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut server = Server { child, requests, responses };
        assert_eq!(server.response()["ready"], true);
        server
    }

    fn send(&mut self, request: &Value) {
        writeln!(self.requests.as_ref().unwrap(), "{request}").unwrap();
    }

    fn response(&mut self) -> Value {
        let mut line = String::new();
        self.responses.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn call(&mut self, request: Value) -> Value {
        self.send(&request);
        let response = self.response();
        assert_eq!(response["id"], request["id"]);
        response
    }

    /// The result of a command that ends by itself.
    fn run(&mut self, text: &str) -> Value {
        self.call(json!({ "run": text, "timeout": 60 }))["result"].take()
    }

    fn end(mut self) -> Option<i32> {
        drop(self.requests.take());
        self.child.wait().unwrap().code()
    }
}

#[test]
fn a_session_may_have_a_terminal() {
    isolated!(|| {
        let mut server = Server::start(&["--terminal=100x30"]);
        assert_eq!(server.run("stty size </dev/tty; [ -t 1 ] && echo terminal")["stdout"], "30 100\r\nterminal\r\n");
        assert_eq!(server.call(json!({ "resize": [10, 20] }))["done"], true);
        assert_eq!(server.run("stty size </dev/tty")["stdout"], "10 20\r\n");
        assert_eq!(server.call(json!({ "run": "cat", "input": "typed\n" }))["result"]["stdout"], "typed\r\n");
        assert_eq!(server.end(), Some(0));
        let mut server = Server::start(&["--terminal", "--echo"]);
        assert_eq!(server.call(json!({ "run": "cat", "input": "x\n" }))["result"]["stdout"], "x\r\nx\r\n");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_side_command_runs_beside_a_command() {
    isolated!(|| {
        let mut server = Server::start(&["--restart"]);
        server.run("cd /usr; export X=1");
        let running = server.call(json!({ "id": 1, "run": "read x; X=$x", "stream": true, "yield_after": 0 }));
        assert!(running["running"].is_object(), "{running}");
        let shows = json!({ "id": 2, "side": ["sh", "-c", "cat; echo $X $PWD; exit 3"], "input": "in\n" });
        let result = server.call(shows)["result"].take();
        assert_eq!((&result["stdout"], &result["code"]), (&"in\n1 /usr\n".into(), &3.into()));
        let missing = server.call(json!({ "id": 3, "side": ["no-such-program"] }));
        assert!(missing["error"].as_str().unwrap().contains("no-such-program"), "{missing}");
        server.call(json!({ "id": 4, "write": "2\n" }));
        assert_eq!(server.call(json!({ "id": 5, "wait": 60 }))["result"]["code"], 0);
        assert_eq!(server.end(), Some(0));
        let mut server = Server::start(&[]);
        let refused = server.call(json!({ "id": 6, "side": ["true"] }));
        assert!(refused["error"].as_str().unwrap().contains("restart"), "{refused}");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_queued_run_follows_the_running_command() {
    isolated!(|| {
        let mut server = Server::start(&["--queue"]);
        let running = server.call(json!({ "id": 1, "run": "read x; X=$x", "stream": true, "yield_after": 0 }));
        assert!(running["running"].is_object(), "{running}");
        server.send(&json!({ "id": 2, "run": "echo $X" }));
        server.send(&json!({ "id": 3, "run": "echo $X again" }));
        assert_eq!(server.call(json!({ "id": 4, "write": "in\n" }))["accepted"], 3);
        for (id, text) in [(2, "in\n"), (3, "in again\n")] {
            let response = server.response();
            assert_eq!((&response["id"], &response["result"]["stdout"]), (&id.into(), &text.into()));
        }
        assert_eq!(server.end(), Some(0));
        let mut server = Server::start(&[]);
        server.call(json!({ "id": 1, "run": "read x", "stream": true, "yield_after": 0 }));
        let refused = server.call(json!({ "id": 2, "run": ":" }));
        assert!(refused["error"].as_str().unwrap().contains("runs another command"), "{refused}");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_shell_keeps_its_state_between_requests() {
    isolated!(|| {
        for args in [&["--cwd", "/usr"][..], &["--cwd", "/usr", "dash"]] {
            let mut server = Server::start(args);
            let result = server.run("X=1; cd bin; echo err >&2; false");
            assert_eq!(
                (&result["code"], &result["cwd"], &result["stderr"]),
                (&json!(1), &json!("/usr/bin"), &json!("err\n"))
            );
            assert_eq!(server.run("echo $X $? $PWD")["stdout"], "1 1 /usr/bin\n");
            let result = server.call(json!({ "id": 7, "run": "cat; sleep 600", "input": "in\n", "timeout": 1 }));
            let result = &result["result"];
            assert_eq!(
                (&result["stop"], &result["stdout"], &result["code"]),
                (&json!("timeout"), &json!("in\n"), &json!(130))
            );
            assert_eq!(server.end(), Some(0));
        }
    });
}

/// bub#317: a command that takes longer than its time goes on, and later calls name it by its id.
#[test]
fn a_command_that_takes_longer_is_handed_back() {
    isolated!(|| {
        let mut server = Server::start(&["--merge"]);
        let text = "echo ask >&2; read x; echo got $x; sleep 600";
        let response = server.call(json!({ "run": text, "stream": true, "yield_after": 0.05 }));
        assert!(response["running"].is_object(), "{response}");
        assert_eq!(server.call(json!({ "id": "w", "write": "yes\n" }))["accepted"], 4);
        let mut output = Value::Null;
        while output["text"] != "ask\ngot yes\n" {
            output = server.call(json!({ "read": 0 }))["output"].take();
        }
        assert_eq!(server.call(json!({ "read": output["next"] }))["output"]["text"], "");
        while server.call(json!({ "processes": true }))["processes"][0]["name"] != "sleep" {}
        assert!(server.call(json!({ "run": "echo no" }))["error"].as_str().unwrap().contains("another command"));
        assert!(server.call(json!({ "wait": 0.01 }))["running"].is_object());
        // The command's result comes after the response to the interrupt.
        server.send(&json!({ "id": 1, "wait": 60 }));
        server.send(&json!({ "id": 2, "interrupt": true }));
        assert_eq!(server.response()["id"], 2);
        assert_eq!(server.response()["result"]["code"], 130);
        assert_eq!(server.call(json!({ "wait": 0 }))["result"]["stdout"], "ask\ngot yes\n");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn an_ended_shell_is_reported_and_restarted() {
    isolated!(|| {
        let mut server = Server::start(&["--restart"]);
        assert_eq!(server.run("export X=1")["shell_exited"], Value::Null);
        let result = server.run("exit 3");
        assert_eq!((&result["shell_exited"], &result["shell_code"]), (&json!(true), &json!(3)));
        assert_eq!((&result["stop"], &result["code"], &result["ok"]), (&json!("lost"), &Value::Null, &json!(false)));
        assert_eq!(server.run("kill -9 $$")["shell_code"], -9);
        assert_eq!(server.run("echo $X")["stdout"], "1\n");
        assert_eq!(server.end(), Some(0));
        let mut server = Server::start(&[]);
        server.run("exit 3");
        assert!(server.call(json!({ "run": "echo no" }))["error"].as_str().unwrap().contains("exited"));
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_command_may_have_a_directory_and_variables_of_its_own() {
    isolated!(|| {
        for shell in ["bash", "dash"] {
            let mut server = Server::start(&["--restart", shell]);
            server.run("cd /usr; X=1");
            let shows = json!({ "run": "echo $X $Y $PWD; cd /", "cwd": "bin", "env": { "X": "it's", "Y": "2" } });
            assert_eq!(server.call(shows)["result"]["stdout"], "it's 2 /usr/bin\n");
            assert_eq!(server.run("echo $X$Y $PWD")["stdout"], "1 /usr\n");
            let refused = server.call(json!({ "run": ":", "env": { "1x": "" } }));
            assert!(refused["error"].as_str().unwrap().contains("env: \"1x\""), "{refused}");
            let refused = server.call(json!({ "wait": 1, "cwd": "/" }));
            assert_eq!(refused["error"], "cwd and env are options of run");
            assert_eq!(server.end(), Some(0));
        }
    });
}

/// The last directory of the session no longer exists.
#[test]
fn a_command_with_a_directory_starts_a_new_shell_there() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let mut server = Server::start(&["--restart"]);
        server.run(&format!("export X=1; mkdir {dir}/gone; cd {dir}/gone"));
        server.run(&format!("rmdir {dir}/gone; exit"));
        let refused = server.call(json!({ "run": "touch file" }));
        assert!(refused["error"].as_str().unwrap().contains("/gone"), "{refused}");
        assert_eq!(server.call(json!({ "run": "echo $X $PWD", "cwd": dir }))["result"]["stdout"], format!("1 {dir}\n"));
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_text_may_have_bytes_that_are_not_utf_8() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(&["--cwd", dir.path().to_str().unwrap()]);
        let request = r#"{"run": "echo -n 'é\udcc3\udca9\udc80\udcff'; mkdir '\udcff'"}"#;
        writeln!(server.requests.as_ref().unwrap(), "{request}").unwrap();
        assert_eq!(server.response()["result"]["stdout"], "éé\u{fffd}\u{fffd}");
        let request = r#"{"run": "[ \"$X\" = $'\\xfe' ] && pwd", "cwd": "\udcff", "env": {"X": "\udcfe"}}"#;
        writeln!(server.requests.as_ref().unwrap(), "{request}").unwrap();
        assert_eq!(server.response()["result"]["code"], 0);
        assert!(dir.path().join(OsStr::from_bytes(b"\xff")).is_dir());
        // A line that is not UTF-8 is an error, and the next line is read.
        server.requests.as_ref().unwrap().write_all(b"{\"run\": \"echo \xff\"}\n").unwrap();
        let refused = server.response();
        assert!(refused["error"].as_str().unwrap().starts_with("not a request: it is not UTF-8"), "{refused}");
        assert_eq!(server.run("echo yes")["stdout"], "yes\n");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn wrong_requests_are_errors_and_lose_nothing() {
    isolated!(|| {
        let mut server = Server::start(&[]);
        for request in [
            json!({}),
            json!({ "run": "echo no", "wait": 1 }),
            json!({ "run": "echo no", "timeout": -1 }),
            json!({ "run": "echo no", "unknown": 1 }),
            json!({ "run": 5 }),
            json!({ "write": "x" }),
            json!([1]),
        ] {
            server.send(&request);
            assert!(server.response()["error"].is_string(), "{request}");
        }
        writeln!(server.requests.as_ref().unwrap(), "not json\n").unwrap();
        assert!(server.response()["error"].as_str().unwrap().starts_with("not a request"));
        assert_eq!(server.run("echo yes")["stdout"], "yes\n");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn a_request_accepts_each_option_of_the_table() {
    isolated!(|| {
        let mut server = Server::start(&["--restart", "--memory", "1T", "--enforce", "best-effort", "bash"]);
        let cut =
            server.call(json!({ "run": "seq 1000; echo err >&2", "keep": [4, 4], "marker": "cut", "combined": true }));
        let result = &cut["result"];
        assert_eq!((result["stdout"].as_str(), result["output"].is_array()), (Some("1\n2\ncut\n000\n"), true), "{cut}");
        assert!(result["limits"]["memory"].is_string(), "{cut}");
        let limited = server.call(json!({ "run": "yes", "output_limit": 100, "keep": "all", "grace": 1 }));
        assert_eq!(limited["result"]["stop"], "output_limit", "{limited}");
        let side = json!({ "side": ["true"], "limits": { "cpu_time": 60, "enforce": "best-effort" } });
        let side = server.call(side);
        assert!(side["result"]["limits"]["cpu_time"].is_string(), "{side}");
        for (request, expected) in [
            (json!({ "run": "true", "leftovers": "kill" }), "leftovers is not an option of a command"),
            (json!({ "run": "true", "lifetime": 1 }), "lifetime is not an option of a command"),
            (json!({ "run": "true", "keep": "some" }), "keep must be two numbers of bytes, or \"all\", got \"some\""),
            (json!({ "run": "true", "combined": 1 }), "combined cannot be 1"),
            (json!({ "run": "true", "timeout": -1 }), "timeout must be a time in seconds, got -1"),
            (json!({ "side": ["true"], "limits": { "memory": 0 } }), "limits.memory must be > 0, got 0"),
            (json!({ "processes": true, "timeout": 1 }), "timeout is an option of run"),
            (json!({ "processes": true, "lifetime": 1 }), "unknown member \"lifetime\""),
        ] {
            let refused = server.call(request);
            assert!(refused["error"].as_str().is_some_and(|error| error.starts_with(expected)), "{refused}");
        }
        assert_eq!(server.run("echo on")["stdout"], "on\n");
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn the_end_of_the_client_ends_the_shell() {
    isolated!(|| {
        // Requests are answered in order, although no further request follows.
        let mut server = Server::start(&[]);
        server.send(&json!({ "run": "sleep 0.1; X=1" }));
        server.send(&json!({ "run": "echo $X" }));
        server.send(&json!({ "run": "sleep 0.1; echo last" }));
        drop(server.requests.take());
        assert_eq!(server.response()["result"]["stdout"], "");
        assert_eq!(server.response()["result"]["stdout"], "1\n");
        assert_eq!(server.response()["result"]["stdout"], "last\n");
        assert_eq!(server.end(), Some(0));
        // The client is gone, so no response can reach it.
        let mut server = Server::start(&[]);
        server.send(&json!({ "run": "sleep 600" }));
        let Server { mut child, requests, responses } = server;
        drop((requests, responses));
        assert_eq!(child.wait().unwrap().code(), Some(0));
    });
}

#[test]
fn a_shell_that_cannot_start_is_a_failure() {
    isolated!(|| {
        let called = crate::common::call(["shell", "nonexistent-shell"]);
        assert_eq!((called.code, called.stderr.contains("not found in PATH")), (Some(127), true), "{}", called.stderr);
        let called = crate::common::call(["shell", "false"]);
        assert_eq!(
            (called.code, called.stderr.contains("exited while it started")),
            (Some(125), true),
            "{}",
            called.stderr
        );
    });
}
