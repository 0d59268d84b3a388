//! Compiles `gates` and `topologies`.

use std::collections::HashMap;
use std::time::Duration;

use super::Faults;
use super::conditions::matcher;
use super::texts::duration;
use crate::api::names::{LabelKey, cut_name};
use crate::api::policy::NodePolicySpec;
use crate::api::policy::TopologySpec;
use crate::api::policy::{GateSpec, WaitSpec};
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

/// The gates and topologies of a document.
pub(super) fn compile(names: &mut NameIndexBuilder, gates: &mut Vec<Gate>, faults: &mut Faults<'_>) {
    let NodePolicySpec { gates: specs, topologies, .. } = &*faults.document.spec;
    let all = spec_path("gates");
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, GateSpec { name, labels, wait }) in specs.iter().enumerate() {
        faults.item_name(("gate", "say what nodes wait for, such as topology"), name, (&all, index), &mut seen);
        let path = all.index(index);
        let labels = keys(labels, &path.key("labels"), faults);
        gates.push(gate(("gate", name), labels, wait, path, names, faults));
    }
    let all = spec_path("topologies");
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, TopologySpec { name, levels, wait }) in topologies.iter().enumerate() {
        faults.item_name(("topology", "say what it is of, such as fabric"), name, (&all, index), &mut seen);
        let path = all.index(index);
        let labels = keys(levels, &path.key("levels"), faults);
        refuse_repeated(levels, &path.key("levels"), faults);
        gates.push(Gate { is_topology: true, ..gate(("topology", name), labels, wait, path, names, faults) });
    }
}

fn spec_path(section: &str) -> FieldPath {
    FieldPath::root().key("spec").key(section)
}

/// The gate of a kind of item, and of its name.
fn gate(
    (kind, name): (&str, &str),
    labels: Vec<LabelKey>,
    WaitSpec { match_, timeout, on_timeout }: &WaitSpec,
    path: FieldPath,
    names: &mut NameIndexBuilder,
    faults: &mut Faults<'_>,
) -> Gate {
    let timeout = timeout.as_deref().and_then(|text| faults.check(&path.key("timeout"), duration(text)));
    let policy = faults.document.name.as_str().into();
    Gate {
        id: RuleId { policy, rule: format!("{kind}:{}", cut_name(name)).into() },
        matcher: matcher(match_.as_ref(), names, &path.key("match"), faults),
        labels,
        is_topology: false,
        timeout: timeout.unwrap_or(TIMEOUT),
        on_timeout: on_timeout.unwrap_or_default(),
        path,
    }
}

/// Adds an error for each level that is there twice.
fn refuse_repeated(levels: &[String], path: &FieldPath, faults: &mut Faults<'_>) {
    for (index, level) in levels.iter().enumerate() {
        if let Some(first) = levels[..index].iter().position(|earlier| earlier == level) {
            let problem = Problem::new(format!("the level {level:?} is there twice"), "remove one of them");
            faults.again(&path.index(index), &path.index(first), problem);
        }
    }
}

fn keys(labels: &[String], path: &FieldPath, faults: &mut Faults<'_>) -> Vec<LabelKey> {
    faults.refuse_empty(labels, path, "no node waits");
    if labels.len() > LABELS_MAX {
        let what = format!("the list has {} labels, but the limit is {LABELS_MAX}", labels.len());
        faults.at(path, Problem::new(what, "name those that come last, or write several lists"));
    }
    let mut keys = Vec::new();
    for (index, text) in labels.iter().enumerate().take(LABELS_MAX) {
        let path = path.index(index);
        if text.contains('*') {
            let what = format!("{text:?} is a pattern, but nodes wait for each of the keys named here");
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
