//! Certificates that somebody replaces, and webhook configurations whose `caBundle` names another CA, or none.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use nodegate_webhook::tls::{self, Bundle, Step};
use serde_json::{Value, json};

use super::super::super::control_plane::ControlPlane;
use super::super::super::random::Random;

/// What the Secret holds after its CA and its certificate were issued at this time.
fn issued(at: Timestamp) -> BTreeMap<String, Vec<u8>> {
    let (names, wait) = (["localhost".parse().unwrap()], std::time::Duration::ZERO);
    let mut bundle = Bundle::parse(&BTreeMap::new());
    while let Step::Write { bundle: written, .. } = tls::step(&bundle, &names, wait, at, true).unwrap() {
        bundle = Bundle::parse(&written.serialise());
    }
    bundle.serialise()
}

/// A CA and a certificate that expired years ago.
fn expired() -> BTreeMap<String, Vec<u8>> {
    issued(Timestamp::now() - SignedDuration::from_hours(24 * 365 * 15))
}

/// The Secret with the certificate, and the configurations that name its CA.
pub(super) struct Certificates {
    secrets: Api<Secret>,
    configurations: [Api<DynamicObject>; 2],
}

impl Certificates {
    pub(super) async fn new(plane: &ControlPlane, namespace: &str) -> Self {
        let client = plane.client(None).await;
        let of = |kind: &str, plural: &str| {
            let version = kube::core::GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&version, plural))
        };
        let configurations = [
            of("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            of("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        ];
        Self { secrets: Api::namespaced(client.clone(), namespace), configurations }
    }

    /// Deletes the Secret, which may be gone.
    pub(super) async fn delete(&self) {
        let _ = self.secrets.delete("nodegate-tls", &DeleteParams::default()).await;
    }

    /// Puts something else into the Secret; what it was, or nothing if there is no Secret at the moment.
    pub(super) async fn replace(&self, dice: &mut Random) -> Option<&'static str> {
        let (what, data) = match dice.below(3) {
            0 => ("expired certificates", expired()),
            1 => ("certificates of another CA", issued(Timestamp::now())),
            _ => {
                let text =
                    dice.pick(&[b"junk" as &[u8], b"", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"]);
                let keys = ["ca.crt", "ca.key", "tls.crt", "tls.key", "phase"];
                ("certificates that are none", keys.map(|key| (key.to_owned(), text.to_vec())).into())
            }
        };
        let data: BTreeMap<String, ByteString> = data.into_iter().map(|(key, text)| (key, ByteString(text))).collect();
        let patch = Patch::Merge(json!({"data": data}));
        self.secrets.patch("nodegate-tls", &PatchParams::default(), &patch).await.is_ok().then_some(what)
    }

    /// Tells the callers of one webhook configuration to trust another CA, or none.
    pub(super) async fn mistell(&self, dice: &mut Random) -> Option<&'static str> {
        let (what, text) = match dice.below(2) {
            0 => ("caBundles emptied", Vec::new()),
            _ => ("caBundles of another CA", issued(Timestamp::now()).remove("ca.crt").unwrap()),
        };
        let configuration = &self.configurations[dice.below(2)];
        let stored = configuration.get("nodegate").await.ok()?;
        let count = stored.data["webhooks"].as_array().map_or(0, Vec::len);
        let add = |at: usize| json!({"op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": ByteString(text.clone())});
        let patch = serde_json::from_value(Value::Array((0..count).map(add).collect())).unwrap();
        let parameters = PatchParams::default();
        configuration.patch("nodegate", &parameters, &Patch::Json::<()>(patch)).await.is_ok().then_some(what)
    }
}

#[test]
fn what_replaces_a_certificate_is_what_its_name_says() {
    let now = Timestamp::now();
    assert!(!Bundle::parse(&expired()).is_sound(now));
    assert!(Bundle::parse(&issued(now)).is_sound(now));
}
