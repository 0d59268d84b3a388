//! An inventory with faults: a TLS server that answers from a table.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::authority::{Authority, Identity};

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
    requests: Vec<String>,
    sent: usize,
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
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
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
        let state = Arc::new(Mutex::new(State { fault: Fault::None, answers, identity, requests, sent: 0 }));
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
    let (fault, identity) = {
        let state = state.lock().unwrap();
        (state.fault.clone(), state.identity.clone())
    };
    if fault == Fault::Down {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(rustls::ALL_VERSIONS);
    let config = config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
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
            if header("authorization").as_deref() != Some(&format!("Bearer {TOKEN}")) {
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
