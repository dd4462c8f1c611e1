// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls the two functions, reads what a program prints, and creates files.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use spawnfd_capi::template::*;
use spawnfd_sys::abi::open_how;

/// The calling thread's errno.
pub fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap()
}

/// Returns the address of a value in the form of the ABI.
pub fn address<T: ?Sized>(value: &T) -> u64 {
    (&raw const *value).cast::<u8>() as u64
}

/// Calls `spawn_template_create`.
pub fn create(args: &spawn_template_create_args) -> Result<OwnedFd, i32> {
    create_with_size(args, size_of_val(args))
}

/// Calls `spawn_template_create` with an address and a size.
pub fn create_with_size(args: *const spawn_template_create_args, size: usize) -> Result<OwnedFd, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the size.
    let fd = unsafe { spawn_template_create(args, size) };
    // SAFETY: the function has returned a new descriptor.
    if fd < 0 { Err(errno()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// The arguments of a create call for a path.
pub fn path_args(path: &CStr) -> spawn_template_create_args {
    spawn_template_create_args {
        flags: SPAWN_TEMPLATE_CREATE_CLOEXEC,
        execfd: -1,
        filename: path.as_ptr() as u64,
        ..Default::default()
    }
}

/// The arguments of a create call for a descriptor.
pub fn descriptor_args(fd: &impl AsRawFd) -> spawn_template_create_args {
    spawn_template_create_args { flags: SPAWN_TEMPLATE_CREATE_CLOEXEC, execfd: fd.as_raw_fd(), ..Default::default() }
}

/// Creates a template for a path.
pub fn of_path(path: impl AsRef<Path>) -> Result<OwnedFd, i32> {
    let path = CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap();
    create(&path_args(&path))
}

/// A template for the shell.
pub fn shell() -> OwnedFd {
    of_path("/bin/sh").unwrap()
}

/// Calls `spawn_template_spawn` with an address and a size.
pub fn spawn_with_size(fd: RawFd, args: *const spawn_template_spawn_args, size: usize) -> Result<i32, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the call earlier.
    let pid = unsafe { spawn_template_spawn(fd, args, size) };
    if pid < 0 { Err(errno()) } else { Ok(pid) }
}

/// One spawn: its arguments, and the memory that they refer to.
#[derive(Default)]
pub struct Request {
    argv: Vec<CString>,
    environment: Vec<CString>,
    pub actions: Vec<spawn_template_action>,
    pub flags: u64,
    kept: Vec<Box<dyn Any>>,
}

/// A child that has been created.
pub struct Spawned {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

impl Request {
    /// A spawn with these arguments and an empty environment.
    pub fn new(argv: &[&str]) -> Request {
        let argv = argv.iter().map(|arg| CString::new(*arg).unwrap()).collect();
        Request { argv, ..Default::default() }
    }

    /// A shell that runs a script.
    pub fn script(script: &str) -> Request {
        Request::new(&["sh", "-c", script])
    }

    /// A shell that prints whether each of these descriptors is open.
    pub fn probe(numbers: &[RawFd]) -> Request {
        let numbers: Vec<_> = numbers.iter().map(RawFd::to_string).collect();
        Request::script(&format!(
            "for fd in {}; do if [ -e /proc/$$/fd/$fd ]; then echo open; else echo closed; fi; done",
            numbers.join(" ")
        ))
    }

    pub fn inherit(mut self) -> Request {
        self.flags |= SPAWN_TEMPLATE_SPAWN_INHERIT_FDS;
        self
    }

    pub fn environment(mut self, variable: &str) -> Request {
        self.environment.push(CString::new(variable).unwrap());
        self
    }

    pub fn action(mut self, r#type: u32, fd: RawFd, newfd: RawFd, flags: u32) -> Request {
        self.actions.push(spawn_template_action { r#type, flags, fd, newfd, arg: 0 });
        self
    }

    pub fn close(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE, fd, 0, 0)
    }

    pub fn dup2(self, from: RawFd, to: RawFd, flags: i32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_DUP2, from, to, flags as u32)
    }

    pub fn fchdir(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_FCHDIR, fd, 0, 0)
    }

    pub fn close_range(self, first: RawFd, last: RawFd, flags: u32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE_RANGE, first, last, flags)
    }

    pub fn open(self, dir: RawFd, path: &str, fd: RawFd, flags: i32) -> Request {
        self.open_how(dir, path, fd, open_how { flags: flags as u64, mode: 0, resolve: 0 })
    }

    pub fn open_how(mut self, dir: RawFd, path: &str, fd: RawFd, how: open_how) -> Request {
        let path = CString::new(path).unwrap();
        let open = Box::new(spawn_template_open { path: path.as_ptr() as u64, how });
        let arg = address(&*open);
        self.kept.extend([Box::new(path) as Box<dyn Any>, open]);
        self.actions.push(spawn_template_action {
            r#type: SPAWN_TEMPLATE_ACTION_OPEN,
            fd: dir,
            newfd: fd,
            arg,
            ..Default::default()
        });
        self
    }

    /// An action with a signal set.
    pub fn signals(mut self, r#type: u32, signals: &[i32]) -> Request {
        let set = Box::new(signals.iter().fold(0u64, |set, signal| set | 1 << (signal - 1)));
        let sigset = spawn_template_sigset { sigset: address(&*set), sigsetsize: 8 };
        self.kept.push(set);
        self.raw_signals(r#type, sigset)
    }

    /// An action with any [`spawn_template_sigset`].
    pub fn raw_signals(mut self, r#type: u32, sigset: spawn_template_sigset) -> Request {
        let sigset = Box::new(sigset);
        self.actions.push(spawn_template_action { r#type, arg: address(&*sigset), ..Default::default() });
        self.kept.push(sigset);
        self
    }

    /// Spawns the program.
    pub fn start(&self, template: &impl AsRawFd) -> Result<Spawned, i32> {
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, envp) = (pointers(&self.argv), pointers(&self.environment));
        let mut pidfd: RawFd = -1;
        let args = spawn_template_spawn_args {
            flags: self.flags,
            pidfd: (&raw mut pidfd) as u64,
            argv: argv.as_ptr() as u64,
            envp: envp.as_ptr() as u64,
            actions: self.actions.as_ptr() as u64,
            actions_len: self.actions.len() as u64,
            reserved: [0; 4],
        };
        let pid = spawn_with_size(template.as_raw_fd(), &args, size_of_val(&args))?;
        // SAFETY: the function has stored a new descriptor.
        Ok(Spawned { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
    }

    /// Spawns the program, and returns the errno or the exit status.
    pub fn status(&self, template: &impl AsRawFd) -> Result<i32, i32> {
        self.start(template).map(|spawned| spawned.wait())
    }

    /// Spawns the program with its output in a pipe. Returns the output of a program that exits with 0.
    ///
    /// The child connects the pipe after the other actions.
    pub fn output(mut self, template: &impl AsRawFd) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        self = self.dup2(writer.as_raw_fd(), 1, 0);
        let spawned = self.start(template).unwrap();
        drop(writer);
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        assert_eq!(spawned.wait(), 0, "{output}");
        output
    }
}

impl Spawned {
    /// Waits for the child, and returns its exit status. A child must not end by a signal.
    pub fn wait(&self) -> i32 {
        // SAFETY: all-zero is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes to `info`.
        let waited = unsafe { libc::waitid(libc::P_PIDFD, self.pidfd.as_raw_fd() as u32, &mut info, libc::WEXITED) };
        assert_eq!(waited, 0, "{}", Error::last_os_error());
        // SAFETY: waitid has filled these fields.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        assert_eq!((pid, info.si_code), (self.pid, libc::CLD_EXITED), "status {status}");
        status
    }
}

/// A directory that the test removes at its end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("spawnfd-template-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates an executable copy of /bin/sh.
    pub fn program(&self, name: &str) -> PathBuf {
        self.run("cp /bin/sh \"$1\"", name)
    }

    /// Creates an executable file with these contents.
    pub fn file(&self, name: &str, contents: &str) -> PathBuf {
        self.run(&format!("printf '%s' '{contents}' > \"$1\" && chmod 755 \"$1\""), name)
    }

    /// Runs a shell script on a path of the directory.
    ///
    /// Only that shell opens the file for writing. If a test opened it, the child of another test could hold the
    /// descriptor for a moment, and exec would fail with ETXTBSY.
    pub fn run(&self, script: &str, name: &str) -> PathBuf {
        let path = self.path(name);
        let status = Command::new("/bin/sh").arg("-c").arg(script).arg("sh").arg(&path).status().unwrap();
        assert!(status.success(), "{script}");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies a descriptor to a number of 500 or more that programs inherit.
pub fn inheritable(fd: &impl AsRawFd) -> OwnedFd {
    // SAFETY: the call opens a new descriptor.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 500) };
    assert!(copy >= 500, "{}", Error::last_os_error());
    // SAFETY: the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(copy) }
}

pub fn dev_null() -> std::fs::File {
    std::fs::File::options().read(true).write(true).open("/dev/null").unwrap()
}

/// Runs an ignored test of this binary in a process of its own. The process has one test thread.
pub fn alone(test: &str, variables: &[(&str, String)]) {
    let output = Command::new("/proc/self/exe")
        .args(["--exact", test, "--ignored", "--test-threads=1", "--nocapture"])
        .envs(variables.iter().cloned())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether the tests run as root. Otherwise prints why a test is skipped.
pub fn is_root(reason: &str) -> bool {
    // SAFETY: the call has no requirements.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: not root: {reason}");
    }
    is_root
}
