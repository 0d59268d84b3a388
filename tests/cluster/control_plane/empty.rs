//! A control plane as it was right after its start. Whatever a test leaves behind is taken out of etcd itself, so no finalizer,
//! no webhook, no admission policy, and no namespace that nobody ends can keep it, and the API server sees it go by its watches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the API server keeps about itself, and may write at any time.
const ITS_OWN: [&str; 9] = [
    "/registry/apiregistration.k8s.io/",
    "/registry/configmaps/kube-system/extension-apiserver-authentication",
    "/registry/endpointslices/default/kubernetes",
    "/registry/flowschemas/",
    "/registry/leases/kube-system/apiserver-",
    "/registry/masterleases/",
    "/registry/prioritylevelconfigurations/",
    "/registry/services/endpoints/default/kubernetes",
    "compact_rev_key",
];

/// What it writes shortly after it says that it is ready.
const LATE: [&str; 6] = [
    "/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
    "/registry/namespaces/default",
    "/registry/namespaces/kube-node-lease",
    "/registry/namespaces/kube-public",
    "/registry/namespaces/kube-system",
    "/registry/services/specs/default/kubernetes",
];

/// The same, from Kubernetes 1.33 on.
const LATE_SERVICE_CIDR: &str = "/registry/servicecidrs/kubernetes";

