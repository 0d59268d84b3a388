//! `AdmissionReview` of `admission.k8s.io/v1`, in and out (`k8s.io/api/admission/v1/types.go`).
//!
//! These are separate types because requests are parsed without copying, a reply must have its request's uid, and a
//! patch its type.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::Rejection;
use nodegate_policy::{
    Extra, Flag, List, NodeFacts, NodeFields, NodePatch, Object, ObjectText, Operation, Quoted, Requester, Text, Write,
    read_compact,
};

/// Maximum length of names and uids, in bytes: of the request, the node and the requester. The API server generates the first, that of
/// a node has at most 253 characters, and those of users come from certificates, tokens or identity providers.
pub(super) const NAME_MAX: usize = 1024;
/// Maximum number of groups of a requester. They come from the requester's credential, which the API server reads from
/// a header or a certificate of at most 1 MiB.
const GROUPS_MAX: usize = 16_384;
/// Maximum size of all groups of a requester, in bytes.
const GROUPS_BYTES_MAX: usize = 1024 * 1024;

/// A valid review.
#[derive(Debug)]
pub struct Review<'a> {
    /// The request's uid, to be echoed.
    pub uid: Text<'a>,
    /// The subject of the review.
    pub subject: Subject<'a>,
}

/// The subject of a review.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every review is of a node, and a box would be one more allocation for it"
)]
#[derive(Debug)]
pub enum Subject<'a> {
    /// A CREATE or UPDATE of a core/v1 Node or its status, to be decided or judged.
    Node(Write<'a>),
    /// A DELETE or CONNECT of anything. It is allowed, so that a webhook that is registered for too many operations
    /// does not block the deletion of nodes.
    Passed,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an AdmissionReview")]
struct ReviewWire<'a> {
    #[serde(borrow, default)]
    api_version: Option<Text<'a>>,
    #[serde(borrow, default)]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    request: Option<Object<RequestWire<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestWire<'a> {
    #[serde(borrow, default)]
    uid: Text<'a>,
    #[serde(borrow, default)]
    resource: Object<ResourceWire<'a>>,
    #[serde(borrow, default)]
    sub_resource: Option<Text<'a>>,
    #[serde(borrow, default)]
    operation: Text<'a>,
    #[serde(borrow, default)]
    user_info: Object<UserWire<'a>>,
    #[serde(default)]
    dry_run: Option<Flag>,
    #[serde(borrow, default)]
    object: Option<NodeFields<'a>>,
    #[serde(borrow, default)]
    old_object: Option<NodeFields<'a>>,
}

#[derive(Default, Deserialize)]
struct ResourceWire<'a> {
    #[serde(borrow, default)]
    group: Text<'a>,
    #[serde(borrow, default)]
    version: Text<'a>,
    #[serde(borrow, default)]
    resource: Text<'a>,
}

#[derive(Default, Deserialize)]
struct UserWire<'a> {
    #[serde(borrow, default)]
    username: Text<'a>,
    #[serde(borrow, default)]
    groups: Option<List<Text<'a>, GROUPS_MAX>>,
    #[serde(borrow, default)]
    uid: Option<Text<'a>>,
    #[serde(borrow, default)]
    extra: Option<&'a RawValue>,
}

