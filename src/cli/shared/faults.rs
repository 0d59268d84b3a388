//! Errors in policies and test files, each with the line that it is in.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use nodegate_base::text::{counted, on_a_line};
use nodegate_policy::api::source::SourcePosition;
use nodegate_policy::{Lint, PolicyError, without_credentials};
use nodegate_stores::files::LoadError;

/// All errors that keep a command from running, and what follows from them.
#[derive(Debug)]
pub(crate) struct Faults {
    faults: Vec<LoadError>,
    conclusion: String,
}

impl Faults {
    /// The errors of policies that were to be loaded.
    pub(crate) fn of_policies(faults: &[LoadError]) -> Self {
        let errors = counted(faults.len(), "error", "errors");
        Self::new(faults.to_vec(), format!("found {errors} in the policies; no policy was loaded"))
    }

    /// Errors of one file with what follows from them.
    pub(crate) fn in_file(faults: Vec<PolicyError>, conclusion: String) -> Self {
        Self::new(faults.into_iter().map(LoadError::Policy).collect(), conclusion)
    }

    /// Errors with what follows from them.
    pub(crate) fn new(faults: Vec<LoadError>, conclusion: String) -> Self {
        Self { faults, conclusion }
    }

    /// The errors as a terminal shows them. Everything in them is escaped, so that only `renderer` adds escape sequences.
    pub(crate) fn render(&self, renderer: &Renderer) -> String {
        let mut text = String::new();
        for fault in &self.faults {
            text.push_str(&match fault {
                LoadError::File { .. } => title(renderer, &fault.to_string()),
                LoadError::Policy(error) => of_policy(renderer, Level::ERROR, error),
            });
            text.push_str("\n\n");
        }
        text + &title(renderer, &self.conclusion)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.conclusion)?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {}", on_a_line(&fault.to_string())))
    }
}

impl std::error::Error for Faults {}

fn title(renderer: &Renderer, text: &str) -> String {
    let text = on_a_line(text);
    renderer.render(&[Group::with_title(Level::ERROR.primary_title(&*text))])
}

/// A warning as a terminal shows it. Everything in it is escaped.
pub(crate) fn warning(renderer: &Renderer, lint: &Lint) -> String {
    let name = lint.name.to_string();
    of_policy(renderer, Level::WARNING.with_name(Some(format!("warning[{name}]"))), &lint.fault)
}

fn of_policy(renderer: &Renderer, level: Level<'_>, error: &PolicyError) -> String {
    let (what, remedy) = (on_a_line(&error.problem.what), error.problem.remedy.as_deref().map(on_a_line));
    let excerpt = Excerpt::of(error);
    let note = match (&excerpt, &error.entry, error.whereabouts()) {
        // The name of the entry is often further up.
        (Some(excerpt), Some(entry), _) if !excerpt.names(entry) => Some(entry.clone()),
        (Some(_), ..) => None,
        (None, _, whereabouts) => whereabouts,
    };
    let note = note.map(|place| format!("in {}", on_a_line(&place)));
    let origin = match (&error.file, &error.policy) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(policy)) => Some(format!("NodePolicy {policy}")),
        (None, None) => None,
    };
    let origin = origin.map(|origin| on_a_line(&origin).into_owned());
    let mut group = Group::with_title(level.primary_title(&*what));
    match (&excerpt, &origin) {
        (Some(excerpt), Some(file)) => group = group.element(excerpt.snippet(file)),
        (None, Some(origin)) => {
            let path = Origin::path(&**origin);
            group = group.element(match error.place {
                Some(place) => path.line(place.line as usize).char_column(place.column as usize),
                None => path,
            });
        }
        (_, None) => {}
    }
    group = group.elements(note.as_deref().map(|note| Level::NOTE.message(note)));
    group = group.elements(remedy.as_deref().map(|remedy| Level::HELP.message(remedy)));
    renderer.render(&[group])
}

/// Maximum length of the lines that an error shows, in bytes. A file with JSON may be one line of any length.
const EXCERPT_MAX: usize = 64 * 1024;

/// The lines of a file that an error is about, escaped.
struct Excerpt<'e> {
    lines: String,
    first_line: usize,
    place: Range<usize>,
    related: Option<(Range<usize>, &'e str)>,
}

