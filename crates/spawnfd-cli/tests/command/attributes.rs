// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of each flag of `spawnfd run`, as the program itself sees it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use crate::common::{command, complaint, finish, run, shell, wait_status};
use spawnfd_tests::{isolated, require_root, skip};

#[track_caller]
fn status(flags: &[&str], field: &str) -> String {
    // No shell runs in between, because some shells change the signal mask.
    let pattern = format!("^{field}:");
    let called = run(flags.iter().copied().chain(["grep", &pattern, "/proc/self/status"]));
    assert_eq!(called.code, Some(0), "{flags:?}: {}", called.stderr);
    called.stdout.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Returns the open descriptors of `ls`. They include the lowest free number, by which `ls` reads
/// the directory.
#[track_caller]
fn listed(flags: &[&str]) -> String {
    let called = run(flags.iter().copied().chain(["ls", "/proc/self/fd"]));
    assert_eq!(called.code, Some(0), "{flags:?}: {}", called.stderr);
    called.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn actions_run_in_the_order_given() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        for name in ["one", "two"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        let (one, two) = (format!("{root}/one"), format!("{root}/two"));
        let script = "cat <&7; echo; cat <&8; echo; pwd";
        let flags = ["--chdir", &one, "--open", "r:file:7", "--chdir", &two, "--open", "r:file:8", "--chdir", "/"];
        assert_eq!(shell(flags, script), "one\ntwo\n/");
        // These two commands have the same flags in opposite orders.
        assert_eq!(listed(&["--open", "r:/etc/passwd:7", "--close", "7"]), "0 1 2 3");
        assert_eq!(listed(&["--close", "7", "--open", "r:/etc/passwd:7"]), "0 1 2 3 7");
        assert_eq!(shell(["--setsid", "--umask", "027", "--nice", "19", "--umask", "077"], "umask; nice"), "0077\n19");
    });
}

#[test]
fn open_dup2_and_close_range_change_the_descriptors() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let path = path.to_str().unwrap();
        assert_eq!(listed(&[]), "0 1 2 3", "nothing but the standard streams");
        shell(["--open", &format!("w:{path}:5")], "echo first >&5");
        shell(["--open", &format!("a:{path}:5"), "--dup2", "5:1"], "echo second");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "first\nsecond\n");
        let exclusive = format!("wx:{path}:5");
        assert!(complaint(&run(["--open", &exclusive, "true"]), 125).contains("EEXIST"));
        assert_eq!(shell(["--open", &format!("rw:{path}:5")], "head -1 <&5"), "first");
        let ranged = ["--open", "r:/:5", "--open", "r:/:6", "--open", "r:/:9", "--close-range", "5-6"];
        assert_eq!(listed(&ranged), "0 1 2 3 9");
        let open_ended = ["--open", "r:/:5", "--open", "r:/:9", "--close-range", "6-"];
        assert_eq!(listed(&open_ended), "0 1 2 3 5");
    });
}

