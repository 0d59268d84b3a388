//! Node Feature Discovery's `NodeFeatureRule`.
//!
//! NFD's master applies rules to every node. Without conditions, a rule sets its labels on all of them. Conditions see the features
//! of nodes on which nfd-worker runs, and are false on others. Some of these features are labels as well, with the same values
//! (`source/kernel`, `source/system` of NFD), and every such node has the label [`WORKER`]. Conditions on other features have no
//! exact form.
//!
//! Sources: `pkg/apis/nfd/nodefeaturerule` (what rules mean), `pkg/nfd-master/nfd-master.go` (which keys are set) of NFD.

use std::collections::BTreeMap;

use super::read::{Object, Reasons, entries, fields, given, list, listed, texts};
use super::rule::{Group, Rule, Sets, Test};
use super::{Candidate, Keys, Place};
use crate::api::names::is_dns_subdomain;
use crate::api::source::{Field, Node, Tree};
use crate::keys;

/// What files for `--from-nfd` have.
pub(super) const REMEDY: &str = "pass NodeFeatureRules of Node Feature Discovery (nfd.k8s-sigs.io/v1alpha1)";
/// The prefix of keys that are written without one.
const PREFIX: &str = "feature.node.kubernetes.io/";
/// A label of every node on which nfd-worker runs.
const WORKER: &str = "feature.node.kubernetes.io/kernel-version.full";
/// Features with the elements that are labels with the same value, the beginning of the label's key, and whether the values are
/// whole numbers.
const LABELS: [(&str, &str, &str, bool); 8] = [
    ("kernel.version", "full", "kernel-version.", false),
    ("kernel.version", "major", "kernel-version.", true),
    ("kernel.version", "minor", "kernel-version.", true),
    ("kernel.version", "revision", "kernel-version.", true),
    ("system.osrelease", "ID", "system-os_release.", false),
    ("system.osrelease", "VERSION_ID", "system-os_release.", false),
    ("system.osrelease", "VERSION_ID.major", "system-os_release.", true),
    ("system.osrelease", "VERSION_ID.minor", "system-os_release.", true),
];
/// Labels of features that may be empty where they are numbers elsewhere, for example `revision` of the kernel 6.1-rc3. To compare
/// them is an error in NFD there.
const MAY_BE_EMPTY: [&str; 2] =
    ["feature.node.kubernetes.io/kernel-version.minor", "feature.node.kubernetes.io/kernel-version.revision"];
/// Maximum length of the value of an annotation (`FeatureAnnotationValueSizeLimit`).
const ANNOTATION_MAX: usize = 1024;
/// What to write by hand for features that have no exact form.
const HINTS: [(&str, &str); 5] = [
    (
        "pci.",
        "match the label that your NFD publishes for the device, such as feature.node.kubernetes.io/pci-10de.present; its key depends on `deviceLabelFields`",
    ),
    ("usb.", "match the label that your NFD publishes for the device; its key depends on `deviceLabelFields`"),
    (
        "cpu.",
        "match the label that your NFD publishes, such as feature.node.kubernetes.io/cpu-cpuid.AVX512F; `attributeBlacklist` may leave it out",
    ),
    ("kernel.", "match the label that your NFD publishes, or `kernel`"),
    ("rule.", "the rules that it reads have to stay as well"),
];

pub(super) fn is_wanted(version: &str, kind: &str) -> bool {
    (version, kind) == ("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule")
}

/// All rules.
pub(super) fn candidates(objects: &[Object]) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for object in objects {
        let Some(spec) = given(&object.tree, "spec").map(|spec| &spec.tree) else { continue };
        let mut of_spec = Reasons::default();
        of_spec.of_unknown(spec, &["rules"], "`spec`");
        for (index, tree) in list(spec, "rules").enumerate() {
            let place = Place::of(object, index + 1, tree.text("name").unwrap_or_default(), tree.head().line);
            let mut reasons = of_spec.clone();
            let rule = rule(tree, place.line, &mut reasons);
            let mut reads = matched(tree);
            reads.keys.extend(rule.reads());
            candidates.push(Candidate { place, reads, writes: writes(tree), reasons, rule });
        }
    }
    candidates
}

