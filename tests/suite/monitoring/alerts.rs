//! Each alert fires when it should, and no other does; and each has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::programs::run;
use crate::serve::Serve;
use crate::shared::monitoring::{ALERTS, at, read, rules, text};
use crate::shared::tools::{there, tool};

const RUNBOOKS: &str = "docs/runbooks.md";

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

/// Series that make one alert fire: their values minute by minute, in the notation of promtool.
struct Case {
    alert: &'static str,
    series: &'static [(&'static str, &'static str)],
    /// A minute at which the alert does not fire yet, and one at which it does.
    quiet: u32,
    fires: u32,
    labels: &'static [(&'static str, &'static str)],
    summary: &'static str,
}

const CASES: [Case; 29] = [
    Case {
        alert: "NodeMissingLabels",
        series: &[
            ("kube_node_info{node=\"a\"}", "1x30"),
            ("kube_node_info{node=\"b\"}", "1x30"),
            ("kube_node_labels{node=\"a\",label_hardware_tier=\"gold\"}", "1x30"),
            ("kube_node_labels{node=\"b\"}", "1x30"),
        ],
        quiet: 3,
        fires: 6,
        labels: &[("node", "b")],
        summary: "Node b has no label hardware.tier",
    },
    // The last node loses the label.
    Case {
        alert: "NodeMissingLabels",
        series: &[
            ("kube_node_info{node=\"a\"}", "1x60"),
            ("kube_node_labels{node=\"a\",label_hardware_tier=\"gold\"}", "1x5 stale"),
            ("kube_node_labels{node=\"a\"}", "_x5 1x60"),
        ],
        quiet: 9,
        fires: 40,
        labels: &[("node", "a")],
        summary: "Node a has no label hardware.tier",
    },
    Case {
        alert: "NodesLackRequiredLabels",
        // kube-state-metrics does not export the label, so nothing is known of it.
        series: &[
            ("nodegate_required_missing_nodes{policy=\"fleet\",rule=\"tier\"}", "0x5 3x30"),
            ("kube_node_info{node=\"a\"}", "1x30"),
            ("kube_node_labels{node=\"a\"}", "1x30"),
        ],
        quiet: 8,
        fires: 12,
        labels: &[("policy", "fleet"), ("rule", "tier")],
        summary: "3 nodes lack what fleet/tier requires",
    },
    Case {
        alert: "NodesViolatePolicies",
        series: &[
            ("nodegate_violating_nodes{policy=\"fleet\",rule=\"tier\",mode=\"enforce\"}", "2x30"),
            ("nodegate_violating_nodes{policy=\"fleet\",rule=\"owner\",mode=\"audit\"}", "9x30"),
        ],
        quiet: 3,
        fires: 6,
        labels: &[("policy", "fleet"), ("rule", "tier")],
        summary: "2 nodes violate fleet/tier",
    },
    Case {
        alert: "NodeWaitsForLabels",
        series: &[
            ("nodegate_nodes_pending_too_long{instance=\"leader\"}", "0x5 2x30"),
            ("nodegate_nodes_pending_too_long{instance=\"other\"}", "0x30"),
        ],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "2 nodes still wait for labels or taints after --pending-timeout, and pods cannot run on them",
    },
    Case {
        alert: "NodesReleasedIncomplete",
        series: &[("nodegate_nodes_released_incomplete_total{instance=\"leader\"}", "0x5 2x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Nodes were released after --pending-timeout although they lacked labels or taints",
    },
    Case {
        alert: "LabelsFailToBeRestored",
        series: &[
            ("nodegate_restores_total{result=\"success\"}", "0+1x30"),
            ("nodegate_restores_total{result=\"failure\"}", "0x5 1x30"),
        ],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Saved labels or taints of a node could not be restored",
    },
    Case {
        alert: "LabelsFailToBeRestored",
        series: &[("nodegate_decision_notes_total{note=\"not_restored\",policy=\"\",rule=\"\"}", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Saved labels or taints of a node could not be restored",
    },
    Case {
        alert: "NodesFailToBeReconciled",
        series: &[("nodegate_reconciles_total{result=\"failure\"}", "0x5 1x3 2+1x30")],
        quiet: 8,
        fires: 15,
        labels: &[],
        summary: "nodegate could not bring nodes to their desired labels and taints",
    },
    Case {
        alert: "SavedStateUnreadable",
        series: &[("nodegate_unreadable_states_total", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Saved state of a node could not be parsed and counts as empty",
    },
    Case {
        alert: "LabelDrift",
        series: &[
            ("nodegate_decision_notes_total{note=\"reverted\",policy=\"fleet\",rule=\"gpu\"}", "_x5 1x30"),
            ("nodegate_decision_notes_total{note=\"unknown\",policy=\"fleet\",rule=\"gpu\"}", "1+1x30"),
        ],
        quiet: 4,
        fires: 8,
        labels: &[("policy", "fleet"), ("rule", "gpu")],
        summary: "A writer changed a key that fleet/gpu sets; the change was reverted",
    },
    // The counter is older than an hour.
    Case {
        alert: "LabelDrift",
        series: &[("nodegate_decision_notes_total{note=\"reverted\",policy=\"fleet\",rule=\"gpu\"}", "1x65 2x30")],
        quiet: 64,
        fires: 68,
        labels: &[("policy", "fleet"), ("rule", "gpu")],
        summary: "A writer changed a key that fleet/gpu sets; the change was reverted",
    },
    Case {
        alert: "ClaimsRejected",
        series: &[("nodegate_claims_rejected_total{policy=\"hardware\",rule=\"tier\"}", "_x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[("policy", "hardware"), ("rule", "tier")],
        summary: "Claims of a joining kubelet were rejected by hardware/tier",
    },
    Case {
        alert: "GuardNotCurrent",
        series: &[("nodegate_guard_not_current", "0x5 1x30")],
        quiet: 8,
        fires: 12,
        labels: &[],
        summary: "The guard lacks protected keys of the policies in force, so kubelets can set them while no replica answers",
    },
    Case {
        alert: "LabelsFlap",
        series: &[("nodegate_left_alone_keys", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Another writer keeps undoing what nodegate sets, so nodegate no longer repairs these keys",
    },
    Case {
        alert: "LabelsFlap",
        series: &[("nodegate_keys_left_alone_total", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Another writer keeps undoing what nodegate sets, so nodegate no longer repairs these keys",
    },
    Case {
        alert: "AdmissionsMissed",
        series: &[("nodegate_admitted_unseen_total", "0x5 2x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "Nodes joined or changed while no replica of nodegate was called",
    },
    Case {
        alert: "WebhookFailsOpen",
        series: &[
            ("apiserver_admission_webhook_fail_open_count{name=\"validate.nodegate.dev\"}", "_x5 1x30"),
            ("apiserver_admission_webhook_fail_open_count{name=\"others.example.com\"}", "0+5x30"),
        ],
        quiet: 4,
        fires: 7,
        labels: &[("name", "validate.nodegate.dev")],
        summary: "The API server could not call validate.nodegate.dev and admitted writes without it",
    },
    Case {
        alert: "WebhookFailsOpen",
        series: &[("apiserver_admission_webhook_fail_open_count{name=\"nodes.nodegate.dev\"}", "3x20 4x30")],
        quiet: 19,
        fires: 23,
        labels: &[("name", "nodes.nodegate.dev")],
        summary: "The API server could not call nodes.nodegate.dev and admitted writes without it",
    },
    Case {
        alert: "NativePolicyFails",
        series: &[
            (
                "apiserver_mutating_admission_policy_check_total{policy=\"nodegate-1\",policy_binding=\"nodegate-1\",error_type=\"invalid_error\"}",
                "_x5 1x30",
            ),
            (
                "apiserver_mutating_admission_policy_check_total{policy=\"nodegate-1\",policy_binding=\"nodegate-1\",error_type=\"no_error\"}",
                "0+5x30",
            ),
            (
                "apiserver_mutating_admission_policy_check_total{policy=\"others\",policy_binding=\"others\",error_type=\"invalid_error\"}",
                "0+5x30",
            ),
        ],
        quiet: 4,
        fires: 7,
        labels: &[("policy", "nodegate-1"), ("error_type", "invalid_error")],
        summary: "The API server cannot evaluate the native policy nodegate-1 (invalid_error)",
    },
    Case {
        alert: "NativePolicyFails",
        series: &[(
            "apiserver_validating_admission_policy_check_total{policy=\"nodegate-guard\",policy_binding=\"nodegate-guard\",error_type=\"out_of_budget\",enforcement_action=\"deny\"}",
            "3x20 4x30",
        )],
        quiet: 19,
        fires: 23,
        labels: &[("policy", "nodegate-guard"), ("error_type", "out_of_budget")],
        summary: "The API server cannot evaluate the native policy nodegate-guard (out_of_budget)",
    },
    Case {
        alert: "WebhookRefusesWrites",
        series: &[
            (
                "apiserver_admission_webhook_rejection_count{name=\"validate.nodegate.dev\",error_type=\"calling_webhook_error\"}",
                "_x5 1x30",
            ),
            (
                "apiserver_admission_webhook_rejection_count{name=\"validate.nodegate.dev\",error_type=\"no_error\"}",
                "0+5x30",
            ),
        ],
        quiet: 4,
        fires: 7,
        labels: &[("name", "validate.nodegate.dev"), ("error_type", "calling_webhook_error")],
        summary: "The API server refused writes because it could not call validate.nodegate.dev (calling_webhook_error)",
    },
    Case {
        alert: "PolicyFaulty",
        series: &[
            ("nodegate_policy_faulty{policy=\"gpu\",instance=\"a\"}", "0x5 1x30"),
            ("nodegate_policy_faulty{policy=\"gpu\",instance=\"b\"}", "0x5 1x30"),
            ("nodegate_policy_faulty{policy=\"other\",instance=\"a\"}", "0x30"),
        ],
        quiet: 4,
        fires: 7,
        labels: &[("policy", "gpu")],
        summary: "A policy does not compile (gpu); the last good one stays in force",
    },
    Case {
        alert: "PolicyFaulty",
        series: &[("nodegate_policy_files_faulty", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "A policy does not compile; the last good one stays in force",
    },
    Case {
        alert: "CertificateExpires",
        series: &[
            ("nodegate_certificate_not_after_timestamp_seconds{instance=\"a\"}", "1300000x5 600000x30"),
            ("nodegate_certificate_not_after_timestamp_seconds{instance=\"b\"}", "0x30"),
        ],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "The serving certificate expires in 6d 22h 33m 0s",
    },
    Case {
        alert: "NobodyLeads",
        series: &[("nodegate_leading{instance=\"a\"}", "1x5 0x30"), ("nodegate_leading{instance=\"b\"}", "0x30")],
        quiet: 5,
        fires: 9,
        labels: &[],
        summary: "No replica of nodegate leads, so nothing is repaired or saved",
    },
    Case {
        alert: "RemovalsHeldBack",
        series: &[("nodegate_removals_held_back_nodes", "0x5 40x30")],
        quiet: 4,
        fires: 7,
        labels: &[],
        summary: "A change of policies would remove labels or taints from 40 nodes, and waits",
    },
    Case {
        alert: "InventoryFails",
        series: &[("nodegate_inventory_failing{policy=\"fleet\",inventory=\"cmdb\"}", "1x30")],
        quiet: 8,
        fires: 12,
        labels: &[("policy", "fleet"), ("inventory", "cmdb")],
        summary: "Inventory cmdb of policy fleet does not answer",
    },
    Case {
        alert: "HardwareDiffers",
        series: &[("nodegate_hardware_differs_nodes{fact=\"count\"}", "0x5 1x30")],
        quiet: 4,
        fires: 7,
        labels: &[("fact", "count")],
        summary: "1 nodes do not have the GPUs that they had before their driver ran (count)",
    },
];

/// What a running server exposes, as series that do not change, by the name of their metric.
fn exposed() -> BTreeMap<String, Vec<Value>> {
    let serve = Serve::start(&[], &[], |_| {});
    let answer = serve.get("/metrics");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut exposed: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for sample in body.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = sample.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap().to_owned();
        exposed.entry(name).or_default().push(json!({"series": series, "values": format!("{value}x90")}));
    }
    assert!(exposed.len() > 60, "{answer}");
    exposed
}

/// Every alert at one minute: those named fire with these labels and this summary, all others are silent.
fn expectations(minute: u32, firing: Option<&Case>) -> Vec<Value> {
    let expected = |alert: &Value| {
        let fires = firing.filter(|case| alert["alert"] == case.alert);
        let alerts = fires.map(|case| {
            let labels: BTreeMap<&str, &str> =
                case.labels.iter().copied().chain([("severity", text(&alert["labels"], "severity"))]).collect();
            let annotations = json!({"summary": case.summary, "runbook_url": alert["annotations"]["runbook_url"]});
            json!({"exp_labels": labels, "exp_annotations": annotations})
        });
        json!({"eval_time": format!("{minute}m"), "alertname": alert["alert"], "exp_alerts": alerts.into_iter().collect::<Vec<_>>()})
    };
    alerts().iter().map(expected).collect()
}

/// The series of one case before those of a running server, of which another replica leads.
fn test_of(case: &Case, exposed: &BTreeMap<String, Vec<Value>>) -> Value {
    let of_case: BTreeSet<&str> = case.series.iter().map(|(series, _)| series.split('{').next().unwrap()).collect();
    let mut series: Vec<Value> =
        case.series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    if !of_case.contains("nodegate_leading") {
        series.push(json!({"series": "nodegate_leading{instance=\"leader\"}", "values": "1x90"}));
    }
    series.extend(
        exposed.iter().filter(|(name, _)| !of_case.contains(name.as_str())).flat_map(|(_, series)| series.clone()),
    );
    let expected = [expectations(case.quiet, None), expectations(case.fires, Some(case))].concat();
    json!({"name": case.alert, "interval": "1m", "input_series": series, "alert_rule_test": expected})
}

#[test]
fn each_alert_fires_when_it_should_and_no_other_does() {
    let all: BTreeSet<String> = alerts().iter().map(|alert| text(alert, "alert").to_owned()).collect();
    let tested: BTreeSet<String> = CASES.iter().map(|case| case.alert.to_owned()).collect();
    assert_eq!(tested, all, "the cases (left) and the alerts of {ALERTS} (right)");
    if !there(&["promtool"]) {
        return;
    }
    run(Command::new(tool("promtool")).args(["check", "rules", "--lint-fatal"]).arg(at(ALERTS)), None).unwrap();
    let exposed = exposed();
    let tests: Vec<Value> = CASES.iter().map(|case| test_of(case, &exposed)).collect();
    let document = json!({"rule_files": [at(ALERTS)], "evaluation_interval": "1m", "tests": tests});
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), document.to_string()).unwrap();
    let tested = run(Command::new(tool("promtool")).args(["test", "rules"]).arg(file.path()), None);
    assert!(tested.is_ok(), "{}", tested.unwrap_err());
}

#[test]
fn each_alert_says_how_bad_it_is_and_where_its_runbook_is() {
    let headings: BTreeSet<String> =
        read(RUNBOOKS).lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    let mut named = BTreeSet::new();
    for alert in alerts() {
        let name = text(&alert, "alert");
        assert!(["info", "warning", "critical"].contains(&text(&alert["labels"], "severity")), "{alert}");
        assert!(text(&alert["annotations"], "summary").len() > 20, "{alert}");
        let anchor = format!("{RUNBOOKS}#{}", name.to_lowercase());
        assert_eq!(text(&alert["annotations"], "runbook_url"), anchor);
        named.insert(name.to_owned());
    }
    assert_eq!(headings, named, "the parts of {RUNBOOKS} (left) and the alerts of {ALERTS} (right)");
}
