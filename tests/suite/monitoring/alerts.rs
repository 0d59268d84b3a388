//! Each alert fires when it should, and no other does; and each has a runbook.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::programs::run;
use crate::serve::Serve;
use crate::shared::monitoring::{ALERTS, at, read, rules, text};
use crate::shared::tools::{there, tool};
use cases::{CASES, Case};

const RUNBOOKS: &str = "docs/runbooks.md";

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

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
