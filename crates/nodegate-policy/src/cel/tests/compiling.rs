//! Expressions that are refused, and the messages.

use super::super::{Expression, Scope, Yields};
use super::refusal;

/// Texts that are not conditions over a node, the position of the error, and a part of its message.
const REFUSED: &[(&str, &str, &str)] = &[
    // No expression
    ("", "column 1", "empty"),
    ("  // nothing", "column 1", "empty"),
    ("true &&", "column 8", "expected a value here, found the end"),
    ("true true", "column 6", "expected an operator or the end"),
    ("true and true", "column 6", "found `and`; write `&&`"),
    ("true or true", "column 6", "found `or`; write `||`"),
    ("not node.metadata.name == 'a'", "column 5", "found `node`; write `!`"),
    (
        "true && node.metadata.labels.acme.io/pool == 'x'",
        "column 35",
        "in brackets: node.metadata.labels[\"acme.io/pool\"]",
    ),
    ("node.metadata.annotations.team-x == 'x'", "column 32", "in brackets: node.metadata.annotations[\"team-x\"]"),
    ("(true", "column 6", "expected `)` here, found the end"),
    ("[1, 2 == 3", "column 11", "expected `]`"),
    ("{'a' 1} == {}", "column 6", "expected `:`"),
    ("true ? false", "column 13", "expected `:`"),
    ("node.metadata.", "column 15", "expected a name"),
    ("node.metadata.in == 1", "column 15", "[\"key\"]"),
    ("node.metadata.labels.a/b == 'x' = 1", "column 33", "write `==`"),
    ("true & false", "column 6", "write `&&`"),
    ("true | false", "column 6", "write `||`"),
    ("node.metadata.name == “a”", "column 23", "typographic quotes"),
    ("é == 1", "column 1", "write text in quotes"),
    ("'é' == ü", "column 8", "write text in quotes"),
    ("'abc", "column 5", "write ' after it"),
    ("'a\n' == 'b'", "line 1, column 3", "on its line"),
    ("'\\q' == ''", "column 2", "write `\\\\`"),
    ("'\\u12' == ''", "column 2", "4 digits"),
    ("'\\ud800' == ''", "column 2", "4 digits"),
    ("1x == 1", "column 2", "put text in quotes"),
    ("99999999999999999999 == 1", "column 1", "too large"),
    ("9223372036854775808 == 1", "column 1", "too large for an int"),
    ("1e999 == 1.0", "column 1", "too large"),
    ("0x == 1", "column 1", "too large"),
    ("node.`a b == 1", "column 6", "backquotes"),
    ("in == 1", "column 1", "expected a value"),
    (".node == 1", "column 1", "expected a value"),
    ("Node{name: 1} == 1", "column 5", "found `{`"),
    ("node.?metadata() == 1", "column 15", "found `(`"),
    ("@x", "column 1", "unexpected character"),
    // Names
    ("nod.metadata.name == 'a'", "column 1", "no variable `nod` here; did you mean `node`?"),
    ("object.metadata.name == 'a'", "column 1", "the variables are node, gpu, inventory, identity"),
    ("true &&\n  nod == 1", "line 2, column 3", "`nod`"),
    ("node.labels.a == 'b'", "column 6", "write node.metadata.labels"),
    ("node.name == 'b'", "column 6", "write node.metadata.name"),
    ("node.taints == []", "column 6", "write node.spec.taints"),
    ("has(node.labels)", "column 1", "write node.metadata.labels"),
    ("gpu.cout > 1", "column 5", "did you mean `count`?"),
    ("node.metadata.name.startWith('a')", "column 20", "did you mean `startsWith`?"),
    ("frobnicate(1) == 1", "column 1", "no function `frobnicate`; only the functions of Kubernetes' CEL"),
    ("math.cel(1.0) == 1.0", "column 6", "did you mean `math.ceil`?"),
    ("startsWith('a', 'b')", "column 1", "write ….startsWith(…)"),
    ("'a'.string() == 'a'", "column 5", "write string(…)"),
    ("'a'.startsWith() ", "column 5", "write string.startsWith(string)"),
    ("'a'.startsWith('a', 'b')", "column 5", "wrong number of arguments"),
    ("size() == 1", "column 1", "write size(anything)"),
    ("'a'.substring(1, 2, 3) == ''", "column 5", "string.substring(int, [int])"),
    // Fields
    ("node.metadata.label.a == 'b'", "column 15", "`node.metadata` has no field `label`; did you mean `labels`?"),
    ("node.status.nodeinfo.architecture == 'a'", "column 13", "did you mean `nodeInfo`?"),
    ("has(node.status.nodeinfo)", "column 1", "did you mean `nodeInfo`?"),
    ("node.status.?nodeinfo.hasValue()", "column 14", "did you mean `nodeInfo`?"),
    ("node.status.?nodeInfo.osimage.orValue('') == 'a'", "column 23", "did you mean `osImage`?"),
    ("node.status.?nodeInfo.orValue({}).osimage == 'a'", "column 35", "did you mean `osImage`?"),
    ("node['status']['nodeinfo'] == {}", "column 15", "did you mean `nodeInfo`?"),
    ("'label' in node.metadata", "column 9", "did you mean `labels`?"),
    ("node.images == []", "column 6", "write node.status.images"),
    ("node.spec.taints.exists(t, t.kee == 'a')", "column 30", "a Taint has no field `kee`; did you mean `key`?"),
    ("node.spec.taints[0].kee == 'a'", "column 21", "a Taint has no field `kee`"),
    ("node.status.images.all(i, n, n.sizebytes > 1)", "column 32", "did you mean `sizeBytes`?"),
    ("node.status.conditions.filter(c, true)[0].stats == 'a'", "column 43", "did you mean `status`?"),
    ("node.status.?nodeInfo.optMap(i, i.osimage).hasValue()", "column 35", "did you mean `osImage`?"),
    ("node.spec.taints.exists(t, t.value == 1)", "column 36", "`==` cannot take a string and an int"),
    ("node.status.images.all(i, i.sizeBytes > '1')", "column 39", "cannot take an int and a string"),
    ("node.spec.unschedulable == 'true'", "column 25", "cannot take a bool and a string"),
    // Macros
    ("has(node)", "column 1", "write has(a.b)"),
    ("has(node.metadata['name'])", "column 1", "\"b\" in a"),
    ("has(node.metadata.?name)", "column 1", "write has(a.b)"),
    ("[1].all(x)", "column 5", "write list.all(x, condition)"),
    ("[1].exists(1, true)", "column 12", "must be an identifier"),
    ("[1].exists(node, true)", "column 12", "another name"),
    ("'abc'.all(x, true)", "column 7", "needs a list or a map before the dot, not a string"),
    ("[1].all(x, 1)", "column 12", "the condition must be a bool, but is an int"),
    ("[1].all(x, true) && x == 1", "column 21", "no variable `x`"),
    // Types
    ("'text'", "column 1", "the expression must be a bool, but is a string"),
    ("node.metadata.name", "column 15", "compare it"),
    ("1 + 1", "column 3", "must be a bool, but is an int"),
    ("true ? 'a' : true", "column 8", "must be a bool"),
    ("node.metadata.labels[?'a']", "column 21", "out of the optional with .orValue"),
    ("node.metadata.labels['count'] > 3", "column 31", "convert the string with int(…)"),
    ("node.metadata.labels.a == 3", "column 24", "`==` cannot take a string and an int"),
    ("node.metadata.labels.a == null", "column 24", "ask for what may be absent"),
    ("node.status.capacity.cpu > 3", "column 26", "compare quantities with quantity(…)"),
    ("node.metadata.labels[?'a'] == 'b'", "column 28", ".orValue(…)"),
    ("quantity('1') > quantity('2')", "column 15", ".isGreaterThan"),
    ("'a' in 'abc'", "column 5", ".contains(…)"),
    ("'n' + gpu.count == 'n2'", "column 5", "string(…)"),
    ("1 + 1.0 == 2.0", "column 3", "double(…)"),
    ("'a' && true", "column 1", "what `&&` joins must be a bool"),
    ("!node.metadata.name", "column 16", "what `!` negates must be a bool"),
    ("-'a' == 'b'", "column 1", "`-` cannot take a string"),
    ("gpu.count ? true : false", "column 5", "the condition of `? :`"),
    ("node.metadata.name.foo == 1", "column 20", "members of a string cannot be selected"),
    ("node.spec.taints['a'] == 1", "column 17", "members of a list cannot be selected with a string"),
    ("gpu.count.contains('a')", "column 11", "string.contains(string) cannot take an int here"),
    ("'a'.contains(1)", "column 14", "convert it with string(…)"),
    ("{[1]: 2} == {}", "column 2", "a list cannot be a key"),
    ("size(1) == dyn(1) && 'a'.orValue('b') == 'c'", "column 22", "what has a default must be an optional"),
    // Patterns
    ("'a'.matches('(')", "column 13", "not a regular expression: unclosed group"),
    ("'a'.matches(node.metadata.name)", "column 27", "must be a string literal"),
    ("'a'.find('a' + 'b') == ''", "column 14", "must be a string literal"),
    ("'a'.matches('(a{1000}){1000}')", "column 13", "too large"),
    ("'a'.matches('(?=a)')", "column 13", "look-around"),
];

