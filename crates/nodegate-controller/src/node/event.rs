//! Events of a watch of nodes.

use nodegate_base::telemetry::brief;

use super::pieces::Piece;
use super::read::{NodesError, Read, TOO_LARGE};
use super::{NodeObject, Reading, Unreadable, text_at};

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Changed {
    /// A node was added or changed.
    To(Read),
    /// A node was deleted.
    Gone(Read),
    /// A bookmark: nothing has changed up to this version.
    Nothing,
    /// The line is not JSON, names no node, or has an unknown type; contains what it seems to say.
    Damaged(Box<Changed>),
    /// The watch failed.
    Failed(NodesError),
}

impl Changed {
    /// Whether it does not say which node changed.
    pub(super) fn names_no_node(&self) -> bool {
        match self {
            Self::To(node) | Self::Gone(node) => node.as_ref().is_err_and(|unreadable| unreadable.name.is_empty()),
            Self::Nothing | Self::Failed(_) => true,
            Self::Damaged(seeming) => seeming.names_no_node(),
        }
    }
}

#[derive(serde::Deserialize)]
struct EventWire<'a> {
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

/// What a line of a watch says, and its version, if it has one.
pub(super) fn changed(line: Piece, reading: &Reading) -> (Changed, Option<String>) {
    let (Piece::Whole(text) | Piece::Head(text)) = &line;
    let kind = text_at(text, &["type"]).unwrap_or_default();
    let version = text_at(text, &["object", "metadata", "resourceVersion"]);
    let node = |of: fn(Read) -> Changed| match &line {
        Piece::Head(_) => of(Err(Unreadable::new(text, &["object"], TOO_LARGE))),
        Piece::Whole(text) => match serde_json::from_slice::<EventWire<'_>>(text) {
            Ok(event) => match NodeObject::read_parts(event.object.get(), reading) {
                Err(unreadable) if unreadable.name.is_empty() => Changed::Damaged(Box::new(of(Err(unreadable)))),
                read => of(read),
            },
            Err(error) => Changed::Damaged(Box::new(of(Err(Unreadable::new(text, &["object"], error))))),
        },
    };
    let changed = match kind.as_str() {
        "ADDED" | "MODIFIED" => node(Changed::To),
        "DELETED" => node(Changed::Gone),
        "BOOKMARK" => Changed::Nothing,
        "ERROR" => {
            let message = text_at(text, &["object", "message"]).unwrap_or_default();
            Changed::Failed(NodesError::Refused { code: status_code(text), message: brief(message) })
        }
        kind => {
            let unknown = NodesError::broken("received an event of unknown type", kind);
            Changed::Damaged(Box::new(Changed::Failed(unknown)))
        }
    };
    (changed, version)
}

fn status_code(event: &[u8]) -> u16 {
    #[derive(serde::Deserialize)]
    struct Failed {
        object: Code,
    }
    #[derive(serde::Deserialize)]
    struct Code {
        #[serde(default)]
        code: u16,
    }
    serde_json::from_slice::<Failed>(event).map_or(0, |failed| failed.object.code)
}
