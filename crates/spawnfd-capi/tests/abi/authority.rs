// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which descriptors are templates and builders, which threads and processes may use them, and which contents of a
//! builder's file the owner runs.

use std::io::Error;
use std::os::unix::net::UnixDatagram;

use spawnfd_capi::builder::{PIDFD_CONFIG_KEY_ENVP, SPAWN_ACTION_UMASK, SpawnAction, SpawnArgs};
use spawnfd_sys::{CloneOptions, Stack, clone_child, wait_pidfd};

use crate::builder::{Builder, call_config, call_run};
use crate::support::*;
use crate::template::{Request, of_path, shell};

/// Templates, or builders.
struct Kind {
    /// The name of the memfd.
    name: &'static CStr,
    /// Opens one. Its program ends with 7.
    open: fn() -> OwnedFd,
    /// Runs its program.
    run: fn(RawFd) -> Result<i32, i32>,
    /// The errno for another open descriptor.
    other: i32,
}

const KINDS: [Kind; 2] = [
    Kind { name: c"spawn_template", open: shell, run: |fd| Request::script("exit 7").status(&fd), other: EINVAL },
    Kind { name: c"spawn_builder", open: || Builder::shell(c"exit 7").0, run: run_builder, other: EBADF },
];

/// Runs a builder. If the run refuses the builder, its configuration refuses it too.
fn run_builder(fd: RawFd) -> Result<i32, i32> {
    let mut args = SpawnArgs { failed: 9, ..SpawnArgs::default() };
    let pidfd = call_run(fd, &mut args).inspect_err(|&errno| {
        assert_eq!(args.failed, 9, "unchanged");
        assert_eq!(call_config(fd, 0, PIDFD_CONFIG_KEY_ENVP, 0, 0), Err(errno));
        assert_eq!(call_config(fd, u32::MAX, u32::MAX, 0, -1), Err(errno));
    });
    pidfd.map(|pidfd| reap(&owned(pidfd)))
}

/// Puts a copy of a descriptor at the number of another one.
fn replace(at: &OwnedFd, by: &impl AsRawFd) {
    // SAFETY: the test owns the number.
    assert_eq!(unsafe { libc::dup2(by.as_raw_fd(), at.as_raw_fd()) }, at.as_raw_fd());
}

#[test]
fn other_descriptors_are_refused() {
    let (file, directory, (reader, _writer)) =
        (File::open("/bin/sh").unwrap(), File::open("/").unwrap(), std::io::pipe().unwrap());
    // SAFETY: pidfd_open has no requirements.
    let pidfd = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as RawFd);
    let [template, builder] = KINDS.map(|kind| (kind.open)());
    for (Kind { open, run, other, .. }, other_kind) in KINDS.into_iter().zip([builder, template]) {
        let numbers = [file.as_raw_fd(), directory.as_raw_fd(), reader.as_raw_fd(), pidfd.as_raw_fd()];
        for fd in numbers.into_iter().chain([memfd(c"spawn", &[0; 64]).as_raw_fd(), other_kind.as_raw_fd()]) {
            assert_eq!(run(fd), Err(other), "{fd}");
        }
        for fd in [-1, RawFd::MIN, RawFd::MAX, AT_FDCWD, 99_999, reopen_as_path(&open()).as_raw_fd()] {
            assert_eq!(run(fd), Err(EBADF), "{fd}");
        }
        // Another file at the number of a closed one.
        let reused = inheritable(&open());
        assert_eq!(run(reused.as_raw_fd()), Ok(7));
        replace(&reused, &file);
        assert_eq!(run(reused.as_raw_fd()), Err(other));
    }
}

#[test]
fn forged_records_are_refused() {
    for Kind { name, open, run, .. } in KINDS {
        let own = inheritable(&open());
        let genuine = read_record(&own);
        let mut changed = genuine.clone();
        *changed.last_mut().unwrap() ^= 1;
        for contents in [&[][..], &[0; 15], &[0; 16], &[0; 300], &genuine, &changed] {
            assert_eq!(run(memfd(name, contents).as_raw_fd()), Err(EACCES), "{} bytes", contents.len());
        }
        assert_eq!(run(own.as_raw_fd()), Ok(7));
        // The record of a closed one, in another file at the same number.
        replace(&own, &memfd(name, &genuine));
        assert_eq!(run(own.as_raw_fd()), Err(EACCES));
    }
}

#[test]
fn a_forked_child_may_use_only_its_own() {
    for Kind { open, run, .. } in KINDS {
        let parents = open();
        assert_eq!(in_forked_child(|| run(parents.as_raw_fd()).unwrap_err()), EACCES);
        assert_eq!(in_forked_child(|| run(open().as_raw_fd()).unwrap()), 7);
        assert_eq!(run(parents.as_raw_fd()), Ok(7));
    }
}

