//! A compromised kubelet gains nothing: who gives a restricted or protected key may read only what a
//! kubelet cannot choose, or must say `trustKubelet: true`.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition has to be thought of here")]

use super::Draft;
use crate::policy::cel::Expression;
use crate::policy::decision::Strength;
use crate::policy::document::{Origin, PolicyDocument, PolicyError};
use crate::policy::matcher::Source;
use crate::policy::pattern::KeySet;
use crate::policy::restriction::{is_own, is_restricted};
use crate::policy::rule::Rule;

/// Reports every rule that gives such a key on a kubelet's word.
pub(super) fn check(documents: &[PolicyDocument], drafts: &[Draft], protected: &KeySet, errors: &mut Vec<PolicyError>) {
    for draft in drafts.iter().filter(|draft| !draft.rule.trust_kubelet && draft.rule.strength != Strength::Saved) {
        let guarded = guarded_keys(&draft.rule, protected);
        let word = kubelets_word(&draft.rule, protected);
        if let (Some(key), Some(first)) = (guarded.first(), word.first()) {
            let kind = if key == "*" {
                "may be one that a kubelet may not set"
            } else if is_restricted(key) {
                "a kubelet may not set"
            } else {
                "is protected"
            };
            let more = if word.len() > 1 { format!(" (and {})", word[1..].join(", ")) } else { String::new() };
            let document = &documents[draft.document];
            let advice = match document.origin {
                Origin::Preset => "do not protect that key, or write the rule yourself with trustKubelet: true",
                Origin::File(_) | Origin::Object => {
                    "match on node names or protected labels, or say trustKubelet: true"
                }
            };
            let message = format!("gives {key}, which {kind}, on the kubelet's own word: {first}{more}; {advice}");
            errors.push(document.fault(&draft.path, message));
        }
    }
}

/// Keys the rule may give that a kubelet could not give itself.
fn guarded_keys(rule: &Rule, protected: &KeySet) -> Vec<String> {
    let fixed = rule.written_labels().map(|key| key.as_str().to_owned());
    let dynamic = rule.gives.label_map.iter().flat_map(|(keys, _)| keys.written()).map(str::to_owned);
    fixed
        .chain(dynamic)
        .filter(|key| {
            let probe = key.replace('*', "x");
            let overlaps = protected.written().any(|pattern| {
                let prefix = key.strip_suffix('*').unwrap_or("\0");
                pattern.starts_with(prefix)
            });
            // Every key at once: node roles are among them.
            key == "*" || is_restricted(&probe) || protected.contains(&probe) || overlaps
        })
        .collect()
}

/// Everything the rule reads that a kubelet can choose, in words.
fn kubelets_word(rule: &Rule, protected: &KeySet) -> Vec<String> {
    let trusted = |key: &str| is_restricted(key) || protected.contains(key) || is_own(key);
    let mut word = Vec::new();
    for source in rule.sources() {
        match source {
            Source::Name(_) => {}
            Source::Label(requirement) if trusted(&requirement.key) => {}
            Source::Label(requirement) => word.push(format!("label {}", requirement.key)),
            Source::Taints(patterns) => word.extend(patterns.iter().map(|pattern| format!("taint {}", pattern.key))),
            Source::Status(fact) => word.push(fact.to_string()),
            Source::Gpu => word.push("GPU inference".to_owned()),
            Source::Expression(expression) => expressions_word(expression, trusted, &mut word),
        }
    }
    word.dedup();
    word
}

fn expressions_word(expression: &Expression, trusted: impl Fn(&str) -> bool, word: &mut Vec<String>) {
    let reads = expression.reads();
    let labels = reads.labels.iter().filter(|read| !trusted(&read.key));
    word.extend(labels.map(|read| format!("label {} in an expression", read.key)));
    let flags = [
        (reads.any_label, "labels in an expression"),
        (reads.taints, "taints in an expression"),
        (reads.gpu, "GPU inference in an expression"),
        (reads.other, "node fields in an expression"),
    ];
    word.extend(flags.iter().filter(|(read, _)| *read).map(|(_, what)| (*what).to_owned()));
}
