//! The table of units, started by a real systemd: the manager of a user. It runs only with `NODEGATE_SYSTEMD_USER=1`, since it
//! writes units into `$XDG_RUNTIME_DIR/systemd/user`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::table::{Case, cases, prepare};
use super::{VARIABLE, success};

fn systemctl(arguments: &[&str]) -> String {
    success(&Command::new("systemctl").arg("--user").args(arguments).output().unwrap())
}

/// A value in quotes, of which systemd expands nothing.
fn quoted(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('%', "%%");
    format!("Environment=\"{name}={value}\"\n")
}

struct Unit {
    name: String,
    drop_ins: PathBuf,
    file: PathBuf,
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.drop_ins);
        let _ = fs::remove_file(&self.file);
    }
}

/// Writes the unit of a case, and a drop-in with which it starts and ends at once.
fn unit(case: &Case, number: usize, root: &Path) -> Unit {
    let directory = Path::new(&std::env::var_os("XDG_RUNTIME_DIR").unwrap()).join("systemd/user");
    let name = format!("nodegate-test-{number}.service");
    let drop_ins = directory.join(format!("{name}.d"));
    fs::create_dir_all(&drop_ins).unwrap();
    let unit = Unit { file: directory.join(&name), name, drop_ins };
    let placed =
        |text: &str| text.replace("ROOT", root.to_str().unwrap()).replace("BIN", &format!("{}/bin", root.display()));
    // What the unit of OpenShift needs besides is not there.
    fs::write(&unit.file, placed(&case.files[0]).replace("\nRequires=", "\nX-Requires=")).unwrap();
    for (number, file) in case.files.iter().enumerate().skip(1) {
        fs::write(unit.drop_ins.join(format!("{number}.conf")), placed(file)).unwrap();
    }
    let mut last =
        "[Service]\nType=oneshot\nRestart=no\nExecStartPre=\nExecStartPost=\nEnvironmentFile=\nEnvironment=\n"
            .to_owned();
    last.push_str(&format!("StandardOutput=truncate:{}/out\nStandardError=null\n", root.display()));
    case.environment.iter().for_each(|(name, value)| last.push_str(&quoted(name, &placed(value))));
    last.push_str(&quoted(VARIABLE, &case.labels));
    fs::write(unit.drop_ins.join("9.conf"), last).unwrap();
    unit
}

fn started(unit: &Unit, root: &Path) -> String {
    let _ = fs::remove_file(root.join("out"));
    systemctl(&["daemon-reload"]);
    systemctl(&["start", &unit.name]);
    let words = fs::read_to_string(root.join("out")).unwrap();
    words.lines().collect::<Vec<_>>().join("|").replace(root.to_str().unwrap(), "ROOT")
}

#[test]
fn a_real_systemd_starts_exactly_the_command_lines_of_the_table() {
    if std::env::var_os("NODEGATE_SYSTEMD_USER").is_none_or(|value| value != "1") {
        eprintln!("not tested with the user's systemd: set NODEGATE_SYSTEMD_USER=1");
        return;
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (number, case) in cases().iter().enumerate() {
        let root = prepare(case);
        let unit = unit(case, number, root.path());
        let here = |words: &str| words.replace("=host|", &format!("={}|", host.trim()));
        assert_eq!(started(&unit, root.path()), here(&case.plain), "{}", case.name);
        let helper = ["--helper", env!("CARGO_BIN_EXE_nodegate")];
        let install = ["firstboot", "install", "--user", "--unit", &unit.name];
        let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(install).args(helper).output().unwrap();
        success(&output);
        assert_eq!(started(&unit, root.path()), here(&case.expect), "{}", case.name);
        let own = root.path().join("until");
        fs::write(&own, "").unwrap();
        success(&Command::new(env!("CARGO_BIN_EXE_nodegate")).args(install).arg("--until").arg(&own).output().unwrap());
        assert_eq!(started(&unit, root.path()), here(&case.plain), "{}", case.name);
    }
}
