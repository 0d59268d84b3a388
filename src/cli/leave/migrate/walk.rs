//! `nodegate migrate OLD NEW`: takes a migration through its phases, by a NodePolicy of its own.
//!
//! All that it knows is in the cluster, so it can be interrupted anywhere, and goes on from the phase in force.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use indicatif::{ProgressBar, ProgressDrawTarget};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value as Json, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::cli::leave::migrate::WalkArgs;
use crate::cli::leave::migrate::document::{MigrationStatus, MigrationsStatus, Phase};
use crate::cli::leave::migrate::{consumers, nodes, text};
use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::shared::cluster::effective_policies::{never_led, published_set};
use crate::cli::shared::invocation::Invocation;
use crate::cli::{Findings, shared::output};
use nodegate_base::text::{counted, hexadecimal, on_a_line};
use nodegate_controller::tell::{observed, published};
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::api::policy::{EntryMode, NodePolicy};
use nodegate_policy::{PolicySet, baseline_in};

/// The field manager of the command's writes.
const MANAGER: &str = "nodegate-migrate";
/// How often the cluster is asked whether the policy is in force.
const IN_FORCE_INTERVAL: Duration = Duration::from_millis(500);
/// The first and the longest pause between two counts of the nodes, which list all of them.
const NODES_INTERVALS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];
/// For how long removals must be held back for one reason: after a change of policies they are for a moment.
const HELD_BACK: Duration = Duration::from_secs(10);
/// How many consumers are named in an error.
const NAMED: usize = 3;

/// Takes a migration to the phase that `args` name, or says what that would do.
pub(super) async fn walk(args: &WalkArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let (Some(old), Some(new)) = (&args.old, &args.new) else { bail!("OLD and NEW are missing") };
    ensure!(old != new, "OLD and NEW are the same key, {old}; name two keys");
    let connect = &args.connect;
    let place = if args.confirm { connect.place(invocation)? } else { connect.place_to_read(invocation).await? };
    let place = place.context("no cluster is selected; set --kubeconfig and --namespace")?;
    let client = place.client().await?;
    let set = in_force(&client, &place).await?;
    let walk = Walk { args, old, new, name: policy_name(old, new), place, client, reached: Cell::new(None) };
    walk.reached.set(walk.phase(&set)?);
    if args.dry_run || !args.confirm {
        return walk.preview(&set).await;
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        done = walk.go(&set) => done.with_context(|| walk.stopped())?,
        _ = terminate.recv() => bail!("terminated; {}", walk.stopped()),
        _ = interrupt.recv() => bail!("interrupted; {}", walk.stopped()),
    }
    output::print(&format!("{old} → {new}: phase {} (policy {})\n", args.to.as_str(), walk.name))?;
    Ok(Findings::None)
}

/// The policies in force.
async fn in_force(client: &Client, place: &ClusterTarget) -> anyhow::Result<PolicySet> {
    let set = published_set(client, place).await?;
    set.with_context(|| {
        let why = never_led(place);
        format!("cannot tell which policies are in force: {why}; start `nodegate serve` in the cluster, which moves the labels")
    })
}

/// The name of the policy for two keys: readable, and different for different keys.
fn policy_name(old: &LabelKey, new: &LabelKey) -> String {
    let hash = digest(&SHA256, format!("{old}\n{new}").as_bytes());
    let readable: String = old.as_str().to_ascii_lowercase().replace(['/', '_', '.'], "-").chars().take(80).collect();
    format!("migrate-{}-{}", readable.trim_matches('-'), hexadecimal(&hash.as_ref()[..4]))
}

/// The phase that follows.
fn after(phase: Option<Phase>) -> Option<Phase> {
    match phase {
        None => Some(Phase::DualWrite),
        Some(Phase::DualWrite) => Some(Phase::Cutover),
        Some(Phase::Cutover) => Some(Phase::Done),
        Some(Phase::Done) => None,
    }
}

