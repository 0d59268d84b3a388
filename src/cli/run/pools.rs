//! `nodegate pools`: an administrator vouches for the pools of nodes of which too little is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};

use crate::cli::Findings;
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs, own_name};
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::cluster::{effective_policies, saved_state};
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output;
use nodegate_base::pages::next_page;
use nodegate_controller::{NodeApi, machine};
use nodegate_policy::api::state::{Adopted, Change, How, SavedState};
use nodegate_policy::explain::{Vouching, identity, may_be_pool, pool_names, vouching};
use nodegate_policy::{Evidence, NodeFacts, PolicySet};
use nodegate_stores::files::Sources;
use nodegate_stores::state::{ConfigMaps, SavedStates, StateWriter, WriteError};

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
    /// Its record gets this; the text says what that means.
    Write(Option<Adopted>, String),
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
                each(common, &client, &place, &word.by, |facts, saved| adopt(&set, facts, saved, &word)).await
            }
            Action::Forget(_) => {
                let by = own_name(&client).await?;
                each(common, &client, &place, &by, |_, saved| forget(saved)).await
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

/// Does with each of the nodes what `step` says, and prints it.
async fn each(
    args: &CommonArgs,
    client: &Client,
    place: &ClusterTarget,
    by: &str,
    step: impl Fn(&NodeFacts<'_>, &SavedState) -> Step,
) -> anyhow::Result<Findings> {
    let names = selected(client, &args.nodes).await?;
    let states = Arc::new(SavedStates::new(args.served.identity));
    let maps = ConfigMaps::new(client.clone(), &place.namespace, states);
    maps.read(saved_state::tell_unused).await.context("could not read saved state")?;
    let (nodes, writer) = (NodeApi::new(client.clone()), StateWriter::new(maps.clone(), MANAGER));
    let mut findings = Findings::None;
    for name in names {
        let node = nodes.get(&name).await.with_context(|| format!("could not read node {name}"))?;
        let node =
            node.map_or_else(|| Err("it is not in the cluster".to_owned()), |node| node.map_err(|error| error.why));
        let text = node.map(|node| node.text());
        let facts =
            text.as_ref().map_err(String::clone).and_then(|text| text.facts().map_err(|error| error.to_string()));
        let next = match &facts {
            Ok(facts) => step(facts, &recorded(&maps, facts)),
            Err(why) => Step::Refused(why.clone()),
        };
        let line = match (next, &facts) {
            (Step::Already(why), _) => why,
            (Step::Write(_, what), _) if args.dry_run => format!("would be recorded: {what}"),
            (Step::Write(word, what), Ok(facts)) => {
                record(&writer, &maps, facts, word.as_ref(), by).await.with_context(|| format!("node {name}"))?;
                format!("recorded: {what}")
            }
            (Step::Refused(why) | Step::Write(_, why), _) => {
                findings = Findings::Some;
                format!("nothing is recorded: {why}")
            }
        };
        output::print_while_read(&format!("node {name}: {line}\n"))?;
    }
    Ok(findings)
}

/// The record of a node; an empty one if there is none.
fn recorded(maps: &ConfigMaps, facts: &NodeFacts<'_>) -> SavedState {
    maps.states().get(machine(facts)).map(|state| (*state).clone()).unwrap_or_default()
}

/// The names of the nodes that a command is about, each once.
///
/// # Errors
/// Returns an error if the API server does not accept the selector or cannot be reached, or if there are none.
async fn selected(client: &Client, args: &NodesArgs) -> anyhow::Result<Vec<String>> {
    let Some(selector) = &args.selector else {
        let mut seen = BTreeSet::new();
        return Ok(args.names.iter().filter(|name| seen.insert(*name)).cloned().collect());
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let mut next = Some(ListParams::default().labels(selector).limit(PAGE));
    let mut names = Vec::new();
    while let Some(parameters) = next {
        let page = nodes.list_metadata(&parameters).await;
        let page = page.with_context(|| format!("--selector {selector}: could not list nodes"))?;
        next = next_page(parameters, &page.metadata);
        names.extend(page.items.iter().map(PartialObjectMeta::name_any));
    }
    ensure!(
        !names.is_empty(),
        "--selector {selector}: no node has such labels; `kubectl get nodes --show-labels` shows them"
    );
    Ok(names)
}

/// What follows for one node from the word that it belongs to pools.
fn adopt(set: &PolicySet, facts: &NodeFacts<'_>, saved: &SavedState, word: &Adopted) -> Step {
    let Some(uid) = facts.uid.as_deref().filter(|uid| saved.is_of_object(Some(uid))) else {
        return Step::Refused(
            "nodegate has no record of this node object yet. The leader of `nodegate serve` makes one within seconds; check --namespace, \
             and that it runs with the controller"
                .to_owned(),
        );
    };
    // Only the leader knows whether the guard was there when the node was created, and it has recorded the evidence then.
    let evidence = Evidence::of_stored(facts, saved, false);
    let of = |wanted: Vouching| -> Vec<&str> {
        let pools = word.pools.iter().map(String::as_str);
        pools.filter(|pool| vouching(set, facts, evidence.as_ref(), pool) == wanted).collect()
    };
    let refuted = of(Vouching::Refuted);
    if !refuted.is_empty() {
        let pools = identity(set, facts, evidence.as_ref()).unwrap_or_default().pools;
        let pools = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
        return Step::Refused(format!(
            "what is known of it proves that it does not belong to {} (its pools: {pools}); `nodegate explain {}` shows the proof",
            refuted.join(", "),
            &*facts.name
        ));
    }
    let new = of(Vouching::Counts);
    if new.is_empty() {
        return Step::Already(format!("it belongs to {} already", word.pools.join(", ")));
    }
    let pools = new.iter().map(|pool| (*pool).to_owned()).collect();
    let word = Adopted { node_uid: uid.to_owned(), pools, ..word.clone() };
    Step::Write(Some(word), format!("it belongs to {}", new.join(", ")))
}

/// What follows for one node from taking back what was said.
fn forget(saved: &SavedState) -> Step {
    match saved.adopted() {
        Some(Adopted { pools, by, .. }) => {
            Step::Write(None, format!("nobody vouches for it any more ({by} did, for {})", pools.join(", ")))
        }
        None => Step::Already("nobody vouches for it".to_owned()),
    }
}

/// Records the word of `by` about a node, beside the pools that somebody vouches for already; or that there is none any more.
async fn record(
    writer: &StateWriter,
    maps: &ConfigMaps,
    facts: &NodeFacts<'_>,
    word: Option<&Adopted>,
    by: &str,
) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let base = recorded(maps, facts);
        // It was deleted and created again meanwhile.
        ensure!(base.is_of_object(facts.uid.as_deref()), "its record is of another node object by now; try again");
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
        let state = SavedState { adopted: word.map(Box::new), ..base.clone() };
        match writer.write(&base, &state, &[change]).await {
            Ok(_) => return Ok(()),
            // Readers have learnt of the other record.
            Err(WriteError::Changed(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("its record kept changing concurrently; try again")
}
