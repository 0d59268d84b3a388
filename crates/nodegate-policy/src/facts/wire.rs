//! The parts of a Node as JSON, of which only what facts are made of is kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::json_borrow::{Capacity, Entries, List, Object, Text};
use super::{Readiness, TaintFact};

/// Maximum number of taints. The API server stores an object of 1.5 MiB, and the smallest taint, with an effect, takes 18 bytes of it.
const TAINTS_MAX: usize = 90_000;

#[derive(Default, serde::Deserialize)]
pub(super) struct MetadataWire<'a> {
    #[serde(borrow, default)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) uid: Option<Text<'a>>,
    #[serde(borrow, rename = "generateName", default)]
    pub(super) generate_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) labels: Option<Entries<'a>>,
    #[serde(borrow, default)]
    pub(super) annotations: Option<Entries<'a>>,
    #[serde(rename = "ownerReferences", default)]
    pub(super) owner_references: Option<IgnoredAny>,
}

#[derive(Default, serde::Deserialize)]
pub(super) struct SpecWire<'a> {
    #[serde(rename = "providerID", borrow, default)]
    pub(super) provider_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) taints: Option<List<Object<TaintFact<'a>>, TAINTS_MAX>>,
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
        deserializer.deserialize_seq(ConditionsVisitor)
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
