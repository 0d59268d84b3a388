//! What news makes of what is known.

use super::super::feed::ROWS_MAX;
use super::super::state::Leader;
use super::*;

#[test]
fn a_node_that_joins_waits_and_is_complete_and_its_time_is_measured_here() {
    let mut state = listed([node("old", false)]);
    state.apply(node("new", true), at(10));
    assert_eq!(state.waiting().iter().map(|node| &*node.name).collect::<Vec<_>>(), ["new"]);
    state.apply(node("new", true), at(10));
    state.apply(node("new", false), at(10) + SignedDuration::from_millis(1234));
    state.apply(News::NodeGone(Arc::from("new")), at(12));
    state.apply(node("at-once", false), at(13));
    assert_eq!(
        happened(&state),
        [
            "at-once joined waits for nothing",
            "new deleted",
            "new complete pending taint removed 1.2 s after it joined",
            &format!("new joined waits with {PENDING}"),
        ]
    );
    assert_eq!(state.counts(), (2, 2));
}

#[test]
fn a_node_that_was_there_before_is_complete_by_its_age_and_one_created_again_joins() {
    let mut state = listed([node("old", true)]);
    state.apply(node("old", false), at(300));
    let again = match node("old", false) {
        News::Node(node) => News::Node(Node { uid: "another".into(), ..node }),
        news => news,
    };
    state.apply(again, at(310));
    let expected = ["old joined waits for nothing", "old complete pending taint removed 5 min after it was created"];
    assert_eq!(happened(&state), expected);
}

#[test]
fn a_listing_that_is_repeated_replaces_what_was_known() {
    let mut state = listed([node("stays", false), node("goes", false)]);
    state.apply(News::Begins(Source::Nodes), at(5));
    state.apply(node("stays", false), at(5));
    state.apply(node("comes", false), at(5));
    assert_eq!(state.counts().0, 3, "nothing is forgotten before the listing is complete");
    state.apply(failed(Source::Nodes, "broken"), at(5));
    state.apply(News::Begins(Source::Nodes), at(6));
    state.apply(node("stays", false), at(6));
    state.apply(node("comes", false), at(6));
    state.apply(News::Listed(Source::Nodes), at(6));
    assert_eq!(happened(&state), ["goes deleted", "comes joined waits for nothing"]);
    assert_eq!(state.counts().0, 2);
}

#[test]
fn a_correction_names_whose_change_it_takes_back_and_a_policys_new_value_is_none() {
    let mut state = listed([]);
    let by_rule = |how: &str, key: &str, old: Value, new: Value| json!({"how": how, "key": key, "old": old, "new": new, "rule": "fleet/tier", "by": "nodegate"});
    let changes = json!([
        {"how": "admission", "key": "tier", "new": "gold", "rule": "fleet/tier"},
        {"how": "admission", "key": "dedicated:NoSchedule", "new": "gpu", "field": "taint", "rule": "fleet/tier"},
        {"how": "rejected", "key": "role", "new": "admin", "rule": "fleet/protect"},
        {"how": "user", "key": "tier", "old": "gold", "new": "forged", "by": "alice", "byRequester": true},
        by_rule("controller", "tier", json!("forged"), json!("gold")),
        by_rule("controller", "tier", json!("gold"), json!("silver")),
        {"how": "kubelet", "key": "x", "new": "1", "by": "kubelet"},
        by_rule("controller", "x", json!("1"), Value::Null),
        by_rule("controller", "y", json!("1"), Value::Null),
        {"how": "restored", "key": "team", "new": "ml"},
        {"how": "returned", "key": "", "field": "node"},
    ]);
    state.apply(record(Sight::Changed, "n", changes), at(1));
    let mut rows = happened(&state);
    rows.reverse();
    assert_eq!(
        rows,
        [
            "n admitted tier=gold [fleet/tier], dedicated=gpu:NoSchedule [fleet/tier]",
            "n rejected kubelet claimed role=\"admin\" [fleet/protect]",
            "n changed tier \"gold\" → \"forged\", by alice",
            "n corrected tier \"forged\" → \"gold\" [fleet/tier], set by alice",
            "n set tier \"gold\" → \"silver\" [fleet/tier]",
            "n changed x=1, by (kubelet)",
            "n corrected -x (was \"1\") [fleet/tier], set by (kubelet)",
            "n removed -y (was \"1\") [fleet/tier]",
            "n restored team=ml, created again under the same name",
        ]
    );
}

