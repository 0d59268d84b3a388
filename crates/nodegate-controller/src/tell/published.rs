//! The policies in force, in a ConfigMap that the leader maintains for the command line.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use nodegate_base::text::hexadecimal;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::{Origin, PolicyDocument, PolicySet, baseline, baseline_in};

/// The name of the ConfigMap, in the namespace of saved state.
pub const NAME: &str = "nodegate-in-force";
/// The data key of the names and the hash.
const KEY: &str = "policies.json";
/// The data key of the documents.
const DOCUMENTS_KEY: &str = "documents.json.gz";
/// Maximum size of the compressed documents, in bytes; a ConfigMap holds 1 MiB
/// (`k8s.io/kubernetes/pkg/apis/core/validation`, `ValidateConfigMap`).
const COMPRESSED_MAX: usize = 900 * 1024;
/// Maximum size of the documents, in bytes. A single one, parsed, takes up to 40 times as much memory.
const DOCUMENTS_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of documents. Compiled, the smallest one takes a thousand times its bytes.
const COUNT_MAX: usize = 10_000;
/// How often a write is repeated at once because the ConfigMap has changed.
const EDITS: usize = 4;
/// How soon a failed write is retried, and how soon a change of the ConfigMap by others is reverted.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
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
        Self { names: set.policies().map(str::to_owned).collect(), hash: hash_of(&text_of(set)) }
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

fn hash_of(documents: &str) -> String {
    format!("sha256:{}", hexadecimal(digest(&SHA256, documents.as_bytes()).as_ref()))
}

/// The documents of a set as text, in one order.
fn text_of(set: &PolicySet) -> String {
    let document = |document: &PolicyDocument| {
        let mut json = json!({"name": document.name, "spec": *document.spec});
        if let Some(grace) = document.flat_grace() {
            json[FLAT_GRACE] = grace.as_secs().into();
        }
        if stands_in(document) {
            json[STANDS_IN] = true.into();
        }
        json
    };
    Json::Array(set.documents().iter().map(document).collect()).to_string()
}

/// The field of a document that is in force because there is no other.
const STANDS_IN: &str = "standsIn";
/// The field with the grace period of documents that come from flat label files.
const FLAT_GRACE: &str = "flatGraceSeconds";

/// Whether a document is in force only because there is no other policy.
pub fn stands_in(document: &PolicyDocument) -> bool {
    document.origin == Origin::Preset && !document.name.starts_with(PRESET)
}

