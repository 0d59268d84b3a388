//! `nodegate probe` on trees with the layout of sysfs. `tests/data/machines.txt` describes them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::shared::output::assert_conforms;

const MACHINES: &str = "tests/data/machines.txt";
const FEATURE_FILE_MAX: usize = 65_536;

/// A machine: its name, the lines that describe it, and what `probe` prints there.
struct Machine {
    name: String,
    lines: Vec<String>,
    printed: String,
}

fn machines() -> (String, Vec<Machine>) {
    let text = fs::read_to_string(path()).unwrap();
    let mut parts = text.split("\n== ");
    let head = parts.next().unwrap().to_owned();
    let machine = |part: &str| {
        let (name, rest) = part.split_once('\n').unwrap();
        let (lines, printed) = rest.split_once("--\n").unwrap();
        Machine {
            name: name.to_owned(),
            lines: lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect(),
            printed: printed.trim_end().to_owned(),
        }
    };
    (head, parts.map(machine).collect())
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(MACHINES)
}

/// Makes what one line of a description says.
fn make(root: &Path, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let write = |path: &str, bytes: &[u8]| {
        let path = root.join(OsStr::from_bytes(&unescape(path)));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let link = |path: &str, target: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    };
    match words.as_slice() {
        ["pci", address, ids, class, rest @ ..] => {
            let (vendor, device) = ids.split_once(':').unwrap();
            let at = format!("devices/pci0000:00/{address}");
            for (file, value) in [("vendor", vendor), ("device", device), ("class", class)] {
                write(&format!("{at}/{file}"), format!("0x{value}\n").as_bytes());
            }
            link(&format!("bus/pci/devices/{address}"), &format!("../../../{at}"));
            if let ["of", physical] = rest {
                link(&format!("{at}/physfn"), &format!("../{physical}"));
            }
        }
        ["usb", port, ids] => {
            let (vendor, device) = ids.split_once(':').unwrap();
            write(&format!("bus/usb/devices/{port}/idVendor"), format!("{vendor}\n").as_bytes());
            write(&format!("bus/usb/devices/{port}/idProduct"), format!("{device}\n").as_bytes());
        }
        ["directory", path] => fs::create_dir_all(root.join(OsStr::from_bytes(&unescape(path)))).unwrap(),
        ["link", path, target] => link(path, target),
        ["long", path, bytes] => write(path, &vec![b'1'; bytes.parse().unwrap()]),
        ["pipe", path] => {
            let made = Command::new("mkfifo").arg(root.join(path)).status().unwrap();
            assert!(made.success());
        }
        ["remove", path] => fs::remove_file(root.join(path)).unwrap(),
        ["file", path, text @ ..] => write(path, &unescape(&text.join(" "))),
        _ => panic!("{line}"),
    }
}

/// `\n` and `\xff` in the text as bytes.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        (rest, bytes) = match (first, more) {
            (b'\\', [b'n', more @ ..]) => (more, [bytes, vec![b'\n']].concat()),
            (b'\\', [b'x', more @ ..]) => {
                let byte = u8::from_str_radix(std::str::from_utf8(&more[..2]).unwrap(), 16).unwrap();
                (&more[2..], [bytes, vec![byte]].concat())
            }
            (byte, more) => (more, [bytes, vec![*byte]].concat()),
        };
    }
    bytes
}

fn tree(lines: &[String]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bus")).unwrap();
    for line in lines {
        make(root.path(), line);
    }
    root
}

fn probe(sysfs: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["probe", "--sysfs"]).arg(sysfs).args(more).env_remove("NODEGATE_SYSFS");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn probe_prints_what_the_table_of_machines_says() {
    let (head, machines) = machines();
    assert!(machines.len() >= 15);
    let mut written = head;
    let mut wrong = Vec::new();
    for machine in &machines {
        let root = tree(&machine.lines);
        let output = probe(root.path(), &[]);
        assert!(output.status.success(), "{}", machine.name);
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr)).trim_end().to_owned();
        if printed != machine.printed {
            wrong.push(format!("{}:\n{printed}\ninstead of\n{}", machine.name, machine.printed));
        }
        written += &format!("\n== {}\n{}\n--\n{printed}\n", machine.name, machine.lines.join("\n"));
    }
    if std::env::var_os("NODEGATE_GENERATE").is_some() {
        fs::write(path(), written).unwrap();
        return;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_format_says_the_same() {
    for machine in machines().1 {
        let root = tree(&machine.lines);
        let json: Value = serde_json::from_slice(&probe(root.path(), &["-o", "json"]).stdout).unwrap();
        assert_conforms("probe", &json);
        let labels: Vec<String> = json["labels"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap()))
            .collect();
        let lines: Vec<String> =
            text(&probe(root.path(), &["-o", "labels"]).stdout).lines().map(str::to_owned).collect();
        assert_eq!(lines, labels, "{}", machine.name);
        let file = root.path().join("nodegate");
        let output = probe(root.path(), &["--feature-file", file.to_str().unwrap()]);
        assert!(output.status.success() && output.stdout.is_empty(), "{}", machine.name);
        let written = fs::read_to_string(&file).unwrap();
        let features: Vec<&str> = written.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(features, labels, "{}", machine.name);
        assert!(written.len() < FEATURE_FILE_MAX);
        assert!(!root.path().join(".nodegate.new").exists());
        for device in json["unknown"].as_array().unwrap() {
            assert!(device.get("short").is_none(), "{}", machine.name);
        }
    }
}

