//! What is recorded of the evidence for pools, and what it counts for.

use std::sync::Arc;

use serde_json::json;

use super::scene::{BEFORE, Scene, set};
use crate::api::pools::MachineKind;
use crate::api::state::{Adopted, AssertedMachine, ProvisionedBy, ProvisionedDocument, SavedState};
use crate::explain::{ProofSource, Vouching, vouching};
use crate::facts::NodeFacts;
use crate::facts::proof::evidence::{AUTHENTICATED_AS, Evidence};
use crate::facts::proof::machines::{Absence, MachinesOfNode};
use crate::set::pools::witness::Witness;
use crate::{Assertions, Bootstrapper, CertificateForNode, PolicySet};

const OF_GPU: &str = "group=pool:gpu\nuser=system:node:n1";

fn policy() -> PolicySet {
    set(json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"]}}],
        "rules": [{"name": "r", "match": {"pools": ["gpu"]}, "labels": {"node-role.kubernetes.io/gpu": ""}}],
    }))
}

/// A node that says this of its kubelet. `guarded`: the API server has checked it.
fn scene(asserted: &'static str, guarded: bool) -> Scene {
    let mut scene = Scene::new(json!({}));
    scene.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: asserted});
    looked_at(scene, guarded)
}

fn looked_at(mut scene: Scene, guarded: bool) -> Scene {
    let text = scene.node.to_string();
    scene.evidence = Evidence::of_stored(&NodeFacts::parse(&text).unwrap(), &scene.saved, guarded);
    scene
}

#[test]
fn evidence_that_the_api_server_checked_is_recorded_and_counts_from_then_on() {
    let settled = scene(OF_GPU, true).settle(&policy());
    assert_eq!(settled.label("node-role.kubernetes.io/gpu"), Some(""));
    assert_eq!(settled.saved.authenticated_as, Some(OF_GPU.into()));
    // Without the guard, with another text on the node and with other policies it stays.
    let mut later = settled;
    later.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: "user=system:node:n1"});
    let later = looked_at(later, false).settle(&set(json!({"rules": []})));
    assert_eq!(later.saved.authenticated_as, Some(OF_GPU.into()));
    let again = looked_at(later, false).settle(&policy());
    assert_eq!(again.label("node-role.kubernetes.io/gpu"), Some(""));
}

#[test]
fn what_nobody_checked_is_unknown_so_nothing_is_added_and_nothing_is_removed() {
    for (asserted, guarded) in
        [(OF_GPU, false), ("group=pool:gpu\nuser=system:node:other", true), ("group=pool:gpu", true)]
    {
        let settled = scene(asserted, guarded).settle(&policy());
        assert_eq!(settled.label("node-role.kubernetes.io/gpu"), None, "{asserted}");
        assert_eq!(settled.saved.authenticated_as, None, "{asserted}");
    }
    let owning = json!({"labels": {"node-role.kubernetes.io/gpu": ""}});
    let owned = Scene::new(json!({"node-role.kubernetes.io/gpu": ""})).owning(owning).settle(&policy());
    assert_eq!(owned.label("node-role.kubernetes.io/gpu"), Some(""));
    assert!(owned.saved.owned.is_some());
}

#[test]
fn a_node_that_is_created_again_proves_its_pool_anew() {
    let mut created_again = scene(OF_GPU, true).settle(&policy());
    assert_eq!(created_again.saved.node_uid.as_deref(), Some(BEFORE));
    created_again.node["metadata"]["uid"] = json!("another");
    created_again.node["metadata"]["labels"] = json!({});
    created_again.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: "group=pool:cpu\nuser=system:node:n1"});
    let settled = looked_at(created_again, true).settle(&policy());
    assert_eq!(settled.label("node-role.kubernetes.io/gpu"), None);
    assert_eq!(settled.saved.authenticated_as, Some("group=pool:cpu\nuser=system:node:n1".into()));
}

