//! The fence: native policies that restrict what nodegate's own account may write, where RBAC is not specific enough.
//!
//! RBAC can restrict writes to objects, but not to their fields, and not to the names of new objects. With a stolen token that
//! may patch webhook configurations, an attacker could intercept every object of the cluster. The fence prevents that.

use serde_json::{Value as Json, json};

use crate::native::objects::{as_static_manifests, match_condition};
use crate::native::terms::formula::{list, quote};

/// The options of the fence.
#[derive(Clone, Debug)]
pub struct FenceOptions {
    /// The prefix of the names of the objects.
    pub name: String,
    /// The user name of nodegate's account.
    pub user: String,
    /// nodegate's namespace.
    pub namespace: String,
    /// The other ConfigMaps that it writes.
    pub config_maps: Vec<String>,
    /// The prefixes of the names of the ConfigMaps with saved state and with answers of inventories.
    pub prefixes: Vec<String>,
    /// The prefix of the names of the ControllerRevisions with the last good generations of policies.
    pub generations: String,
    /// The Secret with its certificate.
    pub secret: String,
    /// Its Lease.
    pub lease: String,
}

/// Fields of an object's metadata that the API server itself changes with a write.
const KEPT_BY_THE_API_SERVER: [&str; 3] = ["generation", "managedFields", "resourceVersion"];

/// All objects of the fence.
///
/// # Guarantees
/// In webhook configurations, the account can change only `caBundle`, the failure policy of validating webhooks, and nodegate's
/// annotations, and no other current or future field. In nodes, it can change only labels, annotations and taints. It cannot
/// create or delete either. It cannot have the garbage collector delete an object, and cannot keep one from being deleted. Other
/// users are not affected.
pub fn fence(options: &FenceOptions) -> Vec<Json> {
    [webhooks(options), nodes(options), objects(options)].into_iter().flatten().collect()
}

/// The [`fence`] as static manifests of the API server, which no request can change or delete (KEP-5793).
pub fn static_fence(options: &FenceOptions) -> Vec<Json> {
    as_static_manifests(fence(options))
}

fn validation(expression: String, what: &str) -> Json {
    json!({"expression": expression, "message": format!("nodegate's account {what}"), "reason": "Forbidden"})
}

