//! Finds what uses the old keys of migrations.

use std::collections::BTreeMap;

use anyhow::Context as _;
use indicatif::ProgressBar;
use kube::Client;
use serde_json::Value as Json;

use crate::cli::leave::migrate::document::{Consumer, MigrationStatus, MigrationsStatus, Unread};
use crate::scheduling::{ConsumerKind, LabelUse, listed_owner};
use nodegate_base::text::counted;
use nodegate_controller::{NodesError, each_object};
use nodegate_policy::{PolicySet, PolicyUse};

/// Adds the rules and entries of the policies in force that use an old key.
pub(super) fn of_policies(set: &PolicySet, migrations: &mut [MigrationStatus]) {
    for migration in migrations {
        let mut uses: BTreeMap<String, Vec<LabelUse>> = BTreeMap::new();
        for (id, of_policy) in set.uses_of_label(&migration.from) {
            uses.entry(id.to_string()).or_default().push(match of_policy {
                PolicyUse::Reads => LabelUse::Match,
                PolicyUse::Sets => LabelUse::Labels,
                PolicyUse::Persists => LabelUse::Persist,
                PolicyUse::Governs => LabelUse::Governance,
            });
        }
        let (kind, namespace) = (ConsumerKind::NodePolicy, None);
        let consumers =
            uses.into_iter().map(|(name, uses)| Consumer { kind, namespace: namespace.clone(), name, uses });
        migration.consumers.extend(consumers);
    }
}

/// Adds the objects of the cluster that name an old key. Never more than one object is in memory as a whole.
///
/// # Errors
/// Returns an error if the API server cannot be reached. A kind that it refuses to list is among `unread`.
pub(super) async fn of_cluster(
    client: &Client,
    status: &mut MigrationsStatus,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut owned = Vec::new();
    for (kind, path) in ConsumerKind::LISTED {
        let mut unreadable = 0_usize;
        let migrations = &mut status.migrations;
        let each = |text: Option<&[u8]>| {
            bar.inc(1);
            match text.map(serde_json::from_slice::<Json>) {
                Some(Ok(object)) => look_at(kind, &object, migrations, &mut owned),
                Some(Err(_)) | None => unreadable += 1,
            }
        };
        let mut unread = |reason: String| status.unread.push(Unread { kind, reason });
        match each_object(client, path, "", each).await {
            Ok(()) if unreadable == 0 => {}
            Ok(()) => unread(format!("{} could not be read", counted(unreadable, "object", "objects"))),
            Err(NodesError::Refused { code: 404, .. }) if kind.is_optional() => {}
            Err(error @ NodesError::Refused { .. }) => unread(error.to_string()),
            Err(error) => return Err(error).with_context(|| format!("could not list objects at {path}")),
        }
    }
    count_owned(owned, &mut status.migrations);
    Ok(())
}

/// An object whose owner is listed itself.
struct Owned {
    /// The position of the migration.
    migration: usize,
    owner: (ConsumerKind, String),
    consumer: Consumer,
}

/// Adds the objects whose owners do not use the key anymore: they keep what they were created with.
fn count_owned(owned: Vec<Owned>, migrations: &mut [MigrationStatus]) {
    for Owned { migration, owner: (kind, name), consumer } in owned {
        let consumers = &mut migrations[migration].consumers;
        let is_owner = |one: &Consumer| one.kind == kind && one.name == name && one.namespace == consumer.namespace;
        if !consumers.iter().any(is_owner) {
            consumers.push(consumer);
        }
    }
}

fn look_at(kind: ConsumerKind, object: &Json, migrations: &mut [MigrationStatus], owned: &mut Vec<Owned>) {
    if kind.is_over(object) {
        return;
    }
    for (at, migration) in migrations.iter_mut().enumerate() {
        let uses = kind.uses(object, &migration.from);
        if uses.is_empty() {
            continue;
        }
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        let (namespace, name) = (text("namespace"), text("name").unwrap_or_default());
        let consumer = Consumer { kind, namespace, name, uses };
        match listed_owner(object) {
            Some(_) if kind == ConsumerKind::Pod => migration.pods_of_workloads += 1,
            Some((owner, name)) => owned.push(Owned { migration: at, owner: (owner, name.to_owned()), consumer }),
            None => migration.consumers.push(consumer),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nodegate_policy::api::names::LabelKey;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_owned_job_counts_if_its_owner_does_not_use_the_key_anymore() {
        let key = |text: &str| text.parse::<LabelKey>().unwrap();
        let pods = json!({"template": {"spec": {"nodeSelector": {"tier": "a"}}}});
        let owner = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "controller": true}]);
        let job = json!({"metadata": {"namespace": "n", "name": "nightly-1", "ownerReferences": owner}, "spec": pods});
        for (selector, expected) in [(json!({"tier": "a"}), "nightly"), (json!({}), "nightly-1")] {
            let template = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}});
            let cron = json!({"metadata": {"namespace": "n", "name": "nightly"}, "spec": {"jobTemplate": template}});
            let (mut found, mut owned) = (vec![MigrationStatus::planned(&key("tier"), &key("new"))], Vec::new());
            look_at(ConsumerKind::Job, &job, &mut found, &mut owned);
            look_at(ConsumerKind::CronJob, &cron, &mut found, &mut owned);
            count_owned(owned, &mut found);
            let names: Vec<&str> = found[0].consumers.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, [expected]);
        }
    }
}