struct Walk<'a> {
    args: &'a WalkArgs,
    old: &'a LabelKey,
    new: &'a LabelKey,
    /// The name of the policy.
    name: String,
    place: ClusterTarget,
    client: Client,
    /// The phase in force.
    reached: Cell<Option<Phase>>,
}

impl Walk<'_> {
    /// The phase of the migration in force.
    ///
    /// # Errors
    /// Returns an error if another policy moves one of the keys, or if the phase is already beyond the one to reach.
    fn phase(&self, set: &PolicySet) -> anyhow::Result<Option<Phase>> {
        let (old, new) = (self.old.as_str(), self.new.as_str());
        let all = set.migrations();
        let Some(found) = all.iter().find(|one| [one.from, one.to].iter().any(|key| *key == old || *key == new)) else {
            return Ok(None);
        };
        let phase = Phase::from(found.phase);
        if found.policy != self.name || (found.from, found.to) != (old, new) {
            bail!(
                "policy {} already moves {} to {} (phase {}); change the phase in that policy, where you keep it",
                found.policy,
                found.from,
                found.to,
                phase.as_str()
            );
        }
        if phase > self.args.to {
            bail!(
                "the migration is in phase {}, after {}; to go back, set the phase in NodePolicy {}",
                phase.as_str(),
                self.args.to.as_str(),
                self.name
            );
        }
        Ok(Some(phase))
    }

    /// Where it stopped, and how to go on.
    fn stopped(&self) -> String {
        let phase = self
            .reached
            .get()
            .map_or("is not in force yet".to_owned(), |phase| format!("is in phase {}", phase.as_str()));
        format!("the migration of {} to {} {phase}; run the command again to continue", self.old, self.new)
    }

    /// The phases that remain.
    fn remaining(&self) -> Vec<Phase> {
        let next = |phase: &Phase| after(Some(*phase));
        let all = std::iter::successors(after(self.reached.get()), next);
        all.take_while(|phase| *phase <= self.args.to).collect()
    }

    /// Prints how far the migration is, and what `--confirm` would do.
    async fn preview(&self, set: &PolicySet) -> anyhow::Result<Findings> {
        let (status, unreadable) = self.with_nodes(self.blank()).await?;
        for name in unreadable {
            output::note(&format!("note: node {} could not be read and is not counted", on_a_line(&name)));
        }
        let status = self.with_consumers(set, status).await?;
        let mut lines = text::of(&status);
        match self.remaining().as_slice() {
            [] => lines.add("", &format!("The migration has reached phase {}.", self.args.to.as_str())),
            phases => {
                let phases: Vec<&str> = phases.iter().map(|phase| phase.as_str()).collect();
                lines.add(
                    "",
                    &format!(
                        "--confirm writes NodePolicy {} with phase {}, and waits for the nodes before each of them.",
                        self.name,
                        phases.join(", then ")
                    ),
                );
            }
        }
        output::print(lines.as_str())?;
        Ok(Findings::None)
    }

    /// Goes through the remaining phases, and waits until the nodes are as the last one means them to be.
    async fn go(&self, set: &PolicySet) -> anyhow::Result<()> {
        let stand_in = set.documents().iter().find(|document| published::stands_in(document));
        let in_place_of_none = stand_in.map(|document| &*document.spec.presets);
        for phase in self.remaining() {
            match phase {
                Phase::DualWrite => {}
                Phase::Cutover => {
                    let status = self.until_settled().await?;
                    let of = |one: &MigrationStatus| text::writers_of(&one.from, one.phase, &one.writers);
                    for writers in status.migrations.iter().filter_map(of) {
                        output::note(&format!("note: {}", on_a_line(&writers)));
                    }
                }
                Phase::Done => {
                    self.until_settled().await?;
                    self.check_unused().await?;
                }
            }
            self.enter(phase, in_place_of_none).await?;
            self.reached.set(Some(phase));
            output::note(&format!("note: phase {} is in force", phase.as_str()));
        }
        self.until_settled().await.map(drop)
    }

    /// The status of the migration, before anything is counted.
    fn blank(&self) -> MigrationsStatus {
        let phase = self.reached.get();
        let policy = phase.map(|_| self.name.clone());
        let migration = MigrationStatus { policy, phase, ..MigrationStatus::planned(self.old, self.new) };
        MigrationsStatus { migrations: vec![migration], unread: Vec::new() }
    }

    /// Counts the nodes. Returns the names of those that could not be read as well.
    async fn with_nodes(&self, mut status: MigrationsStatus) -> anyhow::Result<(MigrationsStatus, Vec<String>)> {
        let unreadable = nodes(&self.client, &mut status.migrations, &ProgressBar::hidden()).await?;
        Ok((status, unreadable))
    }

    async fn with_consumers(&self, set: &PolicySet, mut status: MigrationsStatus) -> anyhow::Result<MigrationsStatus> {
        consumers::of_policies(set, &mut status.migrations);
        consumers::of_cluster(&self.client, &mut status, &ProgressBar::hidden()).await?;
        status.migrations.iter_mut().for_each(MigrationStatus::sort);
        Ok(status)
    }

    /// Refuses to go on while something uses the old key.
    async fn check_unused(&self) -> anyhow::Result<()> {
        if self.args.despite_consumers {
            return Ok(());
        }
        let set = in_force(&self.client, &self.place).await?;
        let status = self.with_consumers(&set, self.blank()).await?;
        let remedy = "or remove the old key all the same with --despite-consumers";
        if let Some(unread) = status.unread.first() {
            bail!(
                "cannot tell whether {}s use {}: {}; get the right to list them, {remedy}",
                unread.kind.as_str(),
                self.old,
                unread.reason
            );
        }
        let Some(migration) = status.migrations.iter().find(|migration| migration.is_used()) else { return Ok(()) };
        let mut named: Vec<String> = migration.consumers.iter().take(NAMED).map(text::consumer).collect();
        let more = migration.consumers.len().saturating_sub(NAMED);
        named.extend((more > 0).then(|| format!("{more} more")));
        let pods = migration.pods_of_workloads;
        named.extend((pods > 0).then(|| format!("{} of workloads", counted(pods, "pod", "pods"))));
        bail!(
            "{} is still used by {}; move them to {} (`nodegate migrate status` lists them), {remedy}",
            self.old,
            named.join(", "),
            self.new
        )
    }

    /// Writes the policy with this phase, and waits until it is in force.
    async fn enter(&self, phase: Phase, in_place_of_none: Option<&[String]>) -> anyhow::Result<()> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::erase::<NodePolicy>(&()));
        let what = || format!("could not write NodePolicy {}", self.name);
        let before = api.get_opt(&self.name).await.with_context(what)?;
        // The preset is in force only while there is no policy, so the first one must not take it away.
        let modes = [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit];
        let kept = modes.map(|mode| json!([baseline_in(mode)])).into_iter();
        let kept = kept.filter(|kept| before.as_ref().is_some_and(|before| before.data["spec"]["presets"] == *kept));
        let kept = in_place_of_none.map(|presets| json!(presets)).into_iter().chain(kept).next();
        let mut migration = json!({"from": self.old.as_str(), "to": self.new.as_str(), "phase": phase.as_str()});
        if self.args.trust_kubelet {
            migration["trustKubelet"] = Json::Bool(true);
        }
        let mut spec = json!({"migrations": [migration]});
        if let Some(presets) = kept {
            spec["presets"] = presets;
        }
        // Somebody may have set the phase by hand, as the messages of this command say.
        let is_ours = before.is_some_and(|before| differs_in_phase_only(&before.data["spec"], &spec));
        let parameters = PatchParams { force: is_ours, ..PatchParams::apply(MANAGER) };
        let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": self.name}, "spec": spec});
        let written = match api.patch(&self.name, &parameters, &Patch::Apply(policy)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => bail!(
                "NodePolicy {} was edited: {}; undo the edit (`kubectl edit nodepolicy {}`), or go on with that policy by hand",
                self.name,
                on_a_line(&status.message),
                self.name
            ),
            written => written.with_context(what)?,
        };
        let generation = written.metadata.generation;
        let deadline = Instant::now() + self.args.timeout;
        loop {
            let set = in_force(&self.client, &self.place).await?;
            let is_meant = |policy: &str, of: Phase| policy == self.name && of == phase;
            if set.migrations().iter().any(|one| is_meant(one.policy, one.phase.into())) {
                return Ok(());
            }
            let object = api.get(&self.name).await.with_context(what)?;
            if let Some(why) = refusal(&object.data["status"], generation) {
                bail!("NodePolicy {} is not in force with phase {}: {why}", self.name, phase.as_str());
            }
            self.wait(IN_FORCE_INTERVAL, deadline, || format!("phase {} is not in force", phase.as_str())).await?;
        }
    }

    /// Waits until all nodes are as the phase in force means them to be.
    async fn until_settled(&self) -> anyhow::Result<MigrationsStatus> {
        let deadline = Instant::now() + self.args.timeout;
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let mut held: Option<(String, Instant)> = None;
        let [mut pause, longest] = NODES_INTERVALS;
        loop {
            let (status, unreadable) = self.with_nodes(self.blank()).await?;
            // A node that cannot be read may have any labels.
            let unequal = status.migrations.iter().map(|one| one.unequal.len()).sum::<usize>();
            let left = unequal + unreadable.len();
            if left == 0 {
                bar.finish_and_clear();
                return Ok(status);
            }
            bar.set_length(bar.length().unwrap_or_default().max(left as u64));
            bar.set_position(bar.length().unwrap_or_default() - left as u64);
            let observed = observed::read(self.client.clone(), &self.place.namespace).await;
            let reason =
                observed.context("could not read what the controller holds back")?.and_then(|one| one.held_back);
            held = reason.map(|reason| match held.take() {
                Some((before, since)) if before == reason => (reason, since),
                _ => (reason, Instant::now()),
            });
            if let Some((reason, _)) = held.as_ref().filter(|(_, since)| since.elapsed() >= HELD_BACK) {
                bail!("{} left: {reason}", counted(left, "node is", "nodes are"));
            }
            let what = || {
                let unread = unreadable.first().map(|name| format!("; node {} cannot be read", on_a_line(name)));
                format!("{} left{}", counted(left, "node is", "nodes are"), unread.unwrap_or_default())
            };
            self.wait(pause, deadline, what).await?;
            pause = (pause * 2).min(longest);
        }
    }

    /// Waits a moment.
    ///
    /// # Errors
    /// Returns an error at the deadline.
    async fn wait(&self, pause: Duration, deadline: Instant, what: impl Fn() -> String) -> anyhow::Result<()> {
        if Instant::now() >= deadline {
            bail!("{} after {:?} (--timeout); is `nodegate serve` running?", what(), self.args.timeout);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Whether the spec of the policy would be this one with another phase.
fn differs_in_phase_only(before: &Json, spec: &Json) -> bool {
    const PHASE: &str = "/migrations/0/phase";
    let (mut before, Some(phase)) = (before.clone(), spec.pointer(PHASE)) else { return false };
    before.pointer_mut(PHASE).is_some_and(|there| {
        there.clone_from(phase);
        true
    }) && before == *spec
}

/// Why a generation of an object is not in force, if its status says so.
fn refusal(status: &Json, generation: Option<i64>) -> Option<String> {
    let is_current = status["observedGeneration"].as_i64() == generation;
    let mut conditions = status["conditions"].as_array().filter(|_| is_current)?.iter();
    let refused = conditions.find(|condition| condition["type"] == "Accepted" && condition["status"] == "False")?;
    Some(refused["message"].as_str().unwrap_or_default().to_owned())
}
