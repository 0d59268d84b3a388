use crate::api::source::parse_documents;

/// The place and the message of the error in a text, and what is there.
fn error(text: &str) -> (u32, u32, String, String) {
    let error = parse_documents(text).unwrap_err();
    let place = error.place.unwrap();
    (place.line, place.column, text[place.start()..place.end()].to_owned(), error.to_string())
}

#[test]
fn a_value_that_needs_quotes_is_shown_in_quotes() {
    for (text, line, column, written, quoted) in [
        ("a:\n  cpu: >=16 # cores\n", 2, 8, ">=16", "\">=16\""),
        ("a: {cpu: >16}\n", 1, 10, ">16", "\">16\""),
        ("a: [1, >=5.15 <6]\n", 1, 8, ">=5.15 <6", "\">=5.15 <6\""),
        ("cpu: > 16\n", 1, 6, "> 16", "\"> 16\""),
        ("cpu: >4\nb: 1\n", 1, 6, ">4", "\">4\""),
        ("n: *\n", 1, 4, "*", "\"*\""),
        ("- - *-gpu\n", 1, 5, "*-gpu", "\"*-gpu\""),
        ("n: [a, *b*]\n", 1, 8, "*b*", "\"*b*\""),
        ("e: !has(a.b) && c\n", 1, 4, "!has(a.b) && c", "\"!has(a.b) && c\""),
        ("e: !a == \"b\"\n", 1, 4, "!a == \"b\"", "'!a == \"b\"'"),
        ("- x\n- !a\n", 2, 3, "!a", "\"!a\""),
        ("[x, !a]\n", 1, 5, "!a", "\"!a\""),
        ("x: !a {b: c}\n", 1, 4, "!a {b: c}", "\"!a {b: c}\""),
        ("x: @a\n", 1, 4, "@a", "\"@a\""),
        ("x: a ? 'b' : \"c\"\n", 1, 4, "a ? 'b' : \"c\"", "'a ? ''b'' : \"c\"'"),
        ("ä: x: y\n", 1, 4, "x: y", "\"x: y\""),
        ("x: {a} b\n", 1, 4, "{a} b", "\"{a} b\""),
    ] {
        let (at_line, at_column, found, message) = error(text);
        assert_eq!((at_line, at_column, found.as_str()), (line, column, written), "{text}: {message}");
        assert!(message.starts_with("invalid YAML: "), "{text}: {message}");
        assert!(message.ends_with(&format!("; write it in quotes: {quoted}")), "{text}: {message}");
    }
}

#[test]
fn valid_yaml_stays_valid() {
    for text in [
        "x: !!str 60\n",
        "a: &n {b: 1}\nc: *n\n",
        "a: >\n  text\nb: |\n  text\n",
        "a: |2\n    text\n",
        "a: [\"!x\", '!y', a!z]\nb: a>=4\nc: \"> 4\"\n",
        "a: >-\n",
        "# !x\na:\n  # !y\n  b: c\n",
        "{\"a\": \"!x\", \"b\": [\"!y\"]}",
    ] {
        assert!(parse_documents(text).is_ok(), "{text}: {:?}", parse_documents(text));
    }
}

#[test]
fn a_key_given_twice_names_both_lines() {
    for (text, first) in [
        ("a: 1\nb: {c: 1}\na: 2\n", Some((1, 1))),
        ("x:\n  - y: {a: 0}\n    a: 1\n    a: 2\n", Some((3, 5))),
        ("{a: 1, b: {a: 1, a: 2}}\n", Some((1, 12))),
    ] {
        let error = parse_documents(text).unwrap_err();
        let related = error.related.as_ref().map(|related| (related.place.line, related.place.column));
        assert_eq!(related, first, "{text}");
        let (one, two) = (first.unwrap().0, error.place.unwrap().line);
        let lines = if one == two { format!("twice in line {one};") } else { format!("in lines {one} and {two};") };
        assert!(error.to_string().starts_with("the key \"a\" is given twice"), "{error}");
        assert!(error.to_string().contains(&lines), "{error}");
    }
}

#[test]
fn a_quote_that_is_not_closed_and_a_field_indented_too_far_are_shown_where_they_are() {
    for (text, line, column) in [
        ("a: 1\nb: \"x\n", 2, 4),
        ("r:\n  - n: \"a\n    l: {a: b}\n", 2, 8),
        ("r:\n  - n: 'a\n    l: {a: b}\nm: c\n", 2, 8),
        ("e: {x: \"y\", z: \"w}\nf: 1\n", 1, 16),
    ] {
        let (at_line, at_column, found, message) = error(text);
        assert_eq!((at_line, at_column), (line, column), "{text}: {message}");
        assert!(["\"", "'"].contains(&&*found) && message.contains("this quote is not closed"), "{text}: {message}");
    }
    let (line, column, found, message) = error("r:\n  - name: a\n     labels: {a: b}\n");
    assert_eq!((line, column, &*found), (3, 6, "labels"), "{message}");
    assert!(message.ends_with("; indent it as much as the other fields"), "{message}");
}

#[test]
fn other_errors_keep_the_parsers_words_without_its_place() {
    let (line, _, _, message) = error("a: 1\nb: [x\n");
    assert!(line >= 2 && message.starts_with("invalid YAML: ") && !message.contains(" at line "), "{message}");
    assert!(error("a:\n\tb: 1\n").3.contains("indented with a tab"));
    assert!(error("a: \"\\d\"\n").3.contains("single quotes"));
    assert!(error("a: {{ .Values.x }}\n").3.contains("render the template first"));
    assert!(error("{{- if x }}\na: b\n").3.contains("render the template first"));
}

#[test]
fn a_text_that_is_too_large_or_too_deep_is_told_so() {
    let list = |count| format!("a: [{}1]\n", "1, ".repeat(count));
    let large = parse_documents(&list(250_000)).unwrap_err().to_string();
    assert!(large.contains("at most 250,000") && large.contains("several policies"), "{large}");
    assert!(parse_documents(&list(249_000)).is_ok());
    let deep = parse_documents(&format!("a: {}{}\n", "[".repeat(40), "]".repeat(40))).unwrap_err().to_string();
    assert!(deep.contains("32 levels"), "{deep}");
}