#[test]
fn what_was_saved_of_a_node_of_one_pool_is_restored_to_no_node_of_another_and_waits_for_one_of_its_own() {
    let policy = set(json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"]}}, {"name": "cpu", "requester": {"groups": ["pool:cpu"]}}],
        "persist": {"labels": ["team"]},
    }));
    let create = |before: Scene, uid: &'static str, asserted: &str, guarded: bool| {
        let mut scene = before;
        scene.node["metadata"] =
            json!({"name": "n1", "uid": uid, "labels": {}, "annotations": {AUTHENTICATED_AS: asserted}});
        looked_at(scene, guarded).settle(&policy)
    };
    let label = |mut scene: Scene, team: &str| {
        scene.node["metadata"]["labels"]["team"] = json!(team);
        let text = scene.node.to_string();
        scene.evidence = Evidence::of_stored(&NodeFacts::parse(&text).unwrap(), &scene.saved, true);
        scene.settle(&policy)
    };
    let of = |pool: &str| format!("group=pool:{pool}\nuser=system:node:n1");
    let gpu = label(create(Scene::new(json!({})), "u1", &of("gpu"), true), "ml");
    assert_eq!(gpu.saved.labels.get("team"), Some("ml"));
    let cpu = create(gpu, "u2", &of("cpu"), true);
    assert_eq!((cpu.label("team"), cpu.saved.labels.len()), (None, 0));
    let cpu = label(cpu, "forged");
    // Nor to one of which no pool is known, and what that one had is nobody else's.
    let unknown = label(create(cpu, "u3", "", true), "unknown");
    let gpu = create(unknown, "u4", &of("gpu"), true);
    assert_eq!(gpu.label("team"), None, "the latest of another pool is kept, and that was of pool cpu");
    let gpu = label(gpu, "ml");
    let gpu = create(create(gpu, "u5", &of("cpu"), true), "u6", &of("gpu"), true);
    assert_eq!(gpu.label("team"), Some("ml"), "a node of the other pool in between takes nothing away");
    let again = create(gpu, "u7", &of("gpu"), true);
    assert_eq!(again.label("team"), Some("ml"));
}

/// With the word of an administrator that this node object belongs to pool `gpu`.
fn adopted(mut scene: Scene, uid: &str) -> Scene {
    let pools = vec!["gpu".to_owned()];
    scene.saved.adopted =
        Some(Box::new(Adopted { node_uid: uid.to_owned(), pools, by: "ana".to_owned(), ..Adopted::default() }));
    looked_at(scene, true)
}

fn vouched(scene: &Scene, set: &PolicySet, pool: &str) -> Vouching {
    let text = scene.node.to_string();
    vouching(set, &NodeFacts::parse(&text).unwrap(), scene.evidence.as_ref(), pool)
}

#[test]
fn the_word_of_an_administrator_counts_for_one_node_object_and_only_where_nothing_is_known() {
    let policy = policy();
    let role = "node-role.kubernetes.io/gpu";
    // It was there before the guard, so nothing is known of its kubelet.
    let before = scene("", false).settle(&policy);
    assert_eq!((before.label(role), vouched(&before, &policy, "gpu")), (None, Vouching::Counts));
    assert_eq!(vouched(&before, &policy, "cpu"), Vouching::Refuted, "no policy has such a pool");
    let vouched_for = adopted(before, BEFORE).settle(&policy);
    assert_eq!(vouched_for.label(role), Some(""));
    assert_eq!(vouched(&vouched_for, &policy, "gpu"), Vouching::Proven(ProofSource::Administrator));
    assert_eq!(vouched_for.saved.adopted.as_ref().unwrap().by, "ana");
    // What is said of another object of this name is of another machine.
    let mut again = vouched_for;
    again.node["metadata"] = json!({"name": "n1", "uid": "another", "labels": {}});
    let again = looked_at(again, false).settle(&policy);
    assert_eq!((again.label(role), &again.saved.adopted), (None, &None));
    // What is known counts.
    let of_cpu = scene("group=pool:cpu\nuser=system:node:n1", true).settle(&policy);
    assert_eq!(vouched(&of_cpu, &policy, "gpu"), Vouching::Refuted);
    assert_eq!(adopted(of_cpu, BEFORE).settle(&policy).label(role), None);
    let of_gpu = scene(OF_GPU, true).settle(&policy);
    assert_eq!(vouched(&of_gpu, &policy, "gpu"), Vouching::Proven(ProofSource::Requester));
}

