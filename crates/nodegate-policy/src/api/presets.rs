//! Built-in policies, written as `NodePolicy` YAML.

use std::sync::Arc;

use crate::api::document::{Origin, PolicyDocument};
use crate::api::policy::{EntryMode, NodePolicySpec};

const BASELINE: &str = include_str!("presets/baseline.yaml");
/// The presets: name, text, and the mode of its entries if it is not that of the text.
const PRESETS: [(&str, &str, Option<EntryMode>); 12] = [
    ("baseline", BASELINE, None),
    ("baseline-warn", BASELINE, Some(EntryMode::Warn)),
    ("baseline-audit", BASELINE, Some(EntryMode::Audit)),
    ("gpu", include_str!("presets/gpu.yaml"), None),
    ("aliases", include_str!("presets/aliases.yaml"), None),
    ("vendor-guard", include_str!("presets/vendor-guard.yaml"), None),
    ("eks", include_str!("presets/eks.yaml"), None),
    ("karpenter", include_str!("presets/karpenter.yaml"), None),
    ("aks", include_str!("presets/aks.yaml"), None),
    ("cluster-api", include_str!("presets/cluster-api.yaml"), None),
    ("openshift", include_str!("presets/openshift.yaml"), None),
    ("kubeadm", include_str!("presets/kubeadm.yaml"), None),
];

/// The valid names in `presets`.
pub(crate) fn names() -> [&'static str; PRESETS.len()] {
    PRESETS.map(|(name, _, _)| name)
}

/// The names of those that say what proves pools.
pub fn presets_with_pools() -> Vec<&'static str> {
    let has_pools = |name: &&str| get(name).is_some_and(|preset| !preset.spec.pools.is_empty());
    names().into_iter().filter(has_pools).collect()
}

/// The name of a preset as a document, with a prefix that no other policy can have.
pub(crate) fn document_name(preset: &str) -> String {
    format!("preset:{preset}")
}

/// A preset as a document.
pub(crate) fn get(name: &str) -> Option<PolicyDocument> {
    let (_, text, mode) = PRESETS.into_iter().find(|(known, _, _)| *known == name)?;
    let mut document = PolicyDocument::parse_all(&Origin::Preset, text, &mut Vec::new()).pop()?;
    document.name = document_name(name);
    if let Some(governance) = Arc::make_mut(&mut document.spec).governance.as_mut().filter(|_| mode.is_some()) {
        governance.reserved.iter_mut().for_each(|reserved| reserved.entry.mode = mode);
    }
    Some(document)
}

/// The preset `baseline` with this mode.
pub fn baseline_in(mode: EntryMode) -> &'static str {
    match mode {
        EntryMode::Enforce => "baseline",
        EntryMode::Warn => "baseline-warn",
        EntryMode::Audit => "baseline-audit",
    }
}

/// The policy in force if no other one is given.
pub fn baseline(mode: EntryMode) -> PolicyDocument {
    let spec = NodePolicySpec { presets: vec![baseline_in(mode).to_owned()], ..Default::default() };
    PolicyDocument::new("default", Origin::Preset, spec)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PolicySet;

    #[test]
    fn every_preset_parses_without_errors_and_compiles() {
        for (name, text, _) in PRESETS {
            let mut errors = Vec::new();
            let documents = PolicyDocument::parse_all(&Origin::Preset, text, &mut errors);
            assert!(errors.is_empty() && documents.len() == 1, "{name}: {errors:?}");
            PolicySet::compile(&[get(name).unwrap()]).unwrap();
        }
    }

    #[test]
    fn every_entry_of_baseline_has_the_mode_that_its_name_says() {
        for mode in [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit] {
            let document = get(baseline_in(mode)).unwrap();
            let entries = &document.spec.governance.as_ref().unwrap().reserved;
            assert!(
                entries.len() > 3 && entries.iter().all(|one| one.entry.mode.unwrap_or_default() == mode),
                "{mode:?}"
            );
        }
    }
}
