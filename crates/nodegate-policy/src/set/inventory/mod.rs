//! Compiled inventories: where their answers are, and which labels they may give.

pub(crate) mod answer_form;
mod answered;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::api::names::{LabelKey, is_dns_subdomain};
use crate::api::problem::Problem;
use crate::facts::inventory::{DroppedLabel, InventoryLabels, InventoryQuestion, is_machine};
use crate::keys::pattern::KeySet;
use crate::keys::restriction::{is_reconciled_by_kubelet, writable_label};
use crate::set::inventory::answer_form::AnswerForm;

/// Stands for the name of a node in the URL of an inventory.
const NODE: &str = "{node}";

/// An HTTP source of labels.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// `policy/name`.
    pub id: Arc<str>,
    /// The policy.
    pub policy: Arc<str>,
    /// Its name in the policy.
    pub name: Arc<str>,
    /// Where it answers.
    pub url: InventoryUrl,
    /// How often nodegate sends the request for a node.
    pub refresh: Duration,
    /// Whether a joining node has the pending taint until the inventory has answered.
    pub require: bool,
    /// Whether a node may say which machine it is, where nothing proves it.
    pub(crate) trusts_kubelet: bool,
    /// The keys that it may give.
    pub(crate) allow: KeySet,
    /// How its answers are read; `None` if they are labels by node already.
    pub form: Option<Arc<AnswerForm>>,
    /// A hash of `url`, `allow` and `form`.
    pub(crate) question: InventoryQuestion,
}

impl Inventory {
    /// The labels of an answer that this inventory may give and that are valid, and the others.
    pub fn accept(&self, mut answer: BTreeMap<String, String>) -> (InventoryLabels, Vec<DroppedLabel>) {
        let refused = answer.extract_if(.., |key, _| self.refusal(key).is_some());
        let mut dropped: Vec<DroppedLabel> =
            refused.map(|(key, _)| DroppedLabel { reason: self.refusal(&key).unwrap_or_default(), key }).collect();
        let (labels, invalid) = InventoryLabels::checked(answer);
        dropped.extend(invalid);
        (labels.to(Some(self.question)), dropped)
    }

    /// Whether its answers are about machines, and not about nodes by name.
    pub fn is_by_machine(&self) -> bool {
        self.form.as_ref().is_some_and(|form| form.by_machine)
    }

    /// Whether this can be what an answer is about: the name of a node, or of a machine.
    pub fn can_be_about(&self, name: &str) -> bool {
        if self.is_by_machine() { is_machine(name) } else { is_dns_subdomain(name) }
    }

    fn refusal(&self, key: &str) -> Option<String> {
        if !self.allow.contains(key) {
            return Some("the key is not listed in allow".to_owned());
        }
        givable_label(key).err().map(|problem| problem.to_string())
    }

    /// Whether the answer is one to the present URL and `allow`, so that a key that it lacks is absent. An answer to another
    /// question says nothing about keys that it lacks.
    pub fn is_answered_by(&self, answer: &InventoryLabels) -> bool {
        answer.question().is_none_or(|question| question == self.question)
    }

    /// The labels of a known answer that this inventory may give. The policy may have changed since the answer.
    pub(crate) fn given<'l>(&self, answer: &'l InventoryLabels) -> impl Iterator<Item = (&'l str, &'l str)> {
        answer.iter().filter(|(key, _)| self.may_give(key))
    }

    /// Whether it may give this label.
    pub fn may_give(&self, key: &str) -> bool {
        self.allow.contains(key) && givable_label(key).is_ok()
    }

    /// Whether an answer to `other` can be used for this inventory as it is.
    pub fn asks_like(&self, other: &Self) -> bool {
        self.url == other.url && self.refresh == other.refresh && self.question == other.question
    }
}

/// A label that an inventory may give: one that policies may assign and that no kubelet reconciles.
pub(crate) fn givable_label(key: &str) -> Result<LabelKey, Problem> {
    let writable = writable_label(key)?;
    if is_reconciled_by_kubelet(key) {
        let what = format!("{key:?} is set by kubelets and cloud controllers");
        return Err(Problem::new(what, "let the inventory give another key"));
    }
    Ok(writable)
}

/// The URL of an inventory, with or without a place for the name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryUrl {
    text: String,
    batch: bool,
}

/// A text without the credentials of the URLs in it, for messages: `https://…@host/path`.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let (mut rest, mut safe) = (text, String::new());
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(|c: char| c.is_whitespace() || "/\\?#\"'".contains(c)).unwrap_or(after.len());
        let host = after[..end].rfind('@').unwrap_or_default();
        safe.push_str(before);
        safe.push_str("://");
        safe.push_str(if host > 0 { "…" } else { "" });
        rest = &after[host..];
    }
    if safe.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(safe + rest) }
}

impl InventoryUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// Returns a sentence if the URL is not one of HTTP, contains credentials, or has `{node}` where a node could choose
    /// the host.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let example = "write one such as https://inventory.internal/api/nodes/{node}/labels";
        let with = |name: &str| Url::parse(&text.replace(NODE, name));
        let shown = without_credentials(text);
        let not_http = || Problem::new(format!("{shown:?} is not an http or https URL"), example);
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        if host.is_none_or(|host| host.is_empty() || host.starts_with(['/', '\\'])) {
            return Err(not_http());
        }
        let (url, other) = (with("a").map_err(|_| not_http())?, with("b").map_err(|_| not_http())?);
        if !url.username().is_empty() || url.password().is_some() {
            let problem = format!("the URL of host {} contains credentials", url.host_str().unwrap_or_default());
            return Err(Problem::new(
                problem,
                "remove them; `nodegate serve --inventory-credentials` reads them from files",
            ));
        }
        if url.origin() != other.origin() {
            return Err(Problem::new(
                format!("{shown:?} has {NODE} before the path, so the name of a node would choose the host"),
                example,
            ));
        }
        if text.replace(NODE, "").contains(['{', '}']) {
            return Err(Problem::new(format!("{shown:?} contains a brace; only {NODE} is replaced"), example));
        }
        Ok(Self { text: text.to_owned(), batch: !text.contains(NODE) })
    }

    /// Whether one request answers for all nodes.
    pub fn is_batch(&self) -> bool {
        self.batch
    }

    /// The URL for a node; of a batch, the same for every node. `None` if the name is not one that Kubernetes permits.
    ///
    /// The name of a node is a DNS subdomain: it needs no escaping in a URL, and is never `.` or `..`.
    pub fn of(&self, node: &str) -> Option<Url> {
        if !self.batch && !is_dns_subdomain(node) {
            return None;
        }
        Url::parse(&self.text.replace(NODE, node)).ok()
    }

    /// The URL as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_urls_without_credentials() {
        for (text, expected) in [
            ("url: https://u:secret@host/a@b", "url: https://…@host/a@b"),
            ("a http://u@host, b \"https://x:y@z@host?q\"", "a http://…@host, b \"https://…@host?q\""),
            ("https://host/u:p@x", "https://host/u:p@x"),
            ("://@", "://@"),
            ("no URL of me@host", "no URL of me@host"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
        for text in [
            "https://u:secret@host/{name}",
            "https://u:secret@ho st/",
            "https://u:secret@host{node}/",
            "x://u:secret@host",
        ] {
            let said = InventoryUrl::parse(text).err().map(|problem| problem.to_string()).unwrap_or_default();
            assert!(!said.is_empty() && !said.contains("secret"), "{said}");
        }
    }
}
