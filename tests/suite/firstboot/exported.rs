//! What `export firstboot` writes, checked by the programs that read it: systemd, Ignition and cloud-init.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{nodegate, program, success, text};
use crate::required::{Run, required};

const LABELS: &str = "node.kubernetes.io/worker-rwn=,pool=a";

fn export(arguments: &[&str]) -> String {
    let fixed: &[&str] = &["export", "firstboot", "--labels", LABELS];
    success(&nodegate(&[fixed, arguments].concat()).output().unwrap())
}

fn yaml(arguments: &[&str]) -> Value {
    serde_saphyr::from_str(&export(arguments)).unwrap()
}

/// A program that another package installs; where the tests require everything, its absence is a failure.
fn tool(name: &str, remedy: &str) -> Option<PathBuf> {
    let built = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/build")).arg("--print-dir").output();
    let built = built.ok().map(|output| PathBuf::from(text(&output.stdout).trim()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = built.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join(name));
    let found = found.into_iter().find(|program| program.is_file());
    required(found, Run::Full, &format!("there is no {name}: {remedy}"))
}

/// A root directory with a kubelet's unit and everything that is exported for it, and the drop-in of `install`.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let kubelet = root.path().join("usr/bin/kubelet");
    program(&kubelet);
    let units = root.path().join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    let unit = format!("[Service]\nExecStart=-{} --a=%H \\\n  \"--b=c d\" $KUBELET_EXTRA_ARGS\n", kubelet.display());
    fs::write(units.join("kubelet.service"), unit).unwrap();
    let helper = ["--helper", env!("CARGO_BIN_EXE_nodegate")];
    export(&[&["--format", "drop-in", "--directory", root.path().to_str().unwrap()] as &[&str], &helper].concat());
    let unit = units.join("kubelet.service");
    let own = nodegate(&["firstboot", "install", "--print", "--unit-file"]).arg(&unit).args(helper).output().unwrap();
    fs::write(units.join("kubelet.service.d/zz-nodegate-firstboot.conf"), success(&own)).unwrap();
    root
}

#[test]
fn systemd_accepts_the_files_and_reads_them_in_this_order() {
    let Some(analyze) = tool("systemd-analyze", "apt-get install systemd") else { return };
    let root = root();
    let units = root.path().join("etc/systemd/system");
    let verify = Command::new(&analyze)
        .args(["verify", "--man=no", "--generators=no", "--recursive-errors=no"])
        .args([units.join("kubelet.service"), units.join("nodegate-firstboot.service")])
        .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()))
        .output()
        .unwrap();
    let said = text(&verify.stderr);
    let about = |name: &str| said.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
    assert!(verify.status.success(), "{said}");
    assert_eq!((about("kubelet"), about("nodegate-firstboot")), (vec![], vec![]), "{said}");

    let root_flag = format!("--root={}", root.path().display());
    let cat =
        Command::new(&analyze).args([&root_flag, "cat-config", "systemd/system/kubelet.service"]).output().unwrap();
    let shown = success(&cat);
    let names = [
        "kubelet.service",
        "20-nodegate-firstboot.conf",
        "30-nodegate-extra-labels.conf",
        "zz-nodegate-firstboot.conf",
    ];
    let places: Vec<usize> = names.iter().map(|name| shown.find(&format!("{name}\n")).expect(name)).collect();
    assert!(places.is_sorted(), "{shown}");
}

#[test]
fn systemd_refuses_what_the_reader_of_units_refuses() {
    let Some(analyze) = tool("systemd-analyze", "apt-get install systemd") else { return };
    for line in ["ExecStart=/bin/true \"a", "ExecStart=a/b", "ExecStart=/bin/", "ExecStart=@/bin/true"] {
        let directory = tempfile::tempdir().unwrap();
        let unit = directory.path().join("probe.service");
        fs::write(&unit, format!("[Service]\n{line}\n")).unwrap();
        let verify = Command::new(&analyze).args(["verify", "--man=no"]).arg(&unit).output().unwrap();
        assert!(!verify.status.success(), "systemd accepts {line}: {}", text(&verify.stderr));
        let own = nodegate(&["firstboot", "install", "--print", "--unit-file"]).arg(&unit).output().unwrap();
        assert_eq!(own.status.code(), Some(2), "{line}");
    }
}

