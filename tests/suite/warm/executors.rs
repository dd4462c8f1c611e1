// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executors of plans agree (decision record 0023).
//!
//! A child that the library clones performs a plan in Rust. A zygote, a process of the pool and a process that was
//! parked for its program perform it in C. Each case of the tables below must have the same outcome from all of them:
//! the program's state, or stage, errno and call of the error. The files that an action writes must be the same too.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::common::{
    self, Cgroup, at_number, capability_sets, cold_except_slow, executable, exits_with, retry_while_slow,
    set_soft_limit,
};
use ::landlock::{AccessFs, Ruleset, RulesetAttr};
use spawnfd::command::{CapabilitySets, OpenHow};
use spawnfd::error::{Errno, Stage};
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Child, Command, Stdio, Template, Warm};
use spawnfd_tests::{State, confine, is_root, isolated, program, scratch, skip};

/// The parked processes that perform a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Executor {
    Zygote,
    Pool,
    Reserve,
    Fork,
}

use Executor::{Fork, Pool, Reserve, Zygote};

impl Executor {
    /// Parks processes. `template` is the program of those that cannot execute any program.
    fn park(self, template: &Template) -> Warm {
        let mode = if matches!(self, Zygote | Fork) { Mode::Fork } else { Mode::Reserve };
        let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
        match self {
            Zygote | Pool => warm.add_any(1, None).expect("a keeper"),
            Reserve | Fork => warm.add_template(template, Park::new()).expect("a keeper"),
        }
        warm
    }
}

/// The outcome of one start.
struct Outcome {
    program: Result<Program, (Stage, Errno, String)>,
    /// Name, mode and contents of the files that the actions have written.
    files: Vec<(String, u32, String)>,
}

#[derive(Debug)]
enum Program {
    /// The oracle's state, and whether its process leads its group, its session and the terminal's foreground group.
    Oracle(Box<State>, [bool; 3]),
    Code(Option<i32>),
}

/// Fields of the oracle's state that differ between any two starts.
const EACH_START: &[&str] = &["pid", "pgid", "sid", "tpgid", "mappings", "fds.1.inode", "fds.1.target"];

impl Outcome {
    fn of(command: &mut Command<'_>, written: &Path) -> Outcome {
        let program = command.stdout(Stdio::Piped).spawn().and_then(Program::of);
        let program = program.map_err(|error| (error.stage(), error.errno(), error.call().to_owned()));
        let mut files: Vec<_> =
            fs::read_dir(written).expect("own directory").map(|entry| entry.expect("a file")).collect();
        files.sort_by_key(fs::DirEntry::file_name);
        let describe = |entry: &fs::DirEntry| {
            let (name, mode) =
                (entry.file_name().into_string().expect("UTF-8"), entry.metadata().expect("a file").mode());
            let contents = fs::read_to_string(entry.path()).expect("own file");
            fs::remove_file(entry.path()).expect("own file");
            (name, mode, contents)
        };
        Outcome { program, files: files.iter().map(describe).collect() }
    }

    #[track_caller]
    fn assert_same(&self, other: &Outcome, label: &str) {
        match (&self.program, &other.program) {
            (Ok(Program::Oracle(cold, leads)), Ok(Program::Oracle(warm, warm_leads))) => {
                let lines = State::diff(cold, warm, EACH_START);
                assert!(lines.is_empty() && leads == warm_leads, "{label}: {leads:?} {warm_leads:?} {lines:#?}");
            }
            (Ok(Program::Code(cold)), Ok(Program::Code(warm))) => assert_eq!(cold, warm, "{label}"),
            (Err(cold), Err(warm)) => assert_eq!(cold, warm, "{label}"),
            (cold, warm) => panic!("{label}: {:?} {:?}", cold.as_ref().err(), warm.as_ref().err()),
        }
        assert_eq!(self.files, other.files, "{label}");
    }
}

impl Program {
    fn of(mut child: Child) -> spawnfd::Result<Program> {
        let mut json = Vec::new();
        child.stdout.take().expect("piped").read_to_end(&mut json).expect("own pipe");
        let status = child.wait()?;
        if json.is_empty() {
            return Ok(Program::Code(status.code()));
        }
        assert!(status.success(), "{status}");
        let state = State::from_json(&json);
        let pid = *state.pid.known().expect("/proc");
        let foreground = state.tpgid.known().copied().flatten();
        let leads = [state.pgid.known() == Some(&pid), state.sid.known() == Some(&pid), foreground == Some(pid as i64)];
        Ok(Program::Oracle(Box::new(state), leads))
    }
}

