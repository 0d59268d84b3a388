//! Every transition, computed from the text of the Secret alone, as after a crash.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::tls::certificates::pair::Pair;
use crate::tls::certificates::pem::certificates;
use crate::tls::certificates::rotate::*;

type Data = BTreeMap<String, Vec<u8>>;

/// A cluster: the Secret, the CAs that callers trust, and a replica. Everything is read again at every step.
#[derive(Clone)]
struct World {
    secret: Data,
    ca_bundle: String,
    held: Option<Pair>,
    now: Timestamp,
    names: Vec<SubjectName>,
    /// Whether every handshake must succeed.
    served: bool,
}

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(days * 24)
}

/// When a CA becomes due, after it was created.
fn ca_due() -> SignedDuration {
    SignedDuration::from_hours(issue::CA_HOURS * 2 / 3 + 24)
}

impl World {
    fn new() -> Self {
        Self {
            secret: Data::new(),
            ca_bundle: String::new(),
            held: None,
            now: "2026-11-21T12:00:00Z".parse().unwrap(),
            names: vec!["localhost".parse().unwrap()],
            served: false,
        }
    }

    /// A cluster after creation, settled and served.
    fn settled() -> Self {
        let mut world = Self::new();
        world.settle();
        world.served = true;
        world
    }

    /// A settled cluster with a CA that is due and a leaf that is not.
    fn with_due_ca() -> Self {
        let mut world = Self::settled();
        world.now += ca_due() - days(10);
        world.settle();
        world.now += days(10);
        world
    }

    fn bundle(&self) -> Bundle {
        Bundle::parse(&self.secret)
    }

    fn phase(&self) -> Phase {
        self.bundle().phase()
    }

    /// One step of the leader.
    fn turn(&mut self) -> Option<Change> {
        let mut bundle = self.bundle();
        let sound = bundle.is_sound(self.now);
        let published = sound && self.ca_bundle == bundle.ca_pem();
        if !sound {
            bundle = Bundle::salvage(&self.secret, &self.ca_bundle);
        } else if !published {
            self.ca_bundle = bundle.ca_pem();
            self.call();
        }
        match step(&bundle, &self.names, PROPAGATION, self.now, published).unwrap() {
            Step::Write { bundle, change } => {
                self.secret = bundle.serialise();
                self.follow();
                Some(change)
            }
            Step::Rest { until } => {
                if let Some(until) = until {
                    assert!(until > self.now, "a wait ends in the future");
                    self.now = until;
                }
                None
            }
        }
    }

    /// One step of the replica.
    fn follow(&mut self) {
        if let Ok(Some(pair)) = self.bundle().choose(self.held.as_ref(), self.now) {
            self.held = Some(pair);
        }
        self.call();
    }

    fn call(&self) {
        let roots = certificates(&self.ca_bundle);
        let taken = self.held.as_ref().is_some_and(|held| held.is_trusted_by(&roots, self.now));
        assert!(taken || !self.served, "a handshake fails: {:?}", self.bundle());
    }

    /// Runs the leader until there is nothing to do. Returns the changes.
    fn settle(&mut self) -> Vec<Change> {
        let (mut changes, mut quiet) = (Vec::new(), 0);
        while quiet < 3 {
            assert!(changes.len() < 20, "it ends: {changes:?}");
            match self.turn() {
                Some(change) => {
                    changes.push(change);
                    quiet = 0;
                }
                None => quiet += 1,
            }
        }
        assert_eq!(self.phase(), Phase::Settled);
        assert_eq!(self.bundle().authorities.len(), 1);
        assert_eq!(self.ca_bundle, self.bundle().ca_pem());
        assert!(self.held.as_ref().unwrap().is_same_as(&self.bundle().leaf.unwrap().pair), "the replica serves it");
        changes
    }
}

const ROTATION: [Change; 4] = [Change::CaAnnounced, Change::CaPublished, Change::CaServed, Change::CaDropped];

