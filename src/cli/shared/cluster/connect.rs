//! How nodegate connects to a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use hyper::Response;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use tower::BoxError;
use tower::util::MapResultLayer;

use crate::cli::shared::cluster::registration;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output;
use nodegate_base::api_server;
use nodegate_base::kube_error::in_words;
use nodegate_base::text::on_a_line;

/// What to do if neither nodes nor a cluster are given.
pub(in crate::cli) const NO_NODES: &str =
    "no nodes are selected; pass files with nodes (- for standard input), or select a cluster with --kubeconfig";

/// The token of the pod's service account.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Stands for no proxy. RFC 6761 reserves `.invalid`.
const NO_PROXY_HOST: &str = "no-proxy.invalid";
const NO_PROXY_URL: &str = "http://no-proxy.invalid";

/// How to connect to the cluster. Only commands that read, and that kubectl runs as its plugin, use kubectl's current context;
/// otherwise, outside a pod, a file is required.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Kubeconfig file of the cluster. In a pod, --namespace alone selects the pod's own cluster. As `kubectl
    /// nodegate`, or if KUBECONFIG is set, commands that only read use kubectl's current context by default.
    #[arg(long, value_name = "FILE", env = "NODEGATE_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig file [default: the file's current context]
    #[arg(long, value_name = "NAME", env = "NODEGATE_CONTEXT")]
    pub(crate) context: Option<String>,
    /// Namespace for saved state, the Lease and the certificate. Outside of a pod, commands that only read find it in
    /// the webhook configuration.
    #[arg(short = 'n', long, value_name = "NAMESPACE", env = "NODEGATE_NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

/// A cluster, and the namespace that nodegate uses in it.
#[derive(Clone, Debug)]
pub struct ClusterTarget {
    source: Source,
    /// The namespace of saved state, the Lease and the certificate.
    pub namespace: String,
}

/// Where address and credentials of the cluster come from.
#[derive(Clone, Debug)]
enum Source {
    /// The service account of this pod.
    Pod,
    /// A kubeconfig file, and a context in it if not the file's current one.
    File { path: PathBuf, context: Option<String> },
    /// kubectl's configuration, and the context in it.
    Kubectl { config: Box<Kubeconfig>, context: String },
}

impl ConnectArgs {
    /// The cluster that the flags select; `None` if they select none.
    ///
    /// # Errors
    /// Returns an error if a kubeconfig or a context is given without a namespace.
    pub(crate) fn place(&self, invocation: Invocation) -> anyhow::Result<Option<ClusterTarget>> {
        match (&self.kubeconfig, &self.context, self.namespace_or_operators()) {
            (Some(path), context, Some(namespace)) => {
                let source = Source::File { path: path.clone(), context: context.clone() };
                Ok(Some(ClusterTarget { source, namespace }))
            }
            (Some(file), _, None) => {
                bail!(
                    "--kubeconfig {} requires --namespace: set it to the namespace for saved state and the Lease",
                    file.display()
                )
            }
            (None, Some(context), named) => match (invocation, named) {
                (Invocation::Nodegate, _) => {
                    bail!("--context {context} requires --kubeconfig: set it to the file that contains the context")
                }
                (Invocation::KubectlPlugin | Invocation::WithKubeconfig, None) => {
                    bail!(
                        "--context {context} requires --namespace: set it to the namespace for saved state and the Lease"
                    )
                }
                (Invocation::KubectlPlugin | Invocation::WithKubeconfig, Some(namespace)) => {
                    Ok(Some(self.kubectls()?.in_namespace(namespace)))
                }
            },
            (None, None, Some(namespace)) if Path::new(POD_TOKEN).exists() => {
                Ok(Some(ClusterTarget { source: Source::Pod, namespace }))
            }
            (None, None, _) if self.namespace.is_some() => bail!(
                "--namespace without --kubeconfig works only in a pod with a service account token; set --kubeconfig to a kubeconfig file"
            ),
            (None, None, _) => Ok(None),
        }
    }