/// The descriptors and paths that cases use.
struct Files {
    directory: tempfile::TempDir,
    null: File,
    dir: File,
    terminal: OwnedFd,
    ruleset: Option<OwnedFd>,
    cgroup: Option<(File, Cgroup)>,
    /// Descriptor 900, which is beyond the soft limit of this process.
    beyond_limit: OwnedFd,
    _master: OwnedFd,
}

impl Files {
    fn new() -> Files {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("written")).expect("own directory");
        fs::write(path("text"), "text").expect("own directory");
        symlink("text", path("link")).expect("own directory");
        let (master, terminal) = common::terminal();
        let null = File::open("/dev/null").expect("it exists");
        let beyond_limit = at_number(&null, 900);
        set_soft_limit(libc::RLIMIT_NOFILE, 800);
        let ruleset = Ruleset::default().handle_access(AccessFs::MakeDir).and_then(Ruleset::create).ok();
        Files {
            dir: File::open(directory.path()).expect("own directory"),
            null,
            terminal,
            ruleset: ruleset.and_then(Into::into),
            cgroup: Cgroup::new().map(|group| (File::open(&group.0).expect("own directory"), group)),
            beyond_limit,
            _master: master,
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The reasons for a cold start although a process is parked.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cold {
    /// The reason of a process that executes any program.
    any: Option<&'static str>,
    /// The reason of a process that was parked for its program.
    own: Option<&'static str>,
}

const NEVER: Cold = Cold { any: None, own: None };

const fn parked(reason: &'static str) -> Cold {
    Cold { any: None, own: Some(reason) }
}

const fn always(any: &'static str, own: &'static str) -> Cold {
    Cold { any: Some(any), own: Some(own) }
}

struct Case {
    name: &'static str,
    cold: Cold,
    add: for<'a> fn(&mut Command<'a>, &'a Files),
}

macro_rules! cases {
    ($($name:ident $cold:expr, |$command:ident, $files:ident| $body:expr;)*) => {
        &[$(Case { name: stringify!($name), cold: $cold, add: |$command, $files| { let _ = $files; $body; } }),*]
    };
}

const READ: OpenHow = OpenHow::READ;
const IDS: Cold = parked("ids or capabilities");
const HIGH: Cold = always("inherited descriptors", "inherited descriptors");

fn creating(flags: i32) -> OpenHow {
    OpenHow::new((libc::O_WRONLY | libc::O_CREAT | flags) as u64).mode(0o640)
}

/// Each action with valid arguments, with arguments that the library refuses, and with arguments that the kernel
/// refuses.
const ACTIONS: &[Case] = cases! {
    arguments NEVER, |c, f| c.args(["a b", ""]);
    descriptor NEVER, |c, f| c.descriptor(&f.null, 9);
    descriptor_negative NEVER, |c, f| c.descriptor(&f.null, -1);
    descriptor_at_its_own_number_beyond_the_limit HIGH, |c, f| c.descriptor(&f.beyond_limit, 900);
    descriptor_beyond_the_limit NEVER, |c, f| c.descriptor(&f.null, 901);
    dup2 NEVER, |c, f| c.descriptor(&f.null, 9).dup2(9, 11);
    dup2_to_itself NEVER, |c, f| c.descriptor(&f.null, 9).dup2(9, 9);
    dup2_of_a_closed_number NEVER, |c, f| c.descriptor(&f.null, 9).close(9).dup2(0, 9).close(0).dup2(0, 9);
    close NEVER, |c, f| c.descriptor(&f.null, 9).close(9).close(17).close(0);
    close_range NEVER, |c, f| c.descriptor(&f.null, 9).descriptor(&f.null, 12).close_range(9, 10);
    close_range_to_the_end NEVER, |c, f| c.descriptor(&f.null, 9).close_range(9, u32::MAX);
    close_range_reversed NEVER, |c, f| c.close_range(9, 8);
    open NEVER, |c, f| c.open(f.path("text"), READ, 9);
    open_relative NEVER, |c, f| c.chdir(f.path("")).open("text", READ, 9);
    open_at NEVER, |c, f| c.open_at(&f.dir, "text", READ, 9);
    open_as_stdin NEVER, |c, f| c.open(f.path("text"), READ, 0);
    open_creating NEVER, |c, f| c.umask(0o27).open(f.path("written/new"), creating(0), 9).close(9);
    open_exclusively parked("O_EXCL"), |c, f| c.open(f.path("written/new"), creating(libc::O_EXCL), 9).close(9);
    open_nothing NEVER, |c, f| c.open(f.path("nothing"), READ, 9);
    open_below_a_file NEVER, |c, f| c.open(f.path("text/nothing"), READ, 9);
    open_a_link_with_resolve NEVER, |c, f| c.open_at(&f.dir, "link", READ.resolve(4), 9);
    open_a_file_with_resolve NEVER, |c, f| c.open_at(&f.dir, "text", READ.resolve(4), 9);
    open_with_an_unknown_flag NEVER, |c, f| c.open(f.path("text"), OpenHow::new(1 << 40), 9);
    null_streams NEVER, |c, f| c.stdin(Stdio::Null).stderr(Stdio::Null);
    chdir NEVER, |c, f| c.chdir("/usr");
    chdir_to_a_file NEVER, |c, f| c.umask(0).chdir(f.path("text"));
    chdir_to_nothing NEVER, |c, f| c.chdir(f.path("nothing"));
    fchdir NEVER, |c, f| c.fchdir(&f.dir);
    fchdir_to_a_file NEVER, |c, f| c.fchdir(&f.null);
    umask NEVER, |c, f| c.umask(0o777);
    umask_too_large NEVER, |c, f| c.umask(0o1000);
    setsid NEVER, |c, f| c.setsid();
    setsid_of_a_group_leader NEVER, |c, f| c.process_group(0).setsid();
    process_group NEVER, |c, f| c.process_group(0);
    process_group_unknown NEVER, |c, f| c.process_group(0x7fff_0000);
    process_group_negative NEVER, |c, f| c.process_group(-1);
    controlling_terminal NEVER, |c, f| c.setsid().descriptor(&f.terminal, 9).controlling_terminal(9).foreground(9);
    controlling_terminal_of_no_leader NEVER, |c, f| c.descriptor(&f.null, 9).controlling_terminal(9);
    foreground_of_no_terminal NEVER, |c, f| c.descriptor(&f.null, 9).foreground(9);
    limit NEVER, |c, f| c.limit(libc::RLIMIT_CORE, Some(1), Some(2)).limit(libc::RLIMIT_NOFILE, Some(40), Some(50));
    limit_of_data parked("memory limits"), |c, f| c.limit(libc::RLIMIT_DATA, Some(1 << 30), None);
    limit_of_stack parked("memory limits"), |c, f| c.limit(libc::RLIMIT_STACK, Some(4 << 20), None);
    limit_reversed NEVER, |c, f| c.limit(libc::RLIMIT_CORE, Some(2), Some(1));
    limit_above_that_of_the_kernel NEVER, |c, f| c.limit(libc::RLIMIT_NOFILE, Some(1), Some(1 << 40));
    limit_of_an_unknown_resource NEVER, |c, f| c.limit(99, Some(1), Some(1));
    nice NEVER, |c, f| c.nice(7);
    nice_too_large NEVER, |c, f| c.nice(20);
    scheduler NEVER, |c, f| c.scheduler(libc::SCHED_BATCH as u32, 0);
    scheduler_without_priority NEVER, |c, f| c.scheduler(libc::SCHED_FIFO as u32, 0);
    affinity parked("affinity"), |c, f| c.affinity([0]);
    affinity_of_no_processor parked("affinity"), |c, f| c.affinity([1000]);
    affinity_empty NEVER, |c, f| c.affinity([]);
    no_new_privs NEVER, |c, f| c.no_new_privs();
    oom_score_adj NEVER, |c, f| c.oom_score_adj(1000);
    oom_score_adj_too_large NEVER, |c, f| c.oom_score_adj(1001);
    cgroup_of_another_directory NEVER, |c, f| c.cgroup(&f.dir);
    cgroup NEVER, |c, f| if let Some((dir, _)) = &f.cgroup { c.cgroup(dir); };
    landlock NEVER, |c, f| if let Some(ruleset) = &f.ruleset { c.no_new_privs().landlock(ruleset); };
    landlock_without_ruleset NEVER, |c, f| c.no_new_privs().landlock(&f.null);
};

/// Actions that only root may perform.
const OF_ROOT: &[Case] = cases! {
    chroot parked("chroot"), |c, f| c.chroot("/");
    chroot_to_nothing parked("chroot"), |c, f| c.chroot(f.path("nothing"));
    ids IDS, |c, f| c.groups([1, 2, 3]).gid(65534).uid(65534);
    ids_in_parts IDS, |c, f| c.group_ids(1, 2, 3).user_ids(4, 5, 6);
    groups_empty IDS, |c, f| c.groups([]);
    ids_back_again IDS, |c, f| c.user_ids(1, 1, 1).user_ids(0, 0, 0);
    groups_as_another_user IDS, |c, f| c.user_ids(1, 1, 1).groups([1]);
    capabilities IDS, |c, f| c.uid(65534).capabilities(capability_sets([1, 3, 1, 7, 1]));
    capabilities_none IDS, |c, f| c.capabilities(CapabilitySets::new());
    capabilities_of_another_user IDS, |c, f| c.user_ids(1, 1, 1).capabilities(capability_sets([1; 5]));
    capabilities_that_are_gone IDS, |c, f| c.capabilities(CapabilitySets::new()).capabilities(capability_sets([1; 5]));
    capabilities_inconsistent IDS, |c, f| c.capabilities(capability_sets([1, 0, 0, 0, 0]));
    oom_score_adj_as_another_user IDS, |c, f| c.uid(65534).oom_score_adj(-1000);
};

/// The action's call is killed by a filter, and there is no other call.
const KILLED: &[Case] = cases! {
    // The parked process dies in the action, and a cold start repeats the actions.
    nice parked("died"), |c, f| c.umask(0).nice(7);
    // A parked process has the caller's umask set before all actions.
    umask always("context", "died"), |c, f| c.nice(0).umask(0);
};

/// The answers of a filter that refuses a call. `None`: the filter kills the process.
const ANSWERS: [Option<i32>; 3] = [Some(libc::ENOSYS), Some(libc::EPERM), None];

fn refuse(call: &str, answer: Option<i32>) {
    match answer {
        Some(errno) => confine::deny(&[(call, errno)]),
        None => confine::kill(&[call]),
    }
    .expect("confined");
}

/// Runs the cases from a cloned child and from all parked processes.
fn compare(files: &Files, cases: &[Case], label: &str) {
    let template = Template::open(program("spawnfd-oracle")).expect("it exists");
    let written = files.path("written");
    let outcome = |case: &Case, warm: Option<&Warm>| {
        let mut command = template.command();
        command.stdin(Stdio::Null);
        (case.add)(&mut command, files);
        warm.into_iter().for_each(|warm| _ = command.warm(warm));
        Outcome::of(&mut command, &written)
    };
    let all = [Zygote, Pool, Reserve, Fork].map(|executor| (executor, executor.park(&template)));
    for case in cases {
        let cold = outcome(case, None);
        for (executor, warm) in &all {
            let label = format!("{label}{} {executor:?}", case.name);
            let found = assert_is_warm(*executor, warm, case.cold, &label, || outcome(case, Some(warm)));
            cold.assert_same(&found, &label);
        }
    }
}

/// Starts a command, and asserts that a parked process is used, or that the start is cold for the expected reason.
fn assert_is_warm(
    executor: Executor,
    warm: &Warm,
    expected: Cold,
    label: &str,
    mut start: impl FnMut() -> Outcome,
) -> Outcome {
    let mut reasons = cold_except_slow(&warm.stats());
    let found = retry_while_slow(warm, &mut start);
    let reason = if matches!(executor, Reserve | Fork) { expected.own } else { expected.any };
    // An action that the library itself refuses starts nothing.
    if warm.stats().cold.values().sum::<u64>() > reasons.values().sum() || found.program.is_ok() {
        reason.into_iter().for_each(|reason| *reasons.entry(reason).or_default() += 1);
    }
    assert_eq!(cold_except_slow(&warm.stats()), reasons, "{label}");
    found
}

#[test]
fn each_action_has_the_same_outcome() {
    isolated!(|| {
        let files = Files::new();
        compare(&files, ACTIONS, "");
        match is_root() {
            true => compare(&files, OF_ROOT, ""),
            false => skip("only root may perform these actions"),
        }
    });
}

/// In a thread of its own, refuses a call, and then runs the cases whose names begin so.
fn compare_without(files: &Files, call: &str, answers: &[Option<i32>], cases: &str) {
    for &answer in answers {
        confined(|| {
            refuse(call, answer);
            let some = |case: &&Case| case.name.starts_with(cases);
            let chosen: Vec<Case> = ACTIONS.iter().filter(some).map(|case| Case { ..*case }).collect();
            assert!(!chosen.is_empty());
            compare(files, &chosen, &format!("without {call} ({answer:?}): "));
        });
    }
}

#[test]
fn a_refused_or_killed_call_is_replaced_by_all() {
    isolated!(|| {
        let files = Files::new();
        compare_without(&files, "openat2", &ANSWERS, "open");
        compare_without(&files, "close_range", &ANSWERS, "close_range");
        // Without clone3 a cloned child joins the cgroup itself. glibc starts threads without clone3 only after ENOSYS.
        compare_without(&files, "clone3", &ANSWERS[..1], "cgroup");
    });
}

#[test]
fn a_call_that_kills_fails_the_same_action() {
    isolated!(|| {
        let files = Files::new();
        for (call, case) in [("setpriority", &KILLED[..1]), ("umask", &KILLED[1..])] {
            confined(|| {
                refuse(call, None);
                compare(&files, case, "killed: ");
            });
        }
    });
}

/// How a case of the checks names its program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Named {
    Path,
    Descriptor,
    Search,
    Script,
}

const EACH: [Named; 4] = [Named::Path, Named::Descriptor, Named::Search, Named::Script];

/// A change of the program's files after the caller has checked them, and before the child checks them.
type Change = (&'static str, fn(&Path));

const CHANGES: &[Change] = &[
    ("none", |_| ()),
    ("replaced", |dir| {
        executable(&dir.join("new"), exits_with(3));
        fs::rename(dir.join("new"), dir.join("2/tool")).expect("own directory");
    }),
    ("longer", |dir| {
        let tool = File::options().append(true).open(dir.join("2/tool"));
        tool.expect("own file").write_all(b"\n").expect("own file");
    }),
    ("touched", |dir| {
        File::open(dir.join("2/tool")).expect("own file").set_modified(SystemTime::UNIX_EPOCH).expect("own file");
    }),
    ("linked", |dir| fs::hard_link(dir.join("2/tool"), dir.join("link")).expect("own directory")),
    ("another mode", |dir| {
        fs::set_permissions(dir.join("2/tool"), fs::Permissions::from_mode(0o711)).expect("own file");
    }),
    ("another owner", |dir| {
        if is_root() {
            std::os::unix::fs::chown(dir.join("2/tool"), Some(1), Some(1)).expect("privileged");
        }
    }),
    ("removed", |dir| fs::remove_file(dir.join("2/tool")).expect("own file")),
    ("a directory that is a file", |dir| {
        fs::rename(dir.join("2"), dir.join("old")).expect("own directory");
        fs::write(dir.join("2"), "").expect("own directory");
    }),
    ("a link to itself", |dir| {
        fs::remove_file(dir.join("2/tool")).expect("own file");
        symlink("tool", dir.join("2/tool")).expect("own directory");
    }),
    ("a program earlier in PATH", |dir| {
        executable(&dir.join("new"), exits_with(3));
        fs::rename(dir.join("new"), dir.join("1/tool")).expect("own directory");
    }),
    ("a directory earlier in PATH", |dir| {
        fs::remove_file(dir.join("1/tool")).expect("own file");
        fs::create_dir(dir.join("1/tool")).expect("own directory");
    }),
];

/// Makes the change while the second action of a child blocks on a FIFO. `add` adds more actions.
fn check(named: Named, change: fn(&Path), add: fn(&mut Command<'_>), warm: Option<&Warm>) -> Outcome {
    let directory = scratch();
    let dir = directory.path();
    ["1", "2", "written"].iter().for_each(|name| fs::create_dir(dir.join(name)).expect("own directory"));
    fs::write(dir.join("1/tool"), "not executable").expect("own directory");
    executable(&dir.join("2/tool"), exits_with(7));
    executable(&dir.join("script"), format!("#!{}\n", dir.join("2/tool").display()));
    let template = match named {
        Named::Path => Template::open(dir.join("2/tool")),
        Named::Descriptor => Template::open(dir.join("2/tool")).and_then(|template| template.by_descriptor()),
        Named::Search => {
            Template::search("tool", [dir.join("1"), dir.join("2")].map(|dir| dir.into_os_string()).join(":".as_ref()))
        }
        Named::Script => Template::open(dir.join("script")),
    }
    .expect("a template");
    let [ready, changed] = ["ready", "changed"].map(|name| common::fifo(dir, name));
    let mut outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(File::options().write(true).open(&ready));
            change(dir);
            drop(File::options().write(true).open(&changed));
        });
        let mut command = template.command();
        command.stdin(Stdio::Null).open(&ready, READ, 5).open(&changed, READ, 5);
        add(&mut command);
        warm.into_iter().for_each(|warm| _ = command.warm(warm));
        Outcome::of(&mut command, &dir.join("written"))
    });
    // Each start has a directory of its own.
    if let Err((_, _, call)) = &mut outcome.program {
        *call = call.replace(dir.to_str().expect("UTF-8"), "");
    }
    outcome
}

