// SPDX-License-Identifier: MIT OR Apache-2.0
//! Environments as values. Variables are inherited, filtered or set, and encoded once for all
//! spawns.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

use spawnfd_sys::ArgBlock;

use crate::error::{Error, Result};
use crate::host::per_process::PerProcess;

/// The environment of a program, an immutable value.
///
/// # Examples
/// ```
/// use spawnfd::Env;
/// let env = Env::inherit().deny(["*_TOKEN", "*_KEY"]).set("LANG", "C.UTF-8").noninteractive();
/// assert_eq!(env.get("LANG"), Some("C.UTF-8".as_ref()));
/// ```
///
/// Cloning shares both the variables and their encoding.
///
/// `{:?}` prints the names of the variables only, because values are often secrets.
#[derive(Clone, Default)]
#[must_use = "an environment has no effect until a command uses it"]
pub struct Env(Arc<Variables>);

/// A change of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Keep only the variables whose names match one of these patterns.
    KeepOnly(Vec<OsString>),
    /// Remove the variables whose names match one of these patterns.
    Deny(Vec<OsString>),
    /// Set a variable to a value.
    Set(OsString, OsString),
    /// Remove a variable.
    Unset(OsString),
}

impl Change {
    /// The variable that this change sets or removes.
    fn variable(&self) -> Option<&OsStr> {
        match self {
            Change::Set(name, _) | Change::Unset(name) => Some(name),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Variables {
    by_name: BTreeMap<OsString, OsString>,
    /// The changes that made these variables from those of this process. `None`: they do not depend on them.
    changes: Option<Vec<Change>>,
    /// Names that were set here but are not valid. Inherited names are passed on unchecked.
    invalid_names: BTreeSet<OsString>,
    encoded: OnceLock<Arc<ArgBlock<'static>>>,
}

/// The variables of [`Env::noninteractive`]. `None` removes one.
pub const NONINTERACTIVE: [(&str, Option<&str>); 17] = [
    ("PAGER", Some("cat")),
    ("GIT_PAGER", Some("cat")),
    ("MANPAGER", Some("cat")),
    ("SYSTEMD_PAGER", Some("cat")),
    ("GIT_TERMINAL_PROMPT", Some("0")),
    ("GIT_EDITOR", Some("true")),
    ("EDITOR", Some("true")),
    ("VISUAL", Some("true")),
    ("DEBIAN_FRONTEND", Some("noninteractive")),
    ("PIP_NO_INPUT", Some("1")),
    ("npm_config_yes", Some("true")),
    ("NO_COLOR", Some("1")),
    ("CLICOLOR", Some("0")),
    ("TERM", Some("dumb")),
    ("CI", Some("1")),
    ("FORCE_COLOR", None),
    ("CLICOLOR_FORCE", None),
];

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")?;
        f.debug_set().entries(self.0.by_name.keys()).finish()
    }
}

/// A copy starts without an encoding, because the caller copies the variables only to change them.
impl Clone for Variables {
    fn clone(&self) -> Variables {
        Variables {
            by_name: self.by_name.clone(),
            changes: self.changes.clone(),
            invalid_names: self.invalid_names.clone(),
            encoded: OnceLock::new(),
        }
    }
}

impl Variables {
    fn set(&mut self, name: OsString, value: OsString) {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            self.invalid_names.insert(name.clone());
        }
        self.by_name.insert(name, value);
    }

    fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        self.by_name.retain(|name, _| keep(name.as_bytes()));
        self.invalid_names.retain(|name| keep(name.as_bytes()));
    }
}

