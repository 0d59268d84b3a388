//! Text and regular expressions, and what is done with texts and lists alike.

use crate::checked::pattern::Pattern;
use crate::fault::EvaluationError;
use crate::functions::{Form, Function, Outcome, Run, function, lists, method, unsuited};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::{List, Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    method("contains", &[Type::Text, Type::Text], Type::Bool, contains),
    method("startsWith", &[Type::Text, Type::Text], Type::Bool, starts_with),
    method("endsWith", &[Type::Text, Type::Text], Type::Bool, ends_with),
    Function::new("matches", Form::Either, &[Type::Text, Type::Text], Type::Bool, Run::Pattern(matches)),
    Function::new("find", Form::Method, &[Type::Text, Type::Text], Type::Text, Run::Pattern(find)),
    Function::new("findAll", Form::Method, &[Type::Text, Type::Text, Type::Int], Type::List, Run::Pattern(find_all))
        .optional(1),
    method("charAt", &[Type::Text, Type::Int], Type::Text, char_at),
    method("indexOf", &[Type::Any, Type::Any, Type::Int], Type::Int, index_of).optional(1),
    method("lastIndexOf", &[Type::Any, Type::Any, Type::Int], Type::Int, last_index_of).optional(1),
    method("lowerAscii", &[Type::Text], Type::Text, |steps, arguments| {
        changed("lowerAscii", steps, arguments, str::to_ascii_lowercase)
    }),
    method("upperAscii", &[Type::Text], Type::Text, |steps, arguments| {
        changed("upperAscii", steps, arguments, str::to_ascii_uppercase)
    }),
    method("trim", &[Type::Text], Type::Text, |steps, arguments| {
        changed("trim", steps, arguments, |text| text.trim().to_owned())
    }),
    method("substring", &[Type::Text, Type::Int, Type::Int], Type::Text, substring).optional(1),
    method("reverse", &[Type::Any], Type::Any, reverse),
    method("replace", &[Type::Text, Type::Text, Type::Text, Type::Int], Type::Text, replace).optional(1),
    method("split", &[Type::Text, Type::Text, Type::Int], Type::List, split).optional(1),
    method("join", &[Type::List, Type::Text], Type::Text, join).optional(1),
    function("strings.quote", &[Type::Text], Type::Text, quote),
];

/// Applies `test` to two texts.
fn test<'a>(name: &str, steps: &mut Steps, arguments: &[Value<'a>], test: impl Fn(&str, &str) -> bool) -> Outcome<'a> {
    match arguments {
        [Value::Text(text), Value::Text(part)] => {
            steps.bytes(text.len() + part.len())?;
            Ok(Value::Bool(test(text, part)))
        }
        _ => Err(unsuited(name, arguments)),
    }
}

fn contains<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    test("contains", steps, arguments, |text, part| text.contains(part))
}

fn starts_with<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    test("startsWith", steps, arguments, |text, part| text.starts_with(part))
}

fn ends_with<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    test("endsWith", steps, arguments, |text, part| text.ends_with(part))
}

/// The text that `change` makes of one.
fn changed<'a>(name: &str, steps: &mut Steps, arguments: &[Value<'a>], change: impl Fn(&str) -> String) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited(name, arguments)) };
    steps.bytes(2 * text.len())?;
    Ok(Value::from(change(text)))
}

/// The byte at which the character `index` starts, of which the last one may be the end of the text.
fn boundary(name: &str, text: &str, index: i64) -> Result<usize, EvaluationError> {
    let mut starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let found = usize::try_from(index).ok().and_then(|index| starts.nth(index));
    found.ok_or_else(|| {
        let length = text.chars().count();
        EvaluationError::failed(format!("{name}(): {index} is out of range for a string of {length} characters"))
    })
}

/// The character at an index; at the end of the text none.
fn char_at<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text), Value::Int(index)] = arguments else { return Err(unsuited("charAt", arguments)) };
    steps.bytes(text.len())?;
    let at = boundary("charAt", text, *index)?;
    Ok(Value::from(text[at..].chars().take(1).collect::<String>()))
}

fn substring<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match arguments {
        [Value::Text(text), Value::Int(start)] => (text, start, None),
        [Value::Text(text), Value::Int(start), Value::Int(end)] => (text, start, Some(end)),
        _ => return Err(unsuited("substring", arguments)),
    };
    steps.bytes(3 * text.len())?;
    let from = boundary("substring", text, *start)?;
    let to = end.map_or(Ok(text.len()), |end| boundary("substring", text, *end))?;
    let part = text.get(from..to).ok_or_else(|| {
        let range = format!("{start} to {}", end.copied().unwrap_or_default());
        EvaluationError::failed(format!("substring(): {range} is out of range, since it ends before it starts"))
    })?;
    Ok(Value::from(part.to_owned()))
}

/// The text as a literal.
fn quote<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("strings.quote", arguments)) };
    steps.bytes(3 * text.len())?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' | '"' => quoted.extend(['\\', c]),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(Value::from(quoted))
}

fn matches<'a>(steps: &mut Steps, pattern: &Pattern, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("matches", arguments)) };
    Ok(Value::Bool(pattern.search(steps, text)?.is_match(text)))
}

fn find<'a>(steps: &mut Steps, pattern: &Pattern, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("find", arguments)) };
    let found = pattern.search(steps, text)?.find(text);
    Ok(Value::from(found.map_or("", |found| found.as_str()).to_owned()))
}