#[test]
fn what_was_saved_of_an_adopted_node_is_restored_to_the_next_one_of_its_pool_only() {
    let policy = set(json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"]}}, {"name": "cpu", "requester": {"groups": ["pool:cpu"]}}],
        "persist": {"labels": ["team"]},
    }));
    for (group, restored) in [("pool:gpu", Some("ml")), ("pool:cpu", None)] {
        let mut scene = adopted(Scene::new(json!({"team": "ml"})).settle(&policy), BEFORE);
        scene = scene.settle(&policy);
        assert_eq!(scene.saved.labels.get("team"), Some("ml"));
        let evidence = format!("group={group}\nuser=system:node:n1");
        scene.node["metadata"] =
            json!({"name": "n1", "uid": "another", "labels": {}, "annotations": {AUTHENTICATED_AS: evidence}});
        assert_eq!(looked_at(scene, true).settle(&policy).label("team"), restored, "{group}");
    }
}

/// What nodegate knows of the objects that stand for the machine of `n1`.
struct Knowing(MachinesOfNode, Assertions);

impl Witness for Knowing {
    fn bootstrapper(&self, _certificate: &str, _saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        None
    }

    fn machines(&self, _kinds: &[MachineKind], _node: &str, _instances: Option<&[&str]>) -> MachinesOfNode {
        self.0.clone()
    }

    fn assertions(&self, _node: &str, _provider_id: Option<&str>, _saved: Option<&SavedState>) -> Assertions {
        self.1.clone()
    }
}

fn provisioned(label: &str) -> PolicySet {
    set(json!({
        "pools": [{"nameFrom": {"kind": "NodeClaim", "label": label}}],
        "rules": [{"name": "r", "match": {"pools": ["gpu"]}, "labels": {"node-role.kubernetes.io/gpu": ""}}],
    }))
}

fn witnessed(scene: Scene, set: &PolicySet, found: &[&str], absence: Absence) -> Scene {
    let object = |pool: &&str| -> ProvisionedBy {
        let object = ProvisionedDocument {
            group: "karpenter.sh".into(),
            kind: "NodeClaim".into(),
            name: format!("claim-of-{pool}"),
            uid: format!("uid-of-{pool}"),
            provider_id: format!("aws:///eu-central-1a/i-{pool}"),
            by_instance: true,
            labels: [("pool", *pool)].into_iter().collect(),
        };
        object.into()
    };
    let machines = MachinesOfNode { found: found.iter().map(object).collect(), absence, absent: Vec::new() };
    let mut scene = looked_at(scene, false);
    let evidence = scene.evidence.take();
    let (node, known) = (scene.node.to_string(), Knowing(machines, Assertions::default()));
    scene.evidence = Evidence::witnessed(evidence, set, &NodeFacts::parse(&node).unwrap(), Some(&scene.saved), &known);
    scene
}

#[test]
fn a_node_that_waited_for_its_proof_was_admitted_although_it_lacks_what_its_pool_gives() {
    let gives = |pool: serde_json::Value| {
        set(json!({"pools": [pool], "rules": [{"name": "r", "match": {"pools": ["gpu"]}, "labels": {"tier": "gpu"}}]}))
    };
    let pending = json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]);
    let by_machine = gives(json!({"nameFrom": {"kind": "NodeClaim", "label": "pool"}}));
    let unseen = |scene: Scene| {
        let scene = witnessed(scene, &by_machine, &["gpu"], Absence::SoFar);
        scene.keep(&by_machine, |plan| plan.unseen.is_some())
    };
    assert!(unseen(Scene::new(json!({}))));
    assert!(!unseen(Scene::new(json!({})).tainted(pending.clone())));
    // The name proves its pool at once, so no admission leaves the label to a later write.
    let by_name = gives(json!({"name": "gpu", "names": ["n*"]}));
    let named = Scene::new(json!({})).tainted(pending);
    assert!(named.keep(&by_name, |plan| plan.unseen.is_some()));
}

