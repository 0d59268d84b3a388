//! The rows of the feed that the history of a node makes.

use jiff::Timestamp;

use super::feed::{Row, What};
use crate::cli::look::history::{self, Entry};
use nodegate_policy::PendingTaints;
use nodegate_policy::api::state::{Change, How};

/// A change with what the history says of it besides.
struct Noted<'a> {
    change: &'a Change,
    what: What,
    /// Whose change of the same key it takes back.
    against: Option<String>,
}

/// The rows of those changes of a node that are news, the oldest first. Changes of one kind, by one writer, at one time are one
/// row.
///
/// Left out is what the node itself shows sooner: that it was deleted, and that nodegate added or removed its pending taint.
/// That somebody else removed it is shown: the node does not say who.
pub(super) fn of_history(
    node: &str,
    history: &[Change],
    is_news: impl Fn(&Change) -> bool,
    (pending, now): (&PendingTaints, Timestamp),
) -> Vec<Row> {
    let is_pending = |change: &Change| pending.all().iter().any(|id| id.to_string() == change.key);
    let is_own = |change: &Change| matches!(change.how(), How::Admission | How::Controller);
    let is_shown = |change: &Change| match change.field.as_str() {
        "taint" => !is_pending(change) || !is_own(change),
        _ => change.how() != How::Deleted,
    };
    let all = history.iter().enumerate().filter(|(_, change)| is_news(change) && is_shown(change));
    let all: Vec<Noted<'_>> = all.map(|(at, change)| noted(node, change, &history[..at])).collect();
    let rows = all.chunk_by(are_one).filter_map(|together| {
        let first = together.first()?;
        let time = first.change.time.parse().unwrap_or(now);
        Some(Row::new(time, node, first.what, text(node, together)))
    });
    rows.collect()
}

fn are_one(one: &Noted<'_>, other: &Noted<'_>) -> bool {
    let key = |noted: &Noted<'_>| {
        let Change { by, by_requester, time, .. } = noted.change;
        (noted.what, by.clone(), *by_requester, time.clone(), noted.against.clone())
    };
    key(one) == key(other)
}

fn noted<'a>(node: &str, change: &'a Change, before: &[Change]) -> Noted<'a> {
    let last = before.iter().rev().find(|other| (&other.field, &other.key) == (&change.field, &change.key));
    let others = last.filter(|last| matches!(last.how(), How::Kubelet | How::User | How::Unknown));
    let what = match (change.how(), &change.new) {
        (How::Admission, _) => What::Admitted,
        (How::Restored | How::Returned, _) => What::Restored,
        (How::Controller, _) if others.is_some() => What::Corrected,
        (How::Controller, None) => What::Removed,
        (How::Controller, Some(_)) => What::Set,
        (How::Rejected, _) => What::Rejected,
        (How::Kubelet | How::User | How::Unknown | How::Adopted, _) => What::Changed,
        (How::Deleted, _) => What::Deleted,
    };
    let against = others.filter(|_| what == What::Corrected).map(|other| by(&Entry::new(node, other)));
    Noted { change, what, against }
}

/// What was changed, and by whom if nodegate did not do it, or did it against somebody.
fn text(node: &str, together: &[Noted<'_>]) -> String {
    let entries: Vec<Entry> = together.iter().map(|noted| Entry::new(node, noted.change)).collect();
    let parts: Vec<String> = entries.iter().map(part).collect();
    let by = match (together.first(), entries.first()) {
        (Some(Noted { what: What::Corrected, against: Some(whom), .. }), _) => format!(", set by {whom}"),
        (Some(Noted { what: What::Changed, .. }), Some(entry)) => format!(", by {}", by(entry)),
        _ => String::new(),
    };
    format!("{}{by}", parts.join(", "))
}

fn by(entry: &Entry) -> String {
    match history::who(entry).as_str() {
        "-" => "an unknown writer".to_owned(),
        who => who.to_owned(),
    }
}

/// One change, with the rule that it follows from.
fn part(entry: &Entry) -> String {
    let key = history::keyed(entry);
    let rule = entry.rule.as_ref().map(|rule| format!(" [{rule}]")).unwrap_or_default();
    match (entry.how, &entry.was, &entry.value) {
        (How::Returned, ..) => "created again under the same name".to_owned(),
        (How::Rejected, _, Some(value)) => format!("kubelet claimed {key}={value:?}{rule}"),
        (How::Rejected, _, None) => format!("kubelet claimed {key}{rule}"),
        (_, None, Some(value)) => format!("{}{rule}", assignment(entry, value)),
        (_, Some(_), Some(_)) => format!("{key} {}{rule}", history::changed(entry)),
        (_, Some(was), None) => format!("-{key} (was {was:?}){rule}"),
        (_, None, None) => format!("{key}{rule}"),
    }
}

/// `key=value`, or `key=value:Effect` for a taint.
fn assignment(entry: &Entry, value: &str) -> String {
    let key = entry.key.as_deref().unwrap_or_default();
    let value = if value.is_empty() { String::new() } else { format!("={value}") };
    let effect = entry.effect.as_ref().map(|effect| format!(":{effect}")).unwrap_or_default();
    format!("{key}{value}{effect}")
}
