//! The guard: what a kubelet may not assert about its own node, as native policies that fail closed while no nodegate is up.
//!
//! The policies are static. What policies in force protect and persist comes from annotations of nodegate's own validating webhook
//! configuration ([`guard_parameters`]), so whoever keeps them equal needs no right on admission policies. They are not in a
//! ConfigMap because the API server (1.36) stops to follow ConfigMaps for good once no policy has them as parameters, so a guard
//! that is deleted and made again would go by what was there before; webhook configurations it always follows.
//!
//! The API server's CEL takes time that grows with the square of what a loop goes over (its cost tracker searches a stack that
//! every round makes longer): 1 s at 5,000 labels, 16 s at 20,000. So no loop goes over more than [`KEYS_MAX`] keys.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::formula::{is_own, list, quote};
use super::match_condition;
use super::request::KUBELET;
use crate::policy::restriction::{KUBELET_ANNOTATIONS, RECONCILED_LABELS};
use crate::policy::set::PolicySet;

/// The annotation with what `protect` names.
const PROTECTED: &str = "nodegate.dev/protected";
/// The annotation with what `persist` names.
const PERSISTED: &str = "nodegate.dev/persisted";

/// Most labels, or annotations, of a node whose kubelet may change one of them, or brings them when it joins. Real nodes have
/// some dozens.
const KEYS_MAX: usize = 1_000;
/// Most comparisons of a joining node's labels with lines of the parameters: each costs two units of a budget of a million.
const COMPARISONS_MAX: usize = 300_000;

/// What the guard's objects depend on.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// What the names of the objects begin with.
    pub name: String,
    /// The validating webhook configuration with the parameters.
    pub configuration: String,
    /// The version of `MutatingAdmissionPolicy` that the API server has, if it has one.
    pub mutating: Option<MutatingVersion>,
}

/// Versions of `MutatingAdmissionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutatingVersion {
    /// Since Kubernetes 1.36.
    V1,
    /// Kubernetes 1.34 and 1.35, where it is switched on.
    V1Beta1,
}

impl MutatingVersion {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admissionregistration.k8s.io/v1",
            Self::V1Beta1 => "admissionregistration.k8s.io/v1beta1",
        }
    }
}

/// The annotations with the parameters: the keys that a kubelet may not assert, one a line. A line that ends in `/` is a whole prefix, and
/// `*` is every key.
///
/// The same policies always give the same text.
pub fn guard_parameters(set: &PolicySet) -> BTreeMap<String, String> {
    let lines = |keys: BTreeSet<&str>| -> String { keys.into_iter().map(|key| format!("{}\n", line(key))).collect() };
    let persisted = set.persisting_rules().filter_map(|rule| rule.gives.saved.as_ref());
    let persisted = persisted.flat_map(|saved| saved.labels.written());
    BTreeMap::from([
        (PROTECTED.to_owned(), lines(set.protected().written().collect())),
        (PERSISTED.to_owned(), lines(persisted.collect())),
    ])
}

/// `example.com/*` as `example.com/`: no label key ends in a slash.
fn line(written: &str) -> &str {
    match written.strip_suffix('*') {
        Some(prefix) if !prefix.is_empty() => prefix,
        _ => written,
    }
}

/// All objects of the guard.
///
/// # Guarantees
/// They concern kubelets only, and of those only writes that change labels or annotations: a heartbeat costs one comparison.
/// Keys that kubelets reconcile pass whatever the parameters say. Without parameters nodegate's own keys are still guarded.
pub fn guard(options: &GuardOptions) -> Vec<Json> {
    let both = [Guarded::Own, Guarded::Named];
    let validating = both.into_iter().flat_map(|guarded| validating(options, guarded));
    let versions = options.mutating.into_iter();
    let mutating = versions.flat_map(|version| both.map(|guarded| mutating(options, version, guarded))).flatten();
    validating.chain(mutating).collect()
}

/// The keys that a kubelet may not assert, by where they are known from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guarded {
    /// nodegate's own, known always.
    Own,
    /// Those that policies name, from the parameters.
    Named,
}

/// A field of a node's metadata: plural and singular.
type Names = (&'static str, &'static str);

