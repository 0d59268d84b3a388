//! The guard as a user installs it, and what shows that the API server knows it.

use std::process::Command;

use serde_json::{Value, json};

use super::node;
use crate::control_plane::{ControlPlane, run};
use crate::eventually::{eventually, holds};
use crate::requester::{Outcome, Requester, label};

/// What `render guard` prints, in force until this is dropped.
pub(crate) struct Guard<'a> {
    plane: &'a ControlPlane,
    manifests: String,
}

impl<'a> Guard<'a> {
    pub(crate) fn install(plane: &'a ControlPlane, arguments: &[&str]) -> Self {
        let mut render = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let mut manifests = run(render.args(["render", "guard"]).args(arguments), None).unwrap();
        if !plane.has_mutating_policies() {
            let is_known = |object: &&str| !object.contains("\nkind: MutatingAdmissionPolicy");
            manifests = manifests.split("\n---\n").filter(is_known).collect::<Vec<_>>().join("\n---\n");
        }
        plane.kubectl(&["apply", "-f", "-"], Some(&manifests)).unwrap();
        Self { plane, manifests }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = self.plane.kubectl(&["delete", "--ignore-not-found", "-f", "-"], Some(&self.manifests));
    }
}

/// Waits until the API server knows of the guard and of what policies name.
pub(super) async fn until_guarded(plane: &ControlPlane, key: &str) {
    let name = "guard-probe";
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, name).await);
    admin.delete(name).await;
    admin.create(&node(name, json!({}))).await.unwrap();
    for key in ["nodegate.dev/probe", key] {
        // Through `nodes/status` no webhook corrects it first.
        let probe = json!({"metadata": {"labels": {key: "x"}}});
        eventually(&format!("{key} is guarded"), async || {
            let outcome = kubelet.merge_status(name, probe.clone()).await;
            if is_native(&outcome) {
                return Ok(());
            }
            admin.label(name, key, Value::Null).await.unwrap();
            Err(format!("{outcome:?}"))
        })
        .await;
    }
    admin.delete(name).await;
}

/// Waits until the API server takes a key out of a node that joins. For when no webhook does it.
pub(super) async fn until_stripped(plane: &ControlPlane, key: &str) {
    let name = "guard-probe";
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, name).await);
    eventually(&format!("{key} is taken out"), async || {
        admin.delete(name).await;
        let created = kubelet.create(&node(name, json!({key: "x"}))).await.unwrap();
        holds(label(&created, key).is_none(), || format!("{created:#}"))
    })
    .await;
    admin.delete(name).await;
}

/// Whether the API server itself refused it.
fn is_native(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|refusal| refusal.message.contains("ValidatingAdmissionPolicy"))
}
