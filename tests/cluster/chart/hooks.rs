//! What Helm runs beside an installation: before an upgrade, for `helm test`, and before it uninstalls.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{Objects, is_hook, items, manifests, nodegate, selects, value_sets};

/// The objects that are hooks; nothing when there is no `helm`.
pub(super) fn hooks(values: &Value) -> Option<Objects> {
    let all = serde_saphyr::from_multiple::<Value>(&manifests(values)?).unwrap();
    Some(Objects(all.into_iter().filter(is_hook).collect()))
}

/// The exit code of a pod's container with these ConfigMaps and further arguments, and what it prints to standard error.
pub(super) fn run_to_completion(pod: &Value, more: &[&str], config_map: impl Fn(&str) -> Value) -> (i32, String) {
    let root = tempfile::tempdir().unwrap();
    let container = &pod["containers"][0];
    for mount in items(&container["volumeMounts"]) {
        let volume = items(&pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let at = below(root.path(), mount["mountPath"].as_str().unwrap());
        fs::create_dir_all(&at).unwrap();
        for (file, text) in config_map(volume["configMap"]["name"].as_str().unwrap())["data"].as_object().unwrap() {
            fs::write(Path::new(&at).join(file), text.as_str().unwrap()).unwrap();
        }
    }
    let arguments = items(&container["args"]).iter().map(|argument| argument.as_str().unwrap());
    let arguments =
        arguments.map(|text| if text.starts_with('/') { below(root.path(), text) } else { text.to_owned() });
    let output = nodegate().args(arguments).args(more).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn below(root: &Path, path: &str) -> String {
    format!("{}{path}", root.display())
}

fn policy(rule: &Value) -> Value {
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "a"}, "spec": {"rules": [rule]}})
}

#[test]
fn before_an_upgrade_the_new_program_checks_the_new_policies() {
    let good = policy(&json!({"name": "r", "labels": {"tier": "gold"}}));
    let broken = policy(&json!({"name": "r", "labels": {"tier": "not a value"}}));
    for (file, code, said) in [(good, 0, ""), (broken, 2, "not a valid label value")] {
        let Some(hooks) = hooks(&json!({"policies": {"files": {"a.yaml": file}}})) else { return };
        let job = hooks.only("Job");
        let map = hooks.only("ConfigMap");
        for (hook, weight) in [(job, 0), (map, -1)] {
            let annotations = &hook["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/hook"], "pre-upgrade");
            let given = annotations["helm.sh/hook-weight"].as_str().map_or(0, |weight| weight.parse::<i32>().unwrap());
            assert_eq!(given, weight, "the Job needs the ConfigMap");
        }
        let template = &job["spec"]["template"];
        assert_eq!(template["spec"]["automountServiceAccountToken"], false, "it needs no rights");
        let (exit, errors) = run_to_completion(&template["spec"], &[], |name| {
            assert_eq!(map["metadata"]["name"], name);
            map.clone()
        });
        assert_eq!(exit, code, "{errors}");
        assert!(errors.contains(said), "{errors}");
        let fails = &job["spec"]["podFailurePolicy"]["rules"][0];
        assert_eq!((&fails["action"], &fails["onExitCodes"]["operator"]), (&json!("FailJob"), &json!("In")));
        assert_eq!(items(&fails["onExitCodes"]["values"]).contains(&json!(exit)), code != 0, "it is not run again");
    }
}

#[test]
fn the_check_reads_a_config_map_of_ones_own_and_can_be_left_out() {
    let named = json!({"policies": {"existingConfigMap": "mine"}});
    let Some(own) = hooks(&named) else { return };
    assert!(own.kind("ConfigMap").is_empty());
    assert_eq!(own.only("Job")["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"], "mine");
    for without in [json!({}), json!({"policies": {"existingConfigMap": "mine", "checkBeforeUpgrade": false}})] {
        assert!(hooks(&without).unwrap().kind("Job").is_empty(), "{without}");
    }
}

