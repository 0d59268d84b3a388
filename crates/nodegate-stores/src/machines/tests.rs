use serde_json::{Value, json};

use super::*;
use nodegate_policy::Absence;

const KINDS: &[MachineKind] = &[MachineKind::NodeClaim, MachineKind::Machine];

fn objects(labels: &[&str]) -> MachineObjects {
    let objects = MachineObjects::default();
    let labels = labels.iter().map(|label| (*label).into()).collect();
    objects.known.write().ask(Asked { kinds: KINDS.to_vec(), labels });
    objects
}

/// All APIs are listed, and have nothing.
fn complete(objects: &MachineObjects) {
    for provisioner in Provisioner::of(KINDS) {
        objects.known.write().is_absent(provisioner);
    }
}

fn read(object: Value) -> Watched {
    let mut object = object;
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("NodeClaim");
    serde_json::from_value(object).unwrap()
}

fn claim(name: &str, pool: &str, id: &str) -> Watched {
    let metadata = json!({"name": name, "uid": format!("uid-{name}"), "labels": {"pool": pool}});
    read(json!({"metadata": metadata, "spec": {}, "status": {"providerID": id}}))
}

fn machine(name: &str, id: &str, addresses: Value) -> Watched {
    let metadata = json!({"name": name, "namespace": "capi", "uid": name, "labels": {"pool": "gpu"}});
    read(json!({"metadata": metadata, "spec": {"providerID": id}, "status": {"addresses": addresses}}))
}

/// The names of what is found, and how certain it is that there is no more.
fn found(objects: &MachineObjects, node: &str, instances: Option<&[&str]>) -> (Vec<String>, Absence) {
    let MachinesOfNode { found, absence, absent: _ } = objects.of_node(KINDS, node, instances);
    (found.into_iter().map(|object| object.name.to_string()).collect(), absence)
}

