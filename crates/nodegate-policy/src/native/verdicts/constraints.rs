//! The constraints of governance, one function per kind. Kinds and entries that are not exported are listed.
//!
//! Only changes are judged. The changed keys are known here, so entries about single keys are exported if no write can
//! change whether they apply to the node.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use crate::api::policy::ChangeOperation;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::native::objects::LeftOut;
use crate::native::terms::formula::{Formula, in_keys, list, quote};
use crate::native::terms::ranges;
use crate::native::terms::re2::is_same_to_re2;
use crate::native::terms::variables::Variables;
use crate::native::verdicts::dependencies;
use crate::native::verdicts::entry::{
    EntryContext, is_about_change, is_about_names, is_about_node, is_subject, reason,
};
use crate::native::verdicts::expressions;
use crate::native::verdicts::naming;
use crate::native::verdicts::validation::{FIELDS, Validation, describe, now};
use crate::set::governance::{
    Accepted, Constraint, ConstraintEntry, Dependency, ExpressionConstraint, Naming, Subjects,
};

/// Whether a constraint that may be exported applies to this key (for a taint, without its effect).
pub(in crate::native) fn is_about(constraint_entry: &ConstraintEntry, field: Field, key: &str) -> bool {
    match &constraint_entry.constraint {
        Constraint::Immutable { keys, of } => of.contains(&field) && keys.contains(key),
        Constraint::Allowed { key: wanted, of, .. } => of.contains(&field) && **wanted == *key,
        Constraint::Naming(naming) => naming.is_about(field, key),
        Constraint::Dependency(dependency) => dependency.mentions(field, key),
        // An expression may read anything; annotations only by name.
        Constraint::Expression(demanded) => {
            (field != Field::Annotation || demanded.expression.source().contains("annotations"))
                && expressions::passes(demanded).is_some()
        }
        Constraint::Required { .. } => false,
    }
}

