//! The facts about a node, parsed from its JSON without copying.

pub(crate) mod devices;
pub mod gpu;
pub(crate) mod inventory;
pub(crate) mod json;
pub(crate) mod managed_fields;
pub(crate) mod missing;
pub(crate) mod pending_taints;
pub(crate) mod pool_memory;
pub(crate) mod proof;
pub(crate) mod publishers;
pub(crate) mod quantity;
pub(crate) mod request;
pub(crate) mod requester;
mod wire;

pub use wire::needed_by_facts;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::api::names::{KEY_MAX, TaintEffect};
use crate::cel::{Budget, Excerpt, Paths};
use crate::facts::json::borrow::{Capacity, Entries, Text, within, within_or_none};
use crate::facts::json::count::CountedNode;
use crate::facts::json::kinds::{List, Object, object};
use crate::facts::quantity::Quantity;
use crate::facts::wire::{Conditions, MetadataWire, NodeInfoWire, SpecWire, StatusWire, TaintWire};

/// A taint of a node. No text of it is longer than the longest key of a label: a write with a longer one is refused after
/// admission.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct TaintFact<'a> {
    /// The key.
    #[serde(borrow, deserialize_with = "within::<_, KEY_MAX>")]
    pub key: Text<'a>,
    /// The value, empty if there is none.
    #[serde(borrow, default, deserialize_with = "within_or_none::<_, KEY_MAX>")]
    pub value: Option<Text<'a>>,
    /// The effect as written.
    #[serde(borrow, default, deserialize_with = "within::<_, KEY_MAX>")]
    pub effect: Text<'a>,
}

impl TaintFact<'_> {
    /// The value, empty if there is none.
    pub fn value(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    /// The effect, if it is valid in Kubernetes.
    pub fn effect(&self) -> Option<TaintEffect> {
        TaintEffect::from_str(&self.effect).ok()
    }

    /// Whether this is the taint `key:effect`.
    pub fn is(&self, key: &str, effect: TaintEffect) -> bool {
        &*self.key == key && &*self.effect == effect.as_str()
    }
}

/// How long the node has been ready, which determines whether a missing device is absent or not registered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Ready for a while.
    Settled,
    /// Not Ready, unknown, or only just Ready: devices may still appear.
    Starting,
}

/// The facts about a node.
#[derive(Clone, Debug)]
pub struct NodeFacts<'a> {
    /// `metadata.name`.
    pub name: Text<'a>,
    /// Whether the API server generated its name. Admission reviews the CREATE of such a node before it has one.
    pub is_name_generated: bool,
    /// `metadata.uid`; a kubelet's CREATE has none.
    pub uid: Option<Text<'a>>,
    /// `metadata.labels`.
    pub labels: Option<Entries<'a>>,
    /// `metadata.annotations`.
    pub annotations: Option<Entries<'a>>,
    /// `spec.taints`.
    pub taints: Option<Vec<TaintFact<'a>>>,
    /// Whether the object has a `spec`, to which taints can be added.
    pub has_spec: bool,
    /// Whether there is `metadata.ownerReferences`.
    pub(crate) has_owners: bool,
    /// `spec.providerID`.
    pub provider_id: Option<Text<'a>>,
    /// `status.capacity`.
    pub capacity: Capacity<'a>,
    /// How long the node has been ready.
    pub readiness: Readiness,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Option<Text<'a>>,
    /// `status.nodeInfo.osImage`.
    pub os_image: Option<Text<'a>>,
    /// `status.nodeInfo.kernelVersion`.
    pub kernel_version: Option<Text<'a>>,
    /// The whole object, for expressions.
    pub object: ObjectText<'a>,
}

