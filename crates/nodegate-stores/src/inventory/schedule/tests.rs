//! Tests of schedules.

use super::*;

const INTERVAL: Duration = Duration::from_secs(300);

fn nodes(names: &[&str]) -> Vec<LivingNode> {
    names.iter().map(|name| LivingNode { name: (*name).into(), uid: "1".into(), age: Duration::ZERO }).collect()
}

fn failed() -> Outcome {
    Outcome::Failed("it is down".to_owned())
}

fn next(schedule: &mut Schedule, now: Instant) -> Option<String> {
    schedule.next(now).map(|(node, _)| node.to_string())
}

#[test]
fn a_node_is_asked_about_when_it_joins_and_then_once_in_each_interval() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&nodes(&["a", "b"]), |_| false, start);
    assert_eq!([next(&mut schedule, start), next(&mut schedule, start)].map(Option::unwrap), ["a", "b"]);
    assert_eq!((next(&mut schedule, start), schedule.wait(start)), (None, None));
    schedule.done(&"a".into(), Outcome::Answered, start, 0.0);
    assert_eq!(schedule.wait(start), Some(INTERVAL));
    let joined = start + Duration::from_secs(10);
    schedule.follow(&nodes(&["a", "b", "c"]), |_| false, joined);
    assert_eq!(next(&mut schedule, joined).as_deref(), Some("c"));
    assert_eq!(next(&mut schedule, start + INTERVAL).as_deref(), Some("a"));
}

#[test]
fn one_request_at_a_time_is_under_way_about_a_node_and_a_dropped_one_is_repeated_at_once() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&nodes(&["a", "b"]), |_| false, start);
    assert_eq!([next(&mut schedule, start), next(&mut schedule, start)].map(Option::unwrap), ["a", "b"]);
    schedule.done(&"b".into(), Outcome::Answered, start, 0.0);
    let later = start + INTERVAL;
    schedule.follow(&nodes(&["a", "b"]), |_| true, later);
    assert_eq!([next(&mut schedule, later), next(&mut schedule, later)], [Some("b".to_owned()), None]);
    schedule.done(&"b".into(), Outcome::Answered, later, 0.0);
    schedule.start_anew(later);
    assert_eq!([next(&mut schedule, later), next(&mut schedule, later)], [Some("a".to_owned()), None]);
    // If a node is created again during a request about its predecessor, another request follows.
    schedule.follow(&nodes(&["b"]), |_| true, later);
    schedule.follow(&nodes(&["a", "b"]), |_| true, later);
    assert_eq!(next(&mut schedule, later), None);
    schedule.done(&"a".into(), Outcome::Answered, later, 0.0);
    assert_eq!(next(&mut schedule, later).as_deref(), Some("a"));
}

#[test]
fn known_nodes_are_spread_over_the_interval() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    let names: Vec<String> = (0..15_000).map(|number| format!("node-{number}")).collect();
    let names = nodes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    schedule.follow(&names, |_| true, start);
    let mut counts = Vec::new();
    for tenth in 1..=10 {
        let now = start + INTERVAL * tenth / 10;
        let before = counts.iter().sum::<usize>();
        let all = schedule.known.iter().filter(|(due, _)| *due <= now).count();
        counts.push(all - before);
    }
    assert!(counts.iter().all(|count| (1_000..2_000).contains(count)), "{counts:?}");
}

fn unreachable() -> Outcome {
    Outcome::Unreachable("could not connect".to_owned())
}

/// `count` nodes of this age.
fn many(count: usize, age: Duration) -> Vec<LivingNode> {
    let node = |number| LivingNode { name: format!("n{number:05}").into(), uid: "1".into(), age };
    (0..count).map(node).collect()
}

