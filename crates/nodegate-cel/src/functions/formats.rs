//! Named formats: `format.dns1123Label().validate(text)`.
//!
//! What is valid, and what is said of the rest, are as in Kubernetes
//! (`k8s.io/apiserver/pkg/cel/library/format.go` and what it calls in `k8s.io/apimachinery` and `k8s.io/kube-openapi`).

use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::functions::{Function, Outcome, Plain, function, method, unsuited};
use crate::values::opaque::{Format, Opaque};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::url::Url;
use crate::values::value::{Text, Value};

const fn constant(name: &'static str, run: Plain) -> Function {
    function(name, &[], Type::Format, run)
}

pub(super) const FUNCTIONS: &[Function] = &[
    constant("format.dns1123Label", |_, _| Ok(Format::Dns1123Label.into())),
    constant("format.dns1123LabelPrefix", |_, _| Ok(Format::Dns1123LabelPrefix.into())),
    constant("format.dns1123Subdomain", |_, _| Ok(Format::Dns1123Subdomain.into())),
    constant("format.dns1123SubdomainPrefix", |_, _| Ok(Format::Dns1123SubdomainPrefix.into())),
    constant("format.dns1035Label", |_, _| Ok(Format::Dns1035Label.into())),
    constant("format.dns1035LabelPrefix", |_, _| Ok(Format::Dns1035LabelPrefix.into())),
    constant("format.qualifiedName", |_, _| Ok(Format::QualifiedName.into())),
    constant("format.labelValue", |_, _| Ok(Format::LabelValue.into())),
    constant("format.uri", |_, _| Ok(Format::Uri.into())),
    constant("format.uuid", |_, _| Ok(Format::Uuid.into())),
    constant("format.byte", |_, _| Ok(Format::Byte.into())),
    constant("format.date", |_, _| Ok(Format::Date.into())),
    constant("format.datetime", |_, _| Ok(Format::Datetime.into())),
    function("format.named", &[Type::Text], Type::Optional, named),
    method("validate", &[Type::Format, Type::Text], Type::Optional, validate),
];

impl From<Format> for Value<'_> {
    fn from(format: Format) -> Self {
        Opaque::Format(format).into()
    }
}

/// The format of a name, if there is one.
fn named<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(name)] = arguments else { return Err(unsuited("format.named", arguments)) };
    steps.bytes(name.len())?;
    let known = FUNCTIONS
        .iter()
        .find(|function| function.returns == Type::Format && function.name.strip_prefix("format.") == Some(&**name));
    match known {
        Some(function) => function.call(steps, None, &[]).map(Value::some),
        None => Ok(Value::Optional(None)),
    }
}

/// What is wrong with a text; nothing if it has the format.
fn validate<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(opaque), Value::Text(text)] = arguments else { return Err(unsuited("validate", arguments)) };
    let Opaque::Format(format) = &**opaque else { return Err(unsuited("validate", arguments)) };
    // The text is searched up to three times, and is part of what is said of a URL.
    steps.take(20)?;
    steps.bytes(4 * text.len())?;
    let faults: Vec<Value<'a>> =
        format.faults(text).into_iter().map(|fault| Value::Text(Text::Shared(Arc::from(fault)))).collect();
    Ok(if faults.is_empty() { Value::Optional(None) } else { Value::some(Value::from(faults)) })
}

/// A regular expression for a whole text, and how Kubernetes describes what matches.
struct Shape {
    pattern: &'static str,
    description: &'static str,
    examples: &'static [&'static str],
    regex: Regex,
}

/// What matches whole texts only.
#[allow(clippy::expect_used)] // A test compiles all of them.
fn whole(pattern: &'static str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("the patterns of this file are valid")
}

impl Shape {
    fn new(pattern: &'static str, description: &'static str, examples: &'static [&'static str]) -> Self {
        Self { pattern, description, examples, regex: whole(pattern) }
    }

    /// As `content.RegexError` says it.
    fn fault(&self) -> String {
        let examples: Vec<String> = self.examples.iter().map(|example| format!("'{example}', ")).collect();
        let (examples, pattern) = (examples.join(" or "), self.pattern);
        format!("{} (e.g. {examples}regex used for validation is '{pattern}')", self.description)
    }

    /// What is wrong with a text of at most `longest` bytes, which Kubernetes calls `unit`.
    fn faults(&self, text: &str, longest: usize, unit: &str) -> Vec<String> {
        let too_long = (text.len() > longest).then(|| format!("must be no more than {longest} {unit}"));
        too_long.into_iter().chain((!self.regex.is_match(text)).then(|| self.fault())).collect()
    }
}

