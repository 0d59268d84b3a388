//! Texts of `status.nodeInfo`, and the globs and version ranges that conditions match them with.
//!
//! The kubelet reports these texts and can choose them.

use std::sync::LazyLock;

use regex::Regex;

use crate::api::problem::Problem;
use crate::facts::NodeFacts;
use crate::facts::quantity::ComparisonOperator;
use crate::keys::compile_budget::CompileBudget;
use crate::keys::pattern::TextSet;
use crate::set::kleene::Kleene;

/// A text of `status.nodeInfo` that conditions can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeInfoField {
    /// `osImage`, such as `Ubuntu 22.04.4 LTS`.
    OsImage,
    /// `kernelVersion`, such as `5.15.0-105-generic`.
    Kernel,
}

impl NodeInfoField {
    /// All of them. Each names the next, so that a new one does not compile before it has its place.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::OsImage), |field| match field {
            Self::OsImage => Some(Self::Kernel),
            Self::Kernel => None,
        })
    }

    /// The field of a `match`.
    pub(crate) fn in_policies(self) -> &'static str {
        match self {
            Self::OsImage => "osImage",
            Self::Kernel => "kernel",
        }
    }

    /// Its name for messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::OsImage => "OS image",
            Self::Kernel => "kernel version",
        }
    }

    /// The text of the node; `None` if it is not reported yet, or longer than [`LONGEST`] characters.
    pub(crate) fn of<'f>(self, facts: &'f NodeFacts<'_>) -> Option<&'f str> {
        let text = match self {
            Self::OsImage => facts.os_image.as_deref(),
            Self::Kernel => facts.kernel_version.as_deref(),
        };
        text.filter(|text| !text.is_empty() && text.chars().nth(LONGEST).is_none())
    }
}

/// Maximum length of a text that is matched, in characters, because a kubelet may send any length.
pub(crate) const LONGEST: usize = 1024;

/// The version in a text: its first number, and the numbers that follow it after dots. At most 18 digits each, so that the
/// API server can parse them, too.
pub(crate) const VERSION: &str = r"[0-9]{1,18}(\.[0-9]{1,18})*";

/// A condition that one of these patterns matches a text of `status.nodeInfo`.
#[derive(Clone, Debug)]
pub(crate) struct NodeInfoCondition {
    pub(crate) field: NodeInfoField,
    pub(crate) patterns: Vec<InfoPattern>,
    /// The patterns as written, for explanations.
    pub(crate) written: Box<[Box<str>]>,
}

impl NodeInfoCondition {
    /// Whether one matches. Unknown until the kubelet has reported the text.
    pub(crate) fn evaluate(&self, facts: &NodeFacts<'_>) -> Kleene {
        let Self { field, patterns, written: _ } = self;
        field.of(facts).map_or(Kleene::Unknown, |text| patterns.iter().any(|pattern| pattern.matches(text)).into())
    }
}

/// A glob, or a version range with a glob for the text before the version.
#[derive(Clone, Debug)]
pub(crate) enum InfoPattern {
    /// The whole text.
    Whole(TextSet),
    /// `Ubuntu >=22.04 <25`: a glob for the text before the version, and comparisons that must all hold.
    Version { before: Option<TextSet>, comparisons: Vec<VersionComparison> },
}

impl InfoPattern {
    /// Parses a glob, or comparisons of a version after a glob for the text before it.
    ///
    /// # Errors
    /// Returns a sentence that says what to write instead.
    pub(crate) fn parse(text: &str, budget: &CompileBudget) -> Result<Self, Problem> {
        let text = text.trim();
        // Other tools use these signs for ranges, so they do not start a name.
        let at = if text.starts_with(['~', '^']) { Some(0) } else { text.find(['<', '>', '=']) };
        let Some(at) = at else {
            if text.is_empty() {
                let remedy = "write a glob such as Ubuntu*, or a version range such as >=5.15";
                return Err(Problem::new("the text is empty", remedy));
            }
            if Version::parse(text).is_ok() {
                return Err(Problem::new(
                    format!("{text:?} is a version without a comparison"),
                    format!("did you mean \"=={text}\"?"),
                ));
            }
            return Ok(Self::Whole(text_set(text, budget)?));
        };
        let (before, mut rest) = text.split_at(at);
        let before = before.trim();
        let mut comparisons = Vec::new();
        while !rest.is_empty() {
            let (comparison, after) = VersionComparison::take(rest)?;
            comparisons.push(comparison);
            rest = after;
        }
        let before = if before.is_empty() { None } else { Some(text_set(before, budget)?) };
        Ok(Self::Version { before, comparisons })
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Whole(set) => set.contains(text),
            Self::Version { before, comparisons } => version_in(text).is_some_and(|(name, version)| {
                before.as_ref().is_none_or(|set| set.contains(name))
                    && comparisons.iter().all(|comparison| comparison.holds(&version))
            }),
        }
    }

    /// The glob in it, as written.
    pub(crate) fn glob(&self) -> impl Iterator<Item = &str> {
        let set = match self {
            Self::Whole(set) => Some(set),
            Self::Version { before, comparisons: _ } => before.as_ref(),
        };
        set.into_iter().flat_map(TextSet::written)
    }
}

