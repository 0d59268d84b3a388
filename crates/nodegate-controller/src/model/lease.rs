//! The hand-over of the Lease: two replicas, a watch that reports each renewal at any later time, and clocks.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use stateright::{Model, Property};

use super::check;
use crate::leader::LeaseView;

/// The duration of the Lease, in seconds.
const DURATION: u8 = 2;
/// How long the model runs, in seconds.
const END: u8 = 6;

const IDENTITIES: [&str; 2] = ["first", "second"];

/// The Lease: who holds it, and when it was renewed, by the holder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Renewal {
    holder: usize,
    made: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leases {
    now: u8,
    stored: Option<Renewal>,
    /// What each replica has observed last, and when.
    seen: [Option<(Renewal, u8)>; 2],
    /// What the watch of each replica has not reported yet.
    to_report: [Vec<Renewal>; 2],
}

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Tick,
    /// A replica takes the Lease, or renews it: kube-lease-manager does so if nobody else holds it, or if it has expired by
    /// the replica's clock.
    Renew(usize),
    Report(usize),
}

/// A safeguard that is taken away, or an assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A renewal counts from when it is reported, not from when it was made.
    TimeOfRenewal,
    /// Authority has no end as long as the watch reports no other holder.
    End,
    /// The clock of the second replica is two seconds ahead.
    EqualClocks,
}

struct HandOver(Without);

impl HandOver {
    /// The clock of a replica, in seconds.
    fn clock(&self, replica: usize, now: u8) -> u8 {
        if self.0 == Without::EqualClocks && replica == 1 { now + 2 } else { now }
    }

    /// Whether a replica writes, according to the product's own view of the Lease.
    fn writes(&self, state: &Leases, replica: usize) -> bool {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        let Some((Renewal { holder, made }, at)) = state.seen[replica] else { return false };
        let second = |second: u8| start + Duration::from_secs(second.into());
        let view = LeaseView::new(Duration::from_secs(DURATION.into()));
        let spec = json!({"holderIdentity": IDENTITIES[holder], "renewTime": format!("2026-01-01T00:00:{made:02}.000000Z"),
            "leaseDurationSeconds": DURATION});
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "nodegate"}, "spec": spec})).unwrap();
        view.note(Some(&lease), false, second(at));
        let clock = match self.0 {
            Without::TimeOfRenewal | Without::End => made,
            Without::Nothing | Without::EqualClocks => self.clock(replica, state.now),
        };
        let clock: Timestamp = format!("2026-01-01T00:00:{clock:02}Z").parse().unwrap();
        let now = if self.0 == Without::End { at } else { state.now };
        !view.authority(IDENTITIES[replica], second(now), clock).is_zero()
    }
}

impl Model for HandOver {
    type State = Leases;
    type Action = Event;

    fn init_states(&self) -> Vec<Leases> {
        vec![Leases { now: 0, stored: None, seen: [None, None], to_report: [Vec::new(), Vec::new()] }]
    }

    fn actions(&self, state: &Leases, events: &mut Vec<Event>) {
        if state.now < END {
            events.push(Event::Tick);
        }
        for replica in 0..2 {
            let clock = self.clock(replica, state.now);
            let is_free = state.stored.is_none_or(|stored| match stored.holder == replica {
                true => clock > stored.made,
                false => clock > stored.made + DURATION,
            });
            if is_free {
                events.push(Event::Renew(replica));
            }
            if !state.to_report[replica].is_empty() {
                events.push(Event::Report(replica));
            }
        }
    }

    fn next_state(&self, before: &Leases, event: Event) -> Option<Leases> {
        let mut state = before.clone();
        match event {
            Event::Tick => state.now += 1,
            Event::Renew(replica) => {
                let renewal = Renewal { holder: replica, made: self.clock(replica, state.now) };
                state.stored = Some(renewal);
                state.to_report.iter_mut().for_each(|reports| reports.push(renewal));
            }
            Event::Report(replica) => state.seen[replica] = Some((state.to_report[replica].remove(0), state.now)),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one replica writes at a time", |model: &Self, state: &Leases| {
            !(model.writes(state, 0) && model.writes(state, 1))
        })]
    }

    fn within_boundary(&self, state: &Leases) -> bool {
        // A watch that is further behind than this reports nothing that could still give authority.
        state.to_report.iter().all(|reports| reports.len() <= 2)
    }
}

#[test]
fn one_replica_writes_at_a_time_however_late_the_watch_is() {
    let (states, failed) = check(HandOver(Without::Nothing));
    assert_eq!(failed, []);
    assert!(states > 1_000, "only {states} states");
}

#[test]
fn each_limit_of_authority_is_needed_and_so_are_clocks_that_agree() {
    for without in [Without::TimeOfRenewal, Without::End, Without::EqualClocks] {
        let (_, failed) = check(HandOver(without));
        assert_eq!(failed.len(), 1, "nothing fails without {without:?}");
    }
}
