//! The manifests for those who use no Helm, which are what the chart renders. `just generate` writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{CHART, NAMESPACE, RELEASE, helm, items, run_helm};
use crate::control_plane::{kubectl_program, run};
use crate::shared::rendered::same_numbers;

/// The pods keep within it.
const SPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: nodegate\n  labels:\n    pod-security.kubernetes.io/enforce: restricted\n";
const SOURCE: &str = "# Rendered from charts/nodegate by `just generate`.\n";

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// The documents of the chart for a version of Kubernetes, without what only Helm's own objects have.
fn render(version: &str, values: &Value, templates: &[&str]) -> Option<Vec<String>> {
    let only = templates.iter().flat_map(|template| ["--show-only", template]);
    let arguments = ["template", RELEASE, CHART, "--no-hooks", "--namespace", NAMESPACE, "--kube-version", version];
    let arguments: Vec<&str> = arguments.into_iter().chain(only).collect();
    let text = run_helm(helm()?, &arguments, values).unwrap();
    let helms = ["app.kubernetes.io/managed-by: Helm", "helm.sh/chart: ", "# Source: "];
    let kept = text.lines().filter(|line| !helms.iter().any(|own| line.trim_start().starts_with(own)));
    let text = kept.map(|line| format!("{}\n", line.trim_end())).collect::<String>();
    let documents = text.split("---\n").map(str::to_owned);
    Some(documents.filter(|document| document.contains("\nkind: ") || document.starts_with("kind: ")).collect())
}

/// Every file with what belongs there; nothing when there is no `helm`.
fn files() -> Option<BTreeMap<&'static str, String>> {
    let whole = render("1.30.0", &json!({"crds": {"keep": false}}), &[])?;
    let join = render("1.36.0", &json!({}), &["templates/guard.yaml"])?;
    let join = join.into_iter().filter(|document| document.contains("kind: MutatingAdmissionPolicy"));
    let on = json!({"enabled": true});
    let monitoring = json!({"monitoring": {"serviceMonitor": on, "prometheusRule": on, "dashboard": on}});
    let templates = ["templates/monitors.yaml", "templates/prometheusrule.yaml", "templates/dashboard.yaml"];
    let monitoring = render("1.30.0", &monitoring, &templates)?;
    let file = |documents: Vec<String>| format!("{SOURCE}---\n{}", documents.join("---\n"));
    Some(BTreeMap::from([
        ("kubernetes/nodegate.yaml", file([vec![SPACE.to_owned()], whole].concat())),
        ("kubernetes/guard-on-join/policies.yaml", file(join.collect())),
        ("kubernetes/monitoring/monitoring.yaml", file(monitoring)),
    ]))
}

#[test]
fn the_manifests_without_helm_are_what_the_chart_renders() {
    let Some(files) = files() else { return };
    for (file, text) in files {
        if std::env::var_os("NODEGATE_GENERATE").is_some() {
            fs::write(deploy(file), &text).unwrap();
        }
        let committed = fs::read_to_string(deploy(file)).unwrap_or_default();
        assert!(committed == text, "deploy/{file} is not what the chart renders; run `just generate` and commit it");
        assert!(!text.contains("Helm\n") && !text.contains("helm.sh/"), "deploy/{file}: nobody uses Helm here");
    }
}

fn objects(text: &str) -> BTreeMap<(String, String), Value> {
    let all = serde_saphyr::from_multiple::<Value>(text).unwrap();
    let name = |object: &Value| (object["kind"].to_string(), object["metadata"]["name"].to_string());
    all.into_iter().filter(|object| !object.is_null()).map(|object| (name(&object), object)).collect()
}

/// What `kubectl kustomize` makes of the example.
pub(super) fn example() -> String {
    run(Command::new(kubectl_program()).arg("kustomize").arg(deploy("example")), None).unwrap()
}

#[test]
fn kustomize_builds_the_example_of_all_that_is_in_the_base_and_the_components() {
    let built = objects(&example());
    let given: BTreeMap<_, _> =
        ["kubernetes/nodegate.yaml", "kubernetes/guard-on-join/policies.yaml", "kubernetes/monitoring/monitoring.yaml"]
            .iter()
            .flat_map(|file| objects(&fs::read_to_string(deploy(file)).unwrap()))
            .collect();
    assert!(built.keys().eq(given.keys()), "{:?}\n{:?}", built.keys(), given.keys());
    for (name, object) in &given {
        let mut expected = object.clone();
        if name.0 == "\"Deployment\"" {
            expected["spec"]["replicas"] = json!(2);
            let image = &mut expected["spec"]["template"]["spec"]["containers"][0]["image"];
            *image = json!(image.as_str().unwrap().replace("nodegate:", "registry.example.com/platform/nodegate:"));
        }
        if object["apiVersion"] == "monitoring.coreos.com/v1" {
            expected["metadata"]["labels"]["release"] = json!("kube-prometheus-stack");
        }
        assert_eq!(same_numbers(&built[name]), same_numbers(&expected), "{name:?}");
    }
    let kinds = |kind: &str| given.keys().filter(|(known, _)| known.trim_matches('"') == kind).count();
    assert_eq!(["Namespace", "CustomResourceDefinition", "Deployment", "ServiceMonitor"].map(kinds), [1; 4]);
    assert_eq!((kinds("MutatingAdmissionPolicy"), kinds("Job"), kinds("Pod")), (3, 0, 0), "hooks are only for Helm");
    let space = &built[&("\"Namespace\"".to_owned(), "\"nodegate\"".to_owned())];
    assert_eq!(space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    assert!(
        !items(
            &given[&("\"Deployment\"".to_owned(), "\"nodegate\"".to_owned())]["spec"]["template"]["spec"]["containers"]
        )
        .is_empty()
    );
}