#[test]
fn invalid_expressions_are_refused_with_the_position() {
    let mut wrong = Vec::new();
    for (source, place, expected) in REFUSED {
        let message = refusal(source);
        let wanted = format!("{place} of the expression: ");
        if !message.starts_with(&wanted) || !message.contains(expected) {
            wrong.push(format!("{source}\n  {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn maps_accept_any_key_and_dyn_reads_unknown_fields() {
    for source in [
        "node.metadata.labels.anything == 'a' && node.metadata.annotations['a/b'] == 'c'",
        "quantity(node.status.capacity['nvidia.com/gpu']).isGreaterThan(quantity('1'))",
        "node.status.allocatable.exists(name, amount, name == 'cpu' && amount == '1')",
        "dyn(node.status).nodeinfo == 1 && dyn(node).labels == 2",
        "node.metadata.managedFields.exists(m, m.manager == 'a' && m.fieldsV1.anything == 1)",
        "node.status.nodeInfo.swap.capacity > 1 && node.status.daemonEndpoints.kubeletEndpoint.Port == 10250",
        "node.status.?nodeInfo.orValue({'osimage': 'a'}).osimage == 'a'",
    ] {
        if let Err(error) = Expression::compile(source, Scope::Node, Yields::Bool) {
            panic!("{source}: {error}");
        }
    }
}

#[test]
fn the_type_of_the_result_is_checked() {
    let refusal = |source, yields| Expression::compile(source, Scope::Node, yields).unwrap_err().to_string();
    assert!(refusal("gpu.count", Yields::Text).contains("convert it with string(…)"));
    assert!(refusal("true ? gpu.vendor : gpu.count", Yields::Text).contains("column 25"));
    assert!(refusal("'a'", Yields::TextMap).contains("write {\"key\": \"value\"}"));
    assert!(refusal("{'a': gpu.count}", Yields::TextMap).contains("a value of the map must be a string"));
    assert!(refusal("{1: 'a'}", Yields::TextMap).contains("a key of the map must be a string"));
    assert!(refusal("gpu.count > 1 ? {'a': 1} : {}", Yields::TextMap).contains("a value of the map must be a string"));
}

#[test]
fn a_write_has_other_variables() {
    let refusal = |source| Expression::compile(source, Scope::Write, Yields::Bool).unwrap_err().to_string();
    assert!(refusal("node == 1").contains("the variables are object, oldObject, request"));
    let namespace = refusal("request.namespace == 'a'");
    assert!(namespace.contains("in Kubernetes, but nodegate does not supply it"), "{namespace}");
    assert!(
        namespace.contains("the available fields are operation, name, subResource, dryRun, userInfo"),
        "{namespace}"
    );
    assert!(Expression::compile("'a' in request.userInfo.extra", Scope::Write, Yields::Bool).is_ok());
    assert!(refusal("request.userinfo.uid == 'a'").contains("did you mean `userInfo`?"));
    assert!(refusal("object.metadata.label.a == 'b'").contains("`object.metadata` has no field `label`; did you mean"));
    let old = refusal("oldObject == null || oldObject.status.nodeinfo.bootID == 'a'");
    assert!(old.contains("column 39") && old.contains("did you mean `nodeInfo`?"), "{old}");
    assert!(refusal("request.userInfo.user == 'a'").contains("it has username, uid, groups, extra"));
}

#[test]
fn an_expression_keeps_its_source_and_can_be_shared() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let expression = super::compile(" true ", Yields::Bool);
    shared(&expression);
    assert_eq!(expression.source(), " true ");
    assert_eq!(format!("{expression:?}"), "Expression(\" true \")");
}