#[test]
fn a_job_that_differs_has_another_name_because_a_job_cannot_be_changed() {
    let name = |more: Value| {
        let mut values = json!({"policies": {"files": {"a.yaml": "x: y"}}, "fullnameOverride": "n".repeat(80)});
        values.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Some(hooks(&values)?.only("Job")["metadata"]["name"].as_str().unwrap().to_owned())
    };
    let Some(first) = name(json!({})) else { return };
    assert_eq!(name(json!({})).unwrap(), first);
    assert!(first.len() <= 63 && first.contains("-check-"), "{first}");
    for more in [
        json!({"policies": {"files": {"a.yaml": "x: z"}}}),
        json!({"image": {"tag": "2"}}),
        json!({"tolerations": []}),
        json!({"resources": {"limits": {"memory": "1Gi"}}}),
    ] {
        assert_ne!(name(more.clone()).unwrap(), first, "{more}");
    }
}

#[test]
fn pods_that_run_once_are_none_of_those_that_serve_and_the_network_policy_admits_the_test() {
    for (name, values) in value_sets() {
        let (Some(objects), Some(hooks)) = (Objects::render(&values), hooks(&values)) else { return };
        let selectors = [
            &objects.only("Deployment")["spec"]["selector"]["matchLabels"],
            &objects.only("Service")["spec"]["selector"],
            &objects.only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ];
        let once = hooks.kind("Job").into_iter().map(|job| &job["spec"]["template"]).chain(hooks.kind("Pod"));
        for pod in once.clone() {
            assert!(!selectors.iter().any(|selector| selects(selector, &pod["metadata"]["labels"])), "{name}");
            let container = &pod["spec"]["containers"][0];
            assert_eq!(container["image"], objects.container()["image"], "{name}");
            assert_eq!(container["securityContext"], objects.container()["securityContext"], "{name}");
            assert_eq!(pod["spec"]["securityContext"], objects.pod()["spec"]["securityContext"], "{name}");
            assert_eq!(pod["spec"]["imagePullSecrets"], objects.pod()["spec"]["imagePullSecrets"], "{name}");
            assert_eq!(pod["spec"]["tolerations"], objects.pod()["spec"]["tolerations"], "{name}");
        }
        for pod in hooks.kind("Pod") {
            let annotations = &pod["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/hook-output-log-policy"], "hook-succeeded,hook-failed", "{name}");
            assert_eq!(
                annotations["helm.sh/hook-delete-policy"], "before-hook-creation",
                "{name}: --logs reads it later"
            );
        }
        let refused_or_off = values["clientAuth"].is_object()
            || values["tests"]["enabled"] == json!(false)
            || values["webhooks"]["enabled"] == json!(false);
        assert_eq!(hooks.kind("Pod").is_empty(), refused_or_off, "{name}");
        let policies = objects.kind("NetworkPolicy");
        let from = policies.first().map(|policy| items(&policy["spec"]["ingress"][0]["from"]));
        if let (Some(from), [pod]) = (from.filter(|from| !from.is_empty()), &hooks.kind("Pod")[..]) {
            let admitted = from.iter().filter_map(|peer| peer.get("podSelector"));
            let admitted: Vec<&Value> =
                admitted.filter(|peer| selects(&peer["matchLabels"], &pod["metadata"]["labels"])).collect();
            assert_eq!(admitted.len(), 1, "{name}: {from:?}");
        }
    }
}

#[test]
fn the_hooks_of_an_uninstall_are_the_webhook_configurations_themselves() {
    for (name, values) in value_sets() {
        let Some(text) = manifests(&values) else { return };
        let all = serde_saphyr::from_multiple::<Value>(&text).unwrap();
        let (hooks, objects): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_hook);
        let hooks: Vec<Value> = hooks.into_iter().filter(|hook| hook["webhooks"].is_array()).collect();
        for mut hook in hooks.clone() {
            let annotations = hook["metadata"]["annotations"].as_object_mut().unwrap();
            assert_eq!(annotations.remove("helm.sh/hook").unwrap(), "pre-delete");
            assert_eq!(
                annotations.remove("helm.sh/hook-delete-policy").unwrap(),
                "before-hook-creation,hook-succeeded"
            );
            if annotations.is_empty() {
                hook["metadata"].as_object_mut().unwrap().remove("annotations");
            }
            assert!(
                objects.contains(&hook),
                "{name}: where hooks are applied like anything else, it is another object"
            );
        }
        let configurations = objects.iter().filter(|object| object["webhooks"].is_array()).count();
        assert_eq!(hooks.len(), configurations, "{name}");
    }
}