/// The validations of all constraints.
pub(in crate::native) fn validations(
    judging: EntryContext<'_, '_>,
    variables: &mut Variables,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Validation> {
    let mut validations = Vec::new();
    for (name, text) in expressions::variables() {
        variables.add(name, text);
    }
    for (number, constraint_entry) in judging.selection.set().governance().constraints().iter().enumerate() {
        if let Some(reason) = why_not(judging, constraint_entry) {
            left_out.push(LeftOut::of(&constraint_entry.entry.id, "", reason));
            continue;
        }
        let name = format!("demand{number}");
        validations.extend(match &constraint_entry.constraint {
            Constraint::Dependency(dependency) => unmet(judging, constraint_entry, dependency, &name, variables),
            Constraint::Expression(demanded) => untrue(judging, constraint_entry, demanded, &name, variables),
            Constraint::Required { .. } => by_key(judging, constraint_entry, &name, variables, |field, _, variable| {
                format!(r#"{variable}.map(k, "{field} \"" + k + "\"").join(", ")"#)
            }),
            Constraint::Immutable { .. } => {
                by_key(judging, constraint_entry, &name, variables, |field, _, variable| {
                    let now = now(field);
                    format!(
                        r#"{variable}.map(k, "{field} \"" + k + "\" is immutable and cannot be " + (k in {now} ? "changed" : "removed")).join(", ")"#
                    )
                })
            }
            Constraint::Allowed { .. } | Constraint::Naming(_) => {
                by_key(judging, constraint_entry, &name, variables, describe)
            }
        });
    }
    validations
}

/// The validations of a constraint that concerns single keys, one per field.
fn by_key(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    name: &str,
    variables: &mut Variables,
    describe: impl Fn(Field, &str, &str) -> String,
) -> Vec<Validation> {
    let excepted = is_subject(&constraint_entry.entry.except);
    let mut validations = Vec::new();
    for (field, title) in FIELDS {
        let Some((keys, wrong)) = keys(judging, constraint_entry, field, title) else { continue };
        let name = format!("{name}_{title}");
        let judged = Formula::all([excepted.clone().not(), Formula::When(format!("({keys}.size() > 0)"))]);
        variables.add(&name, format!("{} ? {keys} : []", judged.text()));
        let variable = format!("variables.{name}");
        let describe = describe(field, title, &variable);
        validations.extend(judging.validations(
            &constraint_entry.entry,
            &variable,
            &describe,
            &because(judging, constraint_entry, &wrong),
        ));
    }
    validations
}

/// The validations of a dependency.
fn unmet(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    dependency: &Dependency,
    name: &str,
    variables: &mut Variables,
) -> Vec<Validation> {
    let entry = &constraint_entry.entry;
    let judged = Formula::all([is_subject(&entry.except).not(), is_about_node(judging.selection, entry)]);
    let findings: Vec<String> = dependencies::findings(dependency, entry)
        .into_iter()
        .map(|(lacks, text)| format!("?({} ? optional.of({}) : optional.none())", lacks.text(), quote(&text)))
        .collect();
    variables.add(name, format!("{} ? [{}] : []", judged.text(), findings.join(", ")));
    let variable = format!("variables.{name}");
    let describe = format!(r#"{variable}.join("; ")"#);
    judging.validations(entry, &variable, &describe, &because(judging, constraint_entry, ""))
}

/// The validations of an expression. It may fail, so it gets its own policy.
fn untrue(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    demanded: &ExpressionConstraint,
    name: &str,
    variables: &mut Variables,
) -> Vec<Validation> {
    let entry = &constraint_entry.entry;
    let Some(passes) = expressions::passes(demanded) else { return Vec::new() };
    let judged = Formula::all([
        is_subject(&entry.except).not(),
        is_about_node(judging.selection, entry),
        dependencies::is_about_write(entry),
    ]);
    variables.add(name, format!("({} && !{}) ? [true] : []", judged.text(), passes.text()));
    let (describe, plain) = expressions::describe(demanded);
    let reason = because(judging, constraint_entry, "");
    let made = judging.validations(entry, &format!("variables.{name}"), &describe, &reason);
    let fallback = format!("nodegate: {plain}{reason}");
    made.into_iter().map(|one| Validation { alone: true, fallback: fallback.clone(), ..one }).collect()
}

/// The end of a message, after the keys: what is wrong, the rule, and how to override it.
fn because(judging: EntryContext<'_, '_>, constraint_entry: &ConstraintEntry, wrong: &str) -> String {
    let entry = &constraint_entry.entry;
    let except = entry.except.describe();
    let except = if except.is_empty() { String::new() } else { format!("; exempt: {}", except.join("; ")) };
    format!("{wrong} (policy {}, rule {}{except}); {}", entry.id.policy, entry.id.rule, judging.override_hint(entry))
}

/// Why a constraint is not exported.
fn why_not(judging: EntryContext<'_, '_>, constraint_entry: &ConstraintEntry) -> Option<&'static str> {
    let entry = &constraint_entry.entry;
    let own = match &constraint_entry.constraint {
        Constraint::Immutable { .. } => None,
        Constraint::Required { .. } => names_only(constraint_entry),
        Constraint::Allowed { accepted: Accepted::Matching(pattern), of, .. } => {
            names_only(constraint_entry).or_else(|| {
                let same = is_same_to_re2(&pattern.written) && !of.contains(&Field::Annotation);
                (!same).then_some("its pattern may have another meaning in the API server's regular expressions (RE2)")
            })
        }
        Constraint::Allowed { .. } => names_only(constraint_entry),
        Constraint::Dependency(_) => names_only(constraint_entry),
        Constraint::Naming(naming) => names_only(constraint_entry).or_else(|| naming::why_not(naming)),
        Constraint::Expression(demanded) => names_only(constraint_entry).or_else(|| expressions::why_not(demanded)),
    };
    own.or_else(|| reason(judging.selection.set(), entry, &Subjects::default()))
}

fn names_only(constraint_entry: &ConstraintEntry) -> Option<&'static str> {
    (!is_about_names(&constraint_entry.entry)).then_some(
        "its match depends on fields that a write may change, so the stored node would have to be judged as well",
    )
}

/// CEL for the keys of one field that violate the constraint, and the end of the message.
fn keys(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    field: Field,
    title: &str,
) -> Option<(String, String)> {
    match &constraint_entry.constraint {
        Constraint::Immutable { keys, of } => {
            of.contains(&field).then(|| (immutable(judging, constraint_entry, keys, field, title), String::new()))
        }
        Constraint::Required { keys, of } => of
            .contains(&field)
            .then(|| (required(judging, constraint_entry, keys, field, title), " is required and missing".to_owned())),
        Constraint::Allowed { key, of, accepted } => {
            let rather = match accepted {
                Accepted::Values(values) => format!(": the allowed values are {}", values.join(", ")),
                Accepted::Matching(pattern) => format!(": the value must match {}", pattern.written),
                Accepted::Range { min, max } => ranges::describe(*min, *max),
            };
            of.contains(&field).then(|| (allowed(judging, constraint_entry, key, accepted, field, title), rather))
        }
        Constraint::Naming(naming) => naming
            .of
            .contains(&field)
            .then(|| (misnamed(judging, constraint_entry, naming, field, title), naming::describe(naming))),
        Constraint::Dependency(_) | Constraint::Expression(_) => None,
    }
}

/// CEL for keys whose name or value violates a convention.
fn misnamed(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    naming: &Naming,
    field: Field,
    title: &str,
) -> String {
    let violates = Formula::all([
        naming::is_about(naming, field),
        naming::is_wrong(naming, field, title),
        is_about_change(&constraint_entry.entry, field, title),
        is_about_node(judging.selection, &constraint_entry.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// CEL for immutable keys that are changed or removed.
fn immutable(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    keys: &KeySet,
    field: Field,
    title: &str,
) -> String {
    let violates = Formula::all([
        in_place(field, keys),
        Formula::When(format!("(k in variables.old{title})")),
        is_about_change(&constraint_entry.entry, field, title),
        is_about_node(judging.selection, &constraint_entry.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// CEL for required keys that a CREATE lacks or an UPDATE removes.
fn required(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    keys: &[Box<str>],
    field: Field,
    title: &str,
) -> String {
    let about = |operation: ChangeOperation| Formula::from(constraint_entry.entry.is_about(operation));
    let (there, taken) = if field == Field::Taint {
        (
            r#"variables.taintValues.exists(id, id.startsWith(k + ":"))"#.to_owned(),
            format!("variables.changed{title}.exists(id, id.startsWith(k + \":\"))"),
        )
    } else {
        (format!("(k in {})", now(field)), format!("(k in variables.changed{title})"))
    };
    let create = Formula::When("variables.create".to_owned());
    let lost = Formula::any([
        Formula::all([create.clone(), about(ChangeOperation::Add)]),
        Formula::all([create.not(), Formula::When(taken), about(ChangeOperation::Remove)]),
    ]);
    let about_node = is_about_node(judging.selection, &constraint_entry.entry);
    let violates = Formula::all([Formula::When(there).not(), lost, about_node]);
    format!("{}.filter(k, {})", list(keys.iter().map(|key| &**key)), violates.text())
}

/// CEL for a key whose value is not allowed.
fn allowed(
    judging: EntryContext<'_, '_>,
    constraint_entry: &ConstraintEntry,
    key: &str,
    accepted: &Accepted,
    field: Field,
    title: &str,
) -> String {
    let value = format!("{}[k]", now(field));
    let wrong = match accepted {
        Accepted::Values(values) => {
            Formula::When(format!("({value} in {})", list(values.iter().map(|value| &**value)))).not()
        }
        Accepted::Matching(pattern) => {
            Formula::When(format!("{value}.matches({})", quote(&format!("^(?:{})$", pattern.written)))).not()
        }
        Accepted::Range { min, max } => {
            let was_there = Formula::When(format!("(k in variables.old{title})"));
            ranges::is_wrong(&value, was_there, &format!("variables.old{title}[k]"), *min, *max)
        }
    };
    let violates = Formula::all([
        in_place(field, &KeySet::compile([key], |_, _| {})),
        Formula::When(format!("(k in {})", now(field))),
        wrong,
        is_about_change(&constraint_entry.entry, field, title),
        is_about_node(judging.selection, &constraint_entry.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// Whether the key in `k` (for a taint `key:Effect`) is in the set.
fn in_place(field: Field, keys: &KeySet) -> Formula {
    if field == Field::Taint { crate::native::verdicts::validation::taint_in_keys(keys) } else { in_keys("k", keys) }
}