/// Makes statx of a descriptor, by an empty path, fail in this thread. The library's other calls of statx work.
fn refuse_statx_of_descriptors(errno: i32) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let jump = |test, no, value| instruction(libc::BPF_JMP | test | libc::BPF_K, 0, no, value);
    // In struct seccomp_data the number of the call is at offset 0, and the low half of its third argument at 32.
    let mut filter = [
        load(0),
        jump(libc::BPF_JEQ, 3, libc::SYS_statx as u32),
        load(32),
        jump(libc::BPF_JSET, 1, libc::AT_EMPTY_PATH as u32),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the first call sets a flag of this thread. The second passes a program, which the kernel copies and
    // checks.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn compare_checks(named: &[Named], changes: &[Change], add: fn(&mut Command<'_>), label: &str) {
    let template = Template::open("/bin/true").expect("it exists");
    let all = [Zygote, Pool].map(|executor| (executor, executor.park(&template)));
    for &named in named {
        for &(what, change) in changes {
            let expected = check(named, change, add, None);
            let is_stale = matches!(expected.program, Err((Stage::Revalidate, Errno::ESTALE, _)));
            assert!(what != "replaced" || is_stale, "{label}{named:?}");
            for (executor, warm) in &all {
                let label = format!("{label}{named:?} {what} {executor:?}");
                let found = assert_is_warm(*executor, warm, NEVER, &label, || check(named, change, add, Some(warm)));
                expected.assert_same(&found, &label);
            }
        }
    }
}

