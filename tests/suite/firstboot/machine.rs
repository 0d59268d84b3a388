//! What systemd makes of an `ExecStart=`: a second reading of its rules, independent of the one in `crates/nodegate-onnode/src/firstboot`.

use std::collections::BTreeMap;

/// The program and the words that systemd starts for a value of `ExecStart=`. The specifier `%H` is `host`, and `%%` is `%`.
pub(super) fn expand(value: &str, environment: &BTreeMap<&str, &str>) -> (String, Vec<String>) {
    let mut words = split(value);
    let prefixes: String = words[0].chars().take_while(|c| "-@:+!".contains(*c)).collect();
    let program = specifiers(&words[0][prefixes.len()..]);
    words.remove(0);
    let mut expanded = Vec::new();
    for word in words.iter().map(|word| specifiers(word)) {
        let whole = word.strip_prefix('$').filter(|name| !prefixes.contains(':') && is_name(name));
        match whole {
            Some(name) => {
                expanded.extend(environment.get(name).into_iter().flat_map(|value| split(value)));
            }
            None if prefixes.contains(':') => expanded.push(word),
            None => expanded.push(variables(&word, environment)),
        }
    }
    if !prefixes.contains('@') {
        expanded.insert(0, program.clone());
    }
    (program, expanded)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn specifiers(word: &str) -> String {
    word.replace("%%", "\0").replace("%H", "host").replace('\0', "%")
}

/// `${NAME}` anywhere in a word, and `$$`.
fn variables(word: &str, environment: &BTreeMap<&str, &str>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some((name, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            text.push_str(environment.get(name).copied().unwrap_or_default());
            rest = after;
        } else {
            text.push('$');
            rest = rest.strip_prefix('$').unwrap_or(rest);
        }
    }
    text + rest
}

/// Words with quotes and the escapes that the cases use.
fn split(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = value.chars();
    while let Some(c) = letters.next() {
        match c {
            ' ' | '\t' if quote.is_none() => words.extend(word.take()),
            '"' | '\'' if quote.is_none() => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            _ if Some(c) == quote => quote = None,
            '\\' => {
                let next = letters.next().unwrap();
                let text = match next {
                    'x' => {
                        let digits: String = letters.by_ref().take(2).collect();
                        char::from(u8::from_str_radix(&digits, 16).unwrap()).to_string()
                    }
                    's' => " ".to_owned(),
                    't' => "\t".to_owned(),
                    '\\' | '"' | '\'' | ';' => next.to_string(),
                    other => format!("\\{other}"),
                };
                word.get_or_insert_default().push_str(&text);
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
