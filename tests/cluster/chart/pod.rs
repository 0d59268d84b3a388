//! A pod without a kubelet: the chart's volumes as files, the container's arguments, the real server.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodegate_base::traces::{Sampling, TraceSettings};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{NAMESPACE, Objects, items, nodegate, value_sets};
use crate::authority::{Authority, Identity, client_config};
use crate::eventually::eventually_blocking;

/// A running server; gone when this is dropped.
struct Pod {
    child: Child,
    /// Where the server is, with its real port.
    address: String,
    _root: TempDir,
}

impl Pod {
    /// Starts with the chart's volumes, and what `mount` puts beside them.
    fn start(objects: &Objects, mount: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        objects.mount(root.path());
        mount(root.path());
        let log = root.path().join("log");
        let arguments =
            items(&objects.container()["args"]).iter().map(|argument| here(argument.as_str().unwrap(), root.path()));
        let mut command = nodegate();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let mut pod = Self { child: command.spawn().unwrap(), address: String::new(), _root: root };
        pod.address = eventually_blocking("it is ready", || {
            let text = fs::read_to_string(&log).unwrap();
            assert!(pod.child.try_wait().unwrap().is_none(), "{text}");
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let ready = lines.find(|line| line["message"] == "ready");
            ready.map(|ready| ready["address"].as_str().unwrap().to_owned()).ok_or(text)
        });
        pod
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container's argument for a process on this machine: paths below `root`, a free port of loopback.
fn here(argument: &str, root: &Path) -> String {
    match argument.split_once('=') {
        Some((flag @ ("--listen" | "--probe-listen"), _)) => format!("{flag}=127.0.0.1:0"),
        Some((flag, path)) if path.starts_with('/') => format!("{flag}={}{path}", root.display()),
        _ => argument.to_owned(),
    }
}

/// Where an API server finds the webhook, and what it sends there.
struct Called {
    name: String,
    ca: Vec<u8>,
    path: String,
}

impl Called {
    fn by(objects: &Objects) -> Self {
        let config = &objects.webhooks("MutatingWebhookConfiguration")[0]["clientConfig"];
        Self {
            name: format!("{}.{NAMESPACE}.svc", config["service"]["name"].as_str().unwrap()),
            ca: BASE64.decode(config["caBundle"].as_str().unwrap()).unwrap(),
            path: config["service"]["path"].as_str().unwrap().to_owned(),
        }
    }
}

/// Posts a review of a kubelet's CREATE over TLS, as the API server does; the answer with its head.
fn post(address: &str, called: &Called, identity: Option<&Identity>) -> io::Result<String> {
    let review = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/admission-reviews/kubelet-create.json");
    let body = fs::read(review).unwrap();
    let config = client_config(&called.ca, identity, rustls::ALL_VERSIONS);
    let name = ServerName::try_from(called.name.clone()).unwrap();
    let client = rustls::ClientConnection::new(config, name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap());
    stream.sock.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (length, path) = (body.len(), &called.path);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

#[test]
fn a_pod_answers_by_the_charts_policies_under_the_name_and_ca_that_the_api_server_knows() {
    let Some(objects) = Objects::render(&value_sets()["policies"]) else { return };
    let pod = Pod::start(&objects, |_| {});
    let answer = post(&pod.address, &Called::by(&objects), None).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let response = &serde_json::from_str::<Value>(body).unwrap()["response"];
    let patch = String::from_utf8(BASE64.decode(response["patch"].as_str().unwrap()).unwrap()).unwrap();
    assert!(patch.contains("tier"), "{patch}");
}

#[test]
fn a_pod_has_the_credentials_of_each_inventory_in_a_directory_of_its_name() {
    let Some(objects) = Objects::render(&value_sets()["inventories"]) else { return };
    let container = objects.container();
    let arguments: Vec<&str> = items(&container["args"]).iter().filter_map(Value::as_str).collect();
    let directory = arguments.iter().find_map(|argument| argument.strip_prefix("--inventory-credentials=")).unwrap();
    assert!(arguments.contains(&"--inventory-requests-per-second=7"), "{arguments:?}");
    let mount =
        items(&container["volumeMounts"]).iter().find(|mount| mount["mountPath"] == format!("{directory}/cmdb"));
    let mount = mount.expect("the credentials are mounted");
    assert_eq!(mount["readOnly"], true);
    let pod = objects.pod();
    let volume = items(&pod["spec"]["volumes"]).iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    assert_eq!(volume["secret"]["secretName"], "mine");
}

#[test]
fn a_pod_reads_the_settings_of_traces_that_the_values_say() {
    let Some(objects) = Objects::render(&value_sets()["tracing"]) else { return };
    let container = objects.container();
    let read = |name: &str| {
        let variable = items(&container["env"]).iter().find(|variable| variable["name"] == name)?;
        let secret = json!({"secretKeyRef": {"name": "mine", "key": "otlp"}});
        match variable["value"].as_str() {
            Some(value) => Some(value.replace("$(POD_NAME)", "nodegate-1")),
            None if variable["valueFrom"] == secret => Some("authorization=Bearer%20abc".to_owned()),
            None => panic!("{variable}"),
        }
    };
    let settings = TraceSettings::from_environment(read, None).unwrap().unwrap();
    assert_eq!(settings.endpoint.as_str(), "https://collector.observability.svc:4318/v1/traces");
    assert_eq!(settings.sampling, Sampling::ParentBasedRatio(0.05));
    assert_eq!(settings.headers["authorization"], "Bearer abc");
    assert_eq!(settings.resource["k8s.cluster.name"], "it's \"50%\", a,b");
    assert_eq!(settings.resource["k8s.namespace.name"], NAMESPACE);
    assert_eq!(settings.resource["k8s.pod.name"], "nodegate-1");
    let (_, ca) = settings.tls.ca.unwrap();
    let mounts = items(&container["volumeMounts"]);
    let mount = mounts.iter().find(|mount| ca.starts_with(mount["mountPath"].as_str().unwrap())).unwrap();
    let volumes = items(&objects.pod()["spec"]["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    let file = json!({"name": "mine", "items": [{"key": "ca.crt", "path": ca.file_name().unwrap().to_str()}]});
    assert_eq!(volume["configMap"], file);
    let plain = Objects::render(&value_sets()["defaults"]).unwrap();
    let has_none = |variable: &Value| !variable["name"].as_str().unwrap().starts_with("OTEL_");
    assert!(items(&plain.container()["env"]).iter().all(has_none));
}

/// What the kubelet does with the CA of callers, an object named `mine` that is not the chart's.
fn mount_callers(objects: &Objects, source: &str, key: &str, ca: &Authority, root: &Path) {
    let volumes = items(&objects.pod()["spec"]["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == "callers").unwrap();
    let source = if source == "caSecret" { &volume["secret"] } else { &volume["configMap"] };
    let name = if source["secretName"].is_string() { &source["secretName"] } else { &source["name"] };
    assert_eq!((name, &source["items"][0]["key"]), (&json!("mine"), &json!(key)));
    let mounts = items(&objects.container()["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == "callers").unwrap()["mountPath"].as_str().unwrap();
    let directory = root.join(mount.trim_start_matches('/'));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(source["items"][0]["path"].as_str().unwrap()), &ca.pem).unwrap();
}

#[test]
fn the_secret_of_the_ca_alone_makes_a_pod_require_a_client_certificate() {
    let ca = Authority::new("callers");
    let mut values = value_sets()["policies"].clone();
    values["clientAuth"] = json!({"caSecret": "mine"});
    let Some(objects) = Objects::render(&values) else { return };
    let pod = Pod::start(&objects, |root| mount_callers(&objects, "caSecret", "ca.crt", &ca, root));
    let called = Called::by(&objects);
    let answer = post(&pod.address, &called, Some(&ca.client("any name"))).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    post(&pod.address, &called, None).expect_err("without a certificate");
    let other = Authority::new("others");
    post(&pod.address, &called, Some(&other.client("any name"))).expect_err("of another CA");
}

#[test]
fn a_pod_with_client_auth_answers_only_clients_with_such_a_certificate() {
    let ca = Authority::new("callers");
    for source in ["caSecret", "caConfigMap"] {
        let mut values = value_sets()["policies"].clone();
        values["clientAuth"] = json!({source: "mine", "key": "bundle.pem", "names": ["api-server", "other"]});
        let Some(objects) = Objects::render(&values) else { return };
        let pod = Pod::start(&objects, |root| mount_callers(&objects, source, "bundle.pem", &ca, root));
        let called = Called::by(&objects);
        for allowed in ["api-server", "other"] {
            let answer = post(&pod.address, &called, Some(&ca.client(allowed))).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        post(&pod.address, &called, None).expect_err("without a certificate");
        post(&pod.address, &called, Some(&ca.client("kubelet"))).expect_err("of another name");
    }
}
