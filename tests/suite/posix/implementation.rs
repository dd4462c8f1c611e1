// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two implementations, and a request that both can serve.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{Read, Seek};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use libc::{mode_t, pid_t, posix_spawn_file_actions_t as List, posix_spawnattr_t as Attributes, sigset_t};
use spawnfd_tests::State;

use crate::c::Interface;

type Strings = *const *const c_char;
pub type Spawn =
    unsafe extern "C" fn(*mut c_int, *const c_char, *const List, *const Attributes, Strings, Strings) -> c_int;

/// The functions of one implementation.
#[derive(Clone, Copy)]
pub struct Implementation {
    pub name: &'static str,
    pub spawn: Spawn,
    pub spawnp: Spawn,
    pub init: unsafe extern "C" fn(*mut List) -> c_int,
    pub destroy: unsafe extern "C" fn(*mut List) -> c_int,
    addopen: unsafe extern "C" fn(*mut List, c_int, *const c_char, c_int, mode_t) -> c_int,
    pub addclose: unsafe extern "C" fn(*mut List, c_int) -> c_int,
    adddup2: unsafe extern "C" fn(*mut List, c_int, c_int) -> c_int,
    addchdir: unsafe extern "C" fn(*mut List, *const c_char) -> c_int,
    addfchdir: unsafe extern "C" fn(*mut List, c_int) -> c_int,
    addclosefrom: unsafe extern "C" fn(*mut List, c_int) -> c_int,
    addtcsetpgrp: unsafe extern "C" fn(*mut List, c_int) -> c_int,
}

/// Converts the address of a function.
///
/// # Safety
/// The type is that of the function, up to the names of structs with the same layout.
unsafe fn function<F: Copy>(address: *const c_void) -> F {
    assert!(!address.is_null());
    assert_eq!(size_of::<F>(), size_of::<*const c_void>());
    // SAFETY: the caller guarantees the type.
    unsafe { ptr::from_ref(&address).cast::<F>().read() }
}

/// Looks up a function of libc.
///
/// # Safety
/// The type is that of the function.
unsafe fn of_libc<F: Copy>(name: &CStr) -> F {
    // SAFETY: the name is a C string, and the caller guarantees the type.
    unsafe { function(libc::dlsym(libc::RTLD_NEXT, name.as_ptr())) }
}

/// The functions that this program is linked with.
pub fn ours() -> Implementation {
    use spawnfd_capi::posix as capi;

    // SAFETY: our types of the two structs have the layout of those of libc.
    unsafe {
        Implementation {
            name: "ours",
            spawn: function(capi::posix_spawn as *const c_void),
            spawnp: function(capi::posix_spawnp as *const c_void),
            init: function(capi::posix_spawn_file_actions_init as *const c_void),
            destroy: function(capi::posix_spawn_file_actions_destroy as *const c_void),
            addopen: function(capi::posix_spawn_file_actions_addopen as *const c_void),
            addclose: function(capi::posix_spawn_file_actions_addclose as *const c_void),
            adddup2: function(capi::posix_spawn_file_actions_adddup2 as *const c_void),
            addchdir: function(capi::posix_spawn_file_actions_addchdir_np as *const c_void),
            addfchdir: function(capi::posix_spawn_file_actions_addfchdir_np as *const c_void),
            addclosefrom: function(capi::posix_spawn_file_actions_addclosefrom_np as *const c_void),
            addtcsetpgrp: function(capi::posix_spawn_file_actions_addtcsetpgrp_np as *const c_void),
        }
    }
}

pub fn libc() -> Implementation {
    // SAFETY: these are the types of the functions.
    unsafe {
        Implementation {
            name: "libc",
            spawn: of_libc(c"posix_spawn"),
            spawnp: of_libc(c"posix_spawnp"),
            init: of_libc(c"posix_spawn_file_actions_init"),
            destroy: of_libc(c"posix_spawn_file_actions_destroy"),
            addopen: of_libc(c"posix_spawn_file_actions_addopen"),
            addclose: of_libc(c"posix_spawn_file_actions_addclose"),
            adddup2: of_libc(c"posix_spawn_file_actions_adddup2"),
            addchdir: of_libc(c"posix_spawn_file_actions_addchdir_np"),
            addfchdir: of_libc(c"posix_spawn_file_actions_addfchdir_np"),
            addclosefrom: of_libc(c"posix_spawn_file_actions_addclosefrom_np"),
            addtcsetpgrp: of_libc(c"posix_spawn_file_actions_addtcsetpgrp_np"),
        }
    }
}

