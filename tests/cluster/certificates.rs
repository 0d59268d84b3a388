//! Certificates in a cluster: one Secret, kept by whoever leads, served by every replica, and told to callers.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, Either, FutureExt as _, join_all};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::config::KubeConfigOptions;
use nodegate_controller::cluster::certificates::ClusterCertificates;
use nodegate_controller::cluster::registration::{CaBundle, inject_ca, keep_ca_bundle};
use nodegate_webhook::tls::{self, Bundle};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::control_plane::{ControlPlane, exclusive};
use super::replica::{Data, PROPAGATION, Place, Replica, Task, with_due_ca};
use crate::eventually::{eventually, for_a_while, holds};

#[tokio::test]
async fn the_secret_is_created_and_the_ca_bundles_are_written() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-made").await;
    let _leader = place.lead_by_watching();
    let replica = Replica::start(&place).await;
    let bundle = place.settled("").await;
    assert_eq!(replica.serves().names(), ["localhost"]);
    replica.handshake(&bundle.ca_pem()).await.unwrap();
    // A configuration that is made anew, or overwritten, is told again.
    place.tell("").await;
    place.settled("").await;
    place.remove();
    Place::new(plane, "certs-made").await;
    assert_eq!(place.settled("").await.ca_pem(), bundle.ca_pem());
    let secret = place.secrets().get("nodegate-tls").await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let rested = keep_ca_bundle(&place.client, &place.name, &bundle.ca_pem()).await.unwrap();
    assert_eq!(rested, CaBundle::Right);
    // A look at everything, for which the caBundles are the only thing to write.
    place.tell("").await;
    place.settled("").await;
    let again = place.secrets().get("nodegate-tls").await.unwrap();
    assert_eq!(secret.metadata.resource_version, again.metadata.resource_version, "nothing is written at rest");
    place.remove();
}

#[tokio::test]
async fn a_deleted_secret_is_created_again_without_a_failed_handshake() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-deleted").await;
    let _leader = place.lead_by_watching();
    let mut replica = Replica::start(&place).await;
    let before = place.settled("").await;
    replica.call_on();
    place.secrets().delete("nodegate-tls", &DeleteParams::default()).await.unwrap();
    eventually("the Secret is there again", async || place.data().await.is_some()).await;
    let after = place.settled(&before.ca_pem()).await;
    assert!(replica.handshakes() > 20);
    replica.handshake(&after.ca_pem()).await.unwrap();
    replica.handshake(&before.ca_pem()).await.unwrap_err();
    place.remove();
}

#[tokio::test]
async fn a_damaged_secret_is_repaired_without_a_failed_handshake() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let mended = join_all(["ca.crt", "ca.key", "tls.crt", "tls.key", "phase"].map(|key| async move {
        let place = Place::new(plane, &format!("certs-damaged-{}", key.replace('.', "-"))).await;
        let leader = place.lead();
        let mut replica = Replica::start(&place).await;
        let before = place.settled("").await;
        replica.call_on();
        place.damage(key).await;
        eventually(&format!("{key} is repaired"), async || {
            place.data().await.unwrap().get(key).is_none_or(|text| text != b"junk")
        })
        .await;
        // Without its key a CA has to be replaced; everything else is had back.
        let after = place.settled(if key == "ca.key" { before.ca_pem() } else { String::new() }.as_str()).await;
        assert_eq!(after.ca_pem() == before.ca_pem(), key != "ca.key", "{key}");
        replica.until_serving(&after).await;
        replica.until_called(20).await;
        assert!(replica.handshakes() > 5, "{key}");

        // Nobody mends it now: the last good one stays.
        drop(leader);
        let pairs = replica.pairs.load(Ordering::SeqCst);
        place.damage("tls.crt").await;
        // The next good one that it learns of is also the next that it serves.
        place.secrets().delete("nodegate-tls", &DeleteParams::default()).await.unwrap();
        let good = with_due_ca();
        place.put(good.clone()).await;
        replica.until_serving(&Bundle::parse(&good)).await;
        assert_eq!(replica.pairs.load(Ordering::SeqCst), pairs + 1, "{key}");
        place.remove();
    }));
    mended.await;
}

