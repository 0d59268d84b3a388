//! Finds what uses the old keys of migrations.

use std::collections::BTreeMap;

use anyhow::Context as _;
use indicatif::ProgressBar;
use kube::Client;
use serde_json::Value as Json;

use super::document::{Consumer, MigrationStatus, MigrationsStatus, Unread};
use crate::controller::{NodesError, each_object};
use crate::scheduling::{ConsumerKind, LabelUse, is_counted_by_its_owner};
use crate::text::counted;
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
    for (kind, path) in ConsumerKind::LISTED {
        let mut unreadable = 0_usize;
        let migrations = &mut status.migrations;
        let each = |text: Option<&[u8]>| {
            bar.inc(1);
            match text.map(serde_json::from_slice::<Json>) {
                Some(Ok(object)) => look_at(kind, &object, migrations),
                Some(Err(_)) | None => unreadable += 1,
            }
        };
        let mut unread = |reason: String| status.unread.push(Unread { kind, reason });
        match each_object(client, path, each).await {
            Ok(()) if unreadable == 0 => {}
            Ok(()) => unread(format!("{} could not be read", counted(unreadable, "object", "objects"))),
            Err(NodesError::Refused { code: 404, .. }) if kind.is_optional() => {}
            Err(error @ NodesError::Refused { .. }) => unread(error.to_string()),
            Err(error) => return Err(error).with_context(|| format!("could not list objects at {path}")),
        }
    }
    Ok(())
}

fn look_at(kind: ConsumerKind, object: &Json, migrations: &mut [MigrationStatus]) {
    if kind.is_over(object) {
        return;
    }
    for migration in migrations {
        let uses = kind.uses(object, &migration.from);
        if uses.is_empty() {
            continue;
        }
        if is_counted_by_its_owner(object) {
            migration.pods_of_workloads += usize::from(kind == ConsumerKind::Pod);
            continue;
        }
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        migration.consumers.push(Consumer {
            kind,
            namespace: text("namespace"),
            name: text("name").unwrap_or_default(),
            uses,
        });
    }
}
