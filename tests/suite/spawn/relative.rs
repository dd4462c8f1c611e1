// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs given by a relative path.

use std::fs::{create_dir, rename};
use std::path::Path;

use crate::common::{Refused, executable};
use spawnfd::error::{Errno, Stage};
use spawnfd::template::TemplateCache;
use spawnfd::{Command, Template};
use spawnfd_tests::{isolated, scratch};

/// Makes a program `tool` in the directory and in its subdirectory `sub`. Each prints where it is.
fn make_tools(directory: &Path) {
    create_dir(directory.join("sub")).expect("own directory");
    executable(&directory.join("tool"), "#!/bin/sh\necho here\n");
    executable(&directory.join("sub/tool"), "#!/bin/sh\necho sub\n");
}

#[track_caller]
fn text(command: &mut Command<'_>) -> String {
    command.run().expect("starts").stdout_text().into_owned()
}

#[test]
fn relative_program_starts_at_the_commands_directory() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        assert_eq!(text(&mut Command::new("./tool")), "here\n");
        assert_eq!(text(&mut Command::new("sub/tool")), "sub\n");
        let mut command = Command::new("./tool");
        for current_dir in [Path::new("sub"), &directory.path().join("sub")] {
            assert_eq!(text(command.current_dir(current_dir)), "sub\n");
        }
        assert_eq!(text(command.program("../tool")), "here\n");
        // Actions that change the directory have no effect on the program.
        assert_eq!(text(Command::new("./tool").chdir("sub")), "here\n");
        // The directory is that of the time of the start, also if the cache has the template of an earlier start.
        let mut command = Command::new("./tool");
        assert_eq!(text(&mut command), "here\n");
        std::env::set_current_dir("sub").expect("own directory");
        assert_eq!(text(&mut command), "sub\n");
        std::env::set_current_dir("..").expect("own directory");
        assert_eq!(text(&mut command), "here\n");
        std::env::set_current_dir("sub").expect("own directory");
        assert_eq!(text(&mut TemplateCache::new(1).command("../tool")), "here\n");
    });
}

#[test]
fn relative_program_starts_where_std_starts_it() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        for program in ["./tool", "sub/tool", "../tool"] {
            for current_dir in [".", "sub"] {
                let by_std = std::process::Command::new(program).current_dir(current_dir).output();
                let ours = Command::new(program).current_dir(current_dir).output();
                assert_eq!(ours.ok().map(|output| output.stdout), by_std.ok().map(|output| output.stdout), "{program}");
            }
        }
    });
}

#[test]
fn relative_program_is_renewed() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        let mut command = Command::new("./tool");
        command.current_dir(directory.path());
        assert_eq!(text(&mut command), "here\n");
        rename(directory.path().join("sub/tool"), directory.path().join("tool")).expect("own directory");
        assert_eq!(text(&mut command), "sub\n");
    });
}

#[test]
fn relative_program_keeps_its_name_as_argv0() {
    isolated!(|| {
        assert_eq!(text(Command::new("./sh").current_dir("/bin").args(["-c", "echo $0"])), "./sh\n");
        assert_eq!(text(Command::new("./sh").current_dir("/bin").arg0("other").args(["-c", "echo $0"])), "other\n");
    });
}

#[test]
fn missing_relative_program_is_named_by_its_absolute_path() {
    isolated!(|| {
        let error = Command::new("./tool").current_dir("/usr/../etc").refused("no such program");
        assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::ENOENT));
        assert_eq!(error.message(), "no such program: /usr/../etc/tool");
    });
}

#[test]
fn missing_directory_of_a_relative_program_is_the_directorys_error() {
    isolated!(|| {
        for (directory, errno) in [("/no/such", Errno::ENOENT), ("/bin/sh", Errno::ENOTDIR)] {
            let relative = Command::new("./sh").current_dir(directory).refused("no such directory");
            let absolute = Command::new("/bin/sh").current_dir(directory).refused("no such directory");
            assert_eq!((relative.stage(), relative.errno()), (Stage::CurrentDir, errno));
            assert_eq!(relative.to_string(), absolute.to_string());
        }
    });
}

#[test]
fn relative_program_needs_the_path_of_this_process_directory() {
    isolated!(|| {
        let directory = scratch();
        std::env::set_current_dir(directory.path()).expect("own directory");
        drop(directory);
        let error = Command::new("./tool").refused("no directory");
        assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::ENOENT));
        assert!(error.message().starts_with("./tool: the current directory has no path: "), "{error}");
        assert!(Command::new("./true").current_dir("/bin").run().expect("starts").ok());
    });
}

