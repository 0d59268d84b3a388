//! What the guard refuses, one of the native policies that ship with nodegate.

use nodegate_policy::AdmissionMark;
use nodegate_policy::native::{GuardOptions, MutatingVersion, Parameters, guard, guard_parameters};
use nodegate_policy::simulate::compile_inline;
use serde_json::{Value as Json, json};

use crate::evaluation::{Evaluation, Policy};

pub(crate) const KUBELET: &str = "system:node:n";
const EVIDENCE: &str = "nodegate.dev/authenticated-as";

pub(crate) fn user(name: &str) -> Json {
    let groups = if name.starts_with("system:node:") { json!(["system:nodes"]) } else { json!([]) };
    json!({"username": name, "groups": groups})
}

/// Whether the policies refuse a write, with the messages that they have for it.
pub(crate) fn refused(policies: &[Policy], documents: &[(&'static str, &Json)]) -> Vec<String> {
    let mut messages = Vec::new();
    for policy in policies.iter().filter(|policy| policy.object["kind"] == "ValidatingAdmissionPolicy") {
        assert_eq!(policy.action.as_deref(), Some("Deny"));
        let Some(evaluation) = policy.evaluated(Evaluation::of(documents)) else { continue };
        for validation in policy.object["spec"]["validations"].as_array().unwrap() {
            let expression = validation["expression"].as_str().unwrap();
            // The engine refuses its three nested loops; the tests with a cluster have it.
            if expression.contains("variables.webhooks.all(w, variables.oldWebhooks.exists(o, o.name == w.name &&") {
                continue;
            }
            // They fail closed, so an expression that fails refuses the write.
            if evaluation.holds(expression) == Some(true) {
                continue;
            }
            let message = validation["messageExpression"].as_str().and_then(|message| evaluation.value(message));
            let message = message.as_ref().and_then(|message| message.as_str()).or(validation["message"].as_str());
            messages.push(message.unwrap().to_owned());
        }
    }
    messages
}

fn guard_policies() -> Vec<Policy> {
    let options = GuardOptions {
        name: "nodegate".to_owned(),
        parameters: Parameters::Of("nodegate".to_owned()),
        mutating: Some(MutatingVersion::V1),
    };
    Policy::all(&guard(&options))
}

/// The webhook configuration with the parameters of some policies.
fn parameters() -> Json {
    let set = compile_inline(&json!({
        "protect": {"keys": ["nvidia.com/*", "tier"]},
        "persist": {"labels": ["team"]},
    }));
    json!({"metadata": {"annotations": guard_parameters(&set.unwrap())}})
}

pub(crate) fn node(labels: &Json, annotations: &Json) -> Json {
    json!({"metadata": {"name": "n", "labels": labels, "annotations": annotations}})
}

fn guarded(who: &str, before: &Json, after: &Json) -> Vec<String> {
    let request = json!({"operation": "UPDATE", "userInfo": user(who)});
    refused(
        &guard_policies(),
        &[("object", after), ("oldObject", before), ("request", &request), ("params", &parameters())],
    )
}

#[test]
fn the_guard_refuses_a_kubelet_every_change_of_guarded_keys() {
    let none = json!({});
    let update = |before: Json, after: Json| guarded(KUBELET, &node(&before, &none), &node(&after, &none));
    let named = "which a NodePolicy protects or persists; an administrator or a rule may set it";
    for (before, after, what) in [
        (json!({}), json!({"tier": "gold"}), "add label tier"),
        (json!({"tier": "gold"}), json!({"tier": "lead"}), "change label tier"),
        (json!({"tier": "gold"}), json!({}), "remove label tier"),
        (json!({}), json!({"nvidia.com/gpu.count": "8"}), "add label nvidia.com/gpu.count"),
        (json!({}), json!({"team": "a", "tier": "gold"}), "add label team (and 1 more)"),
    ] {
        assert_eq!(update(before, after), [format!("nodegate: a kubelet may not {what}, {named}")]);
    }
    for key in ["nodegate.dev/x", "policy.nodegate.dev/x"] {
        let message = format!("nodegate: a kubelet may not add label {key}, which is reserved for nodegate");
        assert_eq!(update(json!({}), json!({key: "1"})), [message]);
        let annotation = node(&none, &json!({key: "1"}));
        let message = format!("nodegate: a kubelet may not remove annotation {key}, which is reserved for nodegate");
        assert_eq!(guarded(KUBELET, &annotation, &node(&none, &none)), [message]);
    }
    // Neither a key of no policy, nor what stays, nor one that every kubelet reconciles, nor somebody else's write.
    assert_eq!(update(json!({"tier": "gold"}), json!({"tier": "gold", "other": "1", "nvidia.comx/a": "1"})), [""; 0]);
    assert_eq!(update(json!({}), json!({"kubernetes.io/hostname": "n"})), [""; 0]);
    assert_eq!(guarded("admin", &node(&none, &none), &node(&json!({"tier": "gold"}), &none)), [""; 0]);
}

#[test]
fn the_guard_admits_only_evidence_that_is_true_and_complete() {
    let requester = json!({"username": KUBELET, "groups": ["system:nodes", "system:authenticated", "pool:gpu", "team"],
        "extra": {"arn": ["a", "b"], "credential-id": ["c"], "empty": []}});
    let refused = |user: &Json, text: &str| {
        let joining = node(&json!({}), &json!({EVIDENCE: text}));
        let request = json!({"operation": "CREATE", "userInfo": user});
        let mut policies = guard_policies();
        policies.retain(|policy| policy.object["metadata"]["name"] == "nodegate-guard-evidence");
        assert_eq!(policies.len(), 2);
        let messages = refused(&policies, &[("object", &joining), ("request", &request)]);
        messages.iter().map(|message| message.split(';').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let groups = "group=pool:gpu\ngroup=team\nuser=system:node:n";
    let too_long = "nodegate: what it says about the kubelet's credential is empty or too long";
    let false_line = "nodegate: the annotation says what is not true of the kubelet's credential";
    let left_out = "nodegate: the annotation leaves out what is true of the kubelet's credential";
    for fine in [groups.to_owned(), format!("extra.arn=a\nextra.arn=b\n{groups}\nno-extra.other\nno-extra.empty")] {
        assert_eq!(refused(&requester, &fine), [""; 0], "{fine}");
    }
    for (text, message) in [
        (format!("{groups}\ngroup=pool:other"), false_line),
        (format!("{groups}\nuser=system:node:m"), false_line),
        (format!("{groups}\nextra.arn=a\nextra.arn=b\nextra.arn=c"), false_line),
        (format!("{groups}\nextra.role=a"), false_line),
        (format!("{groups}\nno-extra.arn"), false_line),
        (format!("{groups}\nsystem:masters"), false_line),
        (format!("{groups}\n"), false_line),
        ("group=pool:gpu\nuser=system:node:n".to_owned(), left_out),
        ("group=pool:gpu\ngroup=team".to_owned(), left_out),
        (format!("{groups}\nextra.arn=a"), left_out),
    ] {
        assert_eq!(refused(&requester, &text), [message], "{text}");
    }
    assert_eq!(refused(&requester, ""), [false_line, left_out]);
    let many = (0..64).map(|at| format!("no-extra.k{at}\n")).collect::<String>();
    assert_eq!(refused(&requester, &format!("{many}{groups}")), [too_long]);
    assert_eq!(refused(&requester, &format!("{groups}\nno-extra.{}", "x".repeat(8192))), [too_long, left_out]);
    // Without extra information, and of somebody who is no kubelet.
    let plain = json!({"username": KUBELET, "groups": ["system:nodes"]});
    assert_eq!(refused(&plain, "no-extra.arn\nuser=system:node:n"), [""; 0]);
    assert_eq!(refused(&plain, "extra.arn=a\nuser=system:node:n"), [false_line]);
    assert_eq!(refused(&user("admin"), "group=anything"), [""; 0]);
}

/// What the mutating policy about evidence makes of a joining kubelet's annotation, where pools ask for these lines.
fn evidence_left(user: &Json, sent: Option<&str>, asked: &str) -> Option<String> {
    let mut joining = json!({"metadata": {"name": "n"}});
    if let Some(text) = sent {
        joining["metadata"]["annotations"] = json!({EVIDENCE: text});
    }
    let request = json!({"operation": "CREATE", "userInfo": user});
    let parameters = json!({"metadata": {"annotations": {"nodegate.dev/asked-of-requester": asked}}});
    let documents = [("object", &joining), ("request", &request), ("params", &parameters)];
    let policies = guard_policies();
    let of_kind = |kind: &str| {
        let is_it = |policy: &&Policy| policy.object["metadata"]["name"] == "nodegate-guard-evidence";
        policies.iter().filter(is_it).find(|policy| policy.object["kind"] == kind).unwrap()
    };
    let policy = of_kind("MutatingAdmissionPolicy");
    let patched = policy.patched(&policy.evaluated(Evaluation::of(&documents)).unwrap(), &joining);
    let left = patched["metadata"]["annotations"][EVIDENCE].as_str().map(str::to_owned);
    let checked = [("object", &patched), ("request", &request)];
    let refusals = refused(std::slice::from_ref(of_kind("ValidatingAdmissionPolicy")), &checked);
    assert_eq!(refusals, [""; 0], "the guard admits what it writes: {left:?}");
    left
}

#[test]
fn the_guard_writes_the_evidence_that_pools_ask_for_in_place_of_a_kubelets() {
    let requester = json!({"username": KUBELET, "groups": ["system:nodes", "system:authenticated", "pool:gpu", "team"],
        "extra": {"arn": ["a", "b"], "other": ["x"], "role": []}});
    let plain = json!({"username": KUBELET, "groups": ["system:nodes"]});
    let groups = "group=pool:gpu\ngroup=team";
    let user = "user=system:node:n";
    let asked = "groups\nextra.arn\nextra.role\n";
    let full = format!("extra.arn=a\nextra.arn=b\n{groups}\nno-extra.role\n{user}");
    let left = |sent: Option<&str>, asked: &str| evidence_left(&requester, sent, asked);
    assert_eq!(left(None, asked), Some(full.clone()));
    assert_eq!(left(None, "groups\n"), Some(format!("{groups}\n{user}")));
    assert_eq!(evidence_left(&plain, None, asked), Some(format!("no-extra.arn\nno-extra.role\n{user}")));
    assert_eq!(left(None, ""), None, "nobody asks");
    for sent in ["", "group=pool:other", &full, "replaced"] {
        assert_eq!(left(Some(sent), asked), Some(format!("{full}\nreplaced")), "{sent:?}");
        assert_eq!(left(Some(sent), ""), Some(format!("{groups}\n{user}\nreplaced")), "{sent:?}");
    }
    // What does not fit, and what could be read as another line.
    let of_groups = |groups: Vec<String>| {
        let groups: Vec<String> = groups.into_iter().chain(["system:nodes".to_owned()]).collect();
        json!({"username": KUBELET, "groups": groups})
    };
    let many: Vec<String> = (0..63).map(|at| format!("g{at}")).collect();
    assert!(evidence_left(&of_groups(many[..62].to_vec()), None, "groups\n").is_some());
    for groups in [many, vec!["x".repeat(8192)], vec!["a\ngroup=pool:gpu".to_owned()]] {
        for sent in [None, Some("group=pool:gpu")] {
            assert_eq!(evidence_left(&of_groups(groups.clone()), sent, "groups\n"), None, "{sent:?}");
        }
    }
}

#[test]
fn labels_that_are_never_saved_are_not_guarded_as_persisted_ones() {
    let refused = |spec: Json, key: &str| {
        let parameters = json!({"metadata": {"annotations": guard_parameters(&compile_inline(&spec).unwrap())}});
        let request = json!({"operation": "UPDATE", "userInfo": user(KUBELET)});
        let (before, after) = (node(&json!({}), &json!({})), node(&json!({key: "1"}), &json!({})));
        let documents = [("object", &after), ("oldObject", &before), ("request", &request), ("params", &parameters)];
        !refused(&guard_policies(), &documents).is_empty()
    };
    let all = || json!({"persist": {"labels": ["*"]}});
    for key in [
        "topology.ebs.csi.aws.com/zone",
        "topology.hostpath.csi/node",
        "csi.hetzner.cloud/location",
        "topology.gke.io/zone",
        "vendor.feature.node.kubernetes.io/x",
        "agentpool",
        "nvidia.com/gpu.product",
    ] {
        assert!(!refused(all(), key), "{key}");
        assert!(refused(json!({"persist": {"labels": ["*"]}, "protect": {"keys": [key]}}), key), "{key} is protected");
    }
    for key in ["team", "a.example/x", "nvidia.com/mig.config", "mycsi.example/x", "csi/x", "node-role.kubernetes.io/x"]
    {
        assert!(refused(all(), key), "{key}");
    }
    let prefixes = || json!({"persist": {"labels": ["nvidia.com/*", "karpenter.sh/*", "agentpool"]}});
    assert!(refused(prefixes(), "nvidia.com/gpu") && !refused(prefixes(), "nvidia.com/gpu.count"));
    assert!(!refused(prefixes(), "karpenter.sh/nodepool") && !refused(prefixes(), "agentpool"));
}

#[test]
fn the_guard_refuses_a_kubelet_more_keys_than_it_can_compare() {
    let many = |count: usize| -> Json { (0..count).map(|at| (format!("k{at}"), json!("1"))).collect() };
    let none = json!({});
    let refused =
        |before: usize, after: usize| guarded(KUBELET, &node(&many(before), &none), &node(&many(after), &none));
    assert_eq!(refused(0, 1_000), [""; 0]);
    for (before, after) in [(0, 1_001), (1_001, 0)] {
        let message = "nodegate: the node has more than 1000 labels, so its kubelet may not change them; an administrator must remove some";
        assert_eq!(refused(before, after), [message; 2], "each of both policies refuses");
    }
}

#[test]
fn the_guard_removes_guarded_keys_from_a_joining_kubelets_node() {
    let labels = json!({"tier": "gold", "team": "a", "nodegate.dev/x": "1", "kubernetes.io/hostname": "n", "a": "1"});
    let mut joining = node(&labels, &json!({"nodegate.dev/y": "1", "b": "1"}));
    joining["metadata"]["ownerReferences"] = json!([{"kind": "CSINode", "name": "n", "uid": "u"}]);
    // A joining node may have what is persisted.
    let labels = json!({"team": "a", "kubernetes.io/hostname": "n", "a": "1"});
    let [own_first, named_first] = [false, true].map(|named_first| joined_past_the_guard(&joining, named_first));
    let mark = r#"{"rejected":{"tier":"gold"},"owners":true,"own":2,"guard":true}"#;
    assert_eq!(own_first, node(&labels, &json!({"b": "1", "nodegate.dev/admission": mark})));
    let mark = r#"{"owners":true,"own":2,"rejected":{"tier":"gold"},"guard":true}"#;
    assert_eq!(named_first, node(&labels, &json!({"b": "1", "nodegate.dev/admission": mark})));
}

/// The object of a joining kubelet after the mutating policies, of which the API server chooses the order.
fn joined_past_the_guard(joining: &Json, named_first: bool) -> Json {
    let request = json!({"operation": "CREATE", "userInfo": user(KUBELET)});
    let mut policies = guard_policies();
    policies.retain(|policy| policy.object["kind"] == "MutatingAdmissionPolicy");
    policies.sort_by_key(|policy| policy.object["spec"]["paramKind"].is_object() != named_first);
    policies.iter().fold(joining.clone(), |joined, policy| {
        let documents =
            [("object", &joined), ("oldObject", &Json::Null), ("request", &request), ("params", &parameters())];
        policy.patched(&policy.evaluated(Evaluation::of(&documents)).unwrap(), &joined)
    })
}

#[test]
fn no_mark_that_a_kubelet_sends_hides_what_the_guard_removes() {
    let forged = [
        "",
        "{",
        r#"{"x"#,
        r#"{"rejected":{}}"#,
        r#"{"rejected":{"a":"b","#,
        r#"{"rejected":{"a":"b","c":"d"},"more":1,"rejected":{}}"#,
        r#"{"rejected":{"a":"b"},"guard":true}"#,
        r#"{"more":99999999999999999999999}"#,
        r#"{"more":3,"guard":false}"#,
        r#"{"owners":true,"own":7,"more":7}"#,
        r#"{"owners":false,"own":0,"owners":true}"#,
    ];
    for mark in forged {
        for named_first in [false, true] {
            let annotations = json!({"nodegate.dev/admission": mark, "nodegate.dev/x": "1"});
            let joined = joined_past_the_guard(&node(&json!({"tier": "gold"}), &annotations), named_first);
            let left = joined["metadata"]["annotations"]["nodegate.dev/admission"].as_str().unwrap();
            // Repeated keys would make it unreadable for nodegate.
            let read: AdmissionMark =
                serde_json::from_str(left).unwrap_or_else(|error| panic!("{mark}: {left}: {error}"));
            assert_eq!((&read.rejected["tier"], read.own), (&"gold".to_owned(), 1), "{mark}, {named_first}: {left}");
        }
    }
}

#[test]
fn only_what_depends_on_policies_reads_parameters() {
    for policy in guard_policies() {
        let object = &policy.object;
        let named = object["metadata"]["name"] == "nodegate-guard"
            || (object["metadata"]["name"] == "nodegate-guard-evidence" && object["kind"] == "MutatingAdmissionPolicy");
        assert_eq!(object["spec"]["paramKind"].is_object(), named, "{} {}", object["kind"], object["metadata"]["name"]);
    }
}

#[test]
fn the_guard_refuses_a_kubelet_another_owner_of_its_node() {
    let with = |owners: Json| {
        let mut node = node(&json!({}), &json!({}));
        node["metadata"]["ownerReferences"] = owners;
        node
    };
    let owner = json!([{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "name": "n", "uid": "u"}]);
    let message = "nodegate: a kubelet may not change the owners of its node, because the garbage collector deletes a node whose owner does not exist";
    let none = node(&json!({}), &json!({}));
    assert_eq!(guarded(KUBELET, &none, &with(owner.clone())), [message]);
    assert_eq!(guarded(KUBELET, &with(owner.clone()), &with(owner.clone())), [""; 0]);
    assert_eq!(guarded("system:serviceaccount:capi-system:capi-manager", &none, &with(owner)), [""; 0]);
}

#[test]
fn only_a_joining_kubelets_node_loses_its_owners() {
    use nodegate_policy::simulate::{Scene, simulate};
    let node = json!({"metadata": {"name": "n", "ownerReferences": [{"kind": "CSINode", "name": "n", "uid": "u"}]}});
    let owners_after = |username: &str, group: &str, old: Option<Json>| {
        let scene = Scene { old, ..Scene::of(node.clone(), username.to_owned(), vec![group.to_owned()]) };
        let simulated = simulate(&compile_inline(&json!({})).unwrap(), &scene, &Default::default()).unwrap();
        simulated.node["metadata"]["ownerReferences"].is_array()
    };
    assert!(!owners_after(KUBELET, "system:nodes", None));
    assert!(owners_after("system:serviceaccount:capi-system:capi-manager", "system:serviceaccounts", None));
    assert!(owners_after(KUBELET, "system:nodes", Some(node.clone())), "the guard refuses it in an UPDATE");
}

#[test]
fn keys_that_do_not_fit_into_the_guards_parameters_are_refused() {
    let keys = |count: usize, length: usize| -> Vec<String> {
        (0..count).map(|at| format!("{at:0>length$}.example.com/k")).collect()
    };
    let refused = |spec: Json| compile_inline(&spec).err().map(|errors| format!("{errors:?}")).unwrap_or_default();
    assert_eq!(refused(json!({"protect": {"keys": keys(2_900, 50)}})), "");
    let too_many = refused(json!({"protect": {"keys": keys(2_901, 5)}}));
    assert!(too_many.contains("name 2901 keys in total"), "{too_many}");
    let too_large = refused(json!({"protect": {"keys": keys(2_900, 60)}}));
    assert!(too_large.contains("the guard's parameters have to fit into annotations"), "{too_large}");
    let both = |persisted: Vec<String>| {
        refused(json!({"protect": {"keys": keys(2_000, 5)}, "persist": {"labels": persisted}}))
    };
    assert!(both(keys(2_000, 6)).contains("name 4000 keys"));
    assert_eq!(both(keys(2_000, 5)), "", "the same keys");
    let moved: Vec<Json> = (0..1_500).map(|at| json!({"from": format!("old.example.com/{at}"), "to": format!("new.example.com/{at}"), "phase": "dualWrite"})).collect();
    let migrated = refused(
        json!({"protect": {"keys": keys(1_500, 5)}, "persist": {"labels": ["old.example.com/*"]}, "migrations": moved}),
    );
    assert!(migrated.contains("name 3001 keys"), "the new keys of migrations are saved as well: {migrated}");
}

#[test]
fn a_policy_whose_preset_has_keys_waits_for_the_guard() {
    let guarding = |spec: Json| compile_inline(&spec).unwrap().guarding().any(|policy| policy == "test");
    assert!(guarding(json!({"protect": {"keys": ["a"]}})) && !guarding(json!({"rules": []})));
    assert!(guarding(json!({"presets": ["vendor-guard"]})) && !guarding(json!({"presets": ["aliases"]})));
}
