//! What every object has: its namespace, labels and annotations. And what only some have.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{CHART, NAMESPACE, Objects, RELEASE, helm, items, manifests, nodegate, run_helm, value_sets};
use crate::control_plane::run;
use crate::shared::rendered::same_numbers;

#[test]
fn common_labels_and_annotations_are_on_every_object_and_everything_is_in_the_namespace_of_the_values() {
    let values = &value_sets()["common"];
    let Some(text) = manifests(values) else { return };
    let all = serde_saphyr::from_multiple::<Value>(&text).unwrap();
    let (extra, own): (Vec<Value>, Vec<Value>) = all
        .into_iter()
        .filter(|object| !object.is_null())
        .partition(|object| ["raw", "nodegate-3"].iter().any(|name| object["metadata"]["name"] == *name));
    assert_eq!(extra.len(), 2, "a mapping, and a template");
    assert_eq!(extra[0]["metadata"]["annotations"]["as-is"], "{{ $labels.node }}", "a mapping is no template");
    for object in &own {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let labels = &object["metadata"]["labels"];
        assert_eq!((&labels["team"], &labels["yes"]), (&json!("platform"), &json!("no")), "{what}");
        assert_eq!(labels["app.kubernetes.io/instance"], RELEASE, "{what}");
        assert_eq!(object["metadata"]["annotations"]["example.com/owner"], r#"it's "quoted": {{ x }}"#, "{what}");
        let namespace = &object["metadata"]["namespace"];
        assert!(namespace.is_null() || namespace == "elsewhere", "{what} is in {namespace}");
    }
    // Arguments, subjects, expressions, names of certificates: none of them knows the namespace of the release.
    let other = manifests(
        &json!({"namespaceOverride": "123", "fullnameOverride": "other", "serviceAccount": {"name": "account"}}),
    );
    let serialized = serde_saphyr::from_multiple::<Value>(&other.unwrap()).unwrap();
    for object in serialized.iter().filter(|object| object["kind"] != "CustomResourceDefinition") {
        let namespace = &object["metadata"]["namespace"];
        assert!(namespace.is_null() || namespace == "123", "{namespace} is no number");
        let text = object.to_string();
        let text = text.replace(&format!("\"app.kubernetes.io/instance\":\"{RELEASE}\""), "");
        assert!(!text.contains(&format!(":{NAMESPACE}:")) && !text.contains(&format!("={NAMESPACE}\"")), "{text}");
        assert!(
            !text.contains(&format!("\"namespace\":\"{NAMESPACE}\"")) && !text.contains(&format!(".{NAMESPACE}.svc")),
            "{text}"
        );
    }
    let objects = Objects(own);
    assert_eq!(objects.pod()["metadata"]["labels"]["team"], "platform");
    assert!(objects.pod()["metadata"]["annotations"].is_null(), "podAnnotations is for them");
    let timeouts = |kind: &str| -> Vec<Value> {
        objects
            .kind(kind)
            .iter()
            .flat_map(|object| items(&object["webhooks"]))
            .map(|hook| hook["timeoutSeconds"].clone())
            .collect()
    };
    // Each configuration is there twice: the object, and the hook.
    assert_eq!(timeouts("MutatingWebhookConfiguration"), [1, 1]);
    assert_eq!(timeouts("ValidatingWebhookConfiguration"), [30, 5, 30, 5]);
}

#[test]
fn the_definition_in_the_chart_is_the_one_that_render_prints_and_helm_keeps_it_by_value() {
    let rendered = run(nodegate().args(["render", "crd"]), None).unwrap();
    assert_eq!(fs::read_to_string(Path::new(CHART).join("files/nodepolicies.yaml")).unwrap(), rendered);
    let rendered: Value = serde_saphyr::from_str(&rendered).unwrap();
    let sets = value_sets();
    for (name, keep) in [("defaults", json!("keep")), ("common", Value::Null)] {
        let Some(objects) = Objects::render(&sets[name]) else { return };
        let definition = objects.only("CustomResourceDefinition");
        assert_eq!(same_numbers(&definition["spec"]), same_numbers(&rendered["spec"]), "{name}");
        assert_eq!(definition["metadata"]["name"], rendered["metadata"]["name"], "{name}");
        assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], keep, "{name}");
    }
    let Some(objects) = Objects::render(&sets["pod monitor and no tests"]) else { return };
    assert!(objects.kind("CustomResourceDefinition").is_empty());
}