fn text_set(glob: &str, budget: &CompileBudget) -> Result<TextSet, Problem> {
    let mut fault = None;
    let set = TextSet::compile([glob], budget, |_, message| fault = Some(message));
    fault.map_or(Ok(set), Err)
}

/// The version in a text, and the text before it.
fn version_in(text: &str) -> Option<(&str, Version)> {
    static FIRST: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(VERSION).ok());
    let found = FIRST.as_ref()?.find(text)?;
    Some((text[..found.start()].trim(), Version::parse(found.as_str()).ok()?))
}

/// Numbers joined by dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(Vec<u64>);

impl Version {
    fn parse(text: &str) -> Result<Self, Problem> {
        let number = |part: &str| {
            let plain = !part.is_empty() && part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| plain)
        };
        let numbers: Option<Vec<u64>> = text.split('.').map(number).collect();
        numbers.map(Self).ok_or_else(|| {
            Problem::new(format!("{text:?} is not a version"), "write numbers joined by dots, such as 5.15")
        })
    }
}

/// A comparison with a version, such as `>=5.15`. Only as many numbers are compared as it has: 5.15.3 is `==5.15` and
/// `<=5.15`, but not `>5.15`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionComparison {
    pub(crate) operator: ComparisonOperator,
    pub(crate) with: Vec<u64>,
}

impl VersionComparison {
    /// Parses the comparison at the start of a text, and returns the rest of the text.
    fn take(text: &str) -> Result<(Self, &str), Problem> {
        let end = text.find(|c: char| !"<>=~^!".contains(c)).unwrap_or(text.len());
        let (sign, rest) = text.split_at(end);
        let rest = rest.trim_start();
        let end = rest.find(|c: char| c.is_whitespace() || "<>=~^!".contains(c)).unwrap_or(rest.len());
        let (version, rest) = rest.split_at(end);
        let operator = ComparisonOperator::parse(sign).ok_or_else(|| {
            let meant = match sign {
                "=>" | "~" | "^" | "~>" => ">=",
                "=<" => "<=",
                "=" => "==",
                _ => return Problem::new(format!("{sign:?} is not a comparison"), "write >=, >, <=, < or =="),
            };
            Problem::new(format!("{sign:?} is not a comparison"), format!("did you mean \"{meant}{version}\"?"))
        })?;
        let Version(with) = Version::parse(version.strip_suffix(',').unwrap_or(version))?;
        Ok((Self { operator, with }, rest.trim_start()))
    }

    fn holds(&self, Version(version): &Version) -> bool {
        let numbers = version.iter().copied().chain(std::iter::repeat(0)).take(self.with.len());
        self.operator.accepts(numbers.cmp(self.with.iter().copied()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_the_whole_text_and_ranges_its_version() {
        let ubuntu = "Ubuntu 22.04.4 LTS";
        for (pattern, text, matches) in [
            ("Ubuntu*", ubuntu, true),
            ("Ubuntu", ubuntu, false),
            ("Ubuntu 22.04.? LTS", ubuntu, true),
            ("Ubuntu >=22.04", ubuntu, true),
            ("ubuntu >=22.04", ubuntu, false),
            ("{Ubuntu,Debian*} >= 12 < 22.4.5", ubuntu, true),
            ("{Ubuntu,Debian*} >= 12 < 22.4.4", ubuntu, false),
            (">22.04", ubuntu, false),
            ("<=22.04", ubuntu, true),
            ("==22", ubuntu, true),
            ("Debian*>=12", "Debian GNU/Linux 12 (bookworm)", true),
            ("Debian* >=12.1", "Debian GNU/Linux 12 (bookworm)", false),
            ("==12.0.0", "Debian GNU/Linux 12 (bookworm)", true),
            (">=1", "Container-Optimized OS from Google", false),
            (">=5.15 <6.2", "5.15.0-105-generic", true),
            (">=5.15, <6.2", "6.1.90", true),
            (">=5.15<6.2", "6.2.0-rc1", false),
            (">=5.9", "5.10.0", true),
            ("*-aws", "5.15.0-1050-aws", true),
            (">=0", "99999999999999999999", true),
            ("Talos* >=1.7", "Talos (v1.7.0)", true),
        ] {
            assert_eq!(
                InfoPattern::parse(pattern, &CompileBudget::default()).unwrap().matches(text),
                matches,
                "{pattern} and {text}"
            );
        }
    }

    #[test]
    fn faults_say_what_was_meant() {
        for (pattern, message) in [
            ("5.15", r#"did you mean "==5.15"?"#),
            ("=>5.15", r#"did you mean ">=5.15"?"#),
            ("Ubuntu =22.04", r#"did you mean "==22.04"?"#),
            ("~5.15", r#"did you mean ">=5.15"?"#),
            ("<>5.15", "write >=, >, <=, < or =="),
            (">=5.x", "write numbers joined by dots"),
            (">=", "write numbers joined by dots"),
            (">=5.15 generic", "write >=, >, <=, < or =="),
            (">=1234567890123456789", "write numbers joined by dots"),
            ("  ", "the text is empty"),
            ("[", "is not a glob"),
            ("[ >=5", "is not a glob"),
        ] {
            let error = InfoPattern::parse(pattern, &CompileBudget::default()).unwrap_err();
            assert!(error.to_string().contains(message), "{pattern}: {error}");
        }
    }
}
