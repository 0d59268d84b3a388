//! An inventory with faults: a TLS server that answers from a table.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::authority::{Authority, Identity};

/// A name of the server that nothing resolves: only a proxy finds it.
pub(crate) const NAME: &str = "cmdb.invalid";

/// The token that the server asks for.
pub(crate) const TOKEN: &str = "cmdb-token";

/// What is wrong with the inventory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Connections are closed before the handshake.
    Down,
    /// It takes a request and never answers.
    Slow,
    Status(u16),
    /// This body, whatever the request.
    Body(&'static str),
    /// A body of 100 MB.
    Huge,
    /// A redirect to this URL.
    Redirect(String),
}

struct State {
    fault: Fault,
    answers: BTreeMap<String, String>,
    identity: Identity,
    /// The CA (PEM) of the client certificates that it asks for.
    clients: Option<String>,
    requests: Vec<String>,
    sent: usize,
    /// What a header `Authorization` has one of.
    authorizes: Vec<String>,
}

/// A running inventory.
pub(crate) struct Cmdb {
    pub(crate) port: u16,
    authority: Authority,
    state: Arc<Mutex<State>>,
}

fn server(authority: &Authority, years: (i32, i32)) -> Identity {
    authority.sign("cmdb", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names =
            vec![SanType::IpAddress([127, 0, 0, 1].into()), SanType::DnsName(NAME.try_into().unwrap())];
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    })
}

impl Cmdb {
    /// Starts on a free port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let authority = Authority::new("cmdb CA");
        let identity = server(&authority, (2020, 2120));
        let (answers, requests) = (BTreeMap::new(), Vec::new());
        let (fault, authorizes) = (Fault::None, vec![format!("Bearer {TOKEN}")]);
        let state = State { fault, answers, identity, clients: None, requests, sent: 0, authorizes };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { port, authority, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The body for a path; `None` for 404.
    pub(crate) fn answer(&self, path: &str, body: Option<&str>) {
        let answers = &mut self.lock().answers;
        match body {
            Some(body) => drop(answers.insert(path.to_owned(), body.to_owned())),
            None => drop(answers.remove(path)),
        }
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.lock().fault = fault;
    }

    /// Shows a certificate that expired, or one of another CA, or a good one.
    pub(crate) fn certificate(&self, which: &str) {
        self.lock().identity = match which {
            "expired" => server(&self.authority, (2020, 2021)),
            "of another CA" => server(&Authority::new("cmdb CA"), (2020, 2120)),
            _ => server(&self.authority, (2020, 2120)),
        };
    }

    /// Answers only clients with a certificate of this CA (PEM).
    pub(crate) fn ask_for_certificates(&self, ca: &str) {
        self.lock().clients = Some(ca.to_owned());
    }

    /// Lets in also who has this in the header `Authorization`.
    pub(crate) fn authorize(&self, header: &str) {
        self.lock().authorizes.push(header.to_owned());
    }

    /// The heads of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// Bytes of bodies that were sent so far.
    pub(crate) fn sent(&self) -> usize {
        self.lock().sent
    }

    /// Writes the credentials for an inventory of this name below `directory`.
    pub(crate) fn credentials(&self, directory: &Path, name: &str) {
        let own = directory.join(name);
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("url"), format!("https://127.0.0.1:{}/\n", self.port)).unwrap();
        std::fs::write(own.join("token"), format!("{TOKEN}\n")).unwrap();
        std::fs::write(own.join("ca.crt"), &self.authority.pem).unwrap();
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let (fault, identity, clients) = {
        let state = state.lock().unwrap();
        (state.fault.clone(), state.identity.clone(), state.clients.clone())
    };
    if fault == Fault::Down {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(rustls::ALL_VERSIONS);
    let config = match clients {
        None => config.unwrap().with_no_client_auth(),
        Some(ca) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.unwrap().with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let config = config.with_single_cert(chain, key).unwrap();
    let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let mut head = String::new();
    let mut reader = BufReader::new(&mut stream);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    state.lock().unwrap().requests.push(head.clone());
    respond(&mut stream, &head, &fault, state)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn respond(stream: &mut impl std::io::Write, head: &str, fault: &Fault, state: &Mutex<State>) -> std::io::Result<()> {
    let mut write = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
    };
    match fault {
        Fault::Slow => {
            while state.lock().unwrap().fault == Fault::Slow {
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
        Fault::Status(code) => write(&format!("{code} No"), "", "{}"),
        Fault::Body(body) => write("200 OK", "", body),
        Fault::Redirect(url) => write("302 Found", &format!("Location: {url}\r\n"), ""),
        Fault::Huge => {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            let chunk = [b' '; 64 * 1024];
            for _ in 0..1600 {
                stream.write_all(&chunk)?;
                state.lock().unwrap().sent += chunk.len();
            }
            Ok(())
        }
        Fault::None | Fault::Down => {
            let header = |name: &str| {
                let mut lines = head.lines().filter_map(|line| line.split_once(": "));
                lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
            };
            let given = header("authorization").unwrap_or_default();
            if !state.lock().unwrap().authorizes.iter().any(|known| given.contains(known)) {
                return write("401 Unauthorized", "", "");
            }
            let path = head.split(' ').nth(1).unwrap_or_default();
            let Some(body) = state.lock().unwrap().answers.get(path).cloned() else {
                return write("404 Not Found", "", "");
            };
            let mut hasher = DefaultHasher::new();
            body.hash(&mut hasher);
            let etag = format!("\"{:x}\"", hasher.finish());
            if header("if-none-match").as_ref() == Some(&etag) {
                return write("304 Not Modified", "", "");
            }
            write("200 OK", &format!("ETag: {etag}\r\n"), &body)
        }
    }
}

/// An HTTP proxy that connects to one port, whatever it is asked for.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    connects: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts on a free port.
    pub(crate) fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connects = Arc::new(Mutex::default());
        let shared = connects.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connects = shared.clone();
                thread::spawn(move || drop(forward(stream, to, &connects)));
            }
        });
        Self { port, connects }
    }

    /// The first lines of all requests so far.
    pub(crate) fn connects(&self) -> Vec<String> {
        self.connects.lock().unwrap().clone()
    }
}

fn forward(mut client: TcpStream, to: u16, connects: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    // The client waits for the answer, so nothing that follows the head is read here.
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    connects.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
    let mut server = TcpStream::connect(("127.0.0.1", to))?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    // Also after a reset, with which a server may end a connection that it refuses.
    let copied = std::io::copy(&mut server, &mut client);
    client.shutdown(Shutdown::Both)?;
    copied.map(drop)
}
