//! Whether a node name can match two globs.

/// Maximum number of pairs of states that are visited for one pair of globs. Beyond it, they count as overlapping.
const PAIRS_MAX: usize = 4_096;
/// The characters of a node name: those of a DNS subdomain.
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-.";
/// A set of all of [`ALPHABET`], a bit for each character.
const ANY: u64 = (1 << ALPHABET.len()) - 1;

/// Whether a node name can match both, each an exact name or a glob. Also true where that is not decided: for globs with
/// `/`, which is in no node name, and for very large ones.
pub(crate) fn may_overlap(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (mine, theirs) = (literal_prefix(one), literal_prefix(other));
    let shorter = mine.len().min(theirs.len());
    if mine.as_bytes()[..shorter] != theirs.as_bytes()[..shorter] {
        return false;
    }
    match (Automaton::parse(one), Automaton::parse(other)) {
        (Some(one), Some(other)) => one.overlaps(&other),
        (None, _) | (_, None) => true,
    }
}

/// The part of a glob before its first special character.
fn literal_prefix(text: &str) -> &str {
    let special = |c: char| matches!(c, '*' | '?' | '[' | '{' | '\\' | '/');
    &text[..text.find(special).unwrap_or(text.len())]
}

fn only(c: char) -> u64 {
    ALPHABET.iter().position(|known| char::from(*known) == c).map_or(0, |at| 1 << at)
}

/// A nondeterministic automaton. State 0 is the first one.
#[derive(Default)]
struct Automaton {
    states: Vec<State>,
    last: usize,
}

#[derive(Default)]
struct State {
    /// The states that follow without a character.
    free: Vec<usize>,
    /// The state that follows one of these characters.
    step: Option<(u64, usize)>,
}

impl Automaton {
    /// The automaton of a valid glob; `None` if it is not known.
    fn parse(glob: &str) -> Option<Self> {
        if glob.contains('/') {
            return None;
        }
        let mut automaton = Self { states: vec![State::default()], last: 0 };
        let mut rest = glob.chars().peekable();
        automaton.last = automaton.sequence(&mut rest, 0, false)?;
        rest.next().is_none().then_some(automaton)
    }

    fn add(&mut self) -> usize {
        self.states.push(State::default());
        self.states.len() - 1
    }

    fn step(&mut self, from: usize, characters: u64) -> usize {
        let to = self.add();
        self.states[from].step = Some((characters, to));
        to
    }

    /// Adds what `rest` begins with, up to the end of an alternative if it is in braces. Returns the state after it.
    fn sequence(&mut self, rest: &mut Characters<'_>, from: usize, in_braces: bool) -> Option<usize> {
        let mut at = from;
        while let Some(next) = rest.next_if(|c| !(in_braces && matches!(c, ',' | '}'))) {
            at = match next {
                '*' => {
                    let (looped, to) = (self.add(), self.add());
                    self.states[at].free.push(looped);
                    self.states[looped].step = Some((ANY, looped));
                    self.states[looped].free.push(to);
                    to
                }
                '?' => self.step(at, ANY),
                '[' => {
                    let characters = class(rest)?;
                    self.step(at, characters)
                }
                '{' => self.alternatives(rest, at)?,
                '\\' => {
                    let literal = rest.next()?;
                    self.step(at, only(literal))
                }
                literal => self.step(at, only(literal)),
            };
        }
        Some(at)
    }

