//! The steps to `v1beta1` that docs/upgrading.md plans: with the schema of today under both names, the API server converts by
//! itself, the documented commands move what is stored, and until then each step can be undone.

use std::process::Command;

use serde_json::{Value, json};

use crate::control_plane::{ControlPlane, exclusive, kubectl_program, run};
use crate::shared::guides::block_of;

const DOCUMENT: &str = "docs/upgrading.md";
const DEFINITION: &str = include_str!("../../webhook-config/nodepolicies.yaml");

/// What a release serves and stores: the row of the table that says so.
#[derive(Clone, Copy)]
enum Release {
    Today,
    FirstWithBeta,
    StoresBeta,
    OnlyBeta,
}

/// The definition of a release, of which today's has the schema.
fn definition(release: Release) -> Value {
    let mut definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
    let version = |name: &str, stored: bool| {
        let mut version = definition["spec"]["versions"][0].clone();
        version["name"] = json!(name);
        version["storage"] = json!(stored);
        version
    };
    let versions = match release {
        Release::Today => json!([version("v1alpha1", true)]),
        Release::FirstWithBeta => json!([version("v1alpha1", true), version("v1beta1", false)]),
        Release::StoresBeta => {
            let mut alpha = version("v1alpha1", false);
            alpha["deprecated"] = json!(true);
            json!([alpha, version("v1beta1", true)])
        }
        Release::OnlyBeta => json!([version("v1beta1", true)]),
    };
    definition["spec"]["versions"] = versions;
    definition
}

fn upgrade(plane: &ControlPlane, release: Release) -> Result<String, String> {
    let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    plane.kubectl(&arguments, Some(&definition(release).to_string()))
}

fn apply(plane: &ControlPlane, version: &str, name: &str) {
    let spec = json!({"rules": [{"name": "one", "match": {"names": ["gpu-*"]}, "labels": {"demo/tier": name}}]});
    let policy = json!({"apiVersion": format!("nodegate.dev/{version}"), "kind": "NodePolicy", "metadata": {"name": name}, "spec": spec});
    let written = || plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string()));
    crate::eventually::eventually_blocking("the version is served", || written().map(|_| ()));
}

/// The values of all policies, read in one version.
fn read(plane: &ControlPlane, version: &str) -> Result<Vec<String>, String> {
    let kind = format!("nodepolicies.{version}.nodegate.dev");
    let list: Value = serde_json::from_str(&plane.kubectl(&["get", &kind, "-o", "json"], None)?).unwrap();
    let items = list["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["apiVersion"] == format!("nodegate.dev/{version}")), "{list}");
    Ok(items.iter().map(|item| item["spec"]["rules"][0]["labels"]["demo/tier"].as_str().unwrap().to_owned()).collect())
}

fn has(plane: &ControlPlane, version: &str, expected: &[&str]) {
    crate::eventually::eventually_blocking(&format!("{version} has {expected:?}"), || match read(plane, version) {
        Ok(found) if found == expected => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// The documented commands, as a person types them.
fn migrate(plane: &ControlPlane) {
    let block = block_of(DOCUMENT, "storedVersions");
    let script: Vec<&str> = block.lines().map(|line| line.strip_prefix("$ ").unwrap()).collect();
    let path = format!("{}:{}", kubectl_program().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &script.join("\n")]).env("PATH", path);
    run(shell.env("KUBECONFIG", plane.kubeconfig_file("admin", None)), None).unwrap();
}

#[test]
fn the_planned_steps_to_the_beta_version_lose_no_policy_and_can_be_undone() {
    let cluster = exclusive();
    let plane = cluster.plane;
    plane.install_definition();
    apply(plane, "v1alpha1", "a-old");

    upgrade(plane, Release::FirstWithBeta).unwrap();
    has(plane, "v1beta1", &["a-old"]);
    apply(plane, "v1beta1", "b-new");
    // What the release before reads, after a rollback too.
    has(plane, "v1alpha1", &["a-old", "b-new"]);
    upgrade(plane, Release::Today).unwrap();
    has(plane, "v1alpha1", &["a-old", "b-new"]);
    upgrade(plane, Release::FirstWithBeta).unwrap();

    upgrade(plane, Release::StoresBeta).unwrap();
    apply(plane, "v1beta1", "c-stored");
    has(plane, "v1alpha1", &["a-old", "b-new", "c-stored"]);
    let warned = || plane.kubectl_with_stderr(&["get", "nodepolicies.v1alpha1.nodegate.dev"]).1;
    crate::eventually::eventually_blocking("the old version is deprecated", || warned().contains("deprecated"));
    upgrade(plane, Release::FirstWithBeta).unwrap();
    has(plane, "v1beta1", &["a-old", "b-new", "c-stored"]);
    upgrade(plane, Release::StoresBeta).unwrap();

    let refused = upgrade(plane, Release::OnlyBeta).unwrap_err();
    assert!(refused.contains("storedVersions"), "{refused}");
    has(plane, "v1beta1", &["a-old", "b-new", "c-stored"]);
    migrate(plane);
    upgrade(plane, Release::OnlyBeta).unwrap();
    has(plane, "v1beta1", &["a-old", "b-new", "c-stored"]);
}
