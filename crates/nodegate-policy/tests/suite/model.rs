//! A second `decide`, slow and obvious, for rules and saved state as `properties` draws them: all rules are evaluated in rounds
//! until nothing changes. It computes only the desired state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Keys with values; a taint's key is `key:Effect`.
pub(crate) type Keys = BTreeMap<String, String>;

/// What a node should have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredState {
    pub(crate) labels: Keys,
    pub(crate) annotations: Keys,
    pub(crate) taints: Keys,
}

/// The input of the model.
pub(crate) struct Question<'q> {
    pub(crate) spec: &'q Value,
    pub(crate) node: &'q Value,
    pub(crate) old: Option<&'q Value>,
    pub(crate) kubelet: bool,
    /// Saved state as a document.
    pub(crate) saved: Option<&'q Value>,
}

/// The labels of publishers, as far as they are drawn, and those that they depend on: the GPU operator derives its labels from those
/// of Node Feature Discovery.
const PUBLISHED: [(&str, &[&str]); 2] = [
    ("nvidia.com/gpu.present", &["nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"]),
    ("feature.node.kubernetes.io/pci-10de.present", &["feature.node.kubernetes.io/pci-10de.present"]),
];

fn keys(map: &Value) -> Keys {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

fn taints(list: &Value) -> Keys {
    let entries = list.as_array().into_iter().flatten();
    let id = |taint: &Value| format!("{}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap());
    entries.map(|taint| (id(taint), taint["value"].as_str().unwrap_or_default().to_owned())).collect()
}

fn is_in(key: &str, list: &Value) -> bool {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == pattern,
    })
}

/// Whether the values of a rule take precedence over the node's own.
fn is_enforced(rule: &Value) -> bool {
    rule["mode"] != "default"
}

/// Sorts rules, the one with the highest precedence first.
fn rank(rule: &Value) -> (Option<usize>, i64, String) {
    let strength = ["enforce", "saved", "default"].iter().position(|mode| rule["mode"] == *mode);
    (strength, -rule["priority"].as_i64().unwrap(), rule["name"].as_str().unwrap().to_owned())
}

/// The node as one rule sees it.
struct Seen {
    labels: Keys,
    /// Keys of taints.
    taints: BTreeSet<String>,
}

