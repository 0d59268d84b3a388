//! What inventories answer about a node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::api::names::{check_label_key, check_label_value};
use crate::api::stable_hash::stable_hash;
use crate::facts::proof::machines::instance_of;
use crate::keys::restriction::is_own;

/// Maximum number of labels of one node that are kept of one answer.
pub const INVENTORY_LABELS_MAX: usize = 64;

/// A short hash of what an inventory is asked: its URL, the keys that it may give, and how its answers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryQuestion(u64);

impl InventoryQuestion {
    /// The hash. It is stored with answers, so it is the same in every version.
    pub(crate) fn new<'k>(url: &str, allow: impl Iterator<Item = &'k str>, form: &str) -> Self {
        let mut keys: Vec<&str> = allow.collect();
        keys.sort_unstable();
        keys.dedup();
        // Neither a URL nor a key contains a line break, and no key is empty.
        let bytes = url.bytes().chain(keys.into_iter().flat_map(|key| std::iter::once(b'\n').chain(key.bytes())));
        let form = if form.is_empty() { None } else { Some(b"\n\n".iter().copied().chain(form.bytes())) };
        Self(stable_hash(bytes.chain(form.into_iter().flatten())))
    }

    /// Parses what its `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for InventoryQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The labels that an inventory has for one node: valid keys and values, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryLabels {
    labels: Box<[(Box<str>, Box<str>)]>,
    question: Option<InventoryQuestion>,
}

/// A label of an answer that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedLabel {
    /// The key as the inventory wrote it.
    pub key: String,
    /// Why it is not used.
    pub reason: String,
}

impl InventoryLabels {
    /// The valid labels among `entries`, and the others.
    pub fn checked(entries: BTreeMap<String, String>) -> (Self, Vec<DroppedLabel>) {
        let mut dropped = Vec::new();
        let mut labels = Vec::with_capacity(entries.len().min(INVENTORY_LABELS_MAX));
        for (key, value) in entries {
            let checked = check_label_key(&key).and_then(|()| check_label_value(&value));
            let reason = match checked {
                Err(error) => Some(error.to_string()),
                Ok(()) if is_own(&key) => Some("the key is reserved for nodegate".to_owned()),
                Ok(()) if labels.len() == INVENTORY_LABELS_MAX => {
                    Some(format!("the answer has more than {INVENTORY_LABELS_MAX} labels for one node"))
                }
                Ok(()) => None,
            };
            match reason {
                Some(reason) => dropped.push(DroppedLabel { key, reason }),
                None => labels.push((key.into_boxed_str(), value.into_boxed_str())),
            }
        }
        (Self { labels: labels.into_boxed_slice(), question: None }, dropped)
    }

    /// The same labels as the answer to this question.
    #[must_use]
    pub fn to(self, question: Option<InventoryQuestion>) -> Self {
        Self { question, ..self }
    }

    /// The question that they answer; `None` if it was not recorded.
    pub fn question(&self) -> Option<InventoryQuestion> {
        self.question
    }

    /// The labels, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// What the names of machines begin with, in which no name of a node does.
const MACHINE: &str = "machine/";
/// Maximum length of the ID of a machine, in bytes.
const MACHINE_ID_MAX: usize = 512;

/// The name of the machine with this ID among those of nodes. IDs are compared without regard to case. `None` if it can be no ID.
pub fn name_of_machine(id: &str) -> Option<String> {
    let id = id.trim();
    let is_id = !id.is_empty() && id.len() <= MACHINE_ID_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_id.then(|| format!("{MACHINE}{}", id.to_ascii_lowercase()))
}

/// The names of the machine with this ID of a provider: the whole, and what is behind the last `/`. A number there is one of its place,
/// such as a scale set, in which others have the same.
pub(crate) fn names_of_provider_id(provider_id: &str) -> Vec<String> {
    let last = instance_of(provider_id);
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    let last = Some(last).filter(|last| !is_number && *last != provider_id);
    [Some(provider_id), last].into_iter().flatten().filter_map(name_of_machine).collect()
}

/// Whether this is the name of a machine, and not of a node.
pub fn is_machine(name: &str) -> bool {
    name.starts_with(MACHINE)
}

/// The answers of all inventories about one node. An inventory without an entry has not answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryAnswers(Box<[(Arc<str>, Arc<InventoryLabels>)]>);

impl InventoryAnswers {
    /// The answer of the inventory `policy/name`.
    pub fn of(&self, id: &str) -> Option<&InventoryLabels> {
        self.shared(id).map(|labels| &**labels)
    }

    /// The answer of the inventory `policy/name`, to keep.
    pub(crate) fn shared(&self, id: &str) -> Option<&Arc<InventoryLabels>> {
        self.0.iter().find(|(of, _)| **of == *id).map(|(_, labels)| labels)
    }

    /// The same answers with another one of this inventory, or without it.
    #[must_use]
    pub fn with(&self, id: &Arc<str>, answer: Option<Arc<InventoryLabels>>) -> Self {
        let others = self.0.iter().filter(|(of, _)| of != id).cloned();
        let mut all: Vec<_> = others.chain(answer.map(|labels| (id.clone(), labels))).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self(all.into_boxed_slice())
    }

    /// All answers, sorted by inventory.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<InventoryLabels>)> {
        self.0.iter().map(|(id, labels)| (id, labels))
    }

    /// Whether no inventory has answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
