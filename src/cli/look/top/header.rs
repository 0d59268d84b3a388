//! The header: where, who leads, how many nodes, which policies, and what cannot be read.

use jiff::Timestamp;

use super::canvas::{Canvas, Tone};
use super::draw::Place;
use super::news::{Policies, Source};
use super::state::{State, Status, age};
use super::view::View;
use nodegate_base::text::counted;

/// With fewer rows, the header has only what matters most.
const ROWS_FOR_ALL: u16 = 16;

/// How many policies are named at most. There may be thousands, and a line ends sooner.
const NAMED: usize = 50;

/// Draws it, and returns the row below it.
pub(super) fn draw(canvas: &mut Canvas<'_>, place: &Place, state: &State, view: &View, now: Timestamp) -> u16 {
    title(canvas, place, state, view, now);
    nodes(canvas, 1, state);
    leader(canvas, 2, state, now);
    let mut y = 3;
    if canvas.height() >= ROWS_FOR_ALL {
        policies(canvas, y, state);
        y += 1;
    }
    for (tone, problem) in problems(state, now) {
        let width = canvas.width();
        canvas.put((0, y), width, &problem, tone);
        y += 1;
    }
    y
}

fn title(canvas: &mut Canvas<'_>, place: &Place, state: &State, view: &View, now: Timestamp) {
    let Place { cluster, namespace } = place;
    let place = format!("{cluster}, namespace {namespace}");
    let (name, still) = ("nodegate top  ", view.unseen(state));
    let clock = now.strftime("%H:%M:%SZ").to_string();
    let last = match (view.is_paused, still) {
        (true, still) => format!("  PAUSED, {still} new  {clock}"),
        (false, 0) => format!("  {clock}"),
        (false, still) => format!("  {still} new  {clock}"),
    };
    let room = usize::from(canvas.width()).saturating_sub(name.len() + last.len());
    canvas.put((0, 0), u16::MAX, name, Tone::Bold);
    let x = u16::try_from(name.len()).unwrap_or_default();
    canvas.put((x, 0), u16::try_from(room).unwrap_or(u16::MAX), &place, Tone::Plain);
    canvas.put_last(0, &last, if view.is_paused { Tone::Notice } else { Tone::Plain });
}

fn nodes(canvas: &mut Canvas<'_>, y: u16, state: &State) {
    if !state.is_listed(Source::Nodes) {
        canvas.put((0, y), u16::MAX, "nodes: not known yet", Tone::Plain);
        return;
    }
    let (all, ready) = state.counts();
    let waiting = state.waiting().len();
    let survey = state.survey.as_ref().map(|(_, survey)| survey);
    let (drifting, unreadable) = survey.map_or((0, 0), |survey| (survey.drifting, survey.unreadable));
    // What was true some time ago has no color.
    let of =
        |source: Source, is_so: bool, tone: Tone| if is_so && state.is_current(source) { tone } else { Tone::Plain };
    let parts = [
        (Tone::Plain, format!("nodes {all}: ")),
        (of(Source::Nodes, true, if ready == all { Tone::Good } else { Tone::Notice }), format!("{ready} ready")),
        (Tone::Plain, ", ".to_owned()),
        (of(Source::Nodes, waiting > 0, Tone::Notice), format!("{waiting} waiting")),
        (Tone::Plain, ", ".to_owned()),
        (
            of(Source::Survey, drifting > 0, Tone::Notice),
            survey.map_or_else(|| "? drifting".to_owned(), |_| format!("{drifting} drifting")),
        ),
        (
            of(Source::Survey, true, Tone::Bad),
            if unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() },
        ),
    ];
    canvas.put_all((0, y), parts.iter().map(|(tone, text)| (*tone, text.as_str())));
}

fn leader(canvas: &mut Canvas<'_>, y: u16, state: &State, now: Timestamp) {
    let (tone, leader) = match (&state.leader, state.status(Source::Lease)) {
        (Some(leader), Status::Works) => {
            let holder = leader.held.host();
            let since = leader.held.since.map(|since| format!(" for {}", age(now.duration_since(since))));
            match leader.silence() {
                Some(silence) => (Tone::Bad, format!("no leader: no renewal for {} by {holder}", age(silence))),
                None => (Tone::Good, format!("leader {holder}{}", since.unwrap_or_default())),
            }
        }
        (None, Status::Works) => (Tone::Bad, "no leader: nobody holds the Lease".to_owned()),
        (Some(leader), Status::Waiting | Status::Failing { .. } | Status::Denied) => {
            let (holder, ago) = (leader.held.host(), age(now.duration_since(leader.read)));
            (Tone::Plain, format!("leader: unknown, {ago} ago it was {holder}"))
        }
        (None, Status::Waiting | Status::Failing { .. } | Status::Denied) => {
            (Tone::Plain, "leader: unknown".to_owned())
        }
    };
    let pods = match state.pods.filter(|_| state.is_current(Source::Pods)) {
        // It is not known now, or nodegate runs outside of the cluster, or under labels that are not the chart's.
        None | Some((_, 0)) => (Tone::Plain, String::new()),
        Some((ready, all)) if ready == all => (Tone::Good, format!(", {ready} of {all} replicas ready")),
        Some((ready, all)) => (Tone::Bad, format!(", {ready} of {all} replicas ready")),
    };
    let width = canvas.width();
    let room = width.saturating_sub(u16::try_from(pods.1.len()).unwrap_or_default()).max(12);
    let x = canvas.put((0, y), room, &leader, tone);
    canvas.put((x, y), width.saturating_sub(x), &pods.1, pods.0);
}

fn policies(canvas: &mut Canvas<'_>, y: u16, state: &State) {
    let (tone, policies) = match &state.published.policies {
        Policies::Unknown => (Tone::Plain, "policies in force: unknown".to_owned()),
        Policies::Garbled(why) => (Tone::Bad, format!("policies in force: unknown, {why}")),
        Policies::Named(names) => {
            (Tone::Plain, format!("policies in force: {}", names[..names.len().min(NAMED)].join(", ")))
        }
    };
    canvas.put((0, y), u16::MAX, &policies, tone);
}

/// What cannot be read or is not done, and why.
fn problems(state: &State, now: Timestamp) -> Vec<(Tone, String)> {
    let names = |sources: &[Source]| sources.iter().map(|source| source.name()).collect::<Vec<_>>().join(", ");
    let mut problems = Vec::new();
    if let Some((sources, since, why)) = state.failing() {
        let since = age(now.duration_since(since));
        problems.push((Tone::Bad, format!("cannot read {} for {since}: {why}", names(&sources))));
    }
    let denied = state.denied();
    if !denied.is_empty() {
        problems.push((Tone::Notice, format!("no right to read {}", names(&denied))));
    }
    let is_listed = |source: &Source| state.not_watched.contains(source) && !denied.contains(source);
    let not_watched: Vec<Source> = Source::ALL.into_iter().filter(is_listed).collect();
    if !not_watched.is_empty() {
        problems.push((Tone::Notice, format!("no right to watch {}: listed now and then", names(&not_watched))));
    }
    let withheld = &state.published.withheld;
    if let Some(why) = &withheld.held_back {
        problems.push((Tone::Bad, format!("removals are held back: {why}")));
    }
    if withheld.left_alone > 0 {
        let keys = counted(withheld.left_alone, "key is", "keys are");
        problems.push((Tone::Notice, format!("{keys} not repaired anymore, because others kept reverting")));
    }
    problems
}
