//! Policies, nodes and writes, drawn from a seed: the same in every run.

use serde_json::{Map, Value, json};

use super::demanded;

/// A small generator of numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn of<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

pub(crate) const KEYS: [&str; 11] = [
    "Odd_Key",
    "a",
    "b",
    "c",
    "pool",
    "hardware.tier",
    "nvidia.com/gpu.present",
    "node-role.kubernetes.io/worker",
    "node-restriction.kubernetes.io/team",
    "example.com/x",
    "sub.example.com/y",
];
/// Those a kubelet may send.
const FREE: [&str; 10] = [
    "Odd_Key",
    "a",
    "b",
    "c",
    "pool",
    "hardware.tier",
    "nvidia.com/gpu.present",
    "example.com/x",
    "sub.example.com/y",
    "nodegate.dev/own",
];
/// Those that rules, nodes and writes often have in common, so that they have to do with each other.
pub(crate) const COMMON: [&str; 4] = ["a", "pool", "hardware.tier", "sub.example.com/y"];
pub(crate) const VALUES: [&str; 4] = ["", "1", "true", "gold"];
/// Those that only nodes and writes have.
const ODD_VALUES: [&str; 6] = ["Big_Value", "7", "40", "007", "9223372036854775808", "long-value.of-many-letters"];
pub(crate) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const TAINT_KEYS: [&str; 5] = ["a", "dedicated", "example.com/x", "sub.example.com/y", "pool"];
const OS_IMAGE_PATTERNS: [&str; 7] =
    ["*", "Ubuntu*", "Ubuntu 2[24]*", "{Ubuntu,Debian*} >=12 <24", "Debian* ==12", "Fl\u{e4}tcar 1.2", "Fl* <=1.1 "];
const OS_IMAGES: [&str; 6] =
    ["", "Ubuntu 22.04.4 LTS", "Ubuntu 24.04 LTS", "Debian GNU/Linux 12 (bookworm)", "Fl\u{e4}tcar 1.2", "none"];
const KERNEL_PATTERNS: [&str; 7] = [">=5.15 <6.2", ">5.15", "<=5.15", "==6", "*-aws", "<5.9 >4", "==5.15.0.0"];
const KERNELS: [&str; 8] =
    ["", "5.15.0-1050-aws", "5.15.7", "5.9", "6.2.0", "v6", "99999999999999999999.1", "unnumbered"];
const EXPRESSIONS: [&str; 6] = [
    r#"node.status.nodeInfo.architecture == "arm64""#,
    r#"node.metadata.labels["free"] == "1""#,
    r#"!("free" in node.metadata.labels) && has(node.spec.taints)"#,
    r#"node.metadata.?labels[?"free"].orValue("") == "true" || node.metadata.name.endsWith("7")"#,
    r#"quantity(node.status.capacity["memory"]).isGreaterThan(quantity("2Gi"))"#,
    r#"node.spec.?providerID.orValue("").startsWith("aws")"#,
];

fn key<'k>(random: &mut Random, keys: &[&'k str]) -> &'k str {
    if random.chance(70) { random.of(&COMMON) } else { random.of(keys) }
}

fn labels(random: &mut Random, keys: &[&str], most: u64) -> Map<String, Value> {
    let value = |random: &mut Random| if random.chance(60) { random.of(&VALUES) } else { random.of(&ODD_VALUES) };
    (0..random.below(most + 1)).map(|_| (key(random, keys).to_owned(), json!(value(random)))).collect()
}

/// What a rule gives; mostly not what rules match on, so that not all sets have cycles.
fn given(random: &mut Random, most: u64) -> Map<String, Value> {
    (0..random.below(most + 1)).map(|_| (random.of(&KEYS).to_owned(), json!(random.of(&VALUES)))).collect()
}

fn taints(random: &mut Random, most: u64) -> Vec<Value> {
    let mut taints: Vec<Value> = Vec::new();
    for _ in 0..random.below(most + 1) {
        let (key, effect) = (random.of(&TAINT_KEYS), random.of(&EFFECTS));
        if !taints.iter().any(|taint| taint["key"] == key && taint["effect"] == effect) {
            let mut taint = json!({"key": key, "effect": effect});
            let value = random.of(&VALUES);
            if !value.is_empty() {
                taint["value"] = json!(value);
            }
            taints.push(taint);
        }
    }
    taints
}

fn requirement(random: &mut Random) -> Value {
    let key = key(random, &KEYS);
    match random.below(4) {
        0 => json!({"key": key, "operator": "Exists"}),
        1 => json!({"key": key, "operator": "DoesNotExist"}),
        2 => json!({"key": key, "operator": "In", "values": [random.of(&VALUES), random.of(&VALUES)]}),
        _ => json!({"key": key, "operator": "NotIn", "values": [random.of(&VALUES)]}),
    }
}

