//! The manifests that are shipped, before the real API server, which takes or refuses them without keeping any.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::definitions::{self, definitions};
use super::{NAMESPACE, deploy, manifests, value_sets};
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually_blocking;

fn shipped(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn dry_run(plane: &ControlPlane, manifests: &str) -> Result<String, String> {
    plane.kubectl(
        &["apply", "--dry-run=server", "--validate=strict", "--namespace", NAMESPACE, "-f", "-"],
        Some(manifests),
    )
}

/// What an API server takes of a manifest if every object names its namespace.
fn whole_dry_run(plane: &ControlPlane, manifests: &str) -> Result<String, String> {
    plane.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(manifests))
}

#[test]
fn the_api_server_accepts_every_object_of_the_chart_and_of_the_manifests_without_helm() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let namespaces = [NAMESPACE, "elsewhere", "monitoring"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let needed = json!({"apiVersion": "v1", "kind": "List", "items": namespaces}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&needed)).unwrap();
    plane.kubectl(&["apply", "--server-side", "-f", "-"], Some(&definitions())).unwrap();
    for name in definitions::names() {
        let definition = format!("crd/{name}");
        // Right after it was made it has no conditions yet, which `kubectl wait` takes for an error.
        let wait = ["wait", "--for=condition=Established", "--timeout=5s", &definition];
        eventually_blocking(&format!("{name} is established"), || plane.kubectl(&wait, None));
    }
    for (name, values) in value_sets() {
        let Some(manifests) = manifests(&values) else { return };
        whole_dry_run(plane, &manifests).unwrap_or_else(|error| panic!("{name}: {error}"));
        let typos =
            [("monitoring", "interval: \"1m30s\"", "intervall: \"1m30s\""), ("cert-manager", "dnsNames:", "dnsName:")];
        for (_, right, wrong) in typos.iter().filter(|(of, ..)| *of == name) {
            let error = whole_dry_run(plane, &manifests.replace(right, wrong)).unwrap_err();
            assert!(
                error.contains(wrong.split(':').next().unwrap()),
                "these are the projects' own definitions: {error}"
            );
        }
    }
    whole_dry_run(plane, &deploy::example()).unwrap();
    plane.kubectl(&["delete", "-f", "-"], Some(&definitions())).unwrap();
}

#[test]
fn the_api_server_accepts_the_rendered_manifests() {
    let cluster = exclusive();
    for file in ["webhooks", "webhooks-fail", "guard", "nodepolicies"].map(|name| format!("webhook-config/{name}.yaml"))
    {
        let file = file.as_str();
        dry_run(cluster.plane, &shipped(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    let namespace = format!(r#"{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{NAMESPACE}"}}}}"#);
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&namespace)).unwrap();
    dry_run(cluster.plane, &shipped("examples/apply-job/job.yaml")).unwrap();
}

#[test]
fn policies_pass_the_crds_schema() {
    let cluster = exclusive();
    cluster.plane.install_definition();
    for example in ["fako", "llm-d-lab", "cpu-classes", "gpu-fleet", "autoscaler-groups", "accelerators"] {
        let policy =
            std::fs::read_to_string(format!("{}/examples/{example}/policy.yaml", env!("CARGO_MANIFEST_DIR"))).unwrap();
        cluster
            .plane
            .kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(&policy))
            .unwrap_or_else(|error| panic!("{example}: {error}"));
    }
    let unknown = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: x}\nspec: {rulez: []}\n";
    let error = cluster
        .plane
        .kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(unknown))
        .unwrap_err();
    assert!(error.contains("rulez"), "{error}");
}
