//! Compiles `gates`.

use std::collections::HashMap;
use std::time::Duration;

use super::Faults;
use super::conditions::matcher;
use super::texts::duration;
use crate::api::gates::GateSpec;
use crate::api::names::{LabelKey, cut_name};
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::restriction::is_own;
use crate::set::gates::Gate;
use crate::set::index::NameIndexBuilder;
use crate::set::rule::RuleId;

/// How long a node waits if `timeout` is omitted.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of labels of one gate, so that a message can name all that are missing.
const LABELS_MAX: usize = 32;

/// The gates of a document.
pub(super) fn compile(names: &mut NameIndexBuilder, gates: &mut Vec<Gate>, faults: &mut Faults<'_>) {
    let document = faults.document;
    let all = FieldPath::root().key("spec").key("gates");
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, spec) in document.spec.gates.iter().enumerate() {
        let GateSpec { name, match_, labels, timeout, on_timeout } = spec;
        let path = all.index(index);
        faults.item_name(("gate", "say what nodes wait for, such as topology"), name, (&all, index), &mut seen);
        let timeout = timeout.as_ref().and_then(|text| faults.check(&path.key("timeout"), duration(text)));
        gates.push(Gate {
            id: RuleId { policy: document.name.as_str().into(), rule: format!("gate:{}", cut_name(name)).into() },
            matcher: matcher(match_.as_ref(), names, &path.key("match"), faults),
            labels: keys(labels, &path.key("labels"), faults),
            timeout: timeout.unwrap_or(TIMEOUT),
            on_timeout: on_timeout.unwrap_or_default(),
        });
    }
}

fn keys(labels: &[String], path: &FieldPath, faults: &mut Faults<'_>) -> Vec<LabelKey> {
    faults.refuse_empty(labels, path, "no node waits");
    if labels.len() > LABELS_MAX {
        let what = format!("the gate has {} labels, but the limit is {LABELS_MAX}", labels.len());
        faults.at(path, Problem::new(what, "name those that come last, or write several gates"));
    }
    let mut keys = Vec::new();
    for (index, text) in labels.iter().enumerate().take(LABELS_MAX) {
        let path = path.index(index);
        if text.contains('*') {
            let what = format!("{text:?} is a pattern, and a gate waits for each key that it names");
            faults.at(&path, Problem::new(what, "write the keys one by one"));
            continue;
        }
        let Some(key) = faults.check(&path, text.parse::<LabelKey>()) else { continue };
        if is_own(text) {
            let what = format!("{text:?} is a key of nodegate itself, which no node waits for");
            faults.at(&path, Problem::new(what, "remove it"));
        }
        keys.push(key);
    }
    keys
}
