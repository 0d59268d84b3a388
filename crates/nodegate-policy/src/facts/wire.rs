//! The parts of a Node as JSON, of which only what facts are made of is kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

use super::json_borrow::{Capacity, Entries, Text, within_or_none};
use super::json_count::count;
use super::json_kinds::{List, Object, list};
use super::{Readiness, TaintFact};
use crate::api::names::KEY_MAX;
use crate::keys::annotations::ANNOTATIONS_MAX;

/// Maximum number of taints. The API server stores an object of 1.5 MiB, and the smallest taint, with an effect, takes 18 bytes of it.
const TAINTS_MAX: usize = 90_000;

/// Maximum length of a uid, in bytes. The API server generates it, and ignores one that a request to create an object has.
const UID_MAX: usize = 1024;

#[derive(Default, serde::Deserialize)]
pub(super) struct MetadataWire<'a> {
    #[serde(borrow, default)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "within_or_none::<_, UID_MAX>")]
    pub(super) uid: Option<Text<'a>>,
    /// Not bounded: the API server does not check it in an UPDATE.
    #[serde(borrow, rename = "generateName", default)]
    pub(super) generate_name: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "labels")]
    pub(super) labels: Option<Entries<'a>>,
    #[serde(borrow, default, deserialize_with = "annotations")]
    pub(super) annotations: Option<Entries<'a>>,
    #[serde(rename = "ownerReferences", default)]
    pub(super) owner_references: Option<IgnoredAny>,
}

#[derive(Default, serde::Deserialize)]
pub(super) struct SpecWire<'a> {
    #[serde(rename = "providerID", borrow, default)]
    pub(super) provider_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) taints: Option<List<TaintWire<'a>, TAINTS_MAX>>,
}

/// Labels with values of bounded length. Those of Kubernetes have at most 63 characters, and a write with a longer one is refused
/// after admission, as one with an invalid key is.
fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Entries<'de>>, D::Error> {
    let labels = Option::<Entries<'de>>::deserialize(deserializer)?;
    let longest = labels.iter().flat_map(Entries::iter).map(|(_, value)| value.len()).max().unwrap_or_default();
    if longest <= KEY_MAX {
        return Ok(labels);
    }
    let what = format_args!("the value of a label has {longest} bytes, and no API server stores one of more than 63");
    Err(D::Error::custom(what))
}

/// Annotations of the total size that the API server stores.
fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Entries<'de>>, D::Error> {
    let annotations = Option::<Entries<'de>>::deserialize(deserializer)?;
    let size = |(key, value): (&str, &str)| key.len() + value.len();
    let bytes: usize = annotations.iter().flat_map(Entries::iter).map(size).sum();
    if bytes <= ANNOTATIONS_MAX {
        return Ok(annotations);
    }
    Err(D::Error::custom(format_args!(
        "the annotations have {bytes} bytes in total, and no API server stores more than {ANNOTATIONS_MAX}"
    )))
}

/// A taint, counted as one entry of its node.
pub(super) struct TaintWire<'a>(pub(super) TaintFact<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for TaintWire<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Object(taint) = Object::<TaintFact<'de>>::deserialize(deserializer)?;
        count(taint.key.len() + taint.value().len() + taint.effect.len())?;
        Ok(Self(taint))
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusWire<'a> {
    #[serde(borrow, default)]
    pub(super) capacity: Option<Capacity<'a>>,
    #[serde(default)]
    pub(super) conditions: Option<Conditions>,
    #[serde(borrow, default)]
    pub(super) node_info: Option<Object<NodeInfoWire<'a>>>,
}

/// The readiness according to the conditions. The conditions are not kept, because there may be very many.
pub(super) struct Conditions(pub(super) Readiness);

impl Default for Conditions {
    fn default() -> Self {
        Self(Readiness::Starting)
    }
}

impl<'de> Deserialize<'de> for Conditions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConditionsVisitor;
        impl<'de> Visitor<'de> for ConditionsVisitor {
            type Value = Conditions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of conditions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut conditions: A) -> Result<Self::Value, A::Error> {
                let mut found = None;
                while let Some(Object(condition)) = conditions.next_element::<Object<ConditionWire<'de>>>()? {
                    if found.is_none() && condition.kind.as_deref() == Some("Ready") {
                        found = Some(readiness(&condition));
                    }
                }
                Ok(found.map(Conditions).unwrap_or_default())
            }
        }
        list(deserializer, ConditionsVisitor)
    }
}

/// A node that has been Ready for less than this, in seconds, is starting. Measured between two timestamps
/// of the kubelet, so that decisions do not depend on nodegate's clock.
const SETTLING_SECONDS: i64 = 120;

fn readiness(ready: &ConditionWire<'_>) -> Readiness {
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

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeInfoWire<'a> {
    #[serde(rename = "systemUUID", borrow, default)]
    pub(super) system_uuid: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) os_image: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) kernel_version: Option<Text<'a>>,
}
