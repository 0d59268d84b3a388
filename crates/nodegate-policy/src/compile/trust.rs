//! Checks that a compromised kubelet gains nothing: a rule that assigns a restricted or protected key may read
//! only facts that a kubelet cannot choose, unless it sets `trustKubelet: true`.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::collections::BTreeMap;

use super::Draft;
use crate::api::document::{Origin, PolicyDocument, PolicyError};
use crate::api::problem::Problem;
use crate::cel::Expression;
use crate::keys::pattern::KeySet;
use crate::keys::restriction::{is_own, is_restricted};
use crate::set::matcher::Source;
use crate::set::rule::Rule;
use crate::set::rule::Strength;

/// Reports every rule that assigns such a key based on facts that a kubelet can choose.
pub(super) fn check(documents: &[PolicyDocument], drafts: &[Draft], protected: &KeySet, errors: &mut Vec<PolicyError>) {
    for draft in drafts.iter().filter(|draft| !draft.rule.trust_kubelet && draft.rule.strength != Strength::Saved) {
        let guarded = guarded_keys(&draft.rule, protected);
        let facts = chosen_facts(draft.rule.sources(), protected);
        if documents[draft.document].is_invalid_within(&draft.path) {
            continue;
        }
        if !guarded.is_empty() && !facts.is_empty() {
            let mut kinds: BTreeMap<[&str; 2], Vec<&str>> = BTreeMap::new();
            guarded.iter().for_each(|key| kinds.entry(why_guarded(key)).or_default().push(key));
            let named = kinds.into_iter().map(|([of_one, of_many], keys)| {
                format!("{}, which {}", keys.join(", "), if keys.len() == 1 { of_one } else { of_many })
            });
            let (named, facts) = (named.collect::<Vec<_>>().join(" and "), facts.join(", "));
            let document = &documents[draft.document];
            let what = if draft.rule.assigns.migration.is_some() { "migration" } else { "rule" };
            let advice = match document.origin {
                _ if draft.rule.assigns.migration.is_some() => "protect the other key, or set trustKubelet: true",
                Origin::Preset => "do not protect that key, or write the rule yourself with trustKubelet: true",
                Origin::File(_) | Origin::Object => {
                    "match on node names or protected labels, or set trustKubelet: true"
                }
            };
            let problem = Problem::new(
                format!("the {what} sets {named}, based on facts that a kubelet can choose: {facts}"),
                advice,
            );
            super::add(errors, document.fault(&draft.path, problem));
        }
    }
}

/// Why a kubelet may not choose the key, for one key and for many.
fn why_guarded(key: &str) -> [&'static str; 2] {
    if key == "*" {
        ["may include keys that kubelets may not set"; 2]
    } else if is_restricted(key) {
        ["kubelets may not set"; 2]
    } else {
        ["is protected", "are protected"]
    }
}

/// Keys that the rule may assign and a kubelet may not set.
fn guarded_keys(rule: &Rule, protected: &KeySet) -> Vec<String> {
    let fixed = rule.written_labels().map(|key| key.as_str().to_owned());
    let dynamic = rule.assigns.label_map.as_deref().into_iter().flat_map(|(keys, _)| keys.written()).map(str::to_owned);
    fixed
        .chain(dynamic)
        .filter(|key| {
            let probe = key.replace('*', "x");
            let overlaps = protected.written().any(|pattern| {
                let prefix = key.strip_suffix('*').unwrap_or("\0");
                pattern.starts_with(prefix)
            });
            // `*` includes restricted keys such as node roles.
            key == "*" || is_restricted(&probe) || protected.contains(&probe) || overlaps
        })
        .collect()
}

/// Those of these facts that a kubelet can choose, for messages.
pub(crate) fn chosen_facts<'a>(sources: impl Iterator<Item = Source<'a>>, protected: &KeySet) -> Vec<String> {
    let trusted = |key: &str| is_restricted(key) || protected.contains(key) || is_own(key);
    let mut facts = Vec::new();
    for source in sources {
        match source {
            Source::Name(_) | Source::Pools => {}
            Source::Label(requirement) if trusted(&requirement.key) => {}
            Source::Label(requirement) => facts.push(format!("label {}", requirement.key)),
            Source::Taints(patterns) => facts.extend(patterns.iter().map(|pattern| format!("taint {}", pattern.key))),
            Source::Reported(fact) => facts.push(fact.to_string()),
            Source::Gpu => facts.push("GPU inference".to_owned()),
            Source::Expression(expression) => chosen_in_expression(expression, trusted, &mut facts),
        }
    }
    facts.dedup();
    facts
}

fn chosen_in_expression(expression: &Expression, trusted: impl Fn(&str) -> bool, facts: &mut Vec<String>) {
    let reads = expression.reads();
    let labels = reads.labels.iter().filter(|read| !trusted(&read.key));
    facts.extend(labels.map(|read| format!("label {} in an expression", read.key)));
    let flags = [
        (reads.any_label, "labels in an expression"),
        (reads.taints, "taints in an expression"),
        (reads.gpu, "GPU inference in an expression"),
        (reads.other, "node fields in an expression"),
        // Its driver runs on the node.
        (reads.devices, "devices in an expression"),
        // A kubelet makes one by its provider ID.
        (reads.contradictions, "contradictions in an expression"),
    ];
    facts.extend(flags.iter().filter(|(read, _)| *read).map(|(_, what)| (*what).to_owned()));
}
