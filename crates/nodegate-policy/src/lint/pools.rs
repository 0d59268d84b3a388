//! Finds names in `match.pools` that no pool has, and `persist` for pools where there are none.

use super::places::{conditions, spec_path};
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::policy::PersistScope;
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::keys::compile_budget::CompileBudget;
use crate::keys::pattern::TextSet;
use crate::set::PolicySet;

/// Names that no `pools` entry of any policy has. They are no errors, because the policy with the entry may come later. With
/// `nameFrom` or `{pool}`, any name may be one.
pub(super) fn unknown(document: &PolicyDocument, set: &PolicySet, lints: &mut Vec<Lint>) {
    if set.pools().have_any_names() {
        return;
    }
    let names: Vec<&str> = set.pools().names().into_iter().collect();
    let scope = document.spec.persist.as_ref().and_then(|persist| persist.scope);
    if names.is_empty() && scope == Some(PersistScope::Pool) {
        let problem = Problem::new("no policy has pools, so nothing is ever restored", "define pools, or remove scope");
        let fault = document.fault(&spec_path().key("persist").key("scope"), problem);
        lints.push(Lint { name: LintName::UnknownPool, fault });
    }
    for (path, conditions) in conditions(document) {
        for (at, text) in conditions.pools.iter().flatten().enumerate() {
            let wanted = TextSet::compile([text.as_str()], &CompileBudget::default(), |_, _| {});
            if names.iter().any(|name| wanted.contains(name)) {
                continue;
            }
            let help = match nearest(text, &names) {
                Some(near) => format!("did you mean {near:?}?"),
                None if names.is_empty() => "define it in pools".to_owned(),
                None => format!("define it in pools; these are {}", names.join(", ")),
            };
            let problem = Problem::new(format!("no policy has a pool named {text:?}, so this never holds"), help);
            let fault = document.fault(&path.key("pools").index(at), problem);
            lints.push(Lint { name: LintName::UnknownPool, fault });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn found(spec: Json) -> Vec<String> {
        crate::lint::found(LintName::UnknownPool, &[("p", spec)])
    }

    #[test]
    fn without_pools_nothing_can_be_kept_for_them() {
        let persist = |scope: &str| json!({"persist": {"labels": ["topology.example.com/*"], "scope": scope}});
        assert_eq!(found(persist("pool")), ["spec.persist.scope"]);
        assert_eq!(found(persist("node")), [""; 0]);
        let mut with_pools = persist("pool");
        with_pools["pools"] = json!([{"name": "p", "names": ["n*"]}]);
        assert_eq!(found(with_pools), [""; 0]);
    }
}
