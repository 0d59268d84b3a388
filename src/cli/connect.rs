//! How nodegate connects to a cluster.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use hyper::Response;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tower::BoxError;
use tower::util::MapResultLayer;

use crate::api_server;
use crate::kube_error::in_words;

/// The token of the pod's service account.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// How to connect to the cluster. The current context is never used implicitly: outside a pod, a file is required.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Kubeconfig file of the cluster. In a pod, --namespace without this flag selects the cluster that the pod runs
    /// in.
    #[arg(long, value_name = "FILE", env = "NODEGATE_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig file [default: the file's current context]
    #[arg(long, value_name = "NAME", env = "NODEGATE_CONTEXT", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
    /// Namespace for saved state, the Lease and the certificate.
    #[arg(long, value_name = "NAMESPACE", env = "NODEGATE_NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

/// A cluster, and the namespace that nodegate uses in it.
#[derive(Clone, Debug)]
pub struct ClusterTarget {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    /// The namespace of saved state, the Lease and the certificate.
    pub namespace: String,
}

impl ConnectArgs {
    /// The cluster that the flags select; `None` if they select none.
    ///
    /// # Errors
    /// Returns an error if a kubeconfig is given without a namespace.
    pub(crate) fn place(&self) -> anyhow::Result<Option<ClusterTarget>> {
        // This is the label operator's variable. It may be set for other reasons, so it does not select cluster mode
        // by itself.
        let operator = || std::env::var("OPERATOR_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        let named = self.namespace.clone().filter(|namespace| !namespace.is_empty()).or_else(operator);
        let place =
            |namespace| ClusterTarget { kubeconfig: self.kubeconfig.clone(), context: self.context.clone(), namespace };
        match (&self.kubeconfig, named) {
            (Some(_), Some(namespace)) => Ok(Some(place(namespace))),
            (Some(file), None) => {
                bail!(
                    "--kubeconfig {} requires --namespace: set it to the namespace for saved state and the Lease",
                    file.display()
                )
            }
            (None, Some(namespace)) if std::path::Path::new(POD_TOKEN).exists() => Ok(Some(place(namespace))),
            (None, _) if self.namespace.is_some() => bail!(
                "--namespace without --kubeconfig works only in a pod with a service account token; set --kubeconfig to a kubeconfig file"
            ),
            (None, _) => Ok(None),
        }
    }
}

impl ConnectArgs {
    /// The cluster that the flags select, for a command that only reads nodes and policies and so needs no namespace.
    ///
    /// # Errors
    /// See [`ConnectArgs::place`].
    pub(crate) fn reading_place(&self) -> anyhow::Result<Option<ClusterTarget>> {
        match (&self.kubeconfig, &self.namespace) {
            (Some(_), None) => Self { namespace: Some("default".to_owned()), ..self.clone() }.place(),
            _ => self.place(),
        }
    }
}

impl ClusterTarget {
    /// Creates a client for the cluster.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig cannot be read or does not contain the context.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let config = match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).with_context(|| format!("--kubeconfig {}", file.display()))?;
                let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(read, &options)
                    .await
                    .with_context(|| format!("--kubeconfig {}", file.display()))?
            }
            None => Config::incluster().context("could not load this pod's service account")?,
        };
        Ok(ClientBuilder::try_from(config)?.with_layer(&MapResultLayer::new(noted)).build())
    }
}

/// Notes whether a request was answered. A proxy answers for an API server that does not.
fn noted<B>(outcome: Result<Response<B>, BoxError>) -> Result<Response<B>, BoxError> {
    match &outcome {
        Ok(answer) if !matches!(answer.status().as_u16(), 502..=504) => api_server::answered(),
        Ok(answer) => api_server::failed(&answer.status()),
        Err(error) => api_server::failed(&in_words(&**error)),
    }
    outcome
}

/// Asks the API server for nodegate's own user name.
///
/// # Errors
/// Returns an error if the API server does not answer the request.
pub(crate) async fn own_name(client: &Client) -> anyhow::Result<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review =
        reviews.create(&kube::api::PostParams::default(), &SelfSubjectReview::default()).await.map_err(|error| {
            anyhow!(
                "could not get nodegate's own user name from the API server (SelfSubjectReview): {}",
                in_words(&error)
            )
        })?;
    let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    user.context("the API server returned no user name for nodegate (SelfSubjectReview)")
}
