//! Compiles `protect`, and checks the section `inventory`.

use std::collections::HashSet;

use super::Faults;
use super::rules::duration;
use crate::api::document::PolicyDocument;
use crate::api::policy::NodePolicySpec;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::pattern::KeySet;
use crate::keys::restriction::RECONCILED_LABELS;

fn spec() -> FieldPath {
    FieldPath::root().key("spec")
}

/// The label keys that a kubelet may not set.
pub(super) fn protect(faults: &mut Faults<'_>) -> KeySet {
    let Some(protect) = &faults.document.spec.protect else { return KeySet::default() };
    let path = spec().key("protect").key("keys");
    for (index, key) in protect.keys.iter().enumerate() {
        let one = KeySet::compile([key.as_str()], |_, _| {});
        let reconciled: Vec<&str> = RECONCILED_LABELS.into_iter().filter(|label| one.contains(label)).collect();
        if !reconciled.is_empty() {
            let what = format!(
                "{key:?} includes {}, which every kubelet maintains: denying its writes would freeze the node's status",
                reconciled.join(" and ")
            );
            faults.at(&path.index(index), Problem::new(what, "list the other keys one by one"));
        }
    }
    KeySet::compile(protect.keys.iter().map(String::as_str), |index, message| faults.at(&path.index(index), message))
}

/// Checks `inventory`.
pub(super) fn check_inventory(faults: &mut Faults<'_>) {
    let mut names = HashSet::new();
    for (index, entry) in faults.document.spec.inventory.iter().enumerate() {
        let path = spec().key("inventory").index(index);
        if entry.name.is_empty() || !names.insert(&entry.name) {
            let what = if entry.name.is_empty() {
                "the name is empty".to_owned()
            } else {
                format!("another inventory of this policy is named {:?}", entry.name)
            };
            faults.at(&path.key("name"), Problem::new(what, "give each inventory a unique name"));
        }
        let host = entry.url.strip_prefix("https://").or_else(|| entry.url.strip_prefix("http://"));
        if host.is_none_or(|host| host.is_empty() || host.starts_with('/')) {
            let problem = Problem::new(
                format!("{:?} is not an http or https URL", entry.url),
                "write one such as https://inventory.internal/api/nodes/{node}/labels",
            );
            faults.at(&path.key("url"), problem);
        }
        if let Some(refresh) = &entry.refresh {
            faults.check(&path.key("refresh"), duration(refresh));
        }
        if entry.allow.is_empty() {
            faults.at(
                &path.key("allow"),
                Problem::new("the list is empty, so the inventory could not set any label", "add keys or prefix/*"),
            );
        }
        KeySet::compile(entry.allow.iter().map(String::as_str), |at, message| {
            faults.at(&path.key("allow").index(at), message);
        });
    }
}

/// Adds the sections of this document that are not implemented yet, as `policy: section`.
pub(super) fn not_acted_on(document: &PolicyDocument, found: &mut Vec<String>) {
    // All sections are destructured, so that a new one is either compiled or reported here.
    let NodePolicySpec {
        presets: _,
        rules: _,
        derived: _,
        persist: _,
        protect: _,
        governance: _,
        inventory,
        migrations: _,
    } = &*document.spec;
    if !inventory.is_empty() {
        found.push(format!("{}: inventory", document.name));
    }
}
