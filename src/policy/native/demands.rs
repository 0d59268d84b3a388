//! Governance by what a node must be like. One function a kind; kinds and entries that are not exported are listed.
//!
//! Only the difference is judged. Which keys a write changes is known here, so entries about single keys are exported
//! where no write changes whether they are about the node.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

use super::LeftOut;
use super::entry::{Judging, is_about_change, is_about_names, is_about_node, is_subject, reason};
use super::formula::{Formula, in_keys, list, quote};
use super::re2::is_same_to_re2;
use super::validating::{FIELDS, Validation, now, told};
use super::variables::Variables;
use super::{dependencies, expressions, naming, ranges};
use crate::api::policy::ChangeOperation;
use crate::policy::decision::Field;
use crate::policy::governance::{Accepted, Demand, Demanded, Dependency, Naming, Subjects, Wanted};
use crate::policy::pattern::KeySet;

/// Whether a demand that may be exported is about this key (of a taint without its effect).
pub(super) fn is_about(demand: &Demand, field: Field, key: &str) -> bool {
    match &demand.what {
        Wanted::Immutable { keys, of } => of.contains(&field) && keys.contains(key),
        Wanted::Allowed { key: wanted, of, .. } => of.contains(&field) && **wanted == *key,
        Wanted::Naming(naming) => naming.is_about(field, key),
        Wanted::Dependency(dependency) => dependency.mentions(field, key),
        // It may read anything; annotations by name only.
        Wanted::Expression(demanded) => {
            (field != Field::Annotation || demanded.expression.source().contains("annotations"))
                && expressions::passes(demanded).is_some()
        }
        Wanted::Required { .. } => false,
    }
}

