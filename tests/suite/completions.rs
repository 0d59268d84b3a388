//! `nodegate completions`: what shells complete.

use std::process::Command;

fn script(shell: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["completions", shell]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// What a real bash offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nodegate.bash");
    std::fs::write(&file, script("bash")).unwrap();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let complete = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _nodegate nodegate {last:?} {before:?}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let output = Command::new("bash").args(["--norc", "-c", &complete]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(completed(&["nodegate", "re"]), ["render", "report"]);
    assert_eq!(completed(&["nodegate", "render", "s"]), ["schema"]);
    assert_eq!(completed(&["nodegate", "plan", "--exit"]), ["--exit-code"]);
    assert_eq!(completed(&["nodegate", "check", "--output", "j"]), ["json"]);
}

#[test]
fn there_is_a_script_for_each_shell_that_knows_all_commands() {
    let help = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let names: Vec<&str> = crate::output::commands(&help).collect();
    assert!(names.contains(&"serve") && names.contains(&"certs"), "{names:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        let missing: Vec<&&str> = names.iter().filter(|name| !script.contains(**name)).collect();
        assert!(missing.is_empty(), "{shell} lacks {missing:?}");
        assert!(!script.contains("\\u00"), "{shell}: nothing of the script is escaped");
    }
}

/// What the real kubectl offers for the last of these words, and how it goes on.
fn completed_by_kubectl(words: &[&str]) -> Vec<String> {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let directory = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_nodegate"), directory.path().join("kubectl-nodegate")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["completions", "--kubectl"]).output().unwrap();
    let file = directory.path().join("kubectl_complete-nodegate");
    std::fs::write(&file, output.stdout).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let output =
        Command::new("kubectl").args(["__complete", "nodegate"]).args(words).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn kubectl_completes_the_plugin() {
    assert_eq!(completed_by_kubectl(&["re"]), ["render", "report", ":4"]);
    assert_eq!(completed_by_kubectl(&["plan", "--exit"]), ["--exit-code", ":4"]);
    assert_eq!(completed_by_kubectl(&["check", "--output", "j"]), ["json", ":4"]);
    assert_eq!(completed_by_kubectl(&["check", "/no/such/"]), [":0"], "the shell completes files");
    let neither = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("completions").output().unwrap();
    assert_eq!(neither.status.code(), Some(2));
}
