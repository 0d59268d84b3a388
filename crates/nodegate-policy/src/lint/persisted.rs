//! Finds persisted labels that kubelets may bring.

use super::places::spec_path;
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::problem::Problem;
use crate::keys::restriction::is_restricted;
use crate::keys::{Field, programs};
use crate::set::PolicySet;

/// Persisted labels that no policy protects, although NodeRestriction lets kubelets set them: what a kubelet brings when it joins
/// is saved, and restored from then on.
pub(super) fn unprotected(document: &PolicyDocument, set: &PolicySet, lints: &mut Vec<Lint>) {
    let Some(persist) = &document.spec.persist else { return };
    for (at, written) in persist.labels.iter().enumerate() {
        // Of a pattern, any key that no other pattern is likely to name.
        let probe = written.replace('*', "q7-x");
        let is_saved = programs::never_persisted_pattern(Field::Label, written).is_none();
        if is_restricted(&probe) || set.is_protected(&probe) || !is_saved {
            continue;
        }
        let what = format!("{written:?} is persisted, but not protected: what a kubelet brings when it joins is saved");
        let help = format!("protect it as well, with protect: {{keys: [{written:?}]}}");
        let path = spec_path().key("persist").key("labels").index(at);
        lints.push(Lint { name: LintName::UnprotectedPersist, fault: document.fault(&path, Problem::new(what, help)) });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn found(documents: &[(&str, Json)]) -> Vec<String> {
        crate::lint::found(LintName::UnprotectedPersist, documents)
    }

    #[test]
    fn a_persisted_label_has_to_be_protected_by_some_policy_if_kubelets_may_set_it() {
        let persist = |keys: Json| json!({"persist": {"labels": keys, "taints": ["dedicated"]}});
        let none: [&str; 0] = [];
        let keys = json!(["team", "a.example/x", "b.example/*", "c.example/*"]);
        assert_eq!(found(&[("p", persist(keys.clone()))]).len(), 4);
        let protect = json!({"protect": {"keys": ["team", "a.example/*", "b.example/*", "c.example/other"]}});
        assert_eq!(found(&[("p", persist(keys)), ("q", protect)]), ["spec.persist.labels[3]"]);
        let others =
            json!(["node-restriction.kubernetes.io/pool", "node-role.kubernetes.io/*", "topology.kubernetes.io/*"]);
        assert_eq!(found(&[("p", persist(others))]), none);
    }
}
