//! Expressions mean the same here and in the API server: each is the message of a ValidatingAdmissionPolicy that warns.
//!
//! The expressions are made at random from a seed (`NODEGATE_SEED`, or one that never changes). Any difference fails the test.
//! Each that is known is one of [`DIFFERENCES`], which `docs/reference/cel.md` lists; one that is gone fails a test, too.

mod generator;

use std::collections::{BTreeMap, BTreeSet};

use nodegate_cel::{Expression, Schema, Variables, Yields};
use serde_json::{Value, json};

use super::control_plane::{Exclusive, exclusive};
use super::random::{Random, setting};
use crate::eventually::{eventually_blocking, holds};

/// How many expressions the gate compares. The full run (`just cel-differential`) compares three times as many.
const COUNT: u64 = 800;
/// Expressions of one policy. The API server sends at most 4 KiB of warnings with one answer.
const TOGETHER: usize = 16;
/// Characters of an answer that are compared.
const LONGEST: usize = 120;
const SEED: u64 = 20_261_121;

static NOTHING: Schema = Schema { variables: &[] };

/// What becomes of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Is(&'static str),
    Fails,
    Refused,
}

use Outcome::{Fails, Is, Refused};

/// All that Kubernetes answers otherwise: the expression, its outcome there and here. Random expressions contain none of it.
const DIFFERENCES: &[(&str, Outcome, Outcome)] = &[
    ("string([1, 'a'].size())", Refused, Is("2")),
    ("string(optional.of(1).orValue('a'))", Refused, Is("1")),
    ("string(math.greatest(1, 2))", Refused, Is("2")),
    ("base64.encode(b'a')", Refused, Is("YQ==")),
    ("'ab'.reverse()", Refused, Is("ba")),
    ("string(quantity('1').sign())", Refused, Is("1")),
    ("'%s'.format([1e6])", Is("1e+06"), Is("1000000")),
    ("'%s'.format([['a']])", Is("[~a~]"), Is("[a]")),
    ("'%.2f'.format([1234.5])", Is("1,234.50"), Is("1234.50")),
    ("string(double('NaN') < 1.0)", Fails, Is("false")),
    ("string(1 >= double('NaN'))", Fails, Is("false")),
    (
        "string(quantity('1').sub(-9223372036854775808).asApproximateFloat())",
        Is("-9.223372036854776e+18"),
        Is("9.223372036854776e+18"),
    ),
    ("string(isURL('http://%FF/'))", Is("true"), Is("false")),
    ("string(url('/?a=%FF').getQuery().size())", Is("1"), Is("0")),
    ("'%e'.format([1234.5])", Is("1.234500×10⁰³"), Is("1.234500e+03")),
    ("'%s'.format([{'a': 1}])", Is("{~a~:1}"), Is("{a: 1}")),
    ("string(double('NaN') > 1.0) + string(1.0 <= double('NaN'))", Fails, Is("falsefalse")),
    ("string(quantity('1') == quantity('1').add(0))", Fails, Is("true")),
    ("string(timestamp('2026-11-21T20:15:30Z').getHours('Europe/Berlin'))", Is("21"), Fails),
];

/// What an expression yields: its text, or nothing if it fails.
type Answer = Option<String>;

/// The text as a warning can tell it.
fn told(source: &str) -> String {
    format!("({source}).replace('\"', '~')")
}

/// What our engine answers; an error if it refuses the expression.
fn ours(source: &str) -> Result<Answer, String> {
    let expression = Expression::compile(&told(source), &NOTHING, Yields::Text).map_err(|error| error.to_string())?;
    Ok(expression.evaluate_text(&Variables::new()).ok())
}

fn name(batch: usize) -> String {
    format!("cel-{batch}")
}

/// A policy that says what its expressions yield, on ConfigMaps of its name.
fn policy(batch: usize, expressions: &[(usize, &str)]) -> Vec<Value> {
    let name = name(batch);
    let validations: Vec<Value> = expressions
        .iter()
        .map(|(number, source)| {
            json!({"expression": "false", "message": format!("{number}:fails"),
                   "messageExpression": format!("'{number}:' + {}", told(source))})
        })
        .collect();
    let metadata = json!({"name": name});
    vec![
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
            "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                         "resources": ["configmaps"], "resourceNames": [name]}]},
                     "validations": validations}}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
            "spec": {"policyName": name, "validationActions": ["Warn"]}}),
    ]
}

fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// The numbers of the expressions of each batch that the API server refuses to compile.
fn refused(output: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let mut refused: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut policy = String::new();
    for line in output.lines() {
        if let Some((_, named)) =
            line.split_once("ValidatingAdmissionPolicy").and_then(|(_, rest)| rest.split_once('"'))
        {
            policy = named.split('"').next().unwrap().to_owned();
        }
        for (at, _) in line.match_indices("spec.validations[") {
            let index: String = line[at + 17..].chars().take_while(char::is_ascii_digit).collect();
            refused.entry(policy.clone()).or_default().insert(index.parse().unwrap());
        }
    }
    refused
}

