//! Writes with any identity, and everything the API server answers, warnings included.

use kube::client::Body;
use serde_json::Value;

use super::super::control_plane::ControlPlane;
use super::generator::Random;
use super::{BREAK_GLASS, SELF_USER};

/// Who writes.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) user: String,
    pub(super) groups: Vec<&'static str>,
}

impl Who {
    fn new(user: &str, groups: &[&'static str]) -> Self {
        Self { user: user.to_owned(), groups: groups.to_vec() }
    }

    pub(super) fn admin() -> Self {
        Self::new("admin", &["system:masters"])
    }

    pub(super) fn kubelet(node: &str) -> Self {
        Self::new(&format!("system:node:{node}"), &["system:nodes", "system:authenticated"])
    }

    pub(super) fn creator(random: &mut Random, node: &str) -> Self {
        if random.chance(70) { Self::kubelet(node) } else { Self::admin() }
    }

    pub(super) fn any(random: &mut Random, node: &str) -> Self {
        match random.below(10) {
            0..=3 => Self::kubelet(node),
            4..=5 => Self::admin(),
            6 => Self::new("alice", &["team-a", "system:masters"]),
            7 => Self::new("system:serviceaccount:kube-system:labeler", &["system:serviceaccounts", "system:masters"]),
            8 => Self::new("bob", &[BREAK_GLASS, "system:masters"]),
            _ => Self::new(SELF_USER, &["system:serviceaccounts", "system:masters"]),
        }
    }

    pub(super) fn is_kubelet(&self) -> bool {
        self.groups.contains(&"system:nodes")
    }
}

/// What the API server answered.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: u16,
    pub(super) body: Value,
    pub(super) warnings: Vec<String>,
}

pub(super) struct Writer(pub(super) kube::Client);

const NODES: &str = "/api/v1/nodes";
const JSON: &str = "application/json";

impl Writer {
    pub(super) async fn new(plane: &ControlPlane) -> Self {
        Self(plane.client(None).await)
    }

    pub(super) async fn create(&self, node: &Value, who: &Who) -> Outcome {
        self.send("POST", NODES, JSON, node, who).await
    }

    pub(super) async fn create_dry_run(&self, node: &Value) -> Outcome {
        self.send("POST", &format!("{NODES}?dryRun=All"), JSON, node, &Who::admin()).await
    }

    pub(super) async fn merge(&self, name: &str, status: bool, patch: &Value, who: &Who) -> Outcome {
        let path = format!("{NODES}/{name}{}", if status { "/status" } else { "" });
        self.send("PATCH", &path, "application/merge-patch+json", patch, who).await
    }

    pub(super) async fn delete(&self, name: &str) -> Outcome {
        self.send("DELETE", &format!("{NODES}/{name}"), JSON, &Value::Null, &Who::admin()).await
    }

    /// Creates a native policy or binding.
    pub(super) async fn post_policy(&self, object: &Value) -> Outcome {
        let plural = match object["kind"].as_str().unwrap() {
            "MutatingAdmissionPolicy" => "mutatingadmissionpolicies",
            "MutatingAdmissionPolicyBinding" => "mutatingadmissionpolicybindings",
            "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding" => "validatingadmissionpolicybindings",
            other => panic!("{other}"),
        };
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
        self.send("POST", &path, JSON, object, &Who::admin()).await
    }

    async fn send(&self, method: &str, path: &str, content: &str, body: &Value, who: &Who) -> Outcome {
        let mut request = hyper::Request::builder().method(method).uri(path).header("Content-Type", content);
        request = request.header("Impersonate-User", &who.user);
        for group in &who.groups {
            request = request.header("Impersonate-Group", *group);
        }
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let response = self.0.send(request.body(Body::from(bytes)).unwrap()).await.unwrap();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned()).collect();
        let code = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap();
        Outcome { code, body: serde_json::from_slice(&body).unwrap_or_default(), warnings }
    }
}
