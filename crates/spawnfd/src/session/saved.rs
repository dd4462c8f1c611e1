// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exported variables of a shell, as its command `export -p` prints them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::env::Env;

/// An exported variable.
#[derive(Debug, PartialEq, Eq)]
struct Variable<'a> {
    name: &'a str,
    /// `None`: the variable has no value, or its value has characters that the shell writes in a way of its own.
    value: Option<Vec<u8>>,
    /// The command that exports the variable.
    text: &'a [u8],
}

/// The variables with which a new shell continues an earlier one.
#[derive(Debug)]
pub(super) struct Continued {
    /// The environment with which the shell starts.
    pub(super) env: Env,
    /// The commands that remove what a startup file may have set again, and set the other variables and the umask.
    pub(super) commands: Vec<u8>,
    /// The variables that the shell gets with its first command.
    pub(super) exported: Vec<(String, Vec<u8>)>,
}

impl Continued {
    /// `first` is the environment of the session's first shell. `saved` are the commands that set the exported variables and
    /// the umask. The shell must not start with the variables `late`.
    pub(super) fn new(first: &Env, saved: &[u8], late: &[&str]) -> Continued {
        // A shell cannot change a variable with another name.
        let names = first.iter().filter_map(|(name, _)| name.to_str().filter(|name| super::text::is_name(name)));
        let names: Vec<&str> = names.collect();
        let mut env = names.iter().fold(first.clone(), Env::unset);
        // `_`: dash needs a name.
        let mut commands = format!("unset -v _ {} 2>/dev/null\n", names.join(" ")).into_bytes();
        let mut exported = Vec::new();
        let (variables, rest) = parse(saved);
        for Variable { name, value, text } in variables {
            match value {
                Some(value) if late.contains(&name) => exported.push((name.to_owned(), value)),
                value => {
                    commands.extend(text);
                    env = value.into_iter().fold(env, |env, value| env.set(name, OsString::from_vec(value)));
                }
            }
        }
        commands.extend(rest);
        Continued { env, commands, exported }
    }
}

/// Parses the variables at the beginning of a text. Returns the rest of the text too.
fn parse(mut text: &[u8]) -> (Vec<Variable<'_>>, &[u8]) {
    let mut variables = Vec::new();
    while let Some((variable, rest)) = parse_variable(text) {
        variables.push(variable);
        text = rest;
    }
    (variables, text)
}

/// Parses a line such as `declare -x NAME="value"` (bash) or `export NAME='value'` (dash). A value may have newlines.
fn parse_variable(text: &[u8]) -> Option<(Variable<'_>, &[u8])> {
    let start = [&b"declare -x "[..], b"export "].into_iter().find(|start| text.starts_with(start))?.len();
    let end_of_name = start + text[start..].iter().position(|byte| matches!(byte, b'=' | b'\n'))?;
    let name = std::str::from_utf8(&text[start..end_of_name]).ok().filter(|name| super::text::is_name(name))?;
    let (value, end) = match text[end_of_name] {
        b'=' => parse_word(text, end_of_name + 1)?,
        _ => (None, end_of_name),
    };
    // The newline belongs to the command.
    let (text, rest) = text.split_at_checked(end + 1)?;
    Some((Variable { name, value, text }, rest))
}

/// Parses a word up to an unquoted newline. Returns its value, and the position of the newline.
fn parse_word(text: &[u8], start: usize) -> Option<(Option<Vec<u8>>, usize)> {
    let (mut value, mut is_plain, mut quote) = (Vec::new(), true, None);
    let mut bytes = text.iter().copied().enumerate().skip(start);
    while let Some((position, byte)) = bytes.next() {
        match (quote, byte) {
            (None, b'\n') => return Some((Some(value).filter(|_| is_plain), position)),
            (None, b'\'' | b'"') => quote = Some(byte),
            // Of these forms, this needs only the end: `$'…'` has escapes.
            (None, b'$') => (is_plain, quote) = (false, bytes.next().map(|_| b'$')),
            (None, b'\\') => value.push(bytes.next()?.1),
            (Some(b'$'), b'\'') | (Some(b'\''), b'\'') | (Some(b'"'), b'"') => quote = None,
            (Some(b'$' | b'"'), b'\\') => value.push(bytes.next()?.1),
            (_, byte) => value.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_their_values() {
        let saved = b"declare -x A=\"a \\\"b\\\" \\$c\nd\"\ndeclare -x NONE\ndeclare -x ODD=$'x\\'\\n'\nexport D='it'\"'\"'s'\n\
                      export EMPTY=''\numask 0022\n";
        let (variables, rest) = parse(saved);
        let found: Vec<(&str, Option<&[u8]>)> =
            variables.iter().map(|variable| (variable.name, variable.value.as_deref())).collect();
        let expected: [(&str, Option<&[u8]>); 5] =
            [("A", Some(b"a \"b\" $c\nd")), ("NONE", None), ("ODD", None), ("D", Some(b"it's")), ("EMPTY", Some(b""))];
        assert_eq!((&found[..], rest), (&expected[..], &b"umask 0022\n"[..]));
        let texts: Vec<&[u8]> = variables.iter().map(|variable| variable.text).chain([rest]).collect();
        assert_eq!(texts.concat(), saved);
    }

    #[test]
    fn a_shell_starts_with_the_saved_variables() {
        let first = Env::empty().set("SECRET", "s").set("KEPT", "1").set("a.b", "2").set("PS1", "x");
        let saved = b"export KEPT='3'\nexport NEW='n'\nexport PS1='$ '\numask 0022\n";
        let Continued { env, commands, exported } = Continued::new(&first, saved, &["PS1"]);
        let expected = Env::empty().set("a.b", "2").set("KEPT", "3").set("NEW", "n");
        assert!(env.iter().eq(expected.iter()), "{env:?}");
        assert_eq!(commands, b"unset -v _ KEPT PS1 SECRET 2>/dev/null\nexport KEPT='3'\nexport NEW='n'\numask 0022\n");
        assert_eq!(exported, [("PS1".to_owned(), b"$ ".to_vec())]);
    }
}
