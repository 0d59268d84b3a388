//! Conditions on texts of `status.nodeInfo` in CEL.
//!
//! The texts are variables: `osImage` and `kernel` with the text, empty if it is absent or too long, and `osImageVersion`
//! and `kernelVersion` with the version in it.

use crate::facts::quantity::ComparisonOperator;
use crate::keys::pattern::is_glob;
use crate::native::terms::formula::{Formula, is_one_of, quote};
use crate::native::terms::subject::Subject;
use crate::set::node_info::{InfoPattern, LONGEST, NodeInfoCondition, NodeInfoField, VERSION, VersionComparison};

/// The variables of one text.
struct Names {
    /// The field of `status.nodeInfo`.
    field: &'static str,
    now: &'static str,
    version: &'static str,
    before: &'static str,
    version_before: &'static str,
}

const OS_IMAGE: Names = Names {
    field: "osImage",
    now: "osImage",
    version: "osImageVersion",
    before: "oldOsImage",
    version_before: "oldOsImageVersion",
};
const KERNEL: Names = Names {
    field: "kernelVersion",
    now: "kernel",
    version: "kernelVersion",
    before: "oldKernel",
    version_before: "oldKernelVersion",
};

fn names(field: NodeInfoField) -> &'static Names {
    match field {
        NodeInfoField::OsImage => &OS_IMAGE,
        NodeInfoField::Kernel => &KERNEL,
    }
}

/// The variables with the texts, for all policies.
pub(in crate::native) fn variables() -> impl Iterator<Item = (&'static str, String)> {
    NodeInfoField::all().map(names).flat_map(|Names { field, now, version, before, version_before }| {
        let text = |object: &str| format!("{object}.?status.?nodeInfo.?{field}.orValue(\"\")");
        let bounded = |text: String| format!("{text}.size() <= {LONGEST} ? {text} : \"\"");
        let version_of = |name: &str| format!("variables.{name}.find({})", quote(VERSION));
        [
            (*now, bounded(text("object"))),
            (*before, format!("oldObject == null ? \"\" : ({})", bounded(text("oldObject")))),
            (*version, version_of(now)),
            (*version_before, version_of(before)),
        ]
    })
}

/// Why such a condition cannot be exported.
pub(in crate::native) fn why_not(condition: &NodeInfoCondition) -> Option<&'static str> {
    let NodeInfoCondition { field, patterns, written: _ } = condition;
    // nodegate matches bytes and RE2 matches characters, and a kubelet may send any characters.
    let counts = |text: &str| is_glob(text) && (text.contains(['?', '[', '\\']) || !text.is_ascii());
    patterns.iter().flat_map(InfoPattern::glob).any(counts).then_some(match field {
        NodeInfoField::OsImage => "contains an osImage glob with ?, [...] or non-ASCII characters",
        NodeInfoField::Kernel => "contains a kernel glob with ?, [...] or non-ASCII characters",
    })
}

/// Whether one pattern matches.
pub(in crate::native) fn condition(subject: Subject, condition: &NodeInfoCondition) -> Formula {
    let Names { field: _, now, version, before, version_before } = names(condition.field);
    let (text, version) = (subject.of_two(now, before), subject.of_two(version, version_before));
    let (text, version) = (format!("variables.{text}"), format!("variables.{version}"));
    let reported = Formula::When(format!("({text} != \"\")"));
    let patterns = condition.patterns.iter().map(|pattern| match pattern {
        InfoPattern::Whole(set) => is_one_of(&text, set.written()),
        InfoPattern::Version { before, comparisons } => {
            let there = Formula::When(format!("({version} != \"\")"));
            let name = format!("{text}.substring(0, {text}.indexOf({version})).trim()");
            let before = before.as_ref().map(|set| is_one_of(&name, set.written()));
            let comparisons = comparisons.iter().map(|comparison| compare(&version, comparison));
            Formula::all([there].into_iter().chain(before).chain(comparisons))
        }
    });
    Formula::all([reported, Formula::any(patterns)])
}

/// Whether a version, which is not empty, satisfies a comparison.
fn compare(version: &str, VersionComparison { operator, with }: &VersionComparison) -> Formula {
    let number = |at: usize| format!("int({version}.split(\".\")[?{at}].orValue(\"0\"))");
    let is =
        |at: usize, sign: &str, number_wanted: u64| Formula::When(format!("({} {sign} {number_wanted})", number(at)));
    let equal = with.iter().enumerate().map(|(at, wanted)| is(at, "==", *wanted));
    // The first number that differs decides; if none differs, `or_equal` decides.
    let ordered = |sign: &str, or_equal: bool| {
        with.iter().enumerate().rev().fold(Formula::from(or_equal), |rest, (at, wanted)| {
            Formula::any([is(at, sign, *wanted), Formula::all([is(at, "==", *wanted), rest])])
        })
    };
    match operator {
        ComparisonOperator::AtLeast => ordered(">", true),
        ComparisonOperator::MoreThan => ordered(">", false),
        ComparisonOperator::AtMost => ordered("<", true),
        ComparisonOperator::LessThan => ordered("<", false),
        ComparisonOperator::Equal => Formula::all(equal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        let comparison = |operator| VersionComparison { operator, with: vec![5, 15] };
        let (major, minor) = (r#"int(v.split(".")[?0].orValue("0"))"#, r#"int(v.split(".")[?1].orValue("0"))"#);
        assert_eq!(
            compare("v", &comparison(ComparisonOperator::AtLeast)).text(),
            format!("(({major} > 5) || (({major} == 5) && (({minor} > 15) || ({minor} == 15))))")
        );
        assert_eq!(
            compare("v", &comparison(ComparisonOperator::LessThan)).text(),
            format!("(({major} < 5) || (({major} == 5) && ({minor} < 15)))")
        );
        assert_eq!(
            compare("v", &comparison(ComparisonOperator::Equal)).text(),
            format!("(({major} == 5) && ({minor} == 15))")
        );
    }
}