#[test]
fn what_the_node_shows_sooner_is_not_told_twice() {
    let mut state = listed([]);
    let changes = json!([
        {"how": "admission", "key": format!("{PENDING}:NoSchedule"), "field": "taint", "new": ""},
        {"how": "controller", "key": format!("{PENDING}:NoSchedule"), "field": "taint", "old": ""},
        {"how": "deleted", "key": "", "field": "node"},
    ]);
    state.apply(record(Sight::Changed, "n", changes), at(1));
    for reason in ["Admitted", "Completed", "Restored", "Released", "ClaimRejected"] {
        state.apply(event(Sight::Changed, 1, reason, "it"), at(1));
    }
    assert_eq!(happened(&state), [""; 0]);
    // Where records cannot be read, events are all that there is.
    state.apply(News::Failed(Source::Records, Failure::Denied), at(1));
    state.apply(event(Sight::Changed, 2, "ClaimRejected", "it"), at(2));
    assert_eq!(happened(&state), ["n1 warning ClaimRejected: it"]);
}

#[test]
fn who_else_removed_the_pending_taint_is_told() {
    let mut state = listed([node("n", true)]);
    state.apply(node("n", false), at(3));
    let removed = json!({"how": "user", "key": format!("{PENDING}:NoSchedule"), "field": "taint", "old": "", "by": "alice", "byRequester": true});
    state.apply(record(Sight::Changed, "n", json!([removed])), at(5));
    let expected = [
        format!("n changed -{PENDING}:NoSchedule (was \"\"), by alice"),
        "n complete pending taint removed 3 s after it was created".to_owned(),
    ];
    assert_eq!(happened(&state), expected);
}

#[test]
fn what_happened_just_before_the_start_is_shown_in_its_order_and_what_is_older_is_not() {
    let mut state = State::new(PendingTaints::default(), at(0));
    let timed = |seconds: i64, key: &str| json!({"how": "user", "key": key, "new": "1", "by": "a", "time": at(seconds).to_string()});
    state.apply(News::Begins(Source::Events), at(0));
    state.apply(event(Sight::Listed, -20, "LeftAlone", "it"), at(0));
    state.apply(event(Sight::Listed, -3000, "LeftAlone", "long ago"), at(0));
    state.apply(News::Listed(Source::Events), at(0));
    state.apply(News::Begins(Source::Records), at(0));
    state.apply(record(Sight::Listed, "n", json!([timed(-3000, "old"), timed(-10, "b")])), at(0));
    state.apply(record(Sight::Listed, "m", json!([timed(-30, "a")])), at(0));
    state.apply(News::Listed(Source::Records), at(0));
    let expected = ["n changed b=1, by (a)", "n1 warning LeftAlone: it", "m changed a=1, by (a)"];
    assert_eq!(happened(&state), expected);
    // A second listing tells nothing twice, and what came in between.
    for source in [Source::Events, Source::Records] {
        state.apply(News::Begins(source), at(60));
    }
    state.apply(record(Sight::Listed, "n", json!([timed(-3000, "old"), timed(-10, "b"), timed(50, "c")])), at(60));
    state.apply(event(Sight::Listed, -20, "LeftAlone", "it"), at(60));
    state.apply(event(Sight::Listed, 55, "LeftAlone", "again"), at(60));
    assert_eq!(happened(&state)[..2], ["n1 warning LeftAlone: again", "n changed c=1, by (a)"]);
    assert_eq!(happened(&state).len(), 5);
}

#[test]
fn an_event_of_the_future_hides_no_other_one_and_is_told_once() {
    let mut state = State::new(PendingTaints::default(), at(0));
    let century = 100 * 365 * 86_400;
    for seconds in [0, 10, 20] {
        state.apply(News::Begins(Source::Events), at(seconds));
        state.apply(event(Sight::Listed, century, "LeftAlone", "forged"), at(seconds));
        state.apply(event(Sight::Listed, seconds - 1, "LeftAlone", &format!("at {seconds}")), at(seconds));
        state.apply(News::Listed(Source::Events), at(seconds));
    }
    let mut rows = happened(&state);
    rows.sort_unstable();
    let expected = ["at 0", "at 10", "at 20", "forged"].map(|text| format!("n1 warning LeftAlone: {text}"));
    assert_eq!(rows, expected);
    assert!(View::default().feed(&state).iter().all(|row| row.time <= at(20)));
    // It happens again, or is created again after the API server has dropped it.
    state.apply(event(Sight::Changed, 30, "LeftAlone", "at 20"), at(30));
    state.apply(event(Sight::Changed, 30, "LeftAlone", "at 20"), at(31));
    state.apply(News::EventGone("LeftAlone at 10".to_owned()), at(31));
    state.apply(event(Sight::Changed, 9, "LeftAlone", "at 10"), at(32));
    assert_eq!(happened(&state)[..2], [&*expected[1], &*expected[2]]);
    assert_eq!(happened(&state).len(), 6);
}

