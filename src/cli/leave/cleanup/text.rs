//! The table of a cleanup: equal keys and objects are one row.

use std::collections::BTreeMap;

use crate::cli::shared::output;
use nodegate_base::text::{on_a_line, or_quotes};
use nodegate_policy::cleanup::{Cleanup, CleanupResult, KeptBecause, KeyCleanup, ObjectCleanup};

/// How many names a row shows.
const NAMES_MAX: usize = 3;

pub(super) fn of(cleanup: &Cleanup) -> String {
    let mut text = String::new();
    let mut rows: BTreeMap<&KeyCleanup, Vec<&str>> = BTreeMap::new();
    for node in &cleanup.nodes {
        node.keys.iter().for_each(|key| rows.entry(key).or_default().push(&node.node));
    }
    if !rows.is_empty() {
        let mut table = output::table(&["field", "key", "value", "result", "nodes"]);
        for (key, nodes) in &rows {
            let value = match &key.effect {
                None => or_quotes(&key.value).to_owned(),
                Some(effect) if key.value.is_empty() => effect.clone(),
                Some(effect) => format!("{}:{effect}", key.value),
            };
            table.add_row([key.field.as_str().to_owned(), key.key.clone(), value, result_of_key(key), names(nodes)]);
        }
        text.push_str(&format!("{}\n", table.trim_fmt()));
    }
    let mut objects: BTreeMap<(&str, CleanupResult, String), Vec<&str>> = BTreeMap::new();
    for object in &cleanup.objects {
        let row = (object.kind.as_str(), object.result, result_of_object(object));
        objects.entry(row).or_default().push(&object.name);
    }
    if !objects.is_empty() {
        let mut table = output::table(&["object", "result", "names"]);
        for ((kind, _, result), all) in &objects {
            table.add_row([(*kind).to_owned(), result.clone(), names(all)]);
        }
        text.push_str(&format!("{}{}\n", if text.is_empty() { "" } else { "\n" }, table.trim_fmt()));
    }
    for node in &cleanup.nodes {
        if let Some(error) = &node.error {
            text.push_str(&format!("node {}: {}\n", on_a_line(&node.node), on_a_line(error)));
        }
    }
    text.push_str(&summary(cleanup, text.is_empty()));
    text
}

/// The number of names, and the first few.
fn names(all: &[&str]) -> String {
    let first = all.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match all {
        [only] => (*only).to_owned(),
        _ => format!("{}: {first}{}", all.len(), if all.len() > NAMES_MAX { ", …" } else { "" }),
    }
}

fn result_of_key(key: &KeyCleanup) -> String {
    let rule = || format!("rule {}/{}", key.policy.as_deref().unwrap_or("?"), key.rule.as_deref().unwrap_or("?"));
    let found = key.found.as_deref().unwrap_or_default();
    match (key.result, key.why) {
        (CleanupResult::Kept, Some(KeptBecause::Changed)) => format!("kept: others changed it to {found:?}"),
        (CleanupResult::Kept, Some(KeptBecause::Assigned)) => format!("kept: {} still assigns it", rule()),
        (result, why) => plain(result, why),
    }
}

fn result_of_object(object: &ObjectCleanup) -> String {
    match &object.error {
        Some(error) => format!("failed: {error}"),
        None => plain(object.result, object.why),
    }
}

fn plain(result: CleanupResult, why: Option<KeptBecause>) -> String {
    let result = match result {
        CleanupResult::WouldRemove => "would be removed",
        CleanupResult::Removed => "removed",
        CleanupResult::Kept => "kept",
        CleanupResult::Failed => "failed",
    };
    let why = match why {
        None => return result.to_owned(),
        Some(KeptBecause::Changed) => "others changed it",
        Some(KeptBecause::EarlierNode) => "nodegate owned it on an earlier node of this name",
        Some(KeptBecause::Assigned) => "a rule still assigns it",
        Some(KeptBecause::Unknown) => "it is unknown whether a rule still assigns it",
        Some(KeptBecause::OfProgram) => "a program sets it for each machine, and may need it",
        Some(KeptBecause::Running) => "nodegate is running and removes it when it is no longer needed",
        Some(KeptBecause::SetAgain) => "another webhook, policy or controller set it again",
        Some(KeptBecause::OtherMachine) => {
            "it is of another machine of this name, or --identity differs from that of serve"
        }
        Some(KeptBecause::Unreadable) => "it cannot be read; delete it with kubectl when its node is clean",
        Some(KeptBecause::NodeFailed) => "its node could not be cleaned up",
    };
    format!("{result}: {why}")
}

fn summary(cleanup: &Cleanup, is_empty: bool) -> String {
    if is_empty {
        return "nothing to clean up\n".to_owned();
    }
    let keys = |result| cleanup.nodes.iter().flat_map(|node| &node.keys).filter(|key| key.result == result).count();
    let objects = |result| cleanup.objects.iter().filter(|object| object.result == result).count();
    let failed_nodes = cleanup.nodes.iter().filter(|node| node.error.is_some()).count();
    let both = |result| format!("{} and {}", count(keys(result), "key"), count(objects(result), "object"));
    let kept = both(CleanupResult::Kept);
    if !cleanup.confirmed {
        let would = both(CleanupResult::WouldRemove);
        let hint = if cleanup.namespace.is_some() { "; add --confirm to remove them" } else { "" };
        return format!("\n{would} would be removed, {kept} kept{hint}\n");
    }
    let failed = both(CleanupResult::Failed);
    let again = keys(CleanupResult::Failed) + objects(CleanupResult::Failed) + failed_nodes > 0;
    format!(
        "\n{} removed, {kept} kept, {failed} failed{}\n",
        both(CleanupResult::Removed),
        if again { "; run the command again for the rest" } else { "" }
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