impl Env {
    /// Returns the environment of this process as it is now. (A string without a name, such as
    /// `=x=1`, has the name `=x`, as in std.)
    ///
    /// If no variable has changed since the last call, the values of both calls share one encoding.
    pub fn inherit() -> Env {
        /// The variables at the last call, and the `Env` made from them.
        struct LastInherited(Vec<(OsString, OsString)>, Env);
        static LAST: PerProcess<Option<LastInherited>> = PerProcess::new(None);

        let now: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let mut last = LAST.lock();
        match &*last {
            Some(LastInherited(variables, env)) if *variables == now => env.clone(),
            _ => {
                // If a name occurs twice, the first value counts, as for getenv(3).
                let by_name = now.iter().rev().cloned().collect();
                let env = Env(Arc::new(Variables { by_name, changes: Some(Vec::new()), ..Variables::default() }));
                *last = Some(LastInherited(now, env.clone()));
                env
            }
        }
    }

    /// Creates an environment without variables.
    pub fn empty() -> Env {
        Env::default()
    }

    /// Creates an environment from exactly these `name=value` strings, in this order. Repeated
    /// names, and names that [`Env::set`] would reject, stay. A later `set`, `unset` or `deny`
    /// sorts the strings and keeps one per name.
    ///
    /// # Errors
    /// EINVAL: a string contains a NUL.
    pub fn verbatim<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Result<Env> {
        let mut block = ArgBlock::builder();
        let mut by_name = BTreeMap::new();
        for string in strings {
            let string = string.as_ref();
            if !block.push(&[string]) {
                // The value may be a secret.
                let name = string.split(|&byte| byte == b'=').next().unwrap_or_default();
                return Err(has_nul(OsStr::from_bytes(name)));
            }
            if let Some(end) = string.iter().position(|&byte| byte == b'=') {
                let (name, value) = (OsStr::from_bytes(&string[..end]), OsStr::from_bytes(&string[end + 1..]));
                // If a name occurs twice, the first value counts, as for getenv(3).
                by_name.entry(name.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        let encoded = OnceLock::from(Arc::new(block.finish()));
        Ok(Env(Arc::new(Variables { by_name, encoded, ..Variables::default() })))
    }

    /// Returns this process's variables whose names match one of `patterns` (`*` stands for any
    /// characters, `?` for one).
    pub fn only<S: AsRef<OsStr>>(patterns: impl IntoIterator<Item = S>) -> Env {
        Env::inherit().keep_only(patterns)
    }

    /// Keeps only the variables whose names match one of `patterns`.
    pub fn keep_only<S: AsRef<OsStr>>(self, patterns: impl IntoIterator<Item = S>) -> Env {
        self.apply(Change::KeepOnly(owned(patterns)))
    }

    /// Removes the variables whose names match one of `patterns`.
    ///
    /// Without a sandbox, a program of the same user can still read them in `/proc/PID/environ` of this process.
    pub fn deny<S: AsRef<OsStr>>(self, patterns: impl IntoIterator<Item = S>) -> Env {
        self.apply(Change::Deny(owned(patterns)))
    }

    /// Sets one variable. The spawn reports a name that is not valid: empty, or with `=` or NUL.
    pub fn set(self, name: impl Into<OsString>, value: impl Into<OsString>) -> Env {
        self.apply(Change::Set(name.into(), value.into()))
    }

    /// Removes one variable.
    pub fn unset(self, name: impl AsRef<OsStr>) -> Env {
        self.apply(Change::Unset(name.as_ref().to_owned()))
    }

    /// Sets variables that stop common tools from prompting, paging and colouring their output.
    ///
    /// Sets `PAGER`, `GIT_PAGER`, `MANPAGER` and `SYSTEMD_PAGER` to `cat`, `GIT_TERMINAL_PROMPT=0`, `GIT_EDITOR`,
    /// `EDITOR` and `VISUAL` to `true`, `DEBIAN_FRONTEND=noninteractive`, `PIP_NO_INPUT=1`, `npm_config_yes=true`,
    /// `NO_COLOR=1`, `CLICOLOR=0`, `TERM=dumb`, `CI=1`. Removes the variables that force colour.
    pub fn noninteractive(mut self) -> Env {
        for (name, value) in NONINTERACTIVE {
            self = match value {
                Some(value) => self.set(name, value),
                None => self.unset(name),
            };
        }
        self
    }

    /// A variable's value.
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.0.by_name.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.by_name.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The names of the variables whose value differs from that in `base`, in `base` only, or here only.
    pub(crate) fn names_changed_from<'a>(&'a self, base: &'a Env) -> BTreeSet<&'a OsStr> {
        let names = self.0.by_name.keys().chain(base.0.by_name.keys()).map(OsString::as_os_str);
        names.filter(|name| self.get(name) != base.get(name)).collect()
    }

    /// Changes the variables. Copies them first if another `Env` shares them.
    pub(crate) fn apply(mut self, change: Change) -> Env {
        let variables = Arc::make_mut(&mut self.0);
        variables.encoded = OnceLock::new();
        if let Some(changes) = &mut variables.changes {
            // Only the last change of a variable has an effect.
            changes.retain(|earlier| change.variable().is_none() || earlier.variable() != change.variable());
            changes.push(change.clone());
        }
        match change {
            Change::KeepOnly(patterns) => variables.retain(|name| matches_one(&patterns, name)),
            Change::Deny(patterns) => variables.retain(|name| !matches_one(&patterns, name)),
            Change::Set(name, value) => variables.set(name, value),
            Change::Unset(unset) => {
                variables.by_name.remove(&unset);
                variables.invalid_names.remove(&unset);
            }
        }
        self
    }

    /// The changes that made this environment from that of this process. `None`: it does not depend on it.
    #[cfg(feature = "remote")]
    pub(crate) fn changes(&self) -> Option<&[Change]> {
        self.0.changes.as_deref()
    }

    /// The block for execve, encoded once.
    pub(crate) fn encode(&self) -> Result<Arc<ArgBlock<'static>>> {
        if let Some(encoded) = self.0.encoded.get() {
            return Ok(encoded.clone());
        }
        if let Some(name) = self.0.invalid_names.first() {
            let message = format!("the name of an environment variable must not be empty or contain '=', got {name:?}");
            return Err(Error::invalid(format!("env({name:?})")).saying(message));
        }
        let block = encode(self.0.by_name.iter())?;
        Ok(self.0.encoded.get_or_init(|| Arc::new(block)).clone())
    }
}

/// The error for an environment variable whose name or value contains a NUL.
fn has_nul(name: &OsStr) -> Error {
    let message = format!("an environment variable contains a NUL byte: {name:?}");
    Error::invalid(format!("env({name:?})")).saying(message)
}

/// Encodes the variables as `name=value` strings.
pub(crate) fn encode<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    variables: impl Iterator<Item = (N, V)>,
) -> Result<ArgBlock<'static>> {
    let mut block = ArgBlock::builder();
    for (name, value) in variables {
        let parts = [name.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()];
        if !block.push(&parts) {
            return Err(has_nul(name.as_ref()));
        }
    }
    Ok(block.finish())
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Env {
        let mut all = Variables::default();
        variables.into_iter().for_each(|(name, value)| all.set(name.into(), value.into()));
        Env(Arc::new(all))
    }
}

