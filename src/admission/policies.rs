//! Reviews of `NodePolicy` objects: compiles them as the controller does, before they are stored.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Context;
use super::answer::{Answer, Rejection, cut, warning};
use super::wire::ReplyWire;
use crate::metrics::Outcome;
use nodegate_policy::cel::Budget;
use nodegate_policy::{Object, ObjectFault, ObjectReview, Text, review_object};

/// Maximum number of errors that are listed.
const FAULTS_MAX: usize = 50;
/// Maximum length of one error message, in bytes.
const FAULT_MAX: usize = 1024;

/// The fields that identify a review of a `NodePolicy`; its objects are skipped.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    request: Object<Head<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(borrow)]
    resource: Object<Resource<'a>>,
    #[serde(borrow, default)]
    sub_resource: Option<Text<'a>>,
    #[serde(borrow, default)]
    operation: Text<'a>,
}

#[derive(Deserialize)]
struct Resource<'a> {
    #[serde(borrow)]
    group: Text<'a>,
    #[serde(borrow)]
    resource: Text<'a>,
}

#[derive(Deserialize)]
struct Written {
    request: Object<Objects>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Objects {
    #[serde(default)]
    object: Option<Object<Policy>>,
    #[serde(default)]
    old_object: Option<Object<Policy>>,
}

/// The fields of an object that are judged. Everything else is skipped, at any depth.
#[derive(Deserialize)]
struct Policy {
    #[serde(default)]
    metadata: Object<Metadata>,
    #[serde(default)]
    spec: Json,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Serialize)]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A `meta/v1 Status` like the API server's own for an invalid object.
#[derive(Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
    details: Details,
}

#[derive(Serialize)]
struct Details {
    group: &'static str,
    kind: &'static str,
    name: String,
    causes: Vec<Cause>,
}

#[derive(Serialize)]
struct Cause {
    reason: &'static str,
    field: String,
    message: String,
}

/// Answers a review of a `NodePolicy`; `None` if `body` is another review.
///
/// Compiling takes longer than judging a node, so a brief budget never suffices.
pub(super) fn review(body: &[u8], context: &Context, budget: &Budget) -> Option<Result<Option<Answer>, Rejection>> {
    let envelope: Envelope<'_> = serde_json::from_slice(body).ok()?;
    let Object(head) = envelope.request;
    let Object(Resource { group, resource }) = &head.resource;
    if (&**group, &**resource) != ("nodegate.dev", "nodepolicies") {
        return None;
    }
    if budget.is_brief() {
        return Some(Ok(None));
    }
    let judged = match judge(&head, body, context) {
        Ok(judged) => judged,
        Err(rejection) => return Some(Err(rejection)),
    };
    let outcome = if judged.status.is_some() { Outcome::Denied } else { Outcome::Allowed };
    tracing::debug!(endpoint = "validate", uid = &*head.uid, outcome = outcome.as_str(), "reviewed a NodePolicy");
    let written = serde_json::to_vec(&ReplyWire::of(judged));
    let written = written
        .map_err(|error| Rejection::internal(format!("internal error: could not serialize the answer: {error}")));
    Some(written.map(|body| Some(Answer { body, outcome, reviewed: None })))
}

fn judge<'h>(head: &'h Head<'_>, body: &[u8], context: &Context) -> Result<Response<'h>, Rejection> {
    let allowed = |warnings| Response { uid: &head.uid, allowed: true, status: None, warnings };
    let writes_spec = matches!(&*head.operation, "CREATE" | "UPDATE");
    if !writes_spec || head.sub_resource.as_deref().is_some_and(|part| !part.is_empty()) {
        return Ok(allowed(Vec::new()));
    }
    let written: Written = serde_json::from_slice(body).map_err(|error| {
        Rejection::bad_request(format!("the body is not an AdmissionReview of a NodePolicy: {error}"))
    })?;
    let Object(Objects { object, old_object }) = written.request;
    let Object(policy) = object.ok_or_else(|| Rejection::bad_request("the request has no object"))?;
    let Object(Metadata { name, deletion_timestamp }) = policy.metadata;
    let ObjectReview { faults, conflicts } = review_object(&context.policies.load(), &name, &policy.spec);
    // Only changes of the spec are judged: an invalid object can still be labelled and deleted.
    let unchanged = old_object.is_some_and(|Object(old)| old.spec == policy.spec) || deletion_timestamp.is_some();
    if faults.is_empty() || unchanged {
        let told = faults.iter().map(ToString::to_string).chain(conflicts);
        return Ok(allowed(told.take(FAULTS_MAX).map(|text| warning(&format!("nodegate: {text}"))).collect()));
    }
    Ok(Response { uid: &head.uid, allowed: false, status: Some(refusal(name, &faults)), warnings: Vec::new() })
}

/// Lists every error as a cause, which `kubectl` prints on separate lines, and all of them in one message for other
/// clients.
fn refusal(name: String, faults: &[ObjectFault]) -> Status {
    let more = faults.len().saturating_sub(FAULTS_MAX);
    let told = &faults[..faults.len() - more];
    let mut lines: Vec<String> = told.iter().map(|fault| cut(fault.to_string(), FAULT_MAX)).collect();
    lines.extend((more > 0).then(|| format!("and {more} more")));
    let what = if faults.len() == 1 { "an error" } else { "errors" };
    let cause = |fault: &ObjectFault| Cause {
        reason: "FieldValueInvalid",
        field: fault.field.clone(),
        message: cut(fault.message.clone(), FAULT_MAX),
    };
    Status {
        code: 422,
        reason: "Invalid",
        message: format!("NodePolicy {name} has {what}:\n  {}", lines.join("\n  ")),
        details: Details { group: "nodegate.dev", kind: "NodePolicy", name, causes: told.iter().map(cause).collect() },
    }
}
