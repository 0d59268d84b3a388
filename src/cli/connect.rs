//! How a cluster is reached.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::kube_error::in_words;

/// Where a pod finds who it is.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// How the cluster is reached. Never the current context by accident: a file must be named, unless this is a pod.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Kubeconfig file of the cluster to work on. In a pod, --namespace alone means the cluster it runs in.
    #[arg(long, value_name = "FILE", env = "NODEGATE_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of that file [default: its current one]
    #[arg(long, value_name = "NAME", env = "NODEGATE_CONTEXT", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
    /// Namespace of saved state, the Lease and the certificate.
    #[arg(long, value_name = "NAMESPACE", env = "NODEGATE_NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

/// A cluster to work on.
#[derive(Clone, Debug)]
pub struct Place {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    /// The namespace of saved state, the Lease and the certificate.
    pub namespace: String,
}

impl ConnectArgs {
    /// The cluster that was named; `None` when none was.
    ///
    /// # Errors
    /// If a kubeconfig is named without a namespace.
    pub(crate) fn place(&self) -> anyhow::Result<Option<Place>> {
        // The label operator's name for it; it may be set for other reasons, so it does not choose a mode by itself.
        let operator = || std::env::var("OPERATOR_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        let named = self.namespace.clone().filter(|namespace| !namespace.is_empty()).or_else(operator);
        let place = |namespace| Place { kubeconfig: self.kubeconfig.clone(), context: self.context.clone(), namespace };
        match (&self.kubeconfig, named) {
            (Some(_), Some(namespace)) => Ok(Some(place(namespace))),
            (Some(file), None) => {
                bail!(
                    "--kubeconfig {} needs --namespace: name the namespace for saved state and the Lease",
                    file.display()
                )
            }
            (None, Some(namespace)) if std::path::Path::new(POD_TOKEN).exists() => Ok(Some(place(namespace))),
            (None, _) if self.namespace.is_some() => bail!(
                "--namespace without --kubeconfig works only in a pod with a service account token; name a kubeconfig file"
            ),
            (None, _) => Ok(None),
        }
    }
}

impl ConnectArgs {
    /// The cluster that was named, for a command that only reads nodes and policies: no namespace is needed.
    ///
    /// # Errors
    /// As [`ConnectArgs::place`].
    pub(crate) fn reading_place(&self) -> anyhow::Result<Option<Place>> {
        match (&self.kubeconfig, &self.namespace) {
            (Some(_), None) => Self { namespace: Some("default".to_owned()), ..self.clone() }.place(),
            _ => self.place(),
        }
    }
}

impl Place {
    /// A client for it.
    ///
    /// # Errors
    /// If the file cannot be read, or names no such context.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let config = match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).with_context(|| format!("--kubeconfig {}", file.display()))?;
                let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(read, &options)
                    .await
                    .with_context(|| format!("--kubeconfig {}", file.display()))?
            }
            None => Config::incluster().context("this pod's service account")?,
        };
        Ok(Client::try_from(config)?)
    }
}

/// Who we are in the cluster, asked of the API server.
///
/// # Errors
/// If it cannot be asked.
pub(crate) async fn own_name(client: &Client) -> anyhow::Result<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&kube::api::PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|error| anyhow!("the API server did not say who we are (SelfSubjectReview): {}", in_words(&error)))?;
    let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    user.context("the API server did not say who we are")
}
