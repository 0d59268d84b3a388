//! A collector of traces with faults: an HTTP server that decodes what OTLP sends.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use super::authority::Identity;

/// How the collector answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// It takes everything.
    Take,
    /// It takes a request and never answers.
    Hang,
    /// It answers so, and asks to be asked again at once.
    Status(u16),
    /// It takes a request but for so many spans.
    Reject(i64),
}

/// A span that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) span: Span,
    pub(crate) resource: Value,
}

#[derive(Default)]
struct State {
    answers: Vec<Answer>,
    arrived: Vec<Arrived>,
    heads: Vec<String>,
    bodies: Vec<Vec<u8>>,
}

/// A running collector. It ends with the test.
pub(crate) struct Collector {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

impl Collector {
    /// Starts on a free port.
    pub(crate) fn start() -> Self {
        Self::listen(None)
    }

    /// Starts with TLS, with this certificate.
    pub(crate) fn with_tls(identity: &Identity) -> Self {
        let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        Self::listen(Some(Arc::new(config)))
    }

    fn listen(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<State>>::default();
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (state, tls) = (shared.clone(), tls.clone());
                thread::spawn(move || match tls {
                    None => drop(serve(stream, &state)),
                    Some(config) => {
                        let connection = rustls::ServerConnection::new(config).unwrap();
                        drop(serve(rustls::StreamOwned::new(connection, stream), &state));
                    }
                });
            }
        });
        Self { port, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Answers the next requests so, one each, and those after them as the last one.
    pub(crate) fn answer(&self, answers: &[Answer]) {
        self.lock().answers = answers.iter().rev().cloned().collect();
    }

    /// All spans so far.
    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.lock().arrived.clone()
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.lock().heads.clone()
    }

    /// Whether this text is in any request so far.
    pub(crate) fn contains(&self, text: &str) -> bool {
        let has = |body: &Vec<u8>| body.windows(text.len()).any(|part| part == text.as_bytes());
        self.lock().bodies.iter().any(has)
    }
}

fn serve(stream: impl Read + Write, state: &Mutex<State>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut body = vec![0; header("content-length").unwrap().parse().unwrap()];
        stream.read_exact(&mut body)?;
        if header("content-encoding").as_deref() == Some("gzip") {
            let mut plain = Vec::new();
            GzDecoder::new(&*body).read_to_end(&mut plain)?;
            body = plain;
        }
        let answer = {
            let mut state = state.lock().unwrap();
            state.heads.push(head.clone());
            if state.answers.len() > 1 { state.answers.pop() } else { state.answers.last().cloned() }
        };
        match answer.unwrap_or(Answer::Take) {
            Answer::Hang => loop {
                // Ends with the connection, which the client closes.
                if stream.read(&mut [0; 64])? == 0 {
                    return Ok(());
                }
            },
            Answer::Status(status) => {
                let text = format!("HTTP/1.1 {status} x\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n");
                stream.get_mut().write_all(text.as_bytes())?;
            }
            Answer::Take => {
                take(&body, state);
                respond(stream.get_mut(), None)?;
            }
            Answer::Reject(spans) => {
                take(&body, state);
                respond(stream.get_mut(), Some(spans))?;
            }
        }
        stream.get_mut().flush()?;
    }
}

fn take(body: &[u8], state: &Mutex<State>) {
    let request = ExportTraceServiceRequest::decode(body).expect("it is OTLP");
    let mut state = state.lock().unwrap();
    state.bodies.push(body.to_vec());
    for of_resource in request.resource_spans {
        let resource = attributes(&of_resource.resource.unwrap().attributes);
        let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        state.arrived.extend(spans.map(|span| Arrived { span, resource: resource.clone() }));
    }
}

fn respond(stream: &mut impl Write, rejected: Option<i64>) -> std::io::Result<()> {
    let partial = |rejected_spans| ExportTracePartialSuccess { rejected_spans, error_message: "too old".to_owned() };
    let body = ExportTraceServiceResponse { partial_success: rejected.map(partial) }.encode_to_vec();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

/// Attributes as JSON.
pub(crate) fn attributes(attributes: &[KeyValue]) -> Value {
    let pairs =
        attributes.iter().map(|pair| (pair.key.clone(), value(pair.value.as_ref().unwrap().value.as_ref().unwrap())));
    let pairs: BTreeMap<String, Value> = pairs.collect();
    json!(pairs)
}

fn value(any: &Any) -> Value {
    match any {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(truth) => json!(truth),
        Any::IntValue(number) => json!(number),
        Any::ArrayValue(array) => array.values.iter().map(|any| value(any.value.as_ref().unwrap())).collect(),
        other => panic!("{other:?}"),
    }
}

/// An ID as it is in a `traceparent`.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
