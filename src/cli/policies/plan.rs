//! `nodegate plan`: shows what policies would change on nodes and what that does to pods, without changing anything.

mod autoscalers;
pub(in crate::cli) mod decided;
pub(in crate::cli) mod document;
mod gates;
mod kueue;
pub(in crate::cli) mod named;
pub(in crate::cli) mod pods;
mod readiness;
pub(in crate::cli) mod text;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kube::Client;

use crate::cli::Findings;
use crate::cli::shared::autoscalers::document::Difference;
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs, NO_NODES};
use crate::cli::shared::cluster::effective_policies::{self, Proposal};
use crate::cli::shared::cluster::known_node::{self, Known, KnownNode};
use crate::cli::shared::cluster::saved_state::SavedFiles;
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::{self, Found};
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::policy_files::PolicyFiles;
use crate::scheduling::Transition;
use autoscalers::Pools;
pub(crate) use document::Plan;
use document::{KeyOfProgram, NodePlan, Op, Policies, Summary};
use kueue::{Kueue, KueueDifference};
use nodegate_base::kube_error::in_words;
use nodegate_controller::tell::observed;
use nodegate_controller::tell::published::Published;
use nodegate_controller::{MaxRemovals, Unreadable};
use nodegate_policy::explain::taints_at_join;
use nodegate_policy::simulate::{Scene, identity, node_name, simulate};
use nodegate_policy::{Exemptions, Field, NodeFacts, PendingTaints, PolicySet, RuleId, gates_of, plan_reconcile};
use nodegate_stores::files::Sources;
use pods::Workloads;
use readiness::{LateTaint, Readiness, TaintKey};

/// Show what policies would change, and which pods that affects
///
/// It changes nothing. In a cluster, each given policy is added to the ones in force, or replaces the one with its
/// name. Without any, shows what the policies in force still have to change. For nodes from files, the default is the
/// preset `baseline`.
///
/// Files contain the output of `kubectl get nodes -o yaml --show-managed-fields`, single Nodes, or AdmissionReviews
/// with their requester. A Node is planned as an existing node; with --create, as a CREATE by its kubelet.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// Files or directories with Nodes, Lists or AdmissionReviews; - for standard input [default: the nodes of the
    /// cluster]
    #[arg(value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    nodes: Vec<PathBuf>,
    #[command(flatten)]
    files: PolicyFiles,
    /// Additional label prefix to persist, for compatibility with the label operator
    #[arg(long, value_name = "PREFIX", env = "PERSIST_LABEL_PREFIX", hide = true)]
    persist_label_prefix: Option<String>,
    /// Plan the given policies alone, as if all others were removed
    #[arg(long, requires = "policies")]
    only: bool,
    #[command(flatten)]
    saved: SavedFiles,
    /// Files with Pods and DaemonSets, as printed by `kubectl get daemonsets,pods --all-namespaces -o json`, for nodes
    /// from files
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    pods: Vec<PathBuf>,
    /// Do not read the pods of the cluster
    #[arg(long)]
    no_pods: bool,
    /// Plan the CREATE of each node by its kubelet, for nodes from files
    #[arg(long, conflicts_with_all = ["kubeconfig", "namespace"])]
    create: bool,
    /// The requester: `kubelet`, `admin` or a user name [default: the controller, with --create kubelet]
    #[arg(long = "as", value_name = "USER", conflicts_with_all = ["kubeconfig", "namespace"])]
    requester: Option<String>,
    /// Additional group of the requester
    #[arg(long = "as-group", value_name = "GROUP", conflicts_with_all = ["kubeconfig", "namespace"])]
    groups: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Maximum number of nodes that may lose keys by one change; use the same value as for `serve` [default: the larger
    /// of 10 and 10 %]
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_REMOVALS")]
    max_removals: Option<usize>,
    #[command(flatten)]
    served: ServedArgs,
    /// Exit with 1 if something would change, or if a node cannot be read
    #[arg(long)]
    exit_code: bool,
    /// How a table is ordered
    #[arg(long, value_enum, default_value_t = By::Change)]
    by: By,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The order of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Each change once, with its nodes
    Change,
    /// Each node with its changes
    Node,
}

