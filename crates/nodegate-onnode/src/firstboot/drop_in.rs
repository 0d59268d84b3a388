//! The drop-in that puts the helper in front of the commands of a unit (`config_parse_exec` in systemd's `src/core/load-fragment.c`).

use thiserror::Error;

use super::unit::Service;
use super::words::{self, Unbalanced, WHITESPACE};

/// Why a command cannot be wrapped. systemd refuses or ignores most of these itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DropInFault {
    /// A quote is open.
    #[error("ExecStart={0} has a quote that is not closed; systemd ignores such a line")]
    Unbalanced(String),
    /// There is no program.
    #[error("ExecStart={0} names no program that systemd can start")]
    NoProgram(String),
    /// The program has no path, so that systemd looks for it.
    #[error("ExecStart={0} names its program without a path; write the path")]
    NoPath(String),
    /// A line cannot end like this, but a command before `;` can.
    #[error("ExecStart={0} has a command that ends with a backslash and a space; quote its last word")]
    EscapedEnd(String),
    /// A prefix that this version does not know.
    #[error("ExecStart={0} has the prefix '|', which changes how the rest is read")]
    Shell(String),
}

/// One command of an `ExecStart=`.
struct Command<'a> {
    /// `-`, `:`, `+` and `!`.
    prefixes: String,
    /// `@`: the word after the program is what it gets as its name.
    is_named: bool,
    program: String,
    arguments: &'a str,
}

/// A drop-in in which `helper` starts each command of the service. It is empty if the helper starts all of them already.
///
/// # Errors
/// If a command is one that systemd does not start, or not as it is written.
pub fn drop_in(service: &Service, helper: &str) -> Result<String, DropInFault> {
    // Neither `$` nor `%` has a meaning in the path of the helper.
    let helper_word = quoted_keeping_specifiers(helper.as_bytes(), false).replace('%', "%%");
    let mut text = "# Written by nodegate firstboot install; do not edit. systemd expands the command as without it.\n\
                    [Service]\nExecStart=\n"
        .to_owned();
    let mut wraps = false;
    for value in &service.exec_start {
        for command in commands(value)? {
            let Command { prefixes, is_named, program, arguments } = &command;
            let mut line = format!("ExecStart={prefixes}");
            if starts_helper(&command, helper) {
                line.push_str(&format!("{}{program} {arguments}", if *is_named { "@" } else { "" }));
            } else {
                wraps = true;
                line.push_str(&helper_word);
                line.push_str(" firstboot exec");
                line.push_str(if *is_named { " --named" } else { "" });
                line.push_str(if service.ignore_sigpipe { "" } else { " --default-sigpipe" });
                line.push_str(&format!(" -- {program} {arguments}"));
            }
            text.push_str(line.trim_end_matches(WHITESPACE));
            text.push('\n');
        }
    }
    Ok(if wraps { text } else { String::new() })
}

/// Whether the command is one that a drop-in of this kind has already wrapped.
fn starts_helper(command: &Command<'_>, helper: &str) -> bool {
    let name = helper.rsplit('/').next();
    let mut arguments = command.arguments.split(WHITESPACE).filter(|word| !word.is_empty());
    command.program.rsplit('/').next() == name
        && arguments.next() == Some("firstboot")
        && arguments.next() == Some("exec")
}

/// The commands of a value, which `;` separates.
fn commands(value: &str) -> Result<Vec<Command<'_>>, DropInFault> {
    let mut found = Vec::new();
    let mut at = 0;
    let unbalanced = |_: Unbalanced| DropInFault::Unbalanced(value.to_owned());
    while let Some(first) = words::next(value, at).map_err(unbalanced)? {
        let start = first.raw.end;
        let mut end = start;
        at = value.len();
        while let Some(word) = words::next(value, end).map_err(unbalanced)? {
            if &value[word.raw.clone()] == ";" {
                at = word.raw.end;
                break;
            }
            end = word.raw.end;
        }
        found.push(command(value, &value[first.raw], &first.value, value[start..end].trim_start_matches(WHITESPACE))?);
    }
    Ok(found)
}

fn command<'a>(value: &str, raw: &str, word: &[u8], arguments: &'a str) -> Result<Command<'a>, DropInFault> {
    let count = prefix_length(word);
    let (prefixes, program) = word.split_at(count);
    if arguments.ends_with(WHITESPACE) {
        return Err(DropInFault::EscapedEnd(value.to_owned()));
    }
    if !program.is_empty() && !program.contains(&b'/') && program != b";" && !program.starts_with(b"|") {
        return Err(DropInFault::NoPath(value.to_owned()));
    }
    if program.starts_with(b"|") {
        return Err(DropInFault::Shell(value.to_owned()));
    }
    if program.ends_with(b"/") || program.is_empty() || !program.starts_with(b"/") {
        return Err(DropInFault::NoProgram(value.to_owned()));
    }
    let expands = !prefixes.contains(&b':');
    let is_plain = raw.as_bytes().get(count..) == Some(program) && !program.contains(&b'$');
    let program = if is_plain { raw[count..].to_owned() } else { quoted_keeping_specifiers(program, expands) };
    let is_named = prefixes.contains(&b'@');
    if is_named && words::next(arguments, 0).is_ok_and(|name| name.is_none()) {
        return Err(DropInFault::NoProgram(value.to_owned()));
    }
    let prefixes = prefixes.iter().filter(|prefix| **prefix != b'@').map(|prefix| char::from(*prefix)).collect();
    Ok(Command { prefixes, is_named, program, arguments })
}

