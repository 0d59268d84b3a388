//! The part of the guard about evidence for pools. The API server writes it itself where it has mutating policies, and admits a
//! kubelet's CREATE with evidence only if every line is true of the requester, and if none of the requester's groups is missing.
//!
//! The mutating policy and nodegate's webhook write nothing else, so this denies only a kubelet that forges it where neither of
//! them replaces it.

use serde_json::{Value as Json, json};

use crate::facts::proof::evidence::{
    AUTHENTICATED_AS, EVIDENCE_MAX, EXTRA, GROUP, GROUPS_OF_EVERY_KUBELET, NO_EXTRA, REPLACED, USER,
};
use crate::facts::proof::extra::LINES_MAX;
use crate::native::guard::parameters::ASKED_GROUPS;
use crate::native::objects::match_condition;
use crate::native::terms::formula::{list, quote};
use crate::native::terms::request::KUBELET;

/// The spec of the validating policy, which has no parameters.
pub(super) fn spec(match_constraints: &Json) -> Json {
    let text = format!("object.metadata.?annotations[?{}].orValue(\"\")", quote(AUTHENTICATED_AS));
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let validation = |expression: String, message: &str| {
        json!({
            "expression": expression,
            "message": format!("nodegate: {message}; only nodegate may set annotation {AUTHENTICATED_AS}"),
            "reason": "Forbidden",
        })
    };
    json!({
        "matchConstraints": match_constraints,
        "matchConditions": [
            match_condition("by-a-kubelet", KUBELET),
            match_condition("has-evidence", format!("has(object.metadata.annotations) && {} in object.metadata.annotations", quote(AUTHENTICATED_AS))),
        ],
        "variables": [
            variable("text", text),
            // Nothing below is evaluated for a text that is longer than nodegate writes.
            variable("lines", format!("variables.text.size() <= {EVIDENCE_MAX} ? variables.text.split(\"\\n\") : []")),
            variable("user", user()),
            variable("groups", groups()),
            variable("keys", KEYS.to_owned()),
            // The lines of each key.
            variable("extra", format!("variables.keys.map(k, variables.keys[k].map(v, {} + k + \"=\" + v))", quote(EXTRA))),
        ],
        "validations": [
            validation(
                format!("variables.lines.size() > 0 && variables.lines.size() <= {LINES_MAX}"),
                "what it says about the kubelet's credential is empty or too long",
            ),
            validation(
                format!(
                    "variables.lines.size() > {LINES_MAX} || variables.lines.all(l, l in variables.user || l in variables.groups || l == {replaced} || variables.extra.exists(e, l in e) || (l.startsWith({none}) && !(l.substring({length}) in variables.keys && variables.keys[l.substring({length})].size() > 0)))",
                    none = quote(NO_EXTRA),
                    length = NO_EXTRA.len(),
                    replaced = quote(REPLACED),
                ),
                "the annotation says what is not true of the kubelet's credential",
            ),
            // Of the extra information it has those keys that policies ask for, each as a whole.
            validation(
                format!(
                    "variables.lines.size() > {LINES_MAX} || ((variables.user + variables.groups).all(s, s in variables.lines) && variables.extra.all(e, e.all(s, s in variables.lines) || !e.exists(s, s in variables.lines)))"
                ),
                "the annotation leaves out what is true of the kubelet's credential",
            ),
        ],
    })
}

/// The extra information of the requester, by key.
const KEYS: &str = "request.userInfo.?extra.orValue({})";

/// The line of the requester's name, in a list.
fn user() -> String {
    format!("[{} + request.userInfo.username]", quote(USER))
}

/// The lines of the requester's groups.
fn groups() -> String {
    let every = list(GROUPS_OF_EVERY_KUBELET);
    format!("request.userInfo.?groups.orValue([]).filter(g, !(g in {every})).map(g, {} + g)", quote(GROUP))
}

/// The variables and the patch of the mutating policy: it writes what pools ask for (`asks`, in CEL), in the order of
/// [`Evidence`](crate::facts::proof::evidence::Evidence), in place of what the kubelet sends. What does not fit, or could be read as
/// another line, gives no evidence.
pub(super) fn mutation(asks: String) -> (Vec<(String, String)>, String) {
    let annotation = quote(AUTHENTICATED_AS);
    let asked =
        format!("variables.asks.filter(l, l.startsWith({})).map(l, l.substring({}))", quote(EXTRA), EXTRA.len());
    let values = format!("variables.keys[k].map(v, {} + k + \"=\" + v)", quote(EXTRA));
    // The line of a kubelet that sends the annotation needs room, too.
    let (text_max, lines_max) = (EVIDENCE_MAX - REPLACED.len() - 1, LINES_MAX - 1);
    let count = "variables.present.map(k, variables.keys[k].size()).sum() + variables.groups.size() + variables.absent.size() + 1";
    // First, because a loop over many groups would exceed the API server's budget, and the policy refuse the kubelet.
    let few = lines_max + GROUPS_OF_EVERY_KUBELET.len();
    let variables = [
        ("sent", format!("{annotation} in object.metadata.?annotations.orValue({{}})")),
        ("asks", asks),
        ("keys", KEYS.to_owned()),
        ("asked", asked),
        ("present", "variables.asked.filter(k, k in variables.keys && variables.keys[k].size() > 0)".to_owned()),
        ("absent", "variables.asked.filter(k, !(k in variables.present))".to_owned()),
        ("groups", groups()),
        // The values of a key are one text of several lines.
        ("parts", format!("variables.present.map(k, {values}.join(\"\\n\")) + variables.groups + variables.absent.map(k, {} + k) + {}", quote(NO_EXTRA), user())),
        ("broken", r#"variables.present.exists(k, variables.keys[k].exists(v, v.matches("\\p{Cc}"))) || variables.groups.exists(g, g.matches("\\p{Cc}"))"#.to_owned()),
        ("text", "variables.parts.join(\"\\n\")".to_owned()),
        ("fits", format!("request.userInfo.?groups.orValue([]).size() <= {few} && {count} <= {lines_max} && !variables.broken && variables.text.size() <= {text_max}")),
    ];
    let path = AUTHENTICATED_AS.replace('/', "~1");
    let set = format!(
        r#"(has(object.metadata.annotations) ? [] : [JSONPatch{{op: "add", path: "/metadata/annotations", value: {{}}}}]) + [JSONPatch{{op: "add", path: "/metadata/annotations/{path}", value: variables.text + (variables.sent ? "\n{REPLACED}" : "")}}]"#
    );
    let remove =
        format!(r#"(variables.sent ? [JSONPatch{{op: "remove", path: "/metadata/annotations/{path}"}}] : [])"#);
    let patch =
        format!("(({} in variables.asks || variables.sent) && variables.fits ? {set} : {remove})", quote(ASKED_GROUPS));
    (variables.map(|(name, expression)| (name.to_owned(), expression)).into(), patch)
}
