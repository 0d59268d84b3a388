//! Tells the tests whether a control plane is at hand, so that the cluster tests are reported as
//! ignored where there is none instead of passing without having run.

use std::env;
use std::path::PathBuf;

/// Must be the directory that `tests/control-plane/build` fills.
const CONTROL_PLANE: &str = "control-plane-v1.36.3";

fn cache() -> Option<PathBuf> {
    let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    given("NODEGATE_CACHE")
        .or_else(|| given("XDG_CACHE_HOME").map(|cache| cache.join("nodegate")))
        .or_else(|| given("HOME").map(|home| home.join(".cache/nodegate")))
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(control_plane)");
    for name in ["KUBEBUILDER_ASSETS", "NODEGATE_REQUIRE_CLUSTER", "NODEGATE_CACHE", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let assets =
        env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from).or_else(|| cache().map(|cache| cache.join(CONTROL_PLANE)));
    if let Some(assets) = &assets {
        println!("cargo::rerun-if-changed={}", assets.display());
        println!("cargo::rustc-env=NODEGATE_TEST_ASSETS={}", assets.display());
    }
    let there = assets.is_some_and(|assets| assets.join("kube-apiserver").is_file() && assets.join("etcd").is_file());
    let required = env::var_os("NODEGATE_REQUIRE_CLUSTER").is_some_and(|value| value == "1");
    if there || required {
        println!("cargo::rustc-cfg=control_plane");
    }
}
