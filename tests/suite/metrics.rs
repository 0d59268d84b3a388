//! `/metrics`: what is registered, what is documented, and what hostile names can do to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use axum::http::{Request, StatusCode};
use nodegate_base::metrics::{ApplyRun, Count, Entry, Format, Metrics, Survey};
use nodegate_policy::RuleId;
use nodegate_webhook::admission::{Bounds, Context};
use serde_json::{Value, json};

use super::admission::{CREATE, context, send_to};
use super::programs::free_port;
use super::serve::Serve;
use super::shared::rendered;
use super::shared::tools::{promtool_complaints, there};

const REFERENCE: &str = "docs/reference/metrics.md";

/// The table of one section of the reference.
fn table(entries: &[&Entry]) -> String {
    let mut table = "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for Entry { name, kind, unit, labels, help, .. } in entries {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (unit, labels) = (unit.as_deref().unwrap_or_default(), labels.join(", "));
        writeln!(table, "| `{name}` | {kind} | {unit} | {labels} | {help} |").unwrap();
    }
    table
}

#[test]
fn the_tables_of_the_reference_are_what_the_code_registers() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(REFERENCE)).unwrap();
    let entries = [Metrics::new().entries(), Metrics::apply_entries()].concat();
    let table_of = |section: &str| table(&entries.iter().filter(|entry| entry.section == section).collect::<Vec<_>>());
    let (new, sections) = rendered::sections(&text, "metrics", table_of);
    let registered: BTreeSet<String> = entries.iter().map(|entry| entry.section.to_owned()).collect();
    assert_eq!(
        sections, registered,
        "sections of {REFERENCE} with a table (left) and sections in crates/nodegate-base/src/metrics (right)"
    );
    rendered::is_committed(REFERENCE, &new);
}

/// The samples of an exposition: the name with its labels, and the value.
fn samples(text: &str) -> BTreeMap<String, String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').map(|(series, value)| (series.to_owned(), value.to_owned())).unwrap())
        .collect()
}

/// The label names of a series, in their order.
fn label_names(series: &str) -> Vec<&str> {
    let Some((_, labels)) = series.split_once('{') else { return Vec::new() };
    let mut names = Vec::new();
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name);
        let mut escaped = false;
        let end = after.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        rest = after[end.unwrap() + 1..].trim_start_matches(',');
    }
    names
}

/// The metric that a series belongs to.
fn metric_of<'a>(series: &'a str, entries: &'a [Entry]) -> &'a Entry {
    let name = series.split('{').next().unwrap();
    let of = |name: &str| entries.iter().find(|entry| entry.name == name);
    let part = || ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    of(name).or_else(|| part().and_then(of)).unwrap_or_else(|| panic!("{series} is not in the reference"))
}

/// Metrics in which every family has a series, with names that nobody chooses in good faith.
fn hostile_metrics() -> Arc<Metrics> {
    let metrics = Metrics::new();
    let name = |at: usize| format!("a\"}} 1\n# EOF\nnodegate_leading{{x=\"\\{at}\u{7f}é{{}},");
    for at in 0..3000 {
        let (policy, rule) = (name(at), name(at + 1));
        metrics.admission.noted("conflict", &policy, &rule);
        metrics.admission.violated(&policy, &rule, "enforce", Some("unauthenticated"), 1);
        metrics.inventory.asked(&policy, &rule, "answered");
        metrics.inventory.dropped(&policy, &rule, 1);
        metrics.inventory.set_failing(&policy, &rule, true);
        metrics.inventory.set_nodes(&policy, &rule, at);
    }
    let names: Vec<String> = (0..3000).map(name).collect();
    metrics.traces.begin();
    metrics.replica.runs_on(&name(0));
    metrics.loaded.policies_judged(names.iter().map(|name| (name.as_str(), true)));
    let by_rule = |name: &String| ((name.clone(), name.clone()), 1);
    metrics.fleet.surveyed(Survey {
        violating: names.iter().map(|name| ((name.clone(), name.clone(), "warn"), 1)).collect(),
        required_missing: names.iter().map(by_rule).collect(),
        by_rule: names.iter().map(by_rule).collect(),
        conflicting_keys: names.iter().map(|name| (name.clone(), 1)).collect(),
        drifted: 1,
        removals_held_back: 1,
        left_alone: 1,
        by_pool: names.iter().map(|name| (name.clone(), 1)).collect(),
        pools_unknown: 1,
        by_gate: names.iter().map(by_rule).collect(),
    });
    let values = names.iter().map(|name| (name.clone(), 1)).collect();
    metrics.fleet.counted(Count { by_label: BTreeMap::from([("tier".to_owned(), values)]), ..Count::default() });
    metrics.fleet.hardware_differs([(nodegate_policy::gpu::probed::Fact::Count, 1)]);
    metrics.admission.bodies.refused("slow");
    metrics.callers.begin(["expired"]);
    metrics.controller.wrote("node", true);
    for name in &names {
        metrics.controller.rejected(&RuleId { policy: name.as_str().into(), rule: name.as_str().into() }, 1);
    }
    metrics
}

