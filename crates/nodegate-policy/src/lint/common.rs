//! Whether two matches can hold for one node, and where.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::sync::Arc;

use crate::api::policy::Operator;
use crate::cel::Expression;
use crate::facts::quantity::Comparison;
use crate::keys::overlap::may_overlap;
use crate::keys::pattern::{TextSet, is_glob};
use crate::set::PolicySet;
use crate::set::matcher::{Condition, Conditions, GpuCondition, Matcher, NameGroup, Requirement};

/// Maximum number of pairs of names that are compared in one search.
const NAMES_MAX: usize = 200_000;

/// The nodes for which two matches hold.
pub(super) enum Common {
    EveryNode,
    /// All for which the first holds: the second one is about every node.
    AllOfFirst,
    /// All for which the second holds.
    AllOfSecond,
    /// Those that match two names or globs.
    Names(String, String),
    /// Others.
    Both,
}

/// Whether two conditions can hold for one node.
enum Fit {
    Yes,
    /// They can for nodes that match these names or globs.
    Names(String, String),
    No,
    /// It depends on an expression or on a text.
    Unknown,
}

/// A search among the rules of one set, with a limit on its work.
pub(super) struct Search<'s> {
    set: &'s PolicySet,
    names_left: usize,
}

impl<'s> Search<'s> {
    pub(super) fn new(set: &'s PolicySet) -> Self {
        Self { set, names_left: NAMES_MAX }
    }

    /// The nodes for which both matches hold. `None` if there can be none, or if that is not known.
    pub(super) fn common(&mut self, one: &Matcher, other: &Matcher) -> Option<Common> {
        match (one.is_every_node(), other.is_every_node()) {
            (true, true) => return Some(Common::EveryNode),
            (true, false) => return Some(Common::AllOfSecond),
            (false, true) => return Some(Common::AllOfFirst),
            (false, false) => {}
        }
        let (mine, theirs) = (alternatives(one), alternatives(other));
        mine.iter().find_map(|mine| theirs.iter().find_map(|theirs| self.of_conditions(mine, theirs)))
    }

    fn of_conditions(&mut self, one: &[&Condition], other: &[&Condition]) -> Option<Common> {
        let (mut common, mut is_known) = (Common::Both, true);
        for mine in one {
            for theirs in other {
                match self.fit(mine, theirs) {
                    Fit::Yes => {}
                    Fit::Names(mine, theirs) => common = Common::Names(mine, theirs),
                    Fit::No => return None,
                    Fit::Unknown => is_known = false,
                }
            }
        }
        is_known.then_some(common)
    }

    fn fit(&mut self, one: &Condition, other: &Condition) -> Fit {
        match (one, other) {
            (Condition::Names(one), Condition::Names(other)) => self.names(*one, *other),
            (Condition::Label(one), Condition::Label(other)) => {
                if contradict(one, other) || contradict(other, one) {
                    Fit::No
                } else {
                    Fit::Yes
                }
            }
            (Condition::Capacity(of, one), Condition::Capacity(other_of, other)) => {
                if of == other_of && one.excludes(*other) { Fit::No } else { Fit::Yes }
            }
            (Condition::Gpu(one), Condition::Gpu(other)) => gpus(one, other),
            (Condition::Pools(one), Condition::Pools(other)) => self.pools(one, other),
            (Condition::NodeInfo(one), Condition::NodeInfo(other)) if one.field == other.field => Fit::Unknown,
            (Condition::Expression(expression), condition) | (condition, Condition::Expression(expression)) => {
                if decides_on(expression, condition) {
                    Fit::Unknown
                } else {
                    Fit::Yes
                }
            }
            (
                Condition::Names(_)
                | Condition::Pools(_)
                | Condition::Label(_)
                | Condition::Taints(_)
                | Condition::Capacity(..)
                | Condition::Gpu(_)
                | Condition::NodeInfo(_),
                _,
            ) => Fit::Yes,
        }
    }

