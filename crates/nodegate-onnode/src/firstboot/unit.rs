//! Unit files as systemd reads them (`src/shared/conf-parser.c`).

use thiserror::Error;

/// systemd does not read a longer line.
const LINE_MAX: usize = 1 << 20;

/// What the files of a unit say about how its program is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The values of `ExecStart=` that are in force, in their order, as they are written.
    pub exec_start: Vec<String>,
    /// `IgnoreSIGPIPE=`.
    pub ignore_sigpipe: bool,
    /// The settings in force that hide programs from the unit, or run them in another security context.
    pub(super) hiding: Vec<&'static str>,
}

/// Settings with which a program that is there may not start in the unit (systemd.exec(5)).
const HIDING: [&str; 8] = [
    "RootDirectory",
    "RootImage",
    "NoExecPaths",
    "InaccessiblePaths",
    "TemporaryFileSystem",
    "User",
    "DynamicUser",
    "SELinuxContext",
];

/// Why the files of a unit cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitFault {
    /// systemd refuses the file.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The unit may not see the program that the drop-in starts.
    #[error("the unit has {0}=, so nodegate may be out of its reach, and the kubelet would not start")]
    OutOfReach(&'static str),
    /// There is nothing to start.
    #[error("the unit has no ExecStart=; check that the unit is a service and that it is installed")]
    NothingToStart,
}

impl Service {
    /// Reads the file of a unit and its drop-ins, in the order in which systemd reads them.
    ///
    /// # Errors
    /// If systemd would refuse a file, or nothing is started.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, UnitFault> {
        let mut service = Self { exec_start: Vec::new(), ignore_sigpipe: true, hiding: Vec::new() };
        for (file, bytes) in files {
            service.add(bytes).map_err(|(line, what)| UnitFault::Line { file: file.to_owned(), line, what })?;
        }
        match service.hiding.first() {
            _ if service.exec_start.is_empty() => Err(UnitFault::NothingToStart),
            Some(setting) => Err(UnitFault::OutOfReach(setting)),
            None => Ok(service),
        }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), (usize, &'static str)> {
        let mut in_service = false;
        for (number, line) in logical_lines(bytes)? {
            // systemd ignores a line that is not UTF-8.
            let Ok(line) = std::str::from_utf8(&line) else { continue };
            let line = trim(line);
            if let Some(section) = line.strip_prefix('[') {
                let name = section.strip_suffix(']').ok_or((number, "a section begins, but its ']' is missing"))?;
                in_service = name == "Service";
            } else if let Some((key, value)) = line.split_once('=').filter(|_| in_service) {
                self.assign(trim(key), trim(value));
            }
        }
        Ok(())
    }

    fn assign(&mut self, key: &str, value: &str) {
        match (key, value) {
            ("ExecStart", "") => self.exec_start.clear(),
            ("ExecStart", _) => self.exec_start.push(value.to_owned()),
            ("IgnoreSIGPIPE", _) => match value.to_ascii_lowercase().as_str() {
                "1" | "yes" | "y" | "true" | "t" | "on" => self.ignore_sigpipe = true,
                "0" | "no" | "n" | "false" | "f" | "off" => self.ignore_sigpipe = false,
                _ => {}
            },
            _ => {
                let Some(setting) = HIDING.into_iter().find(|setting| *setting == key) else { return };
                self.hiding.retain(|other| *other != setting);
                let is_off = value.is_empty()
                    || matches!(
                        (setting, value),
                        ("User", "root" | "0") | ("DynamicUser", "no" | "false" | "0" | "off")
                    );
                self.hiding.extend((!is_off).then_some(setting));
            }
        }
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches(super::words::WHITESPACE)
}

/// A line with its number.
type Line = (usize, Vec<u8>);

