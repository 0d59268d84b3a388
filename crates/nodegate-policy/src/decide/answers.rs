//! What inventories have answered about the node, and which labels they may still give.

use std::collections::BTreeMap;

use crate::facts::inventory::{InventoryAnswers, InventoryLabels};
use crate::set::PolicySet;
use crate::set::inventory::Inventory;

/// The answers of the inventories of a set about one node.
#[derive(Clone)]
pub(crate) struct Answers<'a> {
    set: &'a PolicySet,
    known: Option<&'a InventoryAnswers>,
    /// Inventories that may still give labels.
    awaited: Vec<&'a Inventory>,
}

impl<'a> Answers<'a> {
    /// No answers, of which none is awaited: for what is judged by the labels that the node has.
    pub(crate) fn ignored(set: &'a PolicySet) -> Self {
        Self { set, known: None, awaited: Vec::new() }
    }

    /// The answers that are known.
    pub(crate) fn new(set: &'a PolicySet, known: Option<&'a InventoryAnswers>) -> Self {
        Self { set, known, awaited: unanswered(set, known).collect() }
    }

    /// The last answer of an inventory; `None` if it has not answered yet.
    pub(crate) fn of(&self, inventory: &Inventory) -> Option<&'a InventoryLabels> {
        self.known?.of(&inventory.id)
    }

    /// The last answer of an inventory, if it is one to what is asked now.
    pub(crate) fn complete(&self, inventory: &Inventory) -> Option<&'a InventoryLabels> {
        self.of(inventory).filter(|answer| inventory.is_answered_by(answer))
    }

    /// The labels of all inventories; `None` if there are none, or if one has not answered yet.
    pub(crate) fn labels(&self) -> Option<BTreeMap<&str, &str>> {
        let mut labels = BTreeMap::new();
        let mut known = false;
        for inventory in self.set.inventories() {
            for (key, value) in inventory.given(self.complete(inventory)?) {
                labels.entry(key).or_insert(value);
            }
            known = true;
        }
        known.then_some(labels)
    }

    /// An inventory that has not answered yet and may give this label.
    pub(crate) fn awaited(&self, key: &str) -> Option<&'a Inventory> {
        let mut awaited = self.awaited.iter().copied();
        awaited.find(|inventory| inventory.may_give(key))
    }
}

/// The inventories that have not answered yet what is asked now.
fn unanswered<'a>(
    set: &'a PolicySet,
    answers: Option<&'a InventoryAnswers>,
) -> impl Iterator<Item = &'a Inventory> + use<'a> {
    let is_answered = move |inventory: &Inventory| {
        let answer = answers.and_then(|answers| answers.of(&inventory.id));
        answer.is_some_and(|answer| inventory.is_answered_by(answer))
    };
    set.inventories().map(|inventory| &**inventory).filter(move |inventory| !is_answered(inventory))
}

/// The required inventories that have not answered for a node yet.
pub(crate) fn required(set: &PolicySet, answers: Option<&InventoryAnswers>) -> Vec<String> {
    let required = unanswered(set, answers).filter(|inventory| inventory.require);
    required.map(|inventory| inventory.id.to_string()).collect()
}
