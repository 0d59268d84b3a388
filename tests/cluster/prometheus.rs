//! Each query of the dashboard and each rule, in a real Prometheus that scrapes a leader and the API server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::control_plane::{ControlPlane, exclusive, free_port, run};
use crate::eventually::{eventually, eventually_blocking, holds};
use crate::keeping::{leading, node};
use crate::nodegate::{Nodegate, Setup};
use crate::requester::Requester;
use crate::shared::monitoring::{ALERTS, at, panels, read, rules, text};
use crate::shared::tools::promtool_complaints;
use crate::shared::tools::{there, tool};

/// Queries that return nothing here, and why.
const EMPTY: [(&str, &str); 2] = [
    ("Oldest pending node", "no node waits when all is well"),
    ("Inventories", "the policies of the fleet have no inventory"),
];

/// A running Prometheus; it ends when this is dropped.
struct Prometheus {
    child: Child,
    port: u16,
    directory: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For a query string.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

impl Prometheus {
    fn start(plane: &ControlPlane, nodegate: &Nodegate<'_>) -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [at(ALERTS)],
            "scrape_configs": [
                {"job_name": "nodegate", "static_configs": [{"targets": [nodegate.probe_address()]}]},
                {"job_name": "apiserver", "scheme": "https", "tls_config": {"insecure_skip_verify": true},
                 "authorization": {"credentials": plane.admin_token()},
                 "static_configs": [{"targets": [plane.server.trim_start_matches("https://")]}]},
            ],
        });
        let path = |name: &str| directory.path().join(name);
        fs::write(path("prometheus.yaml"), config.to_string()).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(tool("prometheus"))
            .arg(format!("--config.file={}", path("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let started = Self { child, port, directory };
        eventually_blocking("Prometheus is ready", || {
            let is_ready = started.get("/-/ready").is_some_and(|answer| answer.starts_with("HTTP/1.0 200"));
            holds(is_ready, || fs::read_to_string(started.directory.path().join("log")).unwrap())
        });
        started
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // HTTP/1.0, so that the answer comes in one piece.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn api(&self, path: &str) -> Value {
        let answer = self.get(&format!("/api/v1/{path}")).unwrap();
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["status"], "success", "{path}: {body}");
        body["data"].clone()
    }

    /// The values that a query has now; those that are not a number do not count.
    fn values(&self, query: &str) -> Vec<f64> {
        let data = self.api(&format!("query?query={}", encoded(query)));
        let values = data["result"].as_array().unwrap().iter();
        values
            .filter_map(|series| series["value"][1].as_str()?.parse().ok())
            .filter(|value: &f64| value.is_finite())
            .collect()
    }
}

/// A query as Grafana sends it.
fn sent(expression: &str) -> String {
    expression.replace("$__rate_interval", "5m").replace("$job", ".*")
}

/// Webhooks that nobody answers, for writes of ConfigMaps in a namespace: one that may fail, and one that may not.
fn unanswered() -> (String, String) {
    let url = format!("https://127.0.0.1:{}/", free_port());
    let configuration = |kind: &str, name: &str, policy: &str| {
        let webhook = json!({"name": format!("{name}.nodegate.dev"), "clientConfig": {"url": url}, "failurePolicy": policy,
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]}).to_string()
    };
    (
        configuration("ValidatingWebhookConfiguration", "fails-open", "Ignore"),
        configuration("ValidatingWebhookConfiguration", "fails-closed", "Fail"),
    )
}

/// Has the API server count a webhook that it cannot call, as it would count nodegate.
fn fail(plane: &ControlPlane) {
    let (open, closed) = unanswered();
    for (name, configuration) in [("fails-open", open), ("fails-closed", closed)] {
        plane.kubectl(&["create", "namespace", name], None).unwrap();
        plane.kubectl(&["apply", "-f", "-"], Some(&configuration)).unwrap();
        let mut write = 0;
        let counted = format!("name=\"{name}.nodegate.dev\"");
        eventually_blocking(&format!("the API server counts {name}"), || {
            write += 1;
            // It may be refused, which is what is to be counted.
            let _ = plane.kubectl(&["create", "configmap", &format!("write-{write}"), "-n", name], None);
            plane.kubectl(&["get", "--raw", "/metrics"], None).unwrap().contains(&counted)
        });
    }
}

/// The nodes of the demo join; one is changed by others, one is deleted and comes back.
async fn work(plane: &ControlPlane, admin: &Requester) {
    for name in ["yeezyai", "pgbee", "pgmac01", "pglenovo01", "thinkpad01"] {
        admin.delete(name).await;
        let mut object: Value = serde_saphyr::from_str(&read(&format!("examples/fako/nodes/{name}.yaml"))).unwrap();
        object["metadata"]["labels"]["team.owner"] = json!("vision");
        // What the kubelet claims is corrected.
        object["metadata"]["labels"]["hardware.tier"] = json!("forged");
        Requester::kubelet(plane, name).await.create(&object).await.unwrap();
    }
    let complete = |node: &Value| node["metadata"]["labels"].get("node-role.kubernetes.io/gpu-worker").is_some();
    admin.eventually("yeezyai", "the deferred label", complete).await;
    admin.create(&node("theirs", json!({"theirs.example/key": "x"}))).await.unwrap_err();
}