#[test]
fn labels_are_such_as_the_api_server_takes() {
    use nodegate_policy::api::names::{check_label_key, check_label_value};
    for machine in machines().1 {
        let root = tree(&machine.lines);
        for line in text(&probe(root.path(), &["-o", "labels"]).stdout).lines() {
            let (key, value) = line.split_once('=').unwrap();
            check_label_key(key).unwrap();
            check_label_value(value).unwrap();
        }
    }
}

#[test]
fn a_feature_file_expires_replaces_links_and_can_be_read_by_all() {
    let root = tree(&["pci 0000:01:00.0 10de:2f04 030000".to_owned()]);
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (directory.path().join("nodegate"), directory.path().join("other"));
    fs::write(&other, "untouched").unwrap();
    symlink(&other, &file).unwrap();
    // With a umask that hides new files.
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 077; exec "$0" "$@""#, env!("CARGO_BIN_EXE_nodegate"), "probe", "--sysfs"]);
    command.arg(root.path()).arg("--feature-file").arg(&file).args(["--expire-after", "2h"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    let written = fs::read_to_string(&file).unwrap();
    let expiry = written.lines().find_map(|line| line.strip_prefix("# +expiry-time=")).unwrap();
    let left = expiry.parse::<jiff::Timestamp>().unwrap().duration_since(jiff::Timestamp::now());
    assert!((7000..=7200).contains(&left.as_secs()), "{expiry}");
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn wrong_arguments_are_told_with_what_to_do() {
    let root = tree(&[]);
    let at = root.path().to_str().unwrap();
    let not_ids = root.path().join("not.ids");
    fs::write(&not_ids, "").unwrap();
    let feature_file = format!("{at}/missing/nodegate");
    for (arguments, told) in [
        (vec!["--sysfs", "/does/not/exist"], "give the directory of sysfs"),
        (vec!["--sysfs", at, "--pci-ids", not_ids.to_str().unwrap()], "it is not a pci.ids file"),
        (vec!["--sysfs", at, "--pci-ids", "/does/not/exist"], "give a pci.ids file"),
        (vec!["--sysfs", at, "--feature-file", &feature_file], "could not write"),
        (vec!["--sysfs", at, "--every", "1h"], "--feature-file"),
        (vec!["--sysfs", at, "--feature-file", &feature_file, "--every", "0s"], "set a longer pause"),
        (
            vec!["--sysfs", at, "--feature-file", &feature_file, "--every", "1h", "--expire-after", "1h"],
            "labels would expire while probe runs",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("probe").args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(told), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn names_of_newer_devices_can_be_given() {
    let root = tree(&["pci 0000:01:00.0 10de:fff0 030200".to_owned()]);
    let ids = root.path().join("pci.ids");
    fs::write(&ids, "10de  NVIDIA Corporation\n\tfff0  XX100 [X100 SXM9 512GB]\n").unwrap();
    let output = probe(root.path(), &["--pci-ids", ids.to_str().unwrap(), "-o", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["devices"][0]["short"], "x100-sxm9");
    assert_eq!(json["devices"][0]["memoryBytes"], 512_u64 << 30);
}

#[test]
fn probe_repeats_until_it_is_told_to_end() {
    let root = tree(&["pci 0000:01:00.0 10de:2f04 030000".to_owned()]);
    let file = root.path().join("nodegate");
    let mut running = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["probe", "--sysfs", root.path().to_str().unwrap(), "--every", "1s", "--feature-file"])
        .arg(&file)
        .spawn()
        .unwrap();
    let wait_for_file = || {
        let start = std::time::Instant::now();
        while !file.exists() {
            assert!(start.elapsed().as_secs() < 60, "no feature file");
            std::thread::yield_now();
        }
    };
    wait_for_file();
    fs::remove_file(&file).unwrap();
    wait_for_file();
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
}