#[test]
fn open_applies_modes_permissions_and_path_restrictions() {
    isolated!(|| {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
        let at =
            |how: &str| shell(["--umask", "027", "--cwd", root, "--open", how], "echo x >&5; readlink /proc/self/fd/5");
        assert_eq!((at("w:plain:5"), mode("plain")), (format!("{root}/plain"), 0o640));
        at("wx,0604:other:5");
        at("a,700:more:5");
        assert_eq!((mode("other"), mode("more")), (0o600, 0o700));
        // 'existing' neither creates nor truncates the file.
        at("w,existing:plain:5");
        at("w,existing,append:plain:5");
        assert_eq!(std::fs::read(dir.path().join("plain")).unwrap(), b"x\nx\n");
        at("rw,trunc:plain:5");
        assert_eq!(std::fs::read(dir.path().join("plain")).unwrap(), b"x\n");
        let unnamed = ["--cwd", root, "--open", "rw,tmpfile,600:.:5"];
        if run(unnamed.iter().chain(&["true"])).stderr.contains("EOPNOTSUPP") {
            skip("no unnamed files in the temporary directory");
        } else {
            assert_eq!(shell(unnamed, "echo x >&5; stat -Lc %a-%h /proc/self/fd/5"), "600-0");
        }
        // With O_PATH, the descriptor names the file, but the program cannot read from it.
        let path_only = ["--cwd", root, "--open", "r,path:plain:5"];
        assert_eq!(shell(path_only, "cat <&5 2>/dev/null || readlink /proc/self/fd/5"), format!("{root}/plain"));
        let flags = shell(["--cwd", root, "--open", "r,nonblock:plain:5"], "grep flags /proc/self/fdinfo/5");
        assert!(flags.ends_with("4000"), "{flags}");
        std::fs::create_dir(dir.path().join("below")).unwrap();
        symlink("../plain", dir.path().join("below/up")).unwrap();
        symlink("/plain", dir.path().join("below/top")).unwrap();
        std::fs::write(dir.path().join("below/plain"), "inside").unwrap();
        for (how, errno) in [
            ("w,existing:no:5", "ENOENT"),
            ("rw,excl:plain:5", "EEXIST"),
            ("r,directory:plain:5", "ENOTDIR"),
            ("r,nofollow:below/up:5", "ELOOP"),
            ("r,no-symlinks:below/up:5", "ELOOP"),
            ("r,beneath:../plain:5", "EXDEV"),
            ("r,beneath:/etc/passwd:5", "EXDEV"),
            ("r,no-magiclinks:/proc/self/exe:5", "ELOOP"),
            ("r,no-xdev:/proc/self/stat:5", "EXDEV"),
        ] {
            let called = run(["--cwd", root, "--open", how, "true"]);
            let message = complaint(&called, 125);
            assert!(message.starts_with(&format!("--open {how}: ")) && message.contains(errno), "{message}");
        }
        assert_eq!(shell(["--cwd", root, "--open", "r,beneath:below/up:5"], "cat <&5"), "x");
        let script = format!("exec \"$0\" run --open-at 7:r,in-root:top:5 -- cat /dev/fd/5 7<{root}/below");
        let called = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
        assert_eq!(called.stdout, "inside", "{}", called.stderr);
    });
}

#[test]
fn inherited_descriptors_can_be_passed() {
    isolated!(|| {
        // A shell opens descriptors 6 and 7 for the command.
        let own = |args: &str| {
            let script = format!("exec \"$0\" run {args} 6</etc/passwd 7</");
            let called = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
            assert_eq!(called.code, Some(0), "{}", called.stderr);
            called.stdout
        };
        assert_eq!(own("--fd 6:4 readlink /proc/self/fd/4"), "/etc/passwd\n");
        assert_eq!(own("ls /proc/self/fd"), "0\n1\n2\n3\n");
        assert_eq!(own("--inherit-descriptors readlink /proc/self/fd/6"), "/etc/passwd\n");
        assert_eq!(own("--fchdir 7 pwd"), "/\n");
        assert_eq!(own("--open-at 7:r:etc/passwd:3 readlink /proc/self/fd/3"), "/etc/passwd\n");
    });
}

#[test]
fn relative_parts_of_path_start_at_the_programs_directory() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::copy("/bin/echo", bin.join("only-here")).unwrap();
        let cwd = directory.path().to_str().unwrap();
        for flags in [&[][..], &["--strict"], &["--snapshot"], &["--capture"]] {
            for (cwd, path) in [(cwd, "PATH=/bin:bin"), (bin.to_str().unwrap(), "PATH=:/bin")] {
                let called = run(flags.iter().chain(&["--cwd", cwd, "--env", path, "only-here", "found"]));
                assert_eq!((called.stdout.as_str(), called.stderr.as_str()), ("found\n", ""), "{flags:?} {path}");
            }
        }
        let called = run(["--env", "PATH=/bin:bin", "only-here"]);
        assert_eq!(called.code, Some(127), "{called:?}");
    });
}