/// Asks for so many seconds, by at most 100 requests per second. `outcome` is the answer about a node at a time. Returns when, in
/// seconds, each request was sent, and about which node.
fn ask(
    schedule: &mut Schedule,
    start: Instant,
    seconds: u64,
    mut outcome: impl FnMut(&str, f64) -> Outcome,
) -> Vec<(f64, Arc<str>)> {
    let (mut now, mut asked) = (start, Vec::new());
    while now < start + Duration::from_secs(seconds) {
        if let Some((node, _)) = schedule.next(now) {
            let second = (now - start).as_secs_f64();
            schedule.done(&node, outcome(&node, second), now, 0.0);
            asked.push((second, node));
        } else {
            assert_ne!(schedule.wait(now), Some(Duration::ZERO), "it says that a request is due, and gives none");
        }
        now += Duration::from_millis(10);
    }
    asked
}

#[test]
fn an_inventory_that_cannot_be_reached_is_asked_after_pauses_of_up_to_ten_seconds_until_it_answers() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(1000, Duration::ZERO), |_| false, start);
    let asked = ask(&mut schedule, start, 60, |_, _| unreachable());
    let seconds: Vec<u64> = asked.iter().map(|(second, _)| second.round() as u64).collect();
    assert_eq!(seconds, [0, 1, 3, 7, 15, 25, 35, 45, 55]);
    assert!(schedule.is_failing(start + Duration::from_secs(60)) && schedule.is_unreachable());
    let later = start + Duration::from_secs(66);
    let (node, _) = schedule.next(later).unwrap();
    // An answer about one node, whatever it is, shows that requests about others are worthwhile.
    schedule.done(&node, failed(), later, 0.0);
    assert!(!schedule.is_unreachable() && schedule.next(later + Duration::from_millis(100)).is_some());
}

#[test]
fn requests_that_were_under_way_together_are_one_failure() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(10, Duration::ZERO), |_| false, start);
    let nodes: Vec<_> = (0..8).map(|_| schedule.next(start).unwrap().0).collect();
    nodes.iter().for_each(|node| schedule.done(node, unreachable(), start, 0.0));
    assert_eq!(schedule.wait(start), Some(Duration::from_secs(1)));
}

#[test]
fn each_node_is_released_seconds_after_the_inventory_knows_it_whatever_it_answers_before() {
    const KNOWN_AFTER: f64 = 40.0;
    let unknown = [("503", failed()), ("404", Outcome::Unknown)];
    for (count, over) in [(13, 0.0), (13, 60.0), (500, 0.0), (500, 60.0)] {
        for (answer, not_yet) in unknown.clone() {
            let start = Instant::now();
            let mut schedule = Schedule::new(INTERVAL, start);
            let joins = |node: &str| node[1..].parse::<f64>().unwrap() * over / f64::from(count);
            let all = many(usize::try_from(count).unwrap(), Duration::ZERO);
            let mut known = HashMap::new();
            let outcome = |node: &str, at: f64| match at >= joins(node) + KNOWN_AFTER {
                true => Outcome::Answered,
                false => not_yet.clone(),
            };
            // Nodes join second by second.
            for second in 0..130 {
                let now = start + Duration::from_secs(second);
                let living: Vec<_> = all.iter().filter(|node| joins(&node.name) <= second as f64).cloned().collect();
                schedule.follow(&living, |_| false, now);
                for (at, node) in ask(&mut schedule, now, 1, |node, at| outcome(node, at + second as f64)) {
                    let at = at + second as f64;
                    if at >= joins(&node) + KNOWN_AFTER {
                        known.entry(node).or_insert(at);
                    }
                }
            }
            let late = known.iter().map(|(node, at)| at - joins(node) - KNOWN_AFTER).fold(0.0, f64::max);
            assert_eq!(known.len(), all.len(), "{count} nodes over {over} s, {answer}");
            assert!(late < 8.0, "{count} nodes over {over} s, {answer}: {late} s late");
        }
    }
}