/// The text of an object. It is parsed again only for expressions, and only the parts that they read.
#[derive(Clone, Copy, Debug)]
pub enum ObjectText<'a> {
    /// The text starts with the object; more may follow it.
    Here(&'a str),
    /// `request.object` of an AdmissionReview.
    ObjectOf(&'a str),
    /// `request.oldObject` of an AdmissionReview.
    OldObjectOf(&'a str),
    /// The text has only these parts of the object.
    PartsOf(&'a str, &'a Paths),
}

impl<'a> ObjectText<'a> {
    /// The parts of the object that `paths` name.
    ///
    /// # Errors
    /// If the text is not JSON, or does not have these parts of the object.
    pub fn read(self, paths: &Paths, budget: &Budget) -> Result<Excerpt<'a>, serde_json::Error> {
        let (text, keys) = match self {
            Self::Here(text) => return Excerpt::read(text, paths, budget),
            Self::PartsOf(text, parts) if parts.hold(paths) => return Excerpt::read(text, paths, budget),
            Self::PartsOf(..) => {
                return Err(serde_json::Error::custom(
                    "these policies read more of it than those before, and it was not read again yet",
                ));
            }
            Self::ObjectOf(text) => (text, ["request", "object"]),
            Self::OldObjectOf(text) => (text, ["request", "oldObject"]),
        };
        let review = Excerpt::read(text, &paths.clone().under(&keys), budget)?;
        Ok(review.inside(&keys))
    }

    /// The maximum number of bytes to parse.
    pub(crate) fn len(self) -> usize {
        let (Self::Here(text) | Self::ObjectOf(text) | Self::OldObjectOf(text) | Self::PartsOf(text, _)) = self;
        text.len()
    }

    /// The same object, located by the name of its first field, which is borrowed from the same text. So the text before it
    /// in a review is not parsed again.
    fn found_by(self, first_field: Option<&'a str>) -> Self {
        let (Self::Here(text) | Self::ObjectOf(text) | Self::OldObjectOf(text)) = self else { return self };
        let found = || {
            let name = first_field?.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
            let before = text.get(..name)?.strip_suffix('"')?.trim_end().strip_suffix('{')?;
            text.get(before.len()..)
        };
        found().map_or(self, Self::Here)
    }
}

/// Why a text cannot be parsed as a Node.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the object is not a Node: {0}")]
pub struct FactsError(String);

/// What is wrong with a text, without the line and the column: nobody sees the text of an object as it was sent.
pub fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map(|(what, _)| what.to_owned()).unwrap_or(text)
}

impl<'a> NodeFacts<'a> {
    /// Parses the facts of a Node in JSON.
    ///
    /// # Errors
    /// Returns an error if it is not an object with metadata, or if a field has another type than in Kubernetes.
    pub fn parse(object: &'a str) -> Result<Self, FactsError> {
        Self::of(object, ObjectText::Here(object))
    }

    /// The same of a text that has only these parts of the Node, and what facts need ([`needed_by_facts`]).
    ///
    /// # Errors
    /// As there.
    pub fn parse_parts(object: &'a str, parts: &'a Paths) -> Result<Self, FactsError> {
        Self::of(object, ObjectText::PartsOf(object, parts))
    }

    fn of(text: &'a str, object: ObjectText<'a>) -> Result<Self, FactsError> {
        let fields = serde_json::from_str(text).map_err(|error| FactsError(without_place(&error)))?;
        Ok(Self::new(fields, object))
    }