#[test]
fn cwd_arg0_strict_and_snapshot_apply_to_the_program() {
    isolated!(|| {
        assert_eq!(run(["--cwd", "/usr", "pwd"]).stdout, "/usr\n");
        assert_eq!(run(["--cwd", "/usr", "--chdir", "bin", "pwd"]).stdout.trim_end_matches('\n'), "/usr/bin");
        assert_eq!(
            run(["--arg0", "other", "sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1"]).stdout,
            "other\n"
        );
        assert_eq!(run(["--strict", "bash", "-c", "echo $0"]).stdout, "bash\n");
        let snapshot = run(["--snapshot", "bash", "-c", "echo $0; readlink /proc/$$/exe; true"]);
        let (name, file) = snapshot.stdout.split_once('\n').unwrap();
        assert_eq!(name, "bash");
        assert!(file.contains("(deleted)"), "{file}: a file without a path");
    });
}

#[test]
fn environment_flags_apply_in_the_documented_order() {
    isolated!(|| {
        let env = |flags: &[&str]| {
            let mut command = command();
            command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("A_TOKEN", "secret"), ("LC_X", "1"), ("LC_Y", "2")]);
            let called = finish(command.arg("run").args(flags).arg("env"));
            assert_eq!(called.code, Some(0), "{}", called.stderr);
            let mut lines: Vec<String> = called.stdout.lines().map(str::to_owned).collect();
            lines.sort();
            lines.join(" ")
        };
        assert_eq!(env(&[]), "A_TOKEN=secret LC_X=1 LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env-deny", "*_TOKEN"]), "LC_X=1 LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env-only", "PATH", "--env-only", "LC_*", "--unset", "LC_X"]), "LC_Y=2 PATH=/usr/bin:/bin");
        assert_eq!(env(&["--env", "X=1=2", "--env-clear"]), "X=1=2");
        assert_eq!(env(&["--env-clear", "--env", "X=1", "--unset", "X", "--env", "Y=2"]), "Y=2");
        assert_eq!(env(&["--env-clear", "--unset", "X", "--env", "X=1"]), "X=1");
        assert_eq!(env(&["--env-only", "LC_X", "--env-deny", "*", "--env", "LC_X=3"]), "LC_X=3");
        assert!(env(&["--noninteractive"]).contains("PAGER=cat"));
        assert!(env(&["--noninteractive", "--env", "PAGER=less"]).contains(" PAGER=less"));
    });
}

#[test]
fn standard_streams_can_be_redirected() {
    isolated!(|| {
        assert_eq!(run(["--stdout", "null", "sh", "-c", "echo out"]).stdout, "");
        assert_eq!(run(["--stderr", "stdout", "sh", "-c", "echo err >&2"]).stdout, "err\n");
        assert_eq!(run(["--stderr", "null", "sh", "-c", "echo err >&2"]).stderr, "");
        assert_eq!(run(["--stdin", "null", "readlink", "/proc/self/fd/0"]).stdout, "/dev/null\n");
        // The following runs are captured, and redirect streams too.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input");
        std::fs::write(&path, "from here").unwrap();
        let mut captured = command();
        captured.args(["run", "--capture", "--stdin", "inherit", "cat"]).stdin(std::fs::File::open(&path).unwrap());
        assert_eq!(finish(&mut captured).stdout, "from here");
        let inherits = ["--capture", "--json", "--stdout", "inherit", "--stderr", "inherit"];
        let called = run(inherits.into_iter().chain(["sh", "-c", "echo out; echo err >&2"]));
        assert_eq!(called.stderr, "err\n");
        let json: serde_json::Value = serde_json::from_str(called.stdout.strip_prefix("out\n").unwrap()).unwrap();
        assert_eq!((json["stdout"].as_str(), json["stderr"].as_str()), (Some(""), Some("")));
    });
}

#[test]
fn setsid_and_process_group_set_the_ids() {
    isolated!(|| {
        // Fields 1, 5 and 6 of /proc/PID/stat are pid, group and session.
        let script = "set -- $(cat /proc/$$/stat); echo $1 $5 $6";
        let fields = |flags: &[&str]| -> Vec<i32> {
            shell(flags.iter().copied(), script).split(' ').map(|field| field.parse().unwrap()).collect()
        };
        let own = fields(&["--setsid"]);
        assert!(own[0] == own[1] && own[0] == own[2], "{own:?}");
        let grouped = fields(&["--process-group", "0"]);
        assert!(grouped[0] == grouped[1] && grouped[0] != grouped[2], "{grouped:?}");
        let plain = fields(&[]);
        assert!(plain[0] != plain[1], "{plain:?}");
    });
}

