//! Units, environments and files that are made to break the helper. The kubelet starts in every case.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{VARIABLE, executable, nodegate, program, success, text};

/// A fake `systemctl` that answers from a file, and notes its calls.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new(unit: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let machine = Self { root };
        fs::write(machine.path("kubelet.service"), unit).unwrap();
        machine.drop_ins("");
        executable(
            &machine.path("bin/systemctl"),
            &format!(
                "#!/bin/sh\necho \"$@\" >> {0}/calls\n[ \"$2\" != show ] || cat {0}/answer\n",
                machine.root.path().display()
            ),
        );
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn drop_ins(&self, paths: &str) {
        let unit = self.path("kubelet.service");
        let answer =
            format!("LoadState=loaded\nNeedDaemonReload=no\nFragmentPath={}\nDropInPaths={paths}\n", unit.display());
        fs::write(self.path("answer"), answer).unwrap();
    }

    fn drop_in(&self) -> PathBuf {
        self.path("run/systemd/user/kubelet.service.d/zz-nodegate-firstboot.conf")
    }

    fn install(&self, arguments: &[&str]) -> Output {
        let mut command = nodegate(&["firstboot", "install", "--user"]);
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.args(arguments).env("PATH", path).env("XDG_RUNTIME_DIR", self.path("run")).output().unwrap()
    }

    fn reloads(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap_or_default().matches("daemon-reload").count()
    }
}

#[test]
fn the_drop_in_is_written_once_and_removed_when_the_kubelet_has_registered() {
    let unit = "[Service]\nExecStart=/usr/bin/kubelet --v=2\n";
    let machine = Machine::new(unit);
    let certificate = machine.path("kubelet-client-current.pem");
    let until = ["--until", certificate.to_str().unwrap()];
    success(&machine.install(&until));
    let written = fs::read_to_string(machine.drop_in()).unwrap();
    assert!(written.ends_with("nodegate firstboot exec -- /usr/bin/kubelet --v=2\n"), "{written}");
    assert_eq!(machine.reloads(), 1);

    // It sees through its own drop-in, and a second run changes nothing.
    machine.drop_ins(machine.drop_in().to_str().unwrap());
    success(&machine.install(&until));
    assert_eq!((fs::read_to_string(machine.drop_in()).unwrap(), machine.reloads()), (written, 1));

    fs::write(&certificate, "").unwrap();
    success(&machine.install(&until));
    assert!(!machine.drop_in().exists());
    assert_eq!(machine.reloads(), 2);
    assert_eq!(fs::read_to_string(machine.path("kubelet.service")).unwrap(), unit, "the unit stays as it is");
}

#[test]
fn a_unit_that_cannot_be_read_starts_as_it_is() {
    let machine = Machine::new("[Service]\nExecStart=/usr/bin/kubelet\n");
    let unit = machine.path("kubelet.service");
    let link = machine.path("loop.conf");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let large = format!("[Service]\n{}", "# filler\n".repeat(1_200_000));
    for (contents, drop_ins, said) in [
        ("[Service]\nExecStart=/usr/bin/kubelet \"--v=2\n", "", "a quote that is not closed"),
        ("[Service\nExecStart=/usr/bin/kubelet\n", "", "its ']' is missing"),
        ("[Unit]\nDescription=x\n", "", "has no ExecStart="),
        ("[Service]\nExecStart=|/usr/bin/kubelet\n", "", "prefix '|'"),
        ("[Service]\nExecStart=/a\0b\n", "", "NUL"),
        (large.as_str(), "", "larger than 1 MiB"),
        ("[Service]\nExecStart=/usr/bin/kubelet\n", link.to_str().unwrap(), "loop.conf"),
        ("[Service]\nExecStart=/usr/bin/kubelet\n", "/dev/zero", "/dev/zero is not a file"),
        ("[Service]\nExecStart=/usr/bin/kubelet\n", "/nonexistent.conf", "/nonexistent.conf"),
    ] {
        // What an earlier start wrote must not stay.
        fs::create_dir_all(machine.drop_in().parent().unwrap()).unwrap();
        fs::write(machine.drop_in(), "[Service]\nExecStart=/stale\n").unwrap();
        fs::write(&unit, contents).unwrap();
        machine.drop_ins(drop_ins);
        let output = machine.install(&[]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}: {error}");
        assert!(error.contains(said) && error.contains("kubelet.service starts without extra labels"), "{error}");
        assert!(!machine.drop_in().exists(), "{said}");
    }
}