impl<'a> Review<'a> {
    /// Parses a review.
    ///
    /// # Errors
    /// Returns 400 with the reason if the body is not a valid review.
    pub fn parse(body: &'a [u8]) -> Result<Self, Rejection> {
        // One UTF-8 check of the whole text is much cheaper than one for every string in it.
        let text = std::str::from_utf8(body)
            .map_err(|error| Rejection::bad_request(format!("the body is not UTF-8: {error}")))?;
        let Object(review): Object<ReviewWire<'a>> =
            match read_compact(text).map_or_else(|| serde_json::from_str(text), Ok) {
                Ok(review) => review,
                Err(error) => {
                    let fault = format!("the body is not an AdmissionReview of a Node: {error}");
                    return Self::passed(text).ok_or_else(|| Rejection::bad_request(fault));
                }
            };
        let version = review.api_version.as_deref().unwrap_or_default();
        if version != "admission.k8s.io/v1" || review.kind.as_deref() != Some("AdmissionReview") {
            let kind = review.kind.as_deref().unwrap_or_default();
            return Err(Rejection::bad_request(format!(
                "expected kind AdmissionReview of admission.k8s.io/v1, got {} of {}; register the webhook with admissionReviewVersions: [v1]",
                Quoted(kind),
                Quoted(version)
            )));
        }
        let Object(request) =
            review.request.ok_or_else(|| Rejection::bad_request("the AdmissionReview has no request"))?;
        if request.uid.is_empty() {
            return Err(Rejection::bad_request("the request has no uid, so it cannot be answered"));
        }
        if request.uid.len() > NAME_MAX {
            return Err(Rejection::bad_request("the request has a uid of more than 1 KiB, which no API server sends"));
        }
        let uid = request.uid.clone();
        let subject = if is_passed(&request.operation) { Subject::Passed } else { Subject::Node(request.write(text)?) };
        Ok(Self { uid, subject })
    }

    /// A DELETE or CONNECT whose objects are not nodes: a CONNECT has options instead.
    fn passed(text: &'a str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            request: Object<RequestHead<'a>>,
        }
        #[derive(Deserialize)]
        struct RequestHead<'a> {
            #[serde(borrow)]
            uid: Text<'a>,
            #[serde(borrow)]
            operation: Text<'a>,
        }
        let Object(Envelope { request: Object(RequestHead { uid, operation }) }) = serde_json::from_str(text).ok()?;
        let passes = is_passed(&operation) && !uid.is_empty() && uid.len() <= NAME_MAX;
        passes.then_some(Self { uid, subject: Subject::Passed })
    }
}

/// Checks the total size of the groups of a requester.
fn check_groups(groups: &[Text<'_>]) -> Result<(), Rejection> {
    if groups.iter().map(|group| group.len()).sum::<usize>() <= GROUPS_BYTES_MAX {
        return Ok(());
    }
    Err(Rejection::bad_request("the requester has groups of more than 1 MiB, which no API server authenticates"))
}

/// Whether an operation is always allowed.
fn is_passed(operation: &str) -> bool {
    matches!(operation, "DELETE" | "CONNECT")
}

impl<'a> RequestWire<'a> {
    fn write(self, text: &'a str) -> Result<Write<'a>, Rejection> {
        let Object(resource) = &self.resource;
        if (&*resource.group, &*resource.version, &*resource.resource) != ("", "v1", "nodes") {
            return Err(Rejection::bad_request(format!(
                "expected core/v1 nodes, got group {}, version {}, resource {}; register the webhook for nodes only",
                Quoted(&resource.group),
                Quoted(&resource.version),
                Quoted(&resource.resource)
            )));
        }
        let status = match self.sub_resource.as_deref().unwrap_or_default() {
            "" => false,
            "status" => true,
            other => {
                let message = format!("expected nodes or nodes/status, got {}", Quoted(&format!("nodes/{other}")));
                return Err(Rejection::bad_request(message));
            }
        };
        let operation = match &*self.operation {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            other => {
                let message = format!("expected operation CREATE or UPDATE, got {}", Quoted(other));
                return Err(Rejection::bad_request(message));
            }
        };
        let node = self.object.ok_or_else(|| Rejection::bad_request("the request has no object"))?;
        if node.name().len() > NAME_MAX {
            return Err(Rejection::bad_request("the node has a name of more than 1 KiB, which no API server stores"));
        }
        let old = match (operation, self.old_object) {
            (Operation::Create, _) => None,
            (Operation::Update, Some(old)) => Some(NodeFacts::new(old, ObjectText::OldObjectOf(text))),
            (Operation::Update, None) => {
                return Err(Rejection::bad_request("the request is an UPDATE but has no oldObject"));
            }
        };
        let Object(UserWire { username, groups, uid, extra }) = self.user_info;
        if username.len() > NAME_MAX || uid.as_ref().is_some_and(|uid| uid.len() > NAME_MAX) {
            let message = "the requester has a name or a uid of more than 1 KiB, which no API server authenticates";
            return Err(Rejection::bad_request(message));
        }
        check_groups(groups.as_ref().map_or(&[], |List(groups)| groups))?;
        let groups = groups.map(|List(groups)| groups).unwrap_or_default();
        let requester = Requester { username, groups, uid, extra: Extra::new(extra.map(RawValue::get)) };
        let Flag(dry_run) = self.dry_run.unwrap_or_default();
        let node = NodeFacts::new(node, ObjectText::ObjectOf(text));
        Ok(Write { operation, status, dry_run, requester, evidence: None, node, old })
    }
}

/// The reason for a denial.
#[derive(Serialize)]
struct StatusWire<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseWire<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<StatusWire<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: &'a BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplyWire<R> {
    api_version: &'static str,
    kind: &'static str,
    response: R,
}

impl<R: Serialize> ReplyWire<R> {
    /// The envelope of a response.
    pub(super) fn of(response: R) -> Self {
        Self { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response }
    }
}

/// The content of a reply besides its uid.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) patch: Option<NodePatch>,
    pub(super) denial: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: BTreeMap<&'static str, String>,
}

