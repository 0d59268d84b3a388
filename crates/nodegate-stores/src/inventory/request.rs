//! One request to an inventory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, ETAG, HeaderValue, IF_NONE_MATCH};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;
use url::Url;

use super::credentials::{Authorization, Credentials, Files, covers};
use nodegate_base::http_client::{USER_AGENT, body, in_words, system_roots, trusting};
use nodegate_policy::Inventory;

/// Maximum time of a request about one node, and of one about all nodes.
const TIMEOUT: Duration = Duration::from_secs(10);
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time of a connection. It is shorter, so that an inventory that cannot be reached is told from one that is slow.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer about one node, and of one about all nodes, in bytes.
const ANSWER_MAX: usize = 64 * 1024;
const BATCH_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of redirects.
const REDIRECTS_MAX: usize = 5;
/// Maximum length of an ETag that is sent back.
const ETAG_MAX: usize = 256;
/// Maximum number of pages of an answer, and maximum time for all of them.
const PAGES_MAX: usize = 1_000;
const PAGES_TIMEOUT: Duration = Duration::from_secs(600);
/// How often the files of credentials are read again.
const REREAD: Duration = Duration::from_secs(5);

/// The word for 404 in metrics.
pub(super) const NOT_FOUND: &str = "not_found";

/// What an inventory returned.
#[derive(Debug)]
pub(super) enum Returned {
    /// A body, and its ETag.
    Body(Vec<u8>, Option<HeaderValue>),
    /// The body is the same as the last one.
    Unchanged,
    /// It does not know the node.
    NotFound,
}

/// Why there is no answer: a sentence that contains nothing of the answer, and no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The inventory cannot be asked about any node: no connection, no trust, no credentials.
    OfInventory(String),
    /// The request about this node got no answer.
    OfNode(String),
}

/// The client of one inventory. It is built again when its credentials change.
#[derive(Default)]
pub(super) struct Requester {
    directory: Option<PathBuf>,
    built: tokio::sync::Mutex<Option<Built>>,
}

struct Built {
    files: Option<Files>,
    read_at: Instant,
    client: Result<Arc<Ready>, String>,
}

struct Ready {
    http: Client,
    credentials: Option<Credentials>,
}

impl Requester {
    /// A client whose credentials are below `directory`.
    pub(super) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), built: tokio::sync::Mutex::default() }
    }

    /// Asks about a node, or about all of them.
    ///
    /// # Errors
    /// Returns a sentence, and whether it is about the inventory or the node.
    pub(super) async fn ask(
        &self,
        inventory: &Inventory,
        node: &str,
        etag: Option<&HeaderValue>,
    ) -> Result<Returned, Fault> {
        let Some(url) = inventory.url.of(node) else { return Ok(Returned::NotFound) };
        self.get(inventory, url, etag).await
    }

    /// The pages after the first one of an answer about all nodes.
    pub(super) fn pages<'r>(&'r self, inventory: &'r Inventory, spacing: Duration) -> Pages<'r> {
        Pages {
            requester: self,
            inventory,
            spacing,
            from: inventory.url.of(""),
            read: 1,
            until: Instant::now() + PAGES_TIMEOUT,
        }
    }

    async fn get(&self, inventory: &Inventory, url: Url, etag: Option<&HeaderValue>) -> Result<Returned, Fault> {
        let ready = self.ready(inventory).await.map_err(Fault::OfInventory)?;
        let batch = inventory.url.is_batch();
        let mut request =
            ready.http.get(url.clone()).header(ACCEPT, "application/json, text/csv;q=0.9, text/plain;q=0.9");
        if let Some(credentials) = &ready.credentials {
            if !covers(&credentials.url, &url) {
                return Err(Fault::OfInventory(format!(
                    "the credentials of inventory {} are for {}, and the URL of the policy, or of a next page, is not below it, or has an encoded %, dot, slash or backslash in its path",
                    inventory.name, credentials.url
                )));
            }
            if let Some(authorization) = &credentials.authorization {
                request = request.header(AUTHORIZATION, authorization.header().map_err(Fault::OfInventory)?);
            }
        }
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let limit = if batch { BATCH_TIMEOUT } else { TIMEOUT };
        let response = request.timeout(limit).send().await.map_err(|error| unsent(&error, limit))?;
        match response.status() {
            StatusCode::NOT_MODIFIED if etag.is_some() => return Ok(Returned::Unchanged),
            StatusCode::NOT_FOUND if !batch => return Ok(Returned::NotFound),
            StatusCode::OK => {}
            status => return Err(Fault::OfNode(format!("it answered {status}"))),
        }
        let etag = response.headers().get(ETAG).filter(|etag| etag.len() <= ETAG_MAX).cloned();
        let size = if batch { BATCH_MAX } else { ANSWER_MAX };
        Ok(Returned::Body(body(response, size, limit).await.map_err(Fault::OfNode)?, etag))
    }

    /// The client, with the credentials as they are in the files now.
    async fn ready(&self, inventory: &Inventory) -> Result<Arc<Ready>, String> {
        let mut built = self.built.lock().await;
        if let Some(known) = built.as_ref().filter(|known| known.read_at.elapsed() < REREAD) {
            return known.client.clone();
        }
        let read_at = Instant::now();
        let files = match &self.directory {
            Some(directory) => Files::read(directory, &inventory.name)?,
            None => None,
        };
        let client = match built.take() {
            Some(known) if known.files == files && known.client.is_ok() => known.client,
            _ => Ready::build(files.as_ref()).map(Arc::new),
        };
        *built = Some(Built { files, read_at, client: client.clone() });
        client
    }
}

