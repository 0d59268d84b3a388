//! Reads what says how nodegate itself is doing: the Lease, and its pods.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::sleep;

use super::news::{News, Source};
use super::sources::{ANSWER, PAUSE, Teller, answered};
use nodegate_controller::leader::{Held, LEASE};

/// The pods of nodegate, as the chart labels them by default.
const PODS: &str = "app.kubernetes.io/name=nodegate";
/// The labels by which the chart's Deployment selects its pods.
const SELECTED_BY: [&str; 2] = ["app.kubernetes.io/name", "app.kubernetes.io/instance"];
/// The pause between two reads of the Lease. Its holder renews it as often.
const LEASE_PAUSE: Duration = Duration::from_secs(5);

/// Reads the Lease, again and again. Of a watch it would be unknown whether nothing is renewed, or nothing arrives.
pub(super) async fn lease(client: Client, namespace: &str, teller: Teller) {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    loop {
        let read = answered(ANSWER, api.get_opt(LEASE)).await;
        let news = read.map(|lease| News::Lease(lease.as_ref().and_then(Held::of)));
        teller.tell(news.unwrap_or_else(|failure| News::Failed(Source::Lease, failure))).await;
        sleep(LEASE_PAUSE).await;
    }
}

/// Counts nodegate's pods, again and again.
pub(super) async fn pods(client: Client, namespace: &str, teller: Teller) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let mut labels = PODS.to_owned();
    loop {
        // Without a leader, or the right to read the Lease, those that were found last.
        if let Some(found) = labels_of_leader(&leases, &pods).await {
            labels = found;
        }
        let listed = answered(ANSWER, pods.list(&ListParams::default().labels(&labels))).await;
        let count = |pods: Vec<Pod>| News::Pods(pods.iter().filter(|pod| is_ready(pod)).count(), pods.len());
        let news = listed.map(|listed| count(listed.items));
        teller.tell(news.unwrap_or_else(|failure| News::Failed(Source::Pods, failure))).await;
        sleep(PAUSE).await;
    }
}

/// The labels of nodegate's pods, as the pod that leads has them: values of the chart change them.
async fn labels_of_leader(leases: &Api<Lease>, pods: &Api<Pod>) -> Option<String> {
    let lease = answered(ANSWER, leases.get_opt(LEASE)).await.ok()??;
    let held = Held::of(&lease)?;
    let named = ListParams::default().fields(&format!("metadata.name={}", held.host()));
    let pod = answered(ANSWER, pods.list(&named)).await.ok()?.items.pop()?;
    let labels = SELECTED_BY.map(|key| pod.labels().get(key).map(|value| format!("{key}={value}")));
    Some(labels.into_iter().collect::<Option<Vec<String>>>()?.join(","))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