/// What is planned so far.
#[derive(Default)]
struct Draft {
    nodes: Vec<NodePlan>,
    autoscalers: Vec<Difference>,
    kueue: Vec<KueueDifference>,
    late_taints: Vec<LateTaint>,
    /// What rules give each node when it joins, if `wants_taints`.
    taints: BTreeMap<String, BTreeSet<TaintKey>>,
    wants_taints: bool,
    /// The gates and topologies that each node is in, if `wants_gates`.
    gates: BTreeMap<String, Vec<RuleId>>,
    wants_gates: bool,
    /// The pending taints that the nodes have while they wait: key and effect.
    pending: BTreeSet<(String, String)>,
    transitions: Vec<Transition>,
}

pub(in crate::cli) fn run(args: &PlanArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let plan = if args.nodes.is_empty() { runtime.block_on(of_cluster(args, invocation))? } else { of_files(args)? };
    output::show(args.output, &plan, |plan| text::of(plan, args.by == By::Node, output::has_colors()))?;
    let Summary { changed, deferred, unreadable, .. } = plan.summary;
    // What cannot be planned may change.
    Ok(if args.exit_code && changed + deferred + unreadable > 0 { Findings::Some } else { Findings::None })
}

fn of_files(args: &PlanArgs) -> anyhow::Result<Plan> {
    let set = sources(args).load().map_err(|errors| output::load_errors(&errors))?;
    let mut saved = args.saved.read()?.unwrap_or_default();
    let mut draft = Draft::default();
    let all = node_files::read(&args.nodes)?;
    let publishers = known_node::publishers(&all, &saved);
    for found in all {
        let saved = saved.remove(node_name(&found.node));
        let as_write = args.create || args.requester.is_some() || !args.groups.is_empty() || found.review.is_some();
        let mut planned = if as_write {
            let Scene { node, .. } = &scene(args, &found, saved.clone());
            let text = node.to_string();
            let facts = NodeFacts::parse(&text).with_context(|| found.file.clone())?;
            draft.note_pending(&facts, &args.served.pending.taints());
            let simulated = simulate(&set, &scene(args, &found, saved), &Exemptions::default());
            draft.add(&facts, decided::of_write(&facts, &simulated.with_context(|| found.file.clone())?))
        } else {
            let member = KnownNode::of_file(&found.node, saved, publishers).with_context(|| found.file.clone())?;
            draft.add_member(args, &set, None, &member, &HashSet::new()).with_context(|| found.file.clone())?
        };
        planned.file = Some(found.file);
        draft.nodes.push(planned);
    }
    let mut workloads = Workloads::new(std::mem::take(&mut draft.transitions));
    workloads.add_of_files(&args.pods)?;
    let Published { names, hash } = Published::of(&set);
    let policies = Policies { names, hash, ..Policies::default() };
    Ok(draft.finish(args, policies, &set, workloads, None))
}

