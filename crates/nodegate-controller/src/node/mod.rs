//! A Node as the controller stores it: its JSON as text, and its parsed `managedFields`.
//!
//! A node's own kubelet decides how large its object is. Therefore no tree of it is built, and the memory that one
//! node uses is limited ([`NodeObject::read`]).

mod api;
mod event;
pub(crate) mod limit;
mod packed;
mod pieces;
pub(crate) mod queue;
mod read;
mod text;
mod watch;

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Resource;
use kube::runtime::reflector::Lookup;

use self::packed::{Packed, Samples};
use self::text::{Bound, Fields, copy};
use nodegate_base::telemetry::brief;
use nodegate_policy::cel::Paths;
use nodegate_policy::{Claims, NodeFacts, PolicySet, needed_by_facts, without_place};
use nodegate_stores::state::Machine;

use self::text::text_at;

pub use self::api::{NodeApi, Page, each_object};
pub use self::packed::NodeText;
pub use self::read::{NodesError, Read};
pub(super) use self::watch::{WatchEvent, follow};

/// Maximum size of a field of `spec` or `status` that is kept, and of a string in it, in bytes. The images of a node
/// with 50 images take about 20 KiB.
const FIELD: Bound = Bound::Bytes { value: FIELD_MAX, text: 4 * 1024 };
/// Maximum size of such a field, in bytes.
const FIELD_MAX: usize = 64 * 1024;

/// How nodes are read.
#[derive(Debug)]
struct Reading {
    /// What of them.
    parts: Arc<Paths>,
    /// Nodes that were read so before.
    samples: Samples,
}

impl Reading {
    fn new(parts: Arc<Paths>) -> Self {
        Self { parts, samples: Samples::default() }
    }
}

impl Default for Reading {
    /// All of them.
    fn default() -> Self {
        Self::new(Arc::new(Paths::Whole))
    }
}

/// A Node without its `managedFields`, which are half of it, without what nobody asked for, and without fields that are larger than on
/// any regular node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeObject(Arc<Kept>);

/// What is kept of a node.
#[derive(Clone, Debug)]
struct Kept {
    /// The rest is in the text.
    metadata: Metadata,
    /// Fields that were too large to be kept (`status.images`), also if nobody reads them; they are `null` in expressions.
    left_out: Box<[Box<str>]>,
    packed: Packed,
    /// What was asked for.
    parts: Arc<Paths>,
}

/// A Node that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {name} cannot be read: {why}")]
pub struct Unreadable {
    /// Its name; empty if not even the name was found.
    pub name: String,
    /// The reason, in a few words.
    pub why: String,
}

impl Unreadable {
    /// Describes a text, complete or truncated, that cannot be read.
    pub(super) fn new(text: &[u8], path: &[&str], why: impl std::fmt::Display) -> Self {
        let path: Vec<&str> = path.iter().copied().chain(["metadata", "name"]).collect();
        Self { name: text_at(text, &path).unwrap_or_default(), why: brief(why) }
    }
}

impl NodeObject {
    /// Reads all of a Node.
    ///
    /// # Guarantees
    /// Time and memory grow linearly with the text, at any depth. Labels and annotations are kept completely; of
    /// `spec` and `status`, every field up to 64 KiB, without strings longer than 4 KiB.
    ///
    /// # Errors
    /// Returns an error if the text is not an object with metadata, or if a field that decisions depend on has an
    /// unexpected type.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        Self::read_parts(text, &Reading::default())
    }

    /// The same of a Node of which no expression may read anything.
    #[cfg(test)]
    pub(crate) fn read_for_nobody(text: &str) -> Result<Self, Unreadable> {
        Self::read_parts(text, &Reading::new(Arc::default()))
    }

    /// Reads parts of a Node, as [`NodeObject::read`] does. An expression that reads another part has no answer.
    ///
    /// # Errors
    /// As there.
    fn read_parts(text: &str, reading: &Reading) -> Result<Self, Unreadable> {
        Kept::read(text, reading)
            .map(|kept| Self(Arc::new(kept)))
            .map_err(|why| Unreadable::new(text.as_bytes(), &[], why))
    }

    /// As [`NodeText::claims`], for who needs nothing else of the text.
    pub fn claims(&self) -> Arc<Claims> {
        self.text().shared_claims().clone()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.metadata.name
    }

    /// The uid.
    pub fn uid(&self) -> &str {
        &self.0.metadata.uid
    }

    /// The resource version.
    pub fn resource_version(&self) -> &str {
        &self.0.metadata.resource_version
    }

    /// When it was created.
    pub fn created(&self) -> Option<Timestamp> {
        self.0.metadata.created
    }

    /// Whether it is being deleted.
    pub fn is_leaving(&self) -> bool {
        self.0.metadata.deleted.is_some()
    }

    /// When its deletion was requested, if it is being deleted.
    pub fn deleted(&self) -> Option<Timestamp> {
        self.0.metadata.deleted
    }

    /// The fields that were too large to be kept, such as `status.images`.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        self.0.left_out.iter().map(|field| &**field)
    }

    /// Whether all of it was read that these policies look at. After a change of the policies, nodes are listed again for that; until
    /// then nothing may be decided about them, because what is not there is neither present nor absent.
    pub(crate) fn is_read_for(&self, policies: &PolicySet) -> bool {
        self.0.parts.hold(policies.stored_paths())
    }

    /// The text of what is kept of it, and what that says. It is unpacked each time.
    pub fn text(&self) -> NodeText {
        self.0.packed.text(&self.0.parts)
    }
}

