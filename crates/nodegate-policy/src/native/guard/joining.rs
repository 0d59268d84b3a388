//! The part of the guard that changes the node of a joining kubelet, before webhooks are called: it removes keys and owners, and leaves
//! what nodegate's webhook and controller are to know.

use serde_json::{Value as Json, json};

use super::{EVIDENCE, GuardOptions, Guarded, MutatingVersion, Names, Parameters, evidence};
use super::{as_json, field_variables, match_constraints, name_of, parameters_of, with_binding};
use crate::decide::left_at_join::LEFT_AT_JOIN;
use crate::decide::marks::admission::{ADMISSION, REJECTED_MAX};
use crate::keys::restriction::{KUBELET_ANNOTATIONS, RECONCILED_LABELS};
use crate::native::guard::parameters::{ASKED, PROTECTED};
use crate::native::objects::match_condition;
use crate::native::terms::formula::{list, quote};
use crate::native::terms::request::KUBELET;

/// The policy that writes evidence for pools into the node of a joining kubelet, so that its pools are known if no replica answers.
/// The other policy does not depend on it. Not for static manifests: they stand beside the guard with this policy, which would take what
/// they write for a kubelet's.
pub(super) fn evidence_mutation(options: &GuardOptions, version: MutatingVersion) -> Option<[Json; 2]> {
    let Parameters::Of(configuration) = &options.parameters else { return None };
    let (variables, patch) = evidence::mutation(options.lines(ASKED));
    let kind = (version.api_version(), "Mutating");
    let name = format!("{}-{EVIDENCE}", options.name);
    Some(with_binding(name, Some(configuration), kind, mutation_spec(variables, patch)))
}

/// The spec of a mutating policy about the node of a joining kubelet.
fn mutation_spec(variables: Vec<(String, String)>, patch: String) -> Json {
    json!({
        "matchConstraints": match_constraints("CREATE", &["nodes"]),
        "matchConditions": [match_condition("by-a-kubelet", KUBELET)],
        "variables": as_json(variables),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        // The values that nodegate's webhook sets afterwards are kept.
        "reinvocationPolicy": "Never",
    })
}

/// A kubelet that names an owner could have the garbage collector delete its node, and join again without its taints.
const DROP_OWNERS: &str =
    r#"(has(object.metadata.ownerReferences) ? [JSONPatch{op: "remove", path: "/metadata/ownerReferences"}] : [])"#;

/// What the policy of named keys leaves in a mark, and what that of own keys does, as patterns of the beginning of the JSON text.
const NAMED_IN_MARK: &str = r#"^\{("rejected":\{"[-A-Za-z0-9_./]+":"[-A-Za-z0-9_.]*"(,"[-A-Za-z0-9_./]+":"[-A-Za-z0-9_.]*")*\}|"more":[0-9]{1,9})"#;
const OWN_IN_MARK: &str = r#"^\{"owners":(true|false),"own":[0-9]{1,9}"#;

/// Leaves the owners, and how many of nodegate's own keys there were.
fn leave_owners() -> String {
    let own = "(variables.labelsRejected.size() + variables.annotationsRejected.size())";
    let fields =
        format!(r#""{{\"owners\":" + string(has(object.metadata.ownerReferences)) + ",\"own\":" + string{own}"#);
    format!("(!has(object.metadata.ownerReferences) && {own} == 0 ? [] : {})", leave(&fields, NAMED_IN_MARK))
}

/// The operations that write the mark: what this CEL yields, the beginning of a JSON object, and what the other policy has left,
/// if the API server has evaluated that first. Nothing else that stands there is kept: a kubelet that sends a mark would make it
/// unreadable otherwise, and hide what it claims.
fn leave(fields: &str, other: &str) -> String {
    let other = format!(r#"object.metadata.?annotations[?{}].orValue("").find(r'{other}')"#, quote(ADMISSION));
    let rest = format!(r#"({other} == "" ? "" : "," + {other}.substring(1)) + ",\"guard\":true}}""#);
    format!(
        r#"(has(object.metadata.annotations) ? [] : [JSONPatch{{op: "add", path: "/metadata/annotations", value: {{}}}}]) + [JSONPatch{{op: "add", path: "/metadata/annotations/{}", value: {fields} + {rest}}}]"#,
        ADMISSION.replace('/', "~1")
    )
}

/// Leaves an [`AdmissionMark`](crate::AdmissionMark) with what was removed: nodegate's webhook, which is called after this, sees
/// nothing of it. A key or a value with a quotation mark is none that the API server accepts.
fn leave_mark(too_many: &str) -> String {
    let rejected = "variables.labelsRejected";
    let listed = format!(
        r#"({rejected}.size() > 0 && {rejected}.size() <= {REJECTED_MAX} ? "{{\"rejected\":{{" + {rejected}.map(k, "\"" + k + "\":\"" + variables.labels[k] + "\"").join(",") + "}}" : "{{\"more\":" + string({rejected}.size() + ({too_many} ? variables.labels.size() : 0)))"#
    );
    format!("({rejected}.size() == 0 && !{too_many} ? [] : {})", leave(&listed, OWN_IN_MARK))
}

/// Removes the keys, and the owners, from a joining kubelet's node. A joining node may have persisted keys. A node with too many keys keeps only
/// those that every kubelet sets, because refusing it would lock it out.
pub(super) fn mutating(options: &GuardOptions, version: MutatingVersion, guarded: Guarded) -> [Json; 2] {
    let mut variables = field_variables(guarded.fields(), false);
    variables.extend(guarded.variables(options, &[("lines", PROTECTED)]));
    let contains = guarded.contains(false);
    let patch = |(plural, _): &Names| {
        let (now, too_many) = (format!("variables.{plural}"), guarded.too_many(&format!("variables.{plural}")));
        let usual: &[&str] = if *plural == "labels" { &RECONCILED_LABELS } else { &KUBELET_ANNOTATIONS };
        let path = format!("\"/metadata/{plural}/\" + jsonpatch.escapeKey(k)");
        // A map with optional entries panics the API server.
        let fewer = format!(
            "[JSONPatch{{op: \"replace\", path: \"/metadata/{plural}\", value: {{}}}}] + {}.filter(k, k in {now}).map(k, JSONPatch{{op: \"add\", path: {path}, value: {now}[k]}})",
            list(usual.iter().copied())
        );
        let without = format!("variables.{plural}Rejected.map(k, JSONPatch{{op: \"remove\", path: {path}}})");
        format!("({too_many} ? {fewer} : {without})")
    };
    for (plural, _) in guarded.fields() {
        let (now, too_many) = (format!("variables.{plural}"), guarded.too_many(&format!("variables.{plural}")));
        // What the other policies leave for the webhook and the controller stays. A kubelet that forges it tells on itself.
        let kept = format!(" && !(k in {})", list(LEFT_AT_JOIN));
        let kept = if guarded == Guarded::Own && *plural == "annotations" { kept } else { String::new() };
        variables.push((format!("{plural}Rejected"), format!("{too_many} ? [] : {now}.filter(k, {contains}{kept})")));
    }
    let mut patches: Vec<String> = guarded.fields().iter().map(patch).collect();
    patches.push(match guarded {
        Guarded::Own => format!("{DROP_OWNERS} + {}", leave_owners()),
        Guarded::Named => leave_mark(&guarded.too_many("variables.labels")),
    });
    let spec = mutation_spec(variables, patches.join(" + "));
    let kind = (version.api_version(), "Mutating");
    with_binding(name_of(options, guarded), parameters_of(options, guarded), kind, spec)
}