fn names(found: &[&str]) -> Vec<String> {
    found.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_object_is_found_by_the_instance_as_which_the_kubelet_is_authenticated_or_else_by_the_nodes_name() {
    let objects = objects(&["pool", "zone"]);
    complete(&objects);
    objects.take_up(Provisioner::Karpenter, &claim("a", "gpu", "aws:///eu-central-1a/i-a"));
    objects.take_up(Provisioner::Karpenter, &claim("b", "cpu", "gce://p/z/vm-b"));
    let azure = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/AKS-Gpu.7";
    objects.take_up(Provisioner::Karpenter, &claim("d", "gpu", azure));
    let addresses = json!([{"type": "InternalDNS", "address": "VM-C.example.com"}, {"type": "ExternalDNS", "address": "any.example.com"},
        {"type": "InternalIP", "address": "10.0.0.1"}]);
    objects.take_up(Provisioner::ClusterApi, &machine("c", "vsphere://c", addresses));
    objects.take_up(Provisioner::OpenShift, &machine("c", "", json!(null)));
    let by_instance = objects.of_node(KINDS, "ip-10-0-0-1", Some(&["i-a"]));
    let expected = json!({"group": "karpenter.sh", "kind": "NodeClaim", "name": "a", "uid": "uid-a", "providerID": "aws:///eu-central-1a/i-a", "byInstance": true,
        "labels": {"pool": "gpu", "zone": ""}});
    assert_eq!(serde_json::to_value(&by_instance.found).unwrap(), json!([expected]));
    for (node, instances, expected) in [
        ("i-a.eu-central-1.compute.internal", Some(&[][..]), &["a"][..]),
        ("vm-b", None, &["b"]),
        ("vm-b", Some(&["i-a"]), &["a"]),
        ("vm-b", Some(&["vm-b"]), &["b"]),
        ("vm-c.example.com", Some(&[]), &["capi/c"]),
        ("any.example.com", Some(&[]), &[]),
        ("10.0.0.1", Some(&[]), &[]),
        ("i-a", Some(&[]), &["a"]),
        ("i-a.eu-west-1.compute.internal", Some(&[]), &[]),
        ("vm-b.example.com", Some(&[]), &[]),
        ("aks-gpu.7", Some(&[]), &["d"]),
        ("aks-gpu", Some(&[]), &[]),
        ("x", Some(&["AKS-Gpu.7"]), &["d"]),
        ("x", Some(&["aks-gpu.7"]), &[]),
        ("c", Some(&[]), &[]),
        ("vm-b", Some(&["i-x"]), &[]),
    ] {
        // Any node may be that of the object on AWS, unless its instance is known.
        let is_known = instances.is_some_and(|instances| !instances.is_empty());
        let absence = if is_known { Absence::SoFar } else { Absence::Unknown };
        assert_eq!(found(&objects, node, instances), (names(expected), absence), "{node} {instances:?}");
    }
    let asserted = |id: &str, node: &str| -> Vec<(String, bool)> {
        let asserted = objects.with_provider_id(id, node).into_iter();
        asserted.map(|object| (object.name, object.has_another_name)).collect()
    };
    let is_anothers = |name: &str, it_is: bool| vec![(name.to_owned(), it_is)];
    assert_eq!(asserted("gce://p/z/vm-b", "x"), is_anothers("b", true));
    assert_eq!(asserted("gce://p/z/vm-b", "vm-b"), is_anothers("b", false));
    assert_eq!((asserted("gce://p/y/vm-b", "x"), asserted("aws:///eu-central-1b/i-a", "x")), (vec![], vec![]));
    // A node on AWS usually has another name.
    assert_eq!(asserted("aws:///eu-central-1a/i-a", "ip-10-0-0-1"), is_anothers("a", false));
}

#[test]
fn that_there_is_no_object_is_certain_only_while_all_are_known() {
    let objects = objects(&["pool"]);
    let is_known = |objects: &MachineObjects, instances| found(objects, "n", instances).1 == Absence::SoFar;
    assert!(!is_known(&objects, Some(&[])), "nothing is listed");
    complete(&objects);
    assert!(is_known(&objects, Some(&[])));
    assert!(is_known(&objects, None), "no object is there that only an instance leads to");
    let scale_set = "azure:///x/virtualMachineScaleSets/s/virtualMachines/7";
    for id in [scale_set, "aws:///eu-central-1a/i-a"] {
        objects.take_up(Provisioner::Karpenter, &claim("a", "gpu", id));
        let known = [None, Some(&[][..]), Some(&["i-x"][..])].map(|instances| is_known(&objects, instances));
        assert_eq!(known, [false, false, true], "{id}");
    }
    objects.take_up(Provisioner::Karpenter, &claim("a", "gpu", "gce://p/z/vm-a"));
    assert!(is_known(&objects, None));
    assert_eq!(found(&objects, "vm-a", None).0, names(&["a"]));
    objects.known.write().is_uncertain(Provisioner::Karpenter);
    assert!(!is_known(&objects, Some(&[])));
    assert_eq!(found(&objects, "vm-a", None).0, names(&[]), "another machine may have the name by now");
    assert_eq!(found(&objects, "x", Some(&["vm-a"])).0, names(&["a"]), "but no other is the instance");
    objects.known.write().is_absent(Provisioner::Karpenter);
    objects.known.write().is_uncertain(Provisioner::OpenShift);
    assert_eq!(objects.of_node(&[MachineKind::NodeClaim], "n", Some(&[])).absence, Absence::SoFar);
    objects.known.write().ask(Asked { kinds: KINDS.to_vec(), labels: vec!["zone".into()] });
    assert!(!is_known(&objects, Some(&[])), "something else is asked for");
}

#[test]
fn what_was_deleted_or_changed_leads_nowhere_anymore() {
    let objects = objects(&["pool"]);
    complete(&objects);
    let object = |id: &str| claim("a", "gpu", id);
    let by = |objects: &MachineObjects, node: &str, instance: &'static str| {
        (found(objects, node, Some(&[])).0.len(), found(objects, "x", Some(&[instance])).0.len())
    };
    objects.take_up(Provisioner::Karpenter, &object(""));
    objects.take_up(Provisioner::Karpenter, &object("gce://p/z/one"));
    assert_eq!(by(&objects, "one", "one"), (1, 1));
    objects.take_up(Provisioner::Karpenter, &object("gce://p/z/two"));
    assert_eq!((by(&objects, "one", "one"), by(&objects, "two", "two")), ((0, 0), (1, 1)));
    // A listing without it.
    objects.known.write().begin_listing(Provisioner::Karpenter);
    objects.take_up(Provisioner::Karpenter, &claim("b", "cpu", "gce://p/z/three"));
    // That of another API does not concern it.
    objects.known.write().is_absent(Provisioner::OpenShift);
    assert_eq!(objects.known.write().end_listing(Provisioner::Karpenter).len(), 1);
    assert_eq!((by(&objects, "two", "two"), by(&objects, "three", "three")), ((0, 0), (1, 1)));
    objects.known.write().remove(Provisioner::Karpenter, "b");
    assert_eq!(by(&objects, "three", "three"), (0, 0));
}