fn clean(plane: &ControlPlane) {
    for name in ["fails-open", "fails-closed"] {
        let _ = plane.kubectl(&["delete", "--ignore-not-found", "validatingwebhookconfiguration", name], None);
        let _ = plane.kubectl(&["delete", "--ignore-not-found", "--wait=false", "namespace", name], None);
    }
    let names = ["yeezyai", "pgbee", "pgmac01", "pglenovo01", "thinkpad01"];
    let _ = plane.kubectl(&[&["delete", "--ignore-not-found", "node"], &names[..]].concat(), None);
}

/// Waits until each query has a value, but for those that return nothing here.
async fn until_all_have_values(prometheus: &Prometheus, nodegate: &Nodegate<'_>, admin: &Requester) {
    let targets = panels().into_iter().flat_map(|panel| {
        let title = text(&panel, "title").to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| (title.clone(), sent(text(&target, "expr"))))
    });
    let mut missing: Vec<(String, String)> = targets.collect();
    let mut round = 0;
    eventually("every query has a value", async || {
        round += 1;
        admin.label("pgbee", "hardware.tier", json!(format!("drift-{round}"))).await.unwrap();
        missing.retain(|(_, query)| prometheus.values(query).is_empty());
        let unexpected = missing.iter().filter(|(title, _)| !EMPTY.iter().any(|(empty, _)| empty == title));
        let lacking: String = unexpected.map(|(title, query)| format!("{title}: {query}\n")).collect();
        holds(lacking.is_empty(), || lacking + &nodegate.probe("/metrics").unwrap())
    })
    .await;
    for (empty, why) in EMPTY {
        assert!(missing.iter().any(|(title, _)| title == empty), "{empty} has values, although {why}");
    }
}

/// All rules as Prometheus evaluated them last, none of which failed, and the names of the alerts that fire.
fn firing(prometheus: &Prometheus) -> (Value, Vec<String>) {
    let evaluated = prometheus.api("rules");
    let states = evaluated["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let (mut alerts, mut count) = (Vec::new(), 0);
    for rule in states {
        assert_eq!(rule["health"], "ok", "{rule}");
        count += 1;
        if rule["state"] == "firing" {
            alerts.push(text(rule, "name").to_owned());
        }
    }
    assert_eq!(count, rules().len());
    (evaluated, alerts)
}

#[tokio::test]
async fn every_query_of_the_dashboard_and_every_rule_works_in_a_real_prometheus() {
    if !there(&["prometheus", "promtool"]) {
        return;
    }
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    clean(plane);
    let policies: &[&str] = &["examples/fako/policy.yaml", "tests/cluster/prometheus.yaml"];
    let nodegate = leading(plane, &Setup { policies, cluster: true, ..Setup::default() }).await;
    let prometheus = Prometheus::start(plane, &nodegate);
    let led =
        || prometheus.values("nodegate_leading") == [1.0] && !prometheus.values("up{job=\"apiserver\"}").is_empty();
    eventually("both are scraped", async || holds(led(), || prometheus.api("targets"))).await;
    work(plane, &admin).await;
    fail(plane);
    until_all_have_values(&prometheus, &nodegate, &admin).await;
    facts(&prometheus);
    // An alert fires when its rule is evaluated next.
    eventually("just what happened is told", async || {
        let (evaluated, alerts) = firing(&prometheus);
        let is_right = alerts == ["LabelDrift", "ClaimsRejected", "WebhookFailsOpen", "WebhookRefusesWrites"];
        let metrics = || nodegate.probe("/metrics").unwrap();
        holds(is_right, || format!("{}\n{}\n{evaluated}\n{alerts:?} fire", nodegate.log(), metrics()))
    })
    .await;
    apply(plane, &nodegate, policies);
    drop(nodegate);
    clean(plane);
}

/// A run of `apply` that finds nothing to do is a success.
fn apply(plane: &ControlPlane, nodegate: &Nodegate<'_>, policies: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("apply.prom");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("apply").arg("--kubeconfig").arg(plane.kubeconfig_file("admin", None));
    command.args(["--namespace", &nodegate.namespace]).arg("--metrics-file").arg(&file);
    for policy in policies {
        command.arg("--policy").arg(at(policy));
    }
    let said = run(&mut command, None).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap();
    assert!(value("nodegate_apply_nodes{result=\"complete\"}") >= 5.0, "{text}{said}");
    assert_eq!(value("nodegate_apply_nodes{result=\"unfinished\"}"), 0.0);
    assert_eq!(
        value("nodegate_apply_last_success_timestamp_seconds"),
        value("nodegate_apply_last_run_timestamp_seconds")
    );
    assert_eq!(promtool_complaints(&text), "");
}

/// What the fleet is.
fn facts(prometheus: &Prometheus) {
    let value = |query: &str| prometheus.values(query);
    assert_eq!(value("nodegate_nodes_by_label{key=\"hardware.tier\",value=\"standard\"}"), [2.0]);
    assert_eq!(value("nodegate_nodes_by_label{value=\"forged\"}"), Vec::<f64>::new());
    assert_eq!(value("nodegate_required_missing_nodes{policy=\"monitored\"} - on () nodegate_nodes"), [0.0]);
    assert_eq!(value("nodegate_node_completion_seconds_count"), [1.0], "the node with a role label waited");
    assert_eq!(value("nodegate_denials_total{rule=\"theirs\"}"), [1.0]);
    assert!(value("nodegate_deferrals_total")[0] >= 1.0);
}
