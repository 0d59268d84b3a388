//! Traces of the real `nodegate serve` at a collector that decodes them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use serde_json::{Value, json};

use super::admission::{CREATE, edited};
use super::authority::{self, Authority};
use super::collector::{Answer, Arrived, Collector, attributes, hex};
use super::eventually::eventually_blocking;
use super::programs::free_port;
use super::serve::{Serve, command};

const POLICY: &str = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec:\n  protect: {keys: [hardware.tier]}\n  rules:\n    - name: tier\n      labels: {hardware.tier: a-value}\n  governance:\n    reserved: [{name: tiers, keys: [hardware.tier], allow: {users: [nobody]}}]\n";

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn traceparent(trace: &str, flags: &str) -> String {
    format!("traceparent: 00-{trace}-{SPAN}-{flags}\r\ntracestate: vendor=opaque\r\n")
}

/// A server that sends each span at once, to the collector at `endpoint`.
fn serve(endpoint: &str, environment: &[(&str, &str)]) -> Serve {
    let own = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "0"), ("HOSTNAME", "pod-1")];
    Serve::start(&["--policy", "DIR/p.yaml"], &[&own, environment].concat(), |directory| {
        fs::write(directory.join("p.yaml"), POLICY).unwrap();
    })
}

/// Sends a review with these headers; it must be answered.
fn review(serve: &Serve, path: &str, headers: &str, review: &str) -> String {
    let ca = fs::read(serve.path("certs/ca.crt")).unwrap();
    let mut stream = authority::connect(&serve.address, &ca, None).unwrap();
    let length = review.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{review}"
    )
    .unwrap();
    let mut answer = String::new();
    // The end of the connection may come without TLS's own.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The spans of `collector`, once there are so many.
fn spans(collector: &Collector, serve: &Serve, count: usize) -> Vec<Arrived> {
    eventually_blocking("spans", || {
        let arrived = collector.arrived();
        if arrived.len() >= count { Ok(arrived) } else { Err(serve.log()) }
    })
    .into_iter()
    .inspect(|arrived| assert!(arrived.span.start_time_unix_nano <= arrived.span.end_time_unix_nano, "{}", serve.log()))
    .collect()
}

/// Waits until so many spans ended so.
fn until_counted(serve: &Serve, result: &str, count: u64) {
    eventually_blocking(result, || serve.metric(&format!("nodegate_trace_spans_total{{result=\"{result}\"}} {count}")));
}

/// Ends the server, which must not wait as long as it may wait for spans: a minute.
fn end_soon(serve: &mut Serve) {
    let begun = Instant::now();
    serve.signal("TERM");
    assert!(serve.end().success());
    assert!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
}

fn warnings(serve: &Serve) -> Vec<Value> {
    serve.lines().into_iter().filter(|line| line["level"] == "WARN").collect()
}

#[test]
fn a_review_is_a_span_of_its_callers_trace() {
    let collector = Collector::start();
    let serve = serve(
        &collector.endpoint(),
        &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=prod"),
        ],
    );
    review(&serve, "/mutate?timeout=10s", &traceparent(TRACE, "01"), CREATE);
    let [Arrived { span, resource }] = &spans(&collector, &serve, 1)[..] else { panic!("one span") };
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), SPAN.to_owned()));
    assert_eq!((span.name.as_str(), span.kind), ("POST /mutate", 2), "2 is a server");
    // Sampled, and the parent is in another process (`SpanFlags` of OTLP).
    assert_eq!((span.flags, span.trace_state.as_str()), (0x301, ""));
    let request: Value = serde_json::from_str(CREATE).unwrap();
    let mut told = attributes(&span.attributes);
    assert!(told["client.address"].take() == "127.0.0.1");
    assert_eq!(
        told,
        json!({
            "client.address": null,
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "http.route": "/mutate",
            "k8s.node.name": request["request"]["object"]["metadata"]["name"],
            "nodegate.allowed": true,
            "nodegate.outcome": "patched",
            "nodegate.patch.operations": 1,
            "nodegate.request.dry_run": false,
            "nodegate.request.operation": "CREATE",
            "nodegate.request.resource": "nodes",
            "nodegate.request.uid": request["request"]["uid"],
            "nodegate.rules": ["p/tier"],
            "url.path": "/mutate",
            "url.scheme": "https",
        })
    );
    for (key, value) in [("service.name", "nodegate"), ("service.instance.id", "pod-1"), ("k8s.cluster.name", "prod")] {
        assert_eq!(resource[key], value);
    }
    let head = collector.heads().concat().to_ascii_lowercase();
    for part in
        ["post /v1/traces http/1.1\r\n", "authorization: bearer abc\r\n", "content-type: application/x-protobuf\r\n"]
    {
        assert!(head.contains(part), "{head}");
    }
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(!serve.log().contains("abc"), "a secret is not logged");
}

