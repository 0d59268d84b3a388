//! The parameters of the guard: the keys that the policies in force protect and persist.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::proof::evidence::EXTRA;
use crate::keys::{Field, programs};
use crate::set::PolicySet;

/// The annotation with the protected keys.
pub(super) const PROTECTED: &str = "nodegate.dev/protected";
/// The annotation with the persisted keys.
pub(super) const PERSISTED: &str = "nodegate.dev/persisted";

/// The annotation with what pools ask of the requester: [`ASKED_GROUPS`] in the first line, then each extra key as `extra.KEY`. It is
/// empty if no pool asks for anything.
pub(super) const ASKED: &str = "nodegate.dev/asked-of-requester";
/// All groups are asked for, whatever pools ask for.
pub(super) const ASKED_GROUPS: &str = "groups";

/// The annotations with the parameters: the keys that a kubelet may not set, one per line, and what pools ask of it. A line that ends
/// in `/` is a prefix, and `*` is every key.
///
/// The same policies always give the same text.
pub fn guard_parameters(set: &PolicySet) -> BTreeMap<String, String> {
    let lines = |keys: BTreeSet<&str>| -> String { keys.into_iter().map(|key| format!("{}\n", line(key))).collect() };
    let persisted = set.persisting_rules().filter_map(|rule| rule.assigns.saved.as_ref());
    let persisted =
        persisted.flat_map(|saved| saved.labels.written()).filter(|written| !is_never_saved(written)).collect();
    BTreeMap::from([
        (PROTECTED.to_owned(), lines(set.protected().written().collect())),
        (PERSISTED.to_owned(), lines(persisted) + &never_persisted(set)),
        (ASKED.to_owned(), set.pools().asked_of_requester().map(asked).unwrap_or_default()),
    ])
}

fn asked(keys: &[Box<str>]) -> String {
    let keys: BTreeSet<String> = keys.iter().map(|key| format!("{EXTRA}{key}\n")).collect();
    format!("{ASKED_GROUPS}\n{}", keys.into_iter().collect::<String>())
}

/// The labels of programs among the persisted keys that are never saved, so their kubelet may set them: one per line, after `!`.
/// Keys of the same domain that are saved follow by name, because a whole key precedes its domain.
fn never_persisted(set: &PolicySet) -> String {
    let lines = programs::labels_in_literal_domains().filter(|pattern| set.names_persisted_pattern(pattern));
    let lines = lines.filter_map(|pattern| match pattern.split_once('/') {
        _ if is_never_saved(pattern) => Some(format!("!{}\n", line(pattern))),
        Some((domain, _)) if is_never_saved(&format!("{domain}/*")) => Some(format!("{pattern}\n")),
        _ => None,
    });
    lines.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether all labels of a pattern are among those that are never saved.
fn is_never_saved(pattern: &str) -> bool {
    programs::never_persisted_pattern(Field::Label, pattern).is_some()
}

/// `example.com/*` as `example.com/`: no label key ends in a slash.
fn line(written: &str) -> &str {
    match written.strip_suffix('*') {
        Some(prefix) if !prefix.is_empty() => prefix,
        _ => written,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::{Origin, PolicyDocument};

    fn parameters(spec: Json) -> BTreeMap<String, String> {
        let spec = serde_json::from_value(spec).unwrap();
        guard_parameters(&PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap())
    }

    #[test]
    fn parameters_are_sorted_lines_with_prefixes_that_end_in_a_slash() {
        let data = parameters(json!({
            "protect": {"keys": ["nvidia.com/*", "hardware.tier", "hardware.tier"]},
            "persist": {"labels": ["persist.demo/*", "*", "team"]},
        }));
        assert_eq!(data["nodegate.dev/protected"], "hardware.tier\nnvidia.com/\n");
        let persisted = &data["nodegate.dev/persisted"];
        assert!(persisted.starts_with("*\npersist.demo/\nteam\n"), "{persisted}");
        for line in ["!agentpool", "!karpenter.sh/", "!topology.gke.io/", "nvidia.com/mig.config"] {
            assert!(persisted.lines().any(|other| other == line), "{line} is not in {persisted}");
        }
    }

    #[test]
    fn keys_of_programs_are_parameters_only_where_they_are_among_persisted_ones() {
        let persisted = |keys: Json| parameters(json!({"persist": {"labels": keys}}))["nodegate.dev/persisted"].clone();
        assert_eq!(persisted(json!(["team", "a.example/*"])), "a.example/\nteam\n");
        assert_eq!(persisted(json!(["karpenter.sh/*"])), "!karpenter.sh/\n");
        assert_eq!(persisted(json!(["amd.com/*", "agentpool"])), "!agentpool\n!amd.com/\namd.com/gpu\n");
    }

    #[test]
    fn without_policies_the_parameters_are_empty() {
        let data = guard_parameters(&PolicySet::default());
        assert_eq!(data.values().map(String::as_str).collect::<Vec<_>>(), ["", "", ""]);
    }

    #[test]
    fn what_pools_ask_of_the_requester_is_the_groups_and_each_extra_key_once() {
        let asked = |pools: Json| parameters(json!({"pools": pools}))["nodegate.dev/asked-of-requester"].clone();
        let extra = |name: &str, keys: &[&str]| {
            let extra: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), json!(["x"]))).collect();
            json!({"name": name, "requester": {"extra": extra}})
        };
        assert_eq!(asked(json!([{"name": "a", "requester": {"groups": ["pool:a"]}}])), "groups\n");
        let both = json!([extra("a", &["role", "arn"]), extra("b", &["arn"])]);
        assert_eq!(asked(both), "groups\nextra.arn\nextra.role\n");
        assert_eq!(asked(json!([{"name": "a", "names": ["a-*"]}])), "");
    }
}