#[test]
fn the_program_gets_the_terminal() {
    isolated!(|| {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = std::fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
        // Fields 1, 5, 6, 7 and 8 of /proc/PID/stat are pid, group, session, terminal and
        // foreground group.
        let script = "set -- $(cat /proc/$$/stat); echo $1 $5 $6 $7 $8";
        let args = ["run", "--setsid", "--controlling-terminal", "0", "--foreground", "0", "sh", "-c", script];
        let called = finish(command().args(args).stdin(terminal));
        assert_eq!(called.code, Some(0), "{}", called.stderr);
        let fields: Vec<i32> = called.stdout.split_whitespace().map(|field| field.parse().unwrap()).collect();
        let [pid, group, session, terminal, foreground] = fields[..] else { panic!("{fields:?}") };
        assert!(pid == group && pid == session && pid == foreground && terminal != 0, "{fields:?}");
        assert!(complaint(&run(["--foreground", "0", "true"]), 125).contains("ENOTTY"));
    });
}

#[test]
fn limits_priorities_and_affinity_are_set() {
    isolated!(|| {
        let limits = ["--limit", "nofile=64:128", "--limit", "core=0", "--limit", "as=4G", "--limit", "cpu=unlimited"];
        let shown = shell(limits, "ulimit -Sn; ulimit -Hn; ulimit -c; ulimit -v; ulimit -t");
        assert_eq!(shown, "64\n128\n0\n4194304\nunlimited");
        // 19 is the only nice value that every caller may set: lowering a value needs a privilege.
        assert_eq!(shell(["--nice", "19"], "nice"), "19");
        assert_eq!(status(&["--affinity", "0"], "Cpus_allowed_list"), "0");
        assert_eq!(shell(["--oom-score-adj", "321"], "cat /proc/self/oom_score_adj"), "321");
        // Field 41 of /proc/PID/stat is the scheduling policy: 3 is batch, 5 is idle.
        let policy = "set -- $(cat /proc/$$/stat); shift 40; echo $1";
        assert_eq!(shell(["--scheduler", "batch"], policy), "3");
        assert_eq!(shell(["--scheduler", "idle"], policy), "5");
        assert!(complaint(&run(["--scheduler", "fifo", "true"]), 125).starts_with("--scheduler fifo: "));
    });
}

#[test]
fn signal_mask_and_default_signals_are_set() {
    isolated!(|| {
        assert_eq!(status(&[], "SigBlk"), "0000000000000000");
        assert_eq!(status(&["--signal-mask", "HUP,SIGUSR1"], "SigBlk"), "0000000000000201");
        let ignoring = |flags: &str| {
            let script = format!("trap '' INT PIPE XFSZ; exec \"$0\" run {flags} grep SigIgn /proc/self/status");
            let called = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
            u64::from_str_radix(called.stdout.split_whitespace().last().unwrap(), 16).unwrap()
        };
        let (int, pipe, xfsz) = (1 << 1, 1 << 12, 1 << 24);
        let all = int | pipe | xfsz;
        assert_eq!(ignoring("") & all, int, "SIGPIPE and SIGXFSZ are reset; other ignored signals stay ignored");
        assert_eq!(ignoring("--default-signals INT,PIPE") & all, xfsz);
        assert_eq!(ignoring("--default-signals none") & all, all);
        assert_eq!(ignoring("--inherit-signals") & all, all);
        assert_eq!(ignoring("--inherit-signals --default-signals PIPE") & all, int | xfsz);
        let inherited = status(&["--inherit-signals"], "SigIgn");
        assert_eq!(
            u64::from_str_radix(&inherited, 16).unwrap() & pipe,
            0,
            "only the Rust runtime of this command ignores SIGPIPE"
        );
        let none = status(&["--default-signals", "none"], "SigIgn");
        assert_eq!(u64::from_str_radix(&none, 16).unwrap() & pipe, 0, "the program does not ignore SIGPIPE either");
        let blocking = |flags: &[&str]| {
            let called = ["--block-signal=USR1", env!("CARGO_BIN_EXE_spawnfd"), "run"];
            let show = ["grep", "SigBlk", "/proc/self/status"];
            let shown = finish(std::process::Command::new("env").args(called).args(flags).args(show)).stdout;
            shown.split_whitespace().last().unwrap().to_owned()
        };
        assert_eq!(blocking(&[]), "0000000000000000");
        assert_eq!(blocking(&["--inherit-signals"]), "0000000000000200");
        assert_eq!(blocking(&["--inherit-signals", "--default-signals", "INT"]), "0000000000000200");
        assert_eq!(blocking(&["--inherit-signals", "--signal-mask", "HUP"]), "0000000000000001");
        assert_eq!(status(&["--inherit-signals"], "SigBlk"), "0000000000000000");
    });
}

