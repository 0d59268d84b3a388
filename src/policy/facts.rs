//! What is known of a node, read from its JSON without copying it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;

use crate::api::names::TaintEffect;

/// A text borrowed from the JSON where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(v)))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }

            fn visit_string<E: de::Error>(self, v: String) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(v)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A JSON object of texts, sorted by key. The API server sends keys sorted, so sorting is a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'a> Entries<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.binary_search_by(|(candidate, _)| (**candidate).cmp(key)).ok().map(|at| &*self.0[at].1)
    }

    /// All entries by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Vec<(Text<'de>, Text<'de>)> = Vec::with_capacity(16);
                let mut sorted = true;
                while let Some((key, value)) = map.next_entry::<Text<'de>, Option<Text<'de>>>()? {
                    sorted &= entries.last().is_none_or(|(last, _)| *last < key);
                    entries.push((key, value.unwrap_or_default()));
                }
                if !sorted {
                    // The last of equal keys wins, as in Go's decoder.
                    entries.reverse();
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                    entries.dedup_by(|(later, _), (kept, _)| later == kept);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// A taint as the node carries it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct TaintFact<'a> {
    /// The key.
    #[serde(borrow)]
    pub key: Text<'a>,
    /// The value, empty when there is none.
    #[serde(borrow, default)]
    pub value: Option<Text<'a>>,
    /// The effect as written.
    #[serde(borrow, default)]
    pub effect: Text<'a>,
}

impl TaintFact<'_> {
    /// The value, empty when there is none.
    pub fn value(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    /// The effect, if it is one that Kubernetes knows.
    pub fn effect(&self) -> Option<TaintEffect> {
        TaintEffect::from_str(&self.effect).ok()
    }

    /// Whether this is the taint `key:effect`.
    pub fn is(&self, key: &str, effect: TaintEffect) -> bool {
        &*self.key == key && &*self.effect == effect.as_str()
    }
}

/// How settled the node is, which decides whether an absent device is absent or just not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The kubelet says Ready, and has for a while.
    Settled,
    /// Not Ready, unknown, or Ready only just now: devices may still appear.
    Starting,
}

/// What is known of a node.
#[derive(Clone, Debug)]
pub struct NodeFacts<'a> {
    /// `metadata.name`.
    pub name: Text<'a>,
    /// `metadata.uid`; a kubelet's CREATE has none.
    pub uid: Option<Text<'a>>,
    /// `metadata.labels`.
    pub labels: Option<Entries<'a>>,
    /// `metadata.annotations`.
    pub annotations: Option<Entries<'a>>,
    /// `spec.taints`.
    pub taints: Option<Vec<TaintFact<'a>>>,
    /// Whether there is a `spec` to add taints to.
    pub has_spec: bool,
    /// `spec.providerID`.
    pub provider_id: Option<Text<'a>>,
    /// `status.capacity`.
    pub capacity: Capacity<'a>,
    /// How settled the node is.
    pub readiness: Readiness,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Option<Text<'a>>,
    /// The whole object, for expressions.
    pub object: ObjectText<'a>,
}

/// Where the text of an object stands. It is read again only when an expression is reached.
#[derive(Clone, Copy, Debug)]
pub enum ObjectText<'a> {
    /// The text of the object alone.
    Whole(&'a str),
    /// `request.object` of an AdmissionReview.
    ObjectOf(&'a str),
    /// `request.oldObject` of an AdmissionReview.
    OldObjectOf(&'a str),
}

impl ObjectText<'_> {
    /// The object as JSON.
    ///
    /// # Errors
    /// If it is nested deeper than serde_json reads (128 levels).
    pub fn to_json(self) -> Result<Json, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct Review {
            request: Request,
        }
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Request {
            #[serde(default)]
            object: Json,
            #[serde(default)]
            old_object: Json,
        }
        match self {
            Self::Whole(text) => serde_json::from_str(text),
            Self::ObjectOf(text) => serde_json::from_str::<Review>(text).map(|review| review.request.object),
            Self::OldObjectOf(text) => serde_json::from_str::<Review>(text).map(|review| review.request.old_object),
        }
    }
}

/// Why a text is not a Node that can be decided upon.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the object is not a Node: {0}")]
pub struct FactsError(String);

impl<'a> NodeFacts<'a> {
    /// Reads the facts of a Node in JSON.
    ///
    /// # Errors
    /// If it is not an object with a name, or a field read here has another type than Kubernetes gives it.
    pub fn parse(object: &'a str) -> Result<Self, FactsError> {
        let fields = serde_json::from_str(object).map_err(|error| FactsError(error.to_string()))?;
        Ok(Self::new(fields, ObjectText::Whole(object)))
    }

