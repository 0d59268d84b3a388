#![allow(clippy::unwrap_used)]

use serde_json::{Value as Json, json};

use super::*;

fn node(name: &str, labels: Json, taints: &[&str]) -> NodeState {
    let taint = |text: &&str| {
        let (key, effect) = text.split_once(':').unwrap();
        let (key, value) = key.split_once('=').map_or((key, None), |(key, value)| (key, Some(value.to_owned())));
        Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None }
    };
    NodeState {
        name: name.to_owned(),
        labels: serde_json::from_value(labels).unwrap(),
        taints: taints.iter().map(taint).collect(),
    }
}

fn requirements(spec: Json) -> Requirements {
    Requirements::of(&serde_json::from_value(spec).unwrap())
}

fn affinity(term: Json) -> Json {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}}}})
}

#[test]
fn a_node_accepts_a_pod_as_the_scheduler_decides() {
    let node = node(
        "n1",
        json!({"zone": "a", "cpus": "16"}),
        &["dedicated=gpu:NoSchedule", "soft:PreferNoSchedule", "node.kubernetes.io/not-ready:NoSchedule"],
    );
    let expression = |key: &str, operator: &str, values: &[&str]| {
        affinity(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    };
    let name =
        |name: &str| affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]));
    let tolerate = |toleration: Json| json!({"tolerations": [toleration]});
    let accepted = |spec: &Json| {
        let mut spec = spec.clone();
        if spec.get("tolerations").is_none() {
            spec["tolerations"] = json!([{"operator": "Exists"}]);
        }
        requirements(spec).fits(&node).map_err(|mismatch| mismatch.to_string())
    };
    for spec in [
        json!({}),
        json!({"nodeSelector": {"zone": "a"}}),
        expression("zone", "In", &["b", "a"]),
        expression("zone", "NotIn", &["b"]),
        expression("absent", "NotIn", &["b"]),
        expression("zone", "Exists", &[]),
        expression("absent", "DoesNotExist", &[]),
        expression("cpus", "Gt", &["8"]),
        expression("cpus", "Lt", &["17"]),
        name("n1"),
        affinity(
            json!([{"matchExpressions": [{"key": "no", "operator": "Exists"}]}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]),
        ),
        tolerate(json!({"key": "dedicated", "operator": "Exists"})),
        tolerate(json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"})),
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}),
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}]}),
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}}),
    ] {
        assert_eq!(accepted(&spec), Ok(()), "{spec}");
    }
    let affine = "the required node affinity does not match";
    let taint = "taint dedicated=gpu:NoSchedule is not tolerated";
    for (spec, reason) in [
        (json!({"nodeSelector": {"zone": "b"}}), "nodeSelector zone=b does not match"),
        (json!({"nodeSelector": {"zone": ""}}), "nodeSelector zone=\"\" does not match"),
        (expression("zone", "In", &["b"]), affine),
        (expression("zone", "NotIn", &["a"]), affine),
        (expression("absent", "Exists", &[]), affine),
        (expression("zone", "DoesNotExist", &[]), affine),
        (expression("cpus", "Gt", &["16"]), affine),
        (expression("cpus", "Lt", &["x"]), affine),
        (name("n2"), affine),
        (affinity(json!([{}])), affine),
        (affinity(json!([])), affine),
        (json!({"tolerations": []}), taint),
        (tolerate(json!({"key": "other", "operator": "Exists"})), taint),
        (tolerate(json!({"key": "dedicated", "value": "cpu"})), taint),
        (tolerate(json!({"operator": "Exists", "effect": "NoExecute"})), taint),
        (tolerate(json!({"key": "dedicated", "operator": "Gt", "value": "1"})), taint),
        (
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]}),
            "the node lacks the topology key rack",
        ),
        (
            json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}}),
            "the node lacks the topology key rack",
        ),
    ] {
        assert_eq!(accepted(&spec), Err(reason.to_owned()), "{spec}");
    }
}

#[test]
fn numeric_tolerations_compare_the_value_of_the_taint() {
    let node = node("n", json!({}), &["sla=950:NoSchedule"]);
    let fits = |operator: &str, value: &str| {
        let toleration = json!({"key": "sla", "operator": operator, "value": value});
        requirements(json!({"tolerations": [toleration]})).fits(&node).is_ok()
    };
    assert!(fits("Gt", "900") && !fits("Gt", "950") && fits("Lt", "951") && !fits("Lt", "950"));
}

fn pod(name: &str, node: Option<&str>, owner: Option<&str>, spec: Json) -> Pod {
    let owner = owner.map(|owner| owner.split_once('/').unwrap());
    let version = |kind: &str| if kind == "Node" { "v1" } else { "apps/v1" };
    let owners: Vec<Json> = owner
        .iter()
        .map(|(kind, name)| json!({"apiVersion": version(kind), "kind": kind, "name": name, "controller": true}))
        .collect();
    let mut pod = json!({"metadata": {"name": name, "namespace": "default", "ownerReferences": owners}, "spec": spec});
    if owner.is_some_and(|(kind, _)| kind == "Node") {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    }
    pod["spec"]["nodeName"] = json!(node);
    serde_json::from_value(pod).unwrap()
}