    /// The cluster for a command that only reads. If kubectl runs it as its plugin, this is the cluster of kubectl's current
    /// context, unless a flag selects another one. A namespace that no flag names is looked up in the cluster.
    ///
    /// # Errors
    /// See [`ConnectArgs::place`]; also if the configuration cannot be read or has no such context.
    pub(crate) async fn place_to_read(&self, invocation: Invocation) -> anyhow::Result<Option<ClusterTarget>> {
        let Some((place, is_guessed)) = self.looked_up(invocation).await? else { return Ok(None) };
        if is_guessed {
            output::note(
                "note: no webhook configuration says where nodegate runs; set --namespace if it is in another one",
            );
        }
        Ok(Some(place))
    }

    /// The cluster, and whether the namespace is a guess.
    async fn looked_up(&self, invocation: Invocation) -> anyhow::Result<Option<(ClusterTarget, bool)>> {
        let (selected, named) = match (invocation, &self.kubeconfig) {
            (_, Some(path)) if self.namespace_or_operators().is_none() => (self.in_file(path)?, None),
            (Invocation::KubectlPlugin | Invocation::WithKubeconfig, None) => {
                (self.kubectls()?, self.named_namespace())
            }
            _ => return Ok(self.place(invocation)?.map(|place| (place, false))),
        };
        let known = match named {
            Some(named) => Some(named),
            None => selected.registered_namespace().await?,
        };
        let is_guessed = known.is_none();
        let namespace = known.or_else(|| selected.namespace.clone()).unwrap_or_else(|| "default".to_owned());
        Ok(Some((selected.in_namespace(namespace), is_guessed)))
    }

    /// As [`ConnectArgs::place_to_read`], for a command that reads only nodes and policies and so needs no namespace.
    ///
    /// # Errors
    /// See [`ConnectArgs::place_to_read`].
    pub(crate) async fn reading_place(&self, invocation: Invocation) -> anyhow::Result<Option<ClusterTarget>> {
        match (&self.kubeconfig, &self.namespace) {
            (Some(_), None) => Self { namespace: Some("default".to_owned()), ..self.clone() }.place(invocation),
            _ => Ok(self.looked_up(invocation).await?.map(|(place, _)| place)),
        }
    }

    /// The context of kubectl's configuration that `--context` names, or the current one.
    fn kubectls(&self) -> anyhow::Result<Selected> {
        let config = Kubeconfig::read().map_err(|error| {
            anyhow!("could not read kubectl's configuration: {}; set --kubeconfig to a file", unread(&error))
        })?;
        let current = || config.current_context.clone().filter(|context| !context.is_empty());
        let context = self.context.clone().or_else(current).context(
            "kubectl has no current context; set one with `kubectl config use-context NAME`, or name one with --context",
        )?;
        let Some(namespace) = namespace_of(&config, &context) else {
            bail!("kubectl's configuration has no context {context:?}; `kubectl config get-contexts` lists them");
        };
        Ok(Selected { source: Source::Kubectl { config: Box::new(config), context }, namespace })
    }

    /// The context of a kubeconfig file that `--context` names, or the file's current one.
    fn in_file(&self, path: &Path) -> anyhow::Result<Selected> {
        let config = read_file(path)?;
        let context = self.context.as_ref().or(config.current_context.as_ref());
        let namespace = context.and_then(|context| namespace_of(&config, context)).flatten();
        Ok(Selected { source: Source::File { path: path.to_owned(), context: self.context.clone() }, namespace })
    }

    fn namespace_or_operators(&self) -> Option<String> {
        // This is the label operator's variable. It may be set for other reasons, so it does not select cluster mode
        // by itself.
        let operator = || std::env::var("OPERATOR_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        self.named_namespace().or_else(operator)
    }

    fn named_namespace(&self) -> Option<String> {
        self.namespace.clone().filter(|namespace| !namespace.is_empty())
    }
}

/// The namespace of a context, if the configuration has the context and the context has a namespace.
fn namespace_of(config: &Kubeconfig, context: &str) -> Option<Option<String>> {
    let found = config.contexts.iter().find(|named| named.name == context)?;
    Some(found.context.as_ref().and_then(|context| context.namespace.clone()))
}

/// Reads a kubeconfig file.
///
/// # Errors
/// Names the flag, and the cause once.
fn read_file(path: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::ReadConfig(cause, _) => anyhow!("--kubeconfig {}: {cause}", path.display()),
        other => anyhow!("--kubeconfig {}: {}", path.display(), unread(&other)),
    })
}

