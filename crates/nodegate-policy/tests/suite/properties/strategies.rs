//! Policies, nodes and requesters as the properties draw them.

use nodegate_policy::api::policy::NodePolicySpec;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

pub(super) const KEYS: [&str; 11] = [
    "a",
    "b",
    "c",
    "pool",
    "hardware.tier",
    "nvidia.com/gpu.present",
    "node-role.kubernetes.io/worker",
    "node-restriction.kubernetes.io/team",
    "slash~tilde/x",
    "feature.node.kubernetes.io/pci-10de.present",
    "nodegate.dev/own",
];
pub(super) const VALUES: [&str; 4] = ["", "1", "true", "gold"];
pub(super) const OS_IMAGE_PATTERNS: [&str; 3] = ["Ubuntu*", "Ubuntu >=24.04", "*"];
pub(super) const OS_IMAGES: [&str; 3] = ["", "Ubuntu 22.04.4 LTS", "Talos (v1.7.0)"];
pub(super) const KERNEL_PATTERNS: [&str; 3] = [">=5.15 <6.2", "*-aws", "==6"];
pub(super) const KERNELS: [&str; 3] = ["5.15.0-1050-aws", "6.6.8-talos", "unnumbered"];
/// Expressions that are true, false or fail, depending on the node.
pub(super) const EXPRESSIONS: [&str; 6] = [
    r#"node.metadata.labels["a"] == "1""#,
    r#""pool" in node.metadata.labels"#,
    r#"node.metadata.labels.exists(key, key.startsWith("node-r"))"#,
    "has(node.spec.taints)",
    "gpu.count > 0",
    r#"node.status.nodeInfo.kernelVersion.startsWith("6")"#,
];
pub(super) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
pub(super) const NAMES: [&str; 3] = ["n1", "gpu-7", "yeezyai"];

pub(super) fn key() -> impl Strategy<Value = String> {
    // "slash~tilde/x" is not a valid key: it represents foreign labels that must be kept, not assigned ones.
    select(
        KEYS.iter()
            .filter(|key| !key.contains('~') && !key.starts_with("nodegate.dev/"))
            .map(|key| (*key).to_owned())
            .collect::<Vec<_>>(),
    )
}

pub(super) fn value() -> impl Strategy<Value = String> {
    select(VALUES.map(str::to_owned).to_vec())
}

pub(super) fn texts(keys: impl Strategy<Value = String>, most: usize) -> impl Strategy<Value = Value> {
    prop::collection::btree_map(keys, value(), 0..=most).prop_map(|map| json!(map))
}

pub(super) fn taint() -> impl Strategy<Value = Value> {
    (key(), value(), select(EFFECTS.to_vec()))
        .prop_map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
}

pub(super) fn taints(most: usize) -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(taint(), 0..=most).prop_map(|mut taints| {
        taints.sort_by_key(|taint| (taint["key"].to_string(), taint["effect"].to_string()));
        taints.dedup_by_key(|taint| (taint["key"].clone(), taint["effect"].clone()));
        taints
    })
}

pub(super) fn requirement() -> impl Strategy<Value = Value> {
    (key(), 0..4_usize, value()).prop_map(|(key, operator, value)| match operator {
        0 => json!({"key": key, "operator": "Exists"}),
        1 => json!({"key": key, "operator": "DoesNotExist"}),
        2 => json!({"key": key, "operator": "In", "values": [value]}),
        _ => json!({"key": key, "operator": "NotIn", "values": [value]}),
    })
}

pub(super) fn conditions() -> impl Strategy<Value = Value> {
    let names = prop::option::weighted(0.3, subsequence(vec!["n1", "gpu-*", "yeezyai"], 1..=2));
    let requirements = prop::collection::vec(requirement(), 0..=2);
    let taints = prop::option::weighted(0.2, key());
    let gpu = prop::bool::weighted(0.15);
    let os_image = prop::option::weighted(0.15, select(OS_IMAGE_PATTERNS.to_vec()));
    let kernel =
        prop::option::weighted(0.15, (select(vec!["kernel", "kernelVersion"]), select(KERNEL_PATTERNS.to_vec())));
    let capacity = prop::option::weighted(0.15, select(vec![">=4", "<4", "==0"]));
    let expression = prop::option::weighted(0.1, select(EXPRESSIONS.to_vec()));
    let pools = prop::option::weighted(0.15, select(vec!["by-name", "by-group", "by-*"]));
    let others = (os_image, kernel, capacity, expression, pools);
    (names, requirements, taints, gpu, others).prop_map(|(names, requirements, taint, gpu, others)| {
        let (os_image, kernel, capacity, expression, pools) = others;
        let mut conditions = json!({"selector": {"matchExpressions": requirements}});
        if let Some(names) = names {
            conditions["names"] = json!(names);
        }
        if let Some(taint) = taint {
            conditions["taints"] = json!([taint]);
        }
        if gpu {
            conditions["gpu"] = json!({"vendor": "nvidia"});
        }
        if let Some(pool) = pools {
            conditions["pools"] = json!([pool]);
        }
        if let Some(capacity) = capacity {
            conditions["capacity"] = json!({"cpu": capacity});
        }
        if let Some(expression) = expression {
            conditions["expression"] = json!(expression);
        }
        for (field, pattern) in os_image.map(|pattern| ("osImage", pattern)).into_iter().chain(kernel) {
            conditions[field] = json!([pattern]);
        }
        conditions
    })
}