#[test]
fn the_object_of_a_machine_is_recorded_and_counts_when_it_is_gone() {
    let set = provisioned("pool");
    let has_role = |scene: &Scene| scene.label("node-role.kubernetes.io/gpu") == Some("");
    let settled = witnessed(Scene::new(json!({})), &set, &["gpu"], Absence::SoFar).settle(&set);
    assert!(has_role(&settled));
    assert_eq!(&*settled.saved.provisioned_by[0].name, "claim-of-gpu");
    let gone = witnessed(settled, &set, &[], Absence::Certain).settle(&set);
    assert!(has_role(&gone) && !gone.saved.provisioned_by.is_empty());
    // Nobody asks anymore; then for a label that is not recorded.
    let nothing = super::scene::set(json!({"rules": []}));
    let unasked = looked_at(gone, false).settle(&nothing);
    assert!(!has_role(&unasked) && !unasked.saved.provisioned_by.is_empty());
    let again = looked_at(unasked, false).settle(&set);
    assert!(has_role(&again));
    let other = looked_at(again, false).settle(&provisioned("zone"));
    assert!(has_role(&other), "it is not known, so nothing is removed");
    // Another object is that of another machine, which this node object does not become.
    assert!(has_role(&witnessed(other, &set, &["cpu"], Absence::Certain).settle(&set)));
}

#[test]
fn that_there_is_no_object_is_recorded_and_only_for_the_kind_that_was_asked_for() {
    let set = provisioned("pool");
    let owning = || {
        let owned = json!({"labels": {"node-role.kubernetes.io/gpu": ""}});
        Scene::new(json!({"node-role.kubernetes.io/gpu": ""})).owning(owned)
    };
    let kept = witnessed(owning(), &set, &[], Absence::Unknown).settle(&set);
    assert_eq!(kept.label("node-role.kubernetes.io/gpu"), Some(""));
    assert!(kept.saved.not_provisioned_by.is_empty());
    let removed = witnessed(kept, &set, &[], Absence::Certain).settle(&set);
    assert_eq!(removed.label("node-role.kubernetes.io/gpu"), None);
    assert_eq!(removed.saved.not_provisioned_by, ["NodeClaim"]);
    let pools = |scene: &Scene, set: &PolicySet| {
        let text = scene.node.to_string();
        crate::explain::identity(set, &NodeFacts::parse(&text).unwrap(), scene.evidence.as_ref()).unwrap()
    };
    let later = looked_at(removed, false);
    assert!(!pools(&later, &set).may_have_others, "a command without a watch knows it from the record");
    let machine = super::scene::set(json!({"pools": [{"nameFrom": {"kind": "Machine", "label": "pool"}}]}));
    assert!(pools(&later, &machine).may_have_others);
}

#[test]
fn what_is_awaited_depends_on_what_is_proven_and_on_what_there_is_to_restore() {
    let set = set(json!({"pools": [
        {"nameFrom": {"kind": "NodeClaim", "label": "pool"}},
        {"name": "named", "names": ["n1"]},
        {"name": "asked", "requester": {"groups": ["g"]}},
    ]}));
    let nothing = SavedState::default();
    let saved = SavedState { labels: [("team".to_owned(), "ml".to_owned())].into(), ..SavedState::default() };
    let machines = witnessed(Scene::new(json!({})), &set, &["gpu"], Absence::SoFar).settle(&set).saved;
    let of_machine = SavedState { labels: saved.labels.clone(), ..machines };
    let awaits = |node: &str, groups: &str, saved: &SavedState| {
        let text = format!("{groups}no-extra.sessionName\nuser=system:node:{node}");
        let evidence = Evidence::read(&text, node);
        let object = json!({"metadata": {"name": node}}).to_string();
        let known = Knowing(MachinesOfNode::default(), Assertions::default());
        let evidence = Evidence::witnessed(evidence, &set, &NodeFacts::parse(&object).unwrap(), None, &known);
        set.awaits_proof(node, Some(saved), evidence.as_ref())
    };
    assert!(awaits("other", "", &nothing));
    assert!(!awaits("n1", "", &nothing) && awaits("n1", "", &saved), "a name restores nothing");
    assert!(!awaits("other", "group=g\n", &saved) && awaits("other", "group=g\n", &of_machine));
}

