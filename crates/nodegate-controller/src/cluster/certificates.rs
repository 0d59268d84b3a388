//! Certificates in a cluster: one Secret that the leader maintains and every replica uses.

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
use kube::runtime::watcher::Event;
use tokio::time::sleep;

use crate::cluster::registration::{
    CaBundle, ErrorBackoff, POLL, Registration, SPACING, in_time, is_conflict, is_gone, message, next_trigger, only,
    triggers, triggers_of,
};
use nodegate_base::kube_error::{in_words, is_expired};
use nodegate_base::object_watch::watch_objects;
use nodegate_policy::FIELD_MANAGER;
use nodegate_webhook::tls::{self, Bundle, Pair, Step, SubjectName};

/// Default name of the Secret.
pub const SECRET: &str = "nodegate-tls";
/// Default name of both webhook configurations.
pub const CONFIGURATION: &str = "nodegate";

/// The certificates of a cluster.
#[derive(Clone)]
pub struct ClusterCertificates {
    /// The client for the API server.
    pub client: Client,
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub secret: String,
    /// Names in the serving certificate.
    pub names: Vec<SubjectName>,
    /// The name of both webhook configurations.
    pub configuration: String,
    /// How long to wait until callers and replicas have noticed a change.
    pub propagation: Duration,
    /// How often everything is read again even without a watch event.
    pub poll: Duration,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl ClusterCertificates {
    /// Uses the default names, wait and clock.
    pub fn new(client: Client, namespace: String, names: Vec<SubjectName>) -> Self {
        Self {
            client,
            namespace,
            secret: SECRET.to_owned(),
            names,
            configuration: CONFIGURATION.to_owned(),
            propagation: tls::PROPAGATION,
            poll: POLL,
            now: Timestamp::now,
        }
    }

    /// Passes each new pair to `serve`. Every replica runs this, until it is dropped.
    ///
    /// # Guarantees
    /// If the Secret is deleted or damaged, or has a CA that callers may not trust yet, the last good pair stays.
    /// Each error is logged once.
    pub async fn follow(&self, mut on_pair: impl FnMut(Pair)) {
        let mut events = pin!(watch_objects(self.secrets(), only(&self.secret)));
        let mut watching = ErrorBackoff::new("cannot watch the certificate Secret; keeping the last good certificate");
        let mut reading = ErrorBackoff::new("cannot reload the certificate; keeping the last good one");
        let (mut bundle, mut held) = (None, None);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => {
                        watching.succeeded(self.poll);
                        bundle = Some(Bundle::parse(&content(&secret)));
                    }
                    Some(Ok(_)) => { watching.succeeded(self.poll); }
                    Some(Err(error)) if is_expired(&error) => {}
                    Some(Err(error)) => { watching.failed(&in_words(&error)); }
                    None => std::future::pending().await,
                },
                // The current certificate may have expired meanwhile.
                () = sleep(self.poll) => {}
            }
            let Some(bundle) = &bundle else { continue };
            match bundle.choose(held.as_ref(), (self.now)()) {
                Ok(Some(pair)) => {
                    tracing::info!(not_after = %pair.not_after(), "serving a new certificate");
                    held = Some(pair.clone());
                    on_pair(pair);
                    reading.succeeded(self.poll);
                }
                Ok(None) => {
                    reading.succeeded(self.poll);
                }
                Err(error) => {
                    reading.failed(&format!("Secret {}/{}: {error}", self.namespace, self.secret));
                }
            }
        }
    }

    /// Maintains the Secret and the caBundles. Only the leader runs this; it is dropped with the Lease.
    ///
    /// # Guarantees
    /// All state is in the Secret, so this may be dropped at any moment and started again by any replica. Two that
    /// run at once delay each other but do no harm: every write is refused unless the object is still the one that
    /// was read.
    pub async fn lead(&self) {
        let secret = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), &self.namespace);
        let configurations = triggers(&self.client, &self.configuration);
        let mut triggers = select(triggers_of(secret, &self.secret), configurations).boxed();
        let mut errors = ErrorBackoff::new("certificates are not up to date");
        loop {
            let pause = match in_time(self.look()).await {
                Ok(pause) => errors.succeeded(pause),
                Err(error) => errors.failed(&error),
            };
            sleep(SPACING).await;
            tokio::select! {
                () = next_trigger(&mut triggers) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Does what is due: at most one write of each object. Returns when to check again.
    async fn look(&self) -> Result<Duration, String> {
        let fault = |what: &str, error: kube::Error| format!("{what}: {}", message(&error));
        // The configurations are read before the Secret. If a replica with a newer Secret writes the configurations
        // after that, this replica's write becomes a conflict.
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
        // The leaf is renewed even if the configurations cannot be written.
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
                        tracing::debug!(%change, "the Secret changed concurrently");
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
        Ok(until.map_or(self.poll, |until| pause(until).min(self.poll)))
    }

    /// Writes the Secret unless it changed since it was read.
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
