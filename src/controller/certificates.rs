//! Certificates in a cluster: one Secret that the leader keeps and every replica serves from.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::select;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Event, watcher};
use tokio::time::sleep;

use super::history::FIELD_MANAGER;
use super::registration::{
    CaBundle, POLL, Registration, SPACING, Trouble, in_time, is_conflict, is_gone, next_sign, only, said, signs,
    signs_of,
};
use crate::kube_error::in_words;
use crate::tls::{self, Bundle, Pair, Step, SubjectName};

/// The Secret's name unless another is wanted.
pub const SECRET: &str = "nodegate-tls";
/// The name of both webhook configurations unless another is wanted.
pub const CONFIGURATION: &str = "nodegate";

/// The certificates of a cluster.
#[derive(Clone)]
pub struct ClusterCertificates {
    /// Who asks the API server.
    pub client: Client,
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub secret: String,
    /// Names in the leaf.
    pub names: Vec<SubjectName>,
    /// The name of both webhook configurations.
    pub configuration: String,
    /// How long to wait until callers and replicas have noticed a change.
    pub propagation: Duration,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl ClusterCertificates {
    /// With the usual names, wait and clock.
    pub fn new(client: Client, namespace: String, names: Vec<SubjectName>) -> Self {
        Self {
            client,
            namespace,
            secret: SECRET.to_owned(),
            names,
            configuration: CONFIGURATION.to_owned(),
            propagation: tls::PROPAGATION,
            now: Timestamp::now,
        }
    }

    /// Gives each pair that is to be served from then on. Every replica runs this, until it is dropped.
    ///
    /// # Guarantees
    /// A Secret that is deleted or damaged keeps the last good pair, as does one with a CA that callers may
    /// not know yet; each fault is logged once.
    pub async fn follow(&self, mut on_pair: impl FnMut(Pair)) {
        let mut events = pin!(watcher(self.secrets(), only(&self.secret)).default_backoff());
        let mut watching = Trouble::new("certificate Secret not watched, the last good certificate stays");
        let mut reading = Trouble::new("certificate not reloaded, the last good one stays");
        let (mut bundle, mut held) = (None, None);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => {
                        watching.over(POLL);
                        bundle = Some(Bundle::parse(&content(&secret)));
                    }
                    Some(Ok(_)) => { watching.over(POLL); }
                    Some(Err(error)) => { watching.pause(&in_words(&error)); }
                    None => std::future::pending().await,
                },
                // What is held may have expired meanwhile.
                () = sleep(POLL) => {}
            }
            let Some(bundle) = &bundle else { continue };
            match bundle.choose(held.as_ref(), (self.now)()) {
                Ok(Some(pair)) => {
                    tracing::info!(not_after = %pair.not_after(), "serving another certificate");
                    held = Some(pair.clone());
                    on_pair(pair);
                    reading.over(POLL);
                }
                Ok(None) => {
                    reading.over(POLL);
                }
                Err(error) => {
                    reading.pause(&format!("Secret {}/{}: {error}", self.namespace, self.secret));
                }
            }
        }
    }

    /// Keeps the Secret and the caBundles right. Only the leader runs this; it is dropped with the lease.
    ///
    /// # Guarantees
    /// All state is in the Secret, so it may be dropped at any moment and begun anew by anybody. Two that
    /// run at once hinder each other but do no harm: every write is refused unless what it was made from is
    /// still there.
    pub async fn lead(&self) {
        let secret = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), &self.namespace);
        let configurations = signs(&self.client, &self.configuration);
        let mut signs = select(signs_of(secret, &self.secret), configurations).boxed();
        let mut trouble = Trouble::new("certificates not kept");
        loop {
            let pause = match in_time(self.look()).await {
                Ok(pause) => trouble.over(pause),
                Err(error) => trouble.pause(&error),
            };
            sleep(SPACING).await;
            tokio::select! {
                () = next_sign(&mut signs) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Does what is to be done now: at most one write of each object. Returns when to look again.
    async fn look(&self) -> Result<Duration, String> {
        let fault = |what: &str, error: kube::Error| format!("{what}: {}", said(&error));
        // The configurations are read first: what was published after that, by whoever has a newer Secret
        // than the one read next, makes our own write a conflict.
        let registration = Registration::read(&self.client, &self.configuration)
            .await
            .map_err(|error| fault("webhook configurations", error))?;
        let secret = self.secrets().get_opt(&self.secret).await.map_err(|error| fault(&self.secret_path(), error))?;
        let data = secret.as_ref().map(content).unwrap_or_default();
        let now = (self.now)();
        let mut bundle = Bundle::parse(&data);
        let mut published = Ok(CaBundle::Written);
        if bundle.is_sound(now) {
            published = registration.publish(&bundle.ca_pem()).await;
        } else {
            bundle = Bundle::salvage(&data, &registration.trusted());
        }
        // A leaf is renewed even while the configurations cannot be written.
        let told = matches!(published, Ok(CaBundle::Right));
        let step = tls::step(&bundle, &self.names, self.propagation, now, told).map_err(|error| error.to_string())?;
        let until = match step {
            Step::Write { bundle, change } => {
                let replaced = secret.is_some();
                match self.write(secret, &bundle).await {
                    Ok(()) => {
                        let (secret, phase) = (self.secret_path(), bundle.phase());
                        tracing::info!(secret, %phase, %change, "certificates changed");
                    }
                    Err(error) if is_conflict(&error) || replaced && is_gone(&error) => {
                        tracing::debug!(%change, "the Secret changed meanwhile");
                    }
                    Err(error) => return Err(fault(&self.secret_path(), error)),
                }
                Some(now)
            }
            Step::Rest { until } => until,
        };
        if published.map_err(|error| fault("caBundle", error))? == CaBundle::Written {
            return Ok(Duration::ZERO);
        }
        let pause = |until: Timestamp| Duration::try_from(until.duration_since(now)).unwrap_or_default();
        Ok(until.map_or(POLL, |until| pause(until).min(POLL)))
    }

    /// Writes the Secret if it still is what was read.
    async fn write(&self, read: Option<Secret>, bundle: &Bundle) -> Result<(), kube::Error> {
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let ours = bundle.serialise().into_iter().map(|(key, text)| (key, ByteString(text)));
        let written = match read {
            Some(mut secret) => {
                let data = secret.data.get_or_insert_default();
                data.retain(|key, _| !Bundle::KEYS.contains(&key.as_str()));
                data.extend(ours);
                self.secrets().replace(&self.secret, &parameters, &secret).await
            }
            None => {
                let secret = Secret {
                    metadata: ObjectMeta { name: Some(self.secret.clone()), ..ObjectMeta::default() },
                    data: Some(ours.collect()),
                    type_: Some("kubernetes.io/tls".to_owned()),
                    ..Secret::default()
                };
                self.secrets().create(&parameters, &secret).await
            }
        };
        written.map(|_| ())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secret_path(&self) -> String {
        format!("Secret {}/{}", self.namespace, self.secret)
    }
}

fn content(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, text)| (key.clone(), text.0.clone())).collect()
}
