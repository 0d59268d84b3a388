//! Which answers of inventories are about a node: those about its name, and those about the machine that it is.

use std::sync::Arc;

use super::PolicySet;
use crate::facts::NodeFacts;
use crate::facts::evidence::Evidence;
use crate::facts::inventory::{InventoryAnswers, name_of_machine};
use crate::facts::machines::instance_of;
use crate::set::inventory::Inventory;

impl PolicySet {
    /// The answers about a node. `known`: those about the node of a name, or about the machine that has a name among these
    /// ([`name_of_machine`]).
    pub fn answers_about(
        &self,
        node: &NodeFacts<'_>,
        evidence: Option<&Evidence<'_>>,
        known: impl Fn(&str) -> Arc<InventoryAnswers>,
    ) -> Arc<InventoryAnswers> {
        let mut answers = known(&node.name);
        for inventory in self.by_machine() {
            let names = self.machine_names(inventory, node, evidence).into_iter();
            let found = names.filter_map(|name| known(&name).shared(&inventory.id).cloned()).next();
            if found.is_some() {
                answers = Arc::new(answers.with(&inventory.id, found));
            }
        }
        answers
    }

    /// The names of the machine of a node, under which inventories may answer about it.
    pub fn machines_of(&self, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> Vec<String> {
        self.by_machine().flat_map(|inventory| self.machine_names(inventory, node, evidence)).collect()
    }

    fn by_machine(&self) -> impl Iterator<Item = &Arc<Inventory>> {
        self.inventories().filter(|inventory| inventory.is_by_machine())
    }

    /// What the machine of a node may be called: as its kubelet was authenticated, else as the provisioners' objects that stand for
    /// it say, else, if the inventory trusts kubelets, as the node says.
    fn machine_names(
        &self,
        inventory: &Inventory,
        node: &NodeFacts<'_>,
        evidence: Option<&Evidence<'_>>,
    ) -> Vec<String> {
        let authenticated = evidence.and_then(|known| self.instances(known)).unwrap_or_default();
        let mut names: Vec<String> = authenticated.into_iter().filter_map(name_of_machine).collect();
        if names.is_empty() {
            let objects = evidence.iter().flat_map(|known| &known.machines().found);
            names = objects.filter_map(|object| name_of_machine(instance_of(&object.provider_id))).collect();
        }
        if names.is_empty() && inventory.trusts_kubelet {
            let claimed = [node.system_uuid.as_deref(), node.provider_id.as_deref().map(instance_of)];
            names = claimed.into_iter().flatten().filter_map(name_of_machine).collect();
        }
        names
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value as Json, json};

    use super::*;
    use crate::api::state::SavedState;
    use crate::facts::inventory::InventoryLabels;
    use crate::simulate::compile_inline;

    const UUID: &str = "4C4C4544-0032-3910-8057-B4C04F4A4D32";

    fn set(trusts: bool) -> PolicySet {
        let answer = json!({"machine": "item.id", "labels": {"rack": "item.rack"}});
        let mut inventory =
            json!({"name": "cmdb", "url": "https://cmdb.example/all", "allow": ["rack"], "answer": answer});
        if trusts {
            inventory["trustKubelet"] = json!(true);
        }
        compile_inline(&json!({"inventory": [inventory]})).unwrap()
    }

    /// The rack that a node gets whose record says this, of answers about these machines.
    fn rack(set: &PolicySet, record: &Json, machines: &[(&str, &str)]) -> Option<String> {
        let node = json!({"metadata": {"name": "n1", "uid": "u"}, "spec": {"providerID": "aws:///a/i-claimed"},
            "status": {"nodeInfo": {"systemUUID": UUID}}})
        .to_string();
        let facts = NodeFacts::parse(&node).unwrap();
        let saved: SavedState = serde_json::from_value(record.clone()).unwrap();
        let evidence = Evidence::of_stored(&facts, &saved, false);
        let id = set.inventories().next().unwrap().id.clone();
        let known = |name: &str| {
            let machine = machines.iter().find(|(machine, _)| name_of_machine(machine).as_deref() == Some(name));
            let labels = |rack: &str| BTreeMap::from([("rack".to_owned(), rack.to_owned())]);
            let answer = machine.map(|(_, rack)| Arc::new(InventoryLabels::checked(labels(rack)).0));
            Arc::new(InventoryAnswers::default().with(&id, answer))
        };
        let answers = set.answers_about(&facts, evidence.as_ref(), known);
        Some(answers.of(&id)?.iter().next()?.1.to_owned())
    }

    fn record(text: &str) -> Json {
        json!({"nodeName": "n1", "nodeUID": "u", "authenticatedAs": text})
    }

    #[test]
    fn what_was_authenticated_decides_and_a_claim_only_where_it_is_trusted() {
        let proven = record("extra.sessionName=i-0ABC\nuser=system:node:n1");
        let unproven = record("no-extra.sessionName\nuser=system:node:n1");
        let machines = [("i-0abc", "1"), ("i-claimed", "2"), ("4c4c4544-0032-3910-8057-b4c04f4a4d32", "3")];
        for (trusts, record, expected) in [
            (false, &proven, Some("1")),
            (true, &proven, Some("1")),
            (false, &unproven, None),
            (true, &unproven, Some("3")),
        ] {
            assert_eq!(rack(&set(trusts), record, &machines).as_deref(), expected, "{trusts} {record}");
        }
        assert_eq!(rack(&set(true), &unproven, &machines[..2]).as_deref(), Some("2"));
        assert_eq!(rack(&set(true), &proven, &machines[1..]), None, "it is another machine");
    }

    #[test]
    fn an_author_is_told_what_does_not_go_together() {
        for (change, expected) in [
            (
                json!({"answer": {"node": "item.name", "machine": "item.id", "labels": {"rack": "item.rack"}}}),
                "one of them",
            ),
            (json!({"url": "https://cmdb.example/{node}"}), "names one node"),
            (json!({"trustKubelet": true, "answer": {"node": "item.name", "labels": {"rack": "item.rack"}}}), "name"),
        ] {
            let answer = json!({"machine": "item.id", "labels": {"rack": "item.rack"}});
            let mut inventory =
                json!({"name": "cmdb", "url": "https://cmdb.example/all", "allow": ["rack"], "answer": answer});
            for (field, value) in change.as_object().unwrap() {
                inventory[field] = value.clone();
            }
            let errors = compile_inline(&json!({"inventory": [inventory]})).unwrap_err();
            let errors = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(errors.contains(expected), "{change}: {errors}");
        }
    }
}
