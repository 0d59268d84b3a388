//! Where objects refer to a node label by its key.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

/// A place in an object that names a key of a node label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LabelUse {
    /// A node selector.
    NodeSelector,
    /// The required node affinity of a pod or a volume.
    RequiredNodeAffinity,
    /// The preferred node affinity of a pod.
    PreferredNodeAffinity,
    /// The topology key of a topology spread constraint.
    TopologySpread,
    /// The topology key of a pod affinity.
    PodAffinity,
    /// The topology key of a pod anti-affinity.
    PodAntiAffinity,
    /// The allowed topologies of a StorageClass.
    AllowedTopologies,
    /// The requirements of a Karpenter NodePool.
    Requirements,
    /// The labels that a Karpenter NodePool gives to its nodes.
    NodeLabels,
    /// The match of a rule, a persist section or a governance entry of a NodePolicy, or an expression.
    Match,
    /// The labels that a rule or an inventory of a NodePolicy may set.
    Labels,
    /// The persisted labels of a NodePolicy.
    Persist,
    /// The keys of a governance entry of a NodePolicy.
    Governance,
}

impl LabelUse {
    /// The place in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NodeSelector => "node selector",
            Self::RequiredNodeAffinity => "required node affinity",
            Self::PreferredNodeAffinity => "preferred node affinity",
            Self::TopologySpread => "topology spread constraint",
            Self::PodAffinity => "pod affinity",
            Self::PodAntiAffinity => "pod anti-affinity",
            Self::AllowedTopologies => "allowed topologies",
            Self::Requirements => "requirements",
            Self::NodeLabels => "labels of its nodes",
            Self::Match => "match",
            Self::Labels => "labels that it sets",
            Self::Persist => "persisted labels",
            Self::Governance => "governance",
        }
    }
}

/// The kinds of objects that can name a node label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub enum ConsumerKind {
    /// A running or pending pod without an owner of these kinds.
    Pod,
    /// A Deployment.
    Deployment,
    /// A ReplicaSet without a Deployment.
    ReplicaSet,
    /// A ReplicationController.
    ReplicationController,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
    /// A Job that has not ended, without a CronJob.
    Job,
    /// A CronJob.
    CronJob,
    /// A PersistentVolume.
    PersistentVolume,
    /// A StorageClass.
    StorageClass,
    /// A RuntimeClass.
    RuntimeClass,
    /// A Karpenter NodePool.
    NodePool,
    /// A NodePolicy in force.
    NodePolicy,
}

impl ConsumerKind {
    /// The kinds that the API server lists, each with its path. NodePolicies are known otherwise.
    pub const LISTED: [(Self, &'static str); 13] = [
        (Self::Pod, "/api/v1/pods"),
        (Self::Deployment, "/apis/apps/v1/deployments"),
        (Self::ReplicaSet, "/apis/apps/v1/replicasets"),
        (Self::ReplicationController, "/api/v1/replicationcontrollers"),
        (Self::StatefulSet, "/apis/apps/v1/statefulsets"),
        (Self::DaemonSet, "/apis/apps/v1/daemonsets"),
        (Self::Job, "/apis/batch/v1/jobs"),
        (Self::CronJob, "/apis/batch/v1/cronjobs"),
        (Self::PersistentVolume, "/api/v1/persistentvolumes"),
        (Self::StorageClass, "/apis/storage.k8s.io/v1/storageclasses"),
        (Self::RuntimeClass, "/apis/node.k8s.io/v1/runtimeclasses"),
        (Self::NodePool, "/apis/karpenter.sh/v1/nodepools"),
        (Self::NodePool, "/apis/karpenter.sh/v1beta1/nodepools"),
    ];

    /// The name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::PersistentVolume => "PersistentVolume",
            Self::StorageClass => "StorageClass",
            Self::RuntimeClass => "RuntimeClass",
            Self::NodePool => "NodePool",
            Self::NodePolicy => "NodePolicy",
        }
    }

    /// Whether a cluster may lack the kind.
    pub fn is_optional(self) -> bool {
        self == Self::NodePool
    }

    /// The places in which an object of this kind names the label.
    pub fn uses(self, object: &Json, key: &str) -> Vec<LabelUse> {
        let spec = &object["spec"];
        let mut found = match self {
            Self::Pod => of_pod(spec, key),
            Self::Deployment
            | Self::ReplicaSet
            | Self::ReplicationController
            | Self::StatefulSet
            | Self::DaemonSet
            | Self::Job => of_pod(&spec["template"]["spec"], key),
            Self::RuntimeClass => of_pod(&object["scheduling"], key),
            Self::CronJob => of_pod(&spec["jobTemplate"]["spec"]["template"]["spec"], key),
            Self::PersistentVolume => {
                when(in_terms(&spec["nodeAffinity"]["required"], key), LabelUse::RequiredNodeAffinity)
            }
            Self::StorageClass => {
                let terms = each(&object["allowedTopologies"]);
                let is_named = terms.flat_map(|term| each(&term["matchLabelExpressions"])).any(|one| one["key"] == key);
                when(is_named, LabelUse::AllowedTopologies)
            }
            Self::NodePool => {
                let template = &spec["template"];
                let is_required = each(&template["spec"]["requirements"]).any(|one| one["key"] == key);
                let is_given = template["metadata"]["labels"].get(key).is_some();
                [when(is_required, LabelUse::Requirements), when(is_given, LabelUse::NodeLabels)].concat()
            }
            Self::NodePolicy => Vec::new(),
        };
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the object has ended, or only records what was there before.
    pub fn is_over(self, object: &Json) -> bool {
        match self {
            Self::Pod => matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
            Self::Job => each(&object["status"]["conditions"]).any(|condition| {
                matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
            }),
            Self::ReplicaSet | Self::ReplicationController => object["spec"]["replicas"] == 0,
            _ => false,
        }
    }
}

