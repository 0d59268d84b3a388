//! Reads nodes from the API server one at a time, as text, and patches them without reading the response.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use json_patch::Patch as JsonPatch;
use k8s_openapi::api::core::v1::Node;
use kube::api::{GetParams, ListParams, Patch, PatchParams, WatchParams};
use kube::client::Body;
use kube::core::{Request, Status};
use kube::{Client, Resource as _};
use tokio_util::task::AbortOnDropHandle;

use super::event::{Changed, changed};
use super::pieces::{LineCutter, ListCutter, Part, Piece};
use super::read::{NodesError, Read, TOO_LARGE};
use super::{NodeObject, Reading, Unreadable, text_at};
use nodegate_base::kube_error::in_words;
use nodegate_base::telemetry::brief;
use nodegate_base::traces;
use nodegate_policy::cel::Paths;

/// Number of nodes in one page of a list.
const PAGE: u32 = 250;
/// Number of other objects in one page of a list, as `kubectl` asks for them.
const OBJECTS: u32 = 500;
/// Maximum pause within a response. The API server sends a bookmark every minute in a watch.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// How long a watch lasts before it is restarted, in seconds.
const WATCH_SECONDS: u32 = 290;
/// How much of an error message is read, in bytes.
const ERROR_MAX: usize = 64 * 1024;

/// The end of a page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The resource version of the list.
    pub resource_version: Option<String>,
    /// The continue token, if there are more pages.
    pub next: Option<String>,
    /// How many nodes follow after this page, if the API server reports it.
    pub remaining: usize,
}

/// The nodes of a cluster.
#[derive(Clone)]
pub struct NodeApi {
    client: Client,
    request: Request,
    reading: Arc<Reading>,
}

impl NodeApi {
    /// The nodes of the cluster that `client` connects to.
    pub fn new(client: Client) -> Self {
        Self { client, request: Request::new(Node::url_path(&(), None)), reading: Arc::default() }
    }

    /// The same nodes, of which only these parts are read.
    pub(super) fn reading(&self, parts: Arc<Paths>) -> Self {
        Self { reading: Arc::new(Reading::new(parts)), ..self.clone() }
    }

    /// Reads one page of all nodes: the first, or the one at `next`. Calls `each` for every node as it arrives.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or its response is incomplete. `each` has then been called for the
    /// nodes before the error.
    pub async fn page(&self, next: Option<&str>, each: impl FnMut(Read)) -> Result<Page, NodesError> {
        self.part(PAGE, next, each).await
    }

    /// Reads all nodes, page by page.
    ///
    /// # Errors
    /// See [`Self::page`].
    pub async fn each(&self, mut each: impl FnMut(Read)) -> Result<(), NodesError> {
        let mut page = self.page(None, &mut each).await?;
        while let Some(next) = page.next {
            page = self.page(Some(&next), &mut each).await?;
        }
        Ok(())
    }

    async fn part(&self, limit: u32, next: Option<&str>, mut each: impl FnMut(Read)) -> Result<Page, NodesError> {
        let (mut answer, mut page) = (self.list((limit, ""), next).await?, Page::default());
        let take = |part| match part {
            Part::Item(piece) => each(read(piece, &self.reading)),
            Part::Metadata(Piece::Whole(text) | Piece::Head(text)) => page = list_metadata(&text),
        };
        answer.parts(take).await?;
        Ok(page)
    }

    /// `limit`: how many objects a page has at most; `fields`: the field selector.
    async fn list(&self, (limit, fields): (u32, &str), next: Option<&str>) -> Result<Answer, NodesError> {
        let mut parameters = ListParams::default().limit(limit).fields(fields);
        parameters.continue_token = next.map(str::to_owned);
        self.open(self.request.list(&parameters)).await
    }

    /// Checks whether nodes can be listed and watched.
    ///
    /// # Errors
    /// Returns the reason if they cannot.
    pub async fn can_be_seen(&self) -> Result<(), NodesError> {
        let page = self.part(1, None, drop).await?;
        self.watch(&page.resource_version.unwrap_or_default()).await.map(drop)
    }

    /// Reads a node; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or its response is incomplete.
    pub async fn get(&self, name: &str) -> Result<Option<Read>, NodesError> {
        let mut answer = match self.open(self.request.get(name, &GetParams::default())).await {
            Err(NodesError::Refused { code: 404, .. }) => return Ok(None),
            answer => answer?,
        };
        // The response is one line.
        let mut cutter = LineCutter::new();
        while let Some(bytes) = answer.next().await? {
            cutter.feed(&bytes);
        }
        cutter.feed(b"\n");
        Ok(cutter.next().map(|piece| read(piece, &self.reading)))
    }

    /// Starts a watch from a version.
    pub(super) async fn watch(&self, version: &str) -> Result<NodeEvents, NodesError> {
        let parameters = WatchParams::default().timeout(WATCH_SECONDS);
        let answer = self.open(self.request.watch(&parameters, version)).await?;
        Ok(NodeEvents { answer, cutter: LineCutter::new(), reading: self.reading.clone() })
    }

