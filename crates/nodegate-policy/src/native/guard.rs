//! The guard: the keys that a kubelet may not set on its own node, as native policies that fail closed while nodegate is down.
//!
//! The policies do not depend on what is in force. The keys that the policies in force protect and persist are in annotations of
//! nodegate's own validating webhook configuration ([`guard_parameters`]), so nodegate needs no permission for admission policies.
//! They are not in a ConfigMap, because the API server (1.36) stops watching ConfigMaps for good once no policy uses them as parameters. A
//! guard that is deleted and created again would then use outdated parameters. Webhook configurations are always watched. In static
//! manifests of the API server, the keys are in the expressions, because those may refer to no object.
//!
//! The time of a loop in the API server's CEL grows with the square of its length (its cost tracker searches a stack that grows
//! with every round): 1 s for 5,000 labels, 16 s for 20,000. So no loop iterates over more than [`KEYS_MAX`] keys.

mod evidence;
mod joining;
mod parameters;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use crate::keys::programs;
use crate::keys::restriction::RECONCILED_LABELS;
use crate::native::objects::{as_static_manifests, match_condition};
use crate::native::terms::formula::{is_own, list, quote};
use crate::native::terms::request::KUBELET;

pub use parameters::guard_parameters;
use parameters::{PERSISTED, PROTECTED};

/// Maximum number of labels, or annotations, of a node for its kubelet to change or send them. Real nodes have some dozens.
const KEYS_MAX: usize = 1_000;
/// Maximum number of comparisons of a joining node's labels with the parameters. Each costs two units of a budget of a million.
const COMPARISONS_MAX: usize = 300_000;

/// The options of the guard.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The prefix of the names of the objects.
    pub name: String,
    /// Where the guard has its parameters.
    pub parameters: Parameters,
    /// The version of `MutatingAdmissionPolicy` that the API server supports, if any.
    pub mutating: Option<MutatingVersion>,
}

/// Where the guard has the keys of policies.
#[derive(Clone, Debug)]
pub enum Parameters {
    /// In the annotations of this validating webhook configuration, which the leader writes.
    Of(String),
    /// In its expressions, as [`guard_parameters`] of some policies: static manifests of the API server may refer to no object
    /// (KEP-5793).
    Fixed(BTreeMap<String, String>),
}

impl GuardOptions {
    /// CEL for the lines of a parameter.
    fn lines(&self, key: &str) -> String {
        match &self.parameters {
            Parameters::Of(_) => {
                format!("(params.metadata.?annotations[?{}].orValue(\"\")).split(\"\\n\")", quote(key))
            }
            Parameters::Fixed(texts) => list(texts.get(key).map_or("", String::as_str).lines()),
        }
    }
}

/// Versions of `MutatingAdmissionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutatingVersion {
    /// Since Kubernetes 1.36.
    V1,
    /// Kubernetes 1.34 and 1.35, if it is enabled.
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

/// All objects of the guard.
///
/// # Guarantees
/// They apply only to kubelets, and only to writes that change labels, annotations or owners: a heartbeat costs three comparisons.
/// Keys that kubelets reconcile always pass. Without parameters, keys that are reserved for nodegate are still guarded.
pub fn guard(options: &GuardOptions) -> Vec<Json> {
    let both = [Guarded::Own, Guarded::Named];
    let validating = both.into_iter().flat_map(|guarded| validating(options, guarded));
    let validating = validating.chain(evidence_policy(&options.name));
    let mutating = options.mutating.into_iter().flat_map(|version| {
        let keys = both.into_iter().flat_map(move |guarded| joining::mutating(options, version, guarded));
        keys.chain(joining::evidence_mutation(options, version).into_iter().flatten())
    });
    let objects = validating.chain(mutating).collect();
    match options.parameters {
        Parameters::Of(_) => objects,
        Parameters::Fixed(_) => as_static_manifests(objects),
    }
}

/// The suffix of the name of the policy about evidence for pools.
const EVIDENCE: &str = "guard-evidence";

/// The policy that admits only true evidence for pools, and its binding. The names of both begin with `name`.
pub fn evidence_policy(name: &str) -> [Json; 2] {
    let spec = evidence::spec(&match_constraints("CREATE", &["nodes"]));
    with_binding(format!("{name}-{EVIDENCE}"), None, ("admissionregistration.k8s.io/v1", "Validating"), spec)
}

