//! `nodegate report --html`: the report as one page, which needs nothing else: no script, no font and no network.

mod charts;
mod claims;
mod cost;
mod devices;
mod history;
mod parts;
mod sections;
mod table;
mod topologies;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{Span, Timestamp};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::cli::look::history::Entry;
use crate::cli::look::report::Source;
use crate::cli::look::report::document::Report;
use nodegate_base::text::on_a_line;

const STYLE: &str = include_str!("page.css");

/// What the page shows.
pub(super) struct Page<'a> {
    /// The report.
    pub(super) report: &'a Report,
    /// The recorded changes of the nodes, if they are known.
    pub(super) recorded: Option<Recorded<'a>>,
    /// When the report was made.
    pub(super) now: Timestamp,
    /// What people call the cluster, or the files with the nodes.
    pub(super) source: &'a Source,
    /// Whether the report has stranded pods (`--stranded-pods`).
    pub(super) stranded: bool,
}

/// Recorded changes of nodes.
pub(super) struct Recorded<'a> {
    /// The changes, the oldest first.
    pub(super) changes: &'a [Entry],
    /// The start of the period.
    pub(super) since: Timestamp,
    /// The length of the period.
    pub(super) period: Span,
}

/// A section of the page.
struct Section {
    /// The name of its anchor.
    id: &'static str,
    title: &'static str,
    tile: Tile,
    content: Content,
}

impl Section {
    /// `unknown`: why it is not known what the section has, if it is not. Then that is shown, because it is no absence of findings.
    fn unless(self, unknown: Option<&str>) -> Self {
        let Self { id, title, tile, content } = self;
        let content = match (unknown, content) {
            (Some(why), Content::Nothing(_)) => Content::Shown(html! { p { (why) } }),
            (_, content) => content,
        };
        Self { id, title, tile: tile.unless(unknown), content }
    }
}

/// What a section has.
enum Content {
    Shown(Markup),
    /// No findings, in a sentence. All such sections are one.
    Nothing(String),
}

/// What the overview says of a section.
struct Tile {
    number: String,
    what: String,
    /// Whether it needs attention.
    alert: bool,
}

impl Tile {
    /// So many things that say something about the fleet.
    fn plain(count: usize, one: &str, more: &str) -> Self {
        Self {
            number: separated(&count.to_string()),
            what: if count == 1 { one } else { more }.to_owned(),
            alert: false,
        }
    }

    /// So many things that should not be.
    fn alert(count: usize, one: &str, more: &str) -> Self {
        Self { alert: count > 0, ..Self::plain(count, one, more) }
    }

    /// `unknown`: why it is not known how many, if it is not.
    fn unless(self, unknown: Option<&str>) -> Self {
        if unknown.is_some() { Self { number: "?".to_owned(), ..self } } else { self }
    }
}

/// The page as HTML.
///
/// # Errors
/// Returns an error if a chart cannot be drawn, which is a bug in nodegate.
pub(super) fn html(page: &Page<'_>) -> anyhow::Result<String> {
    let sections = sections::all(page)?;
    let policies = &page.report.policies;
    let source = page.source.name();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(security_policy());
                title { "Fleet report: " (text(&source)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the report" }
                header {
                    h1 { "Fleet report: " (text(&source)) }
                    p.quiet {
                        "Generated " time datetime=(page.now) { (minute(page.now)) }
                        @if policies.names.is_empty() { ", without policies" }
                        @else { ", policies: " (text(&policies.names.join(", "))) " (" code { (short(&policies.hash)) } ")" }
                    }
                    @if let Source::Cluster { policies_unknown: Some(why), .. } = page.source { p { "Note: " (text(why)) } }
                }
                nav aria-label="Overview" { (overview(&sections)) }
                main id="main" tabindex="-1" {
                    @for Section { id, title, content, .. } in &sections {
                        @if let Content::Shown(content) = content {
                            section id=(id) aria-labelledby={ (id) "-title" } {
                                h2 id={ (id) "-title" } { (title) }
                                (content)
                            }
                        }
                    }
                    (without_findings(&sections))
                }
                footer { p { "Written by nodegate " (env!("CARGO_PKG_VERSION")) ". All times are UTC." } }
            }
        }
    };
    Ok(markup.into_string())
}

/// The sections that have nothing to show, each as a line.
fn without_findings(sections: &[Section]) -> Markup {
    let nothing = |section: &Section| match &section.content {
        Content::Nothing(text) => Some((section.id, text.clone())),
        Content::Shown(_) => None,
    };
    let lines: Vec<(&str, String)> = sections.iter().filter_map(nothing).collect();
    html! {
        @if !lines.is_empty() {
            section aria-labelledby="nothing-title" {
                h2 id="nothing-title" { "Nothing to report" }
                ul { @for (id, text) in &lines { li id=(id) { (text) } } }
            }
        }
    }
}

fn overview(sections: &[Section]) -> Markup {
    html! {
        ul.tiles {
            @for Section { id, tile: Tile { number, what, alert }, .. } in sections {
                li { a class=[alert.then_some("alert")] href={ "#" (id) } { strong { (number) } (what) } }
            }
        }
    }
}

/// Only this style sheet: whatever a text in the page is taken for, a browser runs and loads nothing.
fn security_policy() -> String {
    let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'")
}

/// Text of others, on one line, in which nothing is invisible or changes the writing direction.
fn text(text: &str) -> String {
    on_a_line(text).into_owned()
}

/// A number with commas between groups of three digits of its whole part; another text as it is.
fn separated(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return number.to_owned();
    }
    let mut text = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// So many things, with separators in the number.
fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{} {}", separated(&count.to_string()), if count == 1 { one } else { more })
}

/// A time to the minute, as in `2026-11-22 18:40`.
fn minute(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M").to_string()
}

/// The beginning of a hash.
fn short(hash: &str) -> &str {
    hash.get(..19).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_other_texts_have_none() {
        for (number, shown) in [
            ("0", "0"),
            ("999", "999"),
            ("1000", "1,000"),
            ("5352780.48", "5,352,780.48"),
            ("", ""),
            ("?", "?"),
            ("600 s", "600 s"),
            ("0.5", "0.5"),
        ] {
            assert_eq!(separated(number), shown);
        }
    }
}
