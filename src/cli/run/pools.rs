//! `nodegate pools`: an administrator vouches for the pools of nodes of which too little is known.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};

use crate::cli::Findings;
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs, own_name};
use crate::cli::shared::cluster::effective_policies;
use crate::cli::shared::cluster::known_node::{self, Known, KnownNode};
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output;
use nodegate_controller::machine;
use nodegate_policy::PolicySet;
use nodegate_policy::api::state::{Adopted, Change, How, SavedState};
use nodegate_policy::explain::{Vouching, identity, may_be_pool, pool_names, vouching};
use nodegate_stores::files::Sources;
use nodegate_stores::state::{ConfigMaps, StateWriter, WriteError};

/// The field manager of what this command writes.
const MANAGER: &str = "nodegate-pools";
/// Number of attempts if the record of a node changes concurrently.
const TRIES: usize = 5;
/// Number of nodes in one page of a list.
const PAGE: u32 = 500;

/// Vouch for the pools of nodes that joined before nodegate
///
/// A node proves its pool when it is created. Of nodes that were there before, too little may be known; `nodegate report` lists
/// them. An administrator can say which pools they belong to.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Vouch that nodes belong to pools
    ///
    /// Your word counts as far as nothing else is known, and for these node objects only: a node that is created again proves its pool
    /// anew. It is recorded with your name in the saved state, so you need to be allowed to write ConfigMaps in nodegate's namespace.
    /// Exits with 1 if some of the nodes were not adopted.
    Adopt(AdoptArgs),
    /// Take back what was said of nodes
    ///
    /// As far as nothing else is known, their pools are unknown again: what rules gave them stays until you remove it.
    Forget(ForgetArgs),
}

#[derive(Debug, clap::Args)]
struct AdoptArgs {
    /// Names of the pools
    #[arg(value_name = "POOL", required = true)]
    pools: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct ForgetArgs {
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    /// Show what would be recorded, and record nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    served: ServedArgs,
}

/// The nodes that a command is about.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct NodesArgs {
    /// Name of a node; can be repeated
    #[arg(long = "node", value_name = "NODE", value_parser = parse_name)]
    names: Vec<String>,
    /// The nodes that this label selector matches, as for kubectl. Kubelets choose most of their labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

/// What is done with one node.
enum Step {
    /// The record gets this, for the reason that is shown.
    Write(Box<KnownNode>, Option<Adopted>, String),
    /// Nothing, because it is so already.
    Already(String),
    /// Nothing, because it cannot be done.
    Refused(String),
}

pub(in crate::cli) fn run(args: &PoolsArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let (Action::Adopt(AdoptArgs { common, .. }) | Action::Forget(ForgetArgs { common })) = &args.action;
        let place = if common.dry_run {
            common.connect.place_to_read(invocation).await?
        } else {
            common.connect.place(invocation)?
        };
        let place = place.context("no cluster is selected; set --kubeconfig and --namespace")?;
        let client = place.client().await?;
        match &args.action {
            Action::Adopt(AdoptArgs { pools, .. }) => {
                let set = effective_policies::in_force(&client, &place, &Sources::default()).await?.0;
                let pools = known_pools(&set, pools)?;
                let by = own_name(&client).await?;
                let at = Timestamp::now().to_string();
                let word = Adopted { pools, by, at, ..Adopted::default() };
                each(common, &client, &place, &word.by, |node| adopt(&set, node, &word)).await
            }
            Action::Forget(_) => {
                let by = own_name(&client).await?;
                each(common, &client, &place, &by, |node| Ok(forget(node))).await
            }
        }
    })
}

/// The names of pools, sorted, each once.
///
/// # Errors
/// Returns an error if the policies can have no pool of such a name.
fn known_pools(set: &PolicySet, pools: &[String]) -> anyhow::Result<Vec<String>> {
    let known = pool_names(set).into_iter().collect::<Vec<_>>().join(", ");
    for pool in pools {
        ensure!(!pool.trim().is_empty(), "POOL: the name of a pool must not be empty");
        if !may_be_pool(set, pool) {
            ensure!(
                !known.is_empty(),
                "the policies in force have no pools, so nothing would follow from adopting a node"
            );
            bail!("POOL: the policies in force have no pool {pool}; they have {known}");
        }
    }
    let sorted: BTreeSet<&String> = pools.iter().collect();
    Ok(sorted.into_iter().cloned().collect())
}

/// Does with each of the nodes what `step` says.
async fn each(
    args: &CommonArgs,
    client: &Client,
    place: &ClusterTarget,
    by: &str,
    step: impl Fn(KnownNode) -> anyhow::Result<Step>,
) -> anyhow::Result<Findings> {
    let mut wanted = selected(client, &args.nodes).await?;
    let known = Known { identity: args.served.identity, configuration: &args.served.configuration };
    let mut steps = Vec::new();
    let maps = known_node::each(client, place, &known, |node| {
        let name = node.as_ref().map_or_else(|unreadable| unreadable.name.clone(), |node| node.node.name().to_owned());
        if wanted.remove(&name) {
            steps.push((name, node.map_or_else(|unreadable| Ok(Step::Refused(unreadable.why)), &step)?));
        }
        Ok(())
    })
    .await?;
    let gone = wanted.into_iter().map(|name| (name, Step::Refused("it is not in the cluster".to_owned())));
    let writer = StateWriter::new(maps.clone(), MANAGER);
    let mut findings = Findings::None;
    for (name, step) in steps.into_iter().chain(gone) {
        let line = match step {
            Step::Already(why) => why,
            Step::Refused(why) => {
                findings = Findings::Some;
                format!("nothing is recorded: {why}")
            }
            Step::Write(_, _, what) if args.dry_run => format!("would be recorded: {what}"),
            Step::Write(node, word, what) => {
                record(&writer, &maps, &node, word.as_ref(), by).await.with_context(|| format!("node {name}"))?;
                format!("recorded: {what}")
            }
        };
        output::print_while_read(&format!("node {name}: {line}\n"))?;
    }
    Ok(findings)
}