/// A file action.
#[derive(Clone, Debug)]
pub enum Action {
    Open { fd: c_int, path: CString, flags: c_int, mode: mode_t },
    Close(c_int),
    Dup2(c_int, c_int),
    Chdir(CString),
    Fchdir(c_int),
    Closefrom(c_int),
    Tcsetpgrp(c_int),
}

/// The arguments of posix_spawn.
#[derive(Clone, Debug)]
pub struct Request {
    pub file: CString,
    /// Search `file` in PATH.
    pub search: bool,
    pub args: Vec<CString>,
    pub actions: Vec<Action>,
    pub flags: i16,
    pub group: pid_t,
    pub default_signals: Vec<c_int>,
    pub blocked_signals: Vec<c_int>,
    pub scheduler: (c_int, c_int),
    /// The directory of a cgroup. Only our implementation uses it.
    pub cgroup: Option<c_int>,
}

impl Request {
    pub fn new(file: impl AsRef<std::path::Path>) -> Request {
        use std::os::unix::ffi::OsStrExt;
        let file = CString::new(file.as_ref().as_os_str().as_bytes()).expect("no NUL");
        Request {
            args: vec![file.clone()],
            file,
            search: false,
            actions: Vec::new(),
            flags: 0,
            group: 0,
            default_signals: Vec::new(),
            blocked_signals: Vec::new(),
            scheduler: (libc::SCHED_OTHER, 0),
            cgroup: None,
        }
    }

    pub fn action(mut self, action: Action) -> Request {
        self.actions.push(action);
        self
    }

    pub fn flags(mut self, flags: c_int) -> Request {
        self.flags |= flags as i16;
        self
    }

    fn attributes(&self) -> Attributes {
        let set = |signals: &[c_int]| {
            let mut set = MaybeUninit::<sigset_t>::uninit();
            // sigaddset refuses the internal signals of glibc.
            let bits = signals.iter().fold(0_u64, |bits, signal| bits | 1 << (signal - 1));
            // SAFETY: sigemptyset initialises the set, which begins with the kernel's 64 bits.
            unsafe {
                libc::sigemptyset(set.as_mut_ptr());
                set.as_mut_ptr().cast::<u64>().write(bits);
                set.assume_init()
            }
        };
        let mut attributes = MaybeUninit::<Attributes>::uninit();
        let (defaults, blocked) = (set(&self.default_signals), set(&self.blocked_signals));
        let priority = libc::sched_param { sched_priority: self.scheduler.1 };
        // SAFETY: init initialises the attributes, and the other calls read what the pointers refer to. This program is
        // linked with our functions of these names, whose attributes have libc's layout.
        unsafe {
            assert_eq!(libc::posix_spawnattr_init(attributes.as_mut_ptr()), 0);
            let attributes = attributes.as_mut_ptr();
            assert_eq!(libc::posix_spawnattr_setflags(attributes, self.flags), 0);
            assert_eq!(libc::posix_spawnattr_setpgroup(attributes, self.group), 0);
            assert_eq!(libc::posix_spawnattr_setsigdefault(attributes, &raw const defaults), 0);
            assert_eq!(libc::posix_spawnattr_setsigmask(attributes, &raw const blocked), 0);
            assert_eq!(libc::posix_spawnattr_setschedpolicy(attributes, self.scheduler.0), 0);
            assert_eq!(libc::posix_spawnattr_setschedparam(attributes, &raw const priority), 0);
            if let Some(cgroup) = self.cgroup {
                assert_eq!(spawnfd_capi::posix::posix_spawnattr_setcgroup_np(attributes.cast(), cgroup), 0);
            }
        }
        // SAFETY: init has succeeded.
        unsafe { attributes.assume_init() }
    }

