//! The container image: what the Dockerfile says, and the image of `just image`. No container engine is needed.

mod layout;
mod sandbox;
mod started;

use std::fs;
use std::path::Path;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The arguments of the first instruction that begins so.
fn instruction<'a>(dockerfile: &'a str, begins: &str) -> &'a str {
    dockerfile.lines().find_map(|line| line.strip_prefix(begins)).unwrap_or_else(|| panic!("no {begins}"))
}

#[test]
fn the_image_is_built_by_the_pinned_toolchain() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    let dockerfile = read("Dockerfile");
    let image = instruction(&dockerfile, "FROM --platform=$BUILDPLATFORM rust:");
    assert!(image.starts_with(&format!("{channel}-")), "{image}");
}

#[test]
fn the_image_is_built_for_amd64_and_arm64_and_for_nothing_by_mistake() {
    let dockerfile = read("Dockerfile");
    for (architecture, machine) in [("amd64", "x86_64"), ("arm64", "aarch64")] {
        assert!(dockerfile.contains(&format!("{architecture}) machine={machine} ")), "{architecture}");
        let linker =
            format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_LINKER={machine}-linux-gnu-gcc", machine.to_uppercase());
        assert!(dockerfile.contains(&linker), "{linker}");
    }
    assert!(dockerfile.contains("is built for amd64 and arm64, not for"), "another one is an error");
}

#[test]
fn the_image_runs_as_the_user_that_the_chart_names() {
    let dockerfile = read("Dockerfile");
    let values: Value = serde_saphyr::from_str(&read("charts/nodegate/values.yaml")).unwrap();
    let context = &values["podSecurityContext"];
    assert_eq!(instruction(&dockerfile, "USER "), format!("{}:{}", context["runAsUser"], context["runAsGroup"]));
}

#[test]
fn files_that_the_code_embeds_are_in_the_build_context() {
    let ignore = read(".dockerignore");
    let sent: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &sent {
        assert!(root().join(path).exists(), ".dockerignore names {path}");
    }
    for embedded in ["examples", "tests/data", "src", "crates", "benches", "Cargo.lock"] {
        assert!(sent.contains(&embedded), "{embedded}");
    }
}
