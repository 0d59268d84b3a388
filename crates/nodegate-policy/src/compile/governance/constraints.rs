//! Compiles `required`, `allowed`, `immutable`, `dependencies`, `naming` and `expressions` to [`ConstraintEntry`]s.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Entries, fields};
use crate::api::names::{check_label_key, check_label_value};
use crate::api::policy::{
    AllowedSpec, DependencySpec, EntrySpec, ExpressionSpec, GovernanceSpec, ImmutableSpec, NamedPart, NamingSpec,
    RequiredSpec,
};
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::api::source::FieldPath;
use crate::cel::{REGEX_FACTOR, REGEX_SIZE_MAX, Scope, Yields, sized_regex};
use crate::compile::Faults;
use crate::compile::texts::expression as compile_expression;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::set::governance::{
    Accepted, Constraint, ConstraintEntry, Dependency, ExpressionConstraint, Naming, NamingConvention, TextPattern,
};
use crate::set::matcher::TaintPattern;

/// The default fields of constraints.
const LABELS: [Field; 1] = [Field::Label];

/// Compiles the entries of one document except `reserved`. Entries with errors are omitted.
pub(super) fn compile(spec: &GovernanceSpec, entries: &mut Entries<'_, '_>) -> Vec<(FieldPath, ConstraintEntry)> {
    // The caller compiles reserved entries and breakGlass. All fields are destructured, so that no section is forgotten.
    let GovernanceSpec {
        reserved: _,
        required: required_specs,
        allowed: allowed_specs,
        immutable: immutable_specs,
        dependencies,
        naming: naming_specs,
        expressions,
        break_glass: _,
    } = spec;
    let mut found = Vec::new();
    section("required", required_specs, |spec| &spec.entry, required, entries, &mut found);
    section("allowed", allowed_specs, |spec| &spec.entry, allowed, entries, &mut found);
    section("immutable", immutable_specs, |spec| &spec.entry, immutable, entries, &mut found);
    section("dependencies", dependencies, |spec| &spec.entry, dependency, entries, &mut found);
    section("naming", naming_specs, |spec| &spec.entry, naming, entries, &mut found);
    section("expressions", expressions, |spec| &spec.entry, expression, entries, &mut found);
    found
}

