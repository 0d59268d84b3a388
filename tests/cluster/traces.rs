//! Traces with a real API server that traces its own requests.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use std::fs;

use kube::Client;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::control_plane::{exclusive, free_port};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::collector::{Collector, attributes, hex};
use crate::eventually::eventually;

/// The trace that the client of the test begins.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// The configuration of an API server that traces all of its requests. Nobody listens where it sends its own spans.
fn tracing(port: u16) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: 127.0.0.1:{port}\nsamplingRatePerMillion: 1000000\n"
    )
}

/// Sets a label of a node, in a trace.
async fn label_in_a_trace(client: &Client, node: &str, key: &str) {
    let patch = json!({"metadata": {"labels": {key: "1"}}}).to_string();
    let request = axum::http::Request::patch(format!("/api/v1/nodes/{node}"))
        .header("content-type", "application/merge-patch+json")
        .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"));
    client.request::<Value>(request.body(patch.into_bytes()).unwrap()).await.unwrap();
}

/// The first span that is so, once it is there.
async fn found(collector: &Collector, what: &str, is_it: impl Fn(&Span, &Value) -> bool) -> Span {
    eventually(what, async || {
        let spans: Vec<Span> = collector.arrived().into_iter().map(|arrived| arrived.span).collect();
        let found = spans.iter().find(|span| is_it(span, &attributes(&span.attributes))).cloned();
        found.ok_or_else(|| format!("{:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>()))
    })
    .await
}

#[tokio::test]
async fn reviews_join_the_api_servers_trace_and_its_reviews_of_our_writes_join_the_reconciles() {
    const NODE: &str = "traced-1";
    let cluster = exclusive();
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("tracing.yaml");
    fs::write(&configuration, tracing(free_port())).unwrap();
    let plane = cluster.plane.another_api_server(&[format!("--tracing-config-file={}", configuration.display())]);
    let policy = directory.path().join("policy.yaml");
    fs::write(&policy, "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: traced}\nspec:\n  rules:\n    - name: role\n      match: {names: [traced-*]}\n      labels: {node-role.kubernetes.io/worker: \"\"}\n").unwrap();
    let admin = Requester::admin(&plane).await;
    admin.delete(NODE).await;
    let collector = Collector::start();
    let setup = Setup {
        policies: &[policy.to_str().unwrap()],
        cluster: true,
        environment: &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
            ("OTEL_BSP_SCHEDULE_DELAY", "10"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ],
        ..Setup::default()
    };
    let _nodegate = Nodegate::start(&plane, &setup);

    // Its kubelet may not set this role, so the controller does.
    let kubelet = Requester::kubelet(&plane, NODE).await;
    kubelet.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})).await.unwrap();
    let role = "node-role.kubernetes.io/worker";
    admin.eventually(NODE, "it has its role", |node| label(node, role).is_some()).await;
    let of_node = |told: &Value| told["k8s.node.name"] == NODE;
    let write = found(&collector, "a write of the node", |span, _| span.name == "write node").await;
    let is_parent = |span: &Span, told: &Value| span.span_id == write.parent_span_id && of_node(told);
    let root = found(&collector, "its reconcile", is_parent).await;
    assert_eq!((root.name.as_str(), root.parent_span_id.len(), &root.trace_id), ("reconcile", 0, &write.trace_id));
    for step in ["plan", "write record"] {
        found(&collector, step, |span, _| span.name == step && span.parent_span_id == root.span_id).await;
    }
    // The API server passed the trace of the write on, in the calls that the write caused.
    let review = found(&collector, "the review of this write", |span, told| {
        span.name == "POST /mutate" && of_node(told) && span.trace_id == root.trace_id
    })
    .await;
    assert!(
        review.parent_span_id != write.span_id && !review.parent_span_id.is_empty(),
        "the API server's span is between"
    );

    label_in_a_trace(&plane.client(None).await, NODE, "team").await;
    for endpoint in ["POST /mutate", "POST /validate"] {
        let review = found(&collector, endpoint, |span, _| span.name == endpoint && hex(&span.trace_id) == TRACE).await;
        let parent = hex(&review.parent_span_id);
        assert!(!parent.is_empty() && parent != CLIENT, "the API server's span is between: {parent}");
        assert_eq!(review.flags, 0x301, "sampled, with a parent in another process");
    }
    admin.delete(NODE).await;
}
