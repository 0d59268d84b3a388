//! Nodes and values that differ a little from all others, which is often a mistake: `gpu_l4` beside `gpu-l4`.

use std::collections::{BTreeMap, BTreeSet};

use super::FleetNode;
use super::assigned::{Assigned, Value};
use crate::keys::Field;

/// Maximum number that is listed.
const LISTED_MAX: usize = 20;
/// In a group of fewer nodes, one that differs is not odd.
const GROUP_MIN: usize = 4;
/// Shorter words differ in one letter without being alike: cpu and gpu.
const WORD_MIN: usize = 4;
/// Of more values of a key than this, no two are compared letter by letter.
const VALUES_MAX: usize = 200;
/// What all but one in this many nodes of a group have was probably meant for all.
const LACKING_MAX: usize = 10;
/// The number of nodes that are named of those that lack something.
const NAMED_MAX: usize = 5;

/// The odd ones out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OddOnes {
    /// Each in words.
    pub(super) listed: Vec<String>,
    /// The number of those that are not listed.
    pub(super) more: usize,
}

/// A label, or taints of one effect, by key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'v> {
    field: Field,
    key: &'v str,
    effect: &'static str,
}

/// The values of each key, with the nodes that have them, sorted.
type Values<'v> = BTreeMap<Key<'v>, Vec<(&'v Value<'v>, &'v [usize])>>;

impl OddOnes {
    /// The odd ones among these values, in these groups of nodes.
    pub(super) fn of(fleet: &[&FleetNode], assigned: &Assigned<'_>, groups: &[(String, Vec<usize>)]) -> Self {
        let mut values = Values::new();
        for (value, nodes) in assigned {
            let effect = match value {
                Value::Label { .. } => "",
                Value::Taint { id, .. } => id.effect.as_str(),
            };
            values.entry(Key { field: value.field(), key: value.key(), effect }).or_default().push((value, nodes));
        }
        let nodes = groups.iter().filter(|(_, nodes)| nodes.len() >= GROUP_MIN);
        let mut listed: Vec<String> = nodes.flat_map(|(name, nodes)| of_group(fleet, &values, name, nodes)).collect();
        let nodes = groups.iter().filter(|(_, nodes)| nodes.len() >= GROUP_MIN);
        listed.extend(nodes.flat_map(|(name, nodes)| lacked_by_few(fleet, assigned, name, nodes)));
        listed.extend(values.iter().flat_map(|(key, values)| alike(*key, values)));
        let more = listed.len().saturating_sub(LISTED_MAX);
        listed.truncate(LISTED_MAX);
        Self { listed, more }
    }
}

/// The nodes of a group that alone have another value of a key than all others, or alone have one, or none.
fn of_group(fleet: &[&FleetNode], values: &Values<'_>, group: &str, nodes: &[usize]) -> Vec<String> {
    let members: BTreeSet<usize> = nodes.iter().copied().collect();
    let mut odd: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (key, values) in values {
        let mut having: Vec<(&Value<'_>, Vec<usize>)> = values
            .iter()
            .map(|(value, nodes)| (*value, nodes.iter().copied().filter(|node| members.contains(node)).collect()))
            .filter(|(_, nodes): &(_, Vec<usize>)| !nodes.is_empty())
            .collect();
        having.sort_by_key(|(_, nodes)| nodes.len());
        let others = nodes.len() - 1;
        let found = match having.as_slice() {
            [(one, node)] if node.len() == 1 => {
                Some((node[0], format!("has {}; no other node of {group} has that key", one.text())))
            }
            [(all, having)] if having.len() == others => {
                let without = members.iter().find(|node| having.binary_search(node).is_err());
                without.map(|node| {
                    (*node, format!("has no {}; the other {others} nodes of {group} have {}", key.key, all.text()))
                })
            }
            [(one, node), (all, having)] if node.len() == 1 && having.len() == others => {
                Some((node[0], format!("has {}; the other {others} nodes of {group} have {}", one.text(), all.text())))
            }
            _ => None,
        };
        found.into_iter().for_each(|(node, what)| odd.entry(node).or_default().push(what));
    }
    odd.into_iter().map(|(node, what)| format!("{} {}", fleet[node].name, what.join(", and "))).collect()
}

/// What nearly all nodes of a group have, with the several that do not. A single one is told by [`of_group`].
fn lacked_by_few(fleet: &[&FleetNode], assigned: &Assigned<'_>, group: &str, nodes: &[usize]) -> Vec<String> {
    let of_value = |(value, having): (&Value<'_>, &Vec<usize>)| {
        let lacking: Vec<&str> = nodes
            .iter()
            .filter(|node| having.binary_search(node).is_err())
            .map(|node| fleet[*node].name.as_str())
            .collect();
        if lacking.len() < 2 || lacking.len() * LACKING_MAX > nodes.len() {
            return None;
        }
        let has = nodes.len() - lacking.len();
        let more = match lacking.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let named = lacking[..lacking.len().min(NAMED_MAX)].join(", ");
        Some(format!("{has} of the {} nodes of {group} have {}, but not {named}{more}", nodes.len(), value.text()))
    };
    assigned.iter().filter_map(of_value).collect()
}

/// Pairs of values of one key that differ only in `-`, `_`, `.` and case, or in one letter.
fn alike(key: Key<'_>, values: &[(&Value<'_>, &[usize])]) -> Vec<String> {
    let mut plain: BTreeMap<String, usize> = BTreeMap::new();
    let mut pairs = BTreeSet::new();
    for (at, (value, _)) in values.iter().enumerate() {
        if let Some(first) = plain.get(&plain_form(value.value())) {
            pairs.insert((*first, at));
        }
        plain.entry(plain_form(value.value())).or_insert(at);
    }
    if values.len() <= VALUES_MAX {
        for (at, (one, one_has)) in values.iter().enumerate() {
            for (of, (other, other_has)) in values.iter().enumerate().skip(at + 1) {
                let (few, many) = (one_has.len().min(other_has.len()), one_has.len().max(other_has.len()));
                // A mistake is rare.
                if few * 4 <= many && differ_in_a_letter(one.value(), other.value()) {
                    pairs.insert((at, of));
                }
            }
        }
    }
    let what = match key.field {
        Field::Taint => "taint",
        Field::Label | Field::Annotation => "label",
    };
    let side = |(value, nodes): &(&Value<'_>, &[usize])| match nodes.len() {
        1 => format!("{:?} on 1 node", value.value()),
        many => format!("{:?} on {many} nodes", value.value()),
    };
    let pair = |(one, other): (usize, usize)| {
        let (mut one, mut other) = (&values[one], &values[other]);
        if one.1.len() > other.1.len() {
            std::mem::swap(&mut one, &mut other);
        }
        format!("{what} {} is {}, and {}", key.key, side(one), side(other))
    };
    pairs.into_iter().map(pair).collect()
}

