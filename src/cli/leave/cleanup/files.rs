//! A cleanup of nodes in files, which only lists what would be removed.

use std::collections::BTreeSet;

use crate::cli::leave::cleanup::CleanupArgs;
use crate::cli::shared::node_files;
use nodegate_controller::NodeObject;
use nodegate_policy::cleanup::{Cleanup, CleanupScope, Extent, NodeCleanup, plan_cleanup};
use nodegate_policy::{Evidence, Publishers, StoredNode, simulate};

pub(super) fn cleanup(args: &CleanupArgs) -> anyhow::Result<Cleanup> {
    let saved = args.saved.read()?.unwrap_or_default();
    let mut found = node_files::read(&args.nodes)?;
    let name = |found: &node_files::Found| simulate::node_name(&found.node).to_owned();
    if let Some(absent) = args.node.iter().find(|wanted| !found.iter().any(|found| name(found) == **wanted)) {
        anyhow::bail!("no node {absent} in the files");
    }
    found.retain(|found| args.node.is_empty() || args.node.contains(&name(found)));
    found.sort_by_key(name);
    let mut cleanup = Cleanup::default();
    for found in found {
        let node = NodeObject::read(&found.node.to_string())?;
        let record = saved.get(node.name()).cloned().unwrap_or_default();
        let text = node.text();
        let facts = text.facts()?;
        let evidence = Evidence::of_stored(&facts, &record, true);
        let stored = StoredNode {
            pools: None,
            node: &facts,
            version: None,
            claims: text.claims(),
            saved: &record,
            inventory: None,
            devices: None,
            registered: true,
            identified: true,
            pending: &args.served.pending.taints(),
            adopt: false,
            patched_taints: &BTreeSet::new(),
            elsewhere: Publishers::default(),
            evidence: evidence.as_ref(),
        };
        let plan = plan_cleanup(&CleanupScope { extent: Extent::Everything, running: None }, &stored);
        if !plan.keys.is_empty() {
            cleanup.nodes.push(NodeCleanup { node: node.name().to_owned(), keys: plan.keys, error: None });
        }
    }
    Ok(cleanup)
}
