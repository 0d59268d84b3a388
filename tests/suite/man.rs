//! `nodegate man`: man pages.

use std::path::Path;
use std::process::{Command, Output};

fn man(directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("man").arg(directory).output().unwrap()
}

#[test]
fn there_is_a_page_for_each_command() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    for _ in 0..2 {
        let output = man(&pages);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let help = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut found = 0;
    for command in crate::output::commands(&help) {
        let page = std::fs::read_to_string(pages.join(format!("nodegate-{command}.1"))).unwrap();
        assert!(page.contains(".TH nodegate-") && page.contains(&format!("nodegate {command}")), "{page}");
        found += 1;
    }
    assert!(found > 10, "{help}");
    assert!(std::fs::read_to_string(pages.join("nodegate.1")).unwrap().contains("nodegate demo"));
    assert!(pages.join("nodegate-render-webhooks.1").exists());
}

#[test]
fn a_page_does_not_show_the_environment_of_who_wrote_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.env("NODEGATE_POLICY", "/my/policies").arg("man").arg(directory.path());
    assert!(command.output().unwrap().status.success());
    let page = std::fs::read_to_string(directory.path().join("nodegate-plan.1")).unwrap();
    assert!(page.contains("NODEGATE_POLICY") && !page.contains("/my/policies"), "{page}");
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = man(&file.join("man1"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("man1"), "{said}");
}

#[test]
fn a_link_among_the_pages_is_replaced_and_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (victim, pages) = (directory.path().join("victim"), directory.path().join("man1"));
    std::fs::write(&victim, "precious").unwrap();
    std::fs::create_dir(&pages).unwrap();
    std::os::unix::fs::symlink(&victim, pages.join("nodegate.1")).unwrap();
    assert!(man(&pages).status.success());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(std::fs::symlink_metadata(pages.join("nodegate.1")).unwrap().is_file());
}