#[tokio::test]
async fn a_due_ca_is_replaced_without_a_failed_handshake() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-rotated").await;
    let before = Bundle::parse(&with_due_ca());
    place.put(before.serialise()).await;
    place.tell(&before.ca_pem()).await;
    let mut replica = Replica::start(&place).await;
    replica.call_on();
    let begun = Instant::now();
    let leader = place.lead();
    let mut phases: Vec<String> = Vec::new();
    let watched = async {
        loop {
            let phase = Bundle::parse(&place.data().await.unwrap()).phase().to_string();
            let phase = phase.split(' ').next().unwrap().to_owned();
            if phases.last() != Some(&phase) {
                phases.push(phase);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let old = before.ca_pem();
    let after = tokio::select! { after = place.settled(&old) => after, () = watched => unreachable!() };
    assert!(begun.elapsed() >= PROPAGATION * 2, "both waits");
    assert!(phases.join(" ").contains("announced served"), "{phases:?}");
    replica.until_called(20).await;
    assert!(replica.handshakes() > 50);
    assert_eq!(replica.pairs.load(Ordering::SeqCst), 2);
    replica.handshake(&before.ca_pem()).await.unwrap_err();
    replica.handshake(&after.ca_pem()).await.unwrap();
    drop(leader);
    place.remove();
}

#[tokio::test]
async fn a_json_patch_with_an_old_resource_version_is_a_conflict() {
    let cluster = exclusive();
    let place = Place::new(cluster.plane, "certs-stale").await;
    place.tell("").await;
    let configurations = Api::<ValidatingWebhookConfiguration>::all(place.client.clone());
    let stale = configurations.get(&place.name).await.unwrap().metadata.resource_version;
    place.tell(&Bundle::parse(&with_due_ca()).ca_pem()).await;
    let patch = json!([
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""},
        {"op": "add", "path": "/metadata/resourceVersion", "value": stale},
    ]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
    let refused = configurations.patch(&place.name, &PatchParams::default(), &patch).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 409));
    place.remove();
}

#[tokio::test]
async fn concurrent_leaders_do_no_harm() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-raced").await;
    let before = Bundle::parse(&with_due_ca());
    place.put(before.serialise()).await;
    place.tell(&before.ca_pem()).await;
    let mut replica = Replica::start(&place).await;
    replica.call_on();
    let _leaders: Vec<Task> = (0..4).map(|_| place.lead()).collect();
    let sane = async {
        loop {
            if let Some(data) = place.data().await {
                let bundle = Bundle::parse(&data);
                assert!(bundle.is_sound(Timestamp::now()), "{bundle:?}");
                assert_eq!(bundle.serialise(), data, "{bundle:?}");
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let races = async {
        let rotated = place.settled(&before.ca_pem()).await;
        place.secrets().delete("nodegate-tls", &DeleteParams::default()).await.unwrap();
        place.settled(&rotated.ca_pem()).await;
    };
    tokio::select! { () = races => {}, () = sane => unreachable!() }
    assert!(replica.handshakes() > 50);
    place.remove();
}

/// A client whose process dies when it is about to write for the `limit`-th time.
#[derive(Clone)]
struct Dying<S> {
    inner: S,
    limit: usize,
    writes: Arc<AtomicUsize>,
    dead: Arc<Notify>,
}

impl<S, B> tower::Service<hyper::Request<B>> for Dying<S>
where
    S: tower::Service<hyper::Request<B>>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<B>) -> Self::Future {
        if request.method() != hyper::Method::GET && self.writes.fetch_add(1, Ordering::SeqCst) >= self.limit {
            self.dead.notify_one();
            return Either::Right(pending().boxed());
        }
        Either::Left(self.inner.call(request))
    }
}

/// Leads until about to write for the `limit`-th time, counted from zero; whether it came to that.
async fn lead_and_die(
    plane: &ControlPlane,
    place: &Place,
    limit: usize,
    settled: impl Future<Output = Bundle>,
) -> bool {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(plane.kubeconfig(None), &options).await.unwrap();
    let dead = Arc::new(Notify::new());
    let (writes, told) = (Arc::new(AtomicUsize::new(0)), dead.clone());
    let layer = tower::layer::layer_fn(move |inner| Dying { inner, limit, writes: writes.clone(), dead: told.clone() });
    let client = kube::client::ClientBuilder::try_from(config).unwrap().with_layer(&layer).build();
    let certificates = ClusterCertificates { client, ..place.certificates() };
    tokio::select! {
        () = certificates.lead() => unreachable!(),
        () = dead.notified() => true,
        _ = settled => false,
    }
}

