//! Where nodegate runs, as the API server knows it, for people who installed it under another name or in another namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

/// How long to wait for an answer.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// What the mutating webhook configurations that call nodegate say.
#[derive(Debug, Default)]
pub(super) struct Registration {
    /// Their name; `None` unless exactly one calls it.
    pub(super) configuration: Option<String>,
    /// The namespace of the service that they call; `None` unless they name exactly one.
    pub(super) namespace: Option<String>,
}

/// Looks for the webhook configurations whose webhooks are nodegate's. Nothing is known if the cluster does not answer, or if the
/// user may not list webhook configurations.
pub(super) async fn find(client: &Client) -> Registration {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    match tokio::time::timeout(LOOKUP_MAX, api.list(&ListParams::default())).await {
        Ok(Ok(configurations)) => registration(configurations.items),
        Ok(Err(_)) | Err(_) => Registration::default(),
    }
}

fn registration(configurations: Vec<MutatingWebhookConfiguration>) -> Registration {
    let (mut names, mut namespaces) = (BTreeSet::new(), BTreeSet::new());
    for configuration in configurations {
        let name = configuration.name_any();
        let webhooks = configuration.webhooks.unwrap_or_default();
        for webhook in webhooks.into_iter().filter(|webhook| webhook.name.ends_with(".nodegate.dev")) {
            names.insert(name.clone());
            namespaces.extend(webhook.client_config.service.map(|service| service.namespace));
        }
    }
    Registration { configuration: only(names), namespace: only(namespaces) }
}

fn only(found: BTreeSet<String>) -> Option<String> {
    let mut found = found.into_iter();
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_unambiguous_is_taken() {
        let configuration = |name: &str, webhook: &str, namespace: &str| {
            serde_json::from_value(
                json!({"metadata": {"name": name}, "webhooks": [{"name": webhook, "admissionReviewVersions": ["v1"],
                "sideEffects": "None", "clientConfig": {"service": {"name": "s", "namespace": namespace}}}]}),
            )
            .unwrap()
        };
        let found = |configurations: &[(&str, &str, &str)]| {
            let read = configurations.iter().map(|(name, webhook, namespace)| configuration(name, webhook, namespace));
            let Registration { configuration, namespace } = registration(read.collect());
            (configuration, namespace)
        };
        let text = |text: &str| Some(text.to_owned());
        let other = ("other", "nodes.example.com", "elsewhere");
        assert_eq!(found(&[other]), (None, None));
        assert_eq!(found(&[other, ("labels", "mutate.nodegate.dev", "system")]), (text("labels"), text("system")));
        let two = [("a", "mutate.nodegate.dev", "system"), ("b", "mutate.nodegate.dev", "system")];
        assert_eq!(found(&two), (None, text("system")));
    }
}