#[test]
fn parent_death_signal_kills_the_program_with_the_command() {
    isolated!(|| {
        let script = "echo $$; exec sleep 1000";
        let mut child = command()
            .args(["run", "--parent-death-signal", "KILL", "sh", "-c", script])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // When the program has died, the test reads end of file from the pipe.
        line.clear();
        let start = std::time::Instant::now();
        assert_eq!(out.read_line(&mut line).unwrap(), 0);
        assert!(start.elapsed().as_secs() < 300);
    });
}

#[test]
fn ids_and_capabilities_are_set() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        assert_eq!(status(&["--groups", "7,8", "--gid", "65533", "--uid", "65534"], "Groups"), "7 8");
        assert_eq!(status(&["--gid", "65533", "--uid", "65534"], "Uid"), "65534\t65534\t65534\t65534");
        assert_eq!(status(&["--gid", "65533", "--uid", "65534"], "Gid"), "65533\t65533\t65533\t65533");
        assert_eq!(status(&["--uid", "65534"], "Groups"), "");
        // At exec, the effective id becomes the saved id.
        assert_eq!(status(&["--user-ids", "keep:65534:keep"], "Uid"), "0\t65534\t65534\t65534");
        for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(&["--capabilities", "chown,net_bind_service"], field), "0000000000000401", "{field}");
            assert_eq!(status(&["--uid", "65534", "--capabilities", "chown"], field), "0000000000000001", "{field}");
            assert_eq!(status(&["--capabilities", "none"], field), "0000000000000000", "{field}");
        }
    });
}

#[test]
fn each_capability_set_can_be_named() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        const FIELDS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
        let sets = |flags: &[&str]| FIELDS.map(|field| u64::from_str_radix(&status(flags, field), 16).unwrap());
        // Without --capabilities, exec gives root all capabilities of the bounding set.
        let [inheritable, permitted, effective, bounding, ambient] = sets(&["--no-new-privs"]);
        let (chown, kill) = (1, 1 << 5);
        assert_eq!(permitted & (chown | kill), chown | kill);
        let only = ["--no-new-privs", "--capabilities"];
        let with = |list: &str| sets(&[&only[..], &[list]].concat());
        assert_eq!(
            with("permitted=chown,kill"),
            [inheritable, chown | kill, chown | kill, bounding, ambient & (chown | kill)]
        );
        assert_eq!(with("inheritable=kill"), [kill, permitted, effective, bounding, ambient & kill]);
        assert_eq!(with("bounding=chown:inheritable=none"), [0, chown, chown, chown, 0]);
        assert_eq!(with("ambient=kill:inheritable=kill"), [kill, permitted, effective, bounding, kill]);
        // These runs have two --capabilities flags in sequence, or another user.
        let both = sets(&["--capabilities", "bounding=chown", "--capabilities", "inheritable=none"]);
        assert_eq!(both, [0, chown, chown, chown, 0]);
        let user = sets(&["--uid", "65534", "--capabilities", "inheritable=kill:ambient=kill"]);
        assert_eq!(user, [kill, kill, kill, bounding, kill]);
        // A change of ids clears capabilities; only an explicit flag restores them.
        let inner = [env!("CARGO_BIN_EXE_spawnfd"), "run", "--uid", "65534", "--capabilities", "bounding=kill"];
        let outer = ["--capabilities", "inheritable=kill:ambient=kill"];
        assert_eq!(status(&[&outer[..], &inner].concat(), "CapAmb"), "0000000000000000");
        let secret = tempfile::NamedTempFile::new().unwrap();
        let open = format!("r:{}:5", secret.path().display());
        for set in ["bounding=kill", "ambient=none"] {
            let called = run(["--uid", "65534", "--capabilities", set, "--open", &open, "true"]);
            assert!(complaint(&called, 125).starts_with("--open r:"), "{set}");
        }
        for (flag, ids) in [("--uid", "0"), ("--user-ids", "65534:keep:keep")] {
            let called = run([flag, ids, "--capabilities", "bounding=kill", "--chroot", "/", "true"]);
            assert_eq!(called.code, Some(0), "{ids}: {}", called.stderr);
        }
        // Later actions cannot use capabilities that are not effective.
        let called = run(["--capabilities", "effective=none", "--chroot", "/", "true"]);
        assert!(complaint(&called, 125).starts_with("--chroot /: "));
        let called = run(["--capabilities", "effective=kill:permitted=chown", "true"]);
        assert!(complaint(&called, 125).starts_with("--capabilities effective=kill:permitted=chown: "));
    });
}