fn valid_ignition(validate: &Path, configuration: &Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.ign");
    fs::write(&file, configuration.to_string()).unwrap();
    let output = Command::new(validate).arg(&file).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{configuration}");
}

#[test]
fn ignition_accepts_its_configuration_and_that_of_a_machine_config() {
    let Some(validate) = tool("ignition-validate", "just tools ignition-validate") else { return };
    let digest = "ab".repeat(32);
    let url = ["--helper-url", "https://example.com/nodegate", "--helper-sha256", &digest];
    valid_ignition(&validate, &yaml(&["--format", "ignition"]));
    let downloads = yaml(&[&["--format", "ignition"] as &[&str], &url].concat());
    valid_ignition(&validate, &downloads);
    assert_eq!(downloads["storage"]["files"][0]["mode"], 0o755);
    for only in [&[] as &[&str], &["--only", "labels"]] {
        let object = yaml(&[&["--format", "machineconfig", "--role", "worker-rwn"], only].concat());
        assert_eq!(object["metadata"]["labels"]["machineconfiguration.openshift.io/role"], "worker-rwn");
        valid_ignition(&validate, &object["spec"]["config"]);
    }
}

#[test]
fn the_two_parts_have_between_them_what_the_whole_has() {
    let paths = |printed: String| -> Vec<String> {
        printed.lines().filter(|line| line.starts_with("# /etc/")).map(str::to_owned).collect()
    };
    let infra = nodegate(&["export", "firstboot", "--format", "drop-in", "--only", "infra"]).output().unwrap();
    let parts = [paths(success(&infra)), paths(export(&["--format", "drop-in", "--only", "labels"]))].concat();
    assert_eq!(parts, paths(export(&["--format", "drop-in"])));
    assert_eq!(parts.len(), 3);
    let name = |only: &str| yaml(&["--format", "machineconfig", "--only", only])["metadata"]["name"].clone();
    assert_eq!(name("labels"), "99-worker-nodegate-labels");
}

#[test]
fn cloud_init_writes_the_same_files_and_downloads_only_what_has_the_digest() {
    let digest = "AB".repeat(32);
    let url = ["--helper-url", "https://example.com/nodegate", "--helper-sha256", &digest];
    let printed = export(&[&["--format", "cloud-init"] as &[&str], &url].concat());
    assert!(printed.starts_with("#cloud-config\n"));
    let configuration: Value = serde_saphyr::from_str(&printed).unwrap();
    let root = root();
    for file in configuration["write_files"].as_array().unwrap() {
        let path = root.path().join(file["path"].as_str().unwrap().trim_start_matches('/'));
        let written =
            fs::read_to_string(path).unwrap().replace(env!("CARGO_BIN_EXE_nodegate"), "/usr/local/bin/nodegate");
        assert_eq!(file["content"], written.as_str());
    }
    let words: Vec<&str> =
        configuration["runcmd"][0].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    // Its own script, with a server that is a file.
    let target = root.path().join("nodegate");
    let download = |digest: &str| {
        let fake = root.path().join("bin/curl");
        super::executable(&fake, "#!/bin/sh\nprintf hello > \"$6\"\n");
        let path = format!("{}:/usr/bin:/bin", root.path().join("bin").display());
        let mut command = Command::new("sh");
        command.args(["-c", words[2]]).arg(&target).args([words[4], digest]).env("PATH", path);
        command.output().unwrap().status.success()
    };
    assert!(!download(words[5]) && !target.exists());
    assert!(download("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824") && target.exists());
    let Some(cloud_init) = cloud_init() else { return };
    let file = root.path().join("user-data");
    fs::write(&file, &printed).unwrap();
    let checked = Command::new(cloud_init).args(["schema", "--config-file"]).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

fn cloud_init() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join("cloud-init")).find(|program| program.is_file());
    if found.is_none() {
        eprintln!("the schema of cloud-init is not tested, there is no cloud-init: apt-get install cloud-init");
    }
    found
}