pub(crate) fn conditions(random: &mut Random, prefix: &str, expression: bool) -> Value {
    let mut conditions = json!({});
    if random.chance(20) {
        let name = random.of(&["n1", "gpu-*", "yee?yai", "{n1,gpu-7}", "[!y]*"]);
        conditions["names"] = json!([format!("{prefix}{name}"), "elsewhere"]);
    }
    if random.chance(60) {
        conditions["selector"] =
            json!({"matchExpressions": (0..=random.below(2)).map(|_| requirement(random)).collect::<Vec<_>>()});
    }
    if random.chance(20) {
        let key = random.of(&TAINT_KEYS);
        let pattern = match random.below(3) {
            0 => key.to_owned(),
            1 => format!("{key}:{}", random.of(&EFFECTS)),
            _ => format!("{key}={}:{}", random.of(&VALUES), random.of(&EFFECTS)),
        };
        conditions["taints"] = json!([pattern]);
    }
    if random.chance(20) {
        let (resource, comparison) = (
            random.of(&["cpu", "memory", "nvidia.com/gpu", "absent.example.com/x"]),
            random.of(&[">=4", "<1", "==0", ">1500m", "<=2Gi"]),
        );
        conditions["capacity"] = json!({resource: comparison});
    }
    if random.chance(15) {
        conditions["osImage"] = json!([random.of(&OS_IMAGE_PATTERNS), random.of(&OS_IMAGE_PATTERNS)]);
    }
    if random.chance(15) {
        conditions[random.of(&["kernel", "kernelVersion"])] = json!([random.of(&KERNEL_PATTERNS)]);
    }
    if expression {
        conditions["expression"] = json!(random.of(&EXPRESSIONS));
    }
    conditions
}

fn rule(random: &mut Random, prefix: &str, at: u64) -> Value {
    let expression = random.chance(10);
    let mut conditions = conditions(random, prefix, expression);
    if random.chance(20) {
        conditions["anyOf"] = (0..=random.below(2)).map(|_| self::conditions(random, prefix, false)).collect();
    }
    let mut rule = json!({
        "name": format!("rule-{at}"), "match": conditions, "labels": given(random, 2), "annotations": given(random, 1), "taints": taints(random, 2),
        "mode": if random.chance(70) { "enforce" } else { "default" }, "priority": random.below(3), "evict": random.chance(40),
        "trustKubelet": true,
    });
    if random.chance(4) {
        rule["labelExpressions"] = json!({"c": "node.metadata.name"});
    }
    let given = ["labels", "annotations"].iter().any(|field| rule[*field] != json!({})) || rule["taints"] != json!([]);
    if !given {
        rule["labels"] = json!({"a": "1"});
    }
    rule
}

pub(crate) fn subjects(random: &mut Random) -> Value {
    match random.below(5) {
        0 => json!({"users": ["adm*"]}),
        1 => json!({"groups": ["team-a", "system:nodes"]}),
        2 => json!({"serviceAccounts": ["kube-system:*"]}),
        3 => json!({"users": ["alice"], "groups": ["nobody-*"]}),
        _ => json!({}),
    }
}

fn reserved(random: &mut Random, prefix: &str, at: u64) -> Value {
    let mut entry = json!({"name": format!("entry-{at}"), "allow": subjects(random), "mode": random.of(&["enforce", "enforce", "warn", "audit"])});
    if random.chance(40) {
        entry["keys"] = json!([random.of(&COMMON), random.of(&TAINT_KEYS)]);
    } else {
        entry["namespaces"] = json!([random.of(&["example.com", "*.example.com", "*.com", "sub.example.com"])]);
    }
    if random.chance(60) {
        entry["of"] = match random.below(4) {
            0 => json!(["labels"]),
            1 => json!(["annotations", "labels"]),
            2 => json!(["taints"]),
            _ => json!(["labels", "taints", "annotations"]),
        };
    }
    if random.chance(30) {
        entry["operations"] = json!([random.of(&["add", "change", "remove"]), random.of(&["add", "change", "remove"])]);
    }
    if random.chance(25) {
        entry["except"] = subjects(random);
    }
    if random.chance(25) {
        entry["match"] = conditions(random, prefix, false);
    }
    entry
}

