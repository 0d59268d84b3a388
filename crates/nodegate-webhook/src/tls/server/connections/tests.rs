use crate::tls::server::connections::*;

fn granted(connections: &Arc<Connections>, peer: &str) -> Slot {
    match connections.slot(peer.parse().unwrap()) {
        SlotRequest::Granted(slot) => slot,
        SlotRequest::Evicted(_) | SlotRequest::Full => panic!("there is room for {peer}"),
    }
}

fn is_ending(slot: &Slot) -> bool {
    slot.ending().is_cancelled()
}

#[test]
fn at_the_limit_connections_without_an_answer_are_closed_first_and_those_with_a_request_in_progress_never() {
    let connections = Connections::new(5, 5);
    let slots: Vec<Slot> = (1..=5).map(|at| granted(&connections, &format!("192.0.2.{at}"))).collect();
    let [answering, receiving_proven, waiting_proven, receiving, waiting] = &slots[..] else { panic!() };
    receiving_proven.state.request_answered(true);
    receiving_proven.state.request_received(true);
    waiting_proven.state.request_answered(true);
    receiving.state.request_received(true);
    receiving.state.since.store(1, Ordering::Relaxed);
    waiting.state.since.store(2, Ordering::Relaxed);
    answering.state.request_received(false);
    for (at, worst) in [receiving, waiting, waiting_proven, receiving_proven].into_iter().enumerate() {
        assert!(matches!(connections.slot("192.0.2.9".parse().unwrap()), SlotRequest::Evicted(_)));
        assert!(is_ending(worst), "{at}");
        // As if its task did not react: the next one is found among the others.
        worst.state.request_received(false);
    }
    assert!(matches!(connections.slot("192.0.2.9".parse().unwrap()), SlotRequest::Full));
    assert!(!is_ending(answering));
}

#[test]
fn of_two_equal_connections_the_one_that_waits_longer_is_closed() {
    let connections = Connections::new(2, 2);
    let (first, second) = (granted(&connections, "192.0.2.1"), granted(&connections, "192.0.2.2"));
    first.state.since.store(2, Ordering::Relaxed);
    second.state.since.store(1, Ordering::Relaxed);
    let SlotRequest::Evicted(gone) = connections.slot("192.0.2.3".parse().unwrap()) else { panic!("no room") };
    assert!(is_ending(&second) && !is_ending(&first) && !gone.is_cancelled());
    drop(second);
    assert!(gone.is_cancelled());
    granted(&connections, "192.0.2.3");
}

#[test]
fn a_peer_with_many_connections_loses_its_own_and_not_the_only_one_of_another() {
    let connections = Connections::new(4, 4);
    let alone = granted(&connections, "192.0.2.1");
    let crowd: Vec<Slot> = (0..3).map(|_| granted(&connections, "192.0.2.2")).collect();
    for (at, slot) in crowd.iter().enumerate() {
        slot.state.request_received(true);
        slot.state.since.store(10 + at as u64, Ordering::Relaxed);
    }
    let SlotRequest::Evicted(_) = connections.slot("192.0.2.3".parse().unwrap()) else { panic!("no room") };
    assert!(is_ending(&crowd[0]) && !is_ending(&alone), "although that one has been waiting for longer");
}

#[test]
fn of_too_many_unread_answers_the_oldest_are_given_up() {
    let connections = Connections::new(9, 9);
    let slots: Vec<Slot> = (1..=4).map(|at| granted(&connections, &format!("192.0.2.{at}"))).collect();
    let half = UNREAD_MAX / 2;
    // Each answer is later than the times that are set below.
    std::thread::sleep(Duration::from_millis(10));
    for (at, slot) in slots[..3].iter().enumerate() {
        slot.answered(true, half);
        slot.state.unread_since.store(at as u64, Ordering::Relaxed);
        assert_eq!(is_ending(&slots[0]), at == 2, "the third is one too many");
    }
    assert!(!is_ending(&slots[1]) && !is_ending(&slots[2]));
    slots[1].sent();
    slots[3].answered(true, half);
    assert!(!is_ending(&slots[2]), "what was sent counts no more");
    drop(slots);
    assert_eq!(connections.unread.load(Ordering::Relaxed), 0);
}

#[test]
fn a_peer_at_its_own_limit_loses_one_of_its_own_connections() {
    let connections = Connections::new(100, 2);
    let other = granted(&connections, "192.0.2.1");
    let (first, second) = (granted(&connections, "2001:db8::1"), granted(&connections, "2001:db8::2"));
    first.state.request_answered(true);
    assert!(matches!(connections.slot("2001:db8::ffff".parse().unwrap()), SlotRequest::Evicted(_)));
    assert!(is_ending(&second), "one /64 is one peer");
    assert!(!is_ending(&first) && !is_ending(&other));
    granted(&connections, "2001:db8:0:1::1");
    let mapped = granted(&connections, "::ffff:192.0.2.1");
    mapped.state.since.store(u64::MAX, Ordering::Relaxed);
    assert!(matches!(connections.slot("192.0.2.1".parse().unwrap()), SlotRequest::Evicted(_)), "IPv4 in IPv6 is IPv4");
    assert!(is_ending(&other));
}