impl Question<'_> {
    /// The rules, the one with the highest precedence first. What is restored is a rule of its own between the enforced rules
    /// and the defaults.
    fn rules(&self) -> Vec<Value> {
        let mut rules: Vec<Value> = self.spec["rules"].as_array().unwrap().clone();
        rules.extend(self.restored());
        rules.sort_by_key(rank);
        rules
    }

    /// What a new node gets back: the saved keys that are persisted today.
    fn restored(&self) -> Option<Value> {
        let saved = self.saved.filter(|_| self.old.is_none())?;
        let mut labels = keys(&saved["labels"]);
        labels.retain(|key, _| is_in(key, &self.spec["persist"]["labels"]));
        let taints = saved["taints"].as_array().into_iter().flatten();
        let taints: Vec<&Value> =
            taints.filter(|taint| is_in(taint["key"].as_str().unwrap(), &self.spec["persist"]["taints"])).collect();
        Some(json!({
            "name": "saved", "mode": "saved", "priority": 0, "match": {}, "labels": labels, "annotations": {}, "taints": taints,
        }))
    }

    /// What nodegate owns on this very node object, not on an earlier one of the same name.
    fn owned(&self) -> Option<&Value> {
        let uid = &self.old.unwrap_or(self.node)["metadata"]["uid"];
        let saved = self.saved.filter(|saved| saved["nodeUID"].is_null() || saved["nodeUID"] == *uid)?;
        Some(&saved["owned"])
    }

    /// The object's labels. A key that a kubelet may not change has its stored value, and what nodegate owns is as if it were not
    /// there.
    fn base(&self) -> Keys {
        let sent = keys(&self.node["metadata"]["labels"]);
        let stored = self.old.map(|old| keys(&old["metadata"]["labels"])).unwrap_or_default();
        let of_this = |saved: &&Value| self.old.is_some_and(|old| saved["nodeUID"] == old["metadata"]["uid"]);
        let is_saved = |key: &str| {
            self.saved
                .filter(of_this)
                .is_some_and(|saved| !saved["nodeUID"].is_null() && saved["labels"].get(key).is_some())
        };
        // What discovery says of a machine is never persisted, even if it was saved.
        let is_of_the_machine = |key: &str| PUBLISHED.iter().any(|(published, _)| *published == key);
        let may_not = |key: &str| {
            key.starts_with("nodegate.dev/")
                || is_in(key, &self.spec["protect"]["keys"])
                || (self.old.is_some()
                    && !is_of_the_machine(key)
                    && (is_in(key, &self.spec["persist"]["labels"]) || is_saved(key)))
        };
        let owned = self.owned().map(|owned| keys(&owned["labels"])).unwrap_or_default();
        let counts = |key: &&String| {
            let from = if self.kubelet && may_not(key) { &stored } else { &sent };
            from.get(*key).map(|value| ((*key).clone(), value.clone()))
        };
        let all = sent.keys().chain(stored.keys()).filter_map(|key| counts(&key));
        all.filter(|(key, value)| owned.get(key) != Some(value)).collect()
    }

    /// The node with the values of these rules. A default rule does not see its own values, and none that weaker rules give to its
    /// keys.
    fn seen(&self, giving: &[&Value], by: &Value) -> Seen {
        let mut labels = self.base();
        let mut there = taints(&self.node["spec"]["taints"]);
        let owned = self.owned().map(|owned| taints(&owned["taints"])).unwrap_or_default();
        there.retain(|id, _| !owned.contains_key(id));
        if !is_enforced(by) {
            // Nor where the object has these values: they may be there because of an earlier review.
            let rules = self.rules();
            let is_given = |kind: &str, key: &str, value: &str| {
                let of = |rule: &Value| if kind == "labels" { keys(&rule[kind]) } else { taints(&rule[kind]) };
                of(by).contains_key(key)
                    && rules.iter().any(|rule| {
                        rule["mode"] == "default"
                            && rank(rule) >= rank(by)
                            && of(rule).get(key).is_some_and(|given| given == value)
                    })
            };
            labels.retain(|key, value| !is_given("labels", key, value));
            there.retain(|id, value| !is_given("taints", id, value));
        }
        let others = giving.iter().filter(|rule| is_enforced(by) || rule["name"] != by["name"]);
        // The weakest rule first, so that stronger ones overwrite its values.
        let is_hidden = |rule: &Value, kind: &str, key: &str| {
            let own = if kind == "labels" { keys(&by[kind]) } else { taints(&by[kind]) };
            !is_enforced(by) && rank(rule) > rank(by) && own.contains_key(key)
        };
        for rule in others.rev() {
            for (key, value) in keys(&rule["labels"]) {
                if is_hidden(rule, "labels", &key) {
                    continue;
                }
                if is_enforced(rule) {
                    labels.insert(key, value);
                } else {
                    let stays = labels.contains_key(&key) && self.base().contains_key(&key);
                    if !stays {
                        labels.insert(key, value);
                    }
                }
            }
            there.extend(taints(&rule["taints"]).into_iter().filter(|(id, _)| !is_hidden(rule, "taints", id)));
        }
        let taints = there.keys().map(|id| id.rsplit_once(':').unwrap().0.to_owned()).collect();
        Seen { labels, taints }
    }

    /// Whether the publisher of a label, or one that it depends on, had labels and has none, so that its labels are unknown. Labels
    /// that nodegate owns, or that a rule gives, are not the publisher's.
    fn has_gone(&self, key: &str) -> bool {
        let owned = self.owned().map(|owned| keys(&owned["labels"])).unwrap_or_default();
        let stored = self.old.map(|old| keys(&old["metadata"]["labels"])).unwrap_or_default();
        let rules = self.rules();
        let gone = |key: &&str| {
            rules.iter().all(|rule| !keys(&rule["labels"]).contains_key(*key))
                && stored.get(*key).is_some_and(|value| owned.get(*key) != Some(value))
                && !self.base().contains_key(*key)
        };
        let published = PUBLISHED.into_iter().find(|(published, _)| *published == key);
        published.is_some_and(|(_, keys)| keys.iter().any(gone))
    }

    fn requirement(&self, seen: &Seen, requirement: &Value) -> bool {
        let key = requirement["key"].as_str().unwrap();
        let listed = |value: &String| requirement["values"].as_array().unwrap().iter().any(|wanted| wanted == value);
        match (requirement["operator"].as_str().unwrap(), seen.labels.get(key)) {
            ("Exists", there) => there.is_some(),
            ("In", there) => there.is_some_and(listed),
            ("NotIn", Some(value)) => !listed(value),
            ("DoesNotExist", Some(_)) => false,
            (_, None) => !self.has_gone(key),
            (operator, _) => panic!("{operator} is not drawn"),
        }
    }

    /// Whether all conditions of a group hold. Unknown ones do not hold.
    fn group(&self, seen: &Seen, group: &Value) -> bool {
        let name = self.node["metadata"]["name"].as_str().unwrap();
        let info = |field: &str| self.node["status"]["nodeInfo"][field].as_str().unwrap_or_default();
        group.as_object().unwrap().iter().all(|(field, wanted)| match field.as_str() {
            "names" => is_in(name, wanted),
            "selector" => wanted["matchExpressions"].as_array().unwrap().iter().all(|one| self.requirement(seen, one)),
            "taints" => seen.taints.contains(wanted[0].as_str().unwrap()),
            "pools" => self.is_in_pool(name, wanted[0].as_str().unwrap()),
            "capacity" => wanted["cpu"] == ">=4",
            "gpu" => ["nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"]
                .iter()
                .any(|key| seen.labels.get(*key).is_some_and(|value| value == "true")),
            "osImage" => text_matches(wanted[0].as_str().unwrap(), info("osImage")),
            "kernel" | "kernelVersion" => text_matches(wanted[0].as_str().unwrap(), info("kernelVersion")),
            "expression" => is_true(wanted.as_str().unwrap(), seen, info("kernelVersion")),
            "anyOf" => wanted.as_array().unwrap().iter().any(|group| self.group(seen, group)),
            other => panic!("the model does not know the condition {other}"),
        })
    }

    /// Whether the node is proven to belong to a pool that is drawn. What was authenticated about its kubelet, whose user is that of
    /// `n1`, only its CREATE says.
    fn is_in_pool(&self, name: &str, pool: &str) -> bool {
        let by_name = name.starts_with("gpu-");
        let by_group = self.kubelet && self.old.is_none() && name == "n1";
        match pool {
            "by-name" => by_name,
            "by-group" => by_group,
            "by-*" => by_name || by_group,
            other => panic!("the model does not know the pool {other}"),
        }
    }

    /// The desired state; `None` if the rules do not converge.
    pub(crate) fn answer(&self) -> Option<DesiredState> {
        let all = self.rules();
        let giving = self.rounds(&all.iter().collect::<Vec<_>>())?;
        // A rule that matches only what it gives itself, since another rule that led to it matches no longer, gives nothing.
        let again = self.rounds(&giving)?;
        (again == giving).then(|| self.wanted(&giving, self.old.is_none()))
    }

    /// Which of the rules match in the end; `None` if they do not settle.
    fn rounds<'r>(&self, rules: &[&'r Value]) -> Option<Vec<&'r Value>> {
        let initial = self.old.is_none();
        let mut giving: Vec<&Value> = Vec::new();
        for _ in 0..=rules.len() * 2 {
            let matches =
                |rule: &&Value| (is_enforced(rule) || initial) && self.group(&self.seen(&giving, rule), &rule["match"]);
            let next: Vec<&Value> = rules.iter().copied().filter(matches).collect();
            if next == giving {
                return Some(giving);
            }
            giving = next;
        }
        None
    }

    fn wanted(&self, giving: &[&Value], initial: bool) -> DesiredState {
        let mut wanted = DesiredState::default();
        let annotations = keys(&self.node["metadata"]["annotations"]);
        let there = taints(&self.node["spec"]["taints"]);
        let before = self.old.map(|old| taints(&old["spec"]["taints"])).unwrap_or_default();
        let mut decided: BTreeSet<String> = BTreeSet::new();
        for rule in giving {
            let mut add = |to: &mut Keys, kind: &str, given: Keys, there: &Keys| {
                for (key, value) in given {
                    let other_is_there = there.get(&key).is_some_and(|own| *own != value);
                    if decided.insert(format!("{kind} {key}")) && (is_enforced(rule) || !other_is_there) {
                        to.insert(key, value);
                    }
                }
            };
            add(&mut wanted.labels, "label", keys(&rule["labels"]), &self.base());
            add(&mut wanted.annotations, "annotation", keys(&rule["annotations"]), &annotations);
            let mut given = Keys::new();
            add(&mut given, "taint", taints(&rule["taints"]), &there);
            let evicts = |id: &String, value: &String| {
                id.ends_with(":NoExecute") && there.get(id) != Some(value) && !before.contains_key(id)
            };
            given.retain(|id, value| initial || rule["evict"] == true || !evicts(id, value));
            wanted.taints.extend(given);
        }
        wanted
    }
}

