//! Nodes at the API server: read one at a time as text, whatever they hold, and changed without reading the answer.

use std::time::Duration;

use http_body_util::BodyExt as _;
use json_patch::Patch as JsonPatch;
use k8s_openapi::api::core::v1::Node;
use kube::api::{GetParams, ListParams, Patch, PatchParams, WatchParams};
use kube::client::Body;
use kube::core::{Request, Status};
use kube::{Client, Resource as _};

use super::pieces::{LineCutter, ListCutter, Part, Piece};
use super::{NodeObject, Unreadable, text_at};
use crate::kube_error::in_words;
use crate::telemetry::brief;

/// Nodes in one page of a list.
const PAGE: u32 = 250;
/// How long an answer may pause. The API server sends a bookmark a minute in a watch.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// How long a watch lasts before it is begun anew, in seconds.
const WATCH_SECONDS: u32 = 290;
/// Most that is read of an error's text, in bytes.
const ERROR_MAX: usize = 64 * 1024;

/// Nodes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// The API server refused. 410: what was asked for has expired.
    #[error("the API server answers {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What it says.
        message: String,
    },
    /// It could not be asked, or its answer broke off.
    #[error("{0}")]
    Broken(String),
}

impl NodesError {
    fn broken(what: &str, why: impl std::fmt::Display) -> Self {
        Self::Broken(format!("{what}: {}", brief(why)))
    }

    /// Whether what was asked for has expired, so that everything has to be read anew.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }
}

/// One node of a list or of a watch: readable, or not.
pub type Read = Result<NodeObject, Unreadable>;

/// What one page of a list ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The version that the list shows.
    pub resource_version: Option<String>,
    /// Where the list goes on, if it does.
    pub next: Option<String>,
    /// How many nodes come after this page, if the API server says so.
    pub remaining: usize,
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Changed {
    /// A node was added or changed.
    To(Read),
    /// A node is gone.
    Gone(Read),
    /// Nothing has changed up to this version.
    Nothing,
    /// The watch ends.
    Failed(NodesError),
}

/// Nodes of a cluster.
#[derive(Clone)]
pub struct NodeApi {
    client: Client,
    request: Request,
}

impl NodeApi {
    /// Nodes of the cluster that `client` is of.
    pub fn new(client: Client) -> Self {
        Self { client, request: Request::new(Node::url_path(&(), None)) }
    }

    /// Reads one page of all nodes: the first, or the one at `next`. `each` gets the nodes one by one as they come.
    ///
    /// # Errors
    /// If the API server refuses or its answer breaks off. The nodes until then have been given to `each`.
    pub async fn page(&self, next: Option<&str>, each: impl FnMut(Read)) -> Result<Page, NodesError> {
        self.part(PAGE, next, each).await
    }

    async fn part(&self, limit: u32, next: Option<&str>, mut each: impl FnMut(Read)) -> Result<Page, NodesError> {
        let mut parameters = ListParams::default().limit(limit);
        parameters.continue_token = next.map(str::to_owned);
        let mut answer = self.open(self.request.list(&parameters)).await?;
        let (mut cutter, mut page) = (ListCutter::new(), Page::default());
        while let Some(bytes) = answer.next().await? {
            cutter.feed(&bytes);
            while let Some(part) = cutter.next() {
                match part {
                    Part::Item(piece) => each(read(piece)),
                    Part::Metadata(Piece::Whole(text) | Piece::Head(text)) => page = list_metadata(&text),
                }
            }
        }
        if cutter.ended() { Ok(page) } else { Err(NodesError::Broken("the list of nodes broke off".to_owned())) }
    }

    /// Whether nodes may be listed and watched at all.
    ///
    /// # Errors
    /// Why not.
    pub async fn can_be_seen(&self) -> Result<(), NodesError> {
        let page = self.part(1, None, drop).await?;
        self.watch(&page.resource_version.unwrap_or_default()).await.map(drop)
    }

    /// Reads a node; `None` if it is not there.
    ///
    /// # Errors
    /// If the API server refuses or its answer breaks off.
    pub async fn get(&self, name: &str) -> Result<Option<Read>, NodesError> {
        let mut answer = match self.open(self.request.get(name, &GetParams::default())).await {
            Err(NodesError::Refused { code: 404, .. }) => return Ok(None),
            answer => answer?,
        };
        // It is on one line.
        let mut cutter = LineCutter::new();
        while let Some(bytes) = answer.next().await? {
            cutter.feed(&bytes);
        }
        cutter.feed(b"\n");
        Ok(cutter.next().map(read))
    }

    /// Begins to watch from a version on.
    pub(super) async fn watch(&self, version: &str) -> Result<NodeEvents, NodesError> {
        let parameters = WatchParams::default().timeout(WATCH_SECONDS);
        let answer = self.open(self.request.watch(&parameters, version)).await?;
        Ok(NodeEvents { answer, cutter: LineCutter::new() })
    }