#[test]
fn a_node_is_told_when_the_object_comes_that_it_was_looked_for_by() {
    let objects = objects(&["pool"]);
    let mut told = objects.touched().follow();
    assert_eq!(found(&objects, "node-c", None).0, names(&[]));
    complete(&objects);
    objects.tell_listed(&[]);
    assert!(told.take().contains("node-c"), "what was not known is known now");
    assert_eq!(found(&objects, "node-d", None).0, names(&[]));
    objects.tell_listed(&[]);
    assert!(told.take().is_empty(), "that was known");
    assert_eq!(found(&objects, "node-a", Some(&["i-a"])).0, names(&[]));
    assert_eq!(found(&objects, "vm-b", Some(&[])).0, names(&[]));
    objects.take_up(Provisioner::Karpenter, &claim("a", "gpu", "aws:///eu-central-1a/i-a"));
    assert!(told.take().contains("node-a"));
    objects.take_up(Provisioner::Karpenter, &claim("b", "gpu", "gce://p/z/vm-b"));
    assert!(told.take().contains("vm-b"));
    objects.take_up(Provisioner::Karpenter, &claim("b", "gpu", "gce://p/z/vm-b"));
    assert!(told.take().is_empty(), "nothing has changed");
    objects.take_up(Provisioner::Karpenter, &claim("b", "cpu", "gce://p/z/vm-b"));
    assert!(told.take().contains("vm-b"));
    objects.take_up(Provisioner::Karpenter, &claim("a", "cpu", "aws:///eu-central-1a/i-a"));
    assert!(told.take().contains("node-a"));
}

#[test]
fn more_objects_than_a_machine_can_have_lead_nowhere() {
    let objects = objects(&["pool"]);
    complete(&objects);
    for at in 0..9 {
        assert_eq!(found(&objects, "vm", Some(&[])).0.len(), at);
        objects.take_up(Provisioner::ClusterApi, &machine(&format!("m{at}"), &format!("gce://p/{at}/vm"), json!([])));
    }
    assert_eq!(found(&objects, "vm", Some(&[])), (names(&[]), Absence::Unknown));
}

#[test]
fn objects_without_a_spec_and_names_that_every_machine_has_are_read() {
    let bare: Watched = read(json!({"metadata": {"name": "a", "namespace": "n"}}));
    let addresses =
        json!([{"type": "Hostname", "address": "localhost.localdomain"}, {"type": "Hostname", "address": "a"}]);
    for object in [bare, machine("a", "", addresses)] {
        let read = MachineObject::read(Provisioner::OpenShift, &object, &[]);
        assert!(read.node_names().iter().all(|name| **name == *"a"), "{read:?}");
    }
}

#[test]
fn an_object_that_two_names_lead_to_is_one_and_leaves_nothing_behind() {
    let objects = objects(&["pool"]);
    complete(&objects);
    let id = "gce://p/z/vm-e";
    let named = |address: &str| machine("e", id, json!([{"type": "Hostname", "address": address}]));
    objects.take_up(Provisioner::ClusterApi, &named("vm-e"));
    let of = |node: &str| found(&objects, node, Some(&[])).0;
    assert_eq!(of("vm-e"), names(&["capi/e"]));
    objects.take_up(Provisioner::ClusterApi, &named("other"));
    assert_eq!((of("vm-e"), of("other")), (names(&["capi/e"]), names(&["capi/e"])));
    objects.known.write().remove(Provisioner::ClusterApi, "capi/e");
    assert_eq!((of("vm-e"), of("other"), objects.with_provider_id(id, "x")), (vec![], vec![], vec![]));
}