fn compressed(text: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

/// The policies in force, compiled again from the published documents.
///
/// # Errors
/// Returns a sentence if the documents are absent or cannot be read, or if they mean something else to this version of
/// nodegate.
fn compile(published: &Published, documents: Option<&[u8]>) -> Result<PolicySet, String> {
    let Some(documents) = documents else {
        return Err("they were published without their documents, by an older version of nodegate or because they are too large".to_owned());
    };
    let mut text = String::new();
    GzDecoder::new(documents)
        .take(DOCUMENTS_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("their documents cannot be decompressed: {error}"))?;
    if text.len() as u64 > DOCUMENTS_MAX {
        return Err(format!("their documents have more than {} MiB", DOCUMENTS_MAX >> 20));
    }
    if hash_of(&text) != published.hash {
        return Err("their documents are not those of the hash that was published with them".to_owned());
    }
    let not_json = |error| format!("their documents are not JSON: {error}");
    let documents: Vec<&RawValue> = serde_json::from_str(&text).map_err(not_json)?;
    if documents.len() > COUNT_MAX {
        return Err(format!("there are more than {COUNT_MAX} documents"));
    }
    let fault = |error: &nodegate_policy::PolicyError| format!("this version of nodegate refuses them: {error}");
    let mut read = Vec::new();
    // The presets that a document names are added when it is compiled.
    let is_preset = |name: &str| name.starts_with(PRESET);
    for document in documents {
        let document: Json = serde_json::from_str(document.get()).map_err(not_json)?;
        if document["name"].as_str().is_some_and(is_preset) {
            continue;
        }
        if document[STANDS_IN] == true {
            let mut modes = [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit].into_iter();
            let mode = modes.find(|mode| json!([baseline_in(*mode)]) == document["spec"]["presets"]);
            read.push(baseline(mode.unwrap_or_default()));
            continue;
        }
        let name = document["name"].as_str().unwrap_or_default();
        let parsed = PolicyDocument::of_object(name, &document["spec"])
            .map_err(|errors| errors.first().map(fault).unwrap_or_default())?;
        read.push(match document[FLAT_GRACE].as_u64() {
            Some(seconds) => parsed.with_flat_grace(Duration::from_secs(seconds)),
            None => parsed,
        });
    }
    let set = PolicySet::compile(&read).map_err(|errors| errors.first().map(fault).unwrap_or_default())?;
    if Published::of(&set).hash != published.hash {
        return Err("this version of nodegate has other presets than the one in the cluster".to_owned());
    }
    Ok(set)
}

/// The prefix of the names of presets.
const PRESET: &str = "preset:";

/// What is published about the policies in force.
#[derive(Debug)]
pub struct InForce {
    /// Their names and hash.
    pub published: Published,
    /// The compiled policies, or why they cannot be compiled again.
    pub set: Result<PolicySet, String>,
}

/// Reads the policies in force in the cluster; `None` if no leader has published them.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached, or if what is published cannot be read.
pub async fn read_set(client: Client, namespace: &str) -> Result<Option<InForce>, kube::Error> {
    let Some(map) = map(client, namespace).await? else { return Ok(None) };
    let documents = map.binary_data.as_ref().and_then(|data| data.get(DOCUMENTS_KEY));
    let published = read_from(&map).map_err(|error| kube::Error::Service(error.into()))?;
    let set = |published: &Published| compile(published, documents.map(|bytes| &*bytes.0));
    Ok(published.map(|published| InForce { set: set(&published), published }))
}

/// What is published is not what nodegate writes.
#[derive(Debug, thiserror::Error)]
#[error("{KEY} in ConfigMap {NAME} cannot be read: {0}")]
pub struct Garbled(serde_json::Error);

/// Reads which policies are in force from the ConfigMap; `None` if it does not say so.
///
/// # Errors
/// Returns an error if what it says cannot be read.
pub fn read_from(map: &ConfigMap) -> Result<Option<Published>, Garbled> {
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    text.map(|text| serde_json::from_str(text)).transpose().map_err(Garbled)
}

/// Reads which policies are in force in the cluster; `None` if no leader has published them.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached, or if what is published cannot be read.
pub async fn read(client: Client, namespace: &str) -> Result<Option<Published>, kube::Error> {
    let Some(map) = map(client, namespace).await? else { return Ok(None) };
    read_from(&map).map_err(|error| kube::Error::Service(error.into()))
}

/// Keeps the ConfigMap equal to `policies`; runs until dropped. Only the leader runs this, and it writes only what
/// differs.
pub async fn keep(
    client: Client,
    namespace: &str,
    policies: Arc<ArcSwap<PolicySet>>,
    mut generation: watch::Receiver<u64>,
) {
    loop {
        generation.borrow_and_update();
        let failed = match content(&policies.load()) {
            Ok(wanted) => write(client.clone(), namespace, wanted).await.err(),
            Err(error) => Some(error),
        };
        if let Some(error) = &failed {
            tracing::warn!(%error, config_map = NAME, "could not publish which policies are in force; retrying");
        }
        tokio::select! {
            changed = generation.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(if failed.is_some() { RETRY } else { AGAIN }) => {}
        }
    }
}

/// The data and the binary data about the policies.
type Content = (String, Option<ByteString>);

fn content(set: &PolicySet) -> Result<Content, kube::Error> {
    let text = serde_json::to_string(&Published::of(set)).map_err(kube::Error::SerdeError)?;
    let plain = text_of(set);
    let documents = compressed(&plain).map_err(|error| kube::Error::Service(error.into()))?;
    let fits =
        plain.len() as u64 <= DOCUMENTS_MAX && documents.len() <= COMPRESSED_MAX && set.documents().len() <= COUNT_MAX;
    Ok((text, Some(ByteString(documents)).filter(|_| fits)))
}

async fn write(client: Client, namespace: &str, (text, documents): Content) -> Result<(), kube::Error> {
    edit(client, namespace, NAME, |map| {
        map.data.get_or_insert_default().insert(KEY.to_owned(), text.clone());
        let binary = map.binary_data.get_or_insert_default();
        binary.remove(DOCUMENTS_KEY);
        binary.extend(documents.clone().map(|documents| (DOCUMENTS_KEY.to_owned(), documents)));
    })
    .await
}

/// The ConfigMap, if there is one.
pub(crate) async fn map(client: Client, namespace: &str) -> Result<Option<ConfigMap>, kube::Error> {
    Api::namespaced(client, namespace).get_opt(NAME).await
}

/// Edits a ConfigMap, which is created if it does not exist. Writes only what differs.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached, or if the ConfigMap keeps changing.
pub(crate) async fn edit(
    client: Client,
    namespace: &str,
    name: &str,
    change: impl Fn(&mut ConfigMap),
) -> Result<(), kube::Error> {
    let api = Api::namespaced(client, namespace);
    let mut edited = edit_once(&api, name, &change).await;
    for _ in 0..EDITS {
        match &edited {
            // The two parts of the ConfigMap are written independently of each other.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                edited = edit_once(&api, name, &change).await;
            }
            _ => break,
        }
    }
    edited
}