    /// A node may belong to several pools, but seldom does: only a pool that both name is certain.
    fn pools(&self, one: &TextSet, other: &TextSet) -> Fit {
        let mut names = self.set.pools().names().into_iter();
        if names.any(|name| one.contains(name) && other.contains(name)) { Fit::Yes } else { Fit::Unknown }
    }

    fn names(&mut self, one: NameGroup, other: NameGroup) -> Fit {
        let set = self.set;
        for (these, those, is_swapped) in [(one, other, false), (other, one, true)] {
            let exact = set.names_of(these).filter(|name| !is_glob(name));
            for name in exact {
                if self.names_left == 0 {
                    return Fit::Unknown;
                }
                self.names_left -= 1;
                if set.name_groups(name).contains(&those) {
                    return Fit::Names(name.to_owned(), name.to_owned());
                }
            }
            for glob in set.names_of(these).filter(|name| !is_swapped && is_glob(name)) {
                for theirs in set.names_of(those).filter(|name| is_glob(name)) {
                    if self.names_left == 0 {
                        return Fit::Unknown;
                    }
                    self.names_left -= 1;
                    if may_overlap(glob, theirs) {
                        return Fit::Names(glob.to_owned(), theirs.to_owned());
                    }
                }
            }
        }
        Fit::No
    }
}

/// The lists of conditions of which one must hold as a whole.
fn alternatives(matcher: &Matcher) -> Vec<Vec<&Condition>> {
    let all = || matcher.all.iter();
    match &matcher.any_of {
        None => vec![all().collect()],
        Some(groups) => groups.iter().map(|group: &Conditions| all().chain(group.iter()).collect()).collect(),
    }
}

/// Whether an expression reads what another condition is about, so that one may exclude the other.
fn decides_on(expression: &Arc<Expression>, condition: &Condition) -> bool {
    let reads = expression.reads();
    match condition {
        Condition::Names(_) => reads.name || reads.pools,
        Condition::Pools(_) => reads.pools,
        Condition::Label(requirement) => condition_reads(expression, &requirement.key),
        Condition::Taints(_) => reads.taints,
        Condition::Capacity(..) | Condition::NodeInfo(_) => reads.other,
        Condition::Gpu(_) => reads.gpu || reads.other || reads.any_label || !reads.labels.is_empty(),
        Condition::Expression(other) => other.source() != expression.source(),
    }
}

fn condition_reads(expression: &Arc<Expression>, key: &str) -> bool {
    crate::set::matcher::Source::Expression(expression).reads_label(key)
}

fn gpus(one: &GpuCondition, other: &GpuCondition) -> Fit {
    let GpuCondition { vendor, model, count } = one;
    let counts = count.zip(other.count).map(|(one, other): (Comparison, Comparison)| one.excludes(other));
    let texts =
        [(vendor, &other.vendor), (model, &other.model)].map(|(one, other)| texts(one.as_ref(), other.as_ref()));
    if counts == Some(true) || texts.iter().any(|fit| matches!(fit, Fit::No)) {
        return Fit::No;
    }
    if texts.iter().any(|fit| matches!(fit, Fit::Unknown)) { Fit::Unknown } else { Fit::Yes }
}

/// Whether a text can be in both sets.
fn texts(one: Option<&TextSet>, other: Option<&TextSet>) -> Fit {
    let (Some(one), Some(other)) = (one, other) else { return Fit::Yes };
    let exact =
        |set: &TextSet, other: &TextSet| set.written().filter(|text| !is_glob(text)).any(|text| other.contains(text));
    let has_globs = |set: &TextSet| set.written().any(is_glob);
    if exact(one, other) || exact(other, one) {
        return Fit::Yes;
    }
    if has_globs(one) && has_globs(other) { Fit::Unknown } else { Fit::No }
}

/// Whether no label satisfies both.
fn contradict(one: &Requirement, other: &Requirement) -> bool {
    one.key == other.key
        && match (one.operator, other.operator) {
            (Operator::In, Operator::In) => one.values.iter().all(|value| !other.values.contains(value)),
            (Operator::In, Operator::NotIn) => one.values.iter().all(|value| other.values.contains(value)),
            (Operator::In | Operator::Exists, Operator::DoesNotExist) => true,
            _ => false,
        }
}
