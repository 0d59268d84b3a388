//! `nodegate report --violations`: what the nodes violate today.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::look::report::ReportArgs;
use crate::cli::look::report::document::{Policies, Violation, ViolationMode};
use crate::cli::shared::cluster::connect::{ClusterTarget, NO_NODES};
use crate::cli::shared::cluster::known_node::record;
use crate::cli::shared::cluster::{effective_policies, saved_state};
use crate::cli::shared::invocation::Invocation;
use crate::cli::{Findings, shared::node_files, shared::output};
use kube::Client;
use nodegate_base::text::counted;
use nodegate_controller::tell::published::Published;
use nodegate_controller::{NodeApi, NodeObject, Read, Unreadable};
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::simulate::{Scene, node_name, simulate};
use nodegate_policy::{Evidence, Exemptions, Kind, NodeFacts, PolicySet, violations};
use nodegate_stores::state::{ConfigMaps, Identity, SavedStates};

/// What nodes violate.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Violations {
    /// The policies that were used.
    policies: Policies,
    /// The number of nodes.
    nodes: usize,
    /// Every violation.
    violations: Vec<Violation>,
}

pub(super) fn run(args: &ReportArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let Gathered { set, policies, nodes, unreadable } = runtime.block_on(gather(args, invocation))?;
    let count = nodes.len() + unreadable.len();
    anyhow::ensure!(count > 0, "the cluster has no nodes, so there is nothing to report");
    let mut violations = unreadable;
    for (node, saved) in &nodes {
        let found = judge(&set, node, saved).with_context(|| format!("node {}", node_name(node)))?;
        violations.extend(found.into_iter().map(|found| found.violation));
    }
    let report = Violations { policies: policies.into(), nodes: count, violations };
    output::show(args.output.format(), &report, text)?;
    // An expression that fails to evaluate is a finding: nodegate cannot tell whether the node is compliant.
    Ok(if report.violations.is_empty() { Findings::None } else { Findings::Some })
}

/// The input of the report.
struct Gathered {
    set: PolicySet,
    policies: Published,
    /// With what is saved of each.
    nodes: Vec<(Json, SavedState)>,
    /// One line for each node that cannot be read.
    unreadable: Vec<Violation>,
}

/// Reads the policies and the nodes.
async fn gather(args: &ReportArgs, invocation: Invocation) -> anyhow::Result<Gathered> {
    let sources = args.files.sources();
    // Once: a pipe cannot be read again.
    let loaded = sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let (mut found, mut unreadable): (Vec<(Json, SavedState)>, Vec<Violation>) = Default::default();
    if !args.nodes.is_empty() {
        let mut saved = args.saved.read()?.unwrap_or_default();
        let of_files = node_files::read(&args.nodes)?.into_iter().map(|found| {
            let saved = saved.remove(node_name(&found.node)).unwrap_or_default();
            (found.node, saved)
        });
        found.extend(of_files);
    }
    // Nodes in files need no cluster, so the current context is not used for them.
    let invocation = if args.nodes.is_empty() { invocation } else { Invocation::Nodegate };
    let Some(place) = args.connect.place_to_read(invocation).await? else {
        if args.nodes.is_empty() {
            bail!(NO_NODES);
        }
        let set = loaded.set;
        return Ok(Gathered { policies: Published::of(&set), set, nodes: found, unreadable });
    };
    let client = place.client().await?;
    if sources.are_empty() {
        let set = effective_policies::in_force(&client, &place, &sources).await?.0;
        if args.nodes.is_empty() {
            (found, unreadable) = of_cluster(client, &place, args.served.identity, &set).await?;
        }
        return Ok(Gathered { policies: Published::of(&set), set, nodes: found, unreadable });
    }
    let set = if args.files.policies.is_empty() {
        let read = effective_policies::combined(&client, Some(&place.namespace), &loaded).await;
        read.context("could not read the NodePolicy objects")?.set
    } else {
        loaded.set
    };
    let policies = effective_policies::compare(&client, &place, &set, args.force).await?;
    if args.nodes.is_empty() {
        (found, unreadable) = of_cluster(client, &place, args.served.identity, &set).await?;
    }
    Ok(Gathered { set, policies, nodes: found, unreadable })
}

