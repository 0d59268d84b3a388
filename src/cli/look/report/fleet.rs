//! Gathers a report on all nodes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use kube::Client;

use crate::cli::look::report::ReportArgs;
use crate::cli::look::report::cost::{Prices, Sums};
use crate::cli::look::report::devices::Labelled;
use crate::cli::look::report::document::{
    AtGate, Conflict, Contradicted, Disagreed, Drift, Lacking, LeftAlone, Missed, MissedWrite, PoolNodes, Rejected,
    Report, Violation, ViolationMode,
};
use crate::cli::look::report::native;
use crate::cli::look::report::topologies::Topologies;
use crate::cli::look::report::violations::judge;
use crate::cli::policies::plan::document::{Over, Remark, RemarkKind};
use crate::cli::policies::plan::{decided, pods};
use crate::cli::shared::cluster::connect::{ClusterTarget, NO_NODES};
use crate::cli::shared::cluster::known_node::{self, Known, KnownNode};
use crate::cli::shared::invocation::Invocation;
use crate::cli::{
    shared::cluster::effective_policies, shared::cluster::saved_state, shared::node_files, shared::output,
};
use crate::scheduling::{AffectedPod, Impact, Pod, Transition};
use nodegate_base::kube_error::in_words;
use nodegate_controller::Unreadable;
use nodegate_controller::tell::observed::{self, Observed};
use nodegate_controller::tell::published::Published;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::explain::{FieldName, NodeIdentity, identity, pool_names};
use nodegate_policy::simulate::node_name;
use nodegate_policy::{NodeFacts, PendingTaints, PolicySet, PoolLabels, PoolMemory, ReconcilePlan, Unseen};

/// How many files are named.
const NAMED: usize = 3;

/// A label, and how many nodes have each value and none.
type Counts = BTreeMap<String, BTreeMap<String, usize>>;

/// A report, and what its page shows besides.
pub(super) struct Fleet {
    /// The report.
    pub(super) report: Report,
    /// Where the nodes are from.
    pub(super) source: Source,
    /// The saved state of all nodes with their histories (`--html`); `None` if there is none to read.
    pub(super) states: Option<Vec<SavedState>>,
}

/// Where the nodes are from.
pub(super) enum Source {
    /// Files, by their names.
    Files(Vec<String>),
    /// A cluster.
    Cluster {
        /// What people call it, if it is known.
        context: Option<String>,
        /// Why it is unknown which policies are in force, if it is, and which are used.
        policies_unknown: Option<String>,
        /// Why it is unknown what the controller leaves alone, if it is.
        left_alone_unknown: Option<String>,
        /// Why it is unknown which native policies fail, if it is.
        native_unknown: Option<String>,
        /// Why it is unknown which devices nodes have, if it is.
        devices_unknown: Option<String>,
    },
}

impl Source {
    /// What people call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Files(names) if names.len() > NAMED => format!("{} files", names.len()),
            Self::Files(names) => names.join(", "),
            Self::Cluster { context, .. } => context.clone().unwrap_or_else(|| "the cluster".to_owned()),
        }
    }
}

/// A report in the making.
struct Gathering<'a> {
    args: &'a ReportArgs,
    set: &'a PolicySet,
    pending: PendingTaints,
    report: Report,
    /// The number of nodes that can be read.
    read: usize,
    /// By the labels of `--by`, or by all.
    counts: Counts,
    /// The labels that policies set.
    set_labels: BTreeSet<String>,
    conflicts: BTreeMap<Remark, Vec<String>>,
    /// By the name of the pool.
    pools: BTreeMap<String, PoolNodes>,
    costs: Option<Sums<'a>>,
    topologies: Topologies,
    labelled: Labelled,
    nodes: Vec<Transition>,
}

