// SPDX-License-Identifier: MIT OR Apache-2.0
//! A caller without an allocator, such as posix_spawn in a preloaded library, can lend all its data
//! to a plan (the description of a child).

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::cell::Cell;
use std::ptr::null;

use spawnfd_child::{
    Caller, Check, ChildMemory, Data, Identity, Op, Outcome, Pinned, Plan, Program, Step, Table, launch,
};
use spawnfd_sys::{ArgBlock, CallSet, CloneOptions, abi, wait_pidfd};
use spawnfd_tests::isolated;

/// An allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller of `alloc` keeps the rules that `System.alloc` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller of `dealloc` keeps the rules that `System.dealloc` needs.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_borrowed_plan_starts_a_program_without_an_allocation() {
    isolated!(|| {
        let mut memory = ChildMemory::new().expect("memory");
        let sh = Identity::of(CallSet::NONE, abi::AT_FDCWD, c"/bin/sh").expect("/bin/sh");
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"test $PWD = /usr && test $ANSWER = 42".as_ptr(), null()];
        let envp = [c"ANSWER=42".as_ptr(), null()];
        // SAFETY: the arrays end with NULL, and their strings are constants.
        let (argv, envp) = unsafe { (ArgBlock::borrowed(&argv), ArgBlock::borrowed(&envp)) };
        let checks = [Check::Same { path: Cow::Borrowed(c"/bin/sh"), identity: sh }];
        let pinned =
            Pinned { path: Cow::Borrowed(c"/bin/sh"), checks: Cow::Borrowed(&checks), places: Cow::Borrowed(&[]) };
        let steps = [
            Step { index: 0, op: Op::Place { source: 0, to: 1 } },
            Step { index: 1, op: Op::Chdir { path: Data::Borrowed(c"/usr") } },
        ];
        let plan = Plan {
            killed_calls: CallSet::NONE,
            sources: Cow::Borrowed(&[2]),
            above: 3,
            below: i32::MAX,
            highest: 2,
            steps: Cow::Borrowed(&steps),
            keep: Some(Cow::Borrowed(&[])),
            default_signals: 0,
            signal_mask: None,
            parent_death: None,
            program: Program { pinned: Data::Borrowed(&pinned), source: None, renew: false },
            owners_mapped: false,
            filter: None,
            argv,
            shell: None,
            envp: Data::Borrowed(&envp),
        };
        let options = CloneOptions { share_memory: true, ..CloneOptions::default() };

        let before = ALLOCATIONS.get();
        let launched = launch(&mut memory, options, Table::Copied, &plan, Caller);
        drop(plan);
        assert_eq!(ALLOCATIONS.get(), before);

        let (child, outcome) = launched.expect("a child");
        assert_eq!(outcome, Outcome::Program { renewed: false });
        let pidfd = std::os::fd::OwnedFd::from(child.pidfd);
        let ended = wait_pidfd(std::os::fd::AsRawFd::as_raw_fd(&pidfd), true).expect("own child").expect("ended");
        assert_eq!(ended.status, 0);
    });
}
