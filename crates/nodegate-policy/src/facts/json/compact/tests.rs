use std::fmt::Debug;

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::facts::json::borrow::{Entries, Text};
use crate::facts::json::kinds::Object;

/// Reads some members in every way in which reviews are read, and ignores the others.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    a: Option<Text<'a>>,
    #[serde(borrow)]
    b: Option<&'a RawValue>,
    c: Option<IgnoredAny>,
    #[serde(borrow)]
    d: Option<Entries<'a>>,
    e: Vec<f64>,
    f: Option<bool>,
    #[serde(borrow)]
    g: Option<Box<Fields<'a>>>,
}

/// What the text is as `T`, the same by both readers; `None` if it is left to `serde_json`.
fn read<'t, T: Deserialize<'t> + Debug>(text: &'t str) -> Option<String> {
    let read = read_compact::<T>(text).map(|value| format!("{value:?}"))?;
    let expected = serde_json::from_str::<T>(text).map(|value| format!("{value:?}"));
    assert_eq!(Ok(&read), expected.as_ref().map_err(ToString::to_string), "{text}");
    Some(read)
}

/// Reads a text in every way. One that is compact is JSON for both readers, or for none.
fn check(text: &str) {
    read::<Value>(text);
    read::<Fields<'_>>(text);
    let is_compact = text.chars().all(|c| c > ' ') && text.matches(['[', '{']).count() <= DEPTH_MAX as usize;
    if is_compact {
        assert_eq!(
            read::<IgnoredAny>(text).is_some(),
            serde_json::from_str::<IgnoredAny>(text).is_ok(),
            "one reader takes this for JSON: {text}"
        );
    } else {
        read::<IgnoredAny>(text);
    }
}