/// What `k8s.io/apimachinery/pkg/util/validation` calls bytes.
const CHARACTERS: &str = "characters";
/// What `k8s.io/apimachinery/pkg/api/validate/content` calls them.
const BYTES: &str = "bytes";

static DNS_1123_LABEL: LazyLock<Shape> = LazyLock::new(|| {
    Shape::new(
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an \
         alphanumeric character",
        &["my-name", "123-abc"],
    )
});
static DNS_1123_SUBDOMAIN: LazyLock<Shape> = LazyLock::new(|| {
    Shape::new(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and \
         end with an alphanumeric character",
        &["example.com"],
    )
});
static DNS_1035_LABEL: LazyLock<Shape> = LazyLock::new(|| {
    Shape::new(
        "[a-z]([-a-z0-9]*[a-z0-9])?",
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and \
         end with an alphanumeric character",
        &["my-name", "abc-123"],
    )
});
static NAME: LazyLock<Shape> = LazyLock::new(|| {
    Shape::new(
        "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
        &["MyName", "my.name", "123-abc"],
    )
});
static LABEL_VALUE: LazyLock<Shape> = LazyLock::new(|| {
    Shape::new(
        "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
         with an alphanumeric character",
        &["MyValue", "my_value", "12345"],
    )
});
static UUID: LazyLock<Regex> =
    LazyLock::new(|| whole("(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"));
static BASE64: LazyLock<Regex> =
    LazyLock::new(|| whole("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"));
static DATE: LazyLock<Regex> = LazyLock::new(|| whole("([0-9]{4})-([0-9]{2})-([0-9]{2})"));
static TIME: LazyLock<Regex> =
    LazyLock::new(|| whole("([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))"));

impl Format {
    fn faults(self, text: &str) -> Vec<String> {
        let unless = |valid: bool, fault: &str| if valid { Vec::new() } else { vec![fault.to_owned()] };
        match self {
            Self::Dns1123Label => label(text),
            Self::Dns1123LabelPrefix => label(&completed(text)),
            Self::Dns1123Subdomain => DNS_1123_SUBDOMAIN.faults(text, 253, CHARACTERS),
            Self::Dns1123SubdomainPrefix => DNS_1123_SUBDOMAIN.faults(&completed(text), 253, CHARACTERS),
            Self::Dns1035Label => DNS_1035_LABEL.faults(text, 63, CHARACTERS),
            Self::Dns1035LabelPrefix => DNS_1035_LABEL.faults(&completed(text), 63, CHARACTERS),
            Self::QualifiedName => qualified_name(text),
            Self::LabelValue => LABEL_VALUE.faults(text, 63, BYTES),
            Self::Uri => Url::parse_request(text).err().into_iter().collect(),
            Self::Uuid => unless(UUID.is_match(text), "does not match the UUID format"),
            Self::Byte => unless(BASE64.is_match(text), "invalid base64"),
            Self::Date => unless(is_date(text), "invalid date"),
            Self::Datetime => unless(is_datetime(text), "invalid datetime"),
        }
    }
}

fn label(text: &str) -> Vec<String> {
    let mut faults = DNS_1123_LABEL.faults(text, 63, CHARACTERS);
    // Only its dots make a subdomain an invalid label.
    if let Some(last) = faults.last_mut().filter(|_| DNS_1123_SUBDOMAIN.regex.is_match(text) && text.contains('.')) {
        "must not contain dots".clone_into(last);
    }
    faults
}

/// A prefix of a name may end with a dash, because more will follow. As `maskTrailingDash` does, this replaces the dash
/// and the byte before it by a letter.
fn completed(prefix: &str) -> String {
    match prefix.strip_suffix('-').and_then(|rest| rest.char_indices().next_back()) {
        Some((at, last)) if last.is_ascii() => format!("{}a", &prefix[..at]),
        // Go would cut a character in two, and what is left of it is as invalid as the dash.
        _ => prefix.to_owned(),
    }
}

fn qualified_name(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                let prefix = DNS_1123_SUBDOMAIN.faults(prefix, 253, BYTES);
                faults.extend(prefix.into_iter().map(|fault| format!("prefix part {fault}")));
            }
            name
        }
        _ => {
            let fault = NAME.fault();
            let optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {fault} {optional}")];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    }
    faults.extend(NAME.faults(name, 63, BYTES).into_iter().map(|fault| format!("name part {fault}")));
    faults
}