#[test]
fn every_series_has_the_labels_that_the_reference_lists_and_every_metric_a_series() {
    let metrics = hostile_metrics();
    let entries = metrics.entries();
    let samples = samples(&metrics.render(Format::Text));
    let mut found = BTreeSet::new();
    for series in samples.keys() {
        let entry = metric_of(series, &entries);
        let names: Vec<&str> = label_names(series).into_iter().filter(|name| *name != "le").collect();
        assert_eq!(names, entry.labels, "{series}");
        found.insert(entry.name.clone());
    }
    let registered: BTreeSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(found, registered);
}

#[test]
fn thousands_of_policies_with_odd_names_have_a_limited_number_of_series() {
    let metrics = hostile_metrics();
    let entries = metrics.entries();
    let mut series: BTreeMap<String, usize> = BTreeMap::new();
    let exposition = samples(&metrics.render(Format::OpenMetrics));
    for name in exposition.keys() {
        *series.entry(metric_of(name, &entries).name.clone()).or_default() += 1;
    }
    assert_eq!(series["nodegate_nodes_by_label"], 101);
    for name in
        ["nodegate_violations_total", "nodegate_rule_nodes", "nodegate_policy_faulty", "nodegate_inventory_nodes"]
    {
        assert_eq!(series[name], 1001, "{name}");
    }
    assert!(series.values().all(|count| *count <= 1001), "{series:?}");
    let others = exposition.get("nodegate_rule_nodes{policy=\"(others)\",rule=\"(others)\"}");
    assert_eq!(others.map(String::as_str), Some("2000"), "what has no series of its own is counted together");
    assert_eq!(exposition["nodegate_leading"], "0", "no name breaks out of its quotes");
}

/// The CREATE of a kubelet, or of a user, with other names in it.
fn review(at: usize, by_kubelet: bool) -> Value {
    let mut review: Value = serde_json::from_str(CREATE).unwrap();
    let odd = format!("hostile-{at}\"}}\n# EOF\\");
    let node = format!("hostile-node-{at}");
    let request = &mut review["request"];
    let (user, group) =
        if by_kubelet { (format!("system:node:{node}"), "system:nodes") } else { (odd.clone(), "hostile") };
    request["userInfo"]["username"] = json!(user);
    request["userInfo"]["groups"] = json!([group, odd]);
    request["name"] = json!(node);
    request["object"]["metadata"]["name"] = json!(node);
    request["object"]["metadata"]["labels"][format!("forbidden.example/hostile-{at}")] =
        json!(format!("hostile-value-{at}"));
    request["object"]["metadata"]["labels"]["hardware.tier"] = json!(format!("hostile-tier-{at}"));
    request["object"]["metadata"]["annotations"][odd.as_str()] = json!(odd);
    review
}

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: "p"}
spec:
  protect: {keys: [hardware.tier]}
  rules:
    - name: "odd \"rule\" {with} \\ everything"
      labels: {hardware.tier: standard, node-role.kubernetes.io/worker: ""}
  governance:
    reserved: [{namespaces: [forbidden.example], allow: {users: [nobody]}}]
    required: [{keys: [rack], mode: warn}]
"#;