/// A child of vfork(2) has the memory of its parent, but is another process.
#[test]
fn a_child_of_vfork_may_not_use_the_template() {
    unsafe extern "C" fn enter(template: *const ()) -> ! {
        // SAFETY: the parent waits until the child has exited.
        let template = unsafe { &*template.cast::<OwnedFd>() };
        let errno = Request::script("").status(template).err().unwrap_or(0);
        // SAFETY: the call has no requirements.
        unsafe { libc::_exit(errno) }
    }

    let template = shell();
    let options = CloneOptions { share_memory: true, ..Default::default() };
    // SAFETY: the thread sleeps until the child has exited, so both can use the thread's local storage.
    let child =
        unsafe { clone_child(&options, &Stack::new().unwrap(), enter, (&raw const template).cast(), None).unwrap() };
    let pidfd = OwnedFd::from(child.pidfd);
    let ended = wait_pidfd(pidfd.as_raw_fd(), true).unwrap().unwrap();
    assert_eq!(libc::WEXITSTATUS(ended.status), EACCES);
}

#[test]
fn only_the_opener_may_use_a_received_copy() {
    for Kind { open, run, .. } in KINDS {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        std::thread::scope(|scope| {
            let child = scope.spawn(|| in_forked_child(|| run(receive(&theirs).as_raw_fd()).unwrap_err()));
            let own = open();
            send(&ours, &own);
            assert_eq!(child.join().unwrap(), EACCES);
            assert_eq!(run(own.as_raw_fd()), Ok(7));
        });
        send(&ours, &open());
        assert_eq!(run(receive(&theirs).as_raw_fd()), Ok(7));
    }
}

#[test]
fn an_executed_program_may_not_use_an_inherited_copy() {
    let inherited = KINDS.map(|kind| inheritable(&(kind.open)()));
    let [template, builder] = inherited.each_ref().map(|fd| fd.as_raw_fd().to_string());
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--exact", "authority::run_on_purpose_with_inherited_copies", "--ignored"])
        .envs([("TEMPLATE", template), ("BUILDER", builder)])
        .output()
        .unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "an_executed_program_may_not_use_an_inherited_copy runs it"]
fn run_on_purpose_with_inherited_copies() {
    for (kind, variable) in KINDS.iter().zip(["TEMPLATE", "BUILDER"]) {
        assert_eq!((kind.run)(std::env::var(variable).unwrap().parse().unwrap()), Err(EACCES), "{variable}");
    }
}

/// The system calls change only the credentials of one thread.
#[test]
fn a_change_of_credentials_revokes() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        const KEEP_CAPS: libc::c_long = 1 << 4;
        let call = |number, first: libc::c_long, second: libc::c_long, third: libc::c_long| {
            // SAFETY: the arguments are numbers, or the address of groups that live until the call returns.
            assert_eq!(unsafe { libc::syscall(number, first, second, third) }, 0, "{}", Error::last_os_error());
        };
        let groups = [1u32, 2];
        let set_groups = || call(libc::SYS_setgroups, 2, (&raw const groups) as _, 0);
        let set_file_id = |number| {
            // SAFETY: the call accesses no memory. It returns the previous id.
            unsafe { libc::syscall(number, 65534) };
        };
        let changes: [(&str, &(dyn Fn() + Sync)); 8] = [
            ("groups", &set_groups),
            ("capabilities", &|| _ = spawnfd_sys::call::set_capabilities(0, 0, 0).unwrap()),
            ("securebits", &|| call(libc::SYS_prctl, libc::PR_SET_SECUREBITS.into(), KEEP_CAPS, 0)),
            ("effective group", &|| call(libc::SYS_setresgid, -1, 65534, -1)),
            ("saved user", &|| call(libc::SYS_setresuid, -1, -1, 65534)),
            ("all users", &|| call(libc::SYS_setresuid, 65534, 65534, 65534)),
            ("file system user", &|| set_file_id(libc::SYS_setfsuid)),
            ("file system group", &|| set_file_id(libc::SYS_setfsgid)),
        ];
        for Kind { open, run, .. } in KINDS {
            let own = open();
            for (name, change) in changes {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        assert_eq!(run(own.as_raw_fd()), Ok(7), "a thread with the same credentials");
                        change();
                        assert_eq!(run(own.as_raw_fd()), Err(EACCES), "{name}");
                    });
                });
            }
            // Equal credentials are accepted, unlike in the RFC.
            call(libc::SYS_setresuid, 0, 0, 0);
            assert_eq!(run(own.as_raw_fd()), Ok(7));
        }
    });
}

/// Writes each of these records over the file of a descriptor. Returns the number of writes that did not fail with EPERM.
fn overwrite(template: &OwnedFd, records: &[Vec<u8>]) -> i32 {
    let was_not_refused = |record: &&Vec<u8>| match write_record(template, record) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(EPERM),
    };
    records.iter().filter(was_not_refused).count() as i32
}

