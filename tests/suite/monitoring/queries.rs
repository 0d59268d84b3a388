//! What expressions ask for exists: every metric, and every label of it.

use std::collections::BTreeMap;

use nodegate_base::metrics::{Entry, Metrics};
use regex::Regex;

use crate::shared::monitoring::expressions;

/// Metrics that are not nodegate's, with the labels that rules and panels use of them.
const OTHERS: [(&str, &[&str]); 6] = [
    ("kube_node_info", &["node"]),
    ("kube_node_labels", &["node", "label_hardware_tier"]),
    ("apiserver_admission_webhook_fail_open_count", &["name"]),
    ("apiserver_admission_webhook_rejection_count", &["name", "error_type"]),
    ("apiserver_mutating_admission_policy_check_total", &["policy", "error_type"]),
    ("apiserver_validating_admission_policy_check_total", &["policy", "error_type", "enforcement_action"]),
];
/// Labels that Prometheus adds to what it scrapes.
const TARGET: [&str; 3] = ["instance", "job", "namespace"];
/// Parts of a histogram.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

fn labels_of() -> BTreeMap<String, Vec<String>> {
    let mut known = BTreeMap::new();
    for Entry { name, kind, labels, .. } in Metrics::new().entries() {
        if kind == "histogram" {
            let with_le =
                |part: &str| labels.iter().cloned().chain((part == "_bucket").then(|| "le".to_owned())).collect();
            known.extend(PARTS.map(|part| (format!("{name}{part}"), with_le(part))));
        } else {
            known.insert(name, labels);
        }
    }
    known.extend(
        OTHERS.map(|(name, labels)| (name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())),
    );
    known
}

/// The metrics of an expression, each with the labels that its own matchers name.
fn selectors(expression: &str) -> Vec<(String, Vec<String>)> {
    let selector = Regex::new(r"\b((?:nodegate|process|apiserver|kube)_[a-z_]+)(\{([^}]*)\})?").unwrap();
    let matcher = Regex::new(r#"([a-z_]+)\s*(?:=~|!~|!=|=)\s*""#).unwrap();
    let names = |text: &str| matcher.captures_iter(text).map(|found| found[1].to_owned()).collect();
    let found = selector.captures_iter(expression);
    found.map(|found| (found[1].to_owned(), found.get(3).map_or_else(Vec::new, |text| names(text.as_str())))).collect()
}

/// The labels that an expression groups by.
fn grouped(expression: &str) -> Vec<String> {
    let grouping = Regex::new(r"\b(?:by|on) \(([^)]*)\)").unwrap();
    let groups = grouping.captures_iter(expression).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    groups
        .iter()
        .flat_map(|group| group.split(','))
        .map(|label| label.trim().to_owned())
        .filter(|label| !label.is_empty())
        .collect()
}

#[test]
fn every_metric_and_label_that_rules_and_panels_use_exists() {
    let known = labels_of();
    let mut faults = Vec::new();
    for expression in expressions() {
        let used = selectors(&expression);
        assert!(!used.is_empty(), "no metric: {expression}");
        let mut labels: Vec<&str> = TARGET.to_vec();
        for (metric, matched) in &used {
            let Some(own) = known.get(metric) else {
                faults.push(format!("there is no {metric}: {expression}"));
                continue;
            };
            let has = |label: &String| own.contains(label) || TARGET.contains(&label.as_str());
            faults.extend(
                matched
                    .iter()
                    .filter(|label| !has(label))
                    .map(|label| format!("{metric} has no {label}: {expression}")),
            );
            labels.extend(own.iter().map(String::as_str));
        }
        let unknown = grouped(&expression).into_iter().filter(|label| !labels.contains(&label.as_str()));
        faults.extend(unknown.map(|label| format!("nothing has {label}: {expression}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_an_expression_uses_is_found() {
    let expression =
        r#"sum by (policy, rule) (rate(nodegate_denials_total{job=~"$job",mode="x"}[5m])) or nodegate_rules"#;
    let used = [
        ("nodegate_denials_total".to_owned(), vec!["job".to_owned(), "mode".to_owned()]),
        ("nodegate_rules".to_owned(), vec![]),
    ];
    assert_eq!(selectors(expression), used);
    assert_eq!(grouped(expression), ["policy", "rule"]);
}