async fn review_at(context: &Arc<Context>, endpoint: &str, review: &Value) {
    let request = Request::post(endpoint).header("content-type", "application/json").body(review.to_string().into());
    let (status, answer) = send_to(context, Bounds::default(), request.unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn names_of_nodes_users_labels_and_values_are_in_no_series() {
    let context = Arc::new(context(POLICY));
    review_at(&context, "/mutate", &review(0, true)).await;
    review_at(&context, "/validate", &review(0, false)).await;
    let before = context.metrics.render(Format::OpenMetrics);
    for at in 1..500 {
        review_at(&context, "/mutate", &review(at, true)).await;
        review_at(&context, "/validate", &review(at, false)).await;
    }
    let after = context.metrics.render(Format::OpenMetrics);
    let series = |text: &str| samples(text).into_keys().collect::<BTreeSet<_>>();
    assert_eq!(series(&before), series(&after), "1,000 nodes have the series of one");
    assert!(!after.contains("hostile"), "{after}");
    let values = samples(&after);
    assert_eq!(values["nodegate_admission_requests_total{endpoint=\"mutate\",outcome=\"patched\"}"], "500");
    assert_eq!(values["nodegate_deferrals_total"], "500", "the role label");
    assert!(values["nodegate_patch_operations_total"].parse::<u64>().unwrap() >= 500);
    assert_eq!(values["nodegate_admission_in_flight{endpoint=\"mutate\"}"], "0");
    assert_eq!(values["nodegate_admission_in_flight_bytes"], "0", "what is answered is not in flight");
    let of = |start: &str| values.iter().find(|(series, _)| series.starts_with(start)).map(|(_, value)| value.as_str());
    assert_eq!(of("nodegate_decision_notes_total{note=\"reverted\""), Some("500"));
    assert_eq!(of("nodegate_denials_total{"), Some("500"), "{after}");
}

/// `/metrics` with this `Accept` header: the content type and the body.
fn scrape(probe: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(probe).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (kind.to_owned(), body.to_owned())
}

#[test]
fn a_scraper_gets_open_metrics_if_it_asks_for_it_and_text_otherwise() {
    let serve = Serve::start(&[], &[], |_| {});
    let (kind, body) = scrape(
        &serve.probe,
        "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    );
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        body.ends_with("# EOF\n") && body.contains("# UNIT nodegate_admission_duration_seconds seconds\n"),
        "{body}"
    );
    let (kind, text) = scrape(&serve.probe, "*/*");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    assert!(
        text.contains("# TYPE nodegate_admission_requests_total counter\n")
            && text.contains("# TYPE nodegate_build_info gauge\n")
    );
    let names = |text: &str| samples(text).into_keys().collect::<BTreeSet<_>>();
    assert_eq!(names(&body), names(&text), "both have the same series");
    let values = samples(&text);
    let value = |name: &str| values[name].parse::<f64>().unwrap();
    let now = jiff::Timestamp::now().as_second() as f64;
    assert!((value("process_start_time_seconds") - now).abs() < 3600.0, "{}", values["process_start_time_seconds"]);
    assert!(
        value("process_resident_memory_bytes") > 1e6
            && value("process_open_fds") > 3.0
            && value("process_threads") > 1.0
    );
    assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_max_fds") >= value("process_open_fds"));
}

#[test]
fn promtool_finds_no_fault_in_the_metrics() {
    if !there(&["promtool"]) {
        return;
    }
    assert!(
        promtool_complaints("# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n").contains("a_total"),
        "promtool checks"
    );
    let metrics = hostile_metrics();
    metrics.loaded.policies_refused();
    assert_eq!(promtool_complaints(&metrics.render(Format::Text)), "");
    let run = ApplyRun { ended: 1.0e9, seconds: 0.25, succeeded: true, complete: 2, unfinished: 0 };
    assert_eq!(promtool_complaints(&run.exposition("")), "");
    let serve = Serve::start(&[], &[], |_| {});
    assert_eq!(promtool_complaints(&scrape(&serve.probe, "text/plain").1), "");
}

/// Runs `apply` against an API server that is not there.
fn apply_in(directory: &Path, metrics_file: &str) -> (bool, String) {
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {"token": "t"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{}", free_port())}}]});
    fs::write(directory.join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["apply", "--kubeconfig", "kubeconfig", "--namespace", "nodegate", "--metrics-file", metrics_file])
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code() == Some(2), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_apply_that_cannot_reach_the_cluster_is_counted_and_keeps_the_last_success() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("apply.prom");
    fs::write(&file, "nodegate_apply_last_success_timestamp_seconds 1700000000.0\nothers 1\n").unwrap();
    let (failed, errors) = apply_in(directory.path(), "apply.prom");
    assert!(failed, "{errors}");
    let values = samples(&fs::read_to_string(&file).unwrap());
    let value = |name: &str| values[name].parse::<f64>().unwrap();
    assert_eq!(value("nodegate_apply_last_success_timestamp_seconds"), 1_700_000_000.0);
    assert!(
        value("nodegate_apply_last_run_timestamp_seconds") > 1_700_000_000.0
            && value("nodegate_apply_duration_seconds") >= 0.0
    );
    assert_eq!((value("nodegate_apply_nodes{result=\"complete\"}"), values.contains_key("others")), (0.0, false));
    let (failed, errors) = apply_in(directory.path(), "absent/apply.prom");
    assert!(
        failed && errors.contains("--metrics-file absent/apply.prom: there is no directory absent; create it"),
        "{errors}"
    );
    let (failed, errors) = apply_in(directory.path(), ".");
    assert!(failed && errors.contains("--metrics-file .: it is a directory"), "{errors}");
}
