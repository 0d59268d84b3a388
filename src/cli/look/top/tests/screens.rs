//! What is drawn, on screens of several sizes.

use ratatui::style::Color;

use super::*;

/// A cluster in which something happens.
fn scene() -> State {
    let mut state = listed([node("gpu-1", false), node("gpu-2", false), node("gpu-3", false)]);
    state.apply(lease("nodegate-7d9f-abcde", 59), at(59));
    state.apply(News::Pods(2, 2), at(59));
    state.apply(published(&["fleet", "preset:baseline"], Withheld::default()), at(59));
    let drift = vec![("gpu-2".to_owned(), "~ label hardware.tier=gold, was forged (rule fleet/gpu)".to_owned())];
    let waiting = [("gpu-8".to_owned(), "waits for labels: fabric/rack at fleet/gate:topology".to_owned())].into();
    state.apply(News::Survey(Survey { drifting: 1, unreadable: 0, drift, waiting }), at(50));
    state.apply(node("gpu-7", true), at(40));
    state.apply(node("gpu-8", true), at(41));
    let changes = json!([
        {"how": "admission", "key": "hardware.tier", "new": "gold", "rule": "fleet/gpu"},
        {"how": "rejected", "key": "team.owner", "new": "admin", "rule": "fleet/protect"},
    ]);
    state.apply(record(Sight::Changed, "gpu-7", changes), at(42));
    state.apply(node("gpu-7", false), at(42));
    state.apply(event(Sight::Changed, 45, "LeftAlone", "label tier is not repaired anymore"), at(45));
    state
}

#[test]
fn a_screen_of_80_by_24_has_everything() {
    let lines = screen((80, 24), &scene(), &View::default(), at(60));
    let expected = [
        "nodegate top  kind-dev, namespace nodegate                             12:01:00Z",
        "nodes 5: 5 ready, 1 waiting, 1 drifting",
        "leader nodegate-7d9f-abcde for 2 h, 2 of 2 replicas ready",
        "policies in force: fleet, preset:baseline",
        "  WAITING with the pending taint: 1 ────────────────────────────────────────────",
        "  gpu-8   60 s    waits for labels: fabric/rack at fleet/gate:topology",
        "  DRIFT from the policies: 1, 10 s ago ─────────────────────────────────────────",
        "  gpu-2   ~ label hardware.tier=gold, was forged (rule fleet/gpu)",
        "▸ EVENTS, the newest first ─────────────────────────────────────────────────────",
        "  12:00:45 n1     warning   LeftAlone: label tier is not repaired anymore",
        "  12:00:42 gpu-7  complete  pending taint removed 2.0 s after it joined",
        "  12:00:00 gpu-7  rejected  kubelet claimed team.owner=\"admin\" [fleet/protect]",
        "  12:00:00 gpu-7  admitted  hardware.tier=gold [fleet/gpu]",
        "  12:00:41 gpu-8  joined    waits with startup-taint.cluster-autoscaler.kuberne…",
        "  12:00:40 gpu-7  joined    waits with startup-taint.cluster-autoscaler.kuberne…",
    ];
    assert_eq!(lines[..expected.len()], expected, "{}", lines.join("\n"));
    assert!(lines[expected.len()..23].iter().all(String::is_empty));
    assert_eq!(lines[23], "q quit  Tab list  ↑↓ scroll  p pause  / filter  ? help");
}

#[test]
fn a_wide_screen_has_more_columns_and_rows() {
    let lines = screen((120, 40), &scene(), &View::default(), at(60));
    assert_eq!(lines.len(), 40);
    assert!(lines[0].ends_with("12:01:00Z") && lines[0].chars().count() == 120, "{}", lines[0]);
    let joined = format!("  12:00:41 gpu-8  joined    waits with {PENDING}");
    assert!(lines.contains(&joined), "{}", lines.join("\n"));
}

#[test]
fn a_tiny_screen_has_one_list_and_tab_shows_the_others() {
    let state = scene();
    let mut view = View::default();
    let lines = screen((40, 10), &state, &view, at(60));
    assert_eq!(
        lines,
        [
            "nodegate top  kind-dev, name…  12:01:00Z",
            "nodes 5: 5 ready, 1 waiting, 1 drifting",
            "leader nodegate-…, 2 of 2 replicas ready",
            "▸ EVENTS, the newest first (1 to 5 of 6)",
            "  12:00:45 n1     warning   LeftAlone: …",
            "  12:00:42 gpu-7  complete  pending tai…",
            "  12:00:00 gpu-7  rejected  kubelet cla…",
            "  12:00:00 gpu-7  admitted  hardware.ti…",
            "  12:00:41 gpu-8  joined    waits with …",
            "q quit  Tab list  ↑↓ scroll  p pause  /…",
        ]
    );
    key(&mut view, &state, KeyCode::Tab);
    let lines = screen((40, 10), &state, &view, at(60));
    assert_eq!(lines[3..5], ["▸ WAITING with the pending taint: 1 ────", "  gpu-8   60 s    waits for labels: fab…"]);
}