/// A policy, which may be one that does not load.
pub(crate) fn policy(random: &mut Random, prefix: &str) -> Value {
    // Half of them are about demands, which a denial for something else would hide.
    let demanding = random.chance(50);
    let rules: Vec<Value> =
        (0..random.below(if demanding { 3 } else { 7 })).map(|at| rule(random, prefix, at)).collect();
    let mut governance = demanded::demands(random, prefix, demanding);
    if !demanding {
        let entries: Vec<Value> = (0..=random.below(5)).map(|at| reserved(random, prefix, at)).collect();
        governance["reserved"] = json!(entries);
    }
    if random.chance(30) {
        governance["breakGlass"] = json!({"users": ["alice"]});
    }
    let mut spec = json!({"rules": rules, "governance": governance});
    let protect: Vec<&str> = ["hardware.tier", "pool", "nvidia.com/*", "a"]
        .into_iter()
        .filter(|_| !demanding && random.chance(40))
        .collect();
    if !protect.is_empty() {
        spec["protect"] = json!({"keys": protect});
    }
    if random.chance(30) {
        spec["derived"] = json!([{"label": random.of(&KEYS), "value": random.of(&VALUES), "anyOf": [random.of(&KEYS), "d"], "trustKubelet": true}]);
    }
    if random.chance(10) {
        spec["persist"] = json!({"labels": [random.of(&["pool", "sub.example.com/*"])]});
    }
    spec
}

/// A node as its kubelet would send it.
pub(crate) fn node(random: &mut Random, name: &str) -> Value {
    let mut all = labels(random, &FREE, 4);
    if random.chance(40) {
        all.insert("free".to_owned(), json!(random.of(&VALUES)));
    }
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": {"cpu": random.of(&["2", "4", "1500m"]), "memory": random.of(&["2Gi", "8Gi"])},
            "nodeInfo": {"architecture": random.of(&["arm64", "amd64"]), "bootID": "", "containerRuntimeVersion": "", "kernelVersion": random.of(&KERNELS),
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": random.of(&OS_IMAGES), "systemUUID": ""}},
    });
    // Some nodes have no labels at all.
    if random.chance(85) {
        node["metadata"]["labels"] = all.into();
    }
    if random.chance(30) {
        node["metadata"]["annotations"] = labels(random, &FREE, 2).into();
    }
    let mut taints = taints(random, 2);
    if random.chance(25) {
        taints.push(
            json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule", "value": "true"}),
        );
    }
    if !taints.is_empty() {
        node["spec"] = json!({"taints": taints});
    }
    if random.chance(30) {
        node["status"]["capacity"]["nvidia.com/gpu"] = json!(random.of(&["0", "4"]));
    }
    if random.chance(60) {
        let heartbeat = random.of(&["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z", "2026-01-01T01:00:00Z"]);
        node["status"]["conditions"] = json!([{"type": "Ready", "status": random.of(&["True", "True", "False"]),
            "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    }
    node
}

/// A write to a node that is there: whether through `nodes/status`, and a merge patch.
pub(crate) fn patch(random: &mut Random, stored: &Value, by_kubelet: bool) -> (bool, Value) {
    let status = random.chance(25);
    let keys: &[&str] = if by_kubelet { &FREE } else { &KEYS };
    let mut changed = labels(random, keys, 2);
    // Something that is there goes away.
    if random.chance(50) {
        let there = stored["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        let removable: Vec<&str> =
            there.keys().map(String::as_str).filter(|key| !by_kubelet || FREE.contains(key)).collect();
        if !removable.is_empty() {
            changed.insert(random.of(&removable).to_owned(), Value::Null);
        }
    }
    let mut patch = json!({"metadata": {"labels": changed}});
    if random.chance(30) {
        let mut annotations = labels(random, &FREE, 2);
        if random.chance(30) {
            let value =
                random.of(&["-3", "+4", "-9223372036854775808", "-9223372036854775809", "Two\nlines", "\u{e9}t\u{e9}"]);
            annotations.insert(random.of(&COMMON).to_owned(), json!(value));
        }
        patch["metadata"]["annotations"] = annotations.into();
    }
    if by_kubelet && random.chance(15) {
        patch["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(random.of(&["a", "b"]));
    }
    if status && random.chance(40) {
        patch["status"] = json!({"nodeInfo": {"osImage": random.of(&OS_IMAGES), "kernelVersion": random.of(&KERNELS)}});
    }
    if !by_kubelet && !status && random.chance(50) {
        // The taints of controllers stay, but for the one that the cloud controller takes away.
        let there = stored["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let mut all: Vec<Value> =
            there.into_iter().filter(|taint| taint["key"] == "node.kubernetes.io/not-ready").collect();
        all.extend(taints(random, 2));
        patch["spec"] = json!({"taints": all});
    }
    // What else of the spec may change: a cordon at any time, the provider's ID once.
    if !by_kubelet && !status && random.chance(15) {
        patch["spec"]["unschedulable"] = json!(random.chance(50));
    }
    if !status && stored["spec"]["providerID"].is_null() && random.chance(10) {
        patch["spec"]["providerID"] = json!(random.of(&["aws:///eu-west-1a/i-1", "kind://docker/a/b"]));
    }
    (status, patch)
}