#[test]
fn an_inventory_that_answers_nothing_but_errors_is_not_flooded() {
    let start = Instant::now();
    let old = Duration::from_secs(86_400);
    let mut schedule = Schedule::new(INTERVAL, start);
    let (known, joining) = (many(15_000, old), [LivingNode { name: "new".into(), uid: "1".into(), age: old }]);
    schedule.follow(&known, |_| true, start);
    schedule.follow(&[&known, &joining as &[LivingNode]].concat(), |node| node != "new", start);
    let asked = ask(&mut schedule, start, 600, |_, _| failed());
    let late = asked.iter().filter(|(second, _)| *second > 120.0).count();
    assert!(asked.len() < 120 && (40..60).contains(&late), "{} requests, {late} of them late", asked.len());
    assert!(schedule.is_failing(start + Duration::from_secs(600)) && !schedule.is_unreachable());

    // Ten requests per second are sent about nodes without an answer, and they become rarer.
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(2_000, Duration::ZERO), |_| false, start);
    let asked = ask(&mut schedule, start, 60, |_, _| failed());
    assert!((550..620).contains(&asked.len()), "{}", asked.len());
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(10, Duration::ZERO), |_| false, start);
    let asked = ask(&mut schedule, start, 600, |_, _| failed());
    let count = |from: f64| asked.iter().filter(|(second, _)| (from..from + 60.0).contains(second)).count();
    assert!((150..300).contains(&count(0.0)) && (5..15).contains(&count(540.0)), "{} {}", count(0.0), count(540.0));
}

#[test]
fn answers_about_single_nodes_delay_no_other() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    let names: Vec<String> = (0..5).map(|number| format!("bad-{number}")).collect();
    let mut all = nodes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    all.extend(many(300, Duration::from_secs(86_400)));
    schedule.follow(&all, |node| node.starts_with('n'), start);
    let outcome = |node: &str, _| if node.starts_with("bad") { failed() } else { Outcome::Answered };
    let asked = ask(&mut schedule, start, 300, outcome);
    let good: BTreeSet<_> = asked.iter().map(|(_, node)| node).filter(|node| node.starts_with('n')).collect();
    assert_eq!(good.len(), 300, "each of them has been asked about once");
    assert!(!schedule.is_failing(start + Duration::from_secs(300)));
    schedule.follow(&[&all, &nodes(&["new"]) as &[LivingNode]].concat(), |_| true, start + Duration::from_secs(300));
    schedule.follow(&[&all, &nodes(&["newer"]) as &[LivingNode]].concat(), |_| false, start + Duration::from_secs(300));
    assert_eq!(next(&mut schedule, start + Duration::from_secs(300)).as_deref(), Some("newer"));
}

#[test]
fn delays_grow_with_failures_or_with_the_age_of_a_node() {
    assert_eq!(longer(1, DELAY_MAX, 1.0), Duration::from_millis(500));
    assert_eq!(longer(40, DELAY_MAX, 0.0), DELAY_MAX);
    let delay = |seconds| since_joined(Duration::from_secs(seconds), 0.0);
    assert_eq!([0, 8, 40, 2400].map(delay), [1, 1, 5, 300].map(Duration::from_secs));
    // One request in each interval is about an old node without an answer: nobody waits for that node any more.
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(1, Duration::MAX), |_| false, start);
    assert_eq!(ask(&mut schedule, start, 700, |_, _| Outcome::Unknown).len(), 3);
    // A node whose answer is in force keeps its turn.
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&many(1, Duration::ZERO), |_| true, start);
    assert!(ask(&mut schedule, start, 900, |_, _| Outcome::Unknown).len() <= 3);
}