#[test]
fn only_the_role_view_of_a_cluster_grows_and_only_by_reading_policies() {
    for (name, values) in value_sets() {
        let Some(objects) = Objects::render(&values) else { return };
        let aggregated = |role: &&Value| role["metadata"]["labels"].to_string().contains("aggregate-to-");
        let roles: Vec<&Value> = objects.kind("ClusterRole").into_iter().filter(aggregated).collect();
        let wanted =
            values["controller"]["enabled"] != json!(false) && values["rbac"]["aggregateToView"] != json!(false);
        assert_eq!(roles.len(), usize::from(wanted), "{name}");
        for role in roles {
            let labels = role["metadata"]["labels"].as_object().unwrap();
            let to: Vec<&String> = labels.keys().filter(|key| key.contains("aggregate-to-")).collect();
            assert_eq!(to, ["rbac.authorization.k8s.io/aggregate-to-view"], "{name}");
            let rules = json!([{"apiGroups": ["nodegate.dev"], "resources": ["nodepolicies"], "verbs": ["get", "list", "watch"]}]);
            assert_eq!(role["rules"], rules, "{name}");
        }
    }
}

/// What Helm prints after an installation with these values. `helm template` prints no notes, so a copy of the chart has them in an object.
fn notes(values: &Value) -> Option<String> {
    let helm = helm()?;
    let copy = tempfile::tempdir().unwrap();
    run(Command::new("cp").arg("-r").arg(CHART).arg(copy.path()), None).unwrap();
    let chart = copy.path().join("nodegate");
    let notes = fs::read_to_string(chart.join("templates/NOTES.txt")).unwrap();
    let object =
        format!("{{{{- define \"notes\" }}}}{notes}{{{{ end -}}}}\nnotes: {{{{ include \"notes\" . | toJson }}}}\n");
    fs::write(chart.join("templates/notes.yaml"), object).unwrap();
    let chart = chart.display().to_string();
    let arguments = ["template", RELEASE, &chart, "--namespace", NAMESPACE, "--show-only", "templates/notes.yaml"];
    let printed = run_helm(helm, &arguments, values).unwrap_or_else(|error| panic!("{values}: {error}"));
    let object: Value = serde_saphyr::from_str(&printed).unwrap();
    Some(object["notes"].as_str().unwrap().to_owned())
}

#[test]
fn the_notes_name_the_next_three_commands_and_do_not_deny_policies_that_are_set() {
    let unset = "No policies are set";
    let Some(default) = notes(&json!({})) else { return };
    let first = default.find("kubectl -n nodegate rollout status deployment/nodegate").unwrap();
    let second = default.find("helm test nodegate --namespace nodegate\n").unwrap();
    let third = default.find("kubectl create --dry-run=server").unwrap();
    assert!(first < second && second < third && default.contains(unset), "{default}");
    let moved = notes(&json!({"namespaceOverride": "elsewhere", "tests": {"enabled": false}})).unwrap();
    assert!(moved.contains("kubectl -n elsewhere port-forward") && !moved.contains("helm test"), "{moved}");
    assert!(moved.contains("nodegate cleanup --namespace elsewhere"), "{moved}");
    for values in [
        json!({"extraEnv": [{"name": "PERSIST_LABEL_PREFIX", "value": "persist.demo/"}]}),
        json!({"extraEnv": [{"name": "OTHER", "value": "x"}, {"name": "NODEGATE_POLICY", "value": "/policies"}]}),
        json!({"extraArgs": ["--policy=/policies"]}),
        json!({"policies": {"existingConfigMap": "mine"}}),
    ] {
        let printed = notes(&values).unwrap();
        assert!(!printed.contains(unset), "{values}: {printed}");
    }
    let printed = notes(&json!({"extraEnv": [{"name": "OTHER", "value": "x"}], "extraArgs": ["--log"]})).unwrap();
    assert!(printed.contains(unset), "{printed}");
}