#[test]
fn what_is_asserted_is_recorded_with_the_node_object_and_stays() {
    let set = set(json!({
        "pools": [
            {"nameFrom": {"kind": "NodeClaim", "label": "pool"}},
            {"name": "gpu", "bootstrap": {"tokens": ["gpu000"]}},
            {"name": "cpu", "bootstrap": {"tokens": ["cpu000"]}},
        ],
        "rules": [
            {"name": "q", "match": {"expression": "size(identity.contradictions) > 0"}, "labels": {"quarantine": "true"}},
            {"name": "t", "match": {"expression": "size(identity.contradictions) == 0"}, "labels": {"trusted": "true"}},
        ],
    }));
    let certificate = "a".repeat(64);
    let claimed = AssertedMachine {
        group: "karpenter.sh".to_owned(),
        kind: "NodeClaim".to_owned(),
        name: "x7".to_owned(),
        provider_id: "aws:///eu-central-1a/i-x7".to_owned(),
        has_another_name: false,
    };
    let stolen = CertificateForNode {
        certificate: "b".repeat(64),
        bootstrapper: Arc::new(Bootstrapper::new("system:bootstrap:cpu000", []).unwrap()),
    };
    let asserted = Assertions { machines: vec![claimed], certificates: vec![stolen] };
    let lines = format!(
        "extra.authentication.kubernetes.io/credential-id=X509SHA256={certificate}\nextra.sessionName=i-z9\nuser=system:node:n1"
    );
    let bootstrap = json!([{"user": "system:bootstrap:gpu000", "certificates": [certificate]}]);
    let saved = json!({"nodeName": "n1", "nodeUID": BEFORE, "authenticatedAs": lines, "bootstrappedBy": bootstrap});
    let look = |mut scene: Scene, now: &Assertions| {
        scene = looked_at(scene, false);
        let node = scene.node.to_string();
        let (facts, machines) =
            (NodeFacts::parse(&node).unwrap(), MachinesOfNode { absence: Absence::Certain, ..Default::default() });
        let known = Knowing(machines, now.clone());
        let evidence = Evidence::witnessed(scene.evidence.take(), &set, &facts, Some(&scene.saved), &known);
        scene.evidence = evidence.map(|evidence| evidence.contradicted(&set, &facts, Some(&scene.saved), &known));
        scene
    };
    let given = |scene: &Scene| ["quarantine", "trusted"].map(|key| scene.label(key).is_some());
    let mut scene = Scene::new(json!({}));
    scene.node["spec"]["providerID"] = json!("aws:///eu-central-1a/i-x7");
    scene.saved = serde_json::from_value(saved).unwrap();
    let nothing = look(scene, &Assertions::default()).settle(&set);
    assert_eq!((given(&nothing), &nothing.saved.asserted), ([false, true], &None));
    let contradicted = look(nothing, &asserted).settle(&set);
    assert_eq!(given(&contradicted), [true, false]);
    let recorded = contradicted.saved.asserted.clone().unwrap();
    assert_eq!(
        (recorded.node_uid.as_deref(), recorded.machines.len(), recorded.certificates.len()),
        (Some(BEFORE), 1, 1)
    );
    let evidence = contradicted.evidence.as_ref().unwrap();
    let node = contradicted.node.to_string();
    let found = set.contradictions(&NodeFacts::parse(&node).unwrap(), evidence);
    assert_eq!(found.iter().map(|one| one.assertion.as_str()).collect::<Vec<_>>(), ["certificate", "providerID"]);
    // Nothing of it is known anymore but the record, from which it is also known who asked.
    let later = look(contradicted, &Assertions::default()).settle(&set);
    assert_eq!((given(&later), later.saved.asserted.as_ref()), ([true, false], Some(&recorded)));
    assert!(Bootstrapper::recorded(&later.saved, &"b".repeat(64)).is_some());
    // Of a node of which nothing is recorded it is not known, so nothing is added and nothing removed.
    let mut unknown = later;
    unknown.evidence = None;
    let mut unknown = unknown.settle(&set);
    assert_eq!(given(&unknown), [true, false]);
    // Another node object of the name.
    unknown.node["metadata"]["uid"] = json!("uid-2");
    unknown.node["metadata"]["labels"] = json!({});
    let another = looked_at(unknown, false).settle(&set);
    assert_eq!((given(&another), another.saved.asserted), ([false, false], None));
}
