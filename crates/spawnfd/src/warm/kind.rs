// SPDX-License-Identifier: MIT OR Apache-2.0
//! The point at which a program parks, and the arguments that it reads before that.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use spawnfd_parked::protocol;

use crate::cold_reason::ColdReason;

/// The point at which a program parks.
///
/// # Examples
/// ```
/// use spawnfd::Warm;
/// use spawnfd::warm::{Kind, Park, WarmOptions};
/// let warm = Warm::new(WarmOptions::new())?;
/// // The interpreter parks at main(), before it reads its configuration and modules.
/// warm.add("python3", Park::new().kind(Kind::Main))?;
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// At main(), before the program has read anything. Any program that is dynamically linked to glibc can park
    /// there.
    Main = protocol::Kind::Main as isize,
    /// After CPython's initialisation.
    Python = protocol::Kind::Python as isize,
    /// After the initialisation of Node.js.
    Node = protocol::Kind::Node as isize,
}

impl Kind {
    /// Chooses the kind by a program's name.
    pub(super) fn of(path: &Path) -> Kind {
        match path.file_name().map(OsStr::as_bytes) {
            Some(b"node" | b"nodejs") => Kind::Node,
            Some(name) if is_python(name) => Kind::Python,
            _ => Kind::Main,
        }
    }

    /// The leading arguments with which to park a process for commands with the arguments `args`. `None` if no parked
    /// process could serve such a command.
    pub(super) fn options(self, args: &[OsString]) -> Option<Vec<OsString>> {
        let leading = match self {
            Kind::Main => 0,
            Kind::Python => args.iter().take_while(|arg| is_plain_option(arg)).count(),
            Kind::Node => usize::from(args.first().is_some_and(|flag| takes_code(flag))),
        };
        let options = args[..leading].to_vec();
        self.fits(&options, args).ok().map(|()| options)
    }

    /// Checks that a process parked with the arguments `parked` can become a program with the
    /// arguments `args`. Both lists exclude the program's name.
    pub(super) fn fits(self, parked: &[OsString], args: &[OsString]) -> Result<(), ColdReason> {
        let rest = args.strip_prefix(parked).ok_or(ColdReason::Arguments)?;
        let is_flag = |at: usize| rest.get(at).is_some_and(|arg| arg.as_bytes().starts_with(b"-"));
        // The rest is the code or script to run, and its arguments.
        let fits = match self {
            Kind::Main => true,
            // Without arguments, CPython may show a prompt, so such a command does not fit.
            Kind::Python => match rest.first().map(|arg| arg.as_bytes()) {
                Some(b"-c" | b"-m" | b"-") => true,
                first => first.is_some_and(|arg| !arg.is_empty()) && !is_flag(0),
            },
            // A process parked with `-e` needs code. Node.js reads a flag after the code as its own option, so such a
            // command does not fit.
            Kind::Node if parked.last().is_some_and(|flag| takes_code(flag)) => {
                !rest.is_empty() && !is_flag(0) && !is_flag(1)
            }
            // A process parked without `-e` needs a script, not stdin.
            Kind::Node => rest.first().is_some_and(|arg| !arg.is_empty()) && !is_flag(0),
        };
        if fits { Ok(()) } else { Err(ColdReason::Arguments) }
    }
}

/// Whether `flag` is a Node.js flag whose next argument is code.
fn takes_code(flag: &OsStr) -> bool {
    matches!(flag.as_bytes(), b"-e" | b"--eval" | b"-p" | b"--print" | b"-pe")
}

/// Whether `arg` is one CPython option without a value, or several in one word (`-IS`).
fn is_plain_option(arg: &OsStr) -> bool {
    let letters = arg.as_bytes().strip_prefix(b"-").unwrap_or_default();
    !letters.is_empty() && letters.iter().all(|letter| b"bBEIOPsSu".contains(letter))
}

fn is_python(name: &[u8]) -> bool {
    name.strip_prefix(b"python")
        .is_some_and(|version| version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(kind: Kind, parked: &[&str], args: &[&str]) -> bool {
        let own = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        kind.fits(&own(parked), &own(args)).is_ok()
    }

    #[test]
    fn a_node_process_parked_without_e_serves_scripts_only() {
        for args in [&["s.js"][..], &["s.js", "-x"]] {
            assert!(fits(Kind::Node, &[], args), "{args:?}");
            assert!(!fits(Kind::Node, &["--no-warnings"], args), "{args:?}");
        }
        for args in [&["-e", "0"][..], &["--", "s.js"], &["--test"], &["-i"], &["-"], &["-", "x"], &[], &[""]] {
            assert!(!fits(Kind::Node, &[], args), "{args:?}");
        }
        assert!(fits(Kind::Node, &["--no-warnings"], &["--no-warnings", "s.js"]));
    }

    #[test]
    fn a_node_process_parked_with_e_serves_code_only() {
        for args in [&["-e", "0"][..], &["-e", "", "a", "-b"], &["-e", "0", "a"]] {
            assert!(fits(Kind::Node, &["-e"], args), "{args:?}");
        }
        for args in
            [&["-e"][..], &["-e", "-x"], &["-e", "0", "--no-warnings"], &["-e", "0", "-"], &["-p", "0"], &["s.js"]]
        {
            assert!(!fits(Kind::Node, &["-e"], args), "{args:?}");
        }
    }

    #[test]
    fn leading_options_become_the_arguments_of_the_parked_process() {
        let own = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        let options = |kind: Kind, args: &[&str]| kind.options(&own(args));
        assert_eq!(options(Kind::Main, &["-c", "x"]), Some(own(&[])));
        assert_eq!(options(Kind::Python, &["-c", "x"]), Some(own(&[])));
        assert_eq!(options(Kind::Python, &["-I", "-uB", "-m", "x"]), Some(own(&["-I", "-uB"])));
        assert_eq!(options(Kind::Python, &["-X", "dev", "-c", "x"]), None);
        assert_eq!(options(Kind::Python, &["-Wdefault", "-c", "x"]), None);
        assert_eq!(options(Kind::Python, &[]), None);
        assert_eq!(options(Kind::Node, &["-e", "x"]), Some(own(&["-e"])));
        assert_eq!(options(Kind::Node, &["s.js", "-e"]), Some(own(&[])));
        assert_eq!(options(Kind::Node, &["--test"]), None);
    }

    #[test]
    fn a_python_process_serves_code_modules_and_scripts() {
        for args in [&["-c", "0"][..], &["-m", "x"], &["s.py", "-x"], &["-"]] {
            assert!(fits(Kind::Python, &[], args), "{args:?}");
        }
        for args in [&[][..], &[""], &["-X", "dev"]] {
            assert!(!fits(Kind::Python, &[], args), "{args:?}");
        }
    }
}
