//! Kyverno's `ClusterPolicy`: rules that change Nodes.
//!
//! Sources: `api/kyverno/v1` (fields), `pkg/engine/utils/match.go` (what `match` means), `pkg/engine/mutate` (patches) of Kyverno.

mod patch;
mod touched;

use regex::Regex;

use super::read::{Object, Reasons, each_text, entries, fields, given, items, list, listed, texts};
use super::rule::{Group, Rule, Test};
use super::{Candidate, Keys, Place};
use crate::api::source::{Field, Tree};

/// What files for `--from-kyverno` have.
pub(super) const REMEDY: &str = "pass Kyverno's ClusterPolicies (kyverno.io/v1) and their PolicyExceptions";
/// Fields of `spec` that do not decide what a rule does to a node.
const SPEC: [&str; 13] = [
    "rules",
    "applyRules",
    "admission",
    "background",
    "emitWarning",
    "failurePolicy",
    "generateExisting",
    "generateExistingOnPolicyUpdate",
    "mutateExistingOnPolicyUpdate",
    "useServerSideApply",
    "validationFailureAction",
    "validationFailureActionOverrides",
    "webhookTimeoutSeconds",
];

pub(super) fn is_wanted(version: &str, kind: &str) -> bool {
    match (version.split_once('/'), kind) {
        (Some(("kyverno.io", version)), "ClusterPolicy" | "Policy") => matches!(version, "v1" | "v2beta1"),
        (Some(("kyverno.io" | "policies.kyverno.io", _)), kind) => !kind.is_empty(),
        _ => false,
    }
}

/// The rules that change Nodes, or that may.
pub(super) fn candidates(objects: &[Object]) -> Vec<Candidate> {
    let exceptions: Vec<Exception> = objects.iter().flat_map(Exception::of).collect();
    let mut candidates = Vec::new();
    for object in objects {
        match (object.version.as_str(), object.kind.as_str()) {
            ("kyverno.io/v1" | "kyverno.io/v2beta1", "ClusterPolicy" | "Policy") => {
                candidates.extend(of_policy(object, &exceptions));
            }
            (_, "MutatingPolicy" | "NamespacedMutatingPolicy") if is_of_nodes(&object.tree) => {
                let place = Place::of(object, 1, "", object.tree.place.line);
                let mut reasons = Reasons::default();
                let text = "CEL policies are not translated: write the rule by hand; `nodegate export admission-policies` writes policies of this kind for the API server itself";
                reasons.add(place.line, text);
                let unknown = Keys::unknown();
                candidates.push(Candidate {
                    place,
                    reads: unknown.clone(),
                    writes: unknown,
                    reasons,
                    rule: Rule::default(),
                });
            }
            _ => {}
        }
    }
    candidates
}

fn of_policy(object: &Object, exceptions: &[Exception]) -> Vec<Candidate> {
    let Some(spec) = given(&object.tree, "spec").map(|spec| &spec.tree) else { return Vec::new() };
    let mut of_spec = Reasons::default();
    of_spec.of_unknown(spec, &SPEC, "`spec`");
    if let Some(apply) = given(spec, "applyRules").filter(|apply| apply.tree.as_text() != Some("All")) {
        of_spec.add(apply.place.line, "with `applyRules: One` the rules before this one decide whether it applies");
    }
    if let Some(admission) = given(spec, "admission").filter(|of| of.tree.to_json() != serde_json::Value::Bool(true)) {
        of_spec
            .add(admission.place.line, "with `admission: false` the rules are not for writes, so they change no node");
    }
    if object.kind == "Policy" {
        of_spec.add(
            object.tree.place.line,
            "a Policy is about the objects of a namespace, so Kyverno applies it to no Node",
        );
    }
    let rules =
        list(spec, "rules").enumerate().filter(|(_, rule)| given(rule, "mutate").is_some() && is_about_nodes(rule));
    let candidate = |(index, tree): (usize, &Tree)| {
        let name = tree.text("name").unwrap_or_default();
        let place = Place::of(object, index + 1, name, tree.head().line);
        let mut reasons = of_spec.clone();
        if exceptions.iter().any(|exception| exception.is_about(&object.name, name)) {
            reasons.add(place.line, "a PolicyException in the files is about this rule");
        }
        let rule = rule(tree, &mut reasons);
        // A Policy never changes a node.
        let (reads, writes) = match object.kind.as_str() {
            "Policy" => (Keys::default(), Keys::default()),
            _ => (touched::reads(tree), touched::writes(tree)),
        };
        Candidate { place, reads, writes, reasons, rule }
    };
    rules.map(candidate).collect()
}

