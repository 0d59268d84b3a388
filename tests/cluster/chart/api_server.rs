//! The manifests that are shipped, before the real API server, which takes or refuses them without keeping any.

use std::fs;
use std::path::Path;

use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::definitions::{self, definitions};
use super::{NAMESPACE, deploy, manifests, value_sets};
use crate::control_plane::{ControlPlane, exclusive};
use crate::shared::guides::block_of;

fn shipped(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn dry_run(plane: &ControlPlane, manifests: &str) -> Result<String, String> {
    plane.kubectl(
        &["apply", "--dry-run=server", "--validate=strict", "--namespace", NAMESPACE, "-f", "-"],
        Some(manifests),
    )
}

/// What an API server takes of manifests. Without `kubectl`, which asks not more than 50 times in a second.
struct DryRun {
    client: Client,
    kinds: Discovery,
}

impl DryRun {
    async fn at(plane: &ControlPlane) -> Self {
        let client = plane.client(None).await;
        let kinds = Discovery::new(client.clone()).run().await.unwrap();
        Self { client, kinds }
    }

    async fn takes(&self, manifests: &str) -> Result<(), String> {
        let parameters = PatchParams {
            dry_run: true,
            force: true,
            field_manager: Some("test".to_owned()),
            field_validation: Some(ValidationDirective::Strict),
        };
        for object in serde_saphyr::from_multiple::<Value>(manifests).unwrap() {
            if object.is_null() {
                continue;
            }
            let [version, kind, name] = [&object["apiVersion"], &object["kind"], &object["metadata"]["name"]]
                .map(|field| field.as_str().unwrap_or_default());
            let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
            let kind = GroupVersionKind::gvk(group, version, kind);
            let (resource, capabilities) = self.kinds.resolve_gvk(&kind).ok_or_else(|| format!("no kind {kind:?}"))?;
            // Only what the values add besides may name no namespace.
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Cluster => Api::all_with(self.client.clone(), &resource),
                Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
            };
            let taken = api.patch(name, &parameters, &Patch::Apply(&object)).await;
            taken.map_err(|error| format!("{} {name}: {error}", resource.kind))?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn the_api_server_accepts_every_object_of_the_chart_and_of_the_manifests_without_helm() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let namespaces = [NAMESPACE, "elsewhere", "monitoring", "argocd", "flux-system"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let needed = json!({"apiVersion": "v1", "kind": "List", "items": namespaces}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&needed)).unwrap();
    plane.kubectl(&["apply", "--server-side", "-f", "-"], Some(&definitions())).unwrap();
    for name in definitions::names() {
        plane.until_established(&[&format!("crd/{name}")]);
    }
    let dry_run = DryRun::at(plane).await;
    for (name, values) in value_sets() {
        let Some(manifests) = manifests(&values) else { return };
        dry_run.takes(&manifests).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let typos =
            [("monitoring", "interval: \"1m30s\"", "intervall: \"1m30s\""), ("cert-manager", "dnsNames:", "dnsName:")];
        for (_, right, wrong) in typos.iter().filter(|(of, ..)| *of == name) {
            let error = dry_run.takes(&manifests.replace(right, wrong)).await.unwrap_err();
            assert!(
                error.contains(wrong.split(':').next().unwrap()),
                "these are the projects' own definitions: {error}"
            );
        }
    }
    dry_run.takes(&deploy::example()).await.unwrap();
    for example in ["argocd", "flux"] {
        let manifests = shipped(&format!("examples/gitops/{example}.yaml"));
        dry_run.takes(&manifests).await.unwrap_or_else(|error| panic!("{example}: {error}"));
    }
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
    let recipes = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes")).unwrap();
    let pages = recipes.map(|page| page.unwrap().file_name().into_string().unwrap()).filter(|page| page != "README.md");
    let policies: Vec<String> =
        pages.map(|page| block_of(&format!("docs/recipes/{page}"), "# policy.yaml\n")).collect();
    assert!(policies.len() >= 20, "{} recipes", policies.len());
    let policies = policies.join("\n---\n");
    cluster
        .plane
        .kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(&policies))
        .unwrap_or_else(|error| panic!("docs/recipes: {error}"));
    let unknown = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: x}\nspec: {rulez: []}\n";
    let error = cluster
        .plane
        .kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(unknown))
        .unwrap_err();
    assert!(error.contains("rulez"), "{error}");
}