#[test]
fn an_empty_secret_gets_a_ca_and_a_leaf_that_is_served_at_once() {
    let mut world = World::new();
    assert_eq!(world.turn(), Some(Change::Made));
    assert_eq!(world.phase(), Phase::Fresh { published: None });
    assert_eq!(world.held.as_ref().unwrap().names(), ["localhost"]);
    assert_eq!(world.settle(), [Change::CaPublished, Change::CaServed]);
    assert_eq!(world.bundle().serialise(), world.secret);
    assert_eq!(world.secret.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    assert_eq!(world.settle(), []);
}

#[test]
fn a_due_leaf_is_renewed_from_the_same_ca() {
    let mut world = World::settled();
    world.now += days(59);
    assert_eq!(world.settle(), []);
    world.now += days(2);
    assert_eq!(world.settle(), [Change::LeafRenewed]);
}

#[test]
fn a_leaf_that_lacks_a_name_is_renewed() {
    let mut world = World::settled();
    world.names.push("nodegate.nodegate.svc".parse().unwrap());
    assert_eq!(world.settle(), [Change::LeafRenewed]);
    assert_eq!(world.held.unwrap().names(), ["localhost", "nodegate.nodegate.svc"]);
}

#[test]
fn an_invalid_name_is_an_error() {
    let mut world = World::settled();
    world.names.push(SubjectName::Dns("ä".to_owned()));
    assert!(step(&world.bundle(), &world.names, PROPAGATION, world.now, true).is_err());
}

#[test]
fn a_due_ca_is_replaced_in_phases_without_a_failed_call() {
    let mut world = World::with_due_ca();
    let old = (world.ca_bundle.clone(), world.held.clone().unwrap());
    assert_eq!(world.turn(), Some(Change::CaAnnounced));
    assert_eq!(world.phase(), Phase::Announced { published: None });
    assert!(world.bundle().ca_pem().starts_with(&old.0) && world.bundle().authorities.len() == 2, "callers trust both");
    assert_eq!(world.turn(), None, "the caBundle is written first");
    assert_eq!(world.turn(), Some(Change::CaPublished));
    let begun = world.now;
    assert_eq!(world.turn(), None);
    assert_eq!(world.now, begun + SignedDuration::try_from(PROPAGATION).unwrap());
    assert!(world.held.as_ref().unwrap().is_same_as(&old.1), "the old leaf is served until then");
    assert_eq!(world.turn(), Some(Change::CaServed));
    assert_eq!(world.phase(), Phase::Served { since: world.now });
    assert!(!world.held.as_ref().unwrap().is_trusted_by(&certificates(&old.0), world.now), "of the new CA");
    assert_eq!(world.bundle().authorities.len(), 2);
    assert_eq!(world.settle(), [Change::CaDropped]);
    assert!(!world.ca_bundle.contains(&old.0));
}

#[test]
fn an_overwritten_ca_bundle_restarts_the_wait() {
    let mut world = World::with_due_ca();
    world.served = false;
    while world.turn() != Some(Change::CaPublished) {}
    world.ca_bundle = String::new();
    assert_eq!(world.turn(), Some(Change::CaUnpublished));
    assert_eq!(world.phase(), Phase::Announced { published: None });
    assert_eq!(world.settle(), ROTATION[1..]);
}

#[test]
fn without_a_new_ca_bundle_no_certificate_of_the_new_ca_is_served() {
    let mut world = World::with_due_ca();
    world.turn();
    for _ in 0..10 {
        world.now += days(1);
        let step = step(&world.bundle(), &world.names, PROPAGATION, world.now, false).unwrap();
        assert!(matches!(step, Step::Rest { until: None }), "{step:?}");
    }
}

#[test]
fn a_leaf_that_falls_due_while_the_ca_changes_is_renewed_in_every_phase() {
    for stop in ROTATION {
        let mut world = World::with_due_ca();
        while world.turn() != Some(stop) {}
        world.names.push("b.example".parse().unwrap());
        assert!(world.settle().contains(&Change::LeafRenewed) || stop == Change::CaPublished);
        assert_eq!(world.held.unwrap().names(), ["localhost", "b.example"]);
    }
}

#[test]
fn a_deleted_secret_is_created_again_and_the_old_leaf_is_served_until_callers_trust_the_new_ca() {
    let mut world = World::settled();
    let (old, held) = (world.ca_bundle.clone(), world.held.clone().unwrap());
    world.secret.clear();
    assert_eq!(world.turn(), Some(Change::Made));
    assert!(world.bundle().ca_pem().starts_with(&old), "what callers trust stays trusted");
    assert!(world.held.as_ref().unwrap().is_same_as(&held));
    assert_eq!(world.settle(), [Change::CaPublished, Change::CaServed, Change::CaDropped]);
    assert!(!world.ca_bundle.contains(&old));
}

#[test]
fn a_secret_deleted_in_any_phase_of_a_change_is_created_again() {
    for stop in ROTATION {
        let mut world = World::with_due_ca();
        while world.turn() != Some(stop) {}
        world.secret.clear();
        world.follow();
        assert_eq!(world.settle().first(), Some(&Change::Made), "{stop:?}");
    }
}

#[test]
fn any_part_damaged_or_lost_in_any_phase_is_repaired() {
    let phases = [None].into_iter().chain(ROTATION.map(Some));
    for stop in phases {
        let mut before = World::with_due_ca();
        while stop.is_some() && before.turn() != stop {}
        for key in Bundle::KEYS.into_iter().filter(|key| before.secret.contains_key(*key)) {
            let text = &before.secret[key];
            for damage in
                [None, Some(Vec::new()), Some(text[..text.len() / 2].to_vec()), Some(b"\xff\x00junk".to_vec())]
            {
                let mut world = before.clone();
                match damage {
                    None => world.secret.remove(key),
                    Some(text) => world.secret.insert(key.to_owned(), text),
                };
                // Without its phase a Secret cannot tell a replica to wait.
                world.served = key != "phase";
                world.follow();
                world.settle();
            }
        }
    }
}

#[test]
fn a_lost_ca_key_replaces_the_ca_while_the_leaf_is_still_served() {
    let mut world = World::settled();
    world.secret.insert("ca.key".to_owned(), b"junk".to_vec());
    assert_eq!(world.settle(), ROTATION);
}

#[test]
fn a_lost_ca_certificate_is_restored_from_the_ca_bundle() {
    let mut world = World::settled();
    world.secret.remove("ca.crt");
    assert_eq!(world.settle(), [Change::Tidied]);
}

#[test]
fn a_key_of_another_ca_counts_as_lost() {
    let (mut world, other) = (World::settled(), World::settled());
    world.secret.insert("ca.key".to_owned(), other.secret["ca.key"].clone());
    assert_eq!(world.settle(), ROTATION);
}

#[test]
fn a_pair_of_another_ca_is_not_served_but_replaced() {
    let (mut world, other) = (World::settled(), World::settled());
    for key in ["tls.crt", "tls.key"] {
        world.secret.insert(key.to_owned(), other.secret[key].clone());
    }
    assert_eq!(world.bundle().choose(None, world.now).unwrap_err(), crate::tls::Unusable::Untrusted);
    world.follow();
    assert_eq!(world.settle(), [Change::LeafRenewed]);
}

#[test]
fn the_next_ca_is_used_if_the_old_one_is_completely_lost() {
    let mut world = World::with_due_ca();
    while world.turn() != Some(Change::CaPublished) {}
    for key in ["ca.key", "tls.key"] {
        world.secret.remove(key);
    }
    assert_eq!(world.settle(), [Change::Made, Change::CaServed, Change::CaDropped]);
}

#[test]
fn a_foreign_ca_is_removed_and_the_text_is_normalized() {
    let (mut world, other) = (World::settled(), World::settled());
    let text = format!("# ours\n{}\n{}", world.ca_bundle, other.ca_bundle);
    world.secret.insert("ca.crt".to_owned(), text.into_bytes());
    assert_eq!(world.settle(), [Change::CaServed, Change::CaDropped]);
    let text = format!("# ours\n{}", world.ca_bundle);
    world.secret.insert("ca.crt".to_owned(), text.into_bytes());
    assert_eq!(world.settle(), [Change::Tidied]);
}

#[test]
fn a_clock_jump_in_any_phase_ends_in_a_settled_state() {
    let jumps = [-4000, -100, -1, 1, 29, 61, 100, 3000, 4000, 40_000].map(days);
    let hour = SignedDuration::from_hours(2);
    for stop in [None].into_iter().chain(ROTATION.map(Some)) {
        for jump in jumps.into_iter().chain([hour, -hour]) {
            let mut world = World::with_due_ca();
            while stop.is_some() && world.turn() != stop {}
            // A clock that is wrong by more than a certificate's lifetime makes callers refuse every certificate.
            world.served = false;
            world.now += jump;
            world.settle();
            world.now -= jump;
            world.settle();
        }
    }
}

#[test]
fn a_recorded_time_in_the_future_restarts_its_wait() {
    let mut world = World::with_due_ca();
    while world.turn() != Some(Change::CaPublished) {}
    world.now -= SignedDuration::from_mins(30);
    assert_eq!(world.turn(), Some(Change::CaPublished));
    assert_eq!(world.phase(), Phase::Announced { published: Some(world.now) });
    while world.turn() != Some(Change::CaServed) {}
    world.now -= SignedDuration::from_mins(30);
    assert_eq!(world.turn(), Some(Change::CaServed));
    assert_eq!(world.phase(), Phase::Served { since: world.now });
    assert_eq!(world.settle(), [Change::CaDropped]);
}

#[test]
fn a_new_name_is_served_at_once_while_the_ca_is_new() {
    let mut world = World::new();
    assert_eq!(world.turn(), Some(Change::Made));
    world.names.push("nodegate.nodegate.svc".parse().unwrap());
    assert_eq!(world.turn(), Some(Change::LeafRenewed));
    assert!(matches!(world.phase(), Phase::Fresh { .. }));
    assert_eq!(world.held.as_ref().unwrap().names(), ["localhost", "nodegate.nodegate.svc"]);
}

#[test]
fn a_replica_keeps_a_valid_pair_rather_than_one_that_is_not_valid_yet() {
    let (now, then) = (World::settled(), World::settled());
    let mut ahead = World { now: then.now + days(61), ..then.clone() };
    ahead.settle();
    assert!(ahead.bundle().choose(then.held.as_ref(), now.now).unwrap().is_none());
    assert!(ahead.bundle().choose(None, now.now).unwrap().is_some(), "something is better than nothing");
    assert!(ahead.bundle().choose(then.held.as_ref(), ahead.now).unwrap().is_some());
}

#[test]
fn phases_are_parsed_from_their_text() {
    let at: Timestamp = "2026-11-21T12:00:00.123456789Z".parse().unwrap();
    let phases = [
        Phase::Settled,
        Phase::Fresh { published: None },
        Phase::Fresh { published: Some(at) },
        Phase::Announced { published: None },
        Phase::Announced { published: Some(at) },
        Phase::Served { since: at },
    ];
    for phase in phases {
        assert_eq!(phase.to_string().parse(), Ok(phase));
    }
    for text in ["", "served", "settled 2026-11-21T12:00:00Z", "fresh soon", "announced 2026-11-21T12:00:00Z x", "x"] {
        assert!(text.parse::<Phase>().is_err(), "{text:?}");
    }
}