/// The nodes of a cluster with their records, if the policies depend on those, and one line for each node that cannot be read. Such a
/// node does not affect the others.
async fn of_cluster(
    client: Client,
    place: &ClusterTarget,
    identity: Identity,
    set: &PolicySet,
) -> anyhow::Result<(Vec<(Json, SavedState)>, Vec<Violation>)> {
    let maps = ConfigMaps::new(client.clone(), &place.namespace, Arc::new(SavedStates::new(identity)));
    let depends_on_records = set.has_pools() || set.asks_for_evidence();
    if depends_on_records {
        maps.read(saved_state::tell_unused).await.context("could not read saved state")?;
    }
    let judged = |node: NodeObject| {
        let text = node.text();
        let json = serde_json::from_str(text.json())
            .map_err(|error| Unreadable { name: node.name().to_owned(), why: error.to_string() })?;
        let saved = if depends_on_records { record(maps.states(), &text) } else { SavedState::default() };
        Ok((json, saved))
    };
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let each = |node: Read| match node.and_then(judged) {
        Ok(node) => found.push(node),
        Err(error) => unreadable.push(Violation {
            message: error.to_string(),
            node: error.name,
            mode: ViolationMode::Unreadable,
            ..Violation::default()
        }),
    };
    NodeApi::new(client).each(each).await.context("could not list nodes")?;
    Ok((found, unreadable))
}

/// A violation, and whether it is a required label or taint that the node lacks.
pub(super) struct Found {
    pub(super) violation: Violation,
    pub(super) lacks: bool,
}

/// The violations of one node.
pub(super) fn judge(set: &PolicySet, node: &Json, saved: &SavedState) -> anyhow::Result<Vec<Found>> {
    // Of an earlier node of the name, it proves nothing.
    let of_node = saved.is_of_object(node["metadata"]["uid"].as_str()).then(|| saved.clone());
    let scene = Scene { saved: of_node, ..Scene::unchanged(node) };
    let object = simulate(set, &scene, &Exemptions::default())?.node.to_string();
    let facts = NodeFacts::parse(&object)?;
    // As its record or the node has it: no kubelet can change it while the guard is there.
    let evidence = Evidence::of_stored(&facts, saved, true);
    let verdict = violations(set, &facts, evidence.as_ref());
    let line = |by: &nodegate_policy::RuleId, mode, key: &str, message: &str| Violation {
        node: node_name(node).to_owned(),
        policy: by.policy.to_string(),
        rule: by.rule.to_string(),
        mode,
        key: key.to_owned(),
        message: message.to_owned(),
    };
    let found = verdict.violations.iter().map(|violation| {
        let mode = match violation.mode {
            EntryMode::Enforce => ViolationMode::Enforce,
            EntryMode::Warn => ViolationMode::Warn,
            EntryMode::Audit => ViolationMode::Audit,
        };
        let lacks = violation.kind == Kind::Required;
        Found { violation: line(&violation.by, mode, &violation.key, &violation.what), lacks }
    });
    let unknown = verdict.unknown.iter();
    let unknown =
        unknown.map(|(by, reason)| Found { violation: line(by, ViolationMode::Unknown, "", reason), lacks: false });
    Ok(found.chain(unknown).collect())
}

fn text(report: &Violations) -> String {
    let Violations { policies, nodes, violations: lines } = report;
    let of = |mode: ViolationMode| lines.iter().filter(|line| line.mode == mode).count();
    let mut violating: Vec<&str> =
        lines.iter().filter(|line| line.mode.is_certain()).map(|line| line.node.as_str()).collect();
    violating.sort_unstable();
    violating.dedup();
    let mut text = String::new();
    if !lines.is_empty() {
        let mut table = output::table(&["node", "policy", "rule", "mode", "violation"]);
        for line in lines {
            table.add_row([&line.node, &line.policy, &line.rule, line.mode.as_str(), &line.message]);
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
    }
    let (enforce, warn, audit, unknown) =
        (of(ViolationMode::Enforce), of(ViolationMode::Warn), of(ViolationMode::Audit), of(ViolationMode::Unknown));
    text.push_str(&format!(
        "{}, {} with violations: {enforce} in enforce mode, {warn} in warn mode, {audit} in audit mode",
        counted(*nodes, "node", "nodes"),
        violating.len()
    ));
    if unknown > 0 {
        text.push_str(&format!(
            "; {} failed to evaluate, which counts as a finding",
            counted(unknown, "expression", "expressions")
        ));
    }
    let unreadable = of(ViolationMode::Unreadable);
    if unreadable > 0 {
        text.push_str(&format!(
            "; {}, which counts as a finding",
            counted(unreadable, "node is unreadable", "nodes are unreadable")
        ));
    }
    text.push_str(&format!(
        "\npolicies: {} ({})\n",
        policies.names.join(", "),
        policies.hash.get(..19).unwrap_or(&policies.hash)
    ));
    text
}