#[test]
fn a_request_about_all_nodes_is_due_earlier_while_one_waits_for_it() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    let all: Arc<str> = "".into();
    schedule.follow(&nodes(&[""]), |_| false, start);
    assert_eq!(next(&mut schedule, start).as_deref(), Some(""));
    schedule.hasten(&all, Duration::ZERO);
    assert_eq!(schedule.wait(start), None, "one is under way");
    schedule.done(&all, Outcome::Answered, start, 0.0);
    for (waits_for, due) in [(200, 25), (8, 5), (0, 5)] {
        schedule.hasten(&all, Duration::from_secs(waits_for));
        assert_eq!(schedule.wait(start), Some(Duration::from_secs(due)), "{waits_for}");
    }
    // One that waits for less long comes later, one that is not listed never.
    schedule.hasten(&all, INTERVAL * 100);
    assert_eq!(schedule.wait(start), Some(Duration::from_secs(5)));
    let joined = start + Duration::from_secs(60);
    schedule.hasten(&all, Duration::ZERO);
    assert_eq!(next(&mut schedule, joined).as_deref(), Some(""), "the last result is a minute old");
    schedule.done(&all, unreachable(), joined, 0.0);
    schedule.hasten(&all, Duration::ZERO);
    assert_eq!(schedule.wait(joined), Some(Duration::from_secs(1)), "it is paused");
}

#[test]
fn answers_about_deleted_nodes_are_kept_for_an_hour() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&nodes(&["a"]), |_| false, start);
    assert!(schedule.follow(&[], |_| true, start).is_empty());
    assert_eq!(next(&mut schedule, start + INTERVAL), None, "nobody asks about it");
    let again = start + Duration::from_secs(60);
    schedule.follow(&nodes(&["a"]), |_| true, again);
    assert_eq!(next(&mut schedule, again).as_deref(), Some("a"), "it may be another machine");
    schedule.follow(&[], |_| true, again);
    assert_eq!(schedule.follow(&[], |_| true, again + KEPT), ["a".into()]);
}

#[test]
fn a_node_that_was_deleted_while_nobody_looked_is_forgotten_and_one_that_was_replaced_is_asked_about() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&nodes(&["a"]), |_| true, start);
    schedule.expect_gone(["a".into(), "gone".into()], start);
    assert!(schedule.follow(&nodes(&["a"]), |_| true, start).is_empty());
    let later = start + KEPT;
    assert_eq!(schedule.follow(&nodes(&["a"]), |_| true, later), ["gone".into()]);
    assert_eq!(next(&mut schedule, later).as_deref(), Some("a"));
    schedule.done(&"a".into(), Outcome::Answered, later, 0.0);
    schedule.follow(&nodes(&["a"]), |_| true, later);
    assert_eq!(next(&mut schedule, later), None);
    schedule.follow(&[LivingNode { name: "a".into(), uid: "2".into(), age: Duration::ZERO }], |_| true, later);
    assert_eq!(next(&mut schedule, later).as_deref(), Some("a"), "it may be another machine");
}

#[test]
fn an_inventory_that_knows_no_node_and_nodes_that_fail_repeatedly_are_trouble() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    assert_eq!(schedule.health(), Health::Undecided);
    schedule.follow(&nodes(&["a", "b", "c"]), |_| false, start);
    schedule.expect_gone(["gone".into()], start);
    let mut done = |node: &str, outcome: Outcome| {
        schedule.done(&node.into(), outcome, start, 0.0);
        schedule.health()
    };
    assert_eq!(done("a", Outcome::Unknown), Health::Undecided);
    assert_eq!(done("b", Outcome::Unknown), Health::Undecided);
    let all = "it answers 404 about all nodes, for example a; check the path of its URL";
    assert_eq!(done("c", Outcome::Unknown), Health::Troubled(all.to_owned()));
    assert_eq!(done("c", Outcome::Answered), Health::Answers);
    let repeated = |health: Health| match health {
        Health::Troubled(why) => why,
        other => panic!("{other:?}"),
    };
    for _ in 0..TOLERATED {
        assert_eq!(done("a", failed()), Health::Answers);
    }
    assert_eq!(repeated(done("a", failed())), "it fails repeatedly about node a: it is down");
    (0..TOLERATED).for_each(|_| drop(done("b", failed())));
    let both = "it fails repeatedly about 2 nodes, for example a: it is down";
    assert_eq!(repeated(done("b", failed())), both);
    done("a", Outcome::Unknown);
    assert_eq!(done("b", Outcome::Unknown), Health::Answers);
}