fn rule(tree: &Tree, line: u32, reasons: &mut Reasons) -> Rule {
    let known = ["name", "labels", "annotations", "taints", "matchFeatures", "matchAny"];
    reasons.of_unknown(tree, &known, "the rule");
    if let Some(taints) = given(tree, "taints") {
        let text = "NFD sets taints only if its master has `-enable-taints`, which the file does not show: write the rule by hand";
        reasons.add(taints.place.line, text);
    }
    let sets = Sets {
        labels: texts_of(tree, "labels", &["feature.node.kubernetes.io", "profile.node.kubernetes.io"], reasons),
        annotations: texts_of(tree, "annotations", &["feature.node.kubernetes.io"], reasons),
        ..Sets::default()
    };
    if sets.labels.is_empty() && sets.annotations.is_empty() {
        reasons.add(line, "the rule sets no fixed label or annotation");
    }
    let mut all = group(tree, reasons);
    let implies_worker = all.labels.iter().any(|(key, test)| key == WORKER && test.needs_label());
    if terms(tree).next().is_some() && !implies_worker {
        all.labels.insert(0, (WORKER.to_owned(), Test::Exists));
    }
    let mut any = Vec::new();
    let mut items = listed(tree, "matchAny", reasons).peekable();
    while let Some(item) = items.next() {
        reasons.of_unknown(item, &["matchFeatures"], "`matchAny`");
        let group = group(item, reasons);
        if group.is_empty() {
            reasons.add(item.place.line, "an item of `matchAny` has no condition");
        }
        let may_fail = |(key, test): &(String, Test)| test.bound().is_some() && MAY_BE_EMPTY.contains(&key.as_str());
        if items.peek().is_some() && group.labels.iter().any(may_fail) {
            let text = "where the number that it compares is empty, this item of `matchAny` is an error in NFD, and those after it do not count: write it last";
            reasons.add(item.place.line, text);
        }
        any.push(group);
    }
    Rule { name: String::new(), all, any, sets }
}

/// The key as NFD sets it: with its prefix.
fn prefixed(key: &str) -> String {
    if key.contains('/') { key.to_owned() } else { format!("{PREFIX}{key}") }
}

/// Labels or annotations with fixed values. Below kubernetes.io, they may be in these namespaces only.
fn texts_of(tree: &Tree, part: &str, namespaces: &[&str], reasons: &mut Reasons) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for field in entries(tree, part, reasons) {
        let (line, key) = (field.place.line, prefixed(&field.key));
        let Some(value) = field.tree.as_text() else {
            reasons.add(line, format!("the value of {key} is not a text"));
            continue;
        };
        let namespace = key.split('/').next().unwrap_or_default();
        let is_in = |of: &str| namespace == of || namespace.strip_suffix(of).is_some_and(|sub| sub.ends_with('.'));
        if is_in("kubernetes.io") && !namespaces.iter().any(|of| is_in(of)) {
            reasons.add(line, format!("NFD does not set {key}, because it sets no other keys below kubernetes.io, unless `-extra-label-ns` says so"));
        }
        if part == "labels" && value.starts_with('@') {
            reasons.add(line, format!("the value of {key} is that of a feature"));
        }
        if part == "annotations" && value.len() > ANNOTATION_MAX {
            reasons.add(line, format!("NFD does not set {key}, because it has more than {ANNOTATION_MAX} bytes"));
        }
        if map.insert(key.clone(), value.to_owned()).is_some() {
            reasons.add(line, format!("{key} is there with and without prefix"));
        }
    }
    map
}

/// The terms in `matchFeatures`, directly and in `matchAny`.
fn terms(rule: &Tree) -> impl Iterator<Item = &Tree> {
    let parts = std::iter::once(rule).chain(list(rule, "matchAny"));
    parts.flat_map(|part| list(part, "matchFeatures"))
}

/// The feature of a term, whose case NFD ignores.
fn feature(term: &Tree) -> String {
    term.text("feature").unwrap_or_default().to_lowercase()
}