    /// The facts in fields that were read already, together with where their text stands.
    pub fn new(NodeFields(wire): NodeFields<'a>, object: ObjectText<'a>) -> Self {
        let metadata = wire.metadata.unwrap_or_default();
        let has_spec = wire.spec.is_some();
        let spec = wire.spec.unwrap_or_default();
        let status = wire.status.unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.filter(|uid| !uid.is_empty()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            taints: spec.taints,
            has_spec,
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            capacity: status.capacity.unwrap_or_default(),
            readiness: readiness(status.conditions.as_deref().unwrap_or_default()),
            system_uuid: status.node_info.and_then(|info| info.system_uuid).filter(|id| !id.is_empty()),
            object,
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

    /// The value of the taint `key:effect`, if it is there.
    pub fn taint(&self, key: &str, effect: TaintEffect) -> Option<&str> {
        self.taints().iter().find(|taint| taint.is(key, effect)).map(TaintFact::value)
    }
}

/// Ready for less than this counts as freshly started, in seconds. Measured between the kubelet's
/// own two timestamps, so that a decision does not depend on our clock.
const SETTLING_SECONDS: i64 = 120;

fn readiness(conditions: &[ConditionWire<'_>]) -> Readiness {
    let Some(ready) = conditions.iter().find(|condition| condition.kind.as_deref() == Some("Ready")) else {
        return Readiness::Starting;
    };
    if ready.status.as_deref() != Some("True") {
        return Readiness::Starting;
    }
    let moment = |text: &Option<Text<'_>>| text.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    match (moment(&ready.last_heartbeat_time), moment(&ready.last_transition_time)) {
        (Some(heartbeat), Some(transition)) if heartbeat.as_second() - transition.as_second() < SETTLING_SECONDS => {
            Readiness::Starting
        }
        _ => Readiness::Settled,
    }
}

/// `status.capacity`: resources and quantities as written; numbers are taken as well as texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity<'a>(Vec<(Text<'a>, Text<'a>)>);

impl Capacity<'_> {
    /// The quantity of a resource, as written.
    pub fn get(&self, resource: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| &**name == resource).map(|(_, quantity)| &**quantity)
    }

    /// All resources.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, quantity)| (&**name, &**quantity))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Capacity<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapacityVisitor;
        impl<'de> Visitor<'de> for CapacityVisitor {
            type Value = Capacity<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of resource quantities")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some((name, quantity)) = map.next_entry::<Text<'de>, QuantityText<'de>>()? {
                    entries.push((name, quantity.0));
                }
                Ok(Capacity(entries))
            }
        }
        deserializer.deserialize_map(CapacityVisitor)
    }
}

struct QuantityText<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for QuantityText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl<'de> Visitor<'de> for QuantityVisitor {
            type Value = QuantityText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(QuantityText(Text(Cow::Borrowed(v))))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                Ok(QuantityText(Text(Cow::Owned(v.to_owned()))))
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }
        }
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// The fields of a Node that facts are made of, read from JSON without copying.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub struct NodeFields<'a>(#[serde(borrow)] NodeWire<'a>);

#[derive(serde::Deserialize)]
struct NodeWire<'a> {
    #[serde(borrow, default)]
    metadata: Option<MetadataWire<'a>>,
    #[serde(borrow, default)]
    spec: Option<SpecWire<'a>>,
    #[serde(borrow, default)]
    status: Option<StatusWire<'a>>,
}

#[derive(Default, serde::Deserialize)]
struct MetadataWire<'a> {
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    uid: Option<Text<'a>>,
    #[serde(borrow, default)]
    labels: Option<Entries<'a>>,
    #[serde(borrow, default)]
    annotations: Option<Entries<'a>>,
}

#[derive(Default, serde::Deserialize)]
struct SpecWire<'a> {
    #[serde(rename = "providerID", borrow, default)]
    provider_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    taints: Option<Vec<TaintFact<'a>>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusWire<'a> {
    #[serde(borrow, default)]
    capacity: Option<Capacity<'a>>,
    #[serde(borrow, default)]
    conditions: Option<Vec<ConditionWire<'a>>>,
    #[serde(borrow, default)]
    node_info: Option<NodeInfoWire<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionWire<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    status: Option<Text<'a>>,
    #[serde(borrow, default)]
    last_heartbeat_time: Option<Text<'a>>,
    #[serde(borrow, default)]
    last_transition_time: Option<Text<'a>>,
}

#[derive(serde::Deserialize)]
struct NodeInfoWire<'a> {
    #[serde(rename = "systemUUID", borrow, default)]
    system_uuid: Option<Text<'a>>,
}