/// A value without case, `-`, `_` and `.` between letters. Between numbers a `.` means something.
fn plain_form(value: &str) -> String {
    let bytes = value.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let keeps = |at: usize, letter: char| match letter {
        '-' | '_' | '.' => is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)),
        _ => true,
    };
    let kept = value.char_indices().filter(|(at, letter)| keeps(*at, *letter));
    kept.map(|(_, letter)| letter.to_ascii_lowercase()).map(|letter| if letter == '_' { '-' } else { letter }).collect()
}

/// Whether two values are equal but for one letter that is another one, is missing, or has changed places with the next. Values with
/// another number are not, nor are those whose words that differ are short.
fn differ_in_a_letter(one: &str, other: &str) -> bool {
    let split = |text: &str| -> Vec<String> { text.split(['-', '_', '.', '/']).map(str::to_ascii_lowercase).collect() };
    let (one, other) = (split(one), split(other));
    let mut words = one.iter().zip(&other).filter(|(one, other)| one != other);
    let (Some((one_word, other_word)), None) = (words.next(), words.next()) else { return false };
    one.len() == other.len() && is_typo(one_word, other_word)
}

fn is_typo(one: &str, other: &str) -> bool {
    let is_long = one.len().min(other.len()) >= WORD_MIN;
    let has_digit = one.bytes().chain(other.bytes()).any(|byte| byte.is_ascii_digit());
    is_long && !has_digit && strsim::osa_distance(one, other) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_look_alike_are_recognised() {
        for (one, other) in [("gpu-l4", "gpu_l4"), ("gpu-l4", "gpuL4"), ("true", "True"), ("a-b", "ab"), ("1-2", "1_2")]
        {
            assert_eq!(plain_form(one), plain_form(other), "{one} {other}");
        }
        for (one, other) in [("1.10", "110"), ("1.1", "1-1"), ("gpu-l4", "gpu-l40"), ("2-4", "24")] {
            assert_ne!(plain_form(one), plain_form(other), "{one} {other}");
        }
        for (one, other) in
            [("gold", "glod"), ("silver", "sliver"), ("gold", "golds"), ("team-data", "team-dara"), ("prod", "pord")]
        {
            assert!(differ_in_a_letter(one, other) && differ_in_a_letter(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("cpu", "gpu"),
            ("rack-1", "rack-2"),
            ("zone-a", "zone-b"),
            ("node10", "node11"),
            ("gold", "gold"),
            ("gold", "bolt"),
            ("gold-gold", "glod-glod"),
            ("east", "east-1"),
            ("large", "huge"),
        ] {
            assert!(!differ_in_a_letter(one, other), "{one} {other}");
        }
    }
}