/// The report on the nodes of a cluster or of files.
///
/// # Errors
/// Returns an error if the policies, the nodes or the prices cannot be read, or if there are no nodes.
pub(super) async fn report(args: &ReportArgs, invocation: Invocation) -> anyhow::Result<Fleet> {
    let prices = args.prices.as_deref().map(Prices::read).transpose()?;
    let sources = args.files.sources();
    if !args.nodes.is_empty() {
        let set = sources.load().map_err(|errors| output::load_errors(&errors))?;
        let saved = args.saved.read()?;
        let states = saved.as_ref().filter(|_| args.html.is_some()).map(|saved| saved.values().cloned().collect());
        let mut saved = saved.unwrap_or_default();
        let mut gathering = Gathering::new(args, &set, prices.as_ref());
        let all = node_files::read(&args.nodes)?;
        let publishers = known_node::publishers(&all, &saved);
        for found in all {
            let saved = saved.remove(node_name(&found.node));
            let member = KnownNode::of_file(&found.node, saved, publishers).with_context(|| found.file.clone())?;
            gathering.add(Ok(member))?;
        }
        let mut impact = gathering.impact();
        let mut stranded = Vec::new();
        pods::each_of_files(&args.pods, |pod| stranded.extend(impact.stranded(pod)))?;
        let files = args.nodes.iter().map(|file| match file.as_os_str().to_str() {
            Some("-") => "standard input".to_owned(),
            _ => file.to_string_lossy().into_owned(),
        });
        let source = Source::Files(files.collect());
        return Ok(Fleet { report: gathering.finish(stranded), source, states });
    }
    let Some(place) = args.connect.place_to_read(invocation).await? else {
        bail!(NO_NODES);
    };
    let client = place.client().await?;
    let (set, policies_unknown) = effective_policies::in_force(&client, &place, &sources).await?;
    let mut gathering = Gathering::new(args, &set, prices.as_ref());
    let known = Known { set: &set, identity: args.served.identity, configuration: &args.served.configuration };
    let remembered = known_node::each(&client, &place, &known, |member| gathering.add(member)).await?;
    if set.pools_remember() {
        gathering.remember(&remembered);
    }
    anyhow::ensure!(gathering.report.nodes > 0, "the cluster has no nodes, so there is nothing to report");
    let mut left_alone_unknown = None;
    match observed(&client, &place).await {
        Ok(Observed { left_alone, held_back }) => {
            gathering.report.left_alone = left_alone.into_iter().map(LeftAlone::from).collect();
            gathering.report.held_back = held_back;
        }
        Err(why) => left_alone_unknown = Some(why),
    }
    let mut native_unknown = None;
    match native::failures(&client).await {
        Ok(failures) => gathering.report.native_failures = failures,
        Err(why) => native_unknown = Some(why),
    }
    let mut devices_unknown = None;
    match gathering.labelled.differences(&client).await {
        Ok(devices) => gathering.report.devices = devices,
        Err(why) => devices_unknown = Some(why),
    }
    let mut stranded = Vec::new();
    if args.stranded_pods {
        let mut impact = gathering.impact();
        let listed = pods::each_of_cluster(&client, |pod: Pod| stranded.extend(impact.stranded(&pod))).await;
        listed.map_err(|error| anyhow::anyhow!("could not list pods: {error}"))?;
    }
    let states = match &args.html {
        Some(_) => {
            // Records that cannot be read have been reported with the nodes.
            let states = saved_state::all_in_cluster(&client, &place.namespace, |_| {}).await;
            Some(states.context("could not read saved state")?)
        }
        None => None,
    };
    let context = place.context();
    let source = Source::Cluster { context, policies_unknown, left_alone_unknown, native_unknown, devices_unknown };
    Ok(Fleet { report: gathering.finish(stranded), source, states })
}

impl<'a> Gathering<'a> {
    fn new(args: &'a ReportArgs, set: &'a PolicySet, prices: Option<&'a Prices>) -> Self {
        let label = args.by.first().filter(|_| args.cost);
        Self {
            args,
            set,
            pending: args.served.pending.taints(),
            report: Report { policies: Published::of(set).into(), ..Report::default() },
            read: 0,
            counts: args.by.iter().map(|label| (label.to_string(), BTreeMap::new())).collect(),
            set_labels: BTreeSet::new(),
            conflicts: BTreeMap::new(),
            pools: pool_names(set).into_iter().map(|pool| (pool.to_owned(), PoolNodes::new(pool))).collect(),
            topologies: Topologies::new(set),
            labelled: Labelled::default(),
            costs: label.map(|label| Sums::new(label.as_str(), prices)),
            nodes: Vec::new(),
        }
    }