#[test]
fn no_size_of_the_screen_is_a_failure() {
    let state = scene();
    for size in [(1, 1), (2, 40), (200, 1), (7, 3), (20, 5), (300, 100)] {
        for (helps, typed) in [(false, None), (true, Some("x".to_owned()))] {
            let view = View { helps, typed, ..View::default() };
            assert_eq!(screen(size, &state, &view, at(60)).len(), usize::from(size.1));
        }
    }
}

#[test]
fn what_somebody_wrote_into_a_node_does_not_reach_the_terminal() {
    let hostile = "evil\u{1b}[2J\u{1b}]0;title\u{7}\r\u{9b}31m\u{7f}\u{202e}txt\u{200b}\n";
    let mut state = listed([node(hostile, true)]);
    state.apply(
        record(Sight::Changed, hostile, json!([{"how": "user", "key": hostile, "new": hostile, "by": hostile}])),
        at(1),
    );
    state.apply(event(Sight::Changed, 1, hostile, hostile), at(1));
    state.apply(lease(hostile, 1), at(1));
    state.apply(published(&[hostile], Withheld { left_alone: 2, held_back: Some(hostile.to_owned()) }), at(1));
    state.apply(failed(Source::Nodes, hostile), at(1));
    let drift = vec![(hostile.to_owned(), hostile.to_owned())];
    state.apply(
        News::Survey(Survey {
            drifting: 1,
            unreadable: 1,
            drift,
            waiting: [(hostile.to_owned(), hostile.to_owned())].into(),
        }),
        at(1),
    );
    let view = View { filter: "evil".to_owned(), typed: Some(hostile.to_owned()), ..View::default() };
    let text = screen((200, 30), &state, &view, at(2)).join("\n");
    let is_unsafe = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{200b}' | '\u{202e}');
    assert!(!text.contains(is_unsafe), "{text:?}");
    assert!(text.contains("evil\\u001b[2J"), "{text}");
}

#[test]
fn what_is_not_known_is_said() {
    let mut state = State::new(PendingTaints::default(), at(0));
    let lines = screen((80, 24), &state, &View::default(), at(0));
    assert_eq!(lines[1..4], ["nodes: not known yet", "leader: unknown", "policies in force: unknown"]);
    for source in [Source::Lease, Source::Events, Source::Survey] {
        state.apply(News::Failed(source, Failure::Denied), at(0));
    }
    state.apply(News::NotWatched(Source::Nodes), at(0));
    state.apply(failed(Source::Pods, "connection refused"), at(0));
    let withheld = Withheld { left_alone: 1, held_back: Some("too many".to_owned()) };
    state.apply(News::Published(Published { policies: Policies::Unknown, withheld }), at(0));
    let lines = screen((80, 24), &state, &View::default(), at(30));
    assert_eq!(
        lines[4..9],
        [
            "cannot read pods for 30 s: connection refused",
            "no right to read events, the Lease, drift",
            "no right to watch nodes: listed now and then",
            "removals are held back: too many",
            "1 key is not repaired anymore, because others kept reverting",
        ]
    );
    assert!(lines[10].starts_with("  DRIFT from the policies: unknown"), "{}", lines.join("\n"));
}

#[test]
fn who_leads_is_unknown_while_the_lease_cannot_be_read() {
    let mut state = scene();
    let line = |state: &State, seconds: i64| screen((80, 24), state, &View::default(), at(seconds))[2].clone();
    assert_eq!(line(&state, 100), "leader nodegate-7d9f-abcde for 2 h, 2 of 2 replicas ready", "it was not read since");
    for failure in [Failure::Other("no answer in 10 s".to_owned()), Failure::Denied] {
        state.apply(News::Failed(Source::Lease, failure), at(100));
        let unknown = "leader: unknown, 41 s ago it was nodegate-7d9f-abcde, 2 of 2 replicas ready";
        assert_eq!(line(&state, 100), unknown);
    }
    // The API server is back before the leader has renewed: nobody could have seen that.
    state.apply(lease("nodegate-7d9f-abcde", 59), at(110));
    assert!(line(&state, 110).starts_with("leader nodegate-7d9f-abcde for 2 h"), "{}", line(&state, 110));
    state.apply(lease("nodegate-7d9f-abcde", 59), at(126));
    assert!(line(&state, 126).starts_with("no leader: no renewal for 16 s"), "{}", line(&state, 126));
}