#[test]
fn what_is_not_json_is_not_read() {
    let numbers = ["0", "-0", "10", "-1.50", "1e5", "1E+5", "1.0e-05", "1e999"];
    let no_numbers = ["01", "-", "1.", ".5", "1e", "1e+", "+1", "--1", "1.e5", "0x1", "NaN", "00", "-a"];
    let texts = [r#""""#, r#""\"\\\/\b\f\n\r\t""#, r#""\u00e9\uD83D\uDE00""#, r#""é😀""#, r#""a\\""#, "\"\u{7f}\""];
    let no_texts =
        [r#"""#, r#""a"#, r#""\"#, r#""\x""#, r#""\u12""#, r#""\u12g4""#, r#""\""#, "'a'", r#""a"b"#, "\"\u{1}\""];
    let others = ["true", "false", "null", "[]", "{}", "[[],{}]", r#"{"a":{"b":[1,2]},"c":[]}"#, r#"{"\u0061":1}"#];
    let no_others = [
        "tru",
        "truex",
        "nul",
        "[",
        "]",
        "{",
        "}",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{]",
        "[}",
        "[1}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1]"#,
        r#"{,"a":1}"#,
        "{1:2}",
        r#"{"a":1"b":2}"#,
        r#"{"a","b"}"#,
        r#"["a":1]"#,
        "[]]",
        "{}{}",
        "[1][2]",
    ];
    // Only a text that is read has to be one of Unicode.
    let surrogates = [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#];
    for text in numbers.into_iter().chain(texts).chain(surrogates).chain(others) {
        for text in [
            text.to_owned(),
            format!("[{text}]"),
            format!("{{\"x\":[0,{text},{{\"y\":{text}}}]}}"),
            format!("{text}\n"),
        ] {
            check(&text);
            assert!(read::<IgnoredAny>(&text).is_some(), "{text}");
        }
    }
    for text in no_numbers.into_iter().chain(no_texts).chain(no_others) {
        for text in [text.to_owned(), format!("[{text}]"), format!("{{\"x\":[0,{text},1]}}")] {
            check(&text);
            assert!(read_compact::<IgnoredAny>(&text).is_none(), "{text}");
        }
    }
    assert!(read_compact::<IgnoredAny>("").is_none());
    for surrogate in surrogates {
        let (value, name) = (format!("{{\"a\":{surrogate}}}"), format!("{{{surrogate}:1}}"));
        for text in [&value, &name] {
            check(text);
            assert!(read_compact::<Value>(text).is_none(), "{text}");
        }
        assert!(
            read_compact::<Object<IgnoredAny>>(&value).is_some() && read_compact::<Object<IgnoredAny>>(&name).is_none()
        );
    }
}

#[test]
fn what_serde_json_reads_within_is_not_deeper_than_it_reads_the_whole() {
    #[derive(Debug, serde::Deserialize)]
    struct Nested {
        #[serde(rename = "a")]
        _a: Option<Box<Nested>>,
        #[serde(rename = "n")]
        _n: Option<Wrapped>,
    }
    #[derive(Debug, serde::Deserialize)]
    struct Wrapped(#[expect(dead_code, reason = "it is only compared")] Value);
    for outer in 50..70 {
        for inner in 50..70 {
            let (open, close) = ("{\"a\":".repeat(outer) + "{\"n\":", "}".repeat(outer + 1));
            read::<Nested>(&format!("{open}{}{}{close}", "[".repeat(inner), "]".repeat(inner)));
        }
    }
}

#[test]
fn what_is_not_compact_is_left_to_serde_json() {
    for text in ["{ }", "[1, 2]", " 1", "1 ", "{\n}", "1\n\n", "\"\t\""] {
        assert!(read_compact::<Value>(text).is_none() && read_compact::<IgnoredAny>(text).is_none(), "{text:?}");
    }
    for (depth, is_read) in [(DEPTH_MAX as usize, true), (DEPTH_MAX as usize + 1, false), (100_000, false)] {
        for [open, close] in [["[", "]"], ["{\"a\":", "}"]] {
            let text = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(read_compact::<IgnoredAny>(&text).is_some(), is_read, "{depth}");
            assert_eq!(read_compact::<Value>(&text).is_some(), is_read, "{depth}");
        }
    }
}

#[test]
fn a_text_is_borrowed_from_the_json_if_it_has_no_escapes() {
    let text = r#"{"a":"b","d":{"k":"v","q":"\""},"b":{"x":[1]}}"#;
    let read: Fields<'_> = read_compact(text).unwrap();
    let within = |part: &str| text.as_bytes().as_ptr_range().contains(&part.as_ptr());
    assert!(within(read.a.as_deref().unwrap()) && within(read.b.unwrap().get()));
    let entries = read.d.unwrap();
    assert!(within(entries.get("k").unwrap()) && !within(entries.get("q").unwrap()));
    assert_eq!(entries.get("q"), Some("\""));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\"\\\\\u{e9}\n\u{1f680}]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-h]{1}|[\\\\\"]", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// An object for [`Fields`], some of whose members are of the wrong kind.
fn fields() -> impl Strategy<Value = Value> {
    let text = || "[a-c\"\\\\\u{e9}]{0,9}";
    let member = prop_oneof![
        (Just("a"), text().prop_map(Value::from)),
        (Just("b"), value()),
        (Just("c"), value()),
        (Just("d"), prop::collection::btree_map(text(), text(), 0..5).prop_map(|entries| json!(entries))),
        (Just("e"), prop::collection::vec(any::<f64>(), 0..4).prop_map(|numbers| json!(numbers))),
        (Just("f"), any::<bool>().prop_map(Value::from)),
        (Just("f"), Just(Value::Null)),
        (Just("g"), Just(json!({"a": "inner", "x": 1}))),
        (prop::sample::select(vec!["a", "d", "e", "f", "x"]), value()),
    ];
    let object =
        |members: Vec<(&str, Value)>| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    prop::collection::vec(member, 0..9).prop_map(move |members| Value::Object(object(members)))
}

proptest! {
    #[test]
    fn fields_are_read_as_by_serde_json(fields in fields()) {
        let text = fields.to_string();
        let is_read = read::<Fields<'_>>(&text).is_some();
        prop_assert_eq!(is_read, serde_json::from_str::<Fields<'_>>(&text).is_ok(), "{}", text);
    }

    #[test]
    fn json_is_read_as_by_serde_json(value in value()) {
        let text = value.to_string();
        prop_assert_eq!(read_compact::<Value>(&text), Some(serde_json::from_str(&text).unwrap()));
        check(&text);
    }

    #[test]
    fn what_is_nearly_json_is_read_as_by_serde_json(value in value(), edits in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]{},:\"\\\\0-9eE.+\\-tfnu a\n]{0,2}", 0..2_usize), 1..4)) {
        let mut text: Vec<char> = value.to_string().chars().collect();
        for (at, new, removed) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, new.chars());
        }
        check(&text.into_iter().collect::<String>());
    }
}