    fn add(&mut self, member: Result<KnownNode, Unreadable>) -> anyhow::Result<()> {
        self.report.nodes += 1;
        let read = member.and_then(|member| {
            let error = |why: String| Unreadable { name: member.node.name().to_owned(), why };
            let json = serde_json::from_str(member.json()).map_err(|wrong| error(wrong.to_string()))?;
            member.facts().map_err(|wrong| error(wrong.to_string()))?;
            Ok((member, json))
        });
        let (member, json) = match read {
            Ok(read) => read,
            Err(Unreadable { name, why }) => {
                let mode = ViolationMode::Unreadable;
                self.report.violations.push(Violation { node: name, mode, message: why, ..Violation::default() });
                return Ok(());
            }
        };
        self.read += 1;
        let facts = member.facts()?;
        let stored = member.stored(&facts, &self.pending);
        let (plan, planned) = decided::drift(self.set, &stored);
        self.topologies.add(self.set, &stored, &plan);
        let gpus = stored.gpus();
        let pools = identity(self.set, &facts, stored.evidence);
        let node = member.node.name();
        self.report.drift.extend(planned.changes.into_iter().map(|change| Drift { node: node.to_owned(), change }));
        for remark in planned.notes.into_iter().filter(|remark| remark.kind == RemarkKind::Conflict) {
            self.conflicts.entry(remark).or_default().push(node.to_owned());
        }
        self.judged(judge(self.set, &json, stored.saved)?);
        self.note(node, &plan);
        self.labelled.add(&facts);
        self.note_pools(node, pools);
        self.count(&facts);
        if let Some(costs) = &mut self.costs {
            costs.add(&facts, &gpus);
        }
        if self.args.stranded_pods {
            self.nodes.push(Transition { before: decided::state(&facts), after: None });
        }
        Ok(())
    }

    fn judged(&mut self, found: Vec<crate::cli::look::report::violations::Found>) {
        for crate::cli::look::report::violations::Found { violation, lacks } in found {
            if lacks {
                let Violation { node, key, policy, rule, .. } = violation.clone();
                self.report.missing.push(Lacking { node, key, policy, rule });
            }
            self.report.violations.push(violation);
        }
    }

    fn note(&mut self, node: &str, plan: &ReconcilePlan) {
        // Files do not say whether the webhook was there.
        let unseen = plan.unseen.as_ref().filter(|_| self.args.nodes.is_empty());
        let decision = &plan.decision;
        if decision.labels.is_empty() && decision.annotations.is_empty() && decision.taints.is_empty() {
            self.report.unmanaged.push(node.to_owned());
        }
        let claims = plan.rejected.iter().cloned().chain(plan.rejected_unnamed());
        self.report.rejected.extend(claims.map(|claim| Rejected {
            node: node.to_owned(),
            field: claim.field.map(FieldName::from),
            policy: claim.by.policy.to_string(),
            rule: claim.by.rule.to_string(),
            text: claim.to_string(),
            key: claim.key,
            asserted: claim.asserted,
        }));
        self.report.gates.extend(decision.gates.iter().map(|gate| AtGate {
            node: node.to_owned(),
            policy: gate.id.policy.to_string(),
            rule: gate.id.rule.to_string(),
            missing: gate.missing.clone(),
            timeout_seconds: gate.timeout.as_secs(),
            on_timeout: gate.on_timeout.as_str().to_owned(),
        }));
        self.set_labels.extend(decision.labels.keys().cloned());
        let (what, keys) = match unseen {
            None => return,
            Some(Unseen::Joined { lacking }) => (MissedWrite::Joined, lacking.clone()),
            Some(Unseen::Changed { keys }) => (MissedWrite::Changed, keys.clone()),
        };
        self.report.missed.push(Missed { node: node.to_owned(), what, keys });
    }