#[test]
fn what_the_caller_does_not_sample_is_not_sent_and_a_malformed_header_is_ignored() {
    let collector = Collector::start();
    let serve = serve(&collector.endpoint(), &[]);
    review(&serve, "/mutate", &traceparent(TRACE, "00"), CREATE);
    review(&serve, "/mutate", &traceparent(&"z".repeat(32), "01"), CREATE);
    review(&serve, "/mutate", "", CREATE);
    // Spans are sent in their order, so the first review's would have arrived before these two.
    let arrived = spans(&collector, &serve, 2);
    assert_eq!(arrived.len(), 2);
    assert!(
        arrived.iter().all(|arrived| arrived.span.parent_span_id.is_empty() && hex(&arrived.span.trace_id) != TRACE)
    );
    until_counted(&serve, "sent", 2);
}

#[test]
fn a_span_has_no_value_of_a_label_no_name_of_a_user_and_no_long_text() {
    let collector = Collector::start();
    let serve = serve(&collector.endpoint(), &[]);
    let named = edited(CREATE, |review| {
        let request = &mut review["request"];
        request["uid"] = "u".repeat(1000).into();
        request["userInfo"]["username"] = "system:node:a-user".into();
        request["object"]["metadata"]["labels"]["team"] = "a-label".into();
    });
    review(&serve, "/mutate", "", &named);
    let denied = edited(UPDATE, |review| {
        review["request"]["object"]["metadata"]["labels"]["hardware.tier"] = "another-value".into();
    });
    assert!(review(&serve, "/validate", "", &denied).contains(r#""allowed":false"#));
    let arrived = spans(&collector, &serve, 2);
    let longest = arrived.iter().flat_map(|arrived| attributes(&arrived.span.attributes).as_object().unwrap().clone());
    assert!(longest.map(|(_, value)| value.to_string().len()).max().unwrap() < 300);
    let denial = attributes(&arrived[1].span.attributes);
    assert_eq!((&denial["nodegate.allowed"], &denial["nodegate.outcome"]), (&json!(false), &json!("denied")));
    for text in ["a-label", "a-value", "another-value", "a-user"] {
        assert!(!collector.contains(text), "{text}");
    }
    assert!(collector.contains("nodegate.request.uid"), "bodies are searched");
}

/// An administrator's write of a label.
const UPDATE: &str = include_str!("../data/admission-reviews/admin-label-update.json");

#[test]
fn a_collector_that_hangs_delays_neither_reviews_nor_the_end() {
    let collector = Collector::start();
    collector.answer(&[Answer::Hang]);
    let limits = [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "2"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
    ];
    let mut serve = serve(&collector.endpoint(), &limits);
    for _ in 0..20 {
        review(&serve, "/mutate", "", CREATE);
    }
    // One is on its way, and two wait.
    until_counted(&serve, "dropped", 17);
    end_soon(&mut serve);
    assert!(
        warnings(&serve).iter().any(|line| line["message"].as_str().unwrap().contains("last spans")),
        "{}",
        serve.log()
    );
}

#[test]
fn without_a_collector_reviews_are_answered_and_the_end_is_clean() {
    let mut serve = serve(&format!("http://127.0.0.1:{}", free_port()), &[]);
    for _ in 0..5 {
        review(&serve, "/mutate", "", CREATE);
    }
    serve.signal("TERM");
    assert!(serve.end().success());
    let [warning] = &warnings(&serve)[..] else { panic!("{}", serve.log()) };
    assert_eq!(warning["message"], "cannot send traces; spans are lost until the collector takes them again");
}

#[test]
fn an_outage_of_the_collector_is_two_log_lines() {
    let collector = Collector::start();
    collector.answer(&[Answer::Status(404)]);
    let serve = serve(&collector.endpoint(), &[]);
    for failed in 1..=3 {
        review(&serve, "/mutate", "", CREATE);
        until_counted(&serve, "failed", failed);
    }
    let [warning] = &warnings(&serve)[..] else { panic!("{}", serve.log()) };
    assert!(
        warning["error"].as_str().unwrap().contains("404")
            && warning["endpoint"].as_str().unwrap().contains("/v1/traces")
    );
    collector.answer(&[Answer::Take]);
    review(&serve, "/mutate", "", CREATE);
    let again = "the collector of traces takes spans again";
    let back = eventually_blocking("again", || serve.lines().into_iter().find(|line| line["message"] == again));
    assert_eq!(back["lost"], 3);
    assert_eq!(warnings(&serve).len(), 1);
}

#[test]
fn a_batch_is_sent_again_while_the_collector_is_busy_and_not_if_it_takes_a_part() {
    let collector = Collector::start();
    collector.answer(&[Answer::Status(503), Answer::Status(429), Answer::Take]);
    let serve = serve(&collector.endpoint(), &[]);
    review(&serve, "/mutate", "", CREATE);
    until_counted(&serve, "sent", 1);
    assert_eq!((collector.heads().len(), collector.arrived().len()), (3, 1));
    assert!(warnings(&serve).is_empty(), "{}", serve.log());
    collector.answer(&[Answer::Reject(1)]);
    review(&serve, "/mutate", "", CREATE);
    until_counted(&serve, "failed", 1);
    let [warning] = &warnings(&serve)[..] else { panic!("{}", serve.log()) };
    assert!(warning["error"].as_str().unwrap().contains("rejected 1 spans: too old"), "{warning}");
    assert_eq!(collector.heads().len(), 4);
}

#[test]
fn the_last_spans_are_sent_before_the_end() {
    let collector = Collector::start();
    let mut serve = serve(&collector.endpoint(), &[("OTEL_BSP_SCHEDULE_DELAY", "60000")]);
    for _ in 0..3 {
        review(&serve, "/mutate", "", CREATE);
    }
    end_soon(&mut serve);
    assert_eq!((collector.arrived().len(), collector.heads().len()), (3, 1), "in one request: {}", serve.log());
}

#[test]
fn a_collector_with_a_private_ca_is_trusted_by_its_file() {
    let authority = Authority::new("collector CA");
    let identity = authority.sign("collector", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    });
    let collector = Collector::with_tls(&identity);
    let ca = tempfile::NamedTempFile::new().unwrap();
    fs::write(ca.path(), &authority.pem).unwrap();
    let endpoint = format!("https://127.0.0.1:{}", collector.port);
    let trusting = serve(&endpoint, &[("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.path().to_str().unwrap())]);
    review(&trusting, "/mutate", "", CREATE);
    assert_eq!(spans(&collector, &trusting, 1).len(), 1);
    fs::write(ca.path(), &Authority::new("collector CA").pem).unwrap();
    let mut other = serve(&endpoint, &[("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.path().to_str().unwrap())]);
    review(&other, "/mutate", "", CREATE);
    other.signal("TERM");
    assert!(other.end().success());
    assert_eq!((collector.arrived().len(), warnings(&other).len()), (1, 1), "{}", other.log());
}

#[test]
fn wrong_settings_end_serve_before_it_listens() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:4318");
    for (variable, value, expected) in [
        ("OTEL_TRACES_SAMPLER", "sometimes", "OTEL_TRACES_SAMPLER=\"sometimes\": expected always_on"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "set it to http/protobuf"),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/nowhere/ca.crt",
            "OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere/ca.crt: could not read",
        ),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/dev/null",
            "OTEL_EXPORTER_OTLP_CERTIFICATE=/dev/null: the file contains no certificate",
        ),
    ] {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0"];
        let output = command().args(arguments).envs([endpoint, (variable, value)]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(expected), "{:?} {error}", output.status);
    }
}

#[test]
fn without_an_endpoint_there_are_no_traces() {
    let serve = Serve::start(&[], &[("OTEL_SERVICE_NAME", "x"), ("OTEL_TRACES_SAMPLER", "always_on")], |_| {});
    review(&serve, "/mutate", &traceparent(TRACE, "01"), CREATE);
    let metrics = serve.get("/metrics");
    assert!(metrics.contains("nodegate_admission_requests_total") && !metrics.contains("nodegate_trace_spans_total{"));
}
