//! Functions of URLs (`k8s.io/apiserver/pkg/cel/library/urls.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, Plain, function, method, unsuited};
use crate::values::opaque::Opaque;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::url::Url;
use crate::values::value::{Key, Text, Value};

const fn getter(name: &'static str, run: Plain) -> Function {
    method(name, &[Type::Url], Type::Text, run)
}

pub(super) const FUNCTIONS: &[Function] = &[
    function("url", &[Type::Text], Type::Url, url),
    function("isURL", &[Type::Text], Type::Bool, is_url),
    getter("getScheme", |steps, arguments| part(steps, "getScheme", arguments, Url::scheme)),
    getter("getHost", |steps, arguments| part(steps, "getHost", arguments, Url::host)),
    getter("getHostname", |steps, arguments| part(steps, "getHostname", arguments, |url| url.host_and_port().0)),
    getter("getPort", |steps, arguments| part(steps, "getPort", arguments, |url| url.host_and_port().1)),
    getter("getEscapedPath", |steps, arguments| part(steps, "getEscapedPath", arguments, Url::path)),
    method("getQuery", &[Type::Url], Type::Map, query),
];

fn url<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("url", arguments)) };
    pay(steps, text)?;
    // The first finds errors, because only it demands an absolute URL; only the second knows fragments.
    let parsed = Url::parse_request(text).and_then(|_| Url::parse(text));
    let url = parsed.map_err(|fault| EvaluationError::failed(format!("url(): {fault}")))?;
    Ok(Opaque::Url(url).into())
}

fn is_url<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("isURL", arguments)) };
    pay(steps, text)?;
    Ok(Value::Bool(Url::parse_request(text).is_ok()))
}

/// A text is gone through some times, and an escaped path is up to three times as long.
fn pay(steps: &mut Steps, text: &str) -> Result<(), EvaluationError> {
    steps.take(20)?;
    steps.bytes(6 * text.len())
}

fn target<'u>(name: &str, arguments: &'u [Value<'_>]) -> Result<&'u Url, EvaluationError> {
    match arguments {
        [Value::Opaque(opaque)] if let Opaque::Url(url) = &**opaque => Ok(url),
        _ => Err(unsuited(name, arguments)),
    }
}

fn part<'a>(steps: &mut Steps, name: &str, arguments: &[Value<'a>], get: impl Fn(&Url) -> &str) -> Outcome<'a> {
    let part = get(target(name, arguments)?);
    steps.bytes(part.len())?;
    Ok(Value::Text(Text::Shared(Arc::from(part))))
}

/// The values of each key of the query.
fn query<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let url = target("getQuery", arguments)?;
    let mut values: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    steps.bytes(3 * url.query().len())?;
    for (key, value) in url.pairs() {
        steps.take(2)?;
        values.entry(key).or_default().push(Value::Text(Text::Shared(Arc::from(value))));
    }
    let entries: BTreeMap<Key<'a>, Value<'a>> = values
        .into_iter()
        .map(|(key, values)| (Key::Text(Text::Shared(Arc::from(key))), Value::from(values)))
        .collect();
    Ok(Value::from(entries))
}