#[test]
fn namespaces_are_created_and_joined() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let called = run(["--namespaces", "pid", "sh", "-c", "echo $$"]);
        if called.code == Some(125) && called.stderr.contains("EPERM") {
            return skip("this root may not create namespaces");
        }
        assert_eq!(called.stdout, "1\n", "{}", called.stderr);
        let host = std::fs::read_link("/proc/self/ns/net").unwrap();
        let other = shell(["--namespaces", "net,uts"], "readlink /proc/self/ns/net");
        assert_ne!(host.to_str(), Some(other.as_str()));
        // The command joins the namespaces of another program, which runs until its input is
        // closed.
        let mut holder = command();
        let script = "echo $$; readlink /proc/self/ns/net; read line";
        holder.args(["run", "--namespaces", "net,uts", "--stdin", "inherit", "sh", "-c", script]);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
        let (pid, new) = (lines.next().unwrap(), lines.next().unwrap());
        let joined = shell(["--join-namespace", &format!("/proc/{pid}/ns/net")], "readlink /proc/self/ns/net");
        // pid= joins only the kinds that are named.
        let links = "readlink /proc/self/ns/net /proc/self/ns/uts";
        let own = shell([], links);
        let new_paths = ["net", "uts"].map(|kind| format!("/proc/{pid}/ns/{kind}"));
        let both = finish(std::process::Command::new("readlink").args(new_paths)).stdout;
        let one = shell(["--join-namespace", &format!("pid={pid}:net")], links);
        assert_eq!(one.lines().collect::<Vec<_>>(), [new.as_str(), own.lines().nth(1).unwrap()]);
        assert_eq!(shell(["--join-namespace", &format!("pid={pid}:uts,net")], links), both.trim_end());
        let script = format!("exec \"$0\" run --join-namespace fd=7 -- {links} 7</proc/{pid}/ns/net");
        let seen = finish(std::process::Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_spawnfd")]));
        assert_eq!(seen.stdout, one + "\n", "{}", seen.stderr);
        let process = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
        let which = ["--join-namespace", "fd=0:net,uts"];
        let seen = finish(command().arg("run").args(which).args(["sh", "-c", links]).stdin(pidfd));
        assert_eq!(seen.stdout, both, "{}", seen.stderr);
        drop(holder.stdin.take());
        wait_status(&mut holder);
        let called = run(["--join-namespace", &format!("pid={pid}:net"), "true"]);
        assert!(
            complaint(&called, 125).starts_with(&format!("--join-namespace pid={pid}:net: process {pid}: No such"))
        );
        assert_eq!(joined, new);
        assert_ne!(host.to_str(), Some(new.as_str()));
        let called = run(["--user-namespace", "0:0", "cat", "/proc/self/uid_map"]);
        match called.code {
            Some(0) => {
                assert_eq!(called.stdout.split_whitespace().collect::<Vec<_>>(), ["0", "0", "1"]);
                for (ids, map) in [("4294967295:0", "uid_map"), ("0:4294967295", "gid_map")] {
                    let called = run(["--user-namespace", ids, "true"]);
                    assert!(complaint(&called, 125).contains(map), "{}", called.stderr);
                }
            }
            _ => skip(&format!("no user namespaces: {}", complaint(&called, 125))),
        }
    });
}