fn rule(tree: &Tree, reasons: &mut Reasons) -> Rule {
    reasons.of_unknown(tree, &["name", "match", "mutate", "skipBackgroundRequests"], "the rule");
    let mut has_variables = None;
    each_text(tree, &mut |line, text| {
        if text.contains("{{") || text.contains("$(") {
            has_variables.get_or_insert(line);
        }
    });
    if let Some(line) = has_variables {
        reasons.add(line, "variables ({{ … }}, $(…)) have no exact translation");
    }
    let mut ways = ways(tree, reasons);
    let sets = given(tree, "mutate").map(|mutate| patch::sets(mutate, reasons)).unwrap_or_default();
    let (all, any) = match ways.len() {
        1 => (ways.remove(0), Vec::new()),
        _ if ways.iter().any(Group::is_empty) => (Group::default(), Vec::new()),
        _ => (Group::default(), ways),
    };
    Rule { name: String::new(), all, any, sets }
}

/// Whether a rule is about Nodes, or may be.
fn is_about_nodes(rule: &Tree) -> bool {
    let mut kinds = Vec::new();
    if let Some(of) = given(rule, "match") {
        each_kind(&of.tree, &mut kinds);
    }
    let targets = given(rule, "mutate").into_iter().flat_map(|mutate| list(&mutate.tree, "targets"));
    kinds.extend(targets.filter_map(|target| target.text("kind")));
    kinds.into_iter().any(may_be_node)
}

/// The texts in the fields `kinds`.
fn each_kind<'t>(tree: &'t Tree, kinds: &mut Vec<&'t str>) {
    for field in fields(tree) {
        match field.key.as_str() {
            "kinds" => kinds.extend(items(&field.tree).filter_map(Tree::as_text)),
            _ => each_kind(&field.tree, kinds),
        }
    }
    items(tree).for_each(|item| each_kind(item, kinds));
}

