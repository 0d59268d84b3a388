//! The limit on removals: a fleet whose nodes stop matching, one after the other or all at once, under one leader after another.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use stateright::{Model, Property};

use super::check;
use crate::memory::removals::{GracePeriods, MaxRemovals, Removals};
use nodegate_policy::{Field, Removal};

/// The number of nodes.
const FLEET: usize = 3;
/// How many of them may lose their label by one change.
const LIMIT: usize = 1;
/// The time between two ticks: two of them are shorter than the window of ten minutes, and three are longer.
const TICK: Duration = Duration::from_secs(240);

/// What a leader told its `Removals`. They are not a value that can be compared, so the model keeps what led to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    PoliciesChanged,
    Surveyed { losing: usize, at: u8 },
    Due { node: usize, at: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fleet {
    now: u8,
    /// Whether a rule matches each node, and whether the node has the label.
    matches: [bool; FLEET],
    labelled: [bool; FLEET],
    /// Whether the leader has noticed the policies in force.
    noticed: bool,
    told: Vec<Told>,
    /// What was removed under this leader, and when.
    lost: Vec<(usize, u8)>,
    /// Whether something was removed before the leader's first survey.
    unsurveyed: bool,
    policies: u8,
    facts: u8,
    leaders: u8,
}

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Tick,
    /// A change of policies: no node matches anymore.
    Policies,
    /// A change of facts: one node does not match anymore.
    Facts(usize),
    /// The leader surveys the nodes. If policies have changed, it notices.
    Survey,
    Reconcile(usize),
    Leader,
}

/// A safeguard that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A new leader removes without a survey.
    FirstSurvey,
    /// Each survey forgets who has lost labels.
    Window,
}

struct Brake(Without);

fn instant(at: u8) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + TICK * at.into()
}

impl Brake {
    /// The product's own `Removals` after all that they were told, and whether the last question permitted a removal.
    fn replay(&self, told: &[Told]) -> bool {
        let begin = || {
            let mut removals = Removals::new(MaxRemovals::Nodes(LIMIT));
            if self.0 == Without::FirstSurvey {
                removals.surveyed(FLEET, 0, true, instant(0));
            }
            removals
        };
        let mut periods: [GracePeriods; FLEET] = Default::default();
        let (mut removals, mut permitted) = (begin(), false);
        for one in told {
            match one {
                Told::PoliciesChanged => removals.policies_changed(None),
                Told::Surveyed { losing, at } => {
                    if self.0 == Without::Window {
                        (removals, periods) = (begin(), Default::default());
                    }
                    removals.surveyed(FLEET, *losing, true, instant(*at));
                }
                Told::Due { node, at } => {
                    let removal = Removal { field: Field::Label, key: "tier".to_owned(), after: Duration::ZERO };
                    let (uid, periods) = (format!("u{node}"), &mut periods[*node]);
                    permitted = !removals.due(&uid, periods, &[removal], instant(*at)).0.is_empty();
                }
            }
        }
        permitted
    }
}

impl Fleet {
    fn losing(&self) -> usize {
        (0..FLEET).filter(|node| self.labelled[*node] && !self.matches[*node]).count()
    }
}

impl Model for Brake {
    type State = Fleet;
    type Action = Event;

    fn init_states(&self) -> Vec<Fleet> {
        let (told, lost) = (Vec::new(), Vec::new());
        let all = [true; FLEET];
        let (now, noticed, unsurveyed) = (0, false, false);
        vec![Fleet {
            now,
            matches: all,
            labelled: all,
            noticed,
            told,
            lost,
            unsurveyed,
            policies: 1,
            facts: 2,
            leaders: 1,
        }]
    }

    fn actions(&self, fleet: &Fleet, events: &mut Vec<Event>) {
        if fleet.now < 3 {
            events.push(Event::Tick);
        }
        if fleet.policies > 0 {
            events.push(Event::Policies);
        }
        if fleet.leaders > 0 {
            events.push(Event::Leader);
        }
        // Nodes are alike: the first ones change first.
        if let Some(node) = (0..FLEET).find(|node| fleet.matches[*node]).filter(|_| fleet.facts > 0) {
            events.push(Event::Facts(node));
        }
        if fleet.told.len() < 5 {
            // A second survey at once is the same one.
            if !fleet.noticed || !matches!(fleet.told.last(), Some(Told::Surveyed { at, .. }) if *at == fleet.now) {
                events.push(Event::Survey);
            }
            events
                .extend((0..FLEET).filter(|node| fleet.labelled[*node] && !fleet.matches[*node]).map(Event::Reconcile));
        }
    }

    fn next_state(&self, before: &Fleet, event: Event) -> Option<Fleet> {
        let mut fleet = before.clone();
        let at = fleet.now;
        match event {
            Event::Tick => fleet.now += 1,
            Event::Policies => {
                (fleet.matches, fleet.noticed) = ([false; FLEET], false);
                fleet.policies -= 1;
            }
            Event::Facts(node) => {
                fleet.matches[node] = false;
                fleet.facts -= 1;
            }
            Event::Survey => {
                if !fleet.noticed {
                    fleet.noticed = true;
                    fleet.told.push(Told::PoliciesChanged);
                }
                fleet.told.push(Told::Surveyed { losing: fleet.losing(), at });
            }
            Event::Reconcile(node) => {
                fleet.told.push(Told::Due { node, at });
                if self.replay(&fleet.told) {
                    fleet.labelled[node] = false;
                    fleet.lost.push((node, at));
                    fleet.unsurveyed |= !fleet.told.iter().any(|told| matches!(told, Told::Surveyed { .. }));
                }
            }
            Event::Leader => {
                fleet.leaders -= 1;
                (fleet.told, fleet.lost, fleet.noticed) = (Vec::new(), Vec::new(), false);
            }
        }
        Some(fleet)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a leader removes no more than the limit in ten minutes", |_, fleet: &Fleet| {
                let within = |since: u8| fleet.lost.iter().filter(|(_, at)| *at >= since && *at <= since + 2).count();
                fleet.lost.iter().all(|(_, at)| within(*at) <= LIMIT)
            }),
            Property::always("nothing is removed before a survey", |_, fleet: &Fleet| !fleet.unsurveyed),
        ]
    }
}

#[test]
fn a_leader_removes_no_more_than_the_limit_and_nothing_before_a_survey() {
    let (states, failed) = check(Brake(Without::Nothing));
    assert_eq!(failed, []);
    assert!(states > 1_000, "only {states} states");
}

#[test]
fn the_first_survey_and_the_window_are_needed() {
    for (without, expected) in [
        (Without::FirstSurvey, "nothing is removed before a survey"),
        (Without::Window, "a leader removes no more than the limit in ten minutes"),
    ] {
        let (_, failed) = check(Brake(without));
        assert!(failed.iter().any(|(property, _)| *property == expected), "without {without:?}: {failed:?}");
    }
}