#[test]
fn chroot_changes_the_root() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        assert_eq!(run(["--chroot", "/", "--chdir", "/", "pwd"]).stdout, "/\n");
        if std::fs::canonicalize("/bin").unwrap() == Path::new("/usr/bin") {
            // Under the new root, the same path names the same program and its libraries.
            let names =
                std::fs::read_dir("/usr").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let seen = run(["--chroot", "/usr", "--chdir", "/", "/bin/ls", "-A"]);
            assert_eq!(seen.code, Some(0), "{}", seen.stderr);
            assert_eq!(seen.stdout.lines().map(str::to_owned).collect::<BTreeSet<_>>(), names.collect());
        } else {
            skip("/bin is not /usr/bin, so no other root has the same program");
        }
        let dir = tempfile::tempdir().unwrap();
        let called = run(["--chroot", dir.path().to_str().unwrap(), "true"]);
        assert_ne!(called.code, Some(0), "the program is not below that root");
    });
}

#[test]
fn no_new_privs_is_set() {
    isolated!(|| {
        assert_eq!(status(&[], "NoNewPrivs"), "0");
        assert_eq!(status(&["--no-new-privs"], "NoNewPrivs"), "1");
    });
}

#[test]
fn landlock_confines_the_program() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let (open, shut) = (dir.path().join("open"), dir.path().join("shut"));
        std::fs::create_dir(&open).unwrap();
        std::fs::create_dir(&shut).unwrap();
        let flags = ["--no-new-privs", "--landlock-ro", "/", "--landlock-rw", open.to_str().unwrap()];
        let script = format!("echo x > {}/file; echo x 2>&1 > {}/file", open.display(), shut.display());
        let called = run(flags.iter().copied().chain(["--", "sh", "-c", &script]));
        if called.code == Some(125) && called.stderr.contains("Landlock") {
            return skip(complaint(&called, 125));
        }
        assert!(called.code != Some(0) && called.stdout.contains("ermission denied"), "{called:?}");
        assert!(open.join("file").exists() && !shut.join("file").exists());
        // A descriptor that was opened before the ruleset stays usable, so the order of the flags matters.
        let hidden = shut.join("hidden");
        std::fs::write(&hidden, "seen").unwrap();
        let opened = format!("r:{}:7", hidden.display());
        let mut flags = vec!["--no-new-privs", "--open", &opened];
        for path in ["/usr", "/bin", "/lib", "/lib64", "/etc"].iter().filter(|path| Path::new(path).exists()) {
            flags.extend(["--landlock-ro", path]);
        }
        assert_eq!(shell(flags, "cat <&7"), "seen");
        let late = ["--no-new-privs", "--landlock-ro", "/usr", "--open", &opened, "true"];
        assert!(complaint(&run(late), 125).contains("EACCES"), "the ruleset applies to later actions");
    });
}

#[test]
fn the_seccomp_filter_is_installed() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("filter");
        let instruction = |code: u16, jt: u8, jf: u8, k: u32| {
            let mut bytes = code.to_ne_bytes().to_vec();
            bytes.extend([jt, jf]);
            bytes.extend(k.to_ne_bytes());
            bytes
        };
        // The filter makes getpriority fail with EIO, and allows all other calls.
        let filter = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 0, 1, libc::SYS_getpriority as u32),
            instruction(0x06, 0, 0, 0x0005_0000 | libc::EIO as u32),
            instruction(0x06, 0, 0, 0x7fff_0000),
        ];
        std::fs::write(&path, filter.concat()).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(status(&["--no-new-privs", "--seccomp", path], "Seccomp"), "2");
        assert_ne!(run(["--no-new-privs", "--seccomp", path, "nice"]).code, Some(0));
        std::fs::write(path, [0; 12]).unwrap();
        assert!(complaint(&run(["--seccomp", path, "true"]), 125).contains("12 bytes"));
    });
}
