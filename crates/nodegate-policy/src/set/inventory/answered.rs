//! Which answers of inventories are about a node: those about its name, and those about the machine that it is.

use std::sync::Arc;

use crate::facts::NodeFacts;
use crate::facts::inventory::{InventoryAnswers, name_of_machine, names_of_provider_id};
use crate::facts::proof::evidence::Evidence;
use crate::set::PolicySet;
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
            let names = self.machine_names(inventory, node, evidence);
            let found = names.iter().find_map(|name| known(name).shared(&inventory.id).cloned());
            // An earlier answer about the node's name does not count: another machine may have had that name.
            if found != answers.shared(&inventory.id).cloned() {
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

    /// The names of the machine of a node: as its kubelet was authenticated, else as the provisioners' objects that stand for it say,
    /// else, if the inventory trusts kubelets, as the node says. None where these name several machines.
    fn machine_names(
        &self,
        inventory: &Inventory,
        node: &NodeFacts<'_>,
        evidence: Option<&Evidence<'_>>,
    ) -> Vec<String> {
        let authenticated = evidence.and_then(|known| self.instances(known));
        if let Some(instances) = authenticated.as_ref().filter(|instances| !instances.is_empty()) {
            return only(instances).and_then(name_of_machine).into_iter().collect();
        }
        let objects = evidence.into_iter().flat_map(|known| self.machines_that_count(known));
        let ids: Vec<&str> = objects.map(|object| &*object.provider_id).filter(|id| !id.is_empty()).collect();
        if !ids.is_empty() {
            return only(&ids).map(names_of_provider_id).unwrap_or_default();
        }
        // Where an object may stand for it, it is not known yet that nothing proves it.
        let is_unproven = || {
            let is_absent =
                |known: &Evidence<'_>| self.machine_kinds().iter().all(|kind| known.machines().is_absent(*kind));
            !self.asks_for_machines() || (authenticated.is_some() && evidence.is_some_and(is_absent))
        };
        let is_contradicted = || evidence.is_some_and(|known| !self.contradictions(node, known).is_empty());
        if !inventory.trusts_kubelet || !is_unproven() || is_contradicted() {
            return Vec::new();
        }
        let uuid = node.system_uuid.as_deref().and_then(name_of_machine);
        let provider_id = node.provider_id.as_deref().map(names_of_provider_id).unwrap_or_default();
        uuid.into_iter().chain(provider_id).collect()
    }
}

/// What all of them are; `None` if they differ.
fn only<'i>(ids: &[&'i str]) -> Option<&'i str> {
    let (first, others) = ids.split_first()?;
    others.iter().all(|other| other == first).then_some(*first)
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
        set_of(trusts, &json!([]))
    }

    fn set_of(trusts: bool, pools: &Json) -> PolicySet {
        let answer = json!({"machine": "item.id", "labels": {"rack": "item.rack"}});
        let mut inventory =
            json!({"name": "cmdb", "url": "https://cmdb.example/all", "allow": ["rack"], "answer": answer});
        if trusts {
            inventory["trustKubelet"] = json!(true);
        }
        compile_inline(&json!({"inventory": [inventory], "pools": pools})).unwrap()
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
    fn objects_of_provisioners_count_as_for_pools_and_several_machines_are_none() {
        let object = |namespace: &str, id: &str| {
            json!({"kind": "Machine", "group": "cluster.x-k8s.io", "name": format!("{namespace}/m"), "uid": format!("{namespace}-{id}"),
                "providerID": id, "labels": {"pool": "gpu"}})
        };
        let recorded = |objects: Json| {
            json!({"nodeName": "n1", "nodeUID": "u", "authenticatedAs": "no-extra.sessionName\nuser=system:node:n1",
                "provisionedBy": objects, "provisionedFor": "u"})
        };
        let pools = json!([{"nameFrom": {"kind": "Machine", "label": "pool", "namespaces": ["ours"]}}]);
        let (a, b) = (object("theirs", "x://a/i-a"), object("ours", "x://a/i-b"));
        let machines = [("i-a", "1"), ("i-b", "2"), ("i-claimed", "3")];
        let of = |trusts, objects: Json| rack(&set_of(trusts, &pools), &recorded(objects), &machines);
        assert_eq!(of(false, json!([a, b])).as_deref(), Some("2"), "others may write the other one");
        assert_eq!(of(true, json!([a])), None, "an object of the namespace may come");
        let other = object("ours", "x://a/i-a");
        assert_eq!(of(true, json!([b, other])), None, "they are two machines");
        let twice = record("extra.sessionName=i-a\nextra.sessionName=i-b\nuser=system:node:n1");
        assert_eq!(rack(&set(true), &twice, &machines), None);
    }

    #[test]
    fn a_number_at_the_end_of_an_id_is_one_of_its_place() {
        assert_eq!(names_of_provider_id("aws:///a/i-1"), ["machine/aws:///a/i-1", "machine/i-1"]);
        assert_eq!(
            names_of_provider_id("azure:///s/gpu/virtualMachines/3"),
            ["machine/azure:///s/gpu/virtualmachines/3"]
        );
        assert_eq!(names_of_provider_id("i-1"), ["machine/i-1"]);
        assert_eq!(names_of_provider_id(""), Vec::<String>::new());
    }

    #[test]
    fn what_was_answered_about_the_name_does_not_count() {
        let (node, set) = (json!({"metadata": {"name": "n1", "uid": "u"}}).to_string(), set(false));
        let facts = NodeFacts::parse(&node).unwrap();
        let id = set.inventories().next().unwrap().id.clone();
        let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        let by_name = InventoryAnswers::default().with(&id, Some(Arc::new(InventoryLabels::checked(labels).0)));
        let by_name = Arc::new(by_name);
        let known = |name: &str| if name == "n1" { by_name.clone() } else { Arc::default() };
        assert!(set.answers_about(&facts, None, known).is_empty());
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