/// The validations of all demands.
pub(super) fn validations(
    judging: Judging<'_, '_>,
    variables: &mut Variables,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Validation> {
    let mut validations = Vec::new();
    for (name, text) in expressions::asked() {
        variables.add(name, text);
    }
    for (number, demand) in judging.selection.set().governance().demands().iter().enumerate() {
        if let Some(reason) = why_not(judging, demand) {
            left_out.push(LeftOut::of(&demand.entry.id, "", reason));
            continue;
        }
        let name = format!("demand{number}");
        validations.extend(match &demand.what {
            Wanted::Dependency(dependency) => unmet(judging, demand, dependency, &name, variables),
            Wanted::Expression(demanded) => untrue(judging, demand, demanded, &name, variables),
            Wanted::Required { .. } => by_key(judging, demand, &name, variables, |field, _, variable| {
                format!(r#"{variable}.map(k, "{field} \"" + k + "\"").join(", ")"#)
            }),
            Wanted::Allowed { .. } | Wanted::Immutable { .. } | Wanted::Naming(_) => {
                by_key(judging, demand, &name, variables, told)
            }
        });
    }
    validations
}

/// Which keys are not as demanded, a validation for each field.
fn by_key(
    judging: Judging<'_, '_>,
    demand: &Demand,
    name: &str,
    variables: &mut Variables,
    told: impl Fn(Field, &str, &str) -> String,
) -> Vec<Validation> {
    let excepted = is_subject(&demand.entry.except);
    let mut validations = Vec::new();
    for (field, title) in FIELDS {
        let Some((keys, wrong)) = keys(judging, demand, field, title) else { continue };
        let name = format!("{name}_{title}");
        let judged = Formula::all([excepted.clone().not(), Formula::When(format!("({keys}.size() > 0)"))]);
        variables.add(&name, format!("{} ? {keys} : []", judged.text()));
        let variable = format!("variables.{name}");
        let told = told(field, title, &variable);
        validations.extend(judging.validations(&demand.entry, &variable, &told, &because(judging, demand, &wrong)));
    }
    validations
}

/// What labels need and is not there.
fn unmet(
    judging: Judging<'_, '_>,
    demand: &Demand,
    dependency: &Dependency,
    name: &str,
    variables: &mut Variables,
) -> Vec<Validation> {
    let entry = &demand.entry;
    let judged = Formula::all([is_subject(&entry.except).not(), is_about_node(judging.selection, entry)]);
    let findings: Vec<String> = dependencies::findings(dependency, entry)
        .into_iter()
        .map(|(lacks, text)| format!("?({} ? optional.of({}) : optional.none())", lacks.text(), quote(&text)))
        .collect();
    variables.add(name, format!("{} ? [{}] : []", judged.text(), findings.join(", ")));
    let variable = format!("variables.{name}");
    let told = format!(r#"{variable}.join("; ")"#);
    judging.validations(entry, &variable, &told, &because(judging, demand, ""))
}

/// What an expression says is wrong. It may fail, so it stands in a policy of its own.
fn untrue(
    judging: Judging<'_, '_>,
    demand: &Demand,
    demanded: &Demanded,
    name: &str,
    variables: &mut Variables,
) -> Vec<Validation> {
    let entry = &demand.entry;
    let Some(passes) = expressions::passes(demanded) else { return Vec::new() };
    let judged = Formula::all([
        is_subject(&entry.except).not(),
        is_about_node(judging.selection, entry),
        dependencies::is_about_write(entry),
    ]);
    variables.add(name, format!("({} && !{}) ? [true] : []", judged.text(), passes.text()));
    let (told, plain) = expressions::told(demanded);
    let reason = because(judging, demand, "");
    let made = judging.validations(entry, &format!("variables.{name}"), &told, &reason);
    let fallback = format!("nodegate: {plain}{reason}");
    made.into_iter().map(|one| Validation { alone: true, fallback: fallback.clone(), ..one }).collect()
}

/// The sentence after the keys: what is wrong, by which rule, and how to override it.
fn because(judging: Judging<'_, '_>, demand: &Demand, wrong: &str) -> String {
    let entry = &demand.entry;
    let except = entry.except.describe();
    let except = if except.is_empty() { String::new() } else { format!("; not asked of {}", except.join("; ")) };
    format!("{wrong} (policy {}, rule {}{except}); {}", entry.id.policy, entry.id.rule, judging.way(entry))
}

/// Why a demand is not exported.
fn why_not(judging: Judging<'_, '_>, demand: &Demand) -> Option<&'static str> {
    let entry = &demand.entry;
    let own = match &demand.what {
        Wanted::Immutable { .. } => None,
        Wanted::Required { .. } => names_only(demand),
        Wanted::Allowed { accepted: Accepted::Matching(pattern), of, .. } => names_only(demand).or_else(|| {
            let same = is_same_to_re2(&pattern.written) && !of.contains(&Field::Annotation);
            (!same).then_some("its pattern may mean something else to the API server's regular expressions (RE2)")
        }),
        Wanted::Allowed { .. } => names_only(demand),
        Wanted::Dependency(_) => names_only(demand),
        Wanted::Naming(naming) => names_only(demand).or_else(|| naming::why_not(naming)),
        Wanted::Expression(demanded) => names_only(demand).or_else(|| {
            expressions::passes(demanded).is_none().then_some(
                "it uses object, oldObject or request as a whole or by a computed field, which are others to the API server",
            )
        }),
    };
    own.or_else(|| reason(judging.selection.set(), entry, &Subjects::default()))
}

fn names_only(demand: &Demand) -> Option<&'static str> {
    (!is_about_names(&demand.entry))
        .then_some("its match reads what a write may change, so that the node before has to be judged as well")
}

/// CEL for the keys of one field that are not as demanded, and what is wrong with them.
fn keys(judging: Judging<'_, '_>, demand: &Demand, field: Field, title: &str) -> Option<(String, String)> {
    match &demand.what {
        Wanted::Immutable { keys, of } => of
            .contains(&field)
            .then(|| (immutable(judging, demand, keys, field, title), ": it does not change once set".to_owned())),
        Wanted::Required { keys, of } => of
            .contains(&field)
            .then(|| (required(judging, demand, keys, field, title), " is required and missing".to_owned())),
        Wanted::Allowed { key, of, accepted } => {
            let rather = match accepted {
                Accepted::Values(values) => format!(": allowed are {}", values.join(", ")),
                Accepted::Matching(pattern) => format!(": it must match {}", pattern.written),
                Accepted::Range { min, max } => ranges::told(*min, *max),
            };
            of.contains(&field).then(|| (allowed(judging, demand, key, accepted, field, title), rather))
        }
        Wanted::Naming(naming) => {
            naming.of.contains(&field).then(|| (misnamed(judging, demand, naming, field, title), naming::told(naming)))
        }
        Wanted::Dependency(_) | Wanted::Expression(_) => None,
    }
}

/// Keys and values that are there are written so.
fn misnamed(judging: Judging<'_, '_>, demand: &Demand, naming: &Naming, field: Field, title: &str) -> String {
    let violates = Formula::all([
        naming::is_about(naming, field),
        naming::is_wrong(naming, field, title),
        is_about_change(&demand.entry, field, title),
        is_about_node(judging.selection, &demand.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// Keys that are there do not change and do not go.
fn immutable(judging: Judging<'_, '_>, demand: &Demand, keys: &KeySet, field: Field, title: &str) -> String {
    let violates = Formula::all([
        in_place(field, keys),
        Formula::When(format!("(k in variables.old{title})")),
        is_about_change(&demand.entry, field, title),
        is_about_node(judging.selection, &demand.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// Keys that a node is made without, or that a write takes away.
fn required(judging: Judging<'_, '_>, demand: &Demand, keys: &[Box<str>], field: Field, title: &str) -> String {
    let about = |operation: ChangeOperation| Formula::from(demand.entry.is_about(operation));
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
    let about_node = is_about_node(judging.selection, &demand.entry);
    let violates = Formula::all([Formula::When(there).not(), lost, about_node]);
    format!("{}.filter(k, {})", list(keys.iter().map(|key| &**key)), violates.text())
}

/// A key that is there has one of these values.
fn allowed(
    judging: Judging<'_, '_>,
    demand: &Demand,
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
        is_about_change(&demand.entry, field, title),
        is_about_node(judging.selection, &demand.entry),
    ]);
    format!("variables.changed{title}.filter(k, {})", violates.text())
}

/// Whether the key in `k` (of a taint `key:Effect`) is in the set.
fn in_place(field: Field, keys: &KeySet) -> Formula {
    if field == Field::Taint { super::validating::taint_in_keys(keys) } else { in_keys("k", keys) }
}