async fn of_cluster(args: &PlanArgs, invocation: Invocation) -> anyhow::Result<Plan> {
    let Some(place) = args.connect.place_to_read(invocation).await? else {
        bail!(NO_NODES);
    };
    let client = place.client().await?;
    let proposal = effective_policies::proposed(&client, &place, &sources(args), args.only).await?;
    let Proposal { in_force, set, added, replaced, removed } = &proposal;
    let (now, then) = (in_force.as_ref().map(Published::of), Published::of(set));
    // A change of policies makes the controller repair these keys again.
    let left_alone = if now.as_ref() == Some(&then) { left_alone(&client, &place).await } else { HashSet::new() };
    let mut draft = Draft::default();
    let known = Known { set, identity: args.served.identity, configuration: &args.served.configuration };
    let kueue = Kueue::of_cluster(&client).await;
    draft.wants_gates = kueue.has_topologies();
    let readiness = Readiness::of_cluster(&client).await;
    draft.wants_taints = !readiness.is_empty();
    let mut pools = Pools::of_cluster(&client, set, &args.served).await;
    let take = |member: Result<KnownNode, Unreadable>| {
        let planned = match member {
            Ok(member) => {
                let planned = draft.add_member(args, set, in_force.as_ref(), &member, &left_alone)?;
                if let Some(pools) = pools.as_mut().filter(|_| planned.unreadable.is_none()) {
                    pools.add(&member)?;
                }
                planned
            }
            Err(error) => NodePlan { node: error.name, unreadable: Some(error.why), ..NodePlan::default() },
        };
        draft.nodes.push(planned);
        Ok(())
    };
    let remembered = known_node::each(&client, &place, &known, take).await?;
    anyhow::ensure!(!draft.nodes.is_empty(), "the cluster has no nodes, so there is nothing to plan");
    draft.late_taints = readiness.late(&draft.transitions, &draft.taints);
    draft.kueue = kueue.differences(set, &draft.transitions, &draft.gates);
    let mut workloads = Workloads::new(std::mem::take(&mut draft.transitions));
    let others_ask = pools.is_some() || !set.awaited_of_publishers().is_empty();
    let pods_unknown = workloads.look_at_cluster(&client, args.no_pods, others_ask).await;
    match pools.map(|pools| pools.finish(remembered, &workloads.selected)).transpose() {
        Ok(found) => draft.autoscalers = found.unwrap_or_default(),
        Err(error) => output::note(&format!("note: what autoscalers are told is not compared: {error:#}")),
    }
    let Published { names, hash } = then;
    let (added, replaced, removed) = (added.clone(), replaced.clone(), removed.clone());
    let policies = Policies { names, hash, in_force: now.map(|now| now.hash), added, replaced, removed };
    Ok(draft.finish(args, policies, set, workloads, pods_unknown))
}

impl Draft {
    /// Plans a stored node.
    fn add_member(
        &mut self,
        args: &PlanArgs,
        set: &PolicySet,
        in_force: Option<&PolicySet>,
        member: &KnownNode,
        left_alone: &HashSet<(String, Field, String)>,
    ) -> anyhow::Result<NodePlan> {
        let facts = match member.facts() {
            Ok(facts) => facts,
            Err(error) if args.nodes.is_empty() => {
                let unreadable = Some(error.to_string());
                return Ok(NodePlan { node: member.node.name().to_owned(), unreadable, ..NodePlan::default() });
            }
            Err(error) => return Err(error.into()),
        };
        let pending = args.served.pending.taints();
        self.note_pending(&facts, &pending);
        let stored = member.stored(&facts, &pending);
        let plan = plan_reconcile(set, &stored);
        if self.wants_gates {
            self.gates.insert(member.node.name().to_owned(), gates_of(set, &stored));
        }
        if self.wants_taints {
            let given = taints_at_join(set, &stored, &plan).into_iter();
            let given = given.map(|(key, effect)| (key, effect.as_str().to_owned())).collect();
            self.taints.insert(member.node.name().to_owned(), given);
        }
        let skipped = |field, key: &str| {
            !left_alone.is_empty() && left_alone.contains(&(member.node.name().to_owned(), field, key.to_owned()))
        };
        let change = plan.change(|_| true, skipped);
        Ok(self.add(&facts, decided::of_stored(&stored, &plan, change.as_ref(), in_force)))
    }

    /// Remembers the taint that the node has while it waits.
    fn note_pending(&mut self, node: &NodeFacts<'_>, pending: &PendingTaints) {
        let taint = pending.for_node(node);
        self.pending.insert((taint.key.to_string(), taint.effect.as_str().to_owned()));
    }