/// A day that exists, as `YYYY-MM-DD`.
fn is_date(text: &str) -> bool {
    let Some(parts) = DATE.captures(text) else { return false };
    let number = |at: usize| parts.get(at).and_then(|part| part.as_str().parse::<u32>().ok()).unwrap_or_default();
    let (year, month, day) = (number(1), number(2), number(3));
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// A date and a time as `strfmt.IsDateTime` takes them: what follows a second `T` is not looked at.
fn is_datetime(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(time) = TIME.captures(time) else { return false };
    let at_most = |at: usize, most: &str| time.get(at).is_some_and(|part| part.as_str() <= most);
    is_date(date) && at_most(1, "23") && at_most(2, "59") && at_most(3, "59")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        for shape in [&DNS_1123_LABEL, &DNS_1123_SUBDOMAIN, &DNS_1035_LABEL, &NAME, &LABEL_VALUE] {
            assert!(!shape.regex.is_match("?"));
        }
        for regex in [&UUID, &BASE64, &DATE, &TIME] {
            assert!(!regex.is_match("?"));
        }
    }

    #[test]
    fn a_text_is_valid_as_in_kubernetes() {
        let long = "a".repeat(64);
        let subdomain = format!("{long}.b");
        for (format, valid, invalid) in [
            (
                Format::Dns1123Label,
                &["a", "1-b", &long[1..]] as &[&str],
                &["", "-a", "a-", "A", "a.b", &long] as &[&str],
            ),
            (Format::Dns1123LabelPrefix, &["a-", "ab-", "a.-"], &["-", "a.b-", "é-"]),
            // Only the whole name has a limit, not each of its labels.
            (Format::Dns1123Subdomain, &["a.b", &subdomain], &["a..b", ".a", "a_b"]),
            (Format::Dns1123SubdomainPrefix, &["a.b-", "a..-"], &["a...-", "-"]),
            (Format::Dns1035Label, &["a1"], &["1a"]),
            (Format::Dns1035LabelPrefix, &["a1-"], &["1-a-"]),
            (Format::QualifiedName, &["a", "A_b.c", "a.b/C"], &["", "/a", "a/", "a/b/c", "a_b/c", &long]),
            (Format::LabelValue, &["", "A_b.c"], &["-", "a b", "é", &long]),
            (Format::Uri, &["https://a", "/a", "mailto:x"], &["", "a", "https://a b", "http://[::1"]),
            (
                Format::Uuid,
                &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"],
                &["", "123e4567-e89b-12d3-a456-42661417400", "123e4567-e89b-12d3-a456-42661417400g"],
            ),
            (Format::Byte, &["YWJj", "YWI=", "YQ=="], &["", "YWI", "YQ", "YWJ_", "Y==="]),
            (
                Format::Date,
                &["2024-02-29", "2000-02-29", "2026-12-31"],
                &["2023-02-29", "1900-02-29", "2026-13-01", "2026-04-31", "2026-00-01", "2026-01-00", "2026-1-1"],
            ),
            (
                Format::Datetime,
                &["2026-11-21T20:15:30Z", "2026-11-21t20:15:30.5+05:30", "2026-11-21T20:15:30ZTwhatever"],
                &[
                    "2026-11-21",
                    "2026-11-21T24:00:00Z",
                    "2026-11-21T20:60:00Z",
                    "2026-11-21T20:00:60Z",
                    "2026-11-21T20:15:30",
                    "2026-11-21T00:00:0éZ",
                    "2026-02-30T20:15:30Z",
                ],
            ),
        ] {
            valid.iter().for_each(|text| assert_eq!(format.faults(text), [""; 0], "{format:?} {text:?}"));
            invalid.iter().for_each(|text| assert_ne!(format.faults(text), [""; 0], "{format:?} {text:?}"));
        }
    }

    #[test]
    fn faults_are_told_in_the_words_of_kubernetes() {
        let label = "must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        let long = "A".repeat(64);
        for (format, text, faults) in [
            (Format::Dns1123Label, "a.b", vec!["must not contain dots".to_owned()]),
            (
                Format::Dns1123Label,
                &long,
                vec!["must be no more than 63 characters".to_owned(), format!("a lowercase RFC 1123 label {label}")],
            ),
            (
                Format::QualifiedName,
                "/",
                vec![
                    "prefix part must be non-empty".to_owned(),
                    "name part must be non-empty".to_owned(),
                    format!("name part {}", NAME.fault()),
                ],
            ),
            (Format::Byte, "?", vec!["invalid base64".to_owned()]),
        ] {
            assert_eq!(format.faults(text), faults, "{format:?} {text:?}");
        }
    }
}
