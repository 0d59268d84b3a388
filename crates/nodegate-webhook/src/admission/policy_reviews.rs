//! Reviews of `NodePolicy` objects: compiles them as the controller does, before they are stored.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Context;
use super::answer::{Answer, Rejection, cut, warnings};
use super::wire::{NAME_MAX, ReplyWire};
use nodegate_base::metrics::Outcome;
use nodegate_policy::{Object, ObjectFault, ObjectReview, Text, review_object};

/// Maximum number of errors that are listed.
const FAULTS_MAX: usize = 50;
/// Maximum length of one error message, in bytes.
const FAULT_MAX: usize = 1024;

/// The warning about an entry that is not asked, after its name.
const ANNOTATIONS_LEFT_OUT: &str =
    "annotation-only writes are not judged; set webhooks.governAnnotations or --govern-annotations";

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
struct Written<'a> {
    #[serde(borrow)]
    request: Object<Objects<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Objects<'a> {
    #[serde(borrow, default)]
    object: Option<Object<Policy<'a>>>,
    #[serde(borrow, default)]
    old_object: Option<Object<Policy<'a>>>,
}

/// The fields of an object that are judged. Everything else is skipped, at any depth.
#[derive(Deserialize)]
struct Policy<'a> {
    #[serde(borrow, default)]
    metadata: Object<Metadata<'a>>,
    /// The text: it is compiled from there, within limits, and a tree of it would have none.
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
}

impl Policy<'_> {
    fn spec(&self) -> &str {
        self.spec.map_or("{}", RawValue::get)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Text<'a>>,
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

/// Maximum size of a review of a `NodePolicy`. It has two objects at most, and etcd stores no larger ones than 1.5 MiB, as
/// the JSON that the API server sends.
const POLICY_REVIEW_MAX: usize = 3 * 1024 * 1024 + 128 * 1024;

/// Whether `body` is a review of a `NodePolicy`.
pub(super) fn is_review(body: &[u8]) -> bool {
    let Ok(Envelope { request: Object(head) }) = serde_json::from_slice::<Envelope<'_>>(body) else { return false };
    let Object(Resource { group, resource }) = &head.resource;
    (&**group, &**resource) == ("nodegate.dev", "nodepolicies")
}

/// Checks the size of a review of a `NodePolicy`.
///
/// # Errors
/// Returns 413 if it is larger than any that the API server sends.
pub(super) fn check_size(body: &[u8]) -> Result<(), Rejection> {
    if body.len() <= POLICY_REVIEW_MAX {
        return Ok(());
    }
    Err(Rejection {
        code: 413,
        message: format!("the review of a NodePolicy is larger than {POLICY_REVIEW_MAX} bytes"),
    })
}

/// Answers a review of a `NodePolicy`. It takes as much time and memory as the policy takes to compile, so callers let one
/// at a time do so, beside reviews of nodes.
///
/// # Errors
/// Returns 400 for a body that is not a valid review, 413 for one that is too large, and 500 for an internal error.
pub(super) fn review(body: &[u8], context: &Context) -> Result<Answer, Rejection> {
    check_size(body)?;
    let envelope: Envelope<'_> =
        serde_json::from_slice(body).map_err(|error| Rejection::bad_request(format!("{NOT_A_REVIEW}: {error}")))?;
    let Object(head) = envelope.request;
    if head.uid.is_empty() || head.uid.len() > NAME_MAX {
        return Err(Rejection::bad_request(
            "the request has no uid, or one of more than 1 KiB, which no API server sends",
        ));
    }
    let judged = judge(&head, body, context)?;
    let outcome = if judged.status.is_some() { Outcome::Denied } else { Outcome::Allowed };
    tracing::debug!(endpoint = "validate", uid = &*head.uid, outcome = outcome.as_str(), "reviewed a NodePolicy");
    let body = serde_json::to_vec(&ReplyWire::of(judged))
        .map_err(|error| Rejection::internal(format!("internal error: could not serialize the answer: {error}")))?;
    Ok(Answer { body, outcome, reviewed: None })
}

const NOT_A_REVIEW: &str = "the body is not an AdmissionReview of a NodePolicy";

fn judge<'h>(head: &'h Head<'_>, body: &[u8], context: &Context) -> Result<Response<'h>, Rejection> {
    let allowed = |warnings| Response { uid: &head.uid, allowed: true, status: None, warnings };
    let writes_spec = matches!(&*head.operation, "CREATE" | "UPDATE");
    if !writes_spec || head.sub_resource.as_deref().is_some_and(|part| !part.is_empty()) {
        return Ok(allowed(Vec::new()));
    }
    let written: Written<'_> =
        serde_json::from_slice(body).map_err(|error| Rejection::bad_request(format!("{NOT_A_REVIEW}: {error}")))?;
    let Object(Objects { object, old_object }) = written.request;
    let Object(policy) = object.ok_or_else(|| Rejection::bad_request("the request has no object"))?;
    let Object(Metadata { name, deletion_timestamp }) = &policy.metadata;
    let ObjectReview { faults, warnings: doubts, on_annotations } =
        review_object(&context.policies.load(), name, policy.spec());
    // Only changes of the spec are judged: an invalid object can still be labelled and deleted. The API server writes the
    // keys of both objects in the same order.
    let unchanged = old_object.is_some_and(|Object(old)| old.spec() == policy.spec()) || deletion_timestamp.is_some();
    if faults.is_empty() || unchanged {
        let left_out = on_annotations.iter().filter(|_| context.annotation_calls.are_left_out());
        let left_out = left_out.map(|entry| format!("{entry}: {ANNOTATIONS_LEFT_OUT}"));
        let told = faults.iter().map(ToString::to_string).chain(left_out);
        let told = told.chain(doubts.iter().map(ToString::to_string));
        return Ok(allowed(told.flat_map(|text| warnings(&text)).take(FAULTS_MAX).collect()));
    }
    Ok(Response {
        uid: &head.uid,
        allowed: false,
        status: Some(refusal(cut(name, FAULT_MAX), &faults)),
        warnings: Vec::new(),
    })
}

/// Lists every error as a cause, which `kubectl` prints on separate lines, and all of them in one message for other
/// clients.
fn refusal(name: String, faults: &[ObjectFault]) -> Status {
    let more = faults.len().saturating_sub(FAULTS_MAX);
    let told = &faults[..faults.len() - more];
    let mut lines: Vec<String> = told.iter().map(|fault| cut(&fault.to_string(), FAULT_MAX)).collect();
    lines.extend((more > 0).then(|| format!("and {more} more")));
    let what = if faults.len() == 1 { "an error" } else { "errors" };
    let cause = |fault: &ObjectFault| Cause {
        reason: "FieldValueInvalid",
        field: fault.field.clone(),
        message: cut(&fault.message, FAULT_MAX),
    };
    Status {
        code: 422,
        reason: "Invalid",
        message: format!("NodePolicy {name} has {what}:\n  {}", lines.join("\n  ")),
        details: Details { group: "nodegate.dev", kind: "NodePolicy", name, causes: told.iter().map(cause).collect() },
    }
}
