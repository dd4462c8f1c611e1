// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which threads and processes may use a builder, and which contents of its file the owner runs.

use crate::support::*;

/// A builder of a script that ends with 3, and the record after each step of its configuration.
fn recorded() -> (Builder, Vec<Vec<u8>>) {
    let builder = Builder::open();
    let steps: [fn(&Builder); 6] = [
        |_| (),
        |builder| builder.path(SHELL),
        |builder| builder.argv(&[c"sh", c"-c", c"exit 1"]),
        |builder| builder.argv(&[c"sh", c"-c", c"exit 2"]),
        |builder| builder.actions(&[umask()]).unwrap(),
        |builder| builder.argv(&[c"sh", c"-c", c"exit 3"]),
    ];
    let record_after = |step: fn(&Builder)| {
        step(&builder);
        read_record(&builder.0)
    };
    let records = steps.map(record_after).to_vec();
    (builder, records)
}

/// Checks that both calls refuse the builder.
fn assert_refused(builder: &Builder, case: &str) {
    let mut args = SpawnArgs { failed: 7, ..args_of(&[]) };
    assert_eq!((call_run(builder.0, &mut args), args.failed), (Err(EACCES), 7), "{case}");
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_ENVP), Err(EACCES), "{case}");
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_PATH, SHELL), Err(EACCES), "{case}");
}

/// Lets another process write each record, and checks that the owner accepts only the last one.
fn replay(builder: &Builder, records: &[Vec<u8>], write: impl Fn(&[u8]) -> i32) {
    assert_eq!(builder.code(&[]), Ok(3));
    let (last, earlier) = records.split_last().unwrap();
    for (step, record) in earlier.iter().enumerate() {
        assert_eq!(write(record), 0);
        assert_refused(builder, &format!("the record of step {step}"));
    }
    assert_eq!(write(last), 0);
    assert_eq!(builder.code(&[]), Ok(3), "the last record");
}

fn write_status(fd: &impl AsRawFd, record: &[u8]) -> i32 {
    write_record(fd, record).is_err().into()
}

#[test]
fn an_earlier_record_from_a_forked_child_is_refused() {
    let (builder, records) = recorded();
    replay(&builder, &records, |record| in_forked_child(|| write_status(&builder.0, record)));
}

#[test]
fn an_earlier_record_from_a_receiver_is_refused() {
    let (builder, records) = recorded();
    let [ours, theirs] = socket_pair();
    replay(&builder, &records, |record| {
        send(&ours, &builder.0);
        in_forked_child(|| write_status(&receive(&theirs), record))
    });
    // The owner receives its own builder, and writes with the received descriptor.
    send(&ours, &builder.0);
    let received = Builder(receive(&theirs).into_raw_fd());
    replay(&received, &records, |record| write_status(&received.0, record));
}

/// After a change and its reverse, the owner's last record equals an earlier one.
#[test]
fn a_record_of_an_equal_configuration_is_accepted() {
    let (builder, records) = recorded();
    builder.argv(&[c"sh", c"-c", c"exit 2"]);
    assert_eq!(read_record(&builder.0), records[4]);
    write_record(&builder.0, &records[5]).unwrap();
    assert_refused(&builder, "the replaced record");
    write_record(&builder.0, &records[4]).unwrap();
    assert_eq!(builder.code(&[]), Ok(2));
}

#[test]
fn a_record_of_another_builder_is_refused() {
    let (builder, _) = recorded();
    let (other, records) = recorded();
    for (step, record) in records.iter().enumerate() {
        write_record(&builder.0, record).unwrap();
        assert_refused(&builder, &format!("the record of step {step}"));
    }
    assert_eq!(other.code(&[]), Ok(3));
}

/// The second builder has the number of the first, closed one.
#[test]
fn a_record_of_a_closed_builder_is_refused_at_the_same_number() {
    let number = 400;
    let at_number = |builder: &Builder| {
        // SAFETY: no other test uses the number.
        Builder(result(unsafe { libc::dup3(builder.0, number, O_CLOEXEC) }).unwrap())
    };
    let (first, records) = recorded();
    let closed = at_number(&first);
    assert_eq!(closed.code(&[]), Ok(3));
    drop((first, closed));
    let (second, _) = recorded();
    let open = at_number(&second);
    assert_eq!(open.code(&[]), Ok(3));
    for record in records {
        write_record(&open.0, &record).unwrap();
        assert_refused(&open, "a record of the closed builder");
    }
}

#[test]
fn each_copy_of_the_descriptor_is_the_same_builder() {
    let (builder, _) = recorded();
    let [ours, theirs] = socket_pair();
    // SAFETY: F_DUPFD_CLOEXEC has no requirements.
    let duplicate = Builder(result(unsafe { libc::fcntl(builder.0, libc::F_DUPFD_CLOEXEC, 0) }).unwrap());
    send(&ours, &builder.0);
    drop(builder);
    duplicate.argv(&[c"sh", c"-c", c"exit 4"]);
    // The process has no other descriptor of the builder while it receives one.
    drop(duplicate);
    let received = Builder(receive(&theirs).into_raw_fd());
    assert_eq!(received.code(&[]), Ok(4));
    received.argv(&[c"sh", c"-c", c"exit 5"]);
    assert_eq!(received.code(&[]), Ok(5));
}

#[test]
fn a_builder_stays_usable_while_many_others_are_opened() {
    let (builder, records) = recorded();
    for _ in 0..4000 {
        drop(Builder::open());
    }
    replay(&builder, &records, |record| write_status(&builder.0, record));
    builder.argv(&[c"sh", c"-c", c"exit 6"]);
    assert_eq!(builder.code(&[]), Ok(6));
}

#[test]
fn a_forked_child_may_not_use_the_builder() {
    let (builder, records) = recorded();
    let used = in_forked_child(|| {
        // The child has the memory of its parent, and can read and write the record.
        for record in &records {
            write_record(&builder.0, record).unwrap();
            assert_refused(&builder, "in the child");
        }
        42
    });
    assert_eq!(used, 42);
    assert_eq!(builder.code(&[]), Ok(3));
}

#[test]
fn a_forked_child_uses_its_own_builder() {
    let (parents, _) = recorded();
    let used = in_forked_child(|| {
        let (builder, records) = recorded();
        replay(&builder, &records, |record| write_status(&builder.0, record));
        builder.code(&[]).unwrap()
    });
    assert_eq!(used, 3);
    assert_eq!(parents.code(&[]), Ok(3));
}

/// The system calls change only the credentials of one thread.
#[test]
fn a_thread_with_other_credentials_may_not_use_the_builder() {
    if !is_root() {
        eprintln!("skipped: only root can change its credentials");
        return;
    }
    let builder = Builder::shell(c"exit 3");
    let change = |user: libc::c_long| {
        // SAFETY: the arguments are numbers.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        assert_eq!(changed, 0, "{}", errno());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(builder.code(&[]), Ok(3), "a thread with the same credentials");
            change(65534);
            assert_eq!(builder.reset(PIDFD_CONFIG_KEY_ENVP), Err(EACCES));
            let mut args = SpawnArgs { failed: 7, ..args_of(&[]) };
            assert_eq!((call_run(builder.0, &mut args), args.failed), (Err(EACCES), 7));
            change(0);
            assert_eq!(builder.code(&[]), Ok(3), "the same credentials again");
        });
    });
}
