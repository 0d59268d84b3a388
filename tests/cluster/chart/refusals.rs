//! Values that the chart refuses, and what it says.

use serde_json::{Value, json};

use super::{CHART, RELEASE, helm, manifests, run_helm};

#[test]
fn invalid_values_are_refused_with_a_remedy() {
    let Some(helm) = helm() else { return };
    let pem = "-----BEGIN CERTIFICATE-----\n";
    for (values, said) in [
        (json!({"replica": 3}), "replica"),
        (json!({"policies": {"files": {"a.txt": "x"}}}), "a.txt"),
        (json!({"policies": {"files": {"a.yaml": {"kind": "Policy"}}}}), "kind"),
        (json!({"policies": {"files": {"a.yaml": "x: y"}, "existingConfigMap": "c"}}), "set only one of them"),
        (json!({"webhooks": {"validatingFailurePolicy": "Fail"}, "policies": {"files": {"a.yaml": "a: ["}}}), "a.yaml"),
        (json!({"webhooks": {"validatingFailurePolicy": "Fail"}, "breakGlassGroups": ["a*b"]}), "a*b"),
        (json!({"tls": {"existingSecret": "s"}}), "tls.caBundle"),
        (json!({"tls": {"caBundle": pem}}), "tls.existingSecret"),
        (json!({"clientAuth": {"caSecret": "a", "caConfigMap": "b"}}), "set only one of them"),
        (json!({"clientAuth": {"names": ["a"]}}), "clientAuth.caSecret"),
        (json!({"clientAuth": {"caSecret": "a", "names": ["a,b"]}}), "names"),
        (json!({"tls": {"existingSecret": "s", "certManager": {"enabled": true}}}), "set only one of them"),
        (json!({"serviceAccount": {"create": false}}), "serviceAccount.name"),
        (json!({"stateVolume": {"configMap": {"name": "s"}}}), "controller.enabled"),
        (json!({"controller": {"identity": "serial"}}), "identity"),
        (json!({"baseline": {"mode": "off"}}), "'/baseline/mode': value must be one of"),
        (json!({"networkPolicy": {"apiServer": ["192.0.2.10"]}}), "apiServer"),
        (
            json!({"networkPolicy": {"apiServer": ["192.0.2.10/32"], "exceptPods": ["10.0.0.0/8"]}}),
            "set only one of them",
        ),
        (
            json!({"monitoring": {"serviceMonitor": {"enable": true}}}),
            "'/monitoring/serviceMonitor': additional properties 'enable'",
        ),
        (
            json!({"monitoring": {"podMonitor": {"interval": "30"}}}),
            "'/monitoring/podMonitor/interval': '30' does not match",
        ),
        (
            json!({"monitoring": {"podMonitor": {"enabled": true}, "serviceMonitor": {"enabled": true}}}),
            "set only one of them",
        ),
        (
            json!({"monitoring": {"prometheusRule": {"enabled": true, "without": ["NodesMissing"]}}}),
            "no rule \"NodesMissing\"; its rules are: ",
        ),
        (json!({"monitoring": {"prometheusRule": {"extraGroups": [{"rules": []}]}}}), "missing property 'name'"),
        (
            json!({"monitoring": {"dashboard": {"labels": {"grafana_dashboard": 1}}}}),
            "grafana_dashboard': got number, want string",
        ),
        (json!({"webhooks": {"timeoutSeconds": {"mutating": 31}}}), "maximum: got 31, want 30"),
        (json!({"tracing": {"headersSecret": "mine"}}), "set tracing.endpoint to the collector's URL"),
        (
            json!({"tracing": {"endpoint": "http://c:4318", "caSecret": "a", "caConfigMap": "b"}}),
            "tracing.caSecret and tracing.caConfigMap: set only one of them",
        ),
        (json!({"tracing": {"endpoint": "collector:4318"}}), "'/tracing/endpoint': 'collector:4318' does not match"),
        (json!({"tracing": {"ratio": 2}}), "maximum: got 2, want 1"),
        (json!({"webhooks": {"timeoutSeconds": 5}}), "'/webhooks/timeoutSeconds': got number, want object"),
        (
            json!({"commonLabels": {"app.kubernetes.io/name": "x"}}),
            "label app.kubernetes.io/name: the chart sets it itself; remove it",
        ),
        (json!({"podLabels": {"app.kubernetes.io/instance": "x"}}), "selects pods by it; remove it"),
        (json!({"commonAnnotations": {"a": true}}), "'/commonAnnotations/a': got boolean, want string"),
        (json!({"namespaceOverride": "Nodes"}), "'/namespaceOverride': 'Nodes' does not match"),
        (json!({"extraVolumes": [{"name": "policies", "emptyDir": {}}]}), "choose another name"),
        (
            json!({"tracing": {"endpoint": "https://c:4318", "caSecret": "c"}, "extraVolumes": [{"name": "collector", "emptyDir": {}}]}),
            "the chart has a volume \"collector\" itself",
        ),
        (json!({"extraVolumes": [{"emptyDir": {}}]}), "missing property 'name'"),
        (json!({"extraVolumeMounts": [{"name": "x"}]}), "missing property 'mountPath'"),
        (json!({"extraObjects": [{"kind": "ConfigMap"}]}), "missing properties 'apiVersion', 'metadata'"),
        (json!({"extraObjects": ["{{ .Value.x }}{{ fail \"here\" }}"]}), "here"),
        (json!({"crds": {"keeps": true}}), "additional properties 'keeps'"),
        (json!({"revisionHistoryLimit": -1}), "'/revisionHistoryLimit': minimum"),
        (
            json!({"policies": {"checkBeforeUpgrade": "yes"}}),
            "'/policies/checkBeforeUpgrade': got string, want boolean",
        ),
        (json!({"tests": {"enable": true}}), "additional properties 'enable'"),
        (json!({"rbac": {"aggregateToEdit": true}}), "additional properties 'aggregateToEdit'"),
        // A section that is written, but empty.
        (json!({"monitoring": null}), "missing property 'monitoring'"),
        (json!({"monitoring": {"dashboard": null}}), "missing property 'dashboard'"),
        (json!({"webhooks": {"timeoutSeconds": {"mutating": null}}}), "missing property 'mutating'"),
    ] {
        let refused = run_helm(helm, &["template", RELEASE, CHART], &values);
        let error = refused.err().unwrap_or_else(|| panic!("{values} is not refused"));
        assert!(error.contains(said), "{values}: {error}");
    }
}

