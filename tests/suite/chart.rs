//! The Helm chart, by the real `helm` and the real API server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cluster::control_plane::{exclusive, run};

/// `helm` from `PATH`, or as `tests/tools/build` made it.
fn helm() -> Command {
    let built = Command::new("bash")
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/build"), "--print-dir", "helm"])
        .output();
    let built = built.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("helm"));
    Command::new(built.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("helm")))
}

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/nodegate");

fn template(sets: &[&str]) -> String {
    let mut command = helm();
    command.args(["template", "nodegate", CHART, "--namespace", "nodegate", "--kube-version", "1.36.3"]);
    for set in sets {
        command.args(["--set", set]);
    }
    run(&mut command, None).unwrap()
}

/// The manifests by kind; each kind is there once but Secret and the like, of which the last counts.
fn by_kind(text: &str) -> BTreeMap<String, Value> {
    let trees = nodegate::api::source::parse_documents(text).unwrap();
    trees
        .iter()
        .map(|tree| tree.to_json())
        .map(|object| (object["kind"].as_str().unwrap().to_owned(), object))
        .collect()
}

/// The webhooks of a configuration without what is of the installation: the CA.
fn webhooks(configuration: &Value) -> Value {
    let mut webhooks = configuration["webhooks"].clone();
    for webhook in webhooks.as_array_mut().unwrap() {
        webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle");
    }
    webhooks
}

#[test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane and helm: just control-plane tools")]
fn the_charts_webhooks_are_those_that_render_prints() {
    for (sets, flags) in [
        (&[] as &[&str], &[] as &[&str]),
        (
            &["validating.failurePolicy=Fail", "breakGlassGroups={nodegate:break-glass,oncall-*}"],
            &[
                "--failure-policy",
                "Fail",
                "--break-glass-group",
                "nodegate:break-glass",
                "--break-glass-group",
                "oncall-*",
            ],
        ),
    ] {
        let chart = by_kind(&template(sets));
        let mut render = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let rendered = by_kind(
            &run(render.args(["render", "webhooks", "--service", "nodegate/nodegate"]).args(flags), None).unwrap(),
        );
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            assert_eq!(webhooks(&chart[kind]), webhooks(&rendered[kind]), "{kind} {flags:?}");
        }
    }
}

#[test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane and helm: just control-plane tools")]
fn the_chart_passes_lint_and_its_parts_fit_together() {
    run(helm().args(["lint", "--strict", CHART]), None).unwrap();
    let chart = by_kind(&template(&[]));
    let pod = &chart["Deployment"]["spec"]["template"];
    assert_eq!(
        chart["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        chart["Deployment"]["spec"]["selector"]["matchLabels"]
    );
    for (key, value) in chart["Service"]["spec"]["selector"].as_object().unwrap() {
        assert_eq!(pod["metadata"]["labels"].get(key), Some(value));
    }
    let container = &pod["spec"]["containers"][0];
    let ports: Vec<&str> =
        container["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(ports.contains(&container[probe]["httpGet"]["port"].as_str().unwrap()));
    }
    assert!(ports.contains(&chart["Service"]["spec"]["ports"][0]["targetPort"].as_str().unwrap()));
    // The arguments are ones that the binary takes.
    let arguments: Vec<&str> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let help = run(Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["serve", "--help"]), None).unwrap();
    for flag in arguments.iter().filter_map(|argument| argument.strip_prefix("--")?.split('=').next()) {
        assert!(help.contains(&format!("--{flag} ")), "{flag} in\n{help}");
    }
    // The policies it brings compile.
    for (name, text) in chart["ConfigMap"]["data"].as_object().unwrap() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(name), text.as_str().unwrap()).unwrap();
        let mut plan = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        run(
            plan.args(["plan", "--policy"])
                .arg(directory.path())
                .arg("tests/data/admission-reviews/kubelet-create.json")
                .current_dir(env!("CARGO_MANIFEST_DIR")),
            None,
        )
        .unwrap();
    }
    run(helm().args(["template", "nodegate", CHART, "--set", "replica=1"]), None)
        .expect_err("an unknown value is refused");
}

#[test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane and helm: just control-plane tools")]
fn the_api_server_takes_everything_the_chart_makes() {
    let cluster = exclusive();
    let namespace = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodegate"}}"#;
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(namespace)).unwrap();
    for sets in [
        &[] as &[&str],
        &["validating.failurePolicy=Fail", "breakGlassGroups={oncall}"],
        &["tls.mode=secret", "tls.secretName=own", "existingPolicies=own", "extraArgs={--pending-taint=never}"],
    ] {
        let manifests = template(sets);
        cluster
            .plane
            .kubectl(
                &["apply", "--dry-run=server", "--validate=strict", "--namespace", "nodegate", "-f", "-"],
                Some(&manifests),
            )
            .unwrap();
    }
    for file in ["webhooks.yaml", "webhooks-fail.yaml", "nodepolicies.yaml"] {
        let text = std::fs::read_to_string(format!("{}/webhook-config/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        cluster.plane.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], Some(&text)).unwrap();
    }
}

#[test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
fn policies_pass_the_crds_schema() {
    let cluster = exclusive();
    let crd =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/webhook-config/nodepolicies.yaml")).unwrap();
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&crd)).unwrap();
    cluster
        .plane
        .kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd/nodepolicies.nodegate.dev"], None)
        .unwrap();
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
    cluster.plane.kubectl(&["delete", "-f", "-"], Some(&crd)).unwrap();
}
