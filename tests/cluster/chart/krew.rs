//! The manifest of the kubectl plugin, taken by the real krew, which `tests/tools/krew/build` builds. Without it this test says so and
//! passes; in the full run it fails.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::items;
use crate::control_plane::run;
use crate::required::{Run, required};

const TARGETS: [&str; 4] =
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-apple-darwin"];
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn krew() -> Option<PathBuf> {
    let built = run(Command::new(root().join("tests/tools/krew/build")).arg("--print-dir"), None).unwrap();
    let found = Some(Path::new(built.trim()).join("krew")).filter(|program| program.is_file());
    required(found, Run::Full, "there is no krew; build it: tests/tools/krew/build")
}

fn fill(downloads: &str, sums: &Path) -> Result<String, String> {
    run(Command::new(root().join("deploy/krew/fill")).arg(downloads).arg(sums), None)
}

/// An archive as a release packs it, and its checksum as sha256sum prints it.
fn archive(at: &Path, target: &str) -> String {
    let name = format!("nodegate-{VERSION}-{target}");
    fs::create_dir(at.join(&name)).unwrap();
    // It says by which name it was started, as the real one goes by that name.
    fs::write(at.join(&name).join("nodegate"), "#!/bin/sh\necho \"started as ${0##*/} $*\"\n").unwrap();
    fs::copy(root().join("LICENSE"), at.join(&name).join("LICENSE")).unwrap();
    run(Command::new("chmod").arg("755").arg(at.join(&name).join("nodegate")), None).unwrap();
    let packed = format!("{name}.tar.gz");
    run(Command::new("tar").args(["-czf", &packed, &name]).current_dir(at), None).unwrap();
    run(Command::new("sha256sum").arg(&packed).current_dir(at), None).unwrap()
}

#[test]
fn krew_installs_the_plugin_by_the_manifest_of_a_release() {
    let at = tempfile::tempdir().unwrap();
    let sums = at.path().join("SHA256SUMS");
    fs::write(&sums, TARGETS.map(|target| archive(at.path(), target)).concat()).unwrap();
    let text = fill("https://example.com/it's/v1&x/", &sums).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    assert_eq!(items(&manifest["spec"]["platforms"]).len(), TARGETS.len());
    for (platform, target) in items(&manifest["spec"]["platforms"]).iter().zip(TARGETS) {
        let packed = format!("nodegate-{VERSION}-{target}.tar.gz");
        assert_eq!(platform["uri"], format!("https://example.com/it's/v1&x/{packed}"));
        let line = fs::read_to_string(&sums).unwrap().lines().find(|line| line.ends_with(&packed)).unwrap().to_owned();
        assert!(line.starts_with(platform["sha256"].as_str().unwrap()), "{line}");
    }

    let Some(krew) = krew() else { return };
    let file = at.path().join("nodegate.yaml");
    fs::write(&file, &text).unwrap();
    let home = at.path().join("krew");
    // The one for this machine, and one whose checksum is another.
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let packed = at.path().join(format!("nodegate-{VERSION}-{target}.tar.gz"));
    let install = |archive: &Path| {
        let mut command = Command::new(&krew);
        command.env("KREW_ROOT", &home).env("KREW_NO_UPGRADE_CHECK", "1");
        run(command.arg("install").arg("--manifest").arg(&file).arg("--archive").arg(archive), None)
    };
    let other = at.path().join(format!("nodegate-{VERSION}-x86_64-apple-darwin.tar.gz"));
    let refused = install(&other).unwrap_err();
    assert!(refused.contains("checksum"), "{refused}");
    install(&packed).unwrap();
    let said = run(Command::new(home.join("bin/kubectl-nodegate")).arg("plan"), None).unwrap();
    assert_eq!(said.trim(), "started as kubectl-nodegate plan");
    assert!(home.join(format!("store/nodegate/v{VERSION}/LICENSE")).is_file());
}

#[test]
fn a_manifest_without_all_checksums_or_with_another_url_is_refused_with_a_remedy() {
    let at = tempfile::tempdir().unwrap();
    let sums = at.path().join("SHA256SUMS");
    for (text, missing) in [
        (String::new(), TARGETS[0]),
        (format!("{}  nodegate-{VERSION}-{}.tar.gz\n", "0".repeat(64), TARGETS[0]), TARGETS[1]),
        (format!("{}  nodegate-{VERSION}-{}.tar.gz\n", "0".repeat(63), TARGETS[0]), TARGETS[0]),
    ] {
        fs::write(&sums, text).unwrap();
        let refused = fill("https://example.com", &sums).unwrap_err();
        let said = format!("has no checksum of nodegate-{VERSION}-{missing}.tar.gz: build that archive too");
        assert!(refused.contains(&said), "{refused}");
    }
    let refused = fill("http://example.com", &sums).unwrap_err();
    assert!(refused.contains("DOWNLOADS must begin with https://"), "{refused}");
    let refused = fill("https://example.com", &at.path().join("absent")).unwrap_err();
    assert!(refused.contains("absent cannot be read: make the release first"), "{refused}");
}