/// The keys that a kubelet may not set, by their source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guarded {
    /// Keys that are reserved for nodegate, which are static.
    Own,
    /// Keys that policies name, from the parameters.
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

    /// The variables with the parameters: the lines of each.
    fn variables(self, options: &GuardOptions, parameters: &[(&str, &str)]) -> Vec<(String, String)> {
        if self == Self::Own {
            return Vec::new();
        }
        parameters.iter().map(|(name, key)| ((*name).to_owned(), options.lines(key))).collect()
    }

    /// CEL for whether the key in `k` is one of them: of an existing node, also a persisted one.
    fn contains(self, existing: bool) -> String {
        if self == Self::Own {
            return is_own("k").text();
        }
        let domain = |list: &str, mark: &str| {
            format!("k.contains(\"/\") && {mark}k.split(\"/\")[0] + \"/\" in variables.{list}")
        };
        let any = |list: &str| format!("\"*\" in variables.{list} || {}", domain(list, ""));
        let protected = format!("(k in variables.lines || {})", any("lines"));
        let named = if existing {
            let never = format!(
                "(\"!\" + k in variables.persisted || {} || k.matches({}))",
                domain("persisted", "\"!\" + "),
                quote(&programs_domains())
            );
            format!("({protected} || k in variables.persisted || ({}) && !{never})", any("persisted"))
        } else {
            protected
        };
        format!("({named} && !(k in {}))", list(RECONCILED_LABELS))
    }

    /// CEL for whether a field of a joining node has too many keys for the API server's budget.
    fn too_many(self, now: &str) -> String {
        match self {
            Self::Own => format!("{now}.size() > {KEYS_MAX}"),
            Self::Named => {
                format!("({now}.size() > {KEYS_MAX} || {now}.size() * variables.lines.size() > {COMPARISONS_MAX})")
            }
        }
    }

    /// The fields that can contain them.
    fn fields(self) -> &'static [Names] {
        const LABELS: Names = ("labels", "label");
        match self {
            Self::Own => &[LABELS, ("annotations", "annotation")],
            Self::Named => &[LABELS],
        }
    }

    /// The reason for the refusal, for messages.
    fn reason(self) -> &'static str {
        match self {
            Self::Own => "is reserved for nodegate",
            Self::Named => "a NodePolicy protects or persists; an administrator or a rule may set it",
        }
    }
}

/// An RE2 expression for keys in the domains of programs that are patterns, such as those of storage drivers.
fn programs_domains() -> String {
    let domains = programs::never_persisted_domains();
    let domains: BTreeSet<String> = domains.map(|glob| glob.replace('.', "[.]").replace('*', "[^/]+")).collect();
    format!("^({})/", domains.into_iter().collect::<Vec<_>>().join("|"))
}

/// The variables with the fields of the node, as it would be stored and as it is stored.
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

/// Refuses every change of the keys, and of the owners, on an existing node.
fn validating(options: &GuardOptions, guarded: Guarded) -> [Json; 2] {
    let mut variables = field_variables(guarded.fields(), true);
    variables.extend(guarded.variables(options, &[("lines", PROTECTED), ("persisted", PERSISTED)]));
    let mut validations = Vec::new();
    let mut differ = Vec::new();
    for (plural, singular) in guarded.fields() {
        let (now, before) = (format!("variables.{plural}"), format!("variables.{}", old_name(plural)));
        let few = format!("{now}.size() <= {KEYS_MAX} && {before}.size() <= {KEYS_MAX}");
        // Whether a key changes is checked first, because that is cheap and most keys do not change.
        let changed =
            format!("{now}.filter(k, !(k in {before} && {before}[k] == {now}[k])) + {before}.filter(k, !(k in {now}))");
        let refused = format!("variables.{plural}Refused");
        variables.push((format!("{plural}Changed"), format!("{few} ? {changed} : []")));
        let contains = guarded.contains(true);
        variables.push((format!("{plural}Refused"), format!("variables.{plural}Changed.filter(k, {contains})")));
        let reason = guarded.reason();
        let first = format!("{refused}[0]");
        let message = format!(
            "\"nodegate: a kubelet may not \" + ({first} in {now} ? ({first} in {before} ? \"change\" : \"add\") : \"remove\") + \" {singular} \" + {first} + ({refused}.size() > 1 ? \" (and \" + string({refused}.size() - 1) + \" more)\" : \"\") + \", which {reason}\""
        );
        validations.push(json!({
            "expression": format!("{refused}.size() == 0"),
            "messageExpression": message,
            "message": format!("nodegate: a kubelet may not add, change or remove this {singular}, which {reason}"),
            "reason": "Forbidden",
        }));
        let differs = format!("object.metadata.?{plural} != oldObject.metadata.?{plural}");
        validations.push(json!({
            "expression": format!("!({differs}) || ({few})"),
            "message": format!(
                "nodegate: the node has more than {KEYS_MAX} {plural}, so its kubelet may not change them; an administrator must remove some"
            ),
            "reason": "Forbidden",
        }));
        differ.push(differs);
    }
    if guarded == Guarded::Own {
        // Older versions of the NodeRestriction plugin allow it (CVE-2025-5187).
        let differs = "object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences";
        validations.push(json!({
            "expression": format!("!({differs})"),
            "message": "nodegate: a kubelet may not change the owners of its node, because the garbage collector deletes a node whose owner does not exist",
            "reason": "Forbidden",
        }));
        differ.push(differs.to_owned());
    }
    let spec = json!({
        "matchConstraints": match_constraints("UPDATE", &["nodes", "nodes/status"]),
        "matchConditions": [
            match_condition("by-a-kubelet", KUBELET),
            // Heartbeats change none of them, so they are not evaluated further.
            match_condition("changes-keys", differ.join(" || ")),
        ],
        "variables": as_json(variables),
        "validations": validations,
    });
    with_binding(
        name_of(options, guarded),
        parameters_of(options, guarded),
        ("admissionregistration.k8s.io/v1", "Validating"),
        spec,
    )
}

