//! Explanations as text for people.

use crate::cli::shared::output;
use nodegate_base::text::{counted, cut_to_characters, on_a_line, or_quotes, wrapped};
use nodegate_policy::explain::{
    ConditionResult, Entry, Explanation, FieldName, Lost, LostTo, Missing, MissingBecause, Mode, NodeIdentity,
    PoolProof, ProofSource, RemovalCause, RemovedWhen, RuleResult, Source, SourceKind, WhyNot,
};

/// Maximum length of a value in a table, in characters.
const VALUE_MAX: usize = 60;
/// The width of a usual terminal, in characters.
const WIDTH: u16 = 80;
/// Where the details of a line begin.
const DETAIL: usize = 11;
/// Columns of the table that are not wrapped.
const FIELD: usize = 0;
const OWNED: usize = 4;
const SINCE: usize = 5;

/// A node, as tables: first the keys that a rule affects, then `all` that it has.
pub(super) fn of_node(explanation: &Explanation, all: bool) -> String {
    let Explanation { node, entries, missing, identity, saved_state_unknown: _, writers_unknown } = explanation;
    let mut table = output::table(&["field", "key", "value", "source", "owned", "since"]);
    table.fit(WIDTH, &[FIELD, OWNED, SINCE]);
    let (ours, others): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.is_ours());
    let shown = if all { others.as_slice() } else { &[] };
    for entry in ours.iter().chain(shown) {
        let Entry { field, key, value, effect, source: from, since, .. } = entry;
        let mut value = match effect {
            Some(effect) => with_effect(value, effect),
            None => or_quotes(value).to_owned(),
        };
        // The table would be as wide as the longest annotation.
        cut_to_characters(&mut value, VALUE_MAX);
        let since = since.as_deref().map_or("-".to_owned(), brief_time);
        table.add_row([field.as_str(), key, &value, &source(from), explanation.owned(entry), &since]);
    }
    let mut text = if ours.is_empty() && shown.is_empty() { String::new() } else { format!("{}\n", table.trim_fmt()) };
    if !all && !others.is_empty() {
        let count = counted(others.len(), "key that no rule affects", "keys that no rule affects");
        text.push_str(&format!("({count}: --all shows them)\n"));
    }
    if let Some(why) = writers_unknown {
        let why = format!("owned: ? because {}", on_a_line(why));
        text.push_str(&format!("{}\n", wrapped(&why, WIDTH.into(), 2)));
    }
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let line = |line: &String| wrapped(&format!("  {}", on_a_line(line)), WIDTH.into(), 4);
            let lines: Vec<String> = lines.iter().map(|text| format!("{}\n", line(text))).collect();
            text.push_str(&format!("\n{title}:\n{}", lines.concat()));
        }
    };
    let of_entries = |line: &dyn Fn(&Entry) -> Vec<String>| entries.iter().flat_map(line).collect::<Vec<_>>();
    section(
        "Other values that rules assign",
        of_entries(&|entry| {
            entry.lost.iter().map(|given| format!("{} {}: {}", entry.field.as_str(), entry.key, lost(given))).collect()
        }),
    );
    section(
        "To be removed",
        of_entries(&|entry| {
            let soon = entry.removed_when.as_ref().filter(|removed| removed.when != RemovalCause::RuleStopsMatching);
            soon.map(|removed| format!("{} {}: {}", entry.field.as_str(), entry.key, removed_when(removed)))
                .into_iter()
                .collect()
        }),
    );
    section("Missing", missing.iter().map(lacking).collect());
    section("Pools", identity.as_ref().map(pools).unwrap_or_default());
    if entries.is_empty() && missing.is_empty() {
        text.push_str(&format!(
            "node {} has no labels, annotations or taints, and no rule assigns any\n",
            on_a_line(node)
        ));
    }
    text
}

