//! Tests of schedules.

use super::*;

const INTERVAL: Duration = Duration::from_secs(300);

fn nodes(names: &[&str]) -> Vec<LivingNode> {
    names.iter().map(|name| LivingNode { name: (*name).into(), uid: "1".into() }).collect()
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
        let all = schedule.order.iter().filter(|(due, _)| *due <= now).count();
        counts.push(all - before);
    }
    assert!(counts.iter().all(|count| (1_000..2_000).contains(count)), "{counts:?}");
}

#[test]
fn an_inventory_that_fails_is_asked_more_and_more_rarely_until_it_answers() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    let names: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    let names = nodes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    schedule.follow(&names, |_| false, start);
    let (mut now, mut asked) = (start, Vec::new());
    while now < start + Duration::from_secs(120) {
        match schedule.next(now) {
            Some((node, _)) => {
                asked.push(now - start);
                schedule.done(&node, failed(), now, 0.0);
            }
            None => now += Duration::from_secs(1),
        }
    }
    assert_eq!(asked.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 3, 7, 15, 31, 63]);
    assert!(schedule.is_failing());
    let later = start + Duration::from_secs(600);
    let (node, _) = schedule.next(later).unwrap();
    schedule.done(&node, Outcome::Answered, later, 0.0);
    assert!(!schedule.is_failing() && schedule.next(later).is_some());
}

#[test]
fn one_node_that_fails_delays_no_other() {
    let start = Instant::now();
    let mut schedule = Schedule::new(INTERVAL, start);
    schedule.follow(&nodes(&["bad", "good"]), |_| false, start);
    for second in 0..10 {
        let now = start + Duration::from_secs(second);
        while let Some((node, _)) = schedule.next(now) {
            let outcome = if &*node == "bad" { failed() } else { Outcome::Answered };
            schedule.done(&node, outcome, now, 0.0);
        }
        assert!(second > 2 || !schedule.is_failing());
    }
    schedule.follow(&nodes(&["bad", "good", "new"]), |_| false, start + Duration::from_secs(2));
    assert_eq!(delay(1, 1.0), Duration::from_millis(500));
    assert_eq!(delay(40, 0.0), DELAY_MAX);
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
    schedule.follow(&[LivingNode { name: "a".into(), uid: "2".into() }], |_| true, later);
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