/// The kind and the name of the controller of an object, if it is of a kind that is listed itself.
pub fn listed_owner(object: &Json) -> Option<(ConsumerKind, &str)> {
    let mut controllers = each(&object["metadata"]["ownerReferences"]).filter(|owner| owner["controller"] == true);
    controllers.find_map(|owner| {
        let kind = match (owner["apiVersion"].as_str()?, owner["kind"].as_str()?) {
            ("apps/v1", "Deployment") => ConsumerKind::Deployment,
            ("apps/v1", "ReplicaSet") => ConsumerKind::ReplicaSet,
            ("apps/v1", "StatefulSet") => ConsumerKind::StatefulSet,
            ("apps/v1", "DaemonSet") => ConsumerKind::DaemonSet,
            ("batch/v1", "Job") => ConsumerKind::Job,
            ("batch/v1", "CronJob") => ConsumerKind::CronJob,
            ("v1", "ReplicationController") => ConsumerKind::ReplicationController,
            _ => return None,
        };
        Some((kind, owner["name"].as_str().unwrap_or_default()))
    })
}

fn of_pod(spec: &Json, key: &str) -> Vec<LabelUse> {
    let affinity = &spec["affinity"];
    let nodes = &affinity["nodeAffinity"];
    let prefers = each(&nodes["preferredDuringSchedulingIgnoredDuringExecution"]);
    let is_topology = |terms: &Json| {
        let required = each(&terms["requiredDuringSchedulingIgnoredDuringExecution"]);
        let preferred = each(&terms["preferredDuringSchedulingIgnoredDuringExecution"]);
        required.chain(preferred.map(|one| &one["podAffinityTerm"])).any(|term| term["topologyKey"] == key)
    };
    [
        when(spec["nodeSelector"].get(key).is_some(), LabelUse::NodeSelector),
        when(in_terms(&nodes["requiredDuringSchedulingIgnoredDuringExecution"], key), LabelUse::RequiredNodeAffinity),
        when(prefers.into_iter().any(|one| in_term(&one["preference"], key)), LabelUse::PreferredNodeAffinity),
        when(each(&spec["topologySpreadConstraints"]).any(|one| one["topologyKey"] == key), LabelUse::TopologySpread),
        when(is_topology(&affinity["podAffinity"]), LabelUse::PodAffinity),
        when(is_topology(&affinity["podAntiAffinity"]), LabelUse::PodAntiAffinity),
    ]
    .concat()
}

/// Whether a node selector names the label.
fn in_terms(selector: &Json, key: &str) -> bool {
    each(&selector["nodeSelectorTerms"]).any(|term| in_term(term, key))
}

fn in_term(term: &Json, key: &str) -> bool {
    each(&term["matchExpressions"]).any(|one| one["key"] == key)
}

fn each(list: &Json) -> impl Iterator<Item = &Json> {
    list.as_array().into_iter().flatten()
}