    fn alternatives(&mut self, rest: &mut Characters<'_>, from: usize) -> Option<usize> {
        let to = self.add();
        loop {
            let begin = self.add();
            self.states[from].free.push(begin);
            let end = self.sequence(rest, begin, true)?;
            self.states[end].free.push(to);
            if rest.next()? == '}' {
                return Some(to);
            }
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let mut seen = foldhash::HashSet::default();
        let mut open = vec![(0, 0)];
        while let Some((mine, theirs)) = open.pop() {
            if (mine, theirs) == (self.last, other.last) || seen.len() >= PAIRS_MAX {
                return true;
            }
            if !seen.insert((mine, theirs)) {
                continue;
            }
            let (here, there) = (&self.states[mine], &other.states[theirs]);
            open.extend(here.free.iter().map(|next| (*next, theirs)));
            open.extend(there.free.iter().map(|next| (mine, *next)));
            if let (Some((by, next)), Some((with, following))) = (here.step, there.step)
                && by & with != 0
            {
                open.push((next, following));
            }
        }
        false
    }
}

type Characters<'t> = std::iter::Peekable<std::str::Chars<'t>>;

/// The characters of a class after its `[`.
fn class(rest: &mut Characters<'_>) -> Option<u64> {
    let negated = rest.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut is_range = false;
    loop {
        let c = rest.next()?;
        let is_first = ranges.is_empty();
        match c {
            ']' if !is_first => break,
            '-' if !is_first && !is_range => is_range = true,
            c if is_range => {
                ranges.last_mut()?.1 = c;
                is_range = false;
            }
            c => ranges.push((c, c)),
        }
    }
    ranges.extend(is_range.then_some(('-', '-')));
    let is_in = |c: char| ranges.iter().any(|(from, to)| (*from..=*to).contains(&c));
    let found = ALPHABET.iter().filter(|c| is_in(char::from(**c))).fold(0, |all, c| all | only(char::from(*c)));
    Some(if negated { ANY & !found } else { found })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keys::compile_budget::CompileBudget;
    use crate::keys::pattern::glob;

    #[test]
    fn globs_overlap_only_if_a_name_can_match_both() {
        for (one, other, expected) in [
            ("gpu-*", "gpu-h100-*", true),
            ("gpu-*", "cpu-*", false),
            ("*-gpu", "*-cpu", false),
            ("*-gpu", "node-*", true),
            ("gpu-?", "gpu-??", false),
            ("gpu-[0-4]", "gpu-[5-9]", false),
            ("gpu-[!0-4]", "gpu-[0-4]", false),
            ("gpu-[!0-4]", "gpu-[4-5]", true),
            ("{edge,iot}-*", "gpu-*", false),
            ("{edge,iot}-*", "iot-{1,2}", true),
            ("a{b,c{d,e}}", "ace", true),
            ("a{b,c{d,e}}", "ac", false),
            ("*a*", "*b*", true),
            ("a*b", "a*c", false),
            ("gpu-[-a]", "gpu--", true),
            ("GPU-*", "GPU-1*", false),
            ("**/gpu", "gpu", true),
        ] {
            assert_eq!(may_overlap(one, other), expected, "{one} and {other}");
            assert_eq!(may_overlap(other, one), expected, "{other} and {one}");
        }
        let hostile = |end: &str| format!("{}{end}", "*a".repeat(250));
        assert!(may_overlap(&hostile("b"), &hostile("c")), "what takes too long counts as overlapping");
    }

    #[test]
    fn an_exact_name_overlaps_with_a_glob_exactly_if_it_matches() {
        let globs = [
            "a*",
            "*a",
            "a?b",
            "[ab]*",
            "[!ab]*",
            "{a,b}c",
            "{a*,b}",
            "a{,b}",
            "[a-c][-x]",
            "[]-]a",
            "a\\*",
            "**",
            "?*?",
        ];
        let mut names = vec![String::new()];
        for _ in 0..3 {
            let longer = |name: &String| ["a", "b", "c", "-", "x"].map(|c| format!("{name}{c}"));
            names.extend(names.clone().iter().flat_map(longer));
        }
        for text in globs {
            let matcher = glob(text, &CompileBudget::default()).unwrap().compile_matcher();
            for name in &names {
                // What globset does with an empty alternative is not decided here.
                if !text.contains("{,") {
                    assert_eq!(may_overlap(text, name), matcher.is_match(name), "{text} and {name:?}");
                }
            }
        }
    }
}