/// The patterns that are drawn, on the texts that are drawn.
fn text_matches(pattern: &str, text: &str) -> bool {
    match pattern {
        "*" => !text.is_empty(),
        "Ubuntu*" => text.starts_with("Ubuntu"),
        "*-aws" => text.ends_with("-aws"),
        "Ubuntu >=24.04" => text.starts_with("Ubuntu 24.04") || text.starts_with("Ubuntu 26"),
        ">=5.15 <6.2" => text.starts_with("5.15.") || text.starts_with("6.1."),
        "==6" => text.starts_with("6."),
        other => panic!("the model does not know the pattern {other}"),
    }
}

/// The results of the expressions that are drawn. One that fails is not true.
fn is_true(expression: &str, seen: &Seen, kernel: &str) -> bool {
    match expression {
        r#"node.metadata.labels["a"] == "1""# => seen.labels.get("a").is_some_and(|value| value == "1"),
        r#""pool" in node.metadata.labels"# => seen.labels.contains_key("pool"),
        r#"node.metadata.labels.exists(key, key.startsWith("node-r"))"# => {
            seen.labels.keys().any(|key| key.starts_with("node-r"))
        }
        // `node` has labels and taints even if the object has none.
        "has(node.spec.taints)" => true,
        // No drawn label or resource has a count.
        "gpu.count > 0" => false,
        r#"node.status.nodeInfo.kernelVersion.startsWith("6")"# => kernel.starts_with('6'),
        other => panic!("the model does not know the expression {other}"),
    }
}
