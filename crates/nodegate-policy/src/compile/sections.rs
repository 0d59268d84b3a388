//! Compiles `protect`, also what topologies protect.

use super::Faults;
use crate::api::names::LabelKey;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::pattern::KeySet;
use crate::keys::restriction::RECONCILED_LABELS;

/// The label keys that a kubelet may not set: those in `protect`, and the levels of topologies that kubelets do not maintain.
pub(super) fn protect(faults: &mut Faults<'_>) -> KeySet {
    let spec = &*faults.document.spec;
    let path = FieldPath::root().key("spec").key("protect").key("keys");
    let keys = || spec.protect.iter().flat_map(|protect| &protect.keys).map(String::as_str);
    for (index, key) in keys().enumerate() {
        let one = KeySet::compile([key], |_, _| {});
        let reconciled: Vec<&str> = RECONCILED_LABELS.into_iter().filter(|label| one.contains(label)).collect();
        if !reconciled.is_empty() {
            let what = format!(
                "{key:?} includes {}, which every kubelet maintains: denying its writes would freeze the node's status",
                reconciled.join(" and ")
            );
            faults.at(&path.index(index), Problem::new(what, "list the other keys one by one"));
        }
    }
    let mut protected = KeySet::compile(keys(), |index, message| faults.at(&path.index(index), message));
    let levels = spec.topologies.iter().flat_map(|topology| &topology.levels).map(String::as_str);
    // Wrong levels are reported where gates are compiled.
    let levels = levels.filter(|level| !RECONCILED_LABELS.contains(level) && level.parse::<LabelKey>().is_ok());
    protected.extend(&KeySet::compile(levels, |_, _| {}));
    protected
}
