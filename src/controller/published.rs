//! The names and the hash of the policies in force, in a ConfigMap that the leader maintains for the command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

use super::history::FIELD_MANAGER;
use nodegate_policy::PolicySet;

/// The name of the ConfigMap, in the namespace of saved state.
pub const NAME: &str = "nodegate-in-force";
/// The data key of the document.
const KEY: &str = "policies.json";
/// How soon a failed write is retried, and how soon a change of the ConfigMap by others is reverted.
const RETRY: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(60);

/// Identifies a set of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The names of all policies, presets included, sorted.
    pub names: Vec<String>,
    /// `sha256:` and the hash of all documents, including presets.
    pub hash: String,
}

impl Published {
    /// Identifies `set`. The result does not depend on the order or the formatting of the documents.
    pub fn of(set: &PolicySet) -> Self {
        let documents: Vec<_> =
            set.documents().iter().map(|document| json!({"name": document.name, "spec": *document.spec})).collect();
        let hash = digest(&SHA256, json!(documents).to_string().as_bytes());
        let mut text = "sha256:".to_owned();
        for byte in hash.as_ref() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self { names: set.policies().map(str::to_owned).collect(), hash: text }
    }
}

impl std::fmt::Display for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = self.hash.get(..19).unwrap_or(&self.hash);
        match self.names.as_slice() {
            [] => write!(f, "no policies ({short})"),
            names => write!(f, "{} ({short})", names.join(", ")),
        }
    }
}

fn read_from(map: &ConfigMap) -> Option<Published> {
    serde_json::from_str(map.data.as_ref()?.get(KEY)?).ok()
}

/// Reads which policies are in force in the cluster; `None` if no leader has published them.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn read(client: Client, namespace: &str) -> Result<Option<Published>, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    Ok(api.get_opt(NAME).await?.as_ref().and_then(read_from))
}

/// Keeps the ConfigMap equal to `policies`; runs until dropped. Only the leader runs this, and it writes only what
/// differs.
pub async fn keep(
    client: Client,
    namespace: &str,
    policies: Arc<ArcSwap<PolicySet>>,
    mut generation: watch::Receiver<u64>,
) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    loop {
        generation.borrow_and_update();
        let wanted = Published::of(&policies.load());
        let failed = write(&api, &wanted).await.err();
        if let Some(error) = &failed {
            tracing::warn!(%error, config_map = NAME, "could not publish which policies are in force; retrying");
        }
        tokio::select! {
            changed = generation.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(if failed.is_some() { RETRY } else { AGAIN }) => {}
        }
    }
}

async fn write(api: &Api<ConfigMap>, wanted: &Published) -> Result<(), kube::Error> {
    let there = api.get_opt(NAME).await?;
    if there.as_ref().and_then(read_from).as_ref() == Some(wanted) {
        return Ok(());
    }
    let text = serde_json::to_string(wanted).map_err(kube::Error::SerdeError)?;
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let data = Some(BTreeMap::from([(KEY.to_owned(), text)]));
    match there {
        // The resource version is the one that was read, so a concurrent write makes this one fail, and it is
        // retried.
        Some(there) => api.replace(NAME, &parameters, &ConfigMap { data, ..there }).await.map(drop),
        None => {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            api.create(&parameters, &ConfigMap { metadata, data, ..ConfigMap::default() }).await.map(drop)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_policy::PolicyDocument;

    #[test]
    fn the_identity_of_a_set_depends_on_its_content_and_not_on_order() {
        let of = |documents: &[(&str, serde_json::Value)]| {
            let read = documents.iter().map(|(name, spec)| PolicyDocument::of_object(name, spec).unwrap());
            Published::of(&PolicySet::compile(&read.collect::<Vec<_>>()).unwrap())
        };
        let rule = |value: &str| json!({"rules": [{"name": "r", "labels": {"a": value}}]});
        let both = of(&[("one", rule("x")), ("two", json!({"presets": ["baseline"]}))]);
        assert_eq!(both.names, ["one", "preset:baseline", "two"]);
        assert_eq!(both, of(&[("two", json!({"presets": ["baseline"]})), ("one", rule("x"))]));
        assert_ne!(both.hash, of(&[("one", rule("y")), ("two", json!({"presets": ["baseline"]}))]).hash);
        assert_eq!(both.to_string(), format!("one, preset:baseline, two ({})", &both.hash[..19]));
    }
}