    /// Builds the list of actions. Fails with the errno of the first action that the implementation refuses.
    pub fn list(&self, by: Implementation) -> Result<List, (usize, c_int)> {
        let mut list = MaybeUninit::<List>::uninit();
        // SAFETY: init initialises the list.
        assert_eq!(unsafe { (by.init)(list.as_mut_ptr()) }, 0);
        // SAFETY: init has succeeded.
        let mut list = unsafe { list.assume_init() };
        let at = &raw mut list;
        for (index, action) in self.actions.iter().enumerate() {
            // SAFETY: the list is initialised, and the paths are C strings.
            let errno = unsafe {
                match action {
                    Action::Open { fd, path, flags, mode } => (by.addopen)(at, *fd, path.as_ptr(), *flags, *mode),
                    Action::Close(fd) => (by.addclose)(at, *fd),
                    Action::Dup2(from, to) => (by.adddup2)(at, *from, *to),
                    Action::Chdir(path) => (by.addchdir)(at, path.as_ptr()),
                    Action::Fchdir(fd) => (by.addfchdir)(at, *fd),
                    Action::Closefrom(first) => (by.addclosefrom)(at, *first),
                    Action::Tcsetpgrp(terminal) => (by.addtcsetpgrp)(at, *terminal),
                }
            };
            if errno != 0 {
                // SAFETY: the list is initialised, and no other code uses it.
                assert_eq!(unsafe { (by.destroy)(at) }, 0);
                return Err((index, errno));
            }
        }
        Ok(list)
    }

    /// Spawns the program, and returns its pid or an errno.
    pub fn spawn(&self, by: Implementation) -> Result<pid_t, c_int> {
        let attributes = self.attributes();
        let mut list = self.list(by).map_err(|(index, errno)| 1000 * (index as c_int + 1) + errno)?;
        let argv: Vec<*const c_char> = self.args.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
        let mut pid = -1;
        // SAFETY: the arrays end with NULL, and all pointers are valid during the call. Tests do not change the
        // environment meanwhile.
        let errno = unsafe {
            let environment = environ.cast_const().cast();
            let spawn = if self.search { by.spawnp } else { by.spawn };
            let errno = spawn(&raw mut pid, self.file.as_ptr(), &list, &attributes, argv.as_ptr(), environment);
            assert_eq!((by.destroy)(&raw mut list), 0);
            errno
        };
        if errno == 0 { Ok(pid) } else { Err(errno) }
    }

    /// Spawns the oracle, and returns the state of its process, or an errno. The oracle writes to `ANSWER`, or to a copy
    /// that an action makes. Both implementations get the same file, so that the states are equal.
    pub fn state(&self, by: Implementation) -> Result<State, c_int> {
        state_of(by.name, || self.spawn(by))
    }

    /// The same as `state`, by an interface of the C library. The request has no actions and attributes.
    pub fn state_by(&self, interface: Interface) -> Result<State, c_int> {
        state_of(&format!("{interface:?}"), || interface.start(&self.file, &self.args))
    }
}

/// Returns the state of the oracle that `spawn` starts, or the errno of `spawn`.
fn state_of(what: &str, spawn: impl FnOnce() -> Result<pid_t, c_int>) -> Result<State, c_int> {
    let mut file = answer();
    file.set_len(0).expect("own file");
    file.rewind().expect("own file");
    // The actions of the test may change descriptor 1.
    let copy = at_number(file, ANSWER);
    let pid = spawn();
    drop(copy);
    let status = wait(pid?);
    assert_eq!(status, 0, "{what}");
    let mut json = Vec::new();
    file.rewind().expect("own file");
    file.read_to_end(&mut json).expect("own file");
    Ok(State::from_json(&json))
}

/// The path of the file to which the oracle writes, in the directory of the isolated test.
pub fn answer_path() -> std::path::PathBuf {
    std::env::temp_dir().join("answer")
}

/// The file to which the oracle writes.
pub fn answer() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    let options = || File::options().read(true).write(true).create(true).truncate(true).open(answer_path());
    FILE.get_or_init(|| options().expect("own directory"))
}

/// The descriptor to which the oracle writes, see [`oracle`].
pub const ANSWER: c_int = 600;

/// A request for the oracle at a path, which prints its state to [`ANSWER`].
pub fn oracle(path: &std::path::Path) -> Request {
    let mut request = Request::new(path);
    request.args.extend([c"--to".to_owned(), CString::new(ANSWER.to_string()).expect("no NUL")]);
    request
}

unsafe extern "C" {
    static environ: *mut *mut c_char;
}

/// Waits for a child, and returns its status as waitpid(2) does.
pub fn wait(pid: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: waitpid stores an int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Duplicates a descriptor to a number that nothing uses, without close-on-exec.
pub fn at_number(file: &impl AsRawFd, number: c_int) -> OwnedFd {
    // SAFETY: no other owner uses the number.
    unsafe {
        assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

/// /dev/null, opened close-on-exec.
pub fn null() -> File {
    File::open("/dev/null").expect("it exists")
}