/// How many bytes are prefixes. Each is one only once, but for `!!`; what privileges it gives is given once.
fn prefix_length(word: &[u8]) -> usize {
    let mut seen: Vec<u8> = Vec::new();
    for byte in word {
        let is_prefix = match byte {
            b'-' | b'@' | b':' => !seen.contains(byte),
            b'+' => !seen.iter().any(|prefix| matches!(prefix, b'+' | b'!')),
            b'!' => !seen.contains(&b'+') && seen.iter().filter(|prefix| **prefix == b'!').count() < 2,
            _ => false,
        };
        if !is_prefix {
            break;
        }
        seen.push(*byte);
    }
    seen.len()
}

/// One word that means these bytes, in which `%` still begins a specifier. `$` is no variable in the path of a program, but it is one in an argument.
fn quoted_keeping_specifiers(bytes: &[u8], expands: bool) -> String {
    let is_safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_.-+%@:,=".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_safe) {
        return bytes.iter().map(|byte| char::from(*byte)).collect();
    }
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'$' if expands => text.push_str("$$"),
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            0x20..0x7f => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text + "\""
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HELPER: &str = "/usr/local/bin/nodegate";

    fn wrapped(value: &str) -> Result<Vec<String>, DropInFault> {
        let service = Service { exec_start: vec![value.to_owned()], ignore_sigpipe: true, hiding: Vec::new() };
        let text = drop_in(&service, HELPER)?;
        Ok(text.lines().skip(3).map(|line| line.strip_prefix("ExecStart=").unwrap().to_owned()).collect())
    }

    #[test]
    fn the_helper_stands_before_the_program_and_the_rest_is_kept_as_it_is_written() {
        const N: &str = "/usr/local/bin/nodegate firstboot exec";
        for (value, expected) in [
            ("/usr/bin/kubelet", format!("{N} -- /usr/bin/kubelet")),
            ("/k --a=%H $B ${C} 'd  e' \\x20 \\z", format!("{N} -- /k --a=%H $B ${{C}} 'd  e' \\x20 \\z")),
            ("-/k a", format!("-{N} -- /k a")),
            ("-:+/k $A", format!("-:+{N} -- /k $A")),
            ("!!/k", format!("!!{N} -- /k")),
            ("@/k name a", format!("{N} --named -- /k name a")),
            ("-@/k name", format!("-{N} --named -- /k name")),
            ("/o$pt/k $A", format!("{N} -- \"/o$$pt/k\" $A")),
            (":/o$pt/k $A", format!(":{N} -- \"/o$pt/k\" $A")),
            ("/opt/%i/k", format!("{N} -- /opt/%i/k")),
            ("\"-/a b/k\" c", format!("-{N} -- \"/a b/k\" c")),
            ("\"/a b/%i\\x24\"", format!("{N} -- \"/a b/%i$$\"")),
            ("/k \\; ;x \";\"", format!("{N} -- /k \\; ;x \";\"")),
        ] {
            assert_eq!(wrapped(value).unwrap(), [expected], "{value}");
        }
        assert_eq!(wrapped("/a b ; -/c d ;").unwrap(), [format!("{N} -- /a b"), format!("-{N} -- /c d")]);
    }

    #[test]
    fn commands_that_the_helper_starts_are_left_alone() {
        let own = "/usr/local/bin/nodegate firstboot exec -- /k";
        assert_eq!(wrapped(own).unwrap(), [""; 0]);
        let both = wrapped(&format!("{own} ; /l")).unwrap();
        assert_eq!(both, [own, "/usr/local/bin/nodegate firstboot exec -- /l"]);
    }

    #[test]
    fn what_systemd_does_not_start_is_a_fault() {
        for (value, expected) in [
            ("/k \"a", "ExecStart=/k \"a has a quote that is not closed; systemd ignores such a line"),
            ("a/b", "ExecStart=a/b names no program that systemd can start"),
            ("/a/", "ExecStart=/a/ names no program that systemd can start"),
            ("-", "ExecStart=- names no program that systemd can start"),
            ("\"\" a", "ExecStart=\"\" a names no program that systemd can start"),
            ("; /k", "ExecStart=; /k names no program that systemd can start"),
            ("kubelet a", "ExecStart=kubelet a names its program without a path; write the path"),
            (
                "/k a\\  ; /l",
                "ExecStart=/k a\\  ; /l has a command that ends with a backslash and a space; quote its last word",
            ),
            ("@/k", "ExecStart=@/k names no program that systemd can start"),
            ("|/k", "ExecStart=|/k has the prefix '|', which changes how the rest is read"),
        ] {
            assert_eq!(wrapped(value).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn the_path_of_the_helper_is_one_word() {
        let service = Service { exec_start: vec!["/k".to_owned()], ignore_sigpipe: false, hiding: Vec::new() };
        let text = drop_in(&service, "/a b/$x%é/nodegate").unwrap();
        let expected = "\"/a b/$x%%\\xc3\\xa9/nodegate\" firstboot exec --default-sigpipe -- /k";
        assert_eq!(text.lines().last(), Some(format!("ExecStart={expected}").as_str()));
    }
}