impl Kept {
    fn read(text: &str, Reading { parts, samples }: &Reading) -> Result<Self, String> {
        let (mut json, mut metadata, mut left_out) = (String::from("{"), (Metadata::default(), ""), Vec::new());
        for (field, value) in fields("the node", text)? {
            match &*field {
                "metadata" => metadata = Metadata::read(value, &mut json)?,
                "spec" | "status" if value.starts_with('{') => {
                    open(&mut json, &field);
                    json.push('{');
                    for (inner, value) in fields(&field, value)? {
                        if !add_field(&mut json, parts, (&field, &inner), value) {
                            left_out.push(format!("{field}.{inner}").into_boxed_str());
                        }
                    }
                    json.push('}');
                }
                _ if parts.member(&field).is_some() || matches!(&*field, "spec" | "status") => {
                    add(&mut json, &field, value, FIELD);
                }
                _ => {}
            }
        }
        json.push('}');
        NodeFacts::parse(&json).map_err(|error| error.to_string())?;
        let (metadata, managed_fields) = metadata;
        let packed = Packed::new(json, managed_fields, samples);
        Ok(Self { metadata, left_out: left_out.into(), packed, parts: Arc::clone(parts) })
    }
}

/// Writes a field of `spec` or `status`, if somebody asks for it. Returns whether it could be kept, also if nobody asks: it is told who
/// writes such large nodes.
fn add_field(json: &mut String, parts: &Paths, (of, field): (&str, &str), value: &str) -> bool {
    if parts.member(of).is_some_and(|parts| parts.member(field).is_some()) {
        return add(json, field, value, FIELD);
    }
    let fits = needed_by_facts(of, field, value).is_none_or(|needed| add(json, field, &needed, FIELD));
    fits && value.len() <= FIELD_MAX
}

/// What is read of `metadata` at once.
#[derive(Clone, Debug, Default)]
struct Metadata {
    name: Box<str>,
    uid: Box<str>,
    resource_version: Box<str>,
    created: Option<Timestamp>,
    deleted: Option<Timestamp>,
}

impl Metadata {
    /// Writes the other fields, and returns `managedFields`.
    fn read<'t>(text: &'t str, json: &mut String) -> Result<(Self, &'t str), String> {
        let (mut read, mut managed_fields) = (Self::default(), "");
        open(json, "metadata");
        json.push('{');
        for (field, value) in fields("metadata", text)? {
            let fault = |error: serde_json::Error| format!("metadata.{field}: {}", without_place(&error));
            let text = || serde_json::from_str::<Option<Box<str>>>(value).map(Option::unwrap_or_default).map_err(fault);
            let time = || serde_json::from_str(value).map_err(fault);
            match &*field {
                "managedFields" => {
                    managed_fields = value;
                    continue;
                }
                "name" => read.name = text()?,
                "uid" => read.uid = text()?,
                "resourceVersion" => read.resource_version = text()?,
                "creationTimestamp" => read.created = time()?,
                "deletionTimestamp" => read.deleted = time()?,
                _ => {}
            }
            let bound = if matches!(&*field, "labels" | "annotations") { Bound::Whole } else { FIELD };
            add(json, &field, value, bound);
        }
        json.push('}');
        Ok((read, managed_fields))
    }
}

fn fields<'a>(of: &str, text: &'a str) -> Result<Vec<(Cow<'a, str>, &'a str)>, String> {
    Fields::of(text).map(|Fields(fields)| fields).map_err(|error| format!("{of}: {}", without_place(&error)))
}