/// Whether what `kinds` has, such as `v1/Node`, `Node/status` or `*`, stands for Nodes or may do so.
fn may_be_node(kind: &str) -> bool {
    let parts = || kind.split('/');
    let named = parts().find(|part| part.starts_with(|c: char| c.is_ascii_uppercase()) && !has_wildcard(part));
    match named {
        Some(named) => named.split('.').next() == Some("Node"),
        None => parts().any(has_wildcard) || kind.contains("{{"),
    }
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether a policy in CEL is about Nodes, or may be.
fn is_of_nodes(tree: &Tree) -> bool {
    let mut found = false;
    each_text(tree, &mut |_, text| found |= text == "*" || text == "*/*" || text.split('/').next() == Some("nodes"));
    found
}

/// The ways to match a rule.
fn ways(rule: &Tree, reasons: &mut Reasons) -> Vec<Group> {
    let Some(of) = given(rule, "match") else {
        reasons.add(rule.place.line, "the rule has no `match`");
        return Vec::new();
    };
    reasons.of_unknown(&of.tree, &["any", "all", "resources"], "`match`");
    let part = |key| given(&of.tree, key);
    let blocks: Vec<&Tree> = match (part("any"), part("all"), part("resources")) {
        (Some(any), None, None) => items(&any.tree).collect(),
        (None, Some(all), None) => items(&all.tree).collect(),
        (None, None, Some(_)) => vec![&of.tree],
        _ => Vec::new(),
    };
    if blocks.is_empty() {
        reasons.add(
            of.place.line,
            "`match` does not have exactly one of `any`, `all` and `resources`, with at least one item",
        );
    }
    if part("all").is_some() && blocks.len() > 1 {
        reasons.add(of.place.line, "`match.all` with several items is not translated: write them as one item");
    }
    blocks.into_iter().map(|block| group(block, reasons)).collect()
}

/// What an item of `match` says.
fn group(block: &Tree, reasons: &mut Reasons) -> Group {
    reasons.of_unknown(block, &["resources"], "an item of `match`");
    let Some(resources) = given(block, "resources") else {
        reasons.add(block.place.line, "an item of `match` has no `resources`");
        return Group::default();
    };
    let (line, tree) = (resources.place.line, &resources.tree);
    reasons.of_unknown(tree, &["kinds", "name", "names", "selector", "operations"], "`resources`");
    match given(tree, "kinds") {
        None => reasons.add(line, "`resources` has no `kinds`"),
        Some(kinds) => {
            for kind in
                texts(kinds, "`resources`", reasons).iter().filter(|kind| !matches!(kind.as_str(), "Node" | "v1/Node"))
            {
                reasons.add(
                    kinds.place.line,
                    format!("the rule is also about {kind}: make a rule for `kinds: [Node]` alone"),
                );
            }
        }
    }
    if let Some(field) = given(tree, "operations") {
        let mut operations = texts(field, "`resources`", reasons);
        operations.sort_unstable();
        if operations != ["CREATE", "UPDATE"] {
            let text = "the rule is not for all writes that create or update a node, but nodegate also gives existing nodes what a rule sets; `mode: default` by hand is the closest";
            reasons.add(field.place.line, text);
        }
    }
    let names = names(tree, reasons);
    let labels = given(tree, "selector").map(|field| selector(field, reasons)).unwrap_or_default();
    Group { names, labels }
}

/// The names, none if every name fits.
fn names(resources: &Tree, reasons: &mut Reasons) -> Vec<String> {
    let (names, line) = match (given(resources, "name"), given(resources, "names")) {
        (None, None) => return Vec::new(),
        (Some(name), None) => (name.tree.as_text().map(str::to_owned).into_iter().collect(), name.place.line),
        (None, Some(names)) => (texts(names, "`resources`", reasons), names.place.line),
        (Some(name), Some(_)) => {
            reasons.add(name.place.line, "a node has to fit `name` and `names` both: write one of them");
            return Vec::new();
        }
    };
    let can_be_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.*?".contains(c);
    if names.is_empty() || names.iter().any(|name| name.is_empty() || !name.chars().all(can_be_a_name)) {
        reasons.add(line, "these are not names of nodes, with `*` and `?` only");
    }
    if names.iter().any(|name| name.chars().all(|c| c == '*')) { Vec::new() } else { names }
}

fn selector(field: &Field, reasons: &mut Reasons) -> Vec<(String, Test)> {
    let (tree, mut labels) = (&field.tree, Vec::new());
    reasons.of_unknown(tree, &["matchLabels", "matchExpressions"], "`selector`");
    for label in entries(tree, "matchLabels", reasons) {
        match label.tree.as_text() {
            Some(value) => labels.push((label.key.clone(), Test::In(vec![value.to_owned()]))),
            None => reasons.add(label.place.line, format!("the value of {} in `matchLabels` is not a text", label.key)),
        }
    }
    for item in listed(tree, "matchExpressions", reasons) {
        reasons.of_unknown(item, &["key", "operator", "values"], "`matchExpressions`");
        let values = given(item, "values");
        let no_values = values.is_none_or(|values| items(&values.tree).next().is_none());
        let mut values = || values.map(|values| texts(values, "`matchExpressions`", reasons)).unwrap_or_default();
        let test = match (item.text("operator"), no_values) {
            (Some("In"), false) => Test::In(values()),
            (Some("NotIn"), false) => Test::NotIn(values()),
            (Some("Exists"), true) => Test::Exists,
            (Some("DoesNotExist"), true) => Test::Absent,
            (operator, _) => {
                let operator = operator.unwrap_or("no operator");
                reasons.add(
                    item.place.line,
                    format!("{operator} with these values is an error in Kyverno, so the rule never applies"),
                );
                continue;
            }
        };
        labels.push((item.text("key").unwrap_or_default().to_owned(), test));
    }
    let text_of =
        |test: &Test| matches!(test, Test::In(all) | Test::NotIn(all) if all.iter().any(|one| has_wildcard(one)));
    if labels.iter().any(|(key, test)| has_wildcard(key) || text_of(test)) {
        reasons.add(field.place.line, "wildcards in a selector have no exact translation");
    }
    labels
}

/// A PolicyException, as far as it names rules.
struct Exception {
    policy: String,
    /// Without names, it is about every rule.
    rules: Vec<String>,
}

impl Exception {
    fn of(object: &Object) -> Vec<Self> {
        if object.kind != "PolicyException" || !object.version.starts_with("kyverno.io/") {
            return Vec::new();
        }
        let entries = given(&object.tree, "spec").map(|spec| list(&spec.tree, "exceptions").collect::<Vec<_>>());
        let entries = entries.unwrap_or_default();
        if entries.is_empty() {
            return vec![Self { policy: "*".to_owned(), rules: Vec::new() }];
        }
        let of = |entry: &Tree| Self {
            policy: entry.text("policyName").unwrap_or("*").to_owned(),
            rules: list(entry, "ruleNames").map(|rule| rule.as_text().unwrap_or("*").to_owned()).collect(),
        };
        entries.into_iter().map(of).collect()
    }

    fn is_about(&self, policy: &str, rule: &str) -> bool {
        fits(&self.policy, policy) && (self.rules.is_empty() || self.rules.iter().any(|one| fits(one, rule)))
    }
}

/// Whether a text fits a pattern of Kyverno (`ext/wildcard`), in which only `*` and `?` are special. Also true for a pattern that
/// is too long to tell.
fn fits(pattern: &str, text: &str) -> bool {
    let pattern = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
    Regex::new(&format!("(?s)^{pattern}$")).map_or(true, |pattern| pattern.is_match(text))
}