#[test]
fn programs_with_a_setting_for_labels_get_it() {
    let list = "node.kubernetes.io/worker-rwn=,pool=a";
    let at = |format: &str, pointer: &str| yaml(&["--format", format]).pointer(pointer).cloned().unwrap_or_default();
    assert_eq!(at("kubeadm", "/nodeRegistration/kubeletExtraArgs/0/value"), list);
    let template = "/spec/template/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs/0/value";
    assert_eq!(at("cluster-api", template), list);
    for format in ["k3s", "rke2"] {
        assert_eq!(at(format, "/node-label+"), serde_json::json!(["node.kubernetes.io/worker-rwn=", "pool=a"]));
    }
    assert_eq!(at("talos", "/machine/kubelet/extraArgs/node-labels"), list);
    assert_eq!(at("karpenter", "/spec/template/metadata/labels/pool"), "a");
}

#[test]
fn labels_of_kubernetes_that_a_kubelet_may_set_are_taken_and_others_are_not() {
    // As the kubelet's documentation of --node-labels lists them.
    let allowed = "beta.kubernetes.io/arch,beta.kubernetes.io/instance-type,beta.kubernetes.io/os,\
        failure-domain.beta.kubernetes.io/region,failure-domain.beta.kubernetes.io/zone,kubernetes.io/arch,\
        kubernetes.io/hostname,kubernetes.io/os,node.kubernetes.io/instance-type,topology.kubernetes.io/region,\
        topology.kubernetes.io/zone,kubelet.kubernetes.io/a,node.kubernetes.io/worker-rwn,example.com/a,a";
    let export = |key: &str| {
        let label = format!("{key}=x");
        nodegate(&["export", "firstboot", "--format", "drop-in", "--labels", &label]).output().unwrap()
    };
    for key in allowed.split(',') {
        assert!(success(&export(key)).contains(&format!("{key}=x")), "{key}");
    }
    for key in [
        "kubernetes.io/a",
        "node-role.kubernetes.io/worker-rwn",
        "node-restriction.kubernetes.io/a",
        "k8s.io/a",
        "topology.kubernetes.io/rack",
    ] {
        let output = export(key);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(key) && error.contains("NodeRestriction"), "{error}");
    }
}

#[test]
fn what_a_kubelet_may_not_set_and_what_a_unit_cannot_name_are_errors() {
    let digest = "ab".repeat(32);
    for (arguments, said) in [
        (&["--labels", "node-role.kubernetes.io/a=", "--format", "drop-in"] as &[&str], "NodeRestriction"),
        (&["--labels", "a=b c", "--format", "k3s"], "has a space"),
        (&["--labels", "a=b\nExecStart=/bin/sh", "--format", "drop-in"], "is not a valid label"),
        (&["--labels", "a=%H", "--format", "ignition"], "is not a valid label"),
        (&["--labels", ",", "--format", "drop-in"], "--labels has no label"),
        (&["--labels", "kubelet.kubernetes.io/a=b", "--format", "karpenter"], "Karpenter refuses"),
        (&["--format", "drop-in"], "--labels"),
        (&["--labels", "a=b", "--only", "infra", "--format", "drop-in"], "leave one of both out"),
        (&["--labels", "a=b", "--only", "labels", "--format", "talos"], "has no parts"),
        (&["--labels", "a=b", "--format", "drop-in", "--unit", "../x.service"], "not the name of a service"),
        (&["--labels", "a=b", "--format", "drop-in", "--helper", "/a b\n"], "not a path that a unit can name"),
        (
            &["--labels", "a=b", "--format", "ignition", "--helper-url", "http://x/", "--helper-sha256", &digest],
            "not an https URL",
        ),
        (
            &["--labels", "a=b", "--format", "ignition", "--helper-url", "https://x/", "--helper-sha256", "ab"],
            "not a SHA-256",
        ),
        (
            &["--labels", "a=b", "--format", "machineconfig", "--helper-url", "https://x/", "--helper-sha256", &digest],
            "downloads nothing",
        ),
    ] {
        let output = nodegate(&[&["export", "firstboot"], arguments].concat()).output().unwrap();
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(said), "{arguments:?}: {error}");
    }
}