/// Writes the beginning of a field.
fn open(json: &mut String, field: &str) {
    if !json.ends_with('{') {
        json.push(',');
    }
    json.push_str(&serde_json::Value::from(field).to_string());
    json.push(':');
}

/// Writes a field. Returns whether its value was kept completely.
fn add(json: &mut String, field: &str, value: &str, bound: Bound) -> bool {
    open(json, field);
    copy(value, bound, json)
}

/// The fields of a node that identify the machine.
pub fn machine<'a>(node: &'a NodeFacts<'_>) -> Machine<'a> {
    Machine { name: &node.name, provider_id: node.provider_id.as_deref(), system_uuid: node.system_uuid.as_deref() }
}

impl Lookup for NodeObject {
    type DynamicType = ();

    fn kind((): &()) -> Cow<'_, str> {
        <Node as Resource>::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        <Node as Resource>::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        <Node as Resource>::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        <Node as Resource>::plural(&())
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        Some(self.name().into())
    }

    fn namespace(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Not needed to find a node in a store, which would keep it as well.
    fn resource_version(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// As [`Lookup::resource_version`].
    fn uid(&self) -> Option<Cow<'_, str>> {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_decisions_use_are_kept_and_fields_that_are_too_large_are_named() {
        let images = vec!["{}"; 390_000].join(",");
        let message = "\\u003c".repeat(1_250_000);
        let text = format!(
            r#"{{"metadata": {{"name": "n1", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {{"a": "b"}}, "managedFields": [{{"manager": "m", "fieldsV1": {{"f:metadata": {{"f:labels": {{"f:a": {{}}}}}}}}}}]}},
                "spec": {{"providerID": "p://1", "taints": [{{"key": "k", "effect": "NoSchedule"}}]}},
                "status": {{"images": [{images}], "capacity": {{"cpu": "4"}},
                "conditions": [{{"type": "Ready", "status": "True", "message": "{message}"}}]}}}}"#
        );
        let node = NodeObject::read(&text).unwrap();
        let text = node.text();
        assert!(text.json().len() < 1024, "{} bytes are kept", text.json().len());
        assert_eq!(node.left_out().collect::<Vec<_>>(), ["status.images", "status.conditions"]);
        assert_eq!((node.name(), node.uid(), node.resource_version()), ("n1", "u", "7"));
        assert!(node.created().is_some() && !node.is_leaving() && node.claims().has_label("a"));
        let facts = text.facts().unwrap();
        assert_eq!((facts.label("a"), facts.provider_id.as_deref()), (Some("b"), Some("p://1")));
        assert_eq!((facts.taints().len(), facts.capacity.get("cpu")), (1, Some("4")));
        assert_eq!(facts.readiness, nodegate_policy::Readiness::Settled, "the condition is there without its message");
        assert!(!text.json().contains("managedFields"));
    }

    #[test]
    fn only_what_is_asked_for_and_facts_are_kept_and_a_large_field_is_named_all_the_same() {
        let images = vec!["{}"; 30_000].join(",");
        let text = format!(
            r#"{{"kind": "Node", "metadata": {{"name": "n", "labels": {{"a": "b"}}}}, "spec": {{"podCIDR": "c", "providerID": "p"}},
                "status": {{"images": [{images}], "phase": "x", "conditions": [{{"type": "Other"}}, {{"type": "Ready"}}]}}}}"#
        );
        let read = |parts: Paths| NodeObject::read_parts(&text, &Reading::new(Arc::new(parts))).unwrap();
        let node = read(Paths::Whole.under(&["status", "phase"]));
        let kept: serde_json::Value = serde_json::from_str(node.text().json()).unwrap();
        let expected = serde_json::json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"providerID": "p"},
            "status": {"phase": "x", "conditions": [{"type": "Ready"}]}});
        assert_eq!(kept, expected);
        assert_eq!(node.left_out().collect::<Vec<_>>(), ["status.images"]);
        assert!(!read(Paths::default()).text().json().contains("phase"));
    }

    #[test]
    fn a_node_that_cannot_be_read_is_named_in_a_short_error() {
        let text = format!(r#"{{"metadata": {{"name": "n1", "labels": "{}"}}}}"#, "x".repeat(100_000));
        let error = NodeObject::read(&text).unwrap_err();
        assert!(error.name == "n1" && error.why.len() < 1_000, "{error}");
        assert_eq!(NodeObject::read("[]").unwrap_err().name, "");
    }
}