/// What the API server answers; nothing for what it refuses to compile.
fn theirs(cluster: &Exclusive, sources: &[String]) -> BTreeMap<usize, Answer> {
    let numbered: Vec<(usize, &str)> = sources.iter().map(String::as_str).enumerate().collect();
    let mut batches: Vec<Vec<(usize, &str)>> = numbered.chunks(TOGETHER).map(<[_]>::to_vec).collect();
    let install = |batches: &[Vec<(usize, &str)>]| {
        let items = batches.iter().enumerate().flat_map(|(batch, expressions)| policy(batch, expressions)).collect();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", "-"], Some(&list(items)))
    };
    if let Err(output) = install(&batches) {
        let refused = refused(&output);
        assert!(!refused.is_empty(), "{output}");
        for (batch, expressions) in batches.iter_mut().enumerate() {
            let Some(indexes) = refused.get(&name(batch)) else { continue };
            let mut index = 0;
            expressions.retain(|_| {
                index += 1;
                !indexes.contains(&(index - 1))
            });
        }
        install(&batches).unwrap();
    }
    let mut answers = BTreeMap::new();
    let expected: usize = batches.iter().map(Vec::len).sum();
    eventually_blocking("every policy is in force", || {
        let maps: Vec<Value> = (0..batches.len())
            .map(|batch| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name(batch), "namespace": "default"}}))
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), list(maps)).unwrap();
        let (_, warnings) =
            cluster.plane.kubectl_with_stderr(&["create", "--dry-run=server", "-f", file.path().to_str().unwrap()]);
        for line in warnings.lines() {
            let Some((_, message)) = line.split_once("with binding '").and_then(|(_, rest)| rest.split_once("': "))
            else {
                continue;
            };
            let Some((number, answer)) = message.split_once(':') else { continue };
            let answer = (answer != "fails").then(|| answer.to_owned());
            answers.insert(number.parse().unwrap(), answer);
        }
        holds(answers.len() == expected, || format!("{} of {expected} answers", answers.len()))
    });
    let names: Vec<String> = (0..batches.len()).map(name).collect();
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        let arguments: Vec<&str> =
            ["delete", kind, "--wait=false"].into_iter().chain(names.iter().map(String::as_str)).collect();
        cluster.plane.kubectl(&arguments, None).unwrap();
    }
    answers
}

#[test]
fn random_expressions_have_the_same_result_as_in_the_api_server() {
    let (seed, count) = (setting("NODEGATE_SEED", SEED), setting("NODEGATE_EXPRESSIONS", COUNT) as usize);
    let mut random = Random(seed);
    let mut sources = BTreeSet::new();
    while sources.len() < count {
        let source = generator::expression(&mut random);
        // A long answer would push others out of the warnings.
        let short = ours(&source)
            .ok()
            .flatten()
            .is_none_or(|answer| answer.chars().count() < LONGEST && !answer.contains('\n'));
        if short && source.len() < 1_000 {
            sources.insert(source);
        }
    }
    let sources: Vec<String> = sources.into_iter().collect();
    let cluster = exclusive();
    let answers = theirs(&cluster, &sources);
    let (mut same, mut faults) = (0, Vec::new());
    for (number, source) in sources.iter().enumerate() {
        // What the API server refuses when it compiles may fail here later: it knows more of types.
        let Some(theirs) = answers.get(&number) else { continue };
        let ours = ours(source);
        if ours.as_ref().ok() == Some(theirs) {
            same += 1;
        } else {
            faults.push(format!("{source}\n    there: {theirs:?}\n    here:  {ours:?}"));
        }
    }
    println!("seed {seed}: {same} the same, {} refused there", count - answers.len());
    assert!(faults.is_empty(), "seed {seed}, {} differences:\n{}", faults.len(), faults.join("\n"));
    assert!(same >= count * 5 / 6, "only {same} of {count} expressions were compared");
}

#[test]
fn known_differences_from_the_api_server_are_what_the_documentation_says() {
    let sources: Vec<String> = DIFFERENCES.iter().map(|(source, ..)| (*source).to_owned()).collect();
    let answers = theirs(&exclusive(), &sources);
    let wrong: Vec<String> = DIFFERENCES
        .iter()
        .enumerate()
        .filter_map(|(number, (source, there, here))| {
            let outcome = |answer: Option<&Answer>, expected: Outcome| match (answer, expected) {
                (None, Refused) | (Some(None), Fails) => true,
                (Some(Some(answer)), Is(expected)) => answer == expected,
                _ => false,
            };
            let (theirs, ours) = (answers.get(&number), ours(source));
            let right = outcome(theirs, *there) && outcome(ours.as_ref().ok(), *here);
            (!right).then(|| format!("{source}\n    there: {theirs:?}\n    here:  {ours:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