impl<'e> Excerpt<'e> {
    fn of(error: &'e PolicyError) -> Option<Self> {
        let (text, place) = (error.text.as_ref()?.as_str(), error.place?);
        let related = error.related.as_ref();
        let places = [Some(place), related.map(|related| related.place)];
        let first = places.iter().flatten().min()?;
        let last = places.iter().flatten().max()?;
        let start = text.get(..first.start())?.rfind('\n').map_or(0, |at| at + 1);
        let end = text.get(last.start()..)?.find('\n').map_or(text.len(), |length| last.start() + length);
        if end - start > EXCERPT_MAX {
            return None;
        }
        // What stands before a place decides how far right its escaped form begins.
        let escaped = |place: SourcePosition| {
            let line_end = text.get(place.start()..)?.find('\n').map_or(text.len(), |length| place.start() + length);
            let before = shown(text.get(start..place.start())?).len();
            let length = shown(text.get(place.start()..place.end().clamp(place.start(), line_end))?.trim_end()).len();
            Some(before..before + length)
        };
        let related = match related {
            Some(related) => Some((escaped(related.place)?, related.label.as_str())),
            None => None,
        };
        let lines = shown(text.get(start..end)?);
        Some(Self { first_line: first.line.try_into().ok()?, place: escaped(place)?, related, lines })
    }

    /// Whether the line shows the name of `entry`, such as `rule "gpu"`.
    fn names(&self, entry: &str) -> bool {
        let name = entry.split_once('"').map_or(entry, |(_, name)| name.trim_end_matches('"'));
        self.lines.contains(name)
    }

    fn snippet<'s>(&'s self, file: &'s str) -> Snippet<'s, annotate_snippets::Annotation<'s>> {
        let related = self.related.as_ref();
        let related = related.map(|(place, label)| AnnotationKind::Context.span(place.clone()).label(*label));
        Snippet::source(&*self.lines)
            .line_start(self.first_line)
            .path(file)
            .annotation(AnnotationKind::Primary.span(self.place.clone()))
            .annotations(related)
    }
}

/// Lines as a terminal shows them: tabs are spaces, all other control characters are escaped, and URLs have no credentials.
fn shown(lines: &str) -> String {
    let lines = lines.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line).replace('\t', "    ");
        on_a_line(&without_credentials(&line)).into_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_policy::{Origin, PolicyDocument};

    /// Control characters, a change of the writing direction, and a line that looks like another error.
    const HOSTILE: &str = "ev\u{202e}il\u{2028}end";

    fn faults(text: &str) -> Faults {
        let mut errors = Vec::new();
        let file = Origin::File(format!("{HOSTILE}\u{1b}[2J.yaml"));
        PolicyDocument::parse_all(&file, text, &mut errors);
        Faults::in_file(errors, "no policy was loaded".to_owned())
    }

    fn hostile() -> Faults {
        faults(&format!("spec:\n  # {HOSTILE}\n  \"{HOSTILE}\": {HOSTILE}\n  \"a\\e[2J\": \"\t{HOSTILE}\"\n"))
    }

    #[test]
    fn only_the_renderer_adds_escape_sequences() {
        let plain = hostile().render(&Renderer::plain());
        assert!(plain.contains("\"ev\\u202eil\\u2028end\": ev\\u202eil"), "{plain}");
        assert_eq!(nodegate_base::text::lines(&plain), plain, "nothing is left to escape");
        let styled = hostile().render(&Renderer::styled());
        assert!(styled.contains("\u{1b}[1m"), "{styled:?}");
        assert_eq!(anstream::adapter::strip_str(&styled).to_string(), plain, "the same text with and without colors");
    }

    #[test]
    fn a_fault_is_shown_where_it_is_on_a_line_with_other_characters() {
        let shown = faults("spec: {\tä: 1, \"日本\": 2, bad: 3}\r\n").render(&Renderer::plain());
        let lines: Vec<&str> = shown.lines().collect();
        let at = lines.iter().rposition(|line| line.contains("bad: 3")).unwrap();
        let before = lines[at].split_once("bad").unwrap().0;
        // Each of the two characters takes two columns.
        let columns = before.chars().count() + 2;
        assert_eq!(lines[at + 1].find('^').unwrap(), columns, "{shown}");
        assert!(!shown.contains("\\u000d"), "{shown}");
    }

    #[test]
    fn a_long_line_is_shown_in_part() {
        let filler = "x: 1, ".repeat(2000);
        let shown = faults(&format!("spec: {{{}bad: 3}}\n", filler.replace('x', "\"a b\""))).render(&Renderer::plain());
        assert!(shown.lines().all(|line| line.chars().count() < 300), "{}", shown.len());
    }

    #[test]
    fn each_fault_is_one_line_where_there_is_one_line() {
        let text = hostile().to_string();
        assert!(text.starts_with("no policy was loaded:\n  "), "{text}");
        assert_eq!(nodegate_base::text::lines(&text), text);
    }
}