fn section<S>(
    name: &str,
    specs: &[S],
    entry_of: impl Fn(&S) -> &EntrySpec,
    what: impl Fn(&S, &FieldPath, &mut Faults<'_>) -> Option<Constraint>,
    entries: &mut Entries<'_, '_>,
    found: &mut Vec<(FieldPath, ConstraintEntry)>,
) {
    for (at, spec) in specs.iter().enumerate() {
        let (entry, path) = entries.entry(name, at, entry_of(spec));
        let what = what(spec, &path, entries.faults);
        found.extend(what.map(|what| (path, ConstraintEntry { entry, constraint: what })));
    }
}

fn key_set(keys: &[String], path: &FieldPath, faults: &mut Faults<'_>) -> KeySet {
    if keys.is_empty() {
        faults.at(&path.key("keys"), Problem::new("the list is empty, so nothing is governed", "add keys"));
    }
    KeySet::compile(keys.iter().map(String::as_str), |index, message| {
        faults.at(&path.key("keys").index(index), message);
    })
}

fn required(spec: &RequiredSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let RequiredSpec { entry: _, keys, of } = spec;
    if keys.is_empty() {
        faults.at(&path.key("keys"), Problem::new("the list is empty, so nothing is required", "add keys"));
    }
    for (index, key) in keys.iter().enumerate() {
        faults.check(&path.key("keys").index(index), check_label_key(key));
    }
    let keys = keys.iter().map(|key| key.as_str().into()).collect();
    Some(Constraint::Required { keys, of: fields(of.as_deref(), &LABELS, &path.key("of"), faults) })
}

fn allowed(spec: &AllowedSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let AllowedSpec { entry: _, key, of, values, pattern, range } = spec;
    faults.check(&path.key("key"), check_label_key(key));
    let of = fields(of.as_deref(), &LABELS, &path.key("of"), faults);
    let accepted = match (values, pattern, range) {
        (Some(values), None, None) => {
            for (index, value) in values.iter().enumerate().filter(|_| !of.contains(&Field::Annotation)) {
                faults.check(&path.key("values").index(index), check_label_value(value));
            }
            if values.is_empty() {
                faults.at(
                    &path.key("values"),
                    Problem::new("the list is empty, so no value would be allowed", "add values"),
                );
            }
            Accepted::Values(values.iter().map(|value| value.as_str().into()).collect())
        }
        (None, Some(pattern), None) => Accepted::Matching(text_pattern(pattern, &path.key("pattern"), faults)?),
        (None, None, Some(range)) => {
            match (range.min, range.max) {
                (None, None) => faults.at(&path.key("range"), "write min, max or both"),
                (Some(min), Some(max)) if min > max => faults.at(&path.key("range"), "min is larger than max"),
                _ => {}
            }
            Accepted::Range { min: range.min, max: range.max }
        }
        _ => {
            faults.at(path, "write exactly one of values, pattern and range");
            return None;
        }
    };
    Some(Constraint::Allowed { key: key.as_str().into(), of, accepted })
}

fn immutable(spec: &ImmutableSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let ImmutableSpec { entry: _, keys, of } = spec;
    let keys = key_set(keys, path, faults);
    Some(Constraint::Immutable { keys, of: fields(of.as_deref(), &LABELS, &path.key("of"), faults) })
}

fn dependency(spec: &DependencySpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let DependencySpec {
        entry: _,
        when: when_labels,
        require: require_labels,
        require_taints: taints,
        forbid: forbidden,
    } = spec;
    let mut labels = |field: &str, labels: &BTreeMap<String, String>| -> Vec<(Box<str>, Option<Box<str>>)> {
        let path = path.key(field);
        for (key, value) in labels {
            faults.check(&path.key(key), check_label_key(key));
            if value != "*" {
                faults.check(&path.key(key), check_label_value(value));
            }
        }
        let value = |value: &String| (value != "*").then(|| value.as_str().into());
        labels.iter().map(|(key, text)| (key.as_str().into(), value(text))).collect()
    };
    let (when, require) = (labels("when", when_labels), labels("require", require_labels));
    let mut require_taints = Vec::new();
    for (index, taint) in taints.iter().enumerate() {
        let pattern = faults.check(&path.key("requireTaints").index(index), TaintPattern::parse(taint));
        require_taints.extend(pattern.map(|pattern| (pattern, taint.as_str().into())));
    }
    for (index, key) in forbidden.iter().enumerate() {
        faults.check(&path.key("forbid").index(index), check_label_key(key));
    }
    if when_labels.is_empty() || (require_labels.is_empty() && taints.is_empty() && forbidden.is_empty()) {
        faults.at(path, "write when, and require, requireTaints or forbid");
    }
    let forbid = forbidden.iter().map(|key| key.as_str().into()).collect();
    Some(Constraint::Dependency(Dependency { when, require, require_taints, forbid, further: Vec::new() }))
}

fn naming(spec: &NamingSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let NamingSpec { entry: _, keys, of: part, fields: of, pattern: written, regex: regex_text, max_length } = spec;
    let pattern = written.as_deref().and_then(|written| {
        let found = NamingConvention::NAMED.iter().find(|(name, _)| *name == written).map(|(_, pattern)| *pattern);
        if found.is_none() {
            let names = NamingConvention::NAMED.map(|(name, _)| name);
            let remedy = match nearest(written, &names) {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("the patterns are {}; for another one, use regex", names.join(", ")),
            };
            faults.at(&path.key("pattern"), Problem::new(format!("there is no pattern {written:?}"), remedy));
        }
        found
    });
    let part = part.unwrap_or_default();
    if pattern == Some(NamingConvention::Namespaced) && part != NamedPart::Key {
        faults.at(
            &path.key("of"),
            Problem::new("namespaced applies only to keys", "write `of: key` or remove the field"),
        );
    }
    if written.is_none() && regex_text.is_none() && max_length.is_none() {
        faults.at(path, "write pattern, regex or maxLength");
    }
    let regex = regex_text.as_deref().and_then(|regex| text_pattern(regex, &path.key("regex"), faults));
    Some(Constraint::Naming(Naming {
        keys: key_set(keys, path, faults),
        of: fields(of.as_deref(), &LABELS, &path.key("in"), faults),
        part,
        pattern,
        regex,
        max_length: *max_length,
    }))
}

fn expression(spec: &ExpressionSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Constraint> {
    let ExpressionSpec { entry: _, expression: source, message, message_expression } = spec;
    let compiled = compile_expression(source, Scope::Write, Yields::Bool, &path.key("expression"), faults);
    if compiled.as_ref().is_some_and(|compiled| !compiled.reads().object && !compiled.reads().old_object) {
        let problem = Problem::new(
            "the expression reads neither object nor oldObject, so no write could change its result",
            "to restrict one kind of write, compare object with oldObject",
        );
        faults.at(&path.key("expression"), problem);
    }
    let message_expression = message_expression.as_deref().and_then(|source| {
        compile_expression(source, Scope::Write, Yields::Text, &path.key("messageExpression"), faults).map(Arc::new)
    });
    let message = message.as_deref().map(Into::into);
    Some(Constraint::Expression(ExpressionConstraint { expression: Arc::new(compiled?), message, message_expression }))
}

/// Maximum length of a regular expression, in bytes: it takes a hundred times as much when it is parsed.
const REGEX_MAX: usize = 4096;

/// Compiles a regular expression that a whole text must match.
fn text_pattern(written: &str, path: &FieldPath, faults: &mut Faults<'_>) -> Option<TextPattern> {
    if faults.budget.is_exceeded() {
        return None;
    }
    if written.len() > REGEX_MAX {
        let what = format!("the regular expression has {} bytes, but the limit is {REGEX_MAX}", written.len());
        faults.at(path, Problem::new(what, "write a shorter one"));
        return None;
    }
    // The pattern is first compiled alone: errors must refer to the written text, and the parentheses must not make `)(` valid.
    let compiled = sized_regex(written).and_then(|_| sized_regex(&format!("^(?:{written})$")));
    if matches!(compiled, Err(regex::Error::CompiledTooBig(_))) {
        // Finding that out takes as much as the largest one.
        faults.check(path, faults.budget.take(REGEX_FACTOR * REGEX_SIZE_MAX))?;
    }
    let report = |error| {
        let what = |why: &str| format!("{written:?} is not a regular expression: {why}");
        match regex_fault(written) {
            Some((why, part)) => {
                let at = format!(
                    "at column {} of it, ",
                    written.get(..part.start).map_or(0, |text| text.chars().count()) + 1
                );
                let problem = what(&why).into();
                faults.inside(path, written, part, problem, |_| what(&format!("{at}{why}")));
            }
            None => faults.at(path, what(&explain(&error))),
        }
    };
    let (whole, size) = compiled.map_err(report).ok()?;
    faults.check(path, faults.budget.take(REGEX_FACTOR * size))?;
    Some(TextPattern { written: written.into(), whole })
}

/// What is wrong with the syntax of a regular expression, and the bytes in which it is.
fn regex_fault(written: &str) -> Option<(String, Range<usize>)> {
    let (why, span) = match regex_syntax::parse(written).err()? {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), *error.span()),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), *error.span()),
        _ => return None,
    };
    Some((why, span.start.offset..span.end.offset))
}

/// An error that is not about the syntax.
fn explain(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(limit) => format!("it takes more than {limit} bytes when compiled"),
        other => other.to_string(),
    }
}
