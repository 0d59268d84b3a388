//! The parts of a Node as JSON, of which only what facts are made of is kept.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

use serde_json::value::RawValue;

use super::{Readiness, TaintFact};
use crate::api::names::KEY_MAX;
use crate::facts::json::borrow::{Capacity, Entries, Text, within_or_none};
use crate::facts::json::count::count;
use crate::facts::json::kinds::{List, Object, list};
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

/// Each field is one of [`needed_by_facts`], and so is each of [`StatusWire`].
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

/// What facts need of a field of `spec` or `status`; nothing if they do not read it.
pub fn needed_by_facts<'t>(holder: &str, field: &str, value: &'t str) -> Option<Cow<'t, str>> {
    match (holder, field) {
        ("spec", "providerID" | "taints") | ("status", "capacity" | "nodeInfo") => Some(value.into()),
        ("status", "conditions") => Some(match serde_json::from_str(value) {
            Ok(ReadyCondition(Some(ready))) => format!("[{ready}]").into(),
            Ok(ReadyCondition(None)) => "[]".into(),
            // Facts tell what is wrong with it.
            Err(_) => value.into(),
        }),
        _ => None,
    }
}

/// The text of the condition that tells whether a node is ready.
struct ReadyCondition<'a>(Option<&'a str>);

impl<'de: 'a, 'a> Deserialize<'de> for ReadyCondition<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReadyVisitor;
        impl<'de> Visitor<'de> for ReadyVisitor {
            type Value = ReadyCondition<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of conditions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut conditions: A) -> Result<Self::Value, A::Error> {
                let mut ready = None;
                while let Some(text) = conditions.next_element::<&'de RawValue>()?.map(RawValue::get) {
                    if ready.is_none() {
                        let Object(condition) =
                            serde_json::from_str::<Object<ConditionWire<'_>>>(text).map_err(A::Error::custom)?;
                        ready = (condition.kind.as_deref() == Some("Ready")).then_some(text);
                    }
                }
                Ok(ReadyCondition(ready))
            }
        }
        list(deserializer, ReadyVisitor)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use serde::de::value::Error;
    use serde_json::{Value, json};

    use super::*;
    use crate::NodeFacts;

    /// Takes the names of the fields that a struct asks for.
    struct Fields<'c>(&'c Cell<&'static [&'static str]>);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("it is no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            self.0.set(fields);
            Err(Error::custom("only its fields are wanted"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
            tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
        let found = Cell::new(&[][..]);
        assert!(T::deserialize(Fields(&found)).is_err() && !found.get().is_empty());
        found.get()
    }

    #[test]
    fn what_facts_read_is_kept_of_stored_nodes() {
        for (holder, fields) in [("spec", fields_of::<SpecWire<'_>>()), ("status", fields_of::<StatusWire<'_>>())] {
            for field in fields {
                assert!(needed_by_facts(holder, field, "[]").is_some(), "{holder}.{field}");
            }
        }
    }

    #[test]
    fn facts_are_the_same_where_only_what_they_need_is_left() {
        let times = json!({"lastHeartbeatTime": "2026-01-01T01:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let condition = |kind: &str| {
            let mut condition = times.clone();
            (condition["type"], condition["status"]) = (json!(kind), json!("True"));
            condition
        };
        for conditions in [json!([condition("Other"), condition("Ready")]), json!([condition("Other")]), json!(null)] {
            let node = json!({
                "metadata": {"name": "n", "labels": {"a": "b"}},
                "spec": {"providerID": "p://1", "podCIDR": "10.0.0.0/24", "taints": [{"key": "k", "effect": "NoExecute"}]},
                "status": {"capacity": {"cpu": "4"}, "images": [{"names": ["i"]}], "conditions": conditions,
                    "nodeInfo": {"systemUUID": "u", "osImage": "o", "kernelVersion": "6.1"}}});
            let mut left = node.clone();
            for holder in ["spec", "status"] {
                left[holder].as_object_mut().unwrap().retain(|field, value| {
                    let needed = needed_by_facts(holder, field, &value.to_string())
                        .map(|text| serde_json::from_str::<Value>(&text).unwrap());
                    needed.is_some_and(|needed| {
                        *value = needed;
                        true
                    })
                });
            }
            assert_eq!(left["status"].get("images").or(left["spec"].get("podCIDR")), None);
            assert!(left["status"]["conditions"].as_array().is_none_or(|left| left.len() < 2));
            let facts = |node: &Value| {
                let text = node.to_string();
                let facts = format!("{:?}", NodeFacts::parse(&text).unwrap());
                facts.split("object: ").next().unwrap().to_owned()
            };
            assert_eq!(facts(&left), facts(&node));
        }
    }
}