#[test]
fn a_systemd_that_fails_or_refuses_the_drop_in_leaves_the_unit_as_it_is() {
    let machine = Machine::new("[Service]\nExecStart=/usr/bin/kubelet\n");
    let answer = fs::read_to_string(machine.path("answer")).unwrap();
    fs::write(machine.path("answer"), answer.replace("loaded", "bad-setting")).unwrap();
    let output = machine.install(&[]);
    assert!(text(&output.stderr).contains("systemd refuses the unit"), "{}", text(&output.stderr));
    assert!(!machine.drop_in().exists());
    executable(&machine.path("bin/systemctl"), "#!/bin/sh\nprintf 'no bus\\033[2J' >&2; exit 1\n");
    let output = machine.install(&[]);
    let said = text(&output.stderr);
    assert!(said.contains("systemctl show failed: no bus\\u001b[2J"), "{said}");
    fs::write(machine.path("answer"), "LoadState=not-found\nFragmentPath=\n").unwrap();
    executable(&machine.path("bin/systemctl"), &format!("#!/bin/sh\ncat {}\n", machine.path("answer").display()));
    assert!(text(&machine.install(&[]).stderr).contains("systemd knows no file of the unit kubelet.service"));
}

fn exec(program: &Path, flags: &[&str], labels: impl AsRef<std::ffi::OsStr>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["firstboot", "exec"]).args(flags).arg("--").arg(program).args(["-label-dir", "--v=2"]);
    command.env_clear().env(VARIABLE, labels).output().unwrap()
}

#[test]
fn whatever_the_environment_and_the_flags_hold_the_kubelet_starts_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = root.path().join("kubelet");
    program(&kubelet);
    let plain = "kubelet\n-label-dir\n--v=2\n";
    let huge = "a=b,".repeat(10_000);
    for (flags, labels, said) in [
        (&[] as &[&str], std::ffi::OsString::from_vec(b"a=\xff".to_vec()), "is not UTF-8"),
        (&["--new-flag"], "x=1".into(), "unexpected argument '--new-flag'"),
        (&[], "\u{1b}[2J=1".into(), "\\u{1b}"),
        (&[], "--config=/etc/passwd".into(), "is not a valid label key"),
        (&[], huge.replace("a=", "é=").into(), "is left out"),
    ] {
        let output = exec(&kubelet, flags, labels);
        assert_eq!(success(&output), plain, "{said}");
        let error = text(&output.stderr);
        assert!(error.contains(said) && !error.contains('\u{1b}'), "{said} in {}", &error[..error.len().min(2000)]);
    }
    // With the labels, one word is longer than the kernel allows.
    let many = (0..3_000).map(|number| format!("l{number}.example.com/a=b")).collect::<Vec<_>>().join(",");
    let there = format!("--node-labels={}", "z=1,".repeat(20_000));
    let mut command = nodegate(&["firstboot", "exec", "--", kubelet.to_str().unwrap(), &there]);
    let output = command.env(VARIABLE, many).output().unwrap();
    assert_eq!(success(&output), format!("kubelet\n{there}\n"));
    assert!(text(&output.stderr).contains("starting it without them"), "{}", text(&output.stderr));
}

#[test]
fn a_missing_kubelet_is_an_error_of_its_own() {
    let output = exec(Path::new("/nonexistent/kubelet"), &[], "x=1");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .ends_with("error: could not start /nonexistent/kubelet: No such file or directory (os error 2)\n")
    );
}

#[test]
fn closed_pipes_are_ignored_as_systemd_has_it_unless_the_unit_says_otherwise() {
    const SIGPIPE: u64 = 1 << 12;
    for (flags, ignored) in [(&[] as &[&str], SIGPIPE), (&["--default-sigpipe"], 0)] {
        let command = ["--", "/bin/grep", "SigIgn", "/proc/self/status"];
        let line = success(&nodegate(&[&["firstboot", "exec"], flags, &command].concat()).output().unwrap());
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask & SIGPIPE, ignored, "{flags:?}: {line}");
    }
}
