//! Writes that change more keys than anyone has reason to. They are denied as a whole, because what is kept of each change would
//! exhaust memory.

use super::verdict::{Kind, Verdict, Violation};
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::facts::NodeFacts;
use crate::facts::json::borrow::{Entries, both};
use crate::facts::request::Write;
use crate::keys::Field;
use crate::set::rule::RuleId;

/// Maximum number of labels, annotations and taints that one write may change and be judged. A node has some dozens.
pub const CHANGES_MAX: usize = 50_000;

/// The verdict on a write that changes too many keys; `None` if it does not.
pub(super) fn verdict(write: &Write<'_>) -> Option<Verdict> {
    let count = changed(write);
    (count > CHANGES_MAX).then(|| {
        denied(format!(
            "the write changes {count} labels, annotations and taints, and at most {CHANGES_MAX} are judged; divide it into several writes"
        ))
    })
}

/// How many keys the write changes. A taint counts if it is at another place in the list.
fn changed(write: &Write<'_>) -> usize {
    let old = write.old.as_ref();
    let entries = |of: for<'n, 'f> fn(&'n NodeFacts<'f>) -> Option<&'n Entries<'f>>| {
        let both = both(old.and_then(of), of(&write.node));
        both.filter(|(_, before, after)| before != after).count()
    };
    let (before, after) = (old.map(NodeFacts::taints).unwrap_or_default(), write.node.taints());
    let same = before.iter().zip(after).filter(|(before, after)| before == after).count();
    entries(|node| node.labels.as_ref()) + entries(|node| node.annotations.as_ref()) + before.len().max(after.len())
        - same
}

fn denied(message: String) -> Verdict {
    let violation = Violation {
        by: RuleId::own("too-many-changes"),
        mode: EntryMode::Enforce,
        kind: Kind::Asserted,
        field: Field::Label,
        key: String::new(),
        operation: ChangeOperation::Change,
        overridden_by: None,
        what: message.clone(),
        message,
        override_hint: None,
    };
    Verdict { violations: vec![violation], ..Verdict::default() }
}
