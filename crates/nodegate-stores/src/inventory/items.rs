//! Answers whose form the policy says: items in JSON, and lines of comma-separated values.
//!
//! Only one item at a time is read, and of it only what expressions read. So a bad answer needs little more memory than its own
//! text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::plain;
use super::json;
use super::written::{NODES_MAX, WRITTEN_MAX, kept, too_many_labels, too_many_nodes};
use nodegate_policy::api::answers::AnswerFormat;
use nodegate_policy::{AnswerForm, Inventory, ItemLabels};

/// Why an answer cannot be used: a sentence that contains nothing of it.
type Fault = Cow<'static, str>;

/// What each node has, or why that is not known.
type ByNode = BTreeMap<String, Result<ItemLabels, Fault>>;

/// Maximum time in which the items of a page are evaluated, and those of an answer about one node.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of columns.
const COLUMNS_MAX: usize = 1_024;
/// Maximum size of all names and labels that an answer gives, in bytes.
const GIVEN_MAX: usize = 64 << 20;
/// What a label takes beside its texts, about.
const LABEL_BYTES: usize = 64;

/// What the items of an answer say, on all its pages.
pub(super) struct Items {
    inventory: Arc<Inventory>,
    form: Arc<AnswerForm>,
    count: usize,
    given: usize,
    given_max: usize,
    page_timeout: Duration,
    /// The one node that the answer is about, if the items need not name it.
    only: Option<Arc<str>>,
    /// When the evaluation of the present page ends.
    until: Instant,
    nodes: ByNode,
    /// Why it is not known which node an item is about.
    nameless: Option<Fault>,
}

impl Items {
    /// No item, of an answer about all nodes that has this form.
    pub(super) fn of_all(inventory: &Arc<Inventory>, form: &Arc<AnswerForm>) -> Self {
        let (inventory, form, nodes, until) = (inventory.clone(), form.clone(), BTreeMap::new(), Instant::now());
        let (count, given, given_max, page_timeout) = (0, 0, GIVEN_MAX, PAGE_TIMEOUT);
        Self { inventory, form, count, given, given_max, page_timeout, only: None, until, nodes, nameless: None }
    }

    /// What an answer says about one node; `None` if no item is about it.
    ///
    /// # Errors
    /// Returns a sentence if the answer does not have the form, or the item does not say what the node has.
    pub(super) fn of_node(
        inventory: &Arc<Inventory>,
        form: &Arc<AnswerForm>,
        node: &Arc<str>,
        body: &[u8],
    ) -> Result<Option<ItemLabels>, Fault> {
        let only = if form.names_nodes() { None } else { Some(node.clone()) };
        let mut items = Self { only, page_timeout: NODE_TIMEOUT, ..Self::of_all(inventory, form) };
        items.add_page(body)?;
        match (items.nodes.remove(&**node), items.nameless) {
            (Some(item), _) => item.map(Some),
            // It may be the item of this node.
            (None, Some(why)) => Err(why),
            (None, None) => Ok(None),
        }
    }

    /// Adds what a page says. Returns the URL of the next one, as it is written.
    ///
    /// # Errors
    /// Returns a sentence if the page does not have the form. Then nothing of the answer may be used.
    pub(super) fn add_page(&mut self, body: &[u8]) -> Result<Option<String>, Fault> {
        self.until = Instant::now() + self.page_timeout;
        let text = plain(body)?;
        match self.form.format {
            AnswerFormat::Csv => {
                self.add_lines(text)?;
                Ok(None)
            }
            AnswerFormat::Json => {
                let form = self.form.clone();
                let items = json::at(text, &form.items)?;
                self.add_items(items.ok_or_else(|| format!("it has nothing at {}", pointer(&form.items)))?)?;
                let next = form.next.as_ref().map(|keys| json::at(text, keys)).transpose()?.flatten();
                let next = next.map(serde_json::from_str::<Option<String>>).transpose();
                let next = next.map_err(|_| "what is at the pointer of the next page is neither text nor null")?;
                Ok(next.flatten().filter(|next| !next.is_empty()))
            }
        }
    }