impl Guarded {
    fn suffix(self) -> &'static str {
        match self {
            Self::Own => "guard-own",
            Self::Named => "guard",
        }
    }

    /// The variable with what the parameters say in these annotations.
    fn variables(self, annotations: &[&str]) -> Vec<(String, String)> {
        if self == Self::Own {
            return Vec::new();
        }
        let text = |key: &&str| format!("params.metadata.?annotations[?{}].orValue(\"\")", quote(key));
        let texts: Vec<String> = annotations.iter().map(text).collect();
        vec![("lines".to_owned(), format!("({}).split(\"\\n\")", texts.join(" + \"\\n\" + ")))]
    }

    /// Whether the key in `k` is one of them, in CEL.
    fn contains(self) -> String {
        match self {
            Self::Own => is_own("k").text(),
            Self::Named => format!(
                "((k in variables.lines || \"*\" in variables.lines || k.contains(\"/\") && k.split(\"/\")[0] + \"/\" in variables.lines) && !(k in {}))",
                list(RECONCILED_LABELS)
            ),
        }
    }

    /// Whether the field of a joining node has too many keys to be looked through within the API server's budget, in CEL.
    fn too_many(self, now: &str) -> String {
        match self {
            Self::Own => format!("{now}.size() > {KEYS_MAX}"),
            Self::Named => {
                format!("({now}.size() > {KEYS_MAX} || {now}.size() * variables.lines.size() > {COMPARISONS_MAX})")
            }
        }
    }

    /// The fields they are in.
    fn fields(self) -> &'static [Names] {
        const LABELS: Names = ("labels", "label");
        match self {
            Self::Own => &[LABELS, ("annotations", "annotation")],
            Self::Named => &[LABELS],
        }
    }

    /// Why they are refused.
    fn reason(self) -> &'static str {
        match self {
            Self::Own => "is nodegate's own",
            Self::Named => "a NodePolicy protects or persists; an administrator or a rule may set it",
        }
    }
}

/// The fields of the node as it is to be stored and as it is.
fn field_variables(fields: &[(&str, &str)], old: bool) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (plural, _) in fields {
        variables.push(((*plural).to_owned(), format!("object.metadata.?{plural}.orValue({{}})")));
        if old {
            variables.push((old_name(plural), format!("oldObject.metadata.?{plural}.orValue({{}})")));
        }
    }
    variables
}

fn old_name(plural: &str) -> String {
    format!("old{}{}", plural[..1].to_uppercase(), &plural[1..])
}

fn as_json(variables: impl IntoIterator<Item = (String, String)>) -> Json {
    variables.into_iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect()
}

/// Refuses every change of the keys on a living node.
fn validating(options: &GuardOptions, guarded: Guarded) -> [Json; 2] {
    let mut variables = field_variables(guarded.fields(), true);
    variables.extend(guarded.variables(&[PROTECTED, PERSISTED]));
    let mut validations = Vec::new();
    let mut differ = Vec::new();
    for (plural, singular) in guarded.fields() {
        let (now, before) = (format!("variables.{plural}"), format!("variables.{}", old_name(plural)));
        let few = format!("{now}.size() <= {KEYS_MAX} && {before}.size() <= {KEYS_MAX}");
        // Whether a key changes comes first: that is cheap, and most do not.
        let changed =
            format!("{now}.filter(k, !(k in {before} && {before}[k] == {now}[k])) + {before}.filter(k, !(k in {now}))");
        let refused = format!("variables.{plural}Refused");
        variables.push((format!("{plural}Changed"), format!("{few} ? {changed} : []")));
        let contains = guarded.contains();
        variables.push((format!("{plural}Refused"), format!("variables.{plural}Changed.filter(k, {contains})")));
        let reason = guarded.reason();
        let first = format!("{refused}[0]");
        let message = format!(
            "\"nodegate: a kubelet may not \" + ({first} in {now} ? ({first} in {before} ? \"change\" : \"add\") : \"remove\") + \" {singular} \" + {first} + ({refused}.size() > 1 ? \" (and \" + string({refused}.size() - 1) + \" more)\" : \"\") + \", which {reason}\""
        );
        validations.push(json!({
            "expression": format!("{refused}.size() == 0"),
            "messageExpression": message,
            "message": format!("nodegate: a kubelet may not add, change or remove a {singular} which {reason}"),
            "reason": "Forbidden",
        }));
        let differs = format!("object.metadata.?{plural} != oldObject.metadata.?{plural}");
        validations.push(json!({
            "expression": format!("!({differs}) || ({few})"),
            "message": format!(
                "nodegate: the node has more than {KEYS_MAX} {plural}, so its kubelet may change none of them; remove some as an administrator"
            ),
            "reason": "Forbidden",
        }));
        differ.push(differs);
    }
    let spec = json!({
        "matchConstraints": constraints("UPDATE", &["nodes", "nodes/status"]),
        "matchConditions": [
            match_condition("by-a-kubelet", KUBELET),
            // Heartbeats change neither, so they are not looked at any further.
            match_condition("changes-keys", differ.join(" || ")),
        ],
        "variables": as_json(variables),
        "validations": validations,
    });
    with_binding(options, guarded, ("admissionregistration.k8s.io/v1", "Validating"), spec)
}