#[test]
fn each_check_has_the_same_outcome() {
    isolated!(|| compare_checks(&EACH, CHANGES, |_| (), ""));
}

/// Runs in a thread of its own, because a confinement lasts until the thread's end.
fn confined(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(body).join().expect("the thread's assertions hold"));
}

#[test]
fn a_search_has_the_same_outcome_if_faccessat2_is_refused_or_killed() {
    // The library itself needs execveat to start a zygote, and statx to compare a caller with a parked process.
    isolated!(|| {
        for answer in ANSWERS {
            confined(|| {
                refuse("faccessat2", answer);
                compare_checks(&[Named::Search], CHANGES, |_| (), &format!("without faccessat2 ({answer:?}): "));
            });
        }
    });
}

#[test]
fn a_check_has_the_same_outcome_if_statx_is_refused() {
    isolated!(|| {
        for errno in [libc::ENOSYS, libc::EPERM] {
            confined(|| {
                refuse_statx_of_descriptors(errno);
                compare_checks(&[Named::Descriptor], CHANGES, |_| (), &format!("without statx ({errno}): "));
            });
        }
    });
}

#[test]
fn a_check_has_the_same_outcome_for_another_user() {
    isolated!(|| match is_root() {
        // The user may not search the scratch directory.
        true => compare_checks(&EACH, &CHANGES[..1], |command| _ = command.user_ids(1, 1, 1), "another user: "),
        false => skip("only root may become another user"),
    });
}
