//! Taints of the Node Readiness Controller that planned policies do not give nodes when they join: it adds them itself, but later.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Client;
use kube::core::{Selector, SelectorExt as _};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::policies::plan::named::named;
use crate::cli::shared::cluster::objects;
use crate::cli::shared::output;
use crate::scheduling::Transition;

const GROUP: &str = "readiness.node.x-k8s.io";

/// The key and the effect of a taint.
pub(super) type TaintKey = (String, String);

/// A NodeReadinessRule whose taint nodes do not have when they join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LateTaint {
    /// The name of the NodeReadinessRule.
    pub(in crate::cli) rule: String,
    /// Its taint, as `KEY:EFFECT`.
    pub(in crate::cli) taint: String,
    /// The nodes that it selects, and to which no rule of the policies gives the taint; sorted.
    pub(in crate::cli) nodes: Vec<String>,
}

/// The NodeReadinessRules of a cluster.
#[derive(Debug, Default)]
pub(super) struct Readiness(Vec<ReadinessRule>);

#[derive(Debug)]
struct ReadinessRule {
    name: String,
    selector: Selector,
    taint: TaintKey,
}

impl Readiness {
    /// Those of a cluster; none if they cannot be listed.
    pub(super) async fn of_cluster(client: &Client) -> Self {
        let mut found = Self::default();
        let listed = objects::each_of_kind(client, (GROUP, "NodeReadinessRule"), "", |rule| found.add(&rule)).await;
        if let Err(error) = listed {
            output::note(&format!("note: the taints of the Node Readiness Controller are not known: {error:#}"));
        }
        found
    }

    /// Adds a rule. One in another form than this version of the API has says nothing, and one that only tries out adds no taint.
    fn add(&mut self, rule: &Json) {
        let spec = &rule["spec"];
        if spec["dryRun"] == true {
            return;
        }
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let selector = serde_json::from_value::<LabelSelector>(spec["nodeSelector"].clone()).ok();
        let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
        let taint = text(&spec["taint"]["key"]).zip(text(&spec["taint"]["effect"]));
        let Some(((name, selector), taint)) = text(&rule["metadata"]["name"]).zip(selector).zip(taint) else { return };
        self.0.push(ReadinessRule { name, selector, taint });
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The taints that nodes do not have when they join. `given`: what rules give each node then.
    pub(super) fn late(&self, nodes: &[Transition], given: &BTreeMap<String, BTreeSet<TaintKey>>) -> Vec<LateTaint> {
        let late = |ReadinessRule { name, selector, taint }: &ReadinessRule| {
            let then = nodes.iter().map(|node| node.after.as_ref().unwrap_or(&node.before));
            let selected = then.filter(|node| selector.matches(&node.labels));
            let lacks = |node: &str| given.get(node).is_some_and(|given| !given.contains(taint));
            let mut nodes: Vec<String> =
                selected.filter(|node| lacks(&node.name)).map(|node| node.name.clone()).collect();
            nodes.sort_unstable();
            let (rule, taint) = (name.clone(), format!("{}:{}", taint.0, taint.1));
            (!nodes.is_empty()).then_some(LateTaint { rule, taint, nodes })
        };
        self.0.iter().filter_map(late).collect()
    }
}

/// It as a warning.
pub(super) fn in_words(LateTaint { rule, taint, nodes }: &LateTaint) -> String {
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    format!(
        "NodeReadinessRule {rule} adds the taint {taint} after a node has joined, and a pod may be faster; no rule of these policies gives it in the CREATE: {}",
        named(&nodes)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scheduling::NodeState;

    #[test]
    fn a_taint_is_late_on_nodes_that_are_selected_after_the_change_and_do_not_get_it() {
        let mut readiness = Readiness::default();
        let rule = |name: &str, selector: Json, taint: Json| json!({"metadata": {"name": name}, "spec": {"nodeSelector": selector, "taint": taint}});
        let taint = |key: &str| json!({"key": key, "value": "pending", "effect": "NoSchedule"});
        let gpu = json!({"matchExpressions": [{"key": "class", "operator": "In", "values": ["gpu"]}]});
        readiness.add(&rule("driver", gpu.clone(), taint("readiness.k8s.io/driver")));
        readiness.add(&rule("cni", gpu.clone(), taint("readiness.k8s.io/cni")));
        readiness.add(&rule(
            "storage",
            json!({"matchLabels": {"class": "storage"}}),
            taint("readiness.k8s.io/storage"),
        ));
        // Of another version: nothing is said about it.
        readiness.add(&rule("odd", json!("gpu"), taint("readiness.k8s.io/odd")));
        readiness.add(&rule("odd", gpu, json!("x")));
        let state = |name: &str, class: &str| NodeState {
            name: name.to_owned(),
            labels: BTreeMap::from([("class".to_owned(), class.to_owned())]),
            taints: Vec::new(),
        };
        let nodes = [
            Transition { before: state("gpu-2", "gpu"), after: None },
            Transition { before: state("gpu-1", "other"), after: Some(state("gpu-1", "gpu")) },
            Transition { before: state("cpu-1", "gpu"), after: Some(state("cpu-1", "cpu")) },
        ];
        let driver = BTreeSet::from([("readiness.k8s.io/driver".to_owned(), "NoSchedule".to_owned())]);
        let other = BTreeSet::from([("readiness.k8s.io/cni".to_owned(), "NoExecute".to_owned())]);
        let given = [
            ("gpu-1", driver.clone()),
            ("gpu-2", driver.into_iter().chain(other).collect()),
            ("cpu-1", BTreeSet::new()),
        ];
        let given = given.into_iter().map(|(name, given)| (name.to_owned(), given)).collect();
        let lines: Vec<String> = readiness.late(&nodes, &given).iter().map(in_words).collect();
        assert_eq!(
            lines,
            [
                "NodeReadinessRule cni adds the taint readiness.k8s.io/cni:NoSchedule after a node has joined, and a pod may be faster; no rule of these policies gives it in the CREATE: gpu-1, gpu-2"
            ]
        );
    }
}