fn match_constraints(operation: &str, resources: &[&str]) -> Json {
    json!({"matchPolicy": "Equivalent", "resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": resources, "scope": "Cluster",
    }]})
}

fn name_of(options: &GuardOptions, guarded: Guarded) -> String {
    format!("{}-{}", options.name, guarded.suffix())
}

/// The webhook configuration with the parameters, for a policy that has some there.
fn parameters_of(options: &GuardOptions, guarded: Guarded) -> Option<&str> {
    match &options.parameters {
        Parameters::Of(configuration) if guarded == Guarded::Named => Some(configuration),
        _ => None,
    }
}

fn with_binding(
    name: String,
    parameters: Option<&str>,
    (api_version, kind): (&str, &str),
    mut spec: Json,
) -> [Json; 2] {
    let mut binding = json!({"policyName": name});
    spec["failurePolicy"] = json!("Fail");
    if kind == "Validating" {
        binding["validationActions"] = json!(["Deny"]);
    }
    if let Some(configuration) = parameters {
        spec["paramKind"] =
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"});
        // `Deny` would refuse every write of every node, because parameters are looked up before match conditions are evaluated.
        binding["paramRef"] = json!({"name": configuration, "parameterNotFoundAction": "Allow"});
    }
    let object = |kind: String, spec: Json| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    [object(format!("{kind}AdmissionPolicy"), spec), object(format!("{kind}AdmissionPolicyBinding"), binding)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_about_named_keys_have_parameters() {
        let parameters = Parameters::Of("nodegate".to_owned());
        let options = GuardOptions { name: "nodegate".to_owned(), parameters, mutating: None };
        let objects = guard(&options);
        let bound: Vec<&Json> = objects.iter().filter(|object| object["spec"]["paramRef"].is_object()).collect();
        assert_eq!((objects.len(), bound.len()), (6, 1), "{objects:#?}");
        assert!(objects.iter().all(|object| object["spec"]["failurePolicy"] != "Ignore"));
    }

    #[test]
    fn static_manifests_refer_to_no_object_and_write_no_evidence() {
        let fixed = BTreeMap::from([(PROTECTED.to_owned(), "tier\nit's \"x\"/\n".to_owned())]);
        let parameters = Parameters::Fixed(fixed);
        let options = GuardOptions { name: "nodegate".to_owned(), parameters, mutating: Some(MutatingVersion::V1) };
        let objects = guard(&options);
        // The guard that follows the policies in force writes it; with two, the second would take the first for a forgery.
        assert_eq!(objects.len(), 10, "{objects:#?}");
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            assert!(name.ends_with(".static.k8s.io") && name.starts_with("nodegate-guard"), "{name}");
            let policy = &object["spec"]["policyName"];
            assert!(policy.is_null() || policy == name, "{object:#}");
            assert!(!object.to_string().contains("params"), "{object:#}");
            assert!(object["spec"]["paramKind"].is_null() && object["spec"]["paramRef"].is_null(), "{object:#}");
        }
        let variables = |object: &Json| object["spec"]["variables"].as_array().cloned().unwrap_or_default();
        let named = objects.iter().filter(|object| object["metadata"]["name"] == "nodegate-guard.static.k8s.io");
        let lines = named.flat_map(variables).filter(|variable| variable["name"] == "lines");
        let lines: Vec<Json> = lines.map(|variable| variable["expression"].clone()).collect();
        assert_eq!(lines, vec![json!(list(["tier", "it's \"x\"/"])); 2], "one policy refuses, one removes");
    }
}