fn when(holds: bool, what: LabelUse) -> Vec<LabelUse> {
    if holds { vec![what] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod's spec that names `key` in one place, for each place.
    fn pod_specs(key: &str) -> Vec<(LabelUse, Json)> {
        let term = json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
        let (now, rather) =
            ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
        let topology = json!({"topologyKey": key});
        vec![
            (LabelUse::NodeSelector, json!({"nodeSelector": {key: "x"}})),
            (
                LabelUse::RequiredNodeAffinity,
                json!({"affinity": {"nodeAffinity": {now: {"nodeSelectorTerms": [{}, term]}}}}),
            ),
            (
                LabelUse::PreferredNodeAffinity,
                json!({"affinity": {"nodeAffinity": {rather: [{"weight": 1, "preference": term}]}}}),
            ),
            (LabelUse::TopologySpread, json!({"topologySpreadConstraints": [topology]})),
            (LabelUse::PodAffinity, json!({"affinity": {"podAffinity": {now: [topology]}}})),
            (LabelUse::PodAffinity, json!({"affinity": {"podAffinity": {rather: [{"podAffinityTerm": topology}]}}})),
            (LabelUse::PodAntiAffinity, json!({"affinity": {"podAntiAffinity": {now: [topology]}}})),
            (
                LabelUse::PodAntiAffinity,
                json!({"affinity": {"podAntiAffinity": {rather: [{"podAffinityTerm": topology}]}}}),
            ),
        ]
    }

    #[test]
    fn a_pod_template_names_a_label_in_each_place_and_in_every_kind_of_workload() {
        for (expected, spec) in pod_specs("tier") {
            for (kind, object) in [
                (ConsumerKind::Pod, json!({"spec": spec})),
                (ConsumerKind::Deployment, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::ReplicaSet, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::ReplicationController, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::StatefulSet, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::DaemonSet, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::Job, json!({"spec": {"template": {"spec": spec}}})),
                (ConsumerKind::CronJob, json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}})),
            ] {
                assert_eq!(kind.uses(&object, "tier"), [expected], "{kind:?} {object}");
                assert_eq!(kind.uses(&object, "tie"), [], "{kind:?} {object}");
            }
        }
    }

    #[test]
    fn volumes_classes_and_node_pools_name_a_label() {
        let term = json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]});
        let volume = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}});
        let class = json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "tier", "values": ["a"]}]}]});
        let pool = json!({"spec": {"template": {"metadata": {"labels": {"tier": "a"}},
            "spec": {"requirements": [{"key": "tier", "operator": "Exists"}, {"key": "tier", "operator": "Exists"}]}}}});
        let runtime = json!({"handler": "x", "scheduling": {"nodeSelector": {"tier": "a"}}});
        for (kind, object, expected) in [
            (ConsumerKind::RuntimeClass, &runtime, vec![LabelUse::NodeSelector]),
            (ConsumerKind::PersistentVolume, &volume, vec![LabelUse::RequiredNodeAffinity]),
            (ConsumerKind::StorageClass, &class, vec![LabelUse::AllowedTopologies]),
            (ConsumerKind::NodePool, &pool, vec![LabelUse::Requirements, LabelUse::NodeLabels]),
        ] {
            assert_eq!(kind.uses(object, "tier"), expected, "{kind:?}");
            assert_eq!(kind.uses(object, "other"), [], "{kind:?}");
        }
    }

    #[test]
    fn what_has_ended_is_no_consumer_and_what_an_owner_counts_is_not_counted_twice() {
        for (kind, object, expected) in [
            (ConsumerKind::Pod, json!({"status": {"phase": "Succeeded"}}), true),
            (ConsumerKind::Pod, json!({"status": {"phase": "Pending"}}), false),
            (ConsumerKind::Job, json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}), true),
            (ConsumerKind::Job, json!({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}), false),
            (ConsumerKind::ReplicaSet, json!({"spec": {"replicas": 0}}), true),
            (ConsumerKind::ReplicaSet, json!({"spec": {"replicas": 1}}), false),
            (ConsumerKind::Deployment, json!({"spec": {"replicas": 0}}), false),
        ] {
            assert_eq!(kind.is_over(&object), expected, "{kind:?} {object}");
        }
        let owned = |version: &str, kind: &str, controller: bool| {
            let owner = json!({"apiVersion": version, "kind": kind, "name": "x", "controller": controller});
            listed_owner(&json!({"metadata": {"ownerReferences": [owner]}})).is_some_and(|(_, name)| name == "x")
        };
        assert!(owned("apps/v1", "ReplicaSet", true) && owned("batch/v1", "CronJob", true));
        assert!(owned("v1", "ReplicationController", true));
        // Whose template is not listed is a consumer itself.
        assert!(!owned("ray.io/v1", "RayCluster", true) && !owned("v1", "Node", true));
        assert!(!owned("example.com/v1", "Job", true) && !owned("apps/v1", "ReplicaSet", false));
        assert!(listed_owner(&json!({})).is_none());
    }
}
