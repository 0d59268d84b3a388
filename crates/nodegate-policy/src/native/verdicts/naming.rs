//! `governance.naming`: naming conventions for keys and values.

use crate::api::policy::NamedPart;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::native::terms::formula::{Formula, in_keys, quote};
use crate::native::terms::re2::is_same_to_re2;
use crate::native::verdicts::validation::{now, taint_in_keys};
use crate::set::governance::{Naming, NamingConvention};

/// Why it is not exported.
pub(in crate::native) fn why_not(naming: &Naming) -> Option<&'static str> {
    let regex = naming.regex.as_ref()?;
    // nodegate's classes such as \w include Unicode. Keys, labels and taints are ASCII; annotations are not.
    let ascii = naming.part == NamedPart::Key || !naming.of.contains(&Field::Annotation);
    (!ascii || !is_same_to_re2(&regex.written))
        .then_some("its regex may have another meaning in the API server's regular expressions (RE2)")
}

/// Whether the entry applies to the key in `k`.
pub(in crate::native) fn is_about(naming: &Naming, field: Field) -> Formula {
    let named = naming.keys.written().filter(|key| *key != "*");
    let named = KeySet::compile(named, |_, _| {});
    let named = if field == Field::Taint { taint_in_keys(&named) } else { in_keys("k", &named) };
    let others = Formula::When(format!("k.matches({})", quote("^([^/]*[.])?(kubernetes|k8s)[.]io/"))).not();
    Formula::any([Some(named), naming.keys.is_all().then_some(others)].into_iter().flatten())
}

/// Whether the key in `k`, which the write changes, violates the convention and did not before, or less than now.
pub(in crate::native) fn is_wrong(naming: &Naming, field: Field, title: &str) -> Formula {
    let (now, before) = (now(field), format!("variables.old{title}"));
    let was_there = Formula::When(format!("(k in {before})"));
    let key = if field == Field::Taint { r#"k.substring(0, k.indexOf(":"))"# } else { "k" };
    // A key that was present before had the same faults.
    let of_key = Formula::all([was_there.clone().not(), Faults { naming, is_key: true }.any(key)]);
    let faults = Faults { naming, is_key: false };
    let (value, old) = (format!("{now}[k]"), format!("{before}[k]"));
    let of_value = Formula::all([faults.any(&value), Formula::all([was_there, faults.less(&value, &old)]).not()]);
    let wrong = match naming.part {
        NamedPart::Key => of_key,
        NamedPart::Value => of_value,
        NamedPart::Both => Formula::any([of_key, of_value]),
    };
    Formula::all([Formula::When(format!("(k in {now})")), wrong])
}

/// The end of the message.
pub(in crate::native) fn describe(naming: &Naming) -> String {
    let part = match naming.part {
        NamedPart::Key => "key",
        NamedPart::Value => "value",
        NamedPart::Both => "key and value",
    };
    let pattern = naming.pattern.map(|pattern| format!("be {}", pattern.describe()));
    let regex = naming.regex.as_ref().map(|regex| format!("match {}", regex.written));
    let length = naming.max_length.map(|max| format!("have at most {max} characters"));
    let all: Vec<String> = pattern.into_iter().chain(regex).chain(length).collect();
    format!(": its {part} must {}", all.join(" and "))
}

/// The possible faults of a key or a value.
struct Faults<'n> {
    naming: &'n Naming,
    is_key: bool,
}

impl Faults<'_> {
    /// Whether anything is wrong with a text.
    fn any(&self, text: &str) -> Formula {
        Formula::any([self.pattern(text), self.regex(text), self.length(text)])
    }

    /// Whether one text has fewer faults than another: no additional fault, no larger excess length, and an improvement.
    fn less(&self, text: &str, than: &str) -> Formula {
        let sizes = |operator: &str| Formula::When(format!("(size({text}) {operator} size({than}))"));
        let no_worse = |one: Formula, other: Formula| Formula::any([one.not(), other]);
        let better = |one: Formula, other: Formula| Formula::all([one.not(), other]);
        let long = Formula::all([self.length(than), sizes("<=")]);
        Formula::all([
            no_worse(self.pattern(text), self.pattern(than)),
            no_worse(self.regex(text), self.regex(than)),
            no_worse(self.length(text), long),
            Formula::any([
                better(self.pattern(text), self.pattern(than)),
                better(self.regex(text), self.regex(than)),
                better(self.length(text), self.length(than)),
                Formula::all([self.length(text), sizes("<")]),
            ]),
        ])
    }

    /// Whether a text violates the named pattern.
    fn pattern(&self, text: &str) -> Formula {
        let pattern = self.naming.pattern.map(|pattern| match pattern {
            NamingConvention::Namespaced => Formula::When(format!("{text}.contains(\"/\")")),
            NamingConvention::KebabCase => matches(text, &self.whole("([a-z0-9]+([-.][a-z0-9]+)*)?")),
            NamingConvention::LowerCase => matches(text, &self.whole("[^A-Z]*")),
        });
        pattern.map_or(Formula::Never, Formula::not)
    }

    /// Whether a text does not match the regular expression.
    fn regex(&self, text: &str) -> Formula {
        let regex = self.naming.regex.as_ref().map(|regex| matches(text, &format!("^(?:{})$", regex.written)));
        regex.map_or(Formula::Never, Formula::not)
    }

    /// Whether a text is too long.
    fn length(&self, text: &str) -> Formula {
        let Some(max) = self.naming.max_length else { return Formula::Never };
        Formula::When(format!("(size({text}) > {max})"))
    }

    /// A pattern for the whole text; for a key, any prefix matches.
    fn whole(&self, pattern: &str) -> String {
        let prefix = if self.is_key { "([^/]*/)?" } else { "" };
        format!("^{prefix}{pattern}$")
    }
}

fn matches(text: &str, pattern: &str) -> Formula {
    Formula::When(format!("{text}.matches({})", quote(pattern)))
}
