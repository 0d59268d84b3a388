//! Files that are rendered from the code and committed.

use std::process::Command;

fn is_what_renders(file: &str, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("render").args(arguments).output().unwrap();
    let rendered = String::from_utf8(output.stdout).unwrap();
    let committed = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_default();
    assert!(
        rendered == committed && output.status.success(),
        "{file} is not what the code renders; run `just generate` and commit it"
    );
}

#[test]
fn webhook_configurations_are_what_render_prints() {
    is_what_renders("webhook-config/webhooks.yaml", &["webhooks", "--service", "nodegate/nodegate"]);
    is_what_renders(
        "webhook-config/webhooks-fail.yaml",
        &[
            "webhooks",
            "--service",
            "nodegate/nodegate",
            "--failure-policy",
            "Fail",
            "--break-glass-group",
            "nodegate:break-glass",
        ],
    );
}

#[test]
fn the_guard_is_what_render_prints() {
    is_what_renders("webhook-config/guard.yaml", &["guard", "--service-account", "nodegate/nodegate"]);
}

#[test]
fn the_crd_is_what_render_prints() {
    is_what_renders("webhook-config/nodepolicies.yaml", &["crd"]);
}

#[test]
fn keys_that_are_never_saved_are_documented_with_the_reason() {
    let documented = include_str!("../../docs/reference/saved-state.md");
    for (key, reason) in nodegate_policy::never_persisted::table() {
        let row = format!("| `{key}` | {reason} |");
        assert!(documented.contains(&row), "docs/reference/saved-state.md lacks: {row}");
    }
}