#[tokio::test]
async fn after_a_leader_dies_between_any_two_writes_another_continues_without_a_failed_handshake() {
    let cluster = exclusive();
    let plane = cluster.plane;
    // Announce, two configurations, note, serve, drop, two configurations.
    const WRITES: usize = 8;
    join_all((0..=WRITES).map(|limit| async move {
        let place = Place::new(plane, &format!("certs-died-{limit}")).await;
        let before = Bundle::parse(&with_due_ca());
        place.put(before.serialise()).await;
        place.tell(&before.ca_pem()).await;
        let mut replica = Replica::start(&place).await;
        replica.call_on();
        let ca_pem = before.ca_pem();
        let died = lead_and_die(plane, &place, limit, place.settled(&ca_pem)).await;
        assert_eq!(died, limit < WRITES, "of {WRITES} writes");
        sleep(Duration::from_millis(200)).await;
        let _successor = place.lead();
        place.settled(&ca_pem).await;
        assert!(replica.handshakes() > 5);
        place.remove();
    }))
    .await;
}

#[tokio::test]
async fn after_a_leader_dies_while_creating_the_secret_another_continues() {
    let cluster = exclusive();
    let plane = cluster.plane;
    // Make, two configurations, note, settle.
    const WRITES: usize = 5;
    join_all((0..=WRITES).map(|limit| async move {
        let place = Place::new(plane, &format!("certs-begun-{limit}")).await;
        let died = lead_and_die(plane, &place, limit, place.settled("")).await;
        assert_eq!(died, limit < WRITES, "of {WRITES} writes");
        let made = place.data().await.map(|data| Bundle::parse(&data).ca_pem());
        let _successor = place.lead();
        let settled = place.settled("").await;
        assert!(made.is_none_or(|made| made == settled.ca_pem()), "what was made is used");
        place.remove();
    }))
    .await;
}

const RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: nodegate-certificates, namespace: certs-rights}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [create]}
- {apiGroups: [""], resources: [secrets], resourceNames: [nodegate-tls], verbs: [get, list, watch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: nodegate-certificates, namespace: certs-rights}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: nodegate-certificates}
subjects: [{kind: ServiceAccount, name: nodegate, namespace: certs-rights}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nodegate-certificates}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [certs-rights]
  verbs: [get, list, watch, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodegate-certificates}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodegate-certificates}
subjects: [{kind: ServiceAccount, name: nodegate, namespace: certs-rights}]
"#;

#[tokio::test]
async fn permissions_on_these_objects_suffice() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-rights").await;
    plane.kubectl(&["apply", "-f", "-"], Some(RIGHTS)).unwrap();
    let user = ("system:serviceaccount:certs-rights:nodegate", &["system:serviceaccounts", "system:authenticated"][..]);
    // Without a permission to watch, nothing would be noticed.
    let poll = Duration::from_secs(3600);
    let certificates = ClusterCertificates { client: plane.client(Some(user)).await, poll, ..place.certificates() };
    let _leader = Task(tokio::spawn(async move { certificates.lead().await }));
    let before = place.settled("").await;
    place.secrets().delete("nodegate-tls", &DeleteParams::default()).await.unwrap();
    place.tell("").await;
    eventually("the caBundles are written again", async || {
        let told = place.ca_bundles().await;
        holds(!told.iter().any(String::is_empty), || format!("{told:?}"))
    })
    .await;
    place.settled(&before.ca_pem()).await;
    place.remove();
    plane.kubectl(&["delete", "-f", "-"], Some(RIGHTS)).unwrap();
}

#[tokio::test]
async fn a_ca_file_is_written_into_the_ca_bundles() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let place = Place::new(plane, "certs-file").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let told = async |text: &str| {
        eventually("the caBundles are written", async || {
            let told = place.ca_bundles().await;
            holds(told.iter().all(|told| told == text), || format!("{told:?} instead of {text}"))
        })
        .await;
    };
    let _injector = Task(tokio::spawn(inject_ca(place.client.clone(), place.name.clone(), file.clone())));
    let (first, second): (Data, Data) = (with_due_ca(), with_due_ca());
    std::fs::write(&file, &first["ca.crt"]).unwrap();
    let first = String::from_utf8(first["ca.crt"].clone()).unwrap();
    told(&first).await;
    place.tell("").await;
    told(&first).await;
    std::fs::write(&file, "junk").unwrap();
    // What is no certificate is only logged.
    for_a_while(Duration::from_millis(500)).await;
    told(&first).await;
    std::fs::write(&file, &second["ca.crt"]).unwrap();
    told(&String::from_utf8(second["ca.crt"].clone()).unwrap()).await;
    assert!(place.data().await.is_none(), "no Secret is made");
    assert_eq!(tls::certificates(&first).len(), 1);
    place.remove();
}