fn owned<S: AsRef<OsStr>>(patterns: impl IntoIterator<Item = S>) -> Vec<OsString> {
    patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect()
}

fn matches_one(patterns: &[OsString], name: &[u8]) -> bool {
    patterns.iter().any(|pattern| matches(pattern.as_bytes(), name))
}

/// Whether a pattern of literal bytes, `*` and `?` matches the whole name.
fn matches(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // The place to continue after a mismatch: the pattern after the last `*`, and the part of the name after the
    // bytes that this `*` has matched. After a mismatch, the last `*` matches one more byte. An earlier `*` never
    // needs to match more.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                pattern = rest;
                again = Some((rest, name));
            }
            (Some((wanted, rest)), Some((found, left))) if *wanted == b'?' || wanted == found => {
                (pattern, name) = (rest, left);
            }
            _ => match again {
                Some((rest, [_, left @ ..])) => {
                    (pattern, name) = (rest, left);
                    again = Some((rest, left));
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn debug_output_hides_values() {
        let env = Env::empty().set("TOKEN", "secret").set("LANG", "C");
        assert_eq!(format!("{env:?}"), r#"Env{"LANG", "TOKEN"}"#);
        let verbatim = Env::verbatim(["TOKEN=secret"]).unwrap();
        assert_eq!(format!("{verbatim:?} {:?}", verbatim.encode().unwrap()), r#"Env{"TOKEN"} ArgBlock(1 strings)"#);
    }

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("*_KEY", "API_KEY", true),
            ("*_KEY", "KEY", false),
            ("A?C*", "ABC", true),
            ("", "", true),
            ("*", "X", true),
            ("AB", "ABC", false),
            ("A*B*C", "AxBxBxC", true),
            ("A*B*C", "AxBxBxCx", false),
            ("**", "", true),
            ("*?", "", false),
            ("*AB", "AAB", true),
            ("A**?", "AB", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        // Trying all combinations of the `*` would take years.
        assert!(!matches(format!("{}B", "*A".repeat(30)).as_bytes(), "A".repeat(200).as_bytes()));
    }

    #[test]
    fn verbatim_strings_are_unchanged() {
        let env = Env::verbatim(["B=2", "A=1", "B=3", "=x", "word"]).unwrap();
        let strings = |env: &Env| env.encode().unwrap().iter().map(CStr::to_owned).collect::<Vec<_>>();
        assert_eq!(strings(&env), [c"B=2", c"A=1", c"B=3", c"=x", c"word"].map(CStr::to_owned));
        assert_eq!(env.get("B"), Some("2".as_ref()));
        assert_eq!(strings(&env.clone().unset("").set("C", "4")), [c"A=1", c"B=2", c"C=4"].map(CStr::to_owned));
        assert_eq!(strings(&env.set("C", "4")), [c"=x", c"A=1", c"B=2", c"C=4"].map(CStr::to_owned));
        assert_eq!(Env::verbatim(["A=\0"]).unwrap_err().errno(), spawnfd_sys::Errno::EINVAL);
    }

    #[test]
    fn errors_hide_values() {
        let set = Env::empty().set("TOKEN", "secret\0").encode().unwrap_err();
        for error in [Env::verbatim(["A=1", "TOKEN=secret\0"]).unwrap_err(), set] {
            let detail = r#"[validate: env("TOKEN") = -1 EINVAL]"#;
            assert_eq!(error.to_string(), format!(r#"an environment variable contains a NUL byte: "TOKEN" {detail}"#));
        }
    }

    #[test]
    fn an_unchanged_environment_is_encoded_once() {
        let (first, second) = (Env::inherit(), Env::inherit());
        assert!(Arc::ptr_eq(&first.encode().unwrap(), &second.encode().unwrap()));
        let changed = second.set("SPAWNFD_TEST_CHANGED", "1");
        assert!(!Arc::ptr_eq(&first.encode().unwrap(), &changed.encode().unwrap()));
        assert_eq!(Env::inherit().get("SPAWNFD_TEST_CHANGED"), None);
    }

    #[test]
    fn invalid_names_and_values_are_refused() {
        for env in [Env::empty().set("", "x"), Env::empty().set("A=B", "x"), Env::empty().set("A", "x\0y")] {
            assert_eq!(env.encode().unwrap_err().errno(), spawnfd_sys::Errno::EINVAL);
        }
        let invalid_names = Env::empty().set("=B", "x").set("A", "1");
        assert!(invalid_names.encode().is_err() && [("", "x")].into_iter().collect::<Env>().encode().is_err());
        let encoded = invalid_names.deny(["=*"]).encode().unwrap();
        assert_eq!(encoded.iter().collect::<Vec<_>>(), [c"A=1"]);
        let encoded = Env::empty().set("A", "1").encode().unwrap();
        assert_eq!(encoded.iter().collect::<Vec<_>>(), [c"A=1"]);
    }
}
