//! What becomes of an answer: which labels of it are used, and what is said of the others.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::answer;
use super::items::Items;
use super::request::{Fault, NOT_FOUND, Returned};
use super::source::{Source, Surroundings};
use super::written::Written;
use nodegate_base::text;
use nodegate_policy::{DroppedLabel, Inventory, InventoryLabels, ItemLabels};

/// Maximum length of a key or a name in a message, in bytes.
const SHOWN_MAX: usize = 128;
/// Maximum number of dropped labels, and other reasons, that are named in the log for one inventory.
const NAMED_MAX: usize = 32;

/// What an answer about all nodes says of them.
#[derive(Default)]
struct Answers {
    accepted: Vec<(String, InventoryLabels)>,
    /// The nodes of which it says nothing that can be used.
    refused: BTreeSet<String>,
    first_refusal: Option<String>,
    /// Whether any node may be among those of which it says nothing that can be used.
    keeps_all: bool,
}

impl Source {
    /// Uses an answer, and returns the word for it in metrics.
    ///
    /// # Errors
    /// Returns a sentence if it is no answer; the last one stays in force.
    pub(super) async fn take(
        &self,
        around: Surroundings<'_>,
        node: &Arc<str>,
        returned: Returned,
    ) -> Result<&'static str, Fault> {
        let (body, mut etag) = match returned {
            Returned::Unchanged => return Ok("unchanged"),
            Returned::NotFound => return Ok(NOT_FOUND),
            Returned::Body(body, etag) => (body, etag),
        };
        match (&self.inventory.form, self.inventory.url.is_batch()) {
            (None, true) => {
                let mut answers = Answers::default();
                let each = |node, labels: Written| self.add(around, &mut answers, node, Ok(labels.into()));
                answer::of_all(&body, each).map_err(not_understood)?;
                self.put_all(around, answers)?;
            }
            (Some(form), true) => {
                let (mut items, mut next) = with_page(Items::of_all(&self.inventory, form), body).await?;
                let mut pages = self.requester.pages(&self.inventory, around.spacing);
                while let Some(written) = next {
                    // It is of the first page only.
                    etag = None;
                    (items, next) = with_page(items, pages.next(&written).await?).await?;
                }
                let (nodes, nameless) = items.finish().map_err(not_understood)?;
                let nameless = nameless.map(Cow::into_owned);
                let mut answers =
                    Answers { keeps_all: nameless.is_some(), first_refusal: nameless, ..Answers::default() };
                nodes.into_iter().for_each(|(node, item)| self.add(around, &mut answers, node, item));
                self.put_all(around, answers)?;
            }
            (None, false) => {
                let labels = answer::of_node(&body).map_err(not_understood)?;
                self.put(around, node, labels.into())?;
            }
            (Some(form), false) => {
                let (inventory, form, name) = (self.inventory.clone(), form.clone(), node.clone());
                let item = beside(move || Items::of_node(&inventory, &form, &name, &body)).await?;
                let Some(item) = item.map_err(not_understood)? else { return Ok(NOT_FOUND) };
                self.put(around, node, item)?;
            }
        }
        self.schedule.lock().keep_etag(node, etag);
        Ok("answered")
    }

    /// Uses what an answer says of one node.
    ///
    /// # Errors
    /// Returns a sentence if nothing of it can be used.
    fn put(&self, around: Surroundings<'_>, node: &Arc<str>, item: ItemLabels) -> Result<(), Fault> {
        let labels = self.accept(around, node, item).map_err(Fault::OfNode)?;
        around.cache.put(node, &self.inventory.id, Some(labels));
        Ok(())
    }

    /// Adds what an answer about all nodes says of one.
    fn add(
        &self,
        around: Surroundings<'_>,
        answers: &mut Answers,
        node: String,
        item: Result<ItemLabels, Cow<'static, str>>,
    ) {
        if !self.inventory.can_be_about(&node) {
            return;
        }
        match item.map_err(Cow::into_owned).and_then(|item| self.accept(around, &node, item)) {
            Ok(labels) => answers.accepted.push((node, labels)),
            Err(why) => {
                answers.first_refusal.get_or_insert_with(|| format!("node {}: {why}", shown(&node)));
                answers.refused.insert(node);
            }
        }
    }

    /// Uses what an answer says of all nodes.
    ///
    /// # Errors
    /// Returns a sentence if it says nothing that can be used of any node.
    fn put_all(&self, around: Surroundings<'_>, answers: Answers) -> Result<(), Fault> {
        let Answers { accepted, refused, first_refusal, keeps_all } = answers;
        if let Some(why) = first_refusal {
            if accepted.is_empty() {
                return Err(Fault::OfNode(why));
            }
            let Inventory { policy, name, .. } = &*self.inventory;
            around.metrics.dropped(policy, name, refused.len().max(1));
            self.once(&why, |policy, inventory, why| {
                tracing::warn!(
                    policy,
                    inventory,
                    why,
                    "a part of an inventory's answer is not used; its nodes keep their last labels"
                );
            });
        }
        let keeps_all = keeps_all || accepted.is_empty();
        if accepted.is_empty() {
            self.once("no node", |policy, inventory, _| {
                tracing::warn!(policy, inventory, "an inventory's answer is about no node; all keep their last labels");
            });
        }
        // A node that is missing in a batch may be missing by mistake. What exists keeps its last answer. Which machines exist is not
        // known here: what was answered about another one is forgotten, and its node keeps its labels all the same.
        let living: HashSet<Arc<str>> = (around.living)().into_iter().map(|node| node.name).collect();
        let kept = |node: &str| keeps_all || living.contains(node) || refused.contains(node);
        around.cache.put_all(&self.inventory.id, accepted, kept);
        around.metrics.set_nodes(&self.inventory.policy, &self.inventory.name, around.cache.count(&self.inventory.id));
        Ok(())
    }

    /// The labels that may be used. One that may not is no answer about its key, so the previous value stays.
    ///
    /// # Errors
    /// Returns a sentence if there are labels and none of them may be used: a page about an error looks like this, and
    /// must not remove labels.
    fn accept(&self, around: Surroundings<'_>, node: &str, item: ItemLabels) -> Result<InventoryLabels, String> {
        let ItemLabels { name: _, labels, unknown } = item;
        let before = around.cache.of(node);
        let before = before.of(&self.inventory.id);
        // Without an answer to the same question, what is unknown would count as absent.
        let answered = before.is_some_and(|before| self.inventory.is_answered_by(before));
        if let Some(DroppedLabel { key, reason }) = unknown.first().filter(|_| !answered) {
            return Err(format!("label {key} is unknown: {reason}"));
        }
        let count = labels.len() + unknown.len();
        let (labels, mut dropped) = self.inventory.accept(labels);
        dropped.extend(unknown);
        if !dropped.is_empty() {
            around.metrics.dropped(&self.inventory.policy, &self.inventory.name, dropped.len());
            self.name_dropped(&dropped);
        }
        match dropped.first() {
            Some(DroppedLabel { key, reason }) if dropped.len() == count => {
                Err(format!("none of its labels can be used; {:?}: {}", shown(key), shown(reason)))
            }
            None => Ok(labels),
            Some(_) => {
                let stays = |key: &str| dropped.iter().any(|dropped| dropped.key == key);
                let before = before.into_iter().flat_map(InventoryLabels::iter);
                let all = labels.iter().chain(before.filter(|(key, _)| stays(key)));
                let all = all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                Ok(self.inventory.accept(all).0)
            }
        }
    }

    /// Logs each dropped key once.
    fn name_dropped(&self, dropped: &[DroppedLabel]) {
        for DroppedLabel { key, reason } in dropped {
            self.once(key, |policy, inventory, key| {
                tracing::warn!(policy, inventory, ?key, reason = shown(reason), "a label of an inventory is not used");
            });
        }
    }

    /// Logs something about `what` unless it was logged before, or too much was.
    fn once(&self, what: &str, log: impl FnOnce(&str, &str, &str)) {
        let (what, mut named) = (shown(what), self.named.lock());
        if named.len() < NAMED_MAX && named.insert(what.clone()) {
            log(&self.inventory.policy, &self.inventory.name, &what);
        }
    }
}

/// A text of an inventory, cut for a message.
fn shown(text: &str) -> String {
    let mut text = text.to_owned();
    text::cut(&mut text, SHOWN_MAX);
    text
}

/// Adds a page to `items`. Returns the URL of the next one as well.
async fn with_page(mut items: Items, body: Vec<u8>) -> Result<(Items, Option<String>), Fault> {
    let (next, items) = beside(move || (items.add_page(&body), items)).await?;
    Ok((items, next.map_err(not_understood)?))
}

/// Does work beside the threads that answer reviews.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Fault::OfNode(format!("its answer could not be evaluated: {error}")))
}

fn not_understood(why: Cow<'static, str>) -> Fault {
    Fault::OfNode(format!("its answer cannot be used: {why}"))
}