    /// What each node has, or why that is not known; and why it is not known which node an item is about, if there is such an item.
    ///
    /// # Errors
    /// Returns a sentence if no item could be read.
    pub(super) fn finish(self) -> Result<(ByNode, Option<Fault>), Fault> {
        match self.nameless {
            Some(why) if self.nodes.is_empty() => Err(why),
            nameless => Ok((self.nodes, nameless)),
        }
    }

    fn add_items(&mut self, text: &str) -> Result<(), Fault> {
        if text.starts_with('{') && !self.form.reads_keys() {
            return self.add(self.form.of_json(None, text));
        }
        let mut fault = None;
        let each = |key: Option<&str>, item: &str| {
            let added = self.add(self.form.of_json(key, item));
            fault = fault.take().or(added.err());
            fault.is_none()
        };
        let read = json::each_item(text, each);
        fault.map_or(read, Err)
    }

    fn add_lines(&mut self, text: &str) -> Result<(), Fault> {
        let not_csv = |error: csv::Error| Fault::from(format!("it is not a table of comma-separated values: {error}"));
        let mut lines = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let names = lines.headers().map_err(not_csv)?.clone();
        if names.len() > COLUMNS_MAX {
            return Err(format!("it has more than {COLUMNS_MAX} columns").into());
        }
        for line in lines.records() {
            let line = line.map_err(not_csv)?;
            self.add(self.form.of_fields(names.iter().zip(&line)))?;
        }
        Ok(())
    }

    /// Adds what an item says.
    fn add(&mut self, item: Result<ItemLabels, String>) -> Result<(), Fault> {
        self.count += 1;
        if self.count > NODES_MAX {
            return Err(too_many_nodes());
        }
        if Instant::now() > self.until {
            return Err(format!("its items take longer than {} s to evaluate", self.page_timeout.as_secs()).into());
        }
        let item = match item {
            Ok(item) => item,
            Err(why) => {
                let why = Fault::from(format!("of item {}, {why}", self.count));
                match &self.only {
                    Some(node) => drop(self.nodes.insert(node.as_ref().to_owned(), Err(why))),
                    None => drop(self.nameless.get_or_insert(why)),
                }
                return Ok(());
            }
        };
        let Some(node) = self.only.as_deref().or(item.name.as_deref()).map(kept) else { return Ok(()) };
        let item = bounded(item, &self.inventory);
        let labels = item.iter().flat_map(|item| &item.labels);
        self.given += node.len() + labels.map(|(key, value)| key.len() + value.len() + LABEL_BYTES).sum::<usize>();
        if self.given > self.given_max {
            return Err(format!("its labels take more than {} KiB", self.given_max >> 10).into());
        }
        match self.nodes.entry(node) {
            Entry::Vacant(entry) => drop(entry.insert(item)),
            Entry::Occupied(mut entry) => drop(entry.insert(Err(match self.only {
                Some(_) => "it has several items; let answer.node say which is about the node".into(),
                None => "several items are about it".into(),
            }))),
        }
        Ok(())
    }
}

/// The labels of the item that the inventory may give, unless there are too many. What is too long is cut, and still not valid.
fn bounded(item: ItemLabels, inventory: &Inventory) -> Result<ItemLabels, Fault> {
    let ItemLabels { name: _, mut labels, unknown } = item;
    labels.retain(|key, _| inventory.may_give(key));
    if labels.len() + unknown.len() > WRITTEN_MAX {
        return Err(too_many_labels());
    }
    let labels = labels.iter().map(|(key, value)| (kept(key), kept(value))).collect();
    Ok(ItemLabels { name: None, labels, unknown })
}

/// The pointer in a message.
fn pointer(keys: &[String]) -> String {
    keys.iter().map(|key| format!("/{key}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