fn find_all<'a>(steps: &mut Steps, pattern: &Pattern, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (text, limit) = match arguments {
        [Value::Text(text)] => (text, usize::MAX),
        [Value::Text(text), Value::Int(limit)] => (text, usize::try_from(*limit).unwrap_or(usize::MAX)),
        _ => return Err(unsuited("findAll", arguments)),
    };
    let mut found = Vec::new();
    for part in pattern.search(steps, text)?.find_iter(text).take(limit) {
        // The next search may look at all that is left.
        pattern.search(steps, text.get(part.end()..).unwrap_or_default())?;
        found.push(Value::from(part.as_str().to_owned()));
    }
    Ok(Value::from(found))
}

/// The byte at which the character `index` starts; the end for anything behind the last one.
fn byte_of(text: &str, index: usize) -> usize {
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

fn position(text: &str, byte: Option<usize>) -> i64 {
    let characters = byte.and_then(|byte| text.get(..byte)).map(|before| before.chars().count());
    characters.and_then(|count| i64::try_from(count).ok()).unwrap_or(-1)
}

/// Text, what is looked for in it, and the character to start at if one is given.
type Search<'v, 'a> = (&'v Text<'a>, &'v Text<'a>, Option<usize>);

/// The arguments of `indexOf` and `lastIndexOf` on text.
fn search<'v, 'a>(name: &str, arguments: &'v [Value<'a>]) -> Result<Search<'v, 'a>, EvaluationError> {
    match arguments {
        [Value::Text(text), Value::Text(part)] => Ok((text, part, None)),
        [Value::Text(text), Value::Text(part), Value::Int(from)] => match usize::try_from(*from) {
            Ok(from) => Ok((text, part, Some(from))),
            Err(_) if part.is_empty() => Ok((text, part, Some(0))),
            Err(_) => Err(EvaluationError::failed(format!("{name}() cannot start at {from}"))),
        },
        _ => Err(unsuited(name, arguments)),
    }
}

fn index_of<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    if let [Value::List(items), item] = arguments {
        return lists::index_of(steps, items.iter(), item);
    }
    let (text, part, from) = search("indexOf", arguments)?;
    if let ([_, _, from @ Value::Int(_)], true) = (arguments, part.is_empty()) {
        return Ok(from.clone());
    }
    steps.bytes(3 * text.len() + part.len())?;
    let start = byte_of(text, from.unwrap_or(0));
    let found = text.get(start..).unwrap_or_default().find(&**part).map(|at| start + at);
    Ok(Value::Int(position(text, found)))
}

fn last_index_of<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    if let [Value::List(items), item] = arguments {
        return lists::last_index_of(steps, items, item);
    }
    let (text, part, from) = search("lastIndexOf", arguments)?;
    if let ([_, _, from @ Value::Int(_)], true) = (arguments, part.is_empty()) {
        return Ok(from.clone());
    }
    steps.bytes(4 * text.len() + part.len())?;
    let from = match from {
        // Kubernetes finds nothing from behind the end on.
        Some(from) if from >= text.chars().count() => return Ok(Value::Int(-1)),
        Some(from) => from,
        None => usize::MAX,
    };
    // A match may start at `from` and reach beyond it.
    let last = byte_of(text, from);
    let end = byte_of(text, from.saturating_add(part.chars().count()));
    let found = text.get(..end).unwrap_or_default().rfind(&**part).filter(|at| *at <= last);
    Ok(Value::Int(position(text, found)))
}

fn replace<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (text, from, to, limit) = match arguments {
        [Value::Text(text), Value::Text(from), Value::Text(to)] => (text, from, to, usize::MAX),
        [Value::Text(text), Value::Text(from), Value::Text(to), Value::Int(limit)] => {
            (text, from, to, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        _ => return Err(unsuited("replace", arguments)),
    };
    steps.bytes(2 * text.len())?;
    let count = text.matches(&**from).take(limit).count();
    steps.bytes(count.saturating_mul(to.len()))?;
    Ok(Value::from(text.replacen(&**from, to, count)))
}

fn split<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (text, separator, limit) = match arguments {
        [Value::Text(text), Value::Text(separator)] => (text, separator, usize::MAX),
        [Value::Text(text), Value::Text(separator), Value::Int(limit)] => {
            (text, separator, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        _ => return Err(unsuited("split", arguments)),
    };
    steps.bytes(2 * text.len())?;
    let parts: Vec<&str> = if separator.is_empty() {
        // One part for every character; Rust would add an empty one at both ends.
        let mut ends = text.char_indices().map(|(at, _)| at).skip(1).take(limit.saturating_sub(1)).collect::<Vec<_>>();
        ends.push(text.len());
        steps.take(ends.len())?;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let parts = starts.zip(&ends).filter_map(|(start, end)| text.get(start..*end));
        parts.filter(|part| !part.is_empty() && limit > 0).collect()
    } else {
        text.splitn(limit, &**separator).collect()
    };
    steps.take(parts.len())?;
    Ok(Value::from(parts.into_iter().map(|part| Value::from(part.to_owned())).collect::<Vec<_>>()))
}

fn join<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (items, separator): (&List<'a>, &str) = match arguments {
        [Value::List(items)] => (items, ""),
        [Value::List(items), Value::Text(separator)] => (items, separator),
        _ => return Err(unsuited("join", arguments)),
    };
    let mut joined = String::new();
    for (at, item) in items.iter().enumerate() {
        let Value::Text(text) = &item else {
            let message = format!("join() needs a list of strings, found {}; write .map(x, string(x))", item.noun());
            return Err(EvaluationError::failed(message));
        };
        steps.bytes(separator.len() + text.len())?;
        if at > 0 {
            joined.push_str(separator);
        }
        joined.push_str(text);
    }
    Ok(Value::from(joined))
}

/// A text with its characters, or a list with its items, from the last to the first.
fn reverse<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return lists::reverse(steps, arguments) };
    steps.bytes(text.len())?;
    Ok(Value::from(text.chars().rev().collect::<String>()))
}
