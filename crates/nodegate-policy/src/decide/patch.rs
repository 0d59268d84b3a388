//! Converts a change to a JSON patch (RFC 6902) that always applies.
//!
//! The API server applies the patch to the object that was reviewed, so the object's shape is known:
//! missing parents are created, nothing absent is removed, and no operation tests a value. A patch that
//! does not apply would fail the requester's write with a 500, whatever the failure policy is.

use std::collections::BTreeMap;

use jsonptr::Token;
use serde::Serialize;
use serde_json::Error;

use crate::api::names::TaintId;
use crate::decide::decision::NodeChange;
use crate::facts::NodeFacts;
use crate::facts::json::borrow::Entries;
use crate::facts::request::{Operation, Write};

/// A JSON patch as it is sent. It is most of an answer, so it is written only once.
#[derive(Clone, Debug)]
pub struct NodePatch {
    json: Vec<u8>,
    operations: usize,
}

impl NodePatch {
    /// The patch in JSON.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// The number of its operations.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Its operations, to apply them here or to add others.
    ///
    /// # Errors
    /// Returns an error if it is not a patch, which is an internal error.
    pub fn parse(&self) -> Result<json_patch::Patch, Error> {
        serde_json::from_slice(&self.json)
    }
}

/// The patch that makes `change` on the node that `facts` were read from.
///
/// # Errors
/// Returns an error if a value cannot be serialized, which is an internal error.
pub fn patch(facts: &NodeFacts<'_>, change: &NodeChange) -> Result<NodePatch, Error> {
    let mut operations = Operations::new();
    operations.change(facts, change)?;
    Ok(operations.finish())
}

/// The patch that answers a write: what `change` changes, and without what a kubelet may not say about its own node.
///
/// With an owner that is an object of its own, such as its CSINode, a kubelet could delete its node at will, and join again without
/// the taints that people put on it. NodeRestriction refuses that only in an UPDATE; no real kubelet sends owners.
///
/// # Errors
/// As [`patch`].
pub fn patch_of_write(write: &Write<'_>, change: Option<&NodeChange>) -> Result<Option<NodePatch>, Error> {
    let owned = write.operation == Operation::Create && write.requester.is_kubelet() && write.node.has_owners;
    if change.is_none() && !owned {
        return Ok(None);
    }
    let mut operations = Operations::new();
    if let Some(change) = change {
        operations.change(&write.node, change)?;
    }
    if owned {
        operations.remove("/metadata/ownerReferences")?;
    }
    Ok(Some(operations.finish()))
}

/// A taint as in `spec.taints`.
#[derive(Serialize)]
struct TaintValue<'a> {
    key: &'a str,
    effect: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    value: &'a str,
}

impl<'a> TaintValue<'a> {
    fn new(id: &'a TaintId, value: &'a str) -> Self {
        Self { key: id.key.as_str(), effect: id.effect.as_str(), value }
    }
}

/// A patch under construction.
struct Operations {
    json: Vec<u8>,
    count: usize,
}

impl Operations {
    fn new() -> Self {
        let mut json = Vec::with_capacity(1024);
        json.push(b'[');
        Self { json, count: 0 }
    }

    fn finish(mut self) -> NodePatch {
        self.json.push(b']');
        NodePatch { json: self.json, operations: self.count }
    }

    /// Begins an operation, of which `value` and the end are missing.
    fn begin(&mut self, op: &str, path: &str) -> Result<(), Error> {
        if self.count > 0 {
            self.json.push(b',');
        }
        self.count += 1;
        for part in [r#"{"op":""#, op, r#"","path":"#] {
            self.json.extend_from_slice(part.as_bytes());
        }
        serde_json::to_writer(&mut self.json, path)
    }

    fn set(&mut self, op: &str, path: &str, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        self.begin(op, path)?;
        self.json.extend_from_slice(br#","value":"#);
        serde_json::to_writer(&mut self.json, value)?;
        self.json.push(b'}');
        Ok(())
    }

    fn add(&mut self, path: &str, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        self.set("add", path, value)
    }

    fn remove(&mut self, path: &str) -> Result<(), Error> {
        self.begin("remove", path)?;
        self.json.push(b'}');
        Ok(())
    }

    fn change(&mut self, facts: &NodeFacts<'_>, change: &NodeChange) -> Result<(), Error> {
        self.entries("/metadata/labels", facts.labels.as_ref(), change.labels())?;
        self.entries("/metadata/annotations", facts.annotations.as_ref(), change.annotations())?;
        self.taints(facts, change.taints())
    }

    fn entries(
        &mut self,
        object: &str,
        there: Option<&Entries<'_>>,
        change: &BTreeMap<String, Option<String>>,
    ) -> Result<(), Error> {
        let Some(there) = there else {
            let all: BTreeMap<&str, &str> =
                change.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_deref()?))).collect();
            return if all.is_empty() { Ok(()) } else { self.add(object, &all) };
        };
        for (key, value) in change {
            let path = || [object, "/", Token::new(key.as_str()).encoded()].concat();
            match (value, there.get(key)) {
                // For a member of an object, `add` replaces an existing value.
                (Some(value), _) => self.add(&path(), value)?,
                (None, Some(_)) => self.remove(&path())?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn taints(&mut self, facts: &NodeFacts<'_>, change: &BTreeMap<TaintId, Option<String>>) -> Result<(), Error> {
        if change.is_empty() {
            return Ok(());
        }
        let Some(there) = &facts.taints else {
            let taint = |(id, value)| Some(TaintValue::new(id, Option::as_deref(value)?));
            let all: Vec<TaintValue<'_>> = change.iter().filter_map(taint).collect();
            return match all.is_empty() {
                true => Ok(()),
                false if facts.has_spec => self.add("/spec/taints", &all),
                false => self.add("/spec", &BTreeMap::from([("taints", all)])),
            };
        };
        let mut removed = Vec::new();
        for (id, value) in change {
            let at = there.iter().position(|taint| taint.is(id.key.as_str(), id.effect));
            match (at, value) {
                (Some(at), Some(value)) => {
                    self.set("replace", &format!("/spec/taints/{at}"), &TaintValue::new(id, value))?;
                }
                (None, Some(value)) => self.add("/spec/taints/-", &TaintValue::new(id, value))?,
                (Some(at), None) => removed.push(at),
                (None, None) => {}
            }
        }
        // From the end, so that the indexes of the others stay valid.
        removed.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        removed.into_iter().try_for_each(|at| self.remove(&format!("/spec/taints/{at}")))
    }
}