pub(super) fn rule() -> impl Strategy<Value = Value> {
    let any_of = prop::option::weighted(0.2, prop::collection::vec(conditions(), 1..=2));
    let given = (texts(key(), 2), texts(key(), 1), taints(2));
    (conditions(), any_of, given, any::<bool>(), -1..=1_i32, any::<bool>()).prop_map(
        |(mut conditions, any_of, (labels, annotations, taints), enforce, priority, evict)| {
            if let Some(any_of) = any_of {
                conditions["anyOf"] = json!(any_of);
            }
            json!({
                "name": "", "match": conditions, "labels": labels, "annotations": annotations, "taints": taints,
                "mode": if enforce { "enforce" } else { "default" }, "priority": priority, "evict": evict, "trustKubelet": true,
            })
        },
    )
}

/// Policies that load; those with cycles are refused and drawn again.
pub(super) fn policies() -> impl Strategy<Value = PolicySet> {
    written_policies().prop_map(|(_, set)| set)
}

/// The same, as written and compiled.
pub(super) fn written_policies() -> impl Strategy<Value = (Value, PolicySet)> {
    let rules = prop::collection::vec(rule(), 1..=6);
    let protect = subsequence(vec!["hardware.tier", "pool", "nvidia.com/*"], 0..=2);
    let persist = subsequence(vec!["a", "pool", "node-role.kubernetes.io/*"], 1..=2);
    (rules, protect, persist).prop_filter_map("cycles are refused", |(mut rules, protect, persist)| {
        for (at, rule) in rules.iter_mut().enumerate() {
            rule["name"] = json!(format!("rule-{at}"));
        }
        rules.retain(|rule| {
            ["labels", "annotations", "taints"]
                .iter()
                .any(|field| rule[*field] != json!({}) && rule[*field] != json!([]))
        });
        let pools = json!([
            {"name": "by-name", "names": ["gpu-*"]},
            {"name": "by-group", "requester": {"groups": ["pool:*"]}},
        ]);
        let persist = json!({"labels": persist, "taints": ["a"]});
        let spec = json!({"rules": rules, "protect": {"keys": protect}, "persist": persist, "pools": pools});
        let typed: NodePolicySpec = serde_json::from_value(spec.clone()).unwrap();
        Some((spec, PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, typed)]).ok()?))
    })
}

#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) node: Value,
    pub(super) old: Option<Value>,
    pub(super) kubelet: bool,
    pub(super) saved: Option<Value>,
}

impl Scene {
    pub(super) fn saved(&self) -> Option<SavedState> {
        self.saved.clone().map(|saved| serde_json::from_value(saved).unwrap())
    }
}

pub(super) fn node() -> impl Strategy<Value = Value> {
    let all_keys = select(KEYS.map(str::to_owned).to_vec());
    let shape = prop::collection::vec(any::<bool>(), 5);
    let info = (select(OS_IMAGES.to_vec()), select(KERNELS.to_vec()));
    (select(NAMES.to_vec()), texts(all_keys.clone(), 5), texts(all_keys, 2), taints(3), info, shape).prop_map(
        |(name, labels, annotations, taints, (os_image, kernel), shape)| {
            let mut node = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "futureField": {"x": [1, null]}},
                "status": {"capacity": {"cpu": "4"}, "unknown": true}, "futureTop": 1,
            });
            if shape[4] {
                node["status"]["nodeInfo"] = json!({"osImage": os_image, "kernelVersion": kernel, "futureField": 1});
            }
            if shape[0] {
                node["metadata"]["labels"] = labels;
            }
            if shape[1] {
                node["metadata"]["annotations"] = annotations;
            }
            if shape[2] {
                node["spec"] = json!({"podCIDR": "10.0.0.0/24"});
                if shape[3] {
                    node["spec"]["taints"] = json!(taints);
                }
            }
            node
        },
    )
}

pub(super) fn scene() -> impl Strategy<Value = Scene> {
    (node(), prop::option::of(node()), any::<bool>(), prop::option::of(saved())).prop_map(
        |(mut node, old, kubelet, saved)| {
            let old = old.map(|mut old| {
                old["metadata"]["name"] = node["metadata"]["name"].clone();
                // A node has its uid from the API server, once it is created.
                for node in [&mut old, &mut node] {
                    node["metadata"]["uid"] = json!("this");
                }
                old
            });
            let saved = saved.map(|saved| of_node(saved, old.as_ref().unwrap_or(&node)));
            Scene { node, old, kubelet, saved }
        },
    )
}

/// The same saved state, which owns what the node has of the owned keys, with the node's values but for the empty ones.
pub(super) fn of_node(mut saved: Value, node: &Value) -> Value {
    for (key, value) in saved["owned"]["labels"].as_object_mut().into_iter().flatten() {
        if let Some(there) = node["metadata"]["labels"].get(key).filter(|there| **there != json!("")) {
            value.clone_from(there);
        }
    }
    // And every second of its taints.
    let there: Vec<Value> = node["spec"]["taints"].as_array().into_iter().flatten().step_by(2).cloned().collect();
    saved["owned"]["taints"].as_array_mut().unwrap().extend(there);
    saved
}

/// Saved state of this node object, of an earlier one of the same name, or of any (as the reference operator wrote it).
pub(super) fn saved() -> impl Strategy<Value = Value> {
    let owned = (texts(key(), 5), taints(3));
    (texts(key(), 3), taints(2), owned, select(vec![json!("this"), json!("earlier"), Value::Null])).prop_map(
        |(labels, taints, owned, uid)| {
            let owned = json!({"labels": owned.0, "taints": owned.1});
            json!({"nodeName": "x", "labels": labels, "taints": taints, "nodeUID": uid, "owned": owned})
        },
    )
}