    /// Patches a node. The response is not read: the node's kubelet decides how large it is, and the watch reports
    /// the node.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn patch(&self, name: &str, parameters: &PatchParams, patch: JsonPatch) -> Result<(), kube::Error> {
        let request = self.request.patch_metadata(name, parameters, &Patch::<()>::Json(patch));
        let mut request = request.map_err(kube::Error::BuildRequest)?.map(Body::from);
        traces::inject(request.headers_mut());
        let answer = self.client.send(request).await?;
        let code = answer.status();
        let mut answer = Answer { body: answer.into_body() };
        if code.is_success() {
            // Reads the response to its end, so that the connection can be reused.
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
            .map_err(|_| NodesError::Broken("the API server did not answer in time".to_owned()))?
            .map_err(|error| NodesError::broken("could not reach the API server", in_words(&error)))?;
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

/// Reads all objects at a path of the API that fit the field selector (empty: all), page by page, as [`NodeApi::page`] reads nodes: a page is never in memory as a
/// whole. Calls `each` with the text of every object, or with `None` for one that exceeds the maximum size.
///
/// The API server names the next page before the objects of a page, so it already writes the next one meanwhile.
///
/// # Errors
/// See [`NodeApi::page`].
pub async fn each_object(
    client: &Client,
    path: &str,
    fields: &str,
    mut each: impl FnMut(Option<&[u8]>),
) -> Result<(), NodesError> {
    let api = NodeApi { request: Request::new(path), ..NodeApi::new(client.clone()) };
    let mut answer = api.list((OBJECTS, fields), None).await?;
    loop {
        let mut following = None;
        let take = |part| match part {
            Part::Item(Piece::Whole(text)) => each(Some(&text)),
            Part::Item(Piece::Head(_)) => each(None),
            Part::Metadata(Piece::Whole(text) | Piece::Head(text)) => {
                following = list_metadata(&text).next.map(|next| {
                    let (api, fields) = (api.clone(), fields.to_owned());
                    let list = async move { api.list((OBJECTS, &fields), Some(&next)).await };
                    AbortOnDropHandle::new(tokio::spawn(list))
                });
            }
        };
        answer.parts(take).await?;
        match following {
            None => return Ok(()),
            Some(next) => answer = next.await.map_err(|error| NodesError::broken("request", error))??,
        }
    }
}

/// A response of the API server, as it arrives.
struct Answer {
    body: Body,
}

impl Answer {
    /// The next chunk; `None` at the end.
    async fn next(&mut self) -> Result<Option<impl std::ops::Deref<Target = [u8]> + use<>>, NodesError> {
        loop {
            let frame = tokio::time::timeout(PAUSE_MAX, self.body.frame()).await;
            match frame.map_err(|_| NodesError::Broken("received no data for two minutes".to_owned()))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(NodesError::broken("the response is incomplete", in_words(&error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Reads a list to its end, and calls `each` for every part as it arrives.
    async fn parts(&mut self, mut each: impl FnMut(Part)) -> Result<(), NodesError> {
        let mut cutter = ListCutter::new();
        while let Some(bytes) = self.next().await? {
            cutter.feed(&bytes);
            while let Some(part) = cutter.next() {
                each(part);
            }
        }
        if cutter.ended() { Ok(()) } else { Err(NodesError::Broken("the list is incomplete".to_owned())) }
    }

    /// The beginning of the response.
    async fn head(&mut self) -> Vec<u8> {
        let mut head = Vec::new();
        while head.len() < ERROR_MAX {
            let Ok(Some(bytes)) = self.next().await else { break };
            head.extend_from_slice(&bytes[..bytes.len().min(ERROR_MAX - head.len())]);
        }
        head
    }
}

/// A running watch.
pub(super) struct NodeEvents {
    answer: Answer,
    cutter: LineCutter,
    reading: Arc<Reading>,
}

impl NodeEvents {
    /// The next event and its version, if it has one; `None` if the API server has ended the watch.
    pub(super) async fn next(&mut self) -> Result<Option<(Changed, Option<String>)>, NodesError> {
        loop {
            if let Some(line) = self.cutter.next() {
                return Ok(Some(changed(line, &self.reading)));
            }
            match self.answer.next().await? {
                Some(bytes) => self.cutter.feed(&bytes),
                None => return Ok(None),
            }
        }
    }
}

fn read(piece: Piece, reading: &Reading) -> Read {
    match piece {
        Piece::Head(head) => Err(Unreadable::new(&head, &[], TOO_LARGE)),
        Piece::Whole(text) => match std::str::from_utf8(&text) {
            Ok(text) => NodeObject::read_parts(text, reading),
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
    let field = |field| text_at(text, &[field]).filter(|text| !text.is_empty());
    let remaining = serde_json::from_slice::<Remaining>(text).unwrap_or_default();
    Page {
        resource_version: field("resourceVersion"),
        next: field("continue"),
        remaining: remaining.remaining_item_count.unwrap_or_default(),
    }
}