#[test]
fn all_sources_that_fail_are_named_and_what_they_said_is_not_drawn_as_live() {
    let mut state = scene();
    state.apply(News::Pods(1, 2), at(59));
    for (source, why) in [
        (Source::Survey, "could not list nodes: connection refused"),
        (Source::Pods, "no answer in 10 s"),
        (Source::Nodes, "connection refused"),
        (Source::Events, "connection refused"),
    ] {
        state.apply(failed(source, why), at(60));
    }
    let lines = screen((80, 24), &state, &View::default(), at(90));
    assert_eq!(lines[4], "cannot read nodes, events, pods, drift for 30 s: connection refused");
    assert_eq!(lines[2], "leader nodegate-7d9f-abcde for 2 h");
    let colored = |state: &State| {
        let view = View { has_colors: true, ..View::default() };
        let (buffer, _) = drawn((80, 24), state, &view, at(90));
        buffer.content()[80..160].iter().any(|cell| cell.fg != Color::Reset)
    };
    assert!(colored(&scene()) && !colored(&state), "the counts of nodes");
}

#[test]
fn nodes_that_cannot_be_read_are_counted() {
    let mut state = scene();
    state.apply(News::Survey(Survey { drifting: 1, unreadable: 2, ..Survey::default() }), at(60));
    let lines = screen((80, 24), &state, &View::default(), at(60));
    assert_eq!(lines[1], "nodes 5: 5 ready, 1 waiting, 1 drifting, 2 unreadable");
    assert!(lines[6].starts_with("  DRIFT from the policies: 1, 2 unreadable, 0 s ago ─"), "{}", lines[6]);
}

#[test]
fn policies_in_force_that_cannot_be_read_are_unknown_and_it_is_said_why() {
    let mut state = scene();
    let policies = Policies::Garbled("policies.json in ConfigMap nodegate-in-force cannot be read".to_owned());
    state.apply(News::Published(Published { policies, withheld: Withheld::default() }), at(60));
    let lines = screen((90, 24), &state, &View::default(), at(60));
    assert_eq!(lines[3], "policies in force: unknown, policies.json in ConfigMap nodegate-in-force cannot be read");
}

#[test]
fn a_leader_that_is_gone_a_pause_and_a_filter_are_told() {
    let mut state = scene();
    state.apply(News::Pods(1, 2), at(60));
    let mut view = View::default();
    key(&mut view, &state, KeyCode::Char('p'));
    state.apply(event(Sight::Changed, 90, "LeftAlone", "later"), at(90));
    state.apply(lease("nodegate-7d9f-abcde", 59), at(100));
    let lines = screen((80, 24), &state, &view, at(100));
    assert_eq!(lines[2], "no leader: no renewal for 41 s by nodegate-7d9f-abcde, 1 of 2 replicas ready");
    assert!(lines[0].ends_with("  PAUSED, 1 new  12:01:40Z"), "{}", lines[0]);
    view.filter = "gpu-7".to_owned();
    let lines = screen((80, 24), &state, &view, at(100));
    assert!(lines[23].starts_with("filter: gpu-7  q quit"), "{}", lines[23]);
    assert!(!lines.iter().any(|line| line.contains("gpu-8")), "{}", lines.join("\n"));
    state.apply(News::Lease(None), at(100));
    assert!(screen((80, 24), &state, &view, at(100))[2].starts_with("no leader: nobody holds the Lease"));
    key(&mut view, &state, KeyCode::Char('?'));
    let help = screen((80, 24), &state, &view, at(100)).join("\n");
    assert!(help.contains("Writes that nodegate denies are not in the API: see its log and metrics."), "{help}");
}

#[test]
fn colors_are_used_only_where_the_terminal_takes_them_and_never_alone() {
    for has_colors in [false, true] {
        let view = View { has_colors, ..View::default() };
        let (buffer, _) = drawn((80, 24), &scene(), &view, at(60));
        let cells = buffer.content();
        let colors = |color: Color| cells.iter().filter(|cell| cell.fg == color).count();
        let colored = cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(colored, has_colors);
        assert_eq!([Color::Red, Color::Green, Color::Yellow].iter().all(|color| colors(*color) > 0), has_colors);
        assert!(cells.iter().all(|cell| cell.bg == Color::Reset), "light and dark terminals have their own");
    }
}