#[test]
fn a_volume_may_have_the_name_of_one_that_the_chart_does_not_make() {
    let values = json!({"extraVolumes": [{"name": "collector", "emptyDir": {}}]});
    let Some((made, default)) = manifests(&values).zip(manifests(&json!({}))) else { return };
    assert!(made.contains("name: collector\n") && !default.contains("name: collector\n"));
}

#[test]
fn a_list_or_mapping_that_is_written_but_empty_is_as_if_it_were_not_there() {
    let Some(default) = manifests(&json!({})) else { return };
    for values in [
        json!({"commonLabels": null, "commonAnnotations": null, "podLabels": null, "podAnnotations": null}),
        json!({"extraVolumes": null, "extraVolumeMounts": null, "extraObjects": null, "extraEnv": null, "extraArgs": null}),
        json!({"monitoring": {"prometheusRule": {"extraGroups": null, "ruleLabels": null, "without": null, "labels": null}}}),
    ] {
        assert_eq!(manifests(&values).unwrap(), default, "{values}");
    }
    let on = json!({"enabled": true});
    let with = |rule: Value, board: Value| {
        manifests(&json!({"monitoring": {"prometheusRule": rule, "dashboard": board, "podMonitor": on}})).unwrap()
    };
    let nothing = json!({"enabled": true, "labels": null, "annotations": null, "extraGroups": null, "ruleLabels": null, "without": null});
    let board = json!({"enabled": true, "annotations": null, "folder": "x"});
    assert_eq!(with(nothing, board), with(on.clone(), json!({"enabled": true, "folder": "x"})));
}
