//! Compares all nodes with the policies in force, again and again, as `nodegate report` does once.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Client;
use tokio::time::{sleep, timeout};

use super::news::{Failure, News, Source, Survey};
use super::sources::{Teller, pause};
use crate::cli::policies::plan::decided;
use crate::cli::policies::plan::text::with_rule;
use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::shared::cluster::effective_policies::{never_led, published_set};
use crate::cli::shared::cluster::known_node::{self, Known, KnownNode};
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use nodegate_base::kube_error::with_context;
use nodegate_base::telemetry::brief;
use nodegate_base::text::{counted, cut};
use nodegate_controller::Unreadable;
use nodegate_policy::{PendingTaints, PolicySet};

/// How many nodes of each list are kept.
const NODES_MAX: usize = 1000;
/// The shortest pause between two passes, each of which reads all nodes and records.
const PAUSE: Duration = Duration::from_secs(30);
/// The longest time that a pass may take. A request whose connection is gone has no end of its own.
const PASS_MAX: Duration = Duration::from_secs(300);
/// How many changes of a node are named.
const NAMED: usize = 3;
/// Maximum length of the text of a change, in bytes.
const TEXT_MAX: usize = 256;

/// Compares nodes again and again.
pub(super) async fn keep(client: Client, place: ClusterTarget, served: ServedArgs, teller: Teller) {
    loop {
        let begun = Instant::now();
        let news = match timeout(PASS_MAX, look(&client, &place, &served)).await {
            Ok(Ok(survey)) => News::Survey(survey),
            Err(_) => {
                let why = format!("a comparison of all nodes was not done in {} min", PASS_MAX.as_secs() / 60);
                News::Failed(Source::Survey, Failure::Other(why))
            }
            Ok(Err(error)) => {
                let denied = matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 403);
                let failure = if denied { Failure::Denied } else { Failure::Other(brief(with_context(&error))) };
                News::Failed(Source::Survey, failure)
            }
        };
        teller.tell(news).await;
        sleep(pause(begun.elapsed()).max(PAUSE)).await;
    }
}

/// Compares all nodes once.
///
/// # Errors
/// Returns an error if the policies in force, nodes or saved state cannot be read.
async fn look(client: &Client, place: &ClusterTarget, served: &ServedArgs) -> anyhow::Result<Survey> {
    let set = published_set(client, place).await?;
    let set = set.with_context(|| format!("cannot tell which policies are in force: {}", never_led(place)))?;
    let pending = served.pending.taints();
    let known = Known { set: &set, identity: served.identity, configuration: &served.configuration };
    let mut survey = Survey::default();
    known_node::each(client, place, &known, |node| {
        add(&mut survey, &set, node, &pending);
        Ok(())
    })
    .await?;
    survey.drift.sort_unstable();
    Ok(survey)
}

/// Adds a node: whether it drifts, and, if it has the pending taint, why it waits.
pub(super) fn add(survey: &mut Survey, set: &PolicySet, node: Result<KnownNode, Unreadable>, pending: &PendingTaints) {
    // `report` says why.
    let Ok(node) = node else {
        survey.unreadable += 1;
        return;
    };
    let Ok(facts) = node.facts() else {
        survey.unreadable += 1;
        return;
    };
    let stored = node.stored(&facts, pending);
    let (plan, planned) = decided::drift(set, &stored);
    let texts = named(planned.changes.iter().map(with_rule));
    let name = node.node.name();
    if pending.on(&facts).next().is_some() {
        let gates = plan.decision.gates.iter().map(|gate| format!("{} at {}", gate.missing.join(", "), gate.id));
        let gates: Vec<String> = gates.collect();
        let why = match (plan.awaits_inventory, gates.as_slice()) {
            (true, _) => "waits for an inventory".to_owned(),
            (false, []) => format!("waits for the controller: {texts}"),
            (false, gates) => format!("waits for labels: {}", gates.join("; ")),
        };
        if survey.waiting.len() < NODES_MAX {
            survey.waiting.insert(name.to_owned(), why);
        }
    }
    if !planned.changes.is_empty() {
        survey.drifting += 1;
        if survey.drift.len() < NODES_MAX {
            survey.drift.push((name.to_owned(), texts));
        }
    }
}

/// The first of these texts, and how many more there are. The value of an annotation may be long.
fn named(texts: impl ExactSizeIterator<Item = String>) -> String {
    let more = texts.len().saturating_sub(NAMED);
    let mut named: Vec<String> = texts.take(NAMED).collect();
    named.iter_mut().for_each(|text| cut(text, TEXT_MAX));
    if more > 0 {
        named.push(counted(more, "more change", "more changes"));
    }
    named.join("; ")
}
