//! A Node as the controller holds it: its JSON as text, and what its `managedFields` say.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ClusterResourceScope;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use crate::policy::{Claims, FactsError, NodeFacts};
use crate::state::Machine;

/// A Node without its `managedFields`, which are half of it; every other field is kept, known or not.
#[derive(Clone, Debug)]
pub struct NodeObject {
    /// Name, uid, resource version and creation time; the rest is in the text.
    metadata: ObjectMeta,
    /// Who claims what.
    pub claims: Claims,
    json: Box<str>,
}

impl<'de> Deserialize<'de> for NodeObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Json::deserialize(deserializer)?;
        let managed = object["metadata"].as_object_mut().and_then(|metadata| metadata.remove("managedFields"));
        let claims = Claims::parse(&managed.unwrap_or_default().to_string());
        let json = object.to_string().into_boxed_str();
        let whole = ObjectMeta::deserialize(object["metadata"].take()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            name: whole.name,
            uid: whole.uid,
            resource_version: whole.resource_version,
            creation_timestamp: whole.creation_timestamp,
            deletion_timestamp: whole.deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, claims, json })
    }
}

impl NodeObject {
    /// The name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The uid.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The resource version.
    pub fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// When it was created.
    pub fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Whether it is being deleted.
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Its facts.
    ///
    /// # Errors
    /// If a field has another type than Kubernetes gives it.
    pub fn facts(&self) -> Result<NodeFacts<'_>, FactsError> {
        NodeFacts::parse(&self.json)
    }
}

/// What tells machines apart, of a node.
pub(super) fn machine<'a>(node: &'a NodeFacts<'_>) -> Machine<'a> {
    Machine { name: &node.name, provider_id: node.provider_id.as_deref(), system_uuid: node.system_uuid.as_deref() }
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
