//! Compiles `protect`, and checks the section `migrations`.

use super::Faults;
use crate::api::document::PolicyDocument;
use crate::api::names::check_label_key;
use crate::api::policy::NodePolicySpec;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::pattern::KeySet;
use crate::keys::restriction::{RECONCILED_LABELS, writable_label};

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

/// Checks `migrations`.
pub(super) fn check_migrations(faults: &mut Faults<'_>) {
    for (index, migration) in faults.document.spec.migrations.iter().enumerate() {
        let path = spec().key("migrations").index(index);
        faults.check(&path.key("from"), check_label_key(&migration.from));
        faults.check(&path.key("to"), writable_label(&migration.to));
        if migration.from == migration.to {
            faults.at(&path.key("to"), Problem::new("to is the same key as from", "write the new key"));
        }
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
        inventory: _,
        migrations,
    } = &*document.spec;
    let sections = [("migrations", !migrations.is_empty())];
    found.extend(
        sections.iter().filter(|(_, there)| *there).map(|(section, _)| format!("{}: {section}", document.name)),
    );
}