/// The pools of the node, and what proves them.
fn pools(identity: &NodeIdentity) -> Vec<String> {
    let NodeIdentity { pools, unknown, may_have_others, proof, instance, contradictions } = identity;
    let evidence = |proof: &PoolProof| {
        let evidence = proof.evidence.iter().map(|(name, values)| format!("{name} {}", values.join(", ")));
        let proven = match proof.source {
            ProofSource::Administrator => proof.source.in_words().to_owned(),
            source => format!("proven by its {}", source.as_str()),
        };
        format!("{proven}: {}", evidence.collect::<Vec<_>>().join("; "))
    };
    let proven = proof.as_ref().map(|proof| format!("{}, {}", pools.join(", "), evidence(proof)));
    let unknown = (!unknown.is_empty()).then(|| {
        format!(
            "not known: {}, because too little is recorded about the kubelet that created the node",
            unknown.join(", ")
        )
    });
    let others = may_have_others.then(|| "not known: whether it belongs to pools of other names".to_owned());
    let mut lines: Vec<String> = proven.into_iter().chain(unknown).chain(others).collect();
    if lines.is_empty() {
        lines.push("the node belongs to none".to_owned());
    }
    lines.extend(instance.iter().map(|instance| format!("its kubelet was authenticated as instance {instance}")));
    lines.extend(contradictions.iter().map(|one| format!("contradiction: {} ({})", one.in_words(), one.asserted)));
    lines
}

/// One key, as paragraphs.
pub(super) fn of_key(explanation: &Explanation, key: &str) -> String {
    let Explanation { node, entries, missing, identity: _, saved_state_unknown: _, writers_unknown } = explanation;
    let mut text = String::new();
    let mut line = |line: String| text.push_str(&format!("{}\n", wrapped(&on_a_line(&line), WIDTH.into(), DETAIL)));
    for entry in entries {
        line(named(entry.field, &entry.key, Some(&entry.value), entry.effect.as_deref()));
        line(format!("  source:  {}", source(&entry.source)));
        if let Some(since) = &entry.since {
            line(format!("  since:   {}", brief_time(since)));
        }
        let owned = match explanation.owned(entry) {
            "no" => "no, so nodegate does not remove it".to_owned(),
            "?" => format!("? because {}", writers_unknown.as_deref().unwrap_or_default()),
            word => word.to_owned(),
        };
        line(format!("  owned:   {owned}"));
        if let Some(removed) = &entry.removed_when {
            line(format!("  removed: {}", removed_when(removed)));
        }
        entry.lost.iter().for_each(|given| line(format!("  other:   {}", lost(given))));
    }
    missing.iter().for_each(|missing| line(format!("missing: {}", lacking(missing))));
    if entries.is_empty() && missing.is_empty() {
        line(format!("node {node} has no label, annotation or taint {key}, and no rule assigns one"));
    }
    text
}

/// The rules that could assign a key.
pub(super) fn of_rules(answer: &WhyNot) -> String {
    let WhyNot { node, key, rules } = answer;
    let mut text = String::new();
    let mut line = |line: String| text.push_str(&format!("{}\n", wrapped(&on_a_line(&line), WIDTH.into(), DETAIL)));
    if rules.is_empty() {
        line(format!("no rule assigns a label, annotation or taint {key} to any node"));
    }
    for RuleResult { policy, rule, priority, mode, result, conditions } in rules {
        let when = match mode {
            Mode::Enforced | Mode::Inventory => "",
            Mode::Saved => ", only when a node joins",
            Mode::Default => ", only when a node joins without the key",
        };
        line(format!("rule {policy}/{rule} (priority {priority}{when}): {} on node {node}", result.as_str()));
        for ConditionResult { condition, any_of, result, fact } in conditions {
            let alternative = any_of.map(|at| format!("anyOf[{at}] ")).unwrap_or_default();
            line(format!("  {:<8} {alternative}{condition}   ({fact})", result.as_str()));
        }
        if conditions.is_empty() {
            line("  true     it matches every node".to_owned());
        }
    }
    text
}

/// The entry as `plan` writes it: `label key=value`, `taint key=value:Effect`.
fn named(field: FieldName, key: &str, value: Option<&str>, effect: Option<&str>) -> String {
    let value = match (value, field) {
        (Some(""), FieldName::Taint) | (None, _) => String::new(),
        (Some(value), _) => format!("={}", or_quotes(value)),
    };
    let effect = effect.map(|effect| format!(":{effect}")).unwrap_or_default();
    format!("{} {key}{value}{effect}", field.as_str())
}

fn with_effect(value: &str, effect: &str) -> String {
    if value.is_empty() { format!(":{effect}") } else { format!("{value}:{effect}") }
}

/// Without fractions of a second.
fn brief_time(time: &str) -> String {
    format!("{}Z", time.split('.').next().unwrap_or_default().trim_end_matches('Z'))
}