#[test]
fn no_process_can_write_an_earlier_record_into_a_template() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let earlier = [of_path("/bin/true").unwrap(), shell(), shell()];
    let template = shell();
    let records: Vec<Vec<u8>> = earlier.iter().chain([&template]).map(read_record).collect();
    assert_eq!(overwrite(&template, &records), 0, "the owner");
    assert_eq!(in_forked_child(|| overwrite(&template, &records)), 0, "a forked child");
    send(&ours, &template);
    assert_eq!(in_forked_child(|| overwrite(&receive(&theirs), &records)), 0, "a receiver");
    assert_eq!(Request::script("exit 7").status(&template), Ok(7));
}

/// A builder of a script that ends with 7, and the record after each step of its configuration.
fn recorded() -> (Builder, Vec<Vec<u8>>) {
    let builder = Builder::open();
    let umask = SpawnAction { r#type: SPAWN_ACTION_UMASK, ..SpawnAction::default() };
    let steps: [&dyn Fn(&Builder); 6] = [
        &|_| (),
        &|builder| builder.path(c"/bin/sh"),
        &|builder| builder.script(c"exit 1"),
        &|builder| builder.script(c"exit 2"),
        &|builder| builder.actions(&[umask]).unwrap(),
        &|builder| builder.script(c"exit 7"),
    ];
    let record_after = |step: &dyn Fn(&Builder)| {
        step(&builder);
        read_record(&builder.0)
    };
    let records = steps.map(record_after).to_vec();
    (builder, records)
}

/// Lets another process write each record, and checks that the owner accepts only the last one.
fn replay(builder: &OwnedFd, records: &[Vec<u8>], write: impl Fn(&[u8]) -> i32) {
    let (last, earlier) = records.split_last().unwrap();
    for (step, record) in earlier.iter().enumerate() {
        assert_eq!(write(record), 0);
        assert_eq!(run_builder(builder.as_raw_fd()), Err(EACCES), "the record of step {step}");
    }
    assert_eq!(write(last), 0);
    assert_eq!(run_builder(builder.as_raw_fd()), Ok(7), "the last record");
}

fn write_status(fd: &impl AsRawFd, record: &[u8]) -> i32 {
    write_record(fd, record).is_err().into()
}

#[test]
fn an_earlier_record_of_a_builder_is_refused() {
    let (builder, records) = recorded();
    let builder = &builder.0;
    replay(builder, &records, |record| in_forked_child(|| write_status(builder, record)));
    // A process that receives the builder, and the owner with a received copy.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    replay(builder, &records, |record| {
        send(&ours, builder);
        in_forked_child(|| write_status(&receive(&theirs), record))
    });
    send(&ours, builder);
    let received = receive(&theirs);
    replay(&received, &records, |record| write_status(&received, record));
    // A builder of a forked child, while the owner opens many others.
    let used = in_forked_child(|| {
        let (builder, records) = recorded();
        replay(&builder.0, &records, |record| write_status(&builder.0, record));
        0
    });
    assert_eq!(used, 0);
    for _ in 0..4000 {
        drop(Builder::open());
    }
    replay(builder, &records, |record| write_status(builder, record));
}

/// After a change and its reverse, the owner's last record equals an earlier one.
#[test]
fn a_record_of_an_equal_configuration_is_accepted() {
    let (builder, records) = recorded();
    builder.script(c"exit 2");
    assert_eq!(read_record(&builder.0), records[4]);
    write_record(&builder.0, &records[5]).unwrap();
    assert_eq!(run_builder(builder.0.as_raw_fd()), Err(EACCES), "the replaced record");
    write_record(&builder.0, &records[4]).unwrap();
    assert_eq!(builder.code(&[]), Ok(2));
}

#[test]
fn a_record_of_another_builder_is_refused() {
    let (builder, _) = recorded();
    let (other, records) = recorded();
    for (step, record) in records.iter().enumerate() {
        write_record(&builder.0, record).unwrap();
        assert_eq!(run_builder(builder.0.as_raw_fd()), Err(EACCES), "the record of step {step}");
    }
    assert_eq!(other.code(&[]), Ok(7));
}

#[test]
fn each_copy_of_the_descriptor_is_the_same_builder() {
    let builder = Builder::shell(c"exit 3");
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let duplicate = Builder(builder.0.try_clone().unwrap());
    send(&ours, &builder.0);
    drop(builder);
    duplicate.script(c"exit 4");
    // The process has no other descriptor of the builder while it receives one.
    drop(duplicate);
    let received = Builder(receive(&theirs));
    assert_eq!(received.code(&[]), Ok(4));
    received.script(c"exit 5");
    assert_eq!(received.code(&[]), Ok(5));
}