/// The names of the nodes that a command is about.
///
/// # Errors
/// Returns an error if the API server does not accept the selector or cannot be reached, or if there are none.
async fn selected(client: &Client, args: &NodesArgs) -> anyhow::Result<BTreeSet<String>> {
    let Some(selector) = &args.selector else { return Ok(args.names.iter().cloned().collect()) };
    let nodes: Api<Node> = Api::all(client.clone());
    let mut parameters = ListParams::default().labels(selector).limit(PAGE);
    let mut names = BTreeSet::new();
    loop {
        let page = nodes.list_metadata(&parameters).await;
        let page = page.with_context(|| format!("--selector {selector}: could not list nodes"))?;
        names.extend(page.items.iter().map(PartialObjectMeta::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    ensure!(
        !names.is_empty(),
        "--selector {selector}: no node has such labels; `kubectl get nodes --show-labels` shows them"
    );
    Ok(names)
}

/// What follows for one node from the word that it belongs to pools.
fn adopt(set: &PolicySet, known: KnownNode, word: &Adopted) -> anyhow::Result<Step> {
    if let Some(why) = unrecorded(&known) {
        return Ok(Step::Refused(why));
    }
    let facts = known.facts()?;
    let evidence = known.evidence();
    let of = |source: fn(&Vouching) -> bool| -> Vec<&str> {
        let pools = word.pools.iter().map(String::as_str);
        pools.filter(|pool| source(&vouching(set, &facts, evidence, pool))).collect()
    };
    let refuted = of(|what| *what == Vouching::Refuted);
    if !refuted.is_empty() {
        let refuted = refuted.join(", ");
        let identity = identity(set, &facts, evidence).unwrap_or_default();
        let pools = if identity.pools.is_empty() { "none".to_owned() } else { identity.pools.join(", ") };
        return Ok(Step::Refused(format!(
            "what is known of it proves that it does not belong to {refuted} (its pools: {pools}); `nodegate explain {}` shows the proof",
            &*facts.name
        )));
    }
    let new = of(|what| *what == Vouching::Counts);
    if new.is_empty() {
        return Ok(Step::Already(format!("it belongs to {} already", word.pools.join(", "))));
    }
    let pools = new.iter().map(|pool| (*pool).to_owned()).collect();
    let word = Adopted { node_uid: known.node.uid().to_owned(), pools, ..word.clone() };
    let what = format!("it belongs to {}", new.join(", "));
    drop(facts);
    Ok(Step::Write(Box::new(known), Some(word), what))
}

/// What follows for one node from taking back what was said.
fn forget(known: KnownNode) -> Step {
    match known.saved.adopted() {
        Some(adopted) => {
            let what = format!("nobody vouches for it any more ({} did, for {})", adopted.by, adopted.pools.join(", "));
            Step::Write(Box::new(known), None, what)
        }
        None => Step::Already("nobody vouches for it".to_owned()),
    }
}

/// Why nothing can be recorded of a node.
fn unrecorded(known: &KnownNode) -> Option<String> {
    let is_recorded = known.saved.is_of_object(Some(known.node.uid()));
    (!is_recorded).then(|| {
        "nodegate has no record of this node object yet. The leader of `nodegate serve` makes one within seconds; check --namespace, and that \
         it runs with the controller"
            .to_owned()
    })
}

/// Records the word of `by` about a node, beside the pools that somebody vouches for already; or that there is none any more.
async fn record(
    writer: &StateWriter,
    maps: &ConfigMaps,
    known: &KnownNode,
    word: Option<&Adopted>,
    by: &str,
) -> anyhow::Result<()> {
    let facts = known.facts()?;
    for _ in 0..TRIES {
        let base = maps.states().get(machine(&facts)).map(|state| (*state).clone()).unwrap_or_default();
        // It was deleted and created again meanwhile.
        ensure!(base.is_of_object(Some(known.node.uid())), "its record is of another node object by now; try again");
        let before = base.adopted().map(|adopted| adopted.pools.clone());
        let word = word.cloned().map(|word| {
            let all: BTreeSet<String> = before.iter().flatten().cloned().chain(word.pools).collect();
            Adopted { pools: all.into_iter().collect(), ..word }
        });
        let change = Change {
            time: Timestamp::now().to_string(),
            by: by.to_owned(),
            by_requester: true,
            how: How::Adopted.as_str().to_owned(),
            field: "node".to_owned(),
            key: "pool".to_owned(),
            old: before.map(|pools| pools.join(",")),
            new: word.as_ref().map(|word| word.pools.join(",")),
            ..Change::default()
        };
        let state = SavedState { adopted: word, ..base.clone() };
        match writer.write(&base, &state, &[change]).await {
            Ok(_) => return Ok(()),
            // Readers have learnt of the other record.
            Err(WriteError::Changed(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("its record kept changing concurrently; try again")
}
