//! The compiled constraints of entries other than `reserved`.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use std::sync::Arc;

use regex::Regex;

use super::Entry;
use super::convention::NamingConvention;
use crate::api::policy::NamedPart;
use crate::cel::Expression;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::set::matcher::TaintPattern;

/// An entry and its constraint.
#[derive(Clone, Debug)]
pub(crate) struct ConstraintEntry {
    pub(crate) entry: Entry,
    pub(crate) constraint: Constraint,
}

/// A constraint on a node.
#[derive(Clone, Debug)]
pub(crate) enum Constraint {
    /// These keys must be present.
    Required { keys: Vec<Box<str>>, of: Vec<Field> },
    /// If this key is present, its value must be accepted.
    Allowed { key: Box<str>, of: Vec<Field>, accepted: Accepted },
    /// These keys must not be changed or removed.
    Immutable { keys: KeySet, of: Vec<Field> },
    /// Labels that require or forbid others.
    Dependency(Dependency),
    /// Keys or values must follow a convention.
    Naming(Naming),
    /// An expression must be true.
    Expression(ExpressionConstraint),
}

/// How a constraint is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JudgedBy<'w> {
    /// By the changes of these keys, whatever their values.
    Changes { keys: &'w KeySet, of: &'w [Field] },
    /// By the findings after the write that did not exist before.
    State,
    /// By an expression.
    Expression(&'w ExpressionConstraint),
}

impl Constraint {
    /// How it is judged.
    pub(crate) fn judged(&self) -> JudgedBy<'_> {
        match self {
            Self::Immutable { keys, of } => JudgedBy::Changes { keys, of },
            Self::Required { .. } | Self::Allowed { .. } | Self::Dependency(_) | Self::Naming(_) => JudgedBy::State,
            Self::Expression(demanded) => JudgedBy::Expression(demanded),
        }
    }

    /// Whether it names this label, itself and not by a prefix.
    pub(crate) fn is_about_label(&self, key: &str) -> bool {
        let named = |keys: &KeySet| keys.written().any(|written| written == key);
        let labels = |of: &[Field]| of.contains(&Field::Label);
        match self {
            Self::Required { keys, of } => labels(of) && keys.iter().any(|required| **required == *key),
            Self::Allowed { key: allowed, of, accepted: _ } => labels(of) && **allowed == *key,
            Self::Immutable { keys, of } => labels(of) && named(keys),
            Self::Dependency(dependency) => dependency.mentions(Field::Label, key),
            Self::Naming(naming) => labels(&naming.of) && named(&naming.keys),
            Self::Expression(_) => false,
        }
    }

    /// The expression, if it is one.
    pub(crate) fn expression(&self) -> Option<&ExpressionConstraint> {
        match self.judged() {
            JudgedBy::Expression(demanded) => Some(demanded),
            JudgedBy::Changes { .. } | JudgedBy::State => None,
        }
    }
}

/// The accepted values.
#[derive(Clone, Debug)]
pub(crate) enum Accepted {
    /// One of these.
    Values(Vec<Box<str>>),
    /// Values that match the pattern as a whole.
    Matching(TextPattern),
    /// Integers; an omitted limit is open.
    Range { min: Option<i64>, max: Option<i64> },
}

/// Labels that require or forbid others.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// Labels with values; `None` is any value.
    pub(crate) when: Vec<(Box<str>, Option<Box<str>>)>,
    /// Labels that must then be present.
    pub(crate) require: Vec<(Box<str>, Option<Box<str>>)>,
    /// Taints that must then be present, compiled and as written.
    pub(crate) require_taints: Vec<(TaintPattern, Box<str>)>,
    /// Labels that must then be absent.
    pub(crate) forbid: Vec<Box<str>>,
    /// What the required labels require in turn because of other entries, for messages.
    pub(crate) further: Vec<String>,
}

impl Dependency {
    /// The words of messages about its `when` labels: the noun, and the verbs for `require` and `forbid`.
    pub(crate) fn verbs(&self) -> (&'static str, &'static str, &'static str) {
        if self.when.len() == 1 { ("label", "requires", "forbids") } else { ("labels", "require", "forbid") }
    }

    /// Whether it mentions this key.
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

/// A naming convention for keys or values.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    pub(crate) keys: KeySet,
    pub(crate) of: Vec<Field>,
    pub(crate) part: NamedPart,
    pub(crate) pattern: Option<NamingConvention>,
    pub(crate) regex: Option<TextPattern>,
    pub(crate) max_length: Option<u16>,
}

impl Naming {
    /// Whether it applies to this key. `*` excludes the namespaces of Kubernetes, because users do not choose those names.
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
pub(crate) struct ExpressionConstraint {
    pub(crate) expression: Arc<Expression>,
    pub(crate) message: Option<Box<str>>,
    pub(crate) message_expression: Option<Arc<Expression>>,
}