#[test]
fn what_the_leader_publishes_is_forgotten_with_its_config_map() {
    let withheld = || Withheld { left_alone: 1, held_back: Some("too many".to_owned()) };
    let is_known = |state: &State| state.published != Published::default();
    // It is deleted while it is watched, or between two listings.
    let mut state = listed([]);
    state.apply(published(&["fleet"], withheld()), at(1));
    assert!(is_known(&state));
    state.apply(News::RecordGone("node-labels-n".to_owned()), at(2));
    assert!(is_known(&state), "another ConfigMap");
    state.apply(News::RecordGone("nodegate-in-force".to_owned()), at(3));
    assert!(!is_known(&state));
    for (is_named, source) in [(true, Source::Records), (true, Source::Nodes), (false, Source::Records)] {
        state.apply(published(&["fleet"], withheld()), at(4));
        state.apply(News::Begins(source), at(5));
        if is_named && source == Source::Records {
            state.apply(published(&["fleet"], withheld()), at(5));
        }
        state.apply(News::Listed(source), at(6));
        assert_eq!(is_known(&state), is_named, "{source:?}");
    }
}

#[test]
fn rows_of_the_first_listing_push_out_only_older_ones() {
    let mut state = State::new(PendingTaints::default(), at(0));
    let early = |number: usize| {
        let time = at(-500 + i64::try_from(number % 400).unwrap()).to_string();
        let changes = json!([{"how": "user", "key": "a", "new": "b", "by": "x", "time": time}]);
        record(Sight::Listed, &format!("n{number}"), changes)
    };
    state.apply(News::Listed(Source::Nodes), at(0));
    for name in ["live-1", "live-2"] {
        state.apply(node(name, false), at(1));
    }
    for number in 0..2 * ROWS_MAX - 1 {
        state.apply(early(number), at(2));
    }
    state.apply(News::Listed(Source::Records), at(2));
    let rows = happened(&state);
    let live = ["live-2 joined waits for nothing", "live-1 joined waits for nothing"];
    assert_eq!((&rows[..2], rows.len()), (&live.map(str::to_owned)[..], ROWS_MAX));
    assert_eq!(state.feed.dropped(), ROWS_MAX as u64 + 1);
    assert!(View::default().feed(&state).is_sorted_by(|newer, older| newer.time >= older.time));
}

#[test]
fn a_source_that_may_be_watched_again_is_not_told_as_one_that_may_not() {
    let mut state = listed([]);
    state.apply(News::NotWatched(Source::Nodes), at(1));
    assert!(state.not_watched.contains(&Source::Nodes));
    state.apply(News::Watched(Source::Nodes), at(2));
    assert!(state.not_watched.is_empty());
}

#[test]
fn a_burst_keeps_a_limited_number_of_rows_and_counts_the_others() {
    let mut state = listed([]);
    for number in 0..10_000 {
        state.apply(event(Sight::Changed, number, "NotReconciled", &"x".repeat(5000)), at(number));
    }
    assert_eq!(happened(&state).len(), ROWS_MAX);
    assert_eq!(state.feed.dropped(), 10_000 - ROWS_MAX as u64);
    assert!(happened(&state).iter().all(|row| row.len() < 600), "a text has a limit");
    let mut starting = State::new(PendingTaints::default(), at(0));
    for number in 0..10_000 {
        let changes =
            json!([{"how": "user", "key": "a", "new": "b", "by": "x", "time": at(number % 500 - 500).to_string()}]);
        starting.apply(record(Sight::Listed, &format!("n{number}"), changes), at(0));
    }
    starting.apply(News::Listed(Source::Records), at(0));
    assert_eq!(happened(&starting).len(), ROWS_MAX);
}

#[test]
fn a_leader_that_does_not_renew_leads_no_more_whatever_its_clock_says() {
    let mut state = listed([]);
    state.apply(lease("pod-1", 5000), at(0));
    state.apply(lease("pod-1", 5000), at(14));
    let silence = |state: &State| state.leader.as_ref().and_then(Leader::silence);
    assert_eq!(silence(&state), None);
    state.apply(lease("pod-1", 5000), at(16));
    assert_eq!(silence(&state), Some(SignedDuration::from_secs(16)), "a renewal that is told again is none");
    state.apply(lease("pod-1", 5001), at(17));
    assert_eq!(silence(&state), None);
    // Read so seldom, or after the clock was set: what it was in between is unknown.
    state.apply(lease("pod-1", 5002), at(90));
    assert_eq!(silence(&state), None, "it was renewed in between");
    state.apply(lease("pod-1", 5002), at(-90));
    assert_eq!(silence(&state), None, "the clock was set back");
    state.apply(News::Lease(None), at(18));
    assert!(state.leader.is_none());
}

#[test]
fn a_failure_is_shown_until_the_source_works_again() {
    let mut state = listed([]);
    for (source, seconds) in [(Source::Nodes, 10), (Source::Records, 12), (Source::Nodes, 20)] {
        state.apply(failed(source, "connection refused"), at(seconds));
    }
    assert_eq!(state.failing(), Some((vec![Source::Nodes, Source::Records], at(10), "connection refused")));
    state.apply(node("n", false), at(30));
    state.apply(record(Sight::Changed, "n", json!([])), at(30));
    assert_eq!(state.failing(), None);
}