#[test]
fn template_refuses_a_relative_path() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        let cache = TemplateCache::new(1);
        for template in [Template::open("./tool"), Template::search("./tool", "/bin"), cache.get("./tool", None)] {
            assert_eq!(template.expect_err("a relative path").errno(), Errno::EINVAL);
        }
    });
}

/// The spellings of a directory in PATH from the directory above it, and from itself.
const FROM_ABOVE: [&str; 3] = ["sub", "./sub:/bin", "/nonexistent:sub/"];
const FROM_ITSELF: [&str; 4] = ["", ".", ":/bin", "/nonexistent::"];

#[test]
fn relative_parts_of_path_start_at_the_commands_directory() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        for path in FROM_ABOVE {
            assert_eq!(text(Command::new("tool").env("PATH", path)), "sub\n", "{path}");
            let mut elsewhere = Command::new("tool");
            assert_eq!(text(elsewhere.env("PATH", path).current_dir(directory.path())), "sub\n", "{path}");
        }
        for path in FROM_ITSELF {
            assert_eq!(text(Command::new("tool").env("PATH", path)), "here\n", "{path}");
            for sub in [Path::new("sub"), &directory.path().join("sub")] {
                assert_eq!(text(Command::new("tool").env("PATH", path).current_dir(sub)), "sub\n", "{path}");
            }
            // Actions that change the directory have no effect on the search.
            assert_eq!(text(Command::new("tool").env("PATH", path).chdir("sub")), "here\n", "{path}");
        }
        // The directory is that of the time of the start, also if the cache has the template of an earlier start.
        let mut command = Command::new("tool");
        command.env("PATH", ".");
        assert_eq!(text(&mut command), "here\n");
        std::env::set_current_dir("sub").expect("own directory");
        assert_eq!(text(&mut command), "sub\n");
        assert!(command.spawn().expect("starts").wait().expect("own child").success());
    });
}

#[test]
fn relative_parts_of_path_lead_where_env_finds_the_program() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        for path in FROM_ABOVE.into_iter().chain(FROM_ITSELF).chain(["nonexistent", "sub/tool", "sub:", "/:sub"]) {
            for current_dir in [".", "sub"] {
                let mut by_execvp = std::process::Command::new("/usr/bin/env");
                by_execvp.args(["-C", current_dir, "tool"]).env("PATH", path);
                let by_execvp = by_execvp.output().expect("env starts");
                let ours = Command::new("tool").env("PATH", path).current_dir(current_dir).output();
                let ours = ours.map(|output| output.stdout).unwrap_or_default();
                assert_eq!(ours, by_execvp.stdout, "{path:?} in {current_dir}");
            }
        }
    });
}

#[test]
fn an_earlier_relative_part_of_path_is_searched_again() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        create_dir("first").expect("own directory");
        let mut command = Command::new("tool");
        command.env("PATH", "first:sub");
        assert_eq!(text(&mut command), "sub\n");
        let template = Template::search("tool", "first:sub").expect("it exists");
        executable(&directory.path().join("first/tool"), "#!/bin/sh\necho first\n");
        assert_eq!(text(&mut command), "first\n");
        assert_eq!(template.revalidate().expect_err("stale").errno(), Errno::ESTALE);
    });
}

#[test]
fn a_template_pins_what_a_relative_part_of_path_names_now() {
    isolated!(|| {
        let directory = scratch();
        make_tools(directory.path());
        std::env::set_current_dir(directory.path()).expect("own directory");
        let template = Template::search("tool", ":sub").expect("it exists");
        assert_eq!(template.path(), Some(&*directory.path().join("tool")));
        std::env::set_current_dir("sub").expect("own directory");
        assert_eq!(text(&mut template.command()), "here\n");
        assert_eq!(text(&mut TemplateCache::new(1).get("tool", Some("".as_ref())).expect("found").command()), "sub\n");
    });
}

#[test]
fn relative_parts_of_path_are_skipped_in_a_removed_directory() {
    isolated!(|| {
        let directory = scratch();
        std::env::set_current_dir(directory.path()).expect("own directory");
        drop(directory);
        assert!(Command::new("true").env("PATH", "bin::/bin").run().expect("starts").ok());
        let error = Command::new("true").env("PATH", "bin:").refused("no directory");
        assert_eq!(error.message(), "true: not found in PATH (the current directory has no path)");
    });
}
