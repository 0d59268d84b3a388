//! A namespace with its webhook configurations, a replica that serves the Secret's certificate there, and
//! a caller that trusts what the configurations say.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use nodegate_controller::cluster::certificates::ClusterCertificates;
use nodegate_webhook::tls::{
    self, Bundle, Certificate, Limits, Observer, Pair, Phase, Protocol, RequestBody, Step, SubjectName,
};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::control_plane::ControlPlane;
use crate::eventually::{PATIENCE, eventually, holds};

/// Long enough for a watch event and a handshake on a busy machine.
pub(crate) const PROPAGATION: Duration = Duration::from_secs(3);

pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// A namespace and both webhook configurations, all of one name.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) client: kube::Client,
    pub(crate) name: String,
    plane: &'static ControlPlane,
}

fn names() -> Vec<SubjectName> {
    vec!["localhost".parse().unwrap()]
}

fn configurations(name: &str) -> String {
    let webhook = |path: &str| {
        json!({
            "name": format!("{path}.{name}.nodegate.dev"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Ignore", "clientConfig": {"url": format!("https://localhost:9/{path}")},
            "rules": [{"apiGroups": ["nobody.nodegate.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}],
        })
    };
    let object = |kind: &str, webhooks: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    let items = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        object("MutatingWebhookConfiguration", json!([webhook("mutate")])),
        object("ValidatingWebhookConfiguration", json!([webhook("validate"), webhook("validate-spared")])),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

impl Place {
    pub(crate) async fn new(plane: &'static ControlPlane, name: &str) -> Self {
        plane.kubectl(&["apply", "-f", "-"], Some(&configurations(name))).unwrap();
        Self { client: plane.client(None).await, name: name.to_owned(), plane }
    }

    /// Takes the configurations away; the namespace stays, as nobody here ends one.
    pub(crate) fn remove(&self) {
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            self.plane.kubectl(&["delete", "--ignore-not-found", kind, &self.name], None).unwrap();
        }
    }

    pub(crate) fn certificates(&self) -> ClusterCertificates {
        ClusterCertificates {
            configuration: self.name.clone(),
            propagation: PROPAGATION,
            ..ClusterCertificates::new(self.client.clone(), self.name.clone(), names())
        }
    }

    pub(crate) fn lead(&self) -> Task {
        let certificates = self.certificates();
        Task(tokio::spawn(async move { certificates.lead().await }))
    }

    /// One that reads nothing again without a watch event.
    pub(crate) fn lead_by_watching(&self) -> Task {
        let certificates = ClusterCertificates { poll: Duration::from_secs(3600), ..self.certificates() };
        Task(tokio::spawn(async move { certificates.lead().await }))
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) async fn data(&self) -> Option<Data> {
        let secret = self.secrets().get_opt("nodegate-tls").await.unwrap()?;
        Some(secret.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.0)).collect())
    }

    /// Writes the Secret as an administrator does by hand.
    pub(crate) async fn put(&self, data: Data) {
        let data = data.into_iter().map(|(key, text)| (key, ByteString(text))).collect();
        let metadata = ObjectMeta { name: Some("nodegate-tls".to_owned()), ..ObjectMeta::default() };
        let secret = Secret { metadata, data: Some(data), ..Secret::default() };
        self.secrets().create(&PostParams::default(), &secret).await.unwrap();
    }

    pub(crate) async fn damage(&self, key: &str) {
        let patch = json!({"data": {key: ByteString(b"junk".to_vec())}});
        self.secrets().patch("nodegate-tls", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// What every webhook is told to trust.
    pub(crate) async fn ca_bundles(&self) -> Vec<String> {
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone()).get(&self.name).await.unwrap();
        let validating = Api::<ValidatingWebhookConfiguration>::all(self.client.clone()).get(&self.name).await.unwrap();
        let mutating = mutating.webhooks.into_iter().flatten().map(|webhook| webhook.client_config.ca_bundle);
        let validating = validating.webhooks.into_iter().flatten().map(|webhook| webhook.client_config.ca_bundle);
        let text = |text: Option<ByteString>| String::from_utf8(text.unwrap_or_default().0).unwrap();
        mutating.chain(validating).map(text).collect()
    }

    /// Tells every webhook to trust `ca_pem`, as an administrator does by hand.
    pub(crate) async fn tell(&self, ca_pem: &str) {
        let add = |place: usize| json!({"op": "add", "path": format!("/webhooks/{place}/clientConfig/caBundle"), "value": ByteString(ca_pem.as_bytes().to_vec())});
        let patch = |count| {
            let operations: Vec<Value> = (0..count).map(add).collect();
            Patch::Json::<()>(serde_json::from_value(operations.into()).unwrap())
        };
        let parameters = PatchParams::default();
        let mutating = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        mutating.patch(&self.name, &parameters, &patch(1)).await.unwrap();
        let validating = Api::<ValidatingWebhookConfiguration>::all(self.client.clone());
        validating.patch(&self.name, &parameters, &patch(2)).await.unwrap();
    }

    /// Waits until nothing is changing and everybody is told of one CA, which is not one of `before`.
    pub(crate) async fn settled(&self, before: &str) -> Bundle {
        eventually(&format!("{} is settled", self.name), async || {
            let bundle = Bundle::parse(&self.data().await.unwrap_or_default());
            let (ca_pem, told) = (bundle.ca_pem(), self.ca_bundles().await);
            let one = tls::certificates(&ca_pem).len() == 1 && (before.is_empty() || !before.contains(&ca_pem));
            if bundle.phase() == Phase::Settled
                && bundle.is_sound(Timestamp::now())
                && one
                && told.iter().all(|told| *told == ca_pem)
            {
                return Ok(bundle);
            }
            let counts: Vec<usize> = told.iter().map(|text| tls::certificates(text).len()).collect();
            Err(format!("{bundle:?}, caBundles of {counts:?} certificates"))
        })
        .await
    }
}

/// A task that ends as a crash would when this is dropped.
pub(crate) struct Task(pub(crate) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a settled Secret holds whose CA is due and whose leaf is not.
pub(crate) fn with_due_ca() -> Data {
    let now = Timestamp::now();
    let days = |days: i64| SignedDuration::from_hours(24 * days);
    let mut bundle = Bundle::parse(&Data::new());
    // A CA of 3650 days is due when two thirds have passed.
    for at in [now - days(2435), now - days(10)] {
        while let Step::Write { bundle: written, .. } = tls::step(&bundle, &names(), Duration::ZERO, at, true).unwrap()
        {
            bundle = Bundle::parse(&written.serialise());
        }
    }
    assert_eq!(bundle.phase(), Phase::Settled);
    bundle.serialise()
}

type Outcomes = Arc<Mutex<Vec<Result<(), String>>>>;

/// A server that serves what the Secret says, and a caller that connects to it all the time.
pub(crate) struct Replica {
    place: Place,
    address: SocketAddr,
    certificate: Arc<Certificate>,
    pub(crate) pairs: Arc<AtomicUsize>,
    _follow: Task,
    _serve: Task,
    caller: Option<(Task, Outcomes)>,
}

impl Replica {
    /// Starts when the Secret has something to serve.
    pub(crate) async fn start(place: &Place) -> Self {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<Pair>();
        let certificates = place.certificates();
        let follow = Task(tokio::spawn(async move {
            certificates.follow(|pair| sender.send(pair).unwrap_or_default()).await;
        }));
        let first = timeout(PATIENCE, receiver.recv()).await.expect("a pair comes").unwrap();
        let (certificate, pairs) = (Certificate::new(first), Arc::new(AtomicUsize::new(1)));
        let (swapped, counted) = (certificate.clone(), pairs.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let protocol = Protocol::Https(tls::https(certificate.clone(), None).unwrap());
        let service =
            service_fn(|_: Request<RequestBody>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
        let observer: Observer = Arc::new(|_| {});
        let serve = tls::serve(listener, protocol, service, Limits::default(), observer, CancellationToken::new());
        let serve = Task(tokio::spawn(async move {
            let swap = async {
                while let Some(pair) = receiver.recv().await {
                    swapped.swap(pair);
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            };
            tokio::join!(serve, swap);
        }));
        Self { place: place.clone(), address, certificate, pairs, _follow: follow, _serve: serve, caller: None }
    }

    pub(crate) fn serves(&self) -> Arc<Pair> {
        self.certificate.current().expect("a certificate is served")
    }

    /// Waits until the certificate of this bundle is served.
    pub(crate) async fn until_serving(&self, bundle: &Bundle) {
        let wanted = bundle.choose(None, Timestamp::now()).unwrap().unwrap();
        eventually(&format!("{}: the certificate is served", self.place.name), async || {
            holds(self.serves().is_same_as(&wanted), || format!("{bundle:?}"))
        })
        .await;
    }

    /// Waits until the caller has connected so many times more.
    pub(crate) async fn until_called(&self, times: usize) {
        let (_, outcomes) = self.caller.as_ref().expect("the caller was started");
        let count = || outcomes.lock().unwrap().len();
        let before = count();
        eventually(&format!("{}: {times} more handshakes", self.place.name), async || {
            holds(count() >= before + times, || format!("{before}, then {}", count()))
        })
        .await;
    }

    /// Connects again and again, each time trusting what a webhook is told at that moment, and nothing else.
    pub(crate) fn call_on(&mut self) {
        let (place, address) = (self.place.clone(), self.address);
        let outcomes = Outcomes::default();
        let told = outcomes.clone();
        let caller = Task(tokio::spawn(async move {
            loop {
                for ca_bundle in place.ca_bundles().await {
                    let outcome = handshake(&ca_bundle, address).await;
                    told.lock().unwrap().push(outcome);
                }
                sleep(Duration::from_millis(30)).await;
            }
        }));
        self.caller = Some((caller, outcomes));
    }

    /// Ends the caller: how many handshakes there were, of which none failed.
    pub(crate) fn handshakes(&mut self) -> usize {
        let (caller, outcomes) = self.caller.take().expect("the caller was started");
        drop(caller);
        let outcomes = outcomes.lock().unwrap();
        let failed: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} of {} handshakes failed: {}", failed.len(), outcomes.len(), failed[0]);
        outcomes.len()
    }

    /// One handshake that trusts `ca_pem` alone.
    pub(crate) async fn handshake(&self, ca_pem: &str) -> Result<(), String> {
        handshake(ca_pem, self.address).await
    }
}

async fn handshake(ca_pem: &str, address: SocketAddr) -> Result<(), String> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in tls::certificates(ca_pem) {
        roots.add(certificate).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(rustls::ALL_VERSIONS);
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let tcp = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let connected = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), tcp);
    timeout(PATIENCE, connected).await.unwrap().map(drop).map_err(|error| error.to_string())
}