fn update(expression: &str) -> String {
    format!(r#"request.operation != "UPDATE" || ({expression})"#)
}

fn kept_and<'a>(more: &[&'a str]) -> String {
    list(KEPT_BY_THE_API_SERVER.into_iter().chain(more.iter().copied()).collect::<Vec<&'a str>>())
}

/// CEL for whether two maps are equal except for some keys.
fn same_but(one: &str, other: &str, but: &str) -> String {
    format!(
        "{one}.all(f, f in {but} || (f in {other} && {one}[f] == {other}[f])) && {other}.all(f, f in {but} || f in {one})"
    )
}

fn webhooks(options: &FenceOptions) -> [Json; 2] {
    let metadata = same_but("dyn(object.metadata)", "dyn(oldObject.metadata)", &kept_and(&["annotations"]));
    let own = r#"k.startsWith("nodegate.dev/")"#;
    let annotations = format!(
        "variables.annotations.all(k, {own} || (k in variables.oldAnnotations && variables.annotations[k] == variables.oldAnnotations[k])) && variables.oldAnnotations.all(k, {own} || k in variables.annotations)"
    );
    let entry = same_but("dyn(w)", "dyn(o)", "variables.open");
    let client = same_but("dyn(w.clientConfig)", "dyn(o.clientConfig)", r#"["caBundle"]"#);
    let entries = format!(
        "variables.webhooks.size() == variables.oldWebhooks.size() && variables.webhooks.all(w, variables.oldWebhooks.exists(o, o.name == w.name && {entry} && {client})) && variables.oldWebhooks.all(o, variables.webhooks.exists(w, w.name == o.name))"
    );
    let rest = same_but("dyn(object)", "dyn(oldObject)", r#"["metadata", "webhooks"]"#);
    let before = |path: &str, otherwise: &str| {
        format!("oldObject == null ? {otherwise} : oldObject.{path}.orValue({otherwise})")
    };
    let variables = [
        ("annotations", "object.metadata.?annotations.orValue({})".to_owned()),
        ("oldAnnotations", before("metadata.?annotations", "{}")),
        ("webhooks", "object.?webhooks.orValue([])".to_owned()),
        ("oldWebhooks", before("?webhooks", "[]")),
        (
            "open",
            r#"request.resource.resource == "validatingwebhookconfigurations" ? ["clientConfig", "failurePolicy"] : ["clientConfig"]"#
                .to_owned(),
        ),
    ];
    let variables: Vec<Json> =
        variables.into_iter().map(|(name, text)| json!({"name": name, "expression": text})).collect();
    let spec = json!({
        "matchConstraints": match_constraints("admissionregistration.k8s.io", &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]),
        "variables": variables,
        "validations": [
            validation(r#"request.operation == "UPDATE""#.to_owned(), "may not create or delete webhook configurations"),
            validation(update(&metadata), "may change no metadata of a webhook configuration except nodegate.dev annotations"),
            validation(update(&annotations), "may change no annotations of a webhook configuration except those of nodegate.dev"),
            validation(
                update(&entries),
                "may change only the caBundle of a webhook, and the failurePolicy of a validating one, and may not add or remove webhooks",
            ),
            validation(update(&rest), "may change no other fields of a webhook configuration"),
        ],
    });
    with_binding(options, "fence-webhooks", spec)
}

/// RBAC lets it patch all of a node. With `ownerReferences` to an object that does not exist it could delete every node, because
/// the garbage collector deletes such an object; a finalizer or `spec.unschedulable` is as bad.
fn nodes(options: &FenceOptions) -> [Json; 2] {
    let metadata = same_but("dyn(object.metadata)", "dyn(oldObject.metadata)", &kept_and(&["annotations", "labels"]));
    let node_spec = same_but("dyn(object).?spec.orValue({})", "dyn(oldObject).?spec.orValue({})", r#"["taints"]"#);
    let rest = same_but("dyn(object)", "dyn(oldObject)", r#"["metadata", "spec"]"#);
    let spec = json!({
        "matchConstraints": match_constraints("", &["nodes", "nodes/status"]),
        "validations": [
            validation(r#"request.operation == "UPDATE""#.to_owned(), "may not create or delete nodes"),
            validation(update(&metadata), "may change no metadata of a node except labels and annotations"),
            validation(update(&node_spec), "may change nothing in a node's spec except taints"),
            validation(update(&rest), "may change nothing of a node except labels, annotations and taints"),
        ],
    });
    with_binding(options, "fence-nodes", spec)
}

/// Whether a write adds no entry to a list in the metadata of an object.
fn adds_none(field: &str) -> String {
    format!(
        "object.metadata.?{field}.orValue([]).all(e, oldObject != null && e in oldObject.metadata.?{field}.orValue([]))"
    )
}

/// What it may create cannot be named in RBAC, and ConfigMaps with saved state cannot be named in advance.
fn objects(options: &FenceOptions) -> [Json; 2] {
    let of = |resource: &str| format!("request.resource.resource != {} || ", quote(resource));
    let begins = |prefix: &String| format!("request.name.startsWith({}) || ", quote(prefix));
    let begins: String = options.prefixes.iter().map(begins).collect();
    let named = options.prefixes.iter().map(|prefix| format!("{prefix}*")).chain(options.config_maps.iter().cloned());
    let named: Vec<String> = named.collect();
    let reported = |object: &str| format!(r#"{object}.?reportingController.orValue("") == "nodegate""#);
    let config_maps = list(options.config_maps.iter().map(String::as_str));
    let spec = json!({
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [
            rule("", &["configmaps", "secrets"]),
            rule("coordination.k8s.io", &["leases"]),
            rule("events.k8s.io", &["events"]),
            rule("apps", &["controllerrevisions"]),
            rule("openreports.io", &["clusterreports"]),
        ]},
        "validations": [
            validation(
                format!(
                    r#"request.resource.resource in ["events", "clusterreports"] || request.namespace == {}"#,
                    quote(&options.namespace)
                ),
                &format!("may write only in namespace {}", options.namespace),
            ),
            validation(
                format!("{}{begins}request.name in {config_maps}", of("configmaps")),
                &format!("may write no ConfigMaps except {}", named.join(", ")),
            ),
            // A Secret of another type, such as a token of another account, would be made by the API server.
            validation(
                format!(
                    r#"{}(request.name == {} && request.operation != "DELETE" && object.type == "kubernetes.io/tls")"#,
                    of("secrets"),
                    quote(&options.secret)
                ),
                &format!("may write no Secret except {} of type kubernetes.io/tls", options.secret),
            ),
            validation(
                format!("{}request.name == {}", of("leases"), quote(&options.lease)),
                &format!("may write no Lease except {}", options.lease),
            ),
            // Events about objects without a namespace, such as nodes, are in `default`.
            validation(
                format!(
                    r#"{}(request.operation != "DELETE" && request.namespace in {} && {} && (oldObject == null || {}))"#,
                    of("events"),
                    list(["default", options.namespace.as_str()]),
                    reported("object"),
                    reported("oldObject")
                ),
                &format!("may write no events except its own, in namespaces default and {}", options.namespace),
            ),
            // The last good generations of policies, which end with them.
            validation(
                format!(
                    r#"{}(request.name.startsWith({}) && (request.operation == "DELETE" || object.metadata.?ownerReferences.orValue([]).all(o, o.kind == "NodePolicy" && o.apiVersion.startsWith("nodegate.dev/"))))"#,
                    of("controllerrevisions"),
                    quote(&options.generations)
                ),
                &format!("may write no ControllerRevisions except {}* of NodePolicies", options.generations),
            ),
            validation(
                format!(r#"{}request.name.startsWith("nodegate-")"#, of("clusterreports")),
                "may write no ClusterReports except nodegate-*",
            ),
            // The garbage collector deletes an object whose owner does not exist; a finalizer keeps a namespace from being deleted.
            validation(
                format!(
                    r#"request.operation == "DELETE" || ((request.resource.resource == "controllerrevisions" || {}) && {})"#,
                    adds_none("ownerReferences"),
                    adds_none("finalizers")
                ),
                "may add neither owners nor finalizers to an object",
            ),
        ],
    });
    with_binding(options, "fence-objects", spec)
}

fn rule(group: &str, resources: &[&str]) -> Json {
    json!({
        "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": resources, "scope": "*",
    })
}

fn match_constraints(group: &str, resources: &[&str]) -> Json {
    json!({"matchPolicy": "Equivalent", "resourceRules": [rule(group, resources)]})
}

fn with_binding(options: &FenceOptions, suffix: &str, mut spec: Json) -> [Json; 2] {
    let name = format!("{}-{suffix}", options.name);
    spec["failurePolicy"] = json!("Fail");
    let by_nodegate = format!("request.userInfo.username == {}", quote(&options.user));
    spec["matchConditions"] = json!([match_condition("by-nodegate", by_nodegate)]);
    let object = |kind: &str, spec: Json| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    [
        object("ValidatingAdmissionPolicy", spec),
        object("ValidatingAdmissionPolicyBinding", json!({"policyName": name, "validationActions": ["Deny"]})),
    ]
}
