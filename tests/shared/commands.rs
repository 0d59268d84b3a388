//! Command lines, and what they read.

use std::path::{Path, PathBuf};

/// A policy with one label for every node.
pub(crate) const POLICY: &str = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: fleet}\nspec:\n  rules: [{name: gold, labels: {tier: gold}}]\n";

/// Commands that use a cluster, without the flags that select it.
pub(crate) const OF_A_CLUSTER: &[&str] = &[
    "plan",
    "plan --policy policy.yaml --only",
    "init",
    "explain n",
    "explain n --why-not tier",
    "apply",
    "report",
    "report --stranded-pods",
    "report --violations",
    "history n",
    "history --all",
    "history n --revert 1",
    "migrate old new",
    "migrate old new --confirm",
    "migrate status",
    "migrate status old new -o json",
    "cleanup",
    "cleanup --confirm",
    "cleanup --node n --confirm",
    "cleanup --decommissioned",
    "verify",
    "export autoscaler",
    "export autoscaler --format nodepool-patch --check",
    "pools adopt gpu --node n",
    "pools forget --selector a=b",
];

/// The program under the plugin's name.
pub(crate) fn plugin_in(directory: &Path) -> PathBuf {
    let plugin = directory.join("kubectl-nodegate");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nodegate"), &plugin).unwrap();
    plugin
}
