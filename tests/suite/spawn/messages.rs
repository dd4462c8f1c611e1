// SPDX-License-Identifier: MIT OR Apache-2.0
//! The message of an error, which comes first, says what happened in the user's terms.

use std::fs::{self, OpenOptions, Permissions, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::{Refused, executable, exits_with};
use spawnfd::command::OpenHow;
use spawnfd::error::Errno;
use spawnfd::limits::Limits;
use spawnfd::sandbox::Sandbox;
use spawnfd::{Command, Env, Error, Run, Template};
use spawnfd_tests::{isolated, scratch};

#[track_caller]
fn assert_says(error: &Error, message: &str, detail: &str) {
    assert_eq!(error.to_string(), format!("{message} [{detail}]"));
}

/// Returns the message of the error for a path that cannot become a template.
#[track_caller]
fn refused_template(path: &Path) -> String {
    Template::open(path).expect_err("no program").message().into_owned()
}

/// Makes a template of a program, and then changes the program. Returns the error message, with the
/// path replaced by PATH, and the path.
fn stale(change: impl FnOnce(&Path)) -> (String, String) {
    let directory = scratch();
    let path = directory.path().join("program");
    executable(&path, exits_with(0));
    fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("own file");
    // After this pause, the change gets a new ctime. Otherwise the library would compare the
    // contents, and report another message.
    std::thread::sleep(Duration::from_millis(30));
    let template = Template::open(&path).expect("a program");
    change(&path);
    let spawned = template.command().refused("stale");
    let checked = template.revalidate().expect_err("stale");
    assert_eq!((spawned.errno(), spawned.message()), (Errno::ESTALE, checked.message()));
    let path = path.display().to_string();
    (checked.message().into_owned().replace(&path, "PATH"), path)
}

#[test]
fn missing_name_says_how_many_directories_were_searched() {
    isolated!(|| {
        let error = Template::search("no-such-tool", "/bin:/usr/bin:relative:/bin").expect_err("no such program");
        let detail = r#"template: search("no-such-tool", PATH="/bin:/usr/bin:relative:/bin") = -1 ENOENT"#;
        assert_says(&error, "no-such-tool: not found in PATH (searched 3 directories)", detail);
        let error = Template::search("no-such-tool", "/bin").expect_err("no such program");
        assert_eq!(error.message(), "no-such-tool: not found in PATH (searched 1 directory)");
        let error = Template::search("no-such-tool", "").expect_err("no such program");
        assert_eq!(error.message(), "no-such-tool: not found in PATH (searched 1 directory)");
        let directory = scratch();
        let path = directory.path().join("tool");
        fs::write(&path, "x").expect("own directory");
        let error = Template::search("tool", directory.path()).expect_err("not executable");
        assert_eq!(error.message(), format!("tool: found in PATH, but permission denied: {}", path.display()));
    });
}

#[test]
fn path_that_is_no_program() {
    isolated!(|| {
        let error = Template::open("/no/such/program").expect_err("no such program");
        let detail = r#"template: open("/no/such/program") = -1 ENOENT"#;
        assert_says(&error, "no such program: /no/such/program", detail);
        let nested = refused_template(Path::new("/dev/null/x"));
        assert_eq!(nested, "no such program: /dev/null/x (a parent is not a directory)");
        let relative = refused_template(Path::new("bin/tool"));
        assert_eq!(relative, r#"a program's path must be absolute, got "bin/tool""#);
        assert_eq!(refused_template(Path::new("/tmp")), "is a directory: /tmp");
        assert_eq!(refused_template(Path::new("/dev/null")), "not a regular file: /dev/null");
        let directory = scratch();
        let path = directory.path().join("file\n");
        fs::write(&path, "x").expect("own directory");
        set_permissions(&path, Permissions::from_mode(0o640)).expect("own file");
        let expected = format!("permission denied: {:?} is not executable (mode 0640)", path.display().to_string());
        assert_eq!(refused_template(&path), expected);
    });
}

#[test]
fn bad_interpreter_is_named_with_its_script() {
    isolated!(|| {
        let directory = scratch();
        let script = directory.path().join("script");
        for (line, expected) in [
            ("#!/nowhere/sh\n", "bad interpreter: no such program: /nowhere/sh"),
            ("#!/dev/null\n", "bad interpreter: not a regular file: /dev/null"),
            ("#!sh\n", r#"bad interpreter: its path must be absolute, got "sh""#),
            ("#!\n", "its #! line names no interpreter"),
        ] {
            executable(&script, line);
            assert_eq!(refused_template(&script), format!("{}: {expected}", script.display()));
        }
        executable(&script, "no program");
        let error = Command::new(&script).refused("no program");
        assert_eq!(
            error.message(),
            format!("cannot execute {}: it has no #! line, and the kernel does not know its format", script.display())
        );
    });
}

#[test]
fn too_long_argument_list_says_what_is_too_long() {
    isolated!(|| {
        // SAFETY: sysconf takes an integer and changes nothing.
        let most = 32 * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize - 1;
        let long = "x".repeat(most + 1);
        let template = Template::open("/bin/true").expect("a program");
        let message = |command: &mut Command<'_>| {
            let error = command.refused("too long");
            assert_eq!(
                (error.errno(), error.detail()),
                (Errno::E2BIG, r#"exec: execve("/bin/true") = -1 E2BIG"#.into())
            );
            error.message().into_owned()
        };
        let argument = message(template.command().args(["short", &long]));
        let expected = format!("argument 2 of /bin/true has {} bytes, {most} at most", most + 1);
        assert_eq!(argument, format!("argument list too long: {expected}"));
        let variable = message(template.command().environment(&Env::empty().set("LONG", &long)));
        let expected = format!("environment variable LONG has {} bytes with its name, {most} at most", most + 6);
        assert_eq!(variable, format!("argument list too long: {expected}"));
        let all = message(template.command().args((0..200).map(|_| &long[..100_000])));
        assert!(all.starts_with("argument list too long: arguments and environment of /bin/true take 20"), "{all}");
    });
}

#[test]
fn directory_and_file_of_an_action() {
    isolated!(|| {
        let error = Command::new("true").current_dir("/nowhere").refused("no such directory");
        assert_says(&error, "no such working directory: /nowhere", r#"cwd: chdir("/nowhere") = -1 ENOENT"#);
        let error = Command::new("true").current_dir("/dev/null").refused("no directory");
        assert_eq!(error.message(), "not a directory: /dev/null");
        let error = Command::new("true").umask(0).chdir("/nowhere").refused("no such directory");
        assert_says(&error, "no such directory: /nowhere", r#"action 1: chdir("/nowhere") = -1 ENOENT"#);
        let error = Command::new("true").open("/nowhere", OpenHow::READ, 5).refused("no such file");
        assert_eq!(error.message(), "no such file: /nowhere");
        let error = Command::new("true").dup2(900, 1).refused("not open");
        assert_eq!(error.message(), "the child has no descriptor 900");
    });
}

#[test]
fn stale_template_says_what_changed() {
    isolated!(|| {
        let before = exits_with(0).len();
        let (grown, _) = stale(|path| {
            use std::io::Write;
            let mut file = OpenOptions::new().append(true).open(path).expect("own file");
            file.write_all(b"more").and_then(|()| file.set_modified(SystemTime::UNIX_EPOCH)).expect("own file");
        });
        assert_eq!(grown, format!("PATH changed since the template was created (size {before} -> {})", before + 4));
        let (mode, _) = stale(|path| set_permissions(path, Permissions::from_mode(0o711)).expect("own file"));
        assert_eq!(mode, "PATH changed since the template was created (mode 0755 -> 0711)");
        let (touched, _) = stale(|path| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
            fs::File::open(path).and_then(|file| file.set_modified(time)).expect("own file");
        });
        let expected = "PATH changed since the template was created (mtime 0.000000000 -> 1.500000000)";
        assert_eq!(touched, expected);
        let (gone, _) = stale(|path| fs::remove_file(path).expect("own file"));
        assert_eq!(gone, "PATH changed since the template was created (it no longer exists)");
        let (replaced, _) = stale(|path| {
            let new = path.with_extension("new");
            executable(&new, exits_with(1));
            fs::rename(&new, path).expect("own directory");
        });
        let expected = "PATH changed since the template was created (another file is at the path: inode ";
        assert!(replaced.starts_with(expected), "{replaced}");
    });
}

#[test]
fn racily_changed_contents_are_named() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("program");
        for _ in 0..50 {
            executable(&path, exits_with(0));
            let template = Template::open(&path).expect("a program");
            let recorded = path.metadata().expect("own file");
            fs::write(&path, exits_with(1)).expect("own file");
            let error = template.revalidate().expect_err("other contents");
            assert!(error.message().starts_with(&format!("{} changed since the template", path.display())), "{error}");
            if (recorded.ctime_nsec(), recorded.ctime())
                == path.metadata().map(|m| (m.ctime_nsec(), m.ctime())).unwrap()
            {
                assert!(error.message().ends_with("(its contents)"), "{error}");
            }
        }
    });
}

#[test]
fn earlier_path_directory_with_the_name() {
    isolated!(|| {
        let directory = scratch();
        let [first, second] = ["1", "2"].map(|name| directory.path().join(name));
        [&first, &second].iter().for_each(|path| fs::create_dir(path).expect("own directory"));
        executable(&second.join("tool"), exits_with(0));
        let path = std::env::join_paths([&first, &second]).expect("no colon");
        let template = Template::search("tool", path).expect("found");
        let earlier = first.join("tool");
        executable(&earlier, exits_with(0));
        let error = template.command().refused("stale");
        let message = format!("tool: an earlier PATH directory now has the name: {}", earlier.display());
        assert_says(&error, &message, &format!(r#"revalidate: search("tool"), found {earlier:?} = -1 ESTALE"#));
    });
}

#[test]
fn invalid_arguments_say_what_is_expected() {
    isolated!(|| {
        let run = |limits: Limits| Command::new("true").run_with(&Run::new().limits(limits)).expect_err("invalid");
        let error = run(Limits::new().memory(0));
        assert_says(&error, "limits.memory must be > 0, got 0", "validate: limits(memory = 0) = -1 EINVAL");
        let cpus = run(Limits::new().cpus(-1.0));
        assert_eq!(cpus.message(), "limits.cpus must be a number from 0.01 to 1000000, got -1");
        let error = Command::new("true").arg("a\0b").refused("NUL");
        assert_eq!(error.message(), "argument 1 contains a NUL byte");
        let error = Command::new("true").env("A=B", "x").refused("no name");
        let expected = r#"the name of an environment variable must not be empty or contain '=', got "A=B""#;
        assert_eq!(error.message(), expected);
        let error = Sandbox::new(["true"]).and_then(|sandbox| sandbox.descriptor(std::io::stdin(), 1)).expect_err("1");
        assert_eq!(error.message(), "a sandbox's descriptor must be >= 3, got 1: 0-2 are the program's streams");
        let job = Command::new("sleep").arg("60").start(&Run::new()).expect("starts");
        let error = job.signal(99, false).expect_err("no such signal");
        assert_eq!(error.message(), "a signal must be between 0 and 64, got 99");
    });
}