impl Reply {
    /// The reply to `review`, as JSON.
    ///
    /// # Errors
    /// Returns an error if it cannot be serialized, which is an internal error.
    pub(super) fn to_json(&self, review: &Review<'_>) -> Result<Vec<u8>, serde_json::Error> {
        let reply = ReplyWire::of(ResponseWire {
            uid: &review.uid,
            allowed: self.denial.is_none(),
            status: self.denial.as_deref().map(|message| StatusWire { code: 403, reason: "Forbidden", message }),
            warnings: &self.warnings,
            audit_annotations: &self.audit_annotations,
        });
        let patch = self.patch.as_ref().map(NodePatch::json);
        // Base64 is a third longer than what it encodes.
        let mut json = Vec::with_capacity(512 + patch.map_or(0, |patch| patch.len() / 3 * 4));
        serde_json::to_writer(&mut json, &reply)?;
        if let Some(patch) = patch {
            add_patch(&mut json, patch);
        }
        Ok(json)
    }
}

/// Adds a patch with its type at the end of the response, with which the reply ends. Base64 has no character that JSON escapes, and a
/// patch is most of an answer, so serde need not look at each of its characters.
fn add_patch(reply: &mut Vec<u8>, patch: &[u8]) {
    const END: &[u8] = b"}}";
    debug_assert!(reply.ends_with(END));
    reply.truncate(reply.len() - END.len());
    reply.extend_from_slice(br#","patchType":"JSONPatch","patch":""#);
    reply.extend_from_slice(STANDARD.encode(patch).as_bytes());
    reply.extend_from_slice(b"\"}}");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_is_json_with_a_patch_and_without() {
        let review = Review { uid: Text("u\"1".into()), subject: Subject::Passed };
        for (denial, warnings) in [(None, Vec::new()), (Some("no".to_owned()), vec!["a \"warning\"".to_owned()])] {
            let reply = Reply { denial, warnings, ..Reply::default() };
            let mut json = reply.to_json(&review).unwrap();
            let mut expected: Value = serde_json::from_slice(&json).unwrap();
            assert_eq!((&expected["response"]["uid"], expected["response"].get("patch")), (&json!("u\"1"), None));
            add_patch(&mut json, b"[]");
            expected["response"]["patchType"] = json!("JSONPatch");
            expected["response"]["patch"] = json!(STANDARD.encode("[]"));
            assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), expected);
        }
    }

    #[test]
    fn reviews_as_api_servers_send_them_are_read_without_serde_json() {
        for recorded in [
            include_str!("../../../../tests/data/admission-reviews/admin-label-update.json"),
            include_str!("../../../../tests/data/admission-reviews/kubelet-create.json"),
            include_str!("../../../../tests/data/admission-reviews/kubelet-restart-create.json"),
            include_str!("../../../../tests/data/admission-reviews/kubelet-status-update-reconciles-zone.json"),
            include_str!("../../../../tests/data/admission-reviews/kubelet-status-update.json"),
        ] {
            let sent = serde_json::from_str::<Value>(recorded).unwrap().to_string() + "\n";
            assert!(read_compact::<Object<ReviewWire<'_>>>(&sent).is_some(), "{sent}");
        }
    }
}