/// Takes the keys out of a joining kubelet's node. Persisted keys may come with a node that joins. One that brings too many keys
/// keeps only those that every kubelet has: to refuse it would lock it out.
fn mutating(options: &GuardOptions, version: MutatingVersion, guarded: Guarded) -> [Json; 2] {
    let mut variables = field_variables(guarded.fields(), false);
    variables.extend(guarded.variables(&[PROTECTED]));
    let contains = guarded.contains();
    let patch = |(plural, _): &Names| {
        let (now, too_many) = (format!("variables.{plural}"), guarded.too_many(&format!("variables.{plural}")));
        let usual: &[&str] = if *plural == "labels" { &RECONCILED_LABELS } else { &KUBELET_ANNOTATIONS };
        let path = format!("\"/metadata/{plural}/\" + jsonpatch.escapeKey(k)");
        // A map with optional entries panics the API server.
        let fewer = format!(
            "[JSONPatch{{op: \"replace\", path: \"/metadata/{plural}\", value: {{}}}}] + {}.filter(k, k in {now}).map(k, JSONPatch{{op: \"add\", path: {path}, value: {now}[k]}})",
            list(usual.iter().copied())
        );
        let without = format!("{now}.filter(k, {contains}).map(k, JSONPatch{{op: \"remove\", path: {path}}})");
        format!("({too_many} ? {fewer} : {without})")
    };
    let patches: Vec<String> = guarded.fields().iter().map(patch).collect();
    let spec = json!({
        "matchConstraints": constraints("CREATE", &["nodes"]),
        "matchConditions": [match_condition("by-a-kubelet", KUBELET)],
        "variables": as_json(variables),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches.join(" + ")}}],
        // What nodegate's webhook gives after this stays.
        "reinvocationPolicy": "Never",
    });
    with_binding(options, guarded, (version.api_version(), "Mutating"), spec)
}

fn constraints(operation: &str, resources: &[&str]) -> Json {
    json!({"matchPolicy": "Equivalent", "resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": resources, "scope": "Cluster",
    }]})
}

fn with_binding(
    options: &GuardOptions,
    guarded: Guarded,
    (api_version, kind): (&str, &str),
    mut spec: Json,
) -> [Json; 2] {
    let name = format!("{}-{}", options.name, guarded.suffix());
    let mut binding = json!({"policyName": name});
    spec["failurePolicy"] = json!("Fail");
    if kind == "Validating" {
        binding["validationActions"] = json!(["Deny"]);
    }
    if guarded == Guarded::Named {
        spec["paramKind"] =
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"});
        // `Deny` would refuse every write of every node, by anybody: parameters are looked for before the match conditions.
        binding["paramRef"] = json!({"name": options.configuration, "parameterNotFoundAction": "Allow"});
    }
    let object = |kind: String, spec: Json| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    [object(format!("{kind}AdmissionPolicy"), spec), object(format!("{kind}AdmissionPolicyBinding"), binding)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::policy::{Origin, PolicyDocument};

    fn parameters(spec: Json) -> BTreeMap<String, String> {
        let spec = serde_json::from_value(spec).unwrap();
        guard_parameters(&PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap())
    }

    #[test]
    fn parameters_are_sorted_lines_with_prefixes_that_end_in_a_slash() {
        let data = parameters(json!({
            "protect": {"keys": ["nvidia.com/*", "hardware.tier", "hardware.tier"]},
            "persist": {"labels": ["persist.demo/*", "*", "team"]},
        }));
        assert_eq!(data["nodegate.dev/protected"], "hardware.tier\nnvidia.com/\n");
        assert_eq!(data["nodegate.dev/persisted"], "*\npersist.demo/\nteam\n");
    }

    #[test]
    fn without_policies_the_parameters_are_there_and_name_nothing() {
        let data = guard_parameters(&PolicySet::default());
        assert_eq!(data.values().map(String::as_str).collect::<Vec<_>>(), ["", ""]);
    }

    #[test]
    fn only_policies_about_named_keys_have_parameters() {
        let options =
            GuardOptions { name: "nodegate".to_owned(), configuration: "nodegate".to_owned(), mutating: None };
        let objects = guard(&options);
        let bound: Vec<&Json> = objects.iter().filter(|object| object["spec"]["paramRef"].is_object()).collect();
        assert_eq!((objects.len(), bound.len()), (4, 1), "{objects:#?}");
        assert!(objects.iter().all(|object| object["spec"]["failurePolicy"] != "Ignore"));
    }
}