/// Why a kubeconfig cannot be read, with the path if kube knows it.
fn unread(error: &KubeconfigError) -> String {
    match error {
        // kube's own text has the cause twice.
        KubeconfigError::ReadConfig(cause, path) => format!("{}: {cause}", path.display()),
        other => in_words(other),
    }
}

/// A cluster, before it is known in which namespace nodegate runs.
struct Selected {
    source: Source,
    /// The namespace of the context.
    namespace: Option<String>,
}

impl Selected {
    /// The cluster. Says on standard error what no flag names.
    fn in_namespace(self, namespace: String) -> ClusterTarget {
        let shown = on_a_line(&namespace);
        output::note(&match &self.source {
            Source::Kubectl { context, .. } => {
                format!("note: using kubectl's context {} and namespace {shown}", on_a_line(context))
            }
            Source::File { .. } | Source::Pod => format!("note: using namespace {shown}"),
        });
        ClusterTarget { source: self.source, namespace }
    }

    /// The namespace that nodegate runs in, as its webhook configuration says.
    ///
    /// # Errors
    /// See [`ClusterTarget::client`].
    async fn registered_namespace(&self) -> anyhow::Result<Option<String>> {
        let client = ClusterTarget { source: self.source.clone(), namespace: String::new() }.client().await?;
        Ok(registration::find(&client).await.namespace)
    }
}

impl ClusterTarget {
    /// What people call the cluster: the name of the context that selects it. `None` in a pod, and if the kubeconfig cannot
    /// be read.
    pub(crate) fn context(&self) -> Option<String> {
        match &self.source {
            Source::Pod => None,
            Source::Kubectl { context, .. } | Source::File { context: Some(context), .. } => Some(context.clone()),
            Source::File { path, context: None } => Kubeconfig::read_from(path).ok()?.current_context,
        }
    }

    /// Creates a client for the cluster.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig cannot be read or does not contain the context.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let config = match &self.source {
            Source::Pod => Config::incluster().context("could not load this pod's service account")?,
            Source::File { path, context } => {
                let loaded = without_proxy(read_file(path)?, context.clone()).await;
                loaded.with_context(|| format!("--kubeconfig {}", path.display()))?
            }
            Source::Kubectl { config, context } => {
                let loaded = without_proxy(Kubeconfig::clone(config), Some(context.clone())).await;
                loaded.with_context(|| format!("context {context} of kubectl's configuration"))?
            }
        };
        Ok(ClientBuilder::try_from(config)?.with_layer(&MapResultLayer::new(noted)).build())
    }
}

/// Loads a context, or the current one, without the proxy of the environment.
///
/// kube uses `HTTPS_PROXY` for every cluster that names no proxy, and has no option against it. So each such cluster names
/// [`NO_PROXY_URL`] meanwhile.
///
/// # Errors
/// Returns an error if the context cannot be loaded, or its cluster names a proxy.
async fn without_proxy(mut read: Kubeconfig, context: Option<String>) -> anyhow::Result<Config> {
    for cluster in read.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        if cluster.proxy_url.as_ref().is_none_or(String::is_empty) {
            cluster.proxy_url = Some(NO_PROXY_URL.to_owned());
        }
    }
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(read, &options).await?;
    let named = config.proxy_url.take();
    if named.is_some_and(|url| url.host() != Some(NO_PROXY_HOST)) {
        bail!("the cluster has proxy-url, which nodegate does not support; use a kubeconfig without it");
    }
    Ok(config)
}

/// Notes whether a request was answered. A proxy answers for an API server that does not.
fn noted<B>(outcome: Result<Response<B>, BoxError>) -> Result<Response<B>, BoxError> {
    let date = outcome.as_ref().ok().and_then(|answer| answer.headers().get(hyper::header::DATE)?.to_str().ok());
    date.into_iter().for_each(api_server::dated);
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