    /// The facts of parsed fields, and the text that they were parsed from.
    pub fn new(NodeFields { wire, first_field }: NodeFields<'a>, object: ObjectText<'a>) -> Self {
        let Object(metadata) = wire.metadata;
        let has_spec = wire.spec.is_some();
        let Object(spec) = wire.spec.unwrap_or_default();
        let Object(status) = wire.status.unwrap_or_default();
        let Conditions(readiness) = status.conditions.unwrap_or_default();
        let NodeInfoWire { system_uuid, os_image, kernel_version } =
            status.node_info.map(|Object(info)| info).unwrap_or_default();
        Self {
            is_name_generated: is_generated(
                metadata.name.as_deref().unwrap_or_default(),
                metadata.generate_name.as_deref(),
            ),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.filter(|uid| !uid.is_empty()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            taints: spec.taints.map(|List(taints)| taints.into_iter().map(|TaintWire(taint)| taint).collect()),
            has_spec,
            has_owners: metadata.owner_references.is_some(),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            capacity: status.capacity.unwrap_or_default(),
            readiness,
            system_uuid: system_uuid.filter(|id| !id.is_empty()),
            os_image: os_image.filter(|image| !image.is_empty()),
            kernel_version: kernel_version.filter(|version| !version.is_empty()),
            object: object.found_by(first_field),
        }
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key)
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key)
    }

    /// All labels by key.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().flat_map(Entries::iter)
    }

    /// All annotations by key.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.annotations.iter().flat_map(Entries::iter)
    }

    /// The taints in the object's order.
    pub fn taints(&self) -> &[TaintFact<'a>] {
        self.taints.as_deref().unwrap_or_default()
    }

    /// The capacity of a resource, in its base unit: cores, bytes or devices. `None` if it is absent or not a quantity.
    pub fn capacity_of(&self, resource: &str) -> Option<f64> {
        self.capacity.get(resource)?.parse::<Quantity>().ok().map(Quantity::as_f64)
    }

    /// The value of the taint `key:effect`, if present.
    pub fn taint(&self, key: &str, effect: TaintEffect) -> Option<&str> {
        self.taints().iter().find(|taint| taint.is(key, effect)).map(TaintFact::value)
    }
}

/// The fields of a Node that facts are made of, parsed from JSON without copying.
pub struct NodeFields<'a> {
    wire: NodeWire<'a>,
    /// The name of the object's first field, if it is borrowed.
    first_field: Option<&'a str>,
}

impl NodeFields<'_> {
    /// `metadata.name`, empty if there is none.
    pub fn name(&self) -> &str {
        self.wire.metadata.0.name.as_deref().unwrap_or_default()
    }
}

struct NodeWire<'a> {
    /// Every object has metadata, and labels are patched into it.
    metadata: Object<MetadataWire<'a>>,
    spec: Option<Object<SpecWire<'a>>>,
    status: Option<Object<StatusWire<'a>>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for NodeFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = NodeFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a Node")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut metadata, mut spec, mut status) = (None, None, None);
                let mut next = map.next_key::<Text<'de>>()?;
                let first_field = match next {
                    Some(Text(Cow::Borrowed(name))) => Some(name),
                    _ => None,
                };
                while let Some(name) = next {
                    match &*name {
                        "metadata" if metadata.is_some() => return Err(A::Error::duplicate_field("metadata")),
                        "spec" if spec.is_some() => return Err(A::Error::duplicate_field("spec")),
                        "status" if status.is_some() => return Err(A::Error::duplicate_field("status")),
                        "metadata" => metadata = Some(map.next_value()?),
                        "spec" => spec = map.next_value()?,
                        "status" => status = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                    next = map.next_key()?;
                }
                let metadata = metadata.ok_or_else(|| A::Error::missing_field("metadata"))?;
                Ok(NodeFields { wire: NodeWire { metadata, spec, status }, first_field })
            }
        }
        let _counted = CountedNode::begin();
        object(deserializer, NodeVisitor)
    }
}

/// Whether the API server made this name of `generateName`: five characters behind it. Who gives a name as well keeps it
/// (`k8s.io/apiserver/pkg/storage/names/generate.go`, `k8s.io/apimachinery/pkg/util/rand`).
fn is_generated(name: &str, generate_name: Option<&str>) -> bool {
    const BASE_MAX: usize = 58;
    let base = generate_name.map(|base| base.get(..BASE_MAX).unwrap_or(base)).filter(|base| !base.is_empty());
    let suffix = base.and_then(|base| name.strip_prefix(base));
    suffix.is_some_and(|suffix| suffix.len() == 5 && suffix.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