fn source(source: &Source) -> String {
    let Source { kind, policy, rule, priority, mode, manager, last_write: _ } = source;
    let rule = policy.as_ref().zip(rule.as_ref()).map(|(policy, rule)| format!("{policy}/{rule}"));
    match (kind, rule) {
        (SourceKind::Rule, Some(rule)) => {
            let priority = priority.filter(|priority| *priority != 0).map(|priority| format!(" (priority {priority})"));
            let default = if *mode == Some(Mode::Default) { " (default)" } else { "" };
            format!("rule {rule}{}{default}", priority.unwrap_or_default())
        }
        (SourceKind::Rule, None) => "a rule that does not assign it anymore".to_owned(),
        (SourceKind::Saved, Some(rule)) => format!("saved state ({rule})"),
        (SourceKind::Saved, None) => "saved state".to_owned(),
        (SourceKind::Inventory, Some(rule)) => format!("inventory ({rule})"),
        (SourceKind::Inventory, None) => "inventory".to_owned(),
        (SourceKind::Migration, Some(rule)) => format!("migration ({rule})"),
        (SourceKind::Migration, None) => "migration".to_owned(),
        (SourceKind::Kubelet, _) => match manager {
            Some(manager) if manager != "kubelet" => format!("kubelet, as {manager}"),
            _ => "kubelet".to_owned(),
        },
        (SourceKind::Controller, _) => "nodegate".to_owned(),
        (SourceKind::User, _) => manager.clone().unwrap_or_default(),
        (SourceKind::Unknown, _) => match manager {
            Some(manager) => format!("unknown ({manager} wrote the list of taints last)"),
            None => "unknown (no field manager claims it)".to_owned(),
        },
    }
}

fn lost(lost: &Lost) -> String {
    let Lost { policy, rule, priority, value, why } = lost;
    let why = match why {
        LostTo::Priority => "another rule has a higher priority",
        LostTo::Name => "another rule has the same priority, and its name sorts first",
        LostTo::Inventory => "rules take precedence over inventories",
        LostTo::Saved => "rules and inventories take precedence over saved state",
        LostTo::Default => "a default gives way to every other value",
        LostTo::Present => "the node had this value already",
        LostTo::NotWritten => "not written yet",
    };
    format!("rule {policy}/{rule} (priority {priority}) assigns {value:?}: {why}")
}

fn removed_when(removed: &RemovedWhen) -> String {
    let RemovedWhen { when, after_seconds } = removed;
    let after = after_seconds.map(|seconds| format!("{seconds} s after ")).unwrap_or_default();
    match when {
        RemovalCause::RuleStopsMatching => format!("{after}the rule stops matching, unless another rule assigns the key"),
        RemovalCause::GracePeriodEnds => format!("{after}the controller noticed that no rule assigns it anymore"),
        RemovalCause::Confirmed => {
            "when the controller may remove keys again, or with `nodegate apply --confirm`: no rule assigns it anymore, but the controller holds removals back".to_owned()
        }
        RemovalCause::ResultIsKnown => "not before it is known whether a rule assigns it".to_owned(),
        RemovalCause::NothingIsDeferred => "when nothing is deferred anymore and no gate holds the node (it is the pending taint)".to_owned(),
        RemovalCause::Stripped => "with the controller's next write, because a kubelet may not set it".to_owned(),
    }
}

fn lacking(missing: &Missing) -> String {
    let Missing { field, key, value, effect, has, policy, rule, why, detail } = missing;
    let named = named(*field, key, value.as_deref(), effect.as_deref());
    let has = has.as_ref().map(|has| format!(", has {has:?}")).unwrap_or_default();
    let why = match why {
        MissingBecause::False => "the rule does not match",
        MissingBecause::Unknown => "unknown",
        MissingBecause::Deferred => "deferred",
        MissingBecause::Pending => "pending",
        MissingBecause::Gate => "awaited",
        MissingBecause::Conflict => "conflict",
        MissingBecause::Fight => "left alone",
        MissingBecause::Joined => "the node has joined before",
        MissingBecause::Withheld => "withheld",
        MissingBecause::Invalid => "invalid",
    };
    format!("{named}{has} (rule {policy}/{rule}): {why}: {detail}")
}