/// Lines without comments, continued ones joined, each with the number of its last part.
fn logical_lines(bytes: &[u8]) -> Result<Vec<Line>, (usize, &'static str)> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut found = Vec::new();
    let mut continued: Option<Vec<u8>> = None;
    let mut last = 0;
    for (number, line) in (1..).zip(physical_lines(bytes)) {
        last = number;
        let line = line.trim_ascii_start();
        if line.starts_with(b"#") || line.starts_with(b";") {
            continue;
        }
        if line.contains(&0) {
            return Err((number, "a line has a NUL byte"));
        }
        let mut whole = continued.take().unwrap_or_default();
        whole.extend(line);
        if whole.len() > LINE_MAX {
            return Err((number, "a line is longer than 1 MiB, which systemd does not read"));
        }
        // An even number of backslashes at the end is so many escaped ones.
        if whole.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1 {
            whole.pop();
            whole.push(b' ');
            continued = Some(whole);
        } else {
            found.push((number, whole));
        }
    }
    found.extend(continued.map(|whole| (last, whole)));
    Ok(found)
}

/// A line ends with `\n`, `\r` or both.
fn physical_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            rest = None;
            return Some(text);
        };
        let both = matches!((text[end], text.get(end + 1)), (b'\n', Some(b'\r')) | (b'\r', Some(b'\n')));
        rest = Some(&text[end + if both { 2 } else { 1 }..]);
        Some(&text[..end])
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(files: &[&str]) -> Result<Vec<String>, UnitFault> {
        Service::read(files.iter().map(|text| ("u.service", text.as_bytes()))).map(|service| service.exec_start)
    }

    #[test]
    fn lines_are_joined_and_drop_ins_add_and_reset() {
        for (files, expected) in [
            (&["[Service]\nExecStart=/k --a"] as &[&str], &["/k --a"] as &[&str]),
            (&["\u{feff}[Service]\r\nExecStart = /k\\\r\n  --a \\\r\n--b\r\n"], &["/k --a  --b"]),
            (&["[Service]\nExecStart=/k \\\n# comment\n; another\n  --a"], &["/k  --a"]),
            (&["[Service]\nExecStart=/k \\\n\n--a"], &["/k"]),
            (&["[Service]\nExecStart=/k a\\\\\nExecStart=/l"], &["/k a\\\\", "/l"]),
            (&["[Service]\nExecStart=/k \\"], &["/k"]),
            (&["[Service]\nExecStart=/a\nExecStart=/b"], &["/a", "/b"]),
            (&["[Service]\nExecStart=/a", "[Service]\nExecStart=\nExecStart=/b"], &["/b"]),
            (&["[Service]\nExecStart=/a", "ExecStart=/x\n[Unit]\nExecStart=/y\n[Service]\nExecStartPre=/z"], &["/a"]),
            (&["[Service]\n#ExecStart=/x\nExecStart=/a = b"], &["/a = b"]),
        ] {
            assert_eq!(read(files).unwrap(), expected, "{files:?}");
        }
        let latin = b"[Service]\nExecStart=/\xff\nExecStart=/a\n# \xff";
        assert_eq!(Service::read([("u", latin as &[u8])]).unwrap().exec_start, ["/a"]);
    }

    #[test]
    fn what_systemd_refuses_is_a_fault_with_its_place() {
        let said = |text: &str| read(&[text]).unwrap_err().to_string();
        assert_eq!(said("[Service]\n[Unit\nExecStart=/a"), "u.service:2: a section begins, but its ']' is missing");
        assert_eq!(said("[Service]\nExecStart=/a\0b"), "u.service:2: a line has a NUL byte");
        let long = format!("[Service]\nExecStart=/a {}", "x".repeat(LINE_MAX));
        assert!(said(&long).starts_with("u.service:2: a line is longer"));
        let continued = format!("[Service]\nExecStart=/a \\\n{}", format!("{}\\\n", "x".repeat(1000)).repeat(2000));
        assert!(said(&continued).contains("longer"));
        assert_eq!(read(&["[Service]\nExecStart=/a\nExecStart="]), Err(UnitFault::NothingToStart));
        assert_eq!(read(&[]), Err(UnitFault::NothingToStart));
    }

    #[test]
    fn the_last_valid_ignore_sigpipe_counts() {
        let read = |text: &str| Service::read([("u", text.as_bytes())]).unwrap().ignore_sigpipe;
        assert!(read("[Service]\nExecStart=/a"));
        assert!(!read("[Service]\nExecStart=/a\nIgnoreSIGPIPE=No\nIgnoreSIGPIPE=perhaps"));
        assert!(read("[Service]\nExecStart=/a\nIgnoreSIGPIPE=off\nIgnoreSIGPIPE=on"));
    }
}