    /// Remembers how the scheduler sees the node before and after.
    fn add(&mut self, facts: &NodeFacts<'_>, planned: NodePlan) -> NodePlan {
        let before = decided::state(facts);
        let after = decided::state_after(&before, planned.changes.iter().chain(&planned.deferred));
        self.transitions.push(Transition { before, after });
        planned
    }

    fn finish(
        mut self,
        args: &PlanArgs,
        policies: Policies,
        set: &PolicySet,
        workloads: Workloads,
        pods_unknown: Option<String>,
    ) -> Plan {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        let shut_out = gates::shut_out(set, &self.pending, &workloads.daemon_sets);
        let (pods, daemon_sets) = match pods_unknown {
            None => workloads.impact.finish(),
            Some(_) => Default::default(),
        };
        let of = |holds: &dyn Fn(&NodePlan) -> bool| nodes.iter().filter(|node| holds(node)).count();
        let loses = |node: &NodePlan| {
            node.changes.iter().any(|change| change.op == Op::Remove && change.after_seconds.is_some())
        };
        let removals = of(&loses);
        let limit = args.max_removals.map_or(MaxRemovals::Tenth, MaxRemovals::Nodes).of(nodes.len());
        let no_policy = set.rule_count() == 0 && removals > 0;
        let summary = Summary {
            nodes: nodes.len(),
            changed: of(&|node| !node.changes.is_empty()),
            deferred: of(&|node| !node.deferred.is_empty()),
            removals,
            held_back: removals > limit || no_policy,
            unreadable: of(&|node| node.unreadable.is_some()),
            pods: pods.len(),
            evicted: pods.iter().filter(|pod| pod.effect == crate::scheduling::Effect::Evicted).count(),
        };
        let trusting = set.trusting_rules().collect();
        let keys_of_programs = KeyOfProgram::all(set);
        let Self { autoscalers, kueue, late_taints, .. } = self;
        Plan {
            policies,
            nodes,
            pods,
            daemon_sets,
            pods_unknown,
            trusting,
            keys_of_programs,
            autoscalers,
            shut_out,
            kueue,
            late_taints,
            summary,
        }
    }
}

/// The keys that the controller does not repair, because others keep reverting them.
async fn left_alone(client: &Client, place: &ClusterTarget) -> HashSet<(String, Field, String)> {
    let keys = match observed::read(client.clone(), &place.namespace).await {
        Ok(observed) => observed.unwrap_or_default().left_alone,
        Err(error) => {
            output::note(&format!("note: could not read what the controller leaves alone: {}", in_words(&error)));
            return HashSet::new();
        }
    };
    if !keys.is_empty() {
        let noun = if keys.len() == 1 { "key is" } else { "keys are" };
        output::note(&format!(
            "note: {} {noun} not planned, because others kept reverting what nodegate wrote; `nodegate report` lists them",
            keys.len()
        ));
    }
    keys.into_iter().filter_map(|key| Some((key.node, Field::parse(&key.field)?, key.key))).collect()
}

fn scene(args: &PlanArgs, found: &Found, saved: Option<nodegate_policy::api::state::SavedState>) -> Scene {
    let (old, status, (username, groups)) = match &found.review {
        Some(review) => (review.old.clone(), review.status, (review.username.clone(), review.groups.clone())),
        None => {
            let requester = args.requester.as_deref().unwrap_or(if args.create { "kubelet" } else { "admin" });
            let old = (!args.create).then(|| found.node.clone());
            (old, false, identity(requester, node_name(&found.node), &args.groups))
        }
    };
    let extra = found.review.as_ref().and_then(|review| review.extra.clone());
    Scene { old, status, extra, saved, ..Scene::of(found.node.clone(), username, groups) }
}

fn sources(args: &PlanArgs) -> Sources {
    Sources {
        persist_prefix: args.persist_label_prefix.clone().filter(|prefix| !prefix.is_empty()),
        ..args.files.sources()
    }
}
