//! Built-in policies, written as `NodePolicy` YAML.

use crate::api::document::{Origin, PolicyDocument};

/// The valid names in `presets`.
pub(crate) const NAMES: [&str; 4] = ["baseline", "gpu", "aliases", "vendor-guard"];

const TEXTS: [&str; 4] = [
    include_str!("presets/baseline.yaml"),
    include_str!("presets/gpu.yaml"),
    include_str!("presets/aliases.yaml"),
    include_str!("presets/vendor-guard.yaml"),
];

/// The name of a preset as a document, with a prefix that no other policy can have.
pub(crate) fn document_name(preset: &str) -> String {
    format!("preset:{preset}")
}

/// A preset as a document.
pub(crate) fn get(name: &str) -> Option<PolicyDocument> {
    let at = NAMES.iter().position(|known| *known == name)?;
    let mut document = PolicyDocument::parse_all(&Origin::Preset, TEXTS[at], &mut Vec::new()).pop()?;
    document.name = document_name(name);
    Some(document)
}

/// The policy in force if no other one is given.
pub fn baseline() -> PolicyDocument {
    let spec = crate::api::policy::NodePolicySpec { presets: vec!["baseline".to_owned()], ..Default::default() };
    PolicyDocument::new("default", Origin::Preset, spec)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PolicySet;

    #[test]
    fn every_preset_parses_without_errors_and_compiles() {
        for (name, text) in NAMES.iter().zip(TEXTS) {
            let mut errors = Vec::new();
            let documents = PolicyDocument::parse_all(&Origin::Preset, text, &mut errors);
            assert!(errors.is_empty() && documents.len() == 1, "{name}: {errors:?}");
            PolicySet::compile(&[get(name).unwrap()]).unwrap();
        }
    }
}