/// Asks for one page after the other.
pub(super) struct Pages<'r> {
    requester: &'r Requester,
    inventory: &'r Inventory,
    spacing: Duration,
    /// The URL of the page that was read last.
    from: Option<Url>,
    read: usize,
    until: Instant,
}

impl Pages<'_> {
    /// The body of the next page, whose URL is written so on the last one.
    ///
    /// # Errors
    /// Returns a sentence if it may not be asked for, or is not answered.
    pub(super) async fn next(&mut self, written: &str) -> Result<Vec<u8>, Fault> {
        let from = self.from.as_ref();
        let Some((from, to)) = from.and_then(|from| Some((from, from.join(written).ok()?))) else {
            return Err(Fault::OfNode("what it calls its next page is no URL".to_owned()));
        };
        if to.origin() != from.origin() {
            return Err(Fault::OfInventory(
                "its next page is at another scheme, host or port; behind a proxy, let it write the URL under which it is asked".to_owned(),
            ));
        }
        if to == *from || self.read == PAGES_MAX {
            return Err(Fault::OfNode(format!("its pages do not end: they repeat, or are more than {PAGES_MAX}")));
        }
        (self.read, self.from) = (self.read + 1, Some(to.clone()));
        tokio::time::sleep(self.spacing).await;
        let get = self.requester.get(self.inventory, to, None);
        match tokio::time::timeout_at(self.until, get).await {
            Ok(Ok(Returned::Body(body, _))) => Ok(body),
            Ok(Ok(Returned::Unchanged | Returned::NotFound)) => {
                Err(Fault::OfNode("it does not know its next page".to_owned()))
            }
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::OfNode(format!("its pages took longer than {} s", PAGES_TIMEOUT.as_secs()))),
        }
    }
}

/// Why a request was not answered. Without a connection, no other node would be answered.
fn unsent(error: &reqwest::Error, limit: Duration) -> Fault {
    match error.is_connect() {
        true if error.is_timeout() => Fault::OfInventory(in_words(error, CONNECT_TIMEOUT)),
        true => Fault::OfInventory(in_words(error, limit)),
        false => Fault::OfNode(in_words(error, limit)),
    }
}

impl Ready {
    fn build(files: Option<&Files>) -> Result<Self, String> {
        let mut credentials = files.map(Files::parse).transpose()?;
        let tls = tls(credentials.as_mut())?;
        let below = credentials.as_ref().map(|credentials| credentials.url.clone());
        let signs =
            credentials.as_ref().is_some_and(|known| matches!(known.authorization, Some(Authorization::Maas(_))));
        let http = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(Policy::custom(move |attempt| redirected(attempt, below.as_ref(), signs)))
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(USER_AGENT)
            .build()
            .map_err(|error| format!("could not create the client: {error}"))?;
        Ok(Self { http, credentials })
    }
}

/// Follows a redirect only to where the policy, and the credentials, permit a request.
fn redirected(attempt: Attempt<'_>, below: Option<&Url>, signs: bool) -> reqwest::redirect::Action {
    let to = attempt.url();
    let same_origin = attempt.previous().first().is_some_and(|first| first.origin() == to.origin());
    if !same_origin {
        attempt.error("it redirects to another scheme, host or port")
    } else if below.is_some_and(|below| !covers(below, to)) {
        attempt.error("it redirects to a URL that its credentials are not for")
    } else if attempt.previous().len() > REDIRECTS_MAX {
        attempt.error("it redirects too often")
    } else if signs {
        attempt.error(
            "it redirects, and MAAS refuses a signature that comes twice; write the final URL, which ends with a slash",
        )
    } else {
        attempt.follow()
    }
}

fn tls(credentials: Option<&mut Credentials>) -> Result<ClientConfig, String> {
    let (ca, identity) = credentials.map(|known| (known.ca.take(), known.identity.take())).unwrap_or_default();
    let roots = match ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in ca {
                roots.add(certificate).map_err(|error| format!("the file \"ca.crt\" contains no CA: {error}"))?;
            }
            roots
        }
        None => system_roots(),
    };
    trusting(roots, identity)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use nodegate_policy::{PolicyDocument, PolicySet};

    /// What a request ends with if whoever listens sends `answer`, or if nobody listens.
    async fn fault(answer: Option<&'static str>) -> Fault {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/{{node}}", listener.local_addr().unwrap());
        match answer {
            None => drop(listener),
            Some(answer) => drop(tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            })),
        }
        let spec = json!({"inventory": [{"name": "cmdb", "url": url, "allow": ["rack"]}]});
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        Requester::new(None).ask(set.inventories().next().unwrap(), "n", None).await.unwrap_err()
    }

    #[tokio::test]
    async fn only_what_no_node_would_be_answered_for_is_a_fault_of_the_inventory() {
        assert!(matches!(fault(None).await, Fault::OfInventory(why) if why.starts_with("could not connect: ")));
        let unavailable = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(fault(Some(unavailable)).await, Fault::OfNode("it answered 503 Service Unavailable".to_owned()));
        assert!(matches!(fault(Some("")).await, Fault::OfNode(_)), "it breaks off about this node");
    }
}
