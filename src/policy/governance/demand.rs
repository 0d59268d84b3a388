//! What entries other than `reserved` demand of a node, compiled.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

use std::sync::Arc;

use regex::Regex;

use super::Entry;
use super::naming::Pattern;
use crate::api::policy::NamedPart;
use crate::policy::cel::Expression;
use crate::policy::decision::Field;
use crate::policy::matcher::TaintPattern;
use crate::policy::pattern::KeySet;

/// One entry, and what it demands.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) entry: Entry,
    pub(crate) what: Wanted,
}

/// What is demanded.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These keys are there.
    Required { keys: Vec<Box<str>>, of: Vec<Field> },
    /// Where this key is there, its value is one of these.
    Allowed { key: Box<str>, of: Vec<Field>, accepted: Accepted },
    /// These keys do not change once they are there.
    Immutable { keys: KeySet, of: Vec<Field> },
    /// Where some labels are there, others are, too.
    Dependency(Dependency),
    /// Keys or values are written so.
    Naming(Naming),
    /// An expression is true.
    Expression(Demanded),
}

/// How a demand is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Judged<'w> {
    /// By the changes of these keys, whatever their values.
    Changes { keys: &'w KeySet, of: &'w [Field] },
    /// By what the node lacks after the write and did not lack before.
    State,
    /// By an expression.
    Expression(&'w Demanded),
}

impl Wanted {
    /// How it is judged.
    pub(crate) fn judged(&self) -> Judged<'_> {
        match self {
            Self::Immutable { keys, of } => Judged::Changes { keys, of },
            Self::Required { .. } | Self::Allowed { .. } | Self::Dependency(_) | Self::Naming(_) => Judged::State,
            Self::Expression(demanded) => Judged::Expression(demanded),
        }
    }

    /// The expression, if it is one.
    pub(crate) fn expression(&self) -> Option<&Demanded> {
        match self.judged() {
            Judged::Expression(demanded) => Some(demanded),
            Judged::Changes { .. } | Judged::State => None,
        }
    }
}

/// Values that are allowed.
#[derive(Clone, Debug)]
pub(crate) enum Accepted {
    /// These.
    Values(Vec<Box<str>>),
    /// Those that match as a whole.
    Matching(TextPattern),
    /// Whole numbers; an end that is left out is open.
    Range { min: Option<i64>, max: Option<i64> },
}

/// Labels that need others.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// Labels with values; `None` is any value.
    pub(crate) when: Vec<(Box<str>, Option<Box<str>>)>,
    /// Labels that must then be there.
    pub(crate) require: Vec<(Box<str>, Option<Box<str>>)>,
    /// Taints that must then be there, as compiled and as written.
    pub(crate) require_taints: Vec<(TaintPattern, Box<str>)>,
    /// Labels that must then be absent.
    pub(crate) forbid: Vec<Box<str>>,
    /// What the required labels need in their turn, by other entries, in words.
    pub(crate) further: Vec<String>,
}

impl Dependency {
    /// Whether it speaks of this key.
    pub(crate) fn mentions(&self, field: Field, key: &str) -> bool {
        match field {
            Field::Label => {
                self.when.iter().chain(&self.require).any(|(mentioned, _)| **mentioned == *key)
                    || self.forbid.iter().any(|mentioned| **mentioned == *key)
            }
            Field::Taint => self.require_taints.iter().any(|(pattern, _)| *pattern.key == *key),
            Field::Annotation => false,
        }
    }
}

/// How keys or values are written.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) keys: KeySet,
    pub(crate) of: Vec<Field>,
    pub(crate) part: NamedPart,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) regex: Option<TextPattern>,
    pub(crate) max_length: Option<u16>,
}

impl Naming {
    /// Whether it is about this key. `*` leaves out the namespaces of Kubernetes: nobody chooses those names.
    pub(crate) fn is_about(&self, field: Field, key: &str) -> bool {
        self.of.contains(&field) && (self.keys.names(key) || (self.keys.is_all() && !is_of_kubernetes(key)))
    }
}

/// Whether a key is in a namespace of Kubernetes.
fn is_of_kubernetes(key: &str) -> bool {
    let below = |prefix: &str, domain: &str| {
        prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    key.split_once('/').is_some_and(|(prefix, _)| below(prefix, "kubernetes.io") || below(prefix, "k8s.io"))
}

/// A regular expression that a whole text must match.
#[derive(Clone, Debug)]
pub(crate) struct TextPattern {
    pub(crate) written: Box<str>,
    pub(crate) whole: Regex,
}

/// An expression that must be true.
#[derive(Clone, Debug)]
pub(crate) struct Demanded {
    pub(crate) expression: Arc<Expression>,
    pub(crate) message: Option<Box<str>>,
    pub(crate) message_expression: Option<Arc<Expression>>,
}