/// The conditions in `matchFeatures`.
fn group(tree: &Tree, reasons: &mut Reasons) -> Group {
    let mut group = Group::default();
    for term in listed(tree, "matchFeatures", reasons) {
        reasons.of_unknown(term, &["feature", "matchExpressions"], "`matchFeatures`");
        let feature = feature(term);
        let expressions = given(term, "matchExpressions").map(|of| fields(&of.tree)).unwrap_or_default();
        if expressions.is_empty() {
            reasons.add(term.place.line, format!("there is no condition on elements of {feature}"));
        }
        let mut unknown: Vec<&str> = Vec::new();
        for expression in expressions {
            reasons.of_unknown(&expression.tree, &["op", "value"], "an expression");
            let element = (feature.as_str(), expression.key.as_str());
            if element == ("system.name", "nodename") {
                names(expression, &mut group, reasons);
                continue;
            }
            let known = LABELS.iter().find(|(of, name, ..)| (*of, *name) == element);
            match known {
                Some((_, element, prefix, is_number)) => {
                    let key = format!("{PREFIX}{prefix}{element}");
                    let tests = tests(expression, *is_number, reasons);
                    group.labels.extend(tests.into_iter().map(|test| (key.clone(), test)));
                }
                None => unknown.push(&expression.key),
            }
        }
        if !unknown.is_empty() {
            let hint = HINTS.iter().find(|(of, _)| feature.starts_with(of));
            let hint = hint.map(|(_, hint)| format!("; by hand: {hint}")).unwrap_or_default();
            let unknown = unknown.join(", ");
            reasons.add(term.place.line, format!("{feature} ({unknown}) has no exact counterpart{hint}"));
        }
    }
    group
}

fn op(expression: &Field) -> &str {
    expression.tree.text("op").unwrap_or_default()
}

fn values(expression: &Field, reasons: &mut Reasons) -> Vec<String> {
    let values = given(&expression.tree, "value").map(|value| texts(value, "an expression", reasons));
    values.unwrap_or_default()
}

/// The name of the node, which NFD compares as a text.
fn names(expression: &Field, group: &mut Group, reasons: &mut Reasons) {
    let (line, names) = (expression.place.line, values(expression, reasons));
    if op(expression) != "In" || names.is_empty() || !names.iter().all(|name| is_dns_subdomain(name)) {
        reasons.add(line, "of the operators on `nodename` only `In` with names of nodes has an exact translation");
    }
    if !group.names.is_empty() {
        reasons.add(line, "`nodename` has two conditions");
    }
    group.names = names;
}

/// What an expression says of a label. All operators but `DoesNotExist` need the feature.
fn tests(expression: &Field, is_number: bool, reasons: &mut Reasons) -> Vec<Test> {
    let (line, values) = (expression.place.line, values(expression, reasons));
    let numbers: Option<Vec<i64>> = values.iter().map(|value| value.parse().ok()).collect();
    let numbers = numbers.filter(|_| is_number);
    match (op(expression), values.as_slice(), numbers.as_deref()) {
        ("In", [_, ..], _) => vec![Test::In(values)],
        ("NotIn", [_, ..], _) => vec![Test::Exists, Test::NotIn(values)],
        ("Exists", [], _) => vec![Test::Exists],
        ("Gt", _, Some([bound])) => vec![Test::Above(*bound)],
        ("Lt", _, Some([bound])) => vec![Test::Below(*bound)],
        ("GtLt", _, Some([low, high])) => vec![Test::Above(*low), Test::Below(*high)],
        ("In" | "NotIn", [], _) => {
            reasons.add(
                line,
                format!("`{}` with no values is an error in NFD, so the rule never applies", op(expression)),
            );
            Vec::new()
        }
        (op, ..) => {
            reasons.add(line, format!("the operator `{op}` with these values has no exact translation"));
            Vec::new()
        }
    }
}

/// The keys that a rule reads of other rules: `rule.matched`, with their keys as written there.
fn matched(tree: &Tree) -> Keys {
    let mut keys = Keys::default();
    for term in terms(tree).filter(|term| feature(term).starts_with("rule.")) {
        let known = ["feature", "matchExpressions"];
        keys.unknown |= fields(term).iter().any(|field| !known.contains(&field.key.as_str()));
        for expression in given(term, "matchExpressions").into_iter().flat_map(|of| fields(&of.tree)) {
            for field in [keys::Field::Label, keys::Field::Annotation] {
                keys.add(field, &prefixed(&expression.key));
            }
        }
    }
    keys
}

/// The keys that a rule sets.
fn writes(tree: &Tree) -> Keys {
    let mut keys = Keys { unknown: given(tree, "labelsTemplate").is_some(), ..Keys::default() };
    let all = [("labels", keys::Field::Label), ("annotations", keys::Field::Annotation)];
    for (part, field) in all {
        let map = given(tree, part);
        keys.unknown |= map.is_some_and(|map| !matches!(map.tree.value, Node::Mapping(_)));
        map.into_iter().flat_map(|of| fields(&of.tree)).for_each(|one| keys.add(field, &prefixed(&one.key)));
    }
    for taint in list(tree, "taints") {
        keys.add(keys::Field::Taint, &prefixed(taint.text("key").unwrap_or_default()));
    }
    keys
}
