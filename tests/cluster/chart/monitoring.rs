//! What the chart has for Prometheus and Grafana.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{CHART, NAMESPACE, Objects, items, selects, value_sets};

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(CHART).join("files").join(name)).unwrap()
}

#[test]
fn monitors_find_the_metrics_port_of_the_pods_that_serve() {
    let sets = value_sets();
    let Some(objects) = Objects::render(&sets["monitoring"]) else { return };
    let monitor = objects.only("ServiceMonitor");
    let service = objects.only("Service");
    assert_eq!(
        (&monitor["metadata"]["namespace"], &monitor["metadata"]["labels"]["release"]),
        (&json!("monitoring"), &json!("stack"))
    );
    assert_eq!(
        monitor["spec"]["namespaceSelector"]["matchNames"],
        json!([NAMESPACE]),
        "the pods are not in its own namespace"
    );
    assert!(selects(&monitor["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"]));
    let endpoint = &monitor["spec"]["endpoints"][0];
    let port = items(&service["spec"]["ports"]).iter().find(|port| port["name"] == endpoint["port"]).unwrap();
    let ports = items(&objects.container()["ports"]);
    let target = ports.iter().find(|target| target["name"] == port["targetPort"]).unwrap();
    assert_eq!((&target["containerPort"], &target["name"]), (&port["port"], &json!("probes")));
    assert_eq!((&endpoint["interval"], &endpoint["path"]), (&json!("1m30s"), &json!("/metrics")));

    let Some(objects) = Objects::render(&sets["pod monitor and no tests"]) else { return };
    assert!(objects.kind("ServiceMonitor").is_empty());
    let monitor = objects.only("PodMonitor");
    assert_eq!(monitor["metadata"]["namespace"], NAMESPACE);
    assert!(selects(&monitor["spec"]["selector"]["matchLabels"], &objects.pod()["metadata"]["labels"]));
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert!(items(&objects.container()["ports"]).iter().any(|port| port["name"] == endpoint["port"]));
    assert!(endpoint["interval"].is_null(), "Prometheus' own");
    let Some(objects) = Objects::render(&sets["defaults"]) else { return };
    assert!(["ServiceMonitor", "PodMonitor", "PrometheusRule"].iter().all(|kind| objects.kind(kind).is_empty()));
}

/// The rules of groups, with the name of each alert or record.
fn rules(groups: &Value) -> Vec<(String, Value)> {
    let all = items(groups).iter().flat_map(|group| items(&group["rules"]));
    let name = |rule: &Value| rule["alert"].as_str().or(rule["record"].as_str()).unwrap().to_owned();
    all.map(|rule| (name(rule), rule.clone())).collect()
}

#[test]
fn the_rules_are_those_of_the_file_unless_the_values_leave_some_out() {
    let sets = value_sets();
    let alerts: Value = serde_saphyr::from_str(&file("alerts.yaml")).unwrap();
    let Some(objects) = Objects::render(&sets["pod monitor and no tests"]) else { return };
    assert_eq!(
        objects.only("PrometheusRule")["spec"]["groups"],
        alerts["groups"],
        "without further values nothing is changed"
    );

    let Some(objects) = Objects::render(&sets["monitoring"]) else { return };
    let rendered = rules(&objects.only("PrometheusRule")["spec"]["groups"]);
    let mut expected = rules(&alerts["groups"]);
    expected.retain(|(name, _)| name != "NodeMissingLabels");
    for (_, rule) in &mut expected {
        if rule["alert"].is_string() {
            rule["labels"]["team"] = json!("it's \"quoted\" {{ $labels.node }}");
            let runbook =
                format!("https://git.example.com/nodegate/{}", rule["annotations"]["runbook_url"].as_str().unwrap());
            rule["annotations"]["runbook_url"] = json!(runbook);
        }
    }
    expected.push(("a:b".to_owned(), json!({"record": "a:b", "expr": "vector(1)"})));
    assert_eq!(rendered, expected);
    let every: Vec<String> = rules(&alerts["groups"]).into_iter().map(|(name, _)| name).collect();
    assert_eq!(every.len(), every.iter().collect::<BTreeSet<_>>().len(), "`without` needs names that are unique");
    let alone = json!({"controller": {"enabled": false}, "monitoring": {"prometheusRule": {"enabled": true}}});
    let mut expected = rules(&alerts["groups"]);
    expected.retain(|(name, _)| name != "NobodyLeads");
    assert_eq!(rules(&Objects::render(&alone).unwrap().only("PrometheusRule")["spec"]["groups"]), expected);
    let none = json!({"monitoring": {"prometheusRule": {"enabled": true, "without": every}}});
    assert_eq!(Objects::render(&none).unwrap().only("PrometheusRule")["spec"]["groups"], json!([]));
}

#[test]
fn the_dashboard_is_the_file_with_the_label_and_the_folder_that_the_sidecar_reads() {
    let sets = value_sets();
    let Some(objects) = Objects::render(&sets["monitoring"]) else { return };
    let map = objects.named("ConfigMap", &json!("nodegate-dashboard")).unwrap();
    assert_eq!(map["data"]["nodegate.json"].as_str().unwrap(), file("dashboard.json").trim_end());
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(map["metadata"]["annotations"], json!({"grafana_folder": "Nodes: {{ all }}", "a": "b"}));
    let Some(objects) = Objects::render(&sets["pod monitor and no tests"]) else { return };
    let map = objects.named("ConfigMap", &json!("nodegate-dashboard")).unwrap();
    assert_eq!(map["metadata"]["labels"]["other"], "1");
    assert!(map["metadata"]["annotations"].is_null(), "no folder is set");
}