/// Where etcd has what admission acts by, or what controllers list from the API server's memory; and a list that waits until
/// that memory is as new as etcd (KEP-2340).
const LISTED: [(&str, &str); 17] = [
    ("configmaps", "/api/v1/configmaps"),
    ("events", "/api/v1/events"),
    ("minions", "/api/v1/nodes"),
    ("namespaces", "/api/v1/namespaces"),
    ("pods", "/api/v1/pods"),
    ("secrets", "/api/v1/secrets"),
    ("leases", "/apis/coordination.k8s.io/v1/leases"),
    ("certificatesigningrequests", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ("clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("apiextensions.k8s.io", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
    ("mutatingwebhookconfigurations", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"),
    ("validatingwebhookconfigurations", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"),
    ("mutatingadmissionpolicies", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"),
    ("mutatingadmissionpolicybindings", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"),
    ("validatingadmissionpolicies", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"),
    ("validatingadmissionpolicybindings", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"),
];

const PATIENCE: Duration = Duration::from_secs(60);
/// etcd takes 128 in one transaction.
const AT_ONCE: usize = 100;

/// What etcd has in a control plane that nobody used: its revision then, and values by their keys, in base64 as etcd's gateway
/// speaks.
#[derive(Serialize, Deserialize)]
pub(super) struct Empty {
    revision: u64,
    values: BTreeMap<String, String>,
}

/// The two servers, as an administrator.
pub(super) struct Servers {
    pub(super) etcd: kube::Client,
    pub(super) api: kube::Client,
}

impl Empty {
    /// What is there now, once the API server has written all that belongs to an empty cluster.
    pub(super) async fn of(Servers { etcd, api }: &Servers) -> Result<Self, String> {
        let deadline = Instant::now() + PATIENCE;
        let request = Request::get("/apis/networking.k8s.io/v1").body(Vec::new()).unwrap();
        let resources = api.request_text(request).await.map_err(|error| error.to_string())?;
        let has_service_cidrs = resources.contains("\"servicecidrs\"");
        loop {
            let (revision, values) = range(etcd, json!({})).await?;
            let late = LATE.iter().chain(has_service_cidrs.then_some(&LATE_SERVICE_CIDR));
            let Some(missing) = late.into_iter().find(|key| !values.contains_key(**key)) else {
                return Ok(Self { revision, values });
            };
            if Instant::now() > deadline {
                return Err(format!("after {PATIENCE:?} the API server has not written {missing}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes the control plane what it was: deletes what is new, writes back what was changed or deleted, and returns when
    /// nothing of it is left and the API server knows.
    pub(super) async fn restore(&self, servers: &Servers) -> Result<(), String> {
        let touched = self.undo_all(&servers.etcd).await?;
        let of = |kind: &str| touched.iter().any(|key| key.split('/').nth(2) == Some(kind));
        for (kind, list) in LISTED.iter().filter(|(kind, _)| of(kind)) {
            let request = Request::get(format!("{list}?limit=1")).body(Vec::new()).unwrap();
            servers.api.request_text(request).await.map_err(|error| format!("listing {kind}: {error}"))?;
        }
        if touched.iter().any(|key| key.contains("admissionpolic")) {
            policies_are_read_again(&servers.api).await?;
            // The marks, which concern nobody else.
            self.undo_all(&servers.etcd).await?;
        }
        Ok(())
    }

    /// Undoes what differs until nothing does. The keys that did.
    async fn undo_all(&self, etcd: &kube::Client) -> Result<Vec<String>, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut touched = Vec::new();
        loop {
            let left = self.differences(etcd).await?;
            if left.is_empty() {
                return Ok(touched);
            }
            if Instant::now() > deadline {
                return Err(format!("after {PATIENCE:?} there is again: {left:?}"));
            }
            self.undo(etcd, &left).await?;
            touched.extend(left);
        }
    }

    /// The keys that are new, gone, or have another value.
    async fn differences(&self, etcd: &kube::Client) -> Result<Vec<String>, String> {
        let (_, changed) = range(etcd, json!({"min_mod_revision": self.revision + 1})).await?;
        let (_, all) = range(etcd, json!({"keys_only": true})).await?;
        let gone = self.values.keys().filter(|key| !all.contains_key(*key));
        let changed = changed.iter().filter(|(key, value)| self.values.get(*key) != Some(*value)).map(|(key, _)| key);
        let of_others = |key: &&String| !ITS_OWN.iter().any(|own| key.starts_with(own));
        Ok(gone.chain(changed).filter(of_others).cloned().collect())
    }

    async fn undo(&self, etcd: &kube::Client, keys: &[String]) -> Result<(), String> {
        let write = |key: &String| match self.values.get(key) {
            Some(value) => json!({"request_put": {"key": BASE64_STANDARD.encode(key), "value": value}}),
            None => json!({"request_delete_range": {"key": BASE64_STANDARD.encode(key)}}),
        };
        for keys in keys.chunks(AT_ONCE) {
            let writes: Vec<Value> = keys.iter().map(write).collect();
            ask(etcd, "/v3/kv/txn", json!({"success": writes})).await?;
        }
        Ok(())
    }
}

/// Asks etcd's gateway, which speaks JSON.
async fn ask(etcd: &kube::Client, path: &str, body: Value) -> Result<Value, String> {
    let request = Request::post(path).body(body.to_string().into_bytes()).unwrap();
    etcd.request(request).await.map_err(|error| format!("etcd, {path}: {error}"))
}

/// All keys with their values, or those that `how` leaves; and the revision that this is of.
async fn range(etcd: &kube::Client, how: Value) -> Result<(u64, BTreeMap<String, String>), String> {
    let all = BASE64_STANDARD.encode([0]);
    let mut request = json!({"key": all, "range_end": all});
    request.as_object_mut().unwrap().extend(how.as_object().cloned().unwrap_or_default());
    let answer = ask(etcd, "/v3/kv/range", request).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let key = |entry: &Value| String::from_utf8(BASE64_STANDARD.decode(text(&entry["key"])).unwrap()).unwrap();
    let entries = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let revision = text(&answer["header"]["revision"]).parse().map_err(|error| format!("{answer}: {error}"))?;
    Ok((revision, entries.iter().map(|entry| (key(entry), text(&entry["value"]))).collect()))
}

/// Waits until the API server acts by the admission policies that are there now. It collects them once a second, each kind
/// together, so when it acts by a new one it has forgotten those that were deleted before.
async fn policies_are_read_again(api: &kube::Client) -> Result<(), String> {
    static MARKS: AtomicU32 = AtomicU32::new(0);
    let mark = format!("mark-{}-{}", std::process::id(), MARKS.fetch_add(1, Ordering::Relaxed));
    let resources = Request::get("/apis/admissionregistration.k8s.io/v1").body(Vec::new()).unwrap();
    let resources = api.request_text(resources).await.map_err(|error| error.to_string())?;
    // From Kubernetes 1.36 on.
    let has_mutating = resources.contains("\"mutatingadmissionpolicies\"");
    let objects = mark_objects(&mark, has_mutating).into_iter();
    for (path, object) in objects.filter(|(path, _)| has_mutating || !path.starts_with("mutating")) {
        let request = Request::post(format!("/apis/admissionregistration.k8s.io/v1/{path}"))
            .header("Content-Type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        api.request_text(request).await.map_err(|error| format!("{path}: {error}"))?;
    }
    let deadline = Instant::now() + PATIENCE;
    let marked = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": mark}}).to_string();
    loop {
        let request = Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
            .header("Content-Type", "application/json")
            .body(marked.clone().into_bytes())
            .unwrap();
        // The validating one denies it once the mutating one has changed it.
        let answer = api.request_text(request).await.map(|_| String::new()).unwrap_or_else(|error| error.to_string());
        if answer.contains(&mark) && answer.contains("both act") {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("after {PATIENCE:?} new admission policies do not act: {answer}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A mutating and a validating policy for dry runs of one ConfigMap, and their bindings.
fn mark_objects(mark: &str, has_mutating: bool) -> [(&'static str, Value); 4] {
    let object = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": mark}, "spec": spec});
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"], "resourceNames": [mark]});
    let matched = json!({"resourceRules": [rule], "namespaceSelector": {}, "objectSelector": {}});
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{data: {\"marked\": \"true\"}}"}});
    let mutating = json!({"failurePolicy": "Ignore", "reinvocationPolicy": "Never", "matchConstraints": matched, "mutations": [mutation]});
    let expression = if has_mutating { "!('marked' in object.?data.orValue({}))" } else { "false" };
    let validation = json!({"expression": expression, "message": "both act"});
    let validating = json!({"failurePolicy": "Ignore", "matchConstraints": matched, "validations": [validation]});
    [
        ("mutatingadmissionpolicies", object("MutatingAdmissionPolicy", mutating)),
        ("validatingadmissionpolicies", object("ValidatingAdmissionPolicy", validating)),
        ("mutatingadmissionpolicybindings", object("MutatingAdmissionPolicyBinding", json!({"policyName": mark}))),
        (
            "validatingadmissionpolicybindings",
            object("ValidatingAdmissionPolicyBinding", json!({"policyName": mark, "validationActions": ["Deny"]})),
        ),
    ]
}