fn line(pod: &AffectedPod) -> String {
    let AffectedPod { name, node, owner, effect, after_seconds, nodes_left, reason, .. } = pod;
    let node = node.as_deref().unwrap_or("-");
    let owner = owner.as_deref().unwrap_or("-");
    let effect = serde_json::to_value(effect).unwrap();
    let effect = effect.as_str().unwrap();
    format!("{name} {node} {owner} {effect} {after_seconds:?} {nodes_left:?} {reason}")
}

fn effects(impact: Impact) -> Vec<String> {
    impact.finish().0.iter().map(line).collect()
}

#[test]
fn a_pod_is_stranded_where_its_node_would_not_accept_it_again() {
    let stays =
        |name: &str, pool: &str, taints| Transition { before: node(name, json!({"pool": pool}), taints), after: None };
    let mut impact = Impact::new(vec![stays("n1", "a", &["own:NoExecute"]), stays("n2", "b", &[])]);
    let mut stranded = |name: &str, node: Option<&str>, owner: Option<&str>, spec: Json| {
        impact.stranded(&pod(name, node, owner, spec)).as_ref().map(line)
    };
    let tainted =
        Some("web n1 ReplicaSet/web unschedulable None Some(1) taint own:NoExecute is not tolerated".to_owned());
    assert_eq!(stranded("web", Some("n1"), Some("ReplicaSet/web"), json!({})), tainted);
    let selects = json!({"nodeSelector": {"pool": "a"}});
    let gone = Some("lone n2 - unschedulable None Some(0) nodeSelector pool=a does not match".to_owned());
    assert_eq!(stranded("lone", Some("n2"), None, selects.clone()), gone);
    assert_eq!(stranded("fine", Some("n2"), None, json!({})), None);
    assert_eq!(stranded("agent", Some("n2"), Some("DaemonSet/agent"), selects.clone()), None);
    assert_eq!(stranded("static", Some("n2"), Some("Node/n2"), selects.clone()), None);
    assert_eq!(stranded("pending", None, None, selects.clone()), None);
    assert_eq!(stranded("elsewhere", Some("n3"), None, selects), None);
}

/// Node `n1` changes from `before` to `after`; `n2` and `n3` stay as they are.
fn impact(before: NodeState, after: NodeState) -> Impact {
    let stays = |name: &str| Transition { before: node(name, json!({"pool": "b"}), &[]), after: None };
    Impact::new(vec![Transition { before, after: Some(after) }, stays("n2"), stays("n3")])
}

#[test]
fn a_no_execute_taint_evicts_what_does_not_tolerate_it_and_a_no_schedule_taint_does_not() {
    let before = node("n1", json!({}), &["old:NoExecute"]);
    let mut impact = impact(before, node("n1", json!({}), &["old:NoExecute", "new:NoExecute", "keep:NoSchedule"]));
    let tolerate = |key: &str, seconds: Option<i64>| json!({"tolerations": [{"key": "old", "operator": "Exists"}, {"key": "keep", "operator": "Exists"}, {"key": key, "operator": "Exists", "tolerationSeconds": seconds}]});
    impact.add_pod(&pod("evicted", Some("n1"), Some("ReplicaSet/web"), tolerate("other", None)));
    impact.add_pod(&pod("later", Some("n1"), None, tolerate("new", Some(300))));
    impact.add_pod(&pod("stays", Some("n1"), None, tolerate("new", None)));
    impact.add_pod(&pod("elsewhere", Some("n2"), None, json!({})));
    let refused = json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]});
    impact.add_pod(&pod("refused", Some("n1"), None, refused));
    let over = json!({"metadata": {"name": "over"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}});
    impact.add_pod(&serde_json::from_value(over).unwrap());
    let expected = [
        "evicted n1 ReplicaSet/web evicted None Some(2) taint new:NoExecute is not tolerated",
        "later n1 - evicted Some(300) Some(3) taint new:NoExecute is tolerated for 300 s only",
        "refused n1 - unschedulable None Some(2) taint keep:NoSchedule is not tolerated",
    ];
    assert_eq!(effects(impact), expected);
}

