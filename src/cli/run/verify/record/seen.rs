//! What the API server knows of kubelets, without being asked by them: it has recorded as whom it authenticated each that asked for a
//! certificate.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use crate::cli::shared::output;
use nodegate_base::kube_error::in_words;
use nodegate_base::pages::next_page;
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::api::state::{Bootstrap, ProvisionedBy};
use nodegate_policy::{Extra, KUBELET_USER, NodeFacts, Operation, PolicySet, Requester, Text, Write};
use nodegate_stores::certificates::KubeletCertificates;
use nodegate_stores::machines::{Asked, MachineObjects};
use nodegate_stores::witnesses::Witnesses;

/// Maximum number of nodes in a recording.
pub(super) const NODES_MAX: usize = 20;
/// How many requests a page of a listing has.
const PAGE: u32 = 500;
/// Maximum number of requests that are read; the API server deletes them after an hour, or a day.
const REQUESTS_MAX: usize = 20_000;

/// A user as the API server authenticated it.
#[derive(Clone, Debug, Default)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// A node, and what is known of its kubelet.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) node: Node,
    pub(super) user: User,
    /// What says as whom the kubelet is authenticated.
    pub(super) by: String,
    /// Who asked for the certificate that the kubelet has presented.
    pub(super) bootstrapped_by: Option<Bootstrap>,
    /// The objects that stand for its machine.
    pub(super) provisioned_by: Vec<ProvisionedBy>,
}

impl User {
    fn of_request(request: &CertificateSigningRequest) -> Self {
        let spec = &request.spec;
        Self {
            name: spec.username.clone().unwrap_or_default(),
            groups: spec.groups.clone().unwrap_or_default(),
            extra: spec.extra.clone().unwrap_or_default(),
        }
    }

    fn of_review(UserInfo { username, groups, extra, uid: _ }: UserInfo) -> Self {
        Self {
            name: username.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: extra.unwrap_or_default(),
        }
    }

    /// The name of the node whose kubelet this is.
    fn node(&self) -> Option<&str> {
        let is_kubelet = self.groups.iter().any(|group| group == "system:nodes");
        self.name.strip_prefix(KUBELET_USER).filter(|node| is_kubelet && is_dns_subdomain(node))
    }
}

/// A kubelet, and what says so.
struct Kubelet {
    user: User,
    by: String,
}

/// What is known of these nodes, or of the first ones whose kubelets have asked for something lately.
///
/// # Errors
/// Returns an error if there is none, or a node cannot be read.
pub(super) async fn nodes(client: &Client, named: &[String], set: &PolicySet) -> anyhow::Result<Vec<Seen>> {
    let (requests, unlisted) = requests(client).await;
    let kubelets = kubelets(&requests, itself(client).await);
    if let Some(error) = unlisted {
        let failed = "could not list CertificateSigningRequests";
        if kubelets.is_empty() {
            return Err(anyhow::Error::new(error).context(failed));
        }
        output::note(&format!("note: {failed}: {}", in_words(&error)));
    }
    let (machines, failed) = MachineObjects::listed(client, Asked::by(set)).await;
    for (group, error) in failed {
        output::note(&format!(
            "note: could not list the machines of API {group}, so none is recorded: {}",
            in_words(&error)
        ));
    }
    let witnesses = Witnesses { certificates: KubeletCertificates::of_requests(&requests), machines };
    let api: Api<Node> = Api::all(client.clone());
    let mut seen = Vec::new();
    for (name, Kubelet { user, by }) in kubelets {
        let is_wanted = named.is_empty() || named.contains(&name);
        if !is_wanted || seen.len() == NODES_MAX {
            continue;
        }
        let node = api.get_opt(&name).await.with_context(|| format!("could not read node {name}"))?;
        // A node that is gone has left requests behind.
        let Some(node) = node else { continue };
        seen.push(prove(node, user, by, set, &witnesses)?);
    }
    for name in named.iter().filter(|name| !seen.iter().any(|seen| seen.node.metadata.name.as_ref() == Some(*name))) {
        output::note(&format!(
            "note: node {name} is not recorded: there is no such node, or no request of its kubelet"
        ));
    }
    if seen.is_empty() {
        bail!(
            "the API server has no CertificateSigningRequest of a kubelet whose node is there, so it is not known as whom it authenticates kubelets; let a node join and run this within an hour, or run it on a node with its kubelet's kubeconfig"
        );
    }
    Ok(seen)
}

/// All requests for certificates, and why others could not be listed.
async fn requests(client: &Client) -> (Vec<CertificateSigningRequest>, Option<kube::Error>) {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let (mut next, mut found) = (Some(ListParams::default().limit(PAGE)), Vec::new());
    while let Some(page) = next {
        let listed = match api.list(&page).await {
            Ok(listed) => listed,
            Err(error) => return (found, Some(error)),
        };
        found.extend(listed.items);
        next = next_page(page, &listed.metadata).filter(|_| found.len() < REQUESTS_MAX);
    }
    (found, None)
}

/// The user of this command. It may be a kubelet.
async fn itself(client: &Client) -> Option<User> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    match api.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => review.status.and_then(|status| status.user_info).map(User::of_review),
        Err(error) => {
            output::note(&format!("note: the API server does not say who runs this command: {}", in_words(&error)));
            None
        }
    }
}

/// The kubelets that have asked for certificates, by the names of their nodes, the last one first; before them the one that runs this
/// command, if one does.
fn kubelets(requests: &[CertificateSigningRequest], itself: Option<User>) -> Vec<(String, Kubelet)> {
    let created =
        |request: &&CertificateSigningRequest| request.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let mut requests: Vec<&CertificateSigningRequest> = requests.iter().collect();
    requests.sort_by_key(|request| std::cmp::Reverse(created(request)));
    let asked = requests.into_iter().map(|request| {
        let by = format!("a request to signer {}", request.spec.signer_name);
        Kubelet { user: User::of_request(request), by }
    });
    let itself = itself.map(|user| Kubelet { user, by: "itself".to_owned() });
    let mut kubelets: Vec<(String, Kubelet)> = Vec::new();
    for kubelet in itself.into_iter().chain(asked) {
        let Some(node) = kubelet.user.node().map(str::to_owned) else { continue };
        if !kubelets.iter().any(|(known, _)| *known == node) {
            kubelets.push((node, kubelet));
        }
    }
    kubelets
}

/// Finds what nodegate would find when the kubelet creates the node.
fn prove(node: Node, user: User, by: String, set: &PolicySet, witnesses: &Witnesses) -> anyhow::Result<Seen> {
    let (text, extra) = (serde_json::to_string(&node)?, serde_json::to_string(&user.extra)?);
    let place = || format!("node {} cannot be read", node.metadata.name.as_deref().unwrap_or_default());
    let mut write = Write {
        operation: Operation::Create,
        status: false,
        dry_run: false,
        requester: Requester {
            username: Text(user.name.as_str().into()),
            groups: user.groups.iter().map(|group| Text(group.as_str().into())).collect(),
            uid: None,
            extra: Extra::new(Some(&extra)),
        },
        evidence: None,
        node: NodeFacts::parse(&text).with_context(place)?,
        old: None,
    };
    write.prove(set, None, witnesses);
    let evidence = write.evidence.as_ref();
    let bootstrapped_by = evidence.and_then(|known| known.bootstrapper()).map(|asked| asked.to_record());
    let provisioned_by = evidence.map(|known| known.machines().found.clone()).unwrap_or_default();
    drop(write);
    Ok(Seen { node, user, by, bootstrapped_by, provisioned_by })
}