async fn edit_once(api: &Api<ConfigMap>, name: &str, change: &impl Fn(&mut ConfigMap)) -> Result<(), kube::Error> {
    let there = api.get_opt(name).await?;
    let mut wanted = there.clone().unwrap_or_default();
    change(&mut wanted);
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match there {
        Some(there) if there == wanted => Ok(()),
        // The resource version is the one that was read, so a concurrent write makes this one fail.
        Some(_) => api.replace(name, &parameters, &wanted).await.map(drop),
        None => {
            wanted.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            api.create(&parameters, &wanted).await.map(drop)
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

    #[test]
    fn what_somebody_wrote_in_its_place_is_an_error_and_nothing_is_none() {
        let map = |data: serde_json::Value| serde_json::from_value(json!({"data": data})).unwrap();
        for data in [json!(null), json!({}), json!({"controller.json": "{}"})] {
            assert!(matches!(read_from(&map(data)), Ok(None)));
        }
        let written = content(&PolicySet::compile(&[baseline(EntryMode::Enforce)]).unwrap()).unwrap().0;
        assert_eq!(read_from(&map(json!({KEY: written}))).unwrap().unwrap().names, ["default", "preset:baseline"]);
        let error = read_from(&map(json!({KEY: r#"{"names": 7}"#}))).unwrap_err();
        let expected = "policies.json in ConfigMap nodegate-in-force cannot be read: invalid type: integer `7`";
        assert!(error.to_string().starts_with(expected), "{error}");
        let error = nodegate_base::kube_error::in_words(&kube::Error::Service(error.into()));
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_preset_that_stands_in_for_policies_compiles_again() {
        for mode in [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit] {
            let set = PolicySet::compile(&[baseline(mode)]).unwrap();
            let (text, documents) = content(&set).unwrap();
            let published = serde_json::from_str::<Published>(&text).unwrap();
            let again = compile(&published, documents.as_ref().map(|bytes| &*bytes.0)).unwrap();
            assert_eq!(Published::of(&again), published);
            assert!(again.documents().iter().any(stands_in));
        }
        // A policy of the user's own with the same content is not a stand-in.
        let own = PolicyDocument::of_object("default", &json!({"presets": ["baseline"]})).unwrap();
        assert!(!PolicySet::compile(&[own]).unwrap().documents().iter().any(stands_in));
    }

    #[test]
    fn published_documents_compile_to_the_same_policies() {
        let spec = json!({"presets": ["baseline"], "rules": [{"name": "r", "match": {"names": ["gpu-*"]}, "labels": {"a": "x"}}]});
        let flat = PolicyDocument::of_object("flat", &json!({"rules": [{"name": "f", "labels": {"b": "y"}}]})).unwrap();
        let documents =
            [PolicyDocument::of_object("one", &spec).unwrap(), flat.with_flat_grace(Duration::from_secs(7))];
        let set = PolicySet::compile(&documents).unwrap();
        let (text, documents) = content(&set).unwrap();
        let (published, documents) = (serde_json::from_str::<Published>(&text).unwrap(), documents.unwrap().0);
        let again = compile(&published, Some(&documents)).unwrap();
        assert_eq!(Published::of(&again), published);
        let grace = |set: &PolicySet| set.documents().iter().filter_map(PolicyDocument::flat_grace).collect::<Vec<_>>();
        assert_eq!(grace(&again), [Duration::from_secs(7)]);
        let other = Published { hash: "sha256:0".to_owned(), ..published.clone() };
        let error = |published: &Published, bytes: Option<&[u8]>| compile(published, bytes).unwrap_err();
        assert!(error(&other, Some(&documents)).contains("not those of the hash"));
        assert!(error(&published, Some(b"no")).contains("cannot be decompressed"));
        assert!(error(&published, None).contains("without their documents"));
    }

    #[test]
    fn documents_that_are_forged_or_grow_too_large_are_not_parsed() {
        let refused = |text: &str, hash: String| {
            let published = Published { names: Vec::new(), hash };
            compile(&published, Some(&compressed(text).unwrap())).unwrap_err()
        };
        // With the right hash, as whoever may write the ConfigMap can give it.
        let many = format!("[{}{{}}]", "{},".repeat(3_000_000));
        assert!(refused(&many, hash_of(&many)).contains("more than 8 MiB"));
        let small = format!(r#"[{}{{"name":"a","spec":{{}}}}]"#, r#"{"name":"a","spec":{}},"#.repeat(300_000));
        assert!(small.len() as u64 <= DOCUMENTS_MAX);
        assert!(refused(&small, hash_of(&small)).contains("more than 10000 documents"));
        let forged = r#"[{"name": "forged", "spec": {}}]"#;
        assert!(refused(forged, hash_of("[]")).contains("not those of the hash"));
    }
}