    /// Changes a node. What it is afterwards is not read: its own kubelet decides how large that is, and the watch shows it.
    ///
    /// # Errors
    /// If the API server refuses or cannot be asked.
    pub async fn patch(&self, name: &str, parameters: &PatchParams, patch: JsonPatch) -> Result<(), kube::Error> {
        let request = self.request.patch_metadata(name, parameters, &Patch::<()>::Json(patch));
        let answer = self.client.send(request.map_err(kube::Error::BuildRequest)?.map(Body::from)).await?;
        let code = answer.status();
        let mut answer = Answer { body: answer.into_body() };
        if code.is_success() {
            // Read to its end, so that the connection serves the next request.
            while answer.next().await.is_ok_and(|bytes| bytes.is_some()) {}
            return Ok(());
        }
        let text = answer.head().await;
        let status = serde_json::from_slice::<Status>(&text).unwrap_or_else(|_| {
            Status::failure(&brief(String::from_utf8_lossy(&text).trim()), "Failed").with_code(code.as_u16())
        });
        Err(kube::Error::Api(status.boxed()))
    }

    async fn open(
        &self,
        request: Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, NodesError> {
        let request = request.map_err(|error| NodesError::broken("request", error))?;
        let sent = tokio::time::timeout(PAUSE_MAX, self.client.send(request.map(Body::from))).await;
        let answer = sent
            .map_err(|_| NodesError::Broken("the API server does not answer".to_owned()))?
            .map_err(|error| NodesError::broken("the API server could not be asked", in_words(&error)))?;
        let code = answer.status();
        let mut answer = Answer { body: answer.into_body() };
        if code.is_success() {
            return Ok(answer);
        }
        let text = answer.head().await;
        let message = text_at(&text, &["message"]).unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
        Err(NodesError::Refused { code: code.as_u16(), message: brief(message.trim()) })
    }
}

/// What the API server answers, as it comes.
struct Answer {
    body: Body,
}

impl Answer {
    /// What came next; `None` at the end.
    async fn next(&mut self) -> Result<Option<impl std::ops::Deref<Target = [u8]> + use<>>, NodesError> {
        loop {
            let frame = tokio::time::timeout(PAUSE_MAX, self.body.frame()).await;
            match frame.map_err(|_| NodesError::Broken("nothing came for two minutes".to_owned()))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(NodesError::broken("the answer broke off", in_words(&error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// How it begins.
    async fn head(&mut self) -> Vec<u8> {
        let mut head = Vec::new();
        while head.len() < ERROR_MAX {
            let Ok(Some(bytes)) = self.next().await else { break };
            head.extend_from_slice(&bytes[..bytes.len().min(ERROR_MAX - head.len())]);
        }
        head
    }
}

/// A watch that has begun.
pub(super) struct NodeEvents {
    answer: Answer,
    cutter: LineCutter,
}

impl NodeEvents {
    /// The next event and the version it is of, if it says so; `None` when the API server has ended the watch.
    pub(super) async fn next(&mut self) -> Result<Option<(Changed, Option<String>)>, NodesError> {
        loop {
            if let Some(line) = self.cutter.next() {
                return Ok(Some(changed(line)));
            }
            match self.answer.next().await? {
                Some(bytes) => self.cutter.feed(&bytes),
                None => return Ok(None),
            }
        }
    }
}

#[derive(serde::Deserialize)]
struct EventWire<'a> {
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

fn changed(line: Piece) -> (Changed, Option<String>) {
    let (Piece::Whole(text) | Piece::Head(text)) = &line;
    let kind = text_at(text, &["type"]).unwrap_or_default();
    let version = text_at(text, &["object", "metadata", "resourceVersion"]);
    let node = || match &line {
        Piece::Head(_) => Err(Unreadable::new(text, &["object"], TOO_LARGE)),
        Piece::Whole(text) => match serde_json::from_slice::<EventWire<'_>>(text) {
            Ok(event) => NodeObject::read(event.object.get()),
            Err(error) => Err(Unreadable::new(text, &["object"], error)),
        },
    };
    let changed = match kind.as_str() {
        "ADDED" | "MODIFIED" => Changed::To(node()),
        "DELETED" => Changed::Gone(node()),
        "BOOKMARK" => Changed::Nothing,
        "ERROR" => {
            let message = text_at(text, &["object", "message"]).unwrap_or_default();
            Changed::Failed(NodesError::Refused { code: status_code(text), message: brief(message) })
        }
        kind => Changed::Failed(NodesError::broken("an event of an unknown type came", kind)),
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

const TOO_LARGE: &str = "it is larger than any object that the API server stores";

fn read(piece: Piece) -> Read {
    match piece {
        Piece::Head(head) => Err(Unreadable::new(&head, &[], TOO_LARGE)),
        Piece::Whole(text) => match std::str::from_utf8(&text) {
            Ok(text) => NodeObject::read(text),
            Err(error) => Err(Unreadable::new(&text, &[], error)),
        },
    }
}

fn list_metadata(text: &[u8]) -> Page {
    #[derive(Default, serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Remaining {
        #[serde(default)]
        remaining_item_count: Option<usize>,
    }
    let said = |field| text_at(text, &[field]).filter(|text| !text.is_empty());
    let remaining = serde_json::from_slice::<Remaining>(text).unwrap_or_default();
    Page {
        resource_version: said("resourceVersion"),
        next: said("continue"),
        remaining: remaining.remaining_item_count.unwrap_or_default(),
    }
}