    fn note_pools(&mut self, node: &str, identity: Option<NodeIdentity>) {
        let NodeIdentity { pools, unknown, may_have_others, proof: _, instance: _, contradictions } =
            identity.unwrap_or_default();
        let of_node = |contradiction| Contradicted { node: node.to_owned(), contradiction };
        self.report.contradictions.extend(contradictions.into_iter().map(of_node));
        // The names that objects give.
        for name in &pools {
            self.pools.entry(name.clone()).or_insert_with(|| PoolNodes::new(name));
        }
        if may_have_others {
            self.report.pools_unknown.push(node.to_owned());
        }
        for (name, pool) in &mut self.pools {
            pool.nodes += usize::from(pools.contains(name));
            pool.unknown.extend(unknown.contains(name).then(|| node.to_owned()));
        }
    }

    /// Adds what pools remember, also of those that have no nodes now.
    fn remember(&mut self, memory: &PoolMemory) {
        for (name, PoolLabels { labels, disagreements, empty_since: _ }) in &memory.pools {
            let pool = self.pools.entry(name.clone()).or_insert_with(|| PoolNodes::new(name));
            pool.remembered.clone_from(labels);
            pool.disagreements = disagreements.iter().map(|(label, found)| Disagreed::new(label, found)).collect();
        }
    }

    fn count(&mut self, facts: &NodeFacts<'_>) {
        let all = self.args.by.is_empty();
        for (key, value) in facts.labels() {
            let counts = match self.counts.get_mut(key) {
                Some(counts) => counts,
                None if all => self.counts.entry(key.to_owned()).or_default(),
                None => continue,
            };
            *counts.entry(value.to_owned()).or_default() += 1;
        }
    }

    /// How pods see the nodes.
    fn impact(&mut self) -> Impact {
        Impact::new(std::mem::take(&mut self.nodes))
    }

    fn finish(mut self, stranded: Vec<AffectedPod>) -> Report {
        let mut report = self.report;
        if self.args.by.is_empty() {
            self.counts.retain(|label, _| self.set_labels.contains(label));
        }
        let without = |values: &BTreeMap<String, usize>| self.read - values.values().sum::<usize>();
        report.without = self.counts.iter().map(|(label, values)| (label.clone(), without(values))).collect();
        report.by = self.counts;
        report.pools = self.pools.into_values().collect();
        report.pools.iter_mut().for_each(|pool| pool.unknown.sort_unstable());
        report.pools_unknown.sort_unstable();
        let conflicts = self.conflicts.into_iter().filter_map(|(remark, mut nodes)| {
            nodes.sort_unstable();
            conflict(remark, nodes)
        });
        report.conflicts = conflicts.collect();
        report.topologies = self.topologies.finish();
        report.cost = self.costs.map(Sums::finish).unwrap_or_default();
        report.stranded = stranded;
        report.stranded.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        report.unmanaged.sort_unstable();
        report.missing.sort_by(|one, other| (&one.node, &one.key).cmp(&(&other.node, &other.key)));
        report.violations.sort_by(|one, other| one.node.cmp(&other.node));
        report.drift.sort_by(|one, other| one.node.cmp(&other.node));
        report.rejected.sort_unstable();
        report.contradictions.sort_unstable();
        report.missed.sort_by(|one, other| one.node.cmp(&other.node));
        report
    }
}

fn conflict(remark: Remark, nodes: Vec<String>) -> Option<Conflict> {
    let Remark { kind: _, field, key, policy, rule, over, message: _ } = remark;
    let over: Over = over?;
    Some(Conflict { field: field?, key: key?, policy: policy?, rule: rule?, over, nodes })
}

/// What the controller does not write.
///
/// # Errors
/// Returns why that is unknown, and prints it as a note.
async fn observed(client: &Client, place: &ClusterTarget) -> Result<Observed, String> {
    let observed = observed::read(client.clone(), &place.namespace).await;
    observed.map(Option::unwrap_or_default).map_err(|error| {
        let why = format!("could not read what the controller leaves alone: {}", in_words(&error));
        output::note(&format!("note: {why}"));
        why
    })
}

impl From<observed::LeftAlone> for LeftAlone {
    fn from(observed: observed::LeftAlone) -> Self {
        let observed::LeftAlone { node, field, key, policy, writers, writer_names } = observed;
        Self { node, field, key, policy, writers, writer_names }
    }
}
