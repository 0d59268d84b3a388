//! What nodegate answers to a write, and how the API server's answer differs.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{merge, patch as apply};
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::native::LeftOut;
use nodegate_policy::{
    ADMISSION, DecideContext, Exemptions, NodeFacts, Operation, PolicySet, Requester, Text, Violation, Write, decide,
    judge, patch,
};
use serde_json::{Value, json};

use super::Step;
use super::writer::{Outcome, Who};

/// Keys of rules that are not exported: of these the answers may differ.
pub(super) struct Hidden {
    keys: BTreeSet<String>,
    /// Entries that are not exported, and those that speak of such keys.
    entries: BTreeSet<String>,
}

impl Hidden {
    pub(super) fn of(spec: &Value, left_out: &[LeftOut]) -> Self {
        let (mut keys, mut entries) = (BTreeSet::new(), BTreeSet::new());
        for one in left_out {
            let (name, part) =
                one.what.split_once(": ").map_or((one.what.as_str(), None), |(name, part)| (name, Some(part)));
            match part {
                // `label a`, `taint a:NoSchedule`
                Some(part) if part.contains(' ') => {
                    let key = part.split_once(' ').map_or(part, |(_, key)| key);
                    keys.insert(key.to_owned());
                }
                _ => match keys_of(spec, name) {
                    Some(given) => keys.extend(given),
                    None => {
                        entries.insert(name.to_owned());
                    }
                },
            }
        }
        let mut hidden = Self { keys, entries };
        for entry in spec["governance"]["dependencies"].as_array().into_iter().flatten() {
            let labels = ["when", "require"].iter().flat_map(|part| entry[*part].as_object().into_iter().flatten());
            let forbidden = entry["forbid"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let taints = entry["requireTaints"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let taint_is_hidden =
                |taint: &str| hidden.keys.iter().any(|key| taint.starts_with(key.split(':').next().unwrap()));
            if labels.map(|(key, _)| key.as_str()).chain(forbidden).any(|key| hidden.has(key))
                || taints.into_iter().any(taint_is_hidden)
            {
                hidden.entries.insert(entry["name"].as_str().unwrap().to_owned());
            }
        }
        if !hidden.keys.is_empty() {
            // They may read such keys.
            let expressions = spec["governance"]["expressions"].as_array().into_iter().flatten();
            hidden.entries.extend(expressions.map(|entry| entry["name"].as_str().unwrap().to_owned()));
        }
        hidden
    }

    /// Whether a text is about something that is not exported.
    fn is_subject_of(&self, text: &str) -> bool {
        let names = |key: &String| match key.strip_suffix("/*") {
            Some(prefix) => text.contains(&format!("\"{prefix}/")),
            None => text.contains(&format!("{key:?}")),
        };
        self.keys.iter().any(names) || self.entries.iter().any(|entry| text.contains(&format!(", rule {entry}")))
    }

    /// Whether a violation is by an entry, or about a key, that is not exported.
    fn covers(&self, violation: &Violation) -> bool {
        self.entries.contains(&*violation.by.rule) || self.has(&violation.key)
    }

    fn has(&self, key: &str) -> bool {
        let prefix = key.split_once('/').map(|(prefix, _)| format!("{prefix}/*"));
        self.keys.contains(key) || prefix.is_some_and(|prefix| self.keys.contains(&prefix))
    }
}

/// Everything a rule gives; prefixes as `prefix/*`. `None` if there is no such rule.
fn keys_of(spec: &Value, name: &str) -> Option<Vec<String>> {
    if name == "persist" {
        let keys = spec["persist"]["labels"].as_array().into_iter().flatten();
        return Some(keys.map(|key| key.as_str().unwrap().to_owned()).collect());
    }
    if let Some(label) = name.strip_prefix("derived:") {
        return Some(vec![label.to_owned()]);
    }
    let rules = spec["rules"].as_array().into_iter().flatten();
    let rule = rules.clone().find(|rule| rule["name"] == name)?;
    let mut keys: Vec<String> = ["labels", "annotations", "labelExpressions"]
        .iter()
        .flat_map(|field| rule[*field].as_object().into_iter().flatten())
        .map(|(key, _)| key.clone())
        .collect();
    let taints = rule["taints"].as_array().into_iter().flatten();
    keys.extend(
        taints.map(|taint| format!("{}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap())),
    );
    Some(keys)
}

/// Labels, annotations and taints of a node by key.
type Essence = BTreeMap<String, String>;

fn essence_of(node: &Value) -> Essence {
    let mut found = Essence::new();
    for field in ["labels", "annotations"] {
        for (key, value) in node["metadata"][field].as_object().into_iter().flatten() {
            // The API server leaves no mark for the controller.
            if key == ADMISSION {
                continue;
            }
            found.insert(format!("{field} {key}"), value.as_str().unwrap().to_owned());
        }
    }
    for taint in node["spec"]["taints"].as_array().into_iter().flatten() {
        let id = format!("taints {}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap());
        found.insert(id, taint["value"].as_str().unwrap_or_default().to_owned());
    }
    found
}

pub(super) fn essence(node: &Value) -> Value {
    json!({"essence": essence_of(node), "status": {"capacity": node["status"]["capacity"], "conditions": node["status"]["conditions"]}})
}

/// What nodegate answers.
pub(super) struct Expected {
    /// The node as it would be stored.
    node: Value,
    /// Whether rules changed it.
    pub(super) changed: bool,
    pub(super) denied_by: Vec<Violation>,
    /// Violations the requester hears of.
    pub(super) warned: Vec<Violation>,
}

impl Expected {
    pub(super) fn of(set: &PolicySet, exemptions: &Exemptions, step: &Step<'_>, stored: Option<&Value>) -> Self {
        let mut node = match stored {
            Some(old) => {
                let mut node = old.clone();
                merge(&mut node, step.patch);
                node
            }
            None => with_not_ready(step.patch),
        };
        let own = exemptions.self_user.as_deref() == Some(step.who.user.as_str());
        let matters = stored.is_none_or(|old| essence_of(old) != essence_of(&node));
        let old = stored.map(Value::to_string);
        let mut changed = false;
        if !step.status && !own && matters {
            let object = node.to_string();
            let write = write(step, &object, old.as_deref());
            if let Some(change) = decide(set, &write, &DecideContext::default()).change {
                apply(&mut node, &patch(&write.node, &change).unwrap().parse().unwrap()).unwrap();
                changed = true;
            }
        }
        let object = node.to_string();
        let write = write(step, &object, old.as_deref());
        let verdict = judge(set, &write, &DecideContext::default(), exemptions);
        let (denied_by, others): (Vec<_>, Vec<_>) = verdict.violations.into_iter().partition(Violation::denies);
        let warned = others.into_iter().filter(|one| one.mode != EntryMode::Audit).collect();
        Self { node, changed, denied_by, warned }
    }

    /// The kinds of violations that the API server is to find as well.
    pub(super) fn kinds(&self, hidden: &Hidden) -> Vec<String> {
        let found = self.denied_by.iter().chain(&self.warned).filter(|one| !hidden.covers(one));
        found.map(|one| format!("{:?}", one.kind)).collect()
    }

    /// How the API server's answer differs.
    pub(super) fn difference(&self, outcome: &Outcome, hidden: &Hidden) -> Option<String> {
        let told = outcome.body["message"].as_str().unwrap_or_default();
        let denied: Vec<&Violation> = self.denied_by.iter().filter(|one| !hidden.covers(one)).collect();
        let hidden_denial = denied.len() < self.denied_by.len();
        if outcome.code == 403 {
            let named = |one: &&Violation| is_named(one, told);
            // What a rule gives that is not exported nodegate sets back; the API server can only refuse.
            let agrees = hidden.is_subject_of(told) || self.denied_by.iter().any(|one| named(&one));
            return (!agrees).then(|| format!("nodegate: denied by {:?}; API server: {told}", self.denied_by));
        }
        if outcome.code >= 300 {
            return Some(format!("the API server failed: {told}"));
        }
        if !denied.is_empty() {
            return Some(format!("nodegate: denied by {denied:?}; API server: allowed"));
        }
        if hidden_denial {
            return None;
        }
        self.warning_difference(outcome, hidden).or_else(|| {
            let (wanted, found) = (essence_of(&self.node), essence_of(&outcome.body));
            let keys: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
            let differing = keys.into_iter().filter(|key| wanted.get(*key) != found.get(*key));
            let counts = |key: &&String| !hidden.has(key.split_once(' ').map_or(key.as_str(), |(_, key)| key));
            let told: Vec<String> = differing
                .filter(counts)
                .map(|key| format!("{key}: nodegate {:?}, API server {:?}", wanted.get(key), found.get(key)))
                .collect();
            (!told.is_empty()).then(|| told.join("; "))
        })
    }

    fn warning_difference(&self, outcome: &Outcome, hidden: &Hidden) -> Option<String> {
        let ours: Vec<String> = outcome
            .warnings
            .iter()
            .filter(|text| text.contains("nodegate"))
            .map(|text| text.replace('\\', ""))
            .collect();
        for one in self.warned.iter().filter(|one| !hidden.covers(one)) {
            if !ours.iter().any(|text| is_named(one, text)) {
                return Some(format!("nodegate warns of {one:?}; API server: {:?}", outcome.warnings));
            }
        }
        let by_rule = |text: &&String| self.warned.iter().any(|one| text.contains(&format!(", rule {}", one.by.rule)));
        let protected = |text: &&String| text.contains("protects it");
        let too_many = ours.iter().find(|text| !hidden.is_subject_of(text) && !by_rule(text) && !protected(text));
        too_many.map(|text| format!("nodegate warns of {:?}; API server: {text}", self.warned))
    }
}

/// Whether a message is about a violation; that of an expression has no key.
fn is_named(violation: &Violation, text: &str) -> bool {
    let key = violation.key.is_empty() || text.contains(&format!("{:?}", violation.key));
    key && text.contains(&*violation.by.rule)
}

/// The API server adds this to every node before admission policies see it.
fn with_not_ready(node: &Value) -> Value {
    let mut node = node.clone();
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    match node["spec"]["taints"].as_array_mut() {
        Some(taints) => taints.push(taint),
        None => node["spec"]["taints"] = json!([taint]),
    }
    node
}

fn write<'a>(step: &Step<'a>, object: &'a str, old: Option<&'a str>) -> Write<'a> {
    let Who { user, groups } = step.who;
    Write {
        operation: if step.create { Operation::Create } else { Operation::Update },
        status: step.status,
        dry_run: false,
        evidence: None,
        requester: Requester {
            username: Text(user.as_str().into()),
            groups: groups.iter().map(|group| Text((*group).into())).collect(),
            ..Requester::default()
        },
        node: NodeFacts::parse(object).unwrap(),
        old: old.map(|old| NodeFacts::parse(old).unwrap()),
    }
}
