//! Compiles `protect`.

use super::Faults;
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
