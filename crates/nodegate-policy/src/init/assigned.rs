//! The labels and taints of a fleet: what its policy may have, and what not, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use super::{FleetNode, Included, LeftOut, values};
use crate::api::names::{NameError, TaintEffect, TaintId, check_label_key, check_label_value};
use crate::facts::pending_taints::PendingTaints;
use crate::keys::programs::Program;
use crate::keys::restriction::{is_own, writable_label};
use crate::keys::{Field, programs};

/// A label or taint with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value<'a> {
    Label { key: &'a str, value: &'a str },
    Taint { id: TaintId, value: &'a str },
}

impl Value<'_> {
    pub(super) fn field(&self) -> Field {
        match self {
            Self::Label { .. } => Field::Label,
            Self::Taint { .. } => Field::Taint,
        }
    }

    pub(super) fn key(&self) -> &str {
        match self {
            Self::Label { key, .. } => key,
            Self::Taint { id, .. } => id.key.as_str(),
        }
    }

    pub(super) fn value(&self) -> &str {
        match self {
            Self::Label { value, .. } | Self::Taint { value, .. } => value,
        }
    }

    /// `key=value`, `key=value:Effect`, and `key=""` or `key:Effect` without a value.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Label { key, value: "" } => format!("{key}=\"\""),
            Self::Label { key, value } => format!("{key}={value}"),
            Self::Taint { id, value: "" } => format!("{}:{}", id.key, id.effect),
            Self::Taint { id, value } => format!("{}={value}:{}", id.key, id.effect),
        }
    }
}

/// Values, each with the nodes that have it, sorted.
pub(super) type Assigned<'a> = BTreeMap<Value<'a>, Vec<usize>>;

/// What is not in the policy: the nodes that have it, by field, key and reason.
#[derive(Default)]
pub(super) struct LeftOuts(BTreeMap<(Field, String, String), BTreeSet<usize>>);

impl LeftOuts {
    pub(super) fn add(&mut self, field: Field, key: &str, reason: String, nodes: impl IntoIterator<Item = usize>) {
        self.0.entry((field, key.to_owned(), reason)).or_default().extend(nodes);
    }

    pub(super) fn list(self) -> Vec<LeftOut> {
        let left_out =
            |((field, key, reason), nodes): (_, BTreeSet<usize>)| LeftOut { field, key, nodes: nodes.len(), reason };
        self.0.into_iter().map(left_out).collect()
    }
}

/// The labels and taints of a fleet: those that rules may assign, and the others.
pub(super) struct Sorted<'a> {
    pub(super) assigned: Assigned<'a>,
    pub(super) left_out: LeftOuts,
}

impl<'a> Sorted<'a> {
    pub(super) fn of(fleet: &[&'a FleetNode], pending: &PendingTaints, included: &Included) -> Self {
        let judge = Judge { pending, included, of_machine: values::of_machine(fleet) };
        let mut assigned = Assigned::new();
        let mut left_out = LeftOuts::default();
        for (at, node) in fleet.iter().enumerate() {
            let labels = node.labels.iter().map(|(key, value)| (Field::Label, key.as_str(), judge.label(key, value)));
            let taints = node
                .taints
                .iter()
                .map(|((key, effect), value)| (Field::Taint, key.as_str(), judge.taint(key, effect, value)));
            for (field, key, value) in labels.chain(taints) {
                match value {
                    Ok(value) => assigned.entry(value).or_default().push(at),
                    Err(reason) => left_out.add(field, key, reason, [at]),
                }
            }
        }
        Self { assigned, left_out }
    }
}

/// Decides which labels and taints are in the policy.
struct Judge<'a> {
    pending: &'a PendingTaints,
    included: &'a Included,
    /// The labels whose values say something of one machine, with the reason.
    of_machine: BTreeMap<&'a str, String>,
}

impl Judge<'_> {
    /// A label for the policy, or the reason why it has none.
    fn label<'v>(&self, key: &'v str, value: &'v str) -> Result<Value<'v>, String> {
        self.reason(Field::Label, key, value).map_or(Ok(()), Err)?;
        check_label_key(key).and_then(|()| check_label_value(value)).map_err(|error| error.to_string())?;
        Ok(Value::Label { key, value })
    }

    /// A taint for the policy, or the reason why it has none.
    fn taint<'v>(&self, key: &'v str, effect: &str, value: &'v str) -> Result<Value<'v>, String> {
        if self.pending.has_key(key) {
            return Err("it is the pending taint, which the controller removes".to_owned());
        }
        self.reason(Field::Taint, key, value).map_or(Ok(()), Err)?;
        let id = || -> Result<TaintId, NameError> {
            check_label_value(value)?;
            Ok(TaintId { key: key.parse()?, effect: effect.parse::<TaintEffect>()? })
        };
        Ok(Value::Taint { id: id().map_err(|error| error.to_string())?, value })
    }

    /// Why a label or taint is left out: a program sets it, also on a new node, and a rule for the same key would conflict with
    /// it. Or its value says something of one machine.
    fn reason(&self, field: Field, key: &str, value: &str) -> Option<String> {
        if is_own(key) {
            return Some("it is reserved for nodegate".to_owned());
        }
        let program = || programs::of(field, key, Some(value)).map(Program::reason);
        if self.included.0.contains(key) {
            // No policy may assign these.
            let refused = field == Field::Label && writable_label(key).is_err();
            return refused.then(program).flatten();
        }
        program().or_else(|| match field {
            Field::Label => self.of_machine.get(key).cloned(),
            Field::Annotation | Field::Taint => values::looks_like(key, value).map(str::to_owned),
        })
    }
}
