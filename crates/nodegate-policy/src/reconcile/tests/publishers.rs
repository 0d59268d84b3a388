//! Programs that publish labels and restart.

use super::*;
use crate::facts::publishers::Publishers;

/// What each publisher has on a node under NVIDIA's GPU operator, whose only A10G is shared by twelve pods.
const PUBLISHED: [&[(&str, &str)]; 4] = [
    &[
        ("nvidia.com/gpu.product", "NVIDIA-A10G-SHARED"),
        ("nvidia.com/gpu.count", "1"),
        ("nvidia.com/gpu.replicas", "12"),
        ("nvidia.com/gpu.memory", "23028"),
    ],
    &[("feature.node.kubernetes.io/pci-0302_10de.present", "true"), ("feature.node.kubernetes.io/cpu-model.id", "1")],
    &[("nvidia.com/gpu.present", "true"), ("nvidia.com/gpu.deploy.device-plugin", "true")],
    &[("nvidia.com/mig.config.state", "success")],
];

fn policy() -> PolicySet {
    let absent = |key: &str| json!({"selector": {"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}});
    set(json!({"presets": ["gpu", "aliases"], "rules": [
        {"name": "present", "match": {"selector": {"matchLabels": {"nvidia.com/gpu.present": "true"}}}, "labels": {"has": "gpu"}},
        {"name": "product", "match": {"selector": {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}},
         "labels": {"has-product": "1"}, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        {"name": "no-product", "match": absent("nvidia.com/gpu.product"), "labels": {"has-product": "0"}},
        {"name": "no-pci", "match": absent("feature.node.kubernetes.io/pci-0302_10de.present"), "labels": {"pci": "0"}},
        {"name": "many", "match": {"gpu": {"count": ">=2"}}, "labels": {"many": "1"}},
        {"name": "some", "match": {"gpu": {"vendor": "*"}}, "taints": [{"key": "accelerator", "effect": "NoSchedule"}]},
        {"name": "by-expression", "match": {"expression": "!(\"nvidia.com/gpu.memory\" in node.metadata.labels)"}, "labels": {"memory": "none"}},
        {"name": "by-count", "match": {"expression": "!has(gpu.count) || gpu.count > 1"}, "labels": {"counted": "no"}},
        {"name": "mig", "match": {"selector": {"matchLabels": {"nvidia.com/mig.config.state": "success"}}}, "labels": {"mig": "1"}},
    ]}))
}

fn scene(labels: impl IntoIterator<Item = (&'static str, &'static str)>) -> Scene {
    let labels: std::collections::BTreeMap<_, _> = labels.into_iter().collect();
    let mut scene = Scene::new(json!(labels)).claimed(&labels.keys().copied().collect::<Vec<_>>());
    scene.node["status"]["capacity"] = json!({"nvidia.com/gpu": "12"});
    scene
}

fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    PUBLISHED.into_iter().flatten().copied()
}

/// All orders of four things.
fn orders() -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for _ in 0..PUBLISHED.len() {
        let longer = |order: &Vec<usize>| -> Vec<Vec<usize>> {
            let rest = (0..PUBLISHED.len()).filter(|at| !order.contains(at));
            rest.map(|at| [order.as_slice(), &[at]].concat()).collect()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

fn assert_kept(scene: &Scene, policy: &PolicySet, when: &str) {
    scene.keep(policy, |plan| {
        assert_eq!(plan.change(|_| true, |_, _| false), None, "{when}: {:#}", scene.node["metadata"]["labels"]);
        assert!(plan.removals.is_empty(), "{when}");
    });
}

#[test]
fn publishers_that_go_and_come_in_any_order_change_nothing() {
    let policy = policy();
    let mut scene = scene(all()).settle(&policy);
    let expected = [("gpu.count", "1"), ("gpu.model", "a10g"), ("has", "gpu"), ("has-product", "1"), ("mig", "1")];
    for (key, value) in expected {
        assert_eq!(scene.label(key), Some(value), "{key}");
    }
    for key in ["many", "pci", "memory", "counted"] {
        assert_eq!(scene.label(key), None, "{key}");
    }
    for order in orders() {
        for (labels, gone) in
            order.iter().map(|at| (PUBLISHED[*at], true)).chain(order.iter().map(|at| (PUBLISHED[*at], false)))
        {
            for (key, value) in labels {
                scene.node["metadata"]["labels"][*key] = if gone { serde_json::Value::Null } else { json!(value) };
            }
            scene.node["metadata"]["labels"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
            assert_kept(&scene, &policy, &format!("{order:?}"));
        }
    }
}

#[test]
fn what_the_gpu_operator_withdraws_while_node_feature_discovery_is_away_is_unknown() {
    let policy = policy();
    let mut scene = scene(all()).settle(&policy);
    let labels = scene.node["metadata"]["labels"].as_object_mut().unwrap();
    labels.retain(|key, _| !key.starts_with("feature.node") && !key.starts_with("nvidia.com/gpu."));
    labels.insert("nvidia.com/gpu.present".to_owned(), json!("false"));
    assert_kept(&scene, &policy, "the operator says that there are no GPUs");
    scene.node["metadata"]["labels"]["feature.node.kubernetes.io/cpu-model.id"] = json!("1");
    scene.keep(&policy, |plan| {
        let removed: Vec<&str> = plan.removals.iter().map(|removal| removal.key.as_str()).collect();
        assert_eq!(removed, ["has"], "with Node Feature Discovery back, it is a fact");
    });
}

#[test]
fn a_single_label_that_goes_while_its_publisher_stays_is_gone() {
    let policy = policy();
    let mut scene = scene(all()).settle(&policy);
    scene.node["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove("feature.node.kubernetes.io/pci-0302_10de.present");
    let change = scene.keep(&policy, |plan| plan.change(|_| true, |_, _| false)).unwrap();
    assert_eq!(change.labels()["pci"].as_deref(), Some("0"));
}

#[test]
fn what_older_versions_recorded_for_a_namespace_stands_for_its_discovery_daemon() {
    let policy = policy();
    let mut scene = scene(all()).settle(&policy);
    scene.saved.publishers = vec!["feature.node.kubernetes.io".into(), "nvidia.com".into()];
    let labels = scene.node["metadata"]["labels"].as_object_mut().unwrap();
    labels.retain(|key, _| !PUBLISHED[0].iter().any(|(gone, _)| gone == key));
    assert_kept(&scene, &policy, "its record has the prefix");
}

#[test]
fn shares_are_not_counted_where_other_nodes_have_discovery() {
    let policy = policy();
    let known = scene([]).keep(&policy, |plan| plan.decision.label("gpu.count").map(str::to_owned));
    assert_eq!(known.as_deref(), Some("12"), "nothing says that they are shared");
    let elsewhere = scene(all()).with_stored(|stored| Publishers::on(stored.node));
    scene([]).with_stored(|stored| {
        let plan = plan_reconcile(&policy, &StoredNode { elsewhere, ..*stored });
        assert_eq!((plan.decision.label("gpu.count"), plan.decision.label("gpu.vendor")), (None, Some("nvidia")));
    });
}

#[test]
fn a_node_that_is_created_again_waits_for_its_publishers_until_it_is_settled() {
    let policy = policy();
    let mut scene = scene(all()).settle(&policy);
    scene.node["metadata"] = json!({"name": "n1", "uid": "uid-2", "labels": {}});
    scene.node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    scene.claims = Default::default();
    let no_product = |scene: &Scene| scene.keep(&policy, |plan| plan.decision.label("has-product").map(str::to_owned));
    assert_eq!(no_product(&scene), None, "its record says that there was discovery");
    scene = scene.settle(&policy);
    assert!(scene.saved.publishers.is_empty() && scene.saved.publishers_before.contains(&"nvidia.com".into()));
    assert_eq!(no_product(&scene), None, "and still does");
    assert_eq!(scene.label("gpu.count"), None, "so twelve may be shares");
    scene.node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = json!("g5.2xlarge");
    let count = scene.keep(&policy, |plan| plan.decision.label("gpu.count").map(str::to_owned));
    assert_eq!(count.as_deref(), Some("1"), "what is known without discovery is given at once");
    scene.node["metadata"]["labels"].as_object_mut().unwrap().remove("node.kubernetes.io/instance-type");
    scene.node["status"]["conditions"][0]["status"] = json!("True");
    assert_eq!(no_product(&scene).as_deref(), Some("0"), "another machine may have its name");
    scene = scene.settle(&policy);
    assert_eq!(scene.label("gpu.count"), None, "and it may share its GPUs as well");
    for (key, value) in all() {
        scene.node["metadata"]["labels"][key] = json!(value);
    }
    scene = scene.settle(&policy);
    assert!(scene.saved.publishers_before.is_empty(), "all have come");
}
