//! The bytes are the file of a unit and its drop-ins, which lines `---` separate.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use nodegate_onnode::firstboot::{ExtraLabels, NodeProgram, Service, drop_in};

const HELPER: &str = "/usr/local/bin/nodegate";

pub(super) fn check(bytes: &[u8]) {
    let files: Vec<&[u8]> = split(bytes);
    let named = || files.iter().map(|file| ("unit", *file));
    let service = Service::read(named());
    assert_eq!(service, Service::read(named()), "the same files are read as the same");
    labelled(bytes);
    let Ok(service) = service else { return };
    for value in &service.exec_start {
        assert!(!value.is_empty() && !value.contains(['\n', '\r', '\0']), "{value:?}");
    }
    let Ok(text) = drop_in(&service, HELPER) else { return };
    if text.is_empty() {
        return;
    }
    // systemd reads the drop-in after the files, and finds its commands only.
    let wrapped = Service::read(named().chain([("own", text.as_bytes())])).unwrap();
    assert_eq!(wrapped.ignore_sigpipe, service.ignore_sigpipe);
    assert_eq!(wrapped.exec_start.len(), text.matches("\nExecStart=").count() - 1, "{text:?}");
    assert!(wrapped.exec_start.iter().all(|value| value.contains(" firstboot exec")), "{text:?}");
    assert_eq!(drop_in(&wrapped, HELPER).as_deref(), Ok(""), "what is wrapped is not wrapped again: {text:?}");
}

/// The bytes as words of a command line: only labels change, and a second time changes nothing.
fn labelled(bytes: &[u8]) {
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == b' ').map(|word| OsString::from_vec(word.to_vec())).collect();
    let labels = ExtraLabels::parse("x=1,y=").labels;
    let Ok(program) = NodeProgram::find(words) else { return };
    let Ok(once) = program.with_labels(&labels, None) else { return };
    assert!(once.iter().any(|word| word.to_string_lossy().contains("x=1")), "{once:?}");
    let again = NodeProgram::find(once.clone()).unwrap().with_labels(&labels, None).unwrap();
    assert_eq!(again, once, "labels that are there are added again");
}

fn split(bytes: &[u8]) -> Vec<&[u8]> {
    const BETWEEN: &[u8] = b"\n---\n";
    let mut files = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(BETWEEN.len()).position(|window| window == BETWEEN) {
        files.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    files.push(rest);
    files
}