#[test]
fn the_first_toleration_of_a_taint_decides_how_long_a_pod_stays() {
    let mut impact = impact(node("n1", json!({}), &[]), node("n1", json!({}), &["new:NoExecute"]));
    let some = |seconds: i64| json!({"key": "new", "operator": "Exists", "tolerationSeconds": seconds});
    let ever = json!({"operator": "Exists"});
    impact.add_pod(&pod("short", Some("n1"), None, json!({"tolerations": [some(60), ever]})));
    impact.add_pod(&pod("ever", Some("n1"), None, json!({"tolerations": [ever, some(60)]})));
    impact.add_pod(&pod("negative", Some("n1"), None, json!({"tolerations": [some(-5)]})));
    // The DaemonSet controller creates it again, and it is evicted again.
    impact.add_pod(&pod("agent", Some("n1"), Some("DaemonSet/agent"), json!({"tolerations": [some(9)]})));
    // Neither is what its owner pretends to be.
    let pretends = |kind: &str| {
        let owners = json!([{"apiVersion": "x/v1", "kind": kind, "name": "n1", "controller": true}]);
        let pod = json!({"metadata": {"name": kind, "ownerReferences": owners}, "spec": {"nodeName": "n1"}});
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    impact.add_pod(&pretends("Node"));
    impact.add_pod(&pod("static", Some("n1"), Some("Node/n1"), json!({})));
    let evicted: Vec<String> =
        impact.finish().0.iter().map(|pod| format!("{} {:?}", pod.name, pod.after_seconds)).collect();
    assert_eq!(evicted, ["Node None", "agent Some(9)", "negative Some(0)", "short Some(60)"]);
}

#[test]
fn a_pod_whose_label_goes_keeps_running_and_its_node_would_not_accept_it_again() {
    let mut impact = impact(node("n1", json!({"pool": "a", "rack": "1"}), &[]), node("n1", json!({"rack": "2"}), &[]));
    impact.add_pod(&pod("selects", Some("n1"), None, json!({"nodeSelector": {"pool": "a"}})));
    impact.add_pod(&pod("indifferent", Some("n1"), None, json!({})));
    let rack = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]});
    impact.add_pod(&pod("spread", Some("n1"), None, rack));
    let pool = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "pool"}]}}});
    impact.add_pod(&pod("together", Some("n1"), None, pool));
    let expected = [
        "selects n1 - unschedulable None Some(0) nodeSelector pool=a does not match",
        "spread n1 - topologyChanged None None topology key rack becomes \"2\"",
        "together n1 - unschedulable None Some(2) the node lacks the topology key pool",
    ];
    assert_eq!(effects(impact), expected);
}

#[test]
fn pending_pods_can_start_where_a_label_comes_and_cannot_where_the_last_one_goes() {
    let mut impact = impact(node("n1", json!({"pool": "a"}), &[]), node("n1", json!({"pool": "c"}), &[]));
    let selects = |pool: &str| json!({"nodeSelector": {"pool": pool}});
    impact.add_pod(&pod("starts", None, Some("Job/j"), selects("c")));
    impact.add_pod(&pod("stuck", None, None, selects("a")));
    impact.add_pod(&pod("same", None, None, selects("b")));
    let mut gated = selects("c");
    gated["schedulingGates"] = json!([{"name": "quota"}]);
    impact.add_pod(&pod("gated", None, None, gated));
    let expected = [
        "starts n1 Job/j schedulable None Some(1) its node selector, affinity and tolerations match a node that they did not match before",
        "stuck - - unschedulable None Some(0) no node accepts it anymore",
    ];
    assert_eq!(effects(impact), expected);
}

#[test]
fn daemon_sets_start_and_stop_pods_as_their_controller_does() {
    let before = node("n1", json!({"pool": "a"}), &[]);
    let after = node("n1", json!({"pool": "c"}), &["node.kubernetes.io/not-ready:NoExecute", "keep:NoSchedule"]);
    let mut impact = impact(before, after);
    let set = |name: &str, spec: Json| {
        let set = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"template": {"spec": spec}}});
        serde_json::from_value::<DaemonSet>(set).unwrap()
    };
    impact.add_daemon_set(&set("leaves", json!({"nodeSelector": {"pool": "a"}})));
    // Tolerated by the controller's own tolerations; `keep` only keeps new pods away.
    impact.add_daemon_set(&set("stays", json!({})));
    let keep = json!([{"key": "keep", "operator": "Exists"}]);
    impact.add_daemon_set(&set("comes", json!({"nodeSelector": {"pool": "c"}, "tolerations": keep})));
    impact.add_daemon_set(&set("pinned", json!({"nodeName": "n1", "nodeSelector": {"pool": "a"}})));
    impact.add_daemon_set(&set("pinned-elsewhere", json!({"nodeName": "n2", "nodeSelector": {"pool": "a"}})));
    // The API server replaces the affinity of such a pod by the name of its node.
    let pinned = affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]));
    for name in ["leaves", "stays"] {
        impact.add_pod(&pod(name, Some("n1"), Some(&format!("DaemonSet/{name}")), pinned.clone()));
    }
    let (pods, sets) = impact.finish();
    let evicted: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(
        (evicted, pods[0].effect, pods[0].cause.kind),
        (vec!["leaves"], Effect::Evicted, CauseKind::NodeSelector)
    );
    let sets: Vec<_> =
        sets.iter().map(|set| (set.name.as_str(), set.starts.as_slice(), set.stops.as_slice())).collect();
    let n1 = ["n1".to_owned()];
    let none: &[String] = &[];
    assert_eq!(sets, [("comes", &n1 as &[String], none), ("leaves", none, &n1), ("pinned", none, &n1)]);
}
