//! Finds gates that a kubelet can pass by what it says of its node.

use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::problem::Problem;
use crate::compile::trust::chosen_facts;
use crate::set::PolicySet;
use crate::set::matcher::Condition;

/// Gates whose `match` reads what a kubelet can choose: it says something else, and waits for nothing. What others set only after the
/// node has joined, such as an external cloud provider's instance type, is not there either when the gate is first asked.
pub(super) fn evaded(document: &PolicyDocument, set: &PolicySet, lints: &mut Vec<Lint>) {
    for gate in set.gates().iter().filter(|gate| *gate.id.policy == document.name) {
        let facts = chosen_facts(gate.matcher.conditions().map(Condition::source), set.protected());
        if facts.is_empty() {
            continue;
        }
        let what = format!(
            "whether a node waits depends on what its kubelet says, or on what comes later: {}",
            facts.join(", ")
        );
        let problem = Problem::new(what, "match on pools, names or protected labels");
        let fault = document.fault(&gate.path.key("match"), problem);
        lints.push(Lint { name: LintName::EvadedGate, fault });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Origin;

    #[test]
    fn a_gate_that_a_kubelet_can_evade_is_told() {
        let spec = json!({
            "pools": [{"name": "gpu", "names": ["gpu-*"]}],
            "protect": {"keys": ["kind"]},
            "gates": [
                {"name": "all", "labels": ["rack"]},
                {"name": "proven", "match": {"pools": ["gpu"], "selector": {"matchLabels": {"kind": "gpu"}}}, "labels": ["rack"]},
                {"name": "said", "match": {"selector": {"matchLabels": {"node.kubernetes.io/instance-type": "p5"}}}, "labels": ["rack"]},
                {"name": "seen", "match": {"gpu": {"vendor": "nvidia"}}, "labels": ["rack"]},
            ],
            "topologies": [
                {"name": "proven", "match": {"pools": ["gpu"]}, "levels": ["rack"]},
                {"name": "seen", "match": {"gpu": {"vendor": "nvidia"}}, "levels": ["rack"]},
            ],
        });
        let document = PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap());
        let set = PolicySet::compile(&[document]).unwrap();
        let lints = set.lints().into_iter().filter(|lint| lint.name == LintName::EvadedGate);
        let found: Vec<String> = lints.map(|lint| format!("{}: {}", lint.fault.path, lint.fault.problem)).collect();
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].starts_with("spec.gates[2].match: ")
                && found[0].contains("label node.kubernetes.io/instance-type")
        );
        assert!(found[1].starts_with("spec.gates[3].match: ") && found[1].contains("GPU inference"), "{found:#?}");
        assert!(found[2].starts_with("spec.topologies[1].match: "), "{found:#?}");
    }
}
