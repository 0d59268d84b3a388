//! What keys do.

use std::ops::Range;

use super::super::feed::ROWS_MAX;
use super::super::view::{List, Next};
use super::*;

fn busy(rows: i64) -> State {
    let mut state = listed([]);
    happens(&mut state, 0..rows);
    state
}

/// Adds a row for each of these numbers.
fn happens(state: &mut State, numbers: Range<i64>) {
    for number in numbers {
        state.apply(event(Sight::Changed, number, "LeftAlone", &format!("row {number}")), at(number));
    }
}

#[test]
fn q_escape_and_control_c_quit_and_close_the_help_or_the_filter_first() {
    let state = listed([]);
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        let mut view = View::default();
        key(&mut view, &state, KeyCode::Char('?'));
        assert!(view.helps);
        assert_eq!(key(&mut view, &state, code), Next::Draw);
        assert!(!view.helps);
        assert_eq!(key(&mut view, &state, code), Next::Quit);
    }
    let mut view = View::default();
    key(&mut view, &state, KeyCode::Char('/'));
    assert_eq!(key(&mut view, &state, KeyCode::Char('q')), Next::Draw, "a letter of the filter");
    assert_eq!(view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &state), Next::Quit);
    assert_eq!(key(&mut view, &state, KeyCode::Esc), Next::Draw);
    assert_eq!((view.typed, view.filter.as_str()), (None, ""));
}

#[test]
fn while_it_is_paused_the_feed_stands_still_and_new_rows_are_counted() {
    let mut state = busy(5);
    let mut view = View::default();
    key(&mut view, &state, KeyCode::Char('p'));
    happens(&mut state, 5..8);
    assert_eq!((view.feed(&state)[0].text.as_str(), view.unseen(&state)), ("LeftAlone: row 4", 3));
    key(&mut view, &state, KeyCode::Char('p'));
    assert_eq!((view.feed(&state)[0].text.as_str(), view.unseen(&state)), ("LeftAlone: row 7", 0));
}

#[test]
fn a_feed_that_stands_still_keeps_its_rows_however_many_new_ones_come() {
    let many = i64::try_from(2 * ROWS_MAX).unwrap();
    for still in [KeyCode::Char('p'), KeyCode::Down] {
        let mut state = busy(5);
        let mut view = View::default();
        key(&mut view, &state, still);
        let before: Vec<_> = view.feed(&state).into_iter().cloned().collect();
        happens(&mut state, 5..5 + many);
        assert_eq!(view.feed(&state).into_iter().cloned().collect::<Vec<_>>(), before, "{still:?}");
        assert_eq!(view.unseen(&state), many.unsigned_abs());
        let lines = screen((80, 24), &state, &view, at(2000)).join("\n");
        assert!(lines.contains("row 3") && !lines.contains("are dropped"), "{lines}");
    }
}

#[test]
fn a_list_that_became_shorter_is_not_shown_beyond_its_end() {
    let drifting = |count: usize| {
        let drift = (0..count).map(|number| (format!("n{number:02}"), "~ label a=b".to_owned())).collect();
        News::Survey(Survey { drifting: count, drift, ..Survey::default() })
    };
    let mut state = listed([]);
    state.apply(drifting(40), at(1));
    let mut view = View { list: List::Drift, ..View::default() };
    let last_row = |lines: &[String]| lines.iter().rfind(|line| line.contains("~ label")).cloned();
    shown((80, 24), &state, &mut view, at(1));
    key(&mut view, &state, KeyCode::End);
    let lines = shown((80, 24), &state, &mut view, at(1));
    assert_eq!(last_row(&lines).as_deref(), Some("  n39     ~ label a=b"), "{}", lines.join("\n"));
    let rows = |lines: &[String]| lines.iter().filter(|line| line.contains("~ label")).count();
    assert!(rows(&lines) > 10, "the end of the list is at the end of its room: {}", lines.join("\n"));
    state.apply(drifting(3), at(2));
    let lines = shown((80, 24), &state, &mut view, at(2));
    assert_eq!(rows(&lines), 3, "{}", lines.join("\n"));
    // The next key goes on from what is there.
    state.apply(drifting(40), at(3));
    key(&mut view, &state, KeyCode::Down);
    let lines = shown((80, 24), &state, &mut view, at(3));
    let first = lines.iter().find(|line| line.contains("~ label"));
    assert!(first.is_some_and(|line| line.contains("n01 ")), "{}", lines.join("\n"));
    // A filter, or a larger screen, may leave nothing to scroll, and then the feed follows again.
    let mut state = busy(30);
    let mut view = View::default();
    shown((80, 24), &state, &mut view, at(30));
    key(&mut view, &state, KeyCode::Down);
    assert!(view.still.is_some());
    shown((80, 60), &state, &mut view, at(30));
    happens(&mut state, 30..31);
    assert_eq!(view.feed(&state)[0].text, "LeftAlone: row 30");
}

#[test]
fn a_list_scrolls_to_its_ends_and_no_further_and_stays_where_it_is_read() {
    let mut state = busy(30);
    let mut view = View::default();
    for (code, expected) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 11),
        (KeyCode::End, 29),
        (KeyCode::Down, 29),
        (KeyCode::PageUp, 19),
    ] {
        key(&mut view, &state, code);
        assert_eq!(view.scrolled[List::Feed as usize], expected, "{code:?}");
    }
    state.apply(event(Sight::Changed, 31, "LeftAlone", "new"), at(31));
    assert_eq!(view.feed(&state)[19].text, "LeftAlone: row 10");
    key(&mut view, &state, KeyCode::Home);
    assert_eq!(view.feed(&state)[0].text, "LeftAlone: new", "it follows again");
    for expected in [List::Waiting, List::Drift, List::Feed] {
        key(&mut view, &state, KeyCode::Tab);
        assert_eq!(view.list, expected);
    }
    key(&mut view, &state, KeyCode::BackTab);
    assert_eq!(view.list, List::Drift);
}

#[test]
fn a_filter_leaves_rows_by_node_and_by_key_in_all_lists() {
    let mut state = listed([node("gpu-1", true), node("cpu-1", true)]);
    let drift =
        [("gpu-2", "~ label tier=gold"), ("cpu-2", "+ label rack=a")].map(|(n, t)| (n.to_owned(), t.to_owned()));
    state.apply(News::Survey(Survey { drifting: 2, drift: drift.to_vec(), ..Survey::default() }), at(1));
    state.apply(node("gpu-1", false), at(1));
    state.apply(node("gpu-1", true), at(1));
    let mut view = View::default();
    let filter = |view: &mut View, text: &str| {
        for code in [KeyCode::Char('/')].into_iter().chain(text.chars().map(KeyCode::Char)) {
            key(view, &state, code);
        }
        assert_eq!(view.typed.as_deref(), Some(text));
        key(view, &state, KeyCode::Enter);
        (view.waiting(&state).len(), view.drift(&state).len(), view.feed(&state).len())
    };
    assert_eq!(filter(&mut view, "gpu-"), (1, 1, 1));
    view = View::default();
    assert_eq!(filter(&mut view, "rack"), (0, 1, 0));
    key(&mut view, &state, KeyCode::Char('/'));
    for _ in 0..4 {
        key(&mut view, &state, KeyCode::Backspace);
    }
    key(&mut view, &state, KeyCode::Enter);
    assert_eq!(view.waiting(&state).len(), 2, "an empty filter is none");
    key(&mut view, &state, KeyCode::Char('/'));
    for _ in 0..100 {
        key(&mut view, &state, KeyCode::Char('x'));
    }
    assert_eq!(view.typed.map(|typed| typed.len()), Some(64));
}