#[test]
fn the_notes_say_what_baseline_denies_from_now_on_or_does_in_its_mode() {
    let of = |mode: &str| notes(&json!({"baseline": {"mode": mode}}));
    let Some(enforce) = of("enforce") else { return };
    assert_eq!(notes(&json!({})).unwrap(), enforce, "that is the default");
    assert!(enforce.contains("nodegate DENIES") && enforce.contains("--set baseline.mode=warn"), "{enforce}");
    for (mode, does) in [("warn", "warns of"), ("audit", "counts")] {
        let printed = of(mode).unwrap();
        assert!(printed.contains(&format!("Its mode is {mode}: nodegate denies nothing, and {does}")), "{printed}");
        assert!(!printed.contains("DENIES") && printed.contains("set baseline.mode=enforce"), "{printed}");
        let rendered = manifests(&json!({"baseline": {"mode": mode}})).unwrap();
        assert!(rendered.contains(&format!("- --baseline-mode={mode}\n")), "{rendered}");
    }
    assert!(!manifests(&json!({})).unwrap().contains("--baseline-mode"));
}

#[test]
fn artifact_hub_shows_the_kind_that_the_chart_installs_and_an_example_that_compiles() {
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(Path::new(CHART).join("Chart.yaml")).unwrap()).unwrap();
    let annotation = |name: &str| chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap().to_owned();
    assert_eq!(annotation("license"), env!("CARGO_PKG_LICENSE"));
    let definition = fs::read_to_string(Path::new(CHART).join("files/nodepolicies.yaml")).unwrap();
    let definition: Value = serde_saphyr::from_str(&definition).unwrap();
    let kinds: Value = serde_saphyr::from_str(&annotation("crds")).unwrap();
    assert_eq!(items(&kinds).len(), 1);
    assert_eq!(kinds[0]["kind"], definition["spec"]["names"]["kind"]);
    assert_eq!(kinds[0]["name"], definition["metadata"]["name"]);
    assert_eq!(kinds[0]["version"], definition["spec"]["versions"][0]["name"]);
    let examples: Value = serde_saphyr::from_str(&annotation("crdsExamples")).unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), examples[0].to_string()).unwrap();
    run(nodegate().args(["check", "--exit-code"]).arg(file.path()), None).unwrap();
}

#[test]
fn a_released_chart_says_where_it_is_from_which_image_it_runs_and_what_changed() {
    if helm().is_none() {
        return;
    }
    let dist = tempfile::tempdir().unwrap();
    let mut release = Command::new("release/run");
    release.arg("chart").current_dir(env!("CARGO_MANIFEST_DIR")).env("NODEGATE_DIST", dist.path());
    release.envs([("REGISTRY", "registry.example"), ("REPOSITORY", "Owner/nodegate")]);
    release.envs([("GITHUB_SERVER_URL", "https://git.example"), ("GITHUB_REPOSITORY", "Owner/nodegate")]);
    run(&mut release, None).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let packed = dist.path().join(format!("nodegate-{version}.tgz"));
    let file = run(Command::new("tar").arg("-xOzf").arg(packed).arg("nodegate/Chart.yaml"), None).unwrap();
    let chart: Value = serde_saphyr::from_str(&file).unwrap();
    assert_eq!(chart["home"], "https://git.example/Owner/nodegate");
    let icon = chart["icon"].as_str().unwrap();
    let icon = icon.strip_prefix(&format!("https://git.example/Owner/nodegate/raw/v{version}/")).unwrap();
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(icon).is_file(), "{icon}");
    let annotation = |name: &str| -> Value {
        serde_saphyr::from_str(chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap()).unwrap()
    };
    assert_eq!(annotation("images")[0]["image"], format!("registry.example/owner/nodegate:{version}"));
    assert_eq!(annotation("crds")[0]["kind"], "NodePolicy", "what Chart.yaml itself has is still there");
    let changes = annotation("changes");
    assert!(items(&changes).len() > 4, "{changes}");
    for change in items(&changes) {
        let text = change.as_str().unwrap();
        assert!(!text.contains("**") && !text.contains("](") && !text.contains('`'), "no markup: {text}");
    }
}
