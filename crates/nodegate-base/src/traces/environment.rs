//! Reads the settings of traces from the variables that OpenTelemetry defines for every program:
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/> and
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>. An empty variable counts as unset.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use url::Url;

use super::settings::{Batches, Compression, Sampling, TlsFiles, TraceSettings};

/// Where to send traces if `OTEL_TRACES_EXPORTER=otlp` is set without an endpoint.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// What the endpoint of all signals is followed by.
const PATH: &str = "v1/traces";

/// An invalid variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{value}: {why}")]
pub struct SettingError {
    name: String,
    value: Shown,
    why: String,
}

/// The value of a variable in an error; that of a secret is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown(Option<String>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| write!(f, "={value:?}"))
    }
}

/// A variable that is set.
struct Variable {
    name: String,
    value: String,
}

impl Variable {
    fn wrong(&self, why: impl Into<String>) -> SettingError {
        let mut value = self.value.clone();
        crate::text::cut(&mut value, super::TEXT_MAX);
        SettingError { name: self.name.clone(), value: Shown(Some(value)), why: why.into() }
    }

    /// As [`Variable::wrong`], without the value.
    fn wrong_secret(&self, why: impl Into<String>) -> SettingError {
        SettingError { name: self.name.clone(), value: Shown(None), why: why.into() }
    }

    fn file(self) -> (String, PathBuf) {
        (self.name, PathBuf::from(self.value))
    }
}

/// Reads variables.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<Variable> {
        let value = (self.0)(name)?.trim().to_owned();
        (!value.is_empty()).then(|| Variable { name: name.to_owned(), value })
    }

    /// A variable of the exporter; the one for traces takes precedence over the one for all signals.
    fn exporter(&self, what: &str) -> Option<Variable> {
        self.get(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))
            .or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{what}")))
    }

    /// A number, or `default`.
    fn number(
        &self,
        variable: Option<Variable>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, SettingError> {
        let Some(variable) = variable else { return Ok(default) };
        let expected = || variable.wrong(format!("expected a whole number from {} to {}", range.start(), range.end()));
        variable.value.parse().ok().filter(|number| range.contains(number)).ok_or_else(expected)
    }
}

impl TraceSettings {
    /// The settings, or `None` if traces are not to be sent: they are if an endpoint is set, or `OTEL_TRACES_EXPORTER=otlp`.
    /// `instance` tells this process from others of the same service.
    ///
    /// # Errors
    /// Returns an error that names the variable if a value is invalid, or asks for something that nodegate does not do.
    pub fn from_environment(
        read: impl Fn(&str) -> Option<String>,
        instance: Option<&str>,
    ) -> Result<Option<Self>, SettingError> {
        let environment = Environment(&read);
        // Of this variable, every value but "true" means false, by its definition.
        if environment.get("OTEL_SDK_DISABLED").is_some_and(|it| it.value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let asked = match environment.get("OTEL_TRACES_EXPORTER") {
            None => false,
            Some(exporter) => match exporter.value.as_str() {
                "none" => return Ok(None),
                "otlp" => true,
                // What is meant for other programs of the pod is no reason not to start.
                _ if !has_endpoint(&environment) => return Ok(None),
                _ => return Err(exporter.wrong("expected otlp or none")),
            },
        };
        let Some(endpoint) = endpoint(&environment, asked)? else { return Ok(None) };
        protocol(&environment)?;
        let timeout = environment.number(environment.exporter("TIMEOUT"), 10_000, 1..=60_000)?;
        Ok(Some(Self {
            endpoint,
            headers: headers(&environment)?,
            timeout: Duration::from_millis(timeout),
            compression: compression(&environment)?,
            tls: tls(&environment)?,
            sampling: sampling(&environment)?,
            resource: resource(&environment, instance)?,
            batches: batches(&environment)?,
        }))
    }
}

fn has_endpoint(environment: &Environment<'_>) -> bool {
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .iter()
        .any(|name| environment.get(name).is_some())
}

/// Where to send traces; `None` if no variable says so and nobody asked for it.
fn endpoint(environment: &Environment<'_>, asked: bool) -> Result<Option<Url>, SettingError> {
    let of_traces = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let of_all = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT");
    let (variable, path) = match (of_traces, of_all) {
        (Some(variable), _) => (variable, None),
        (None, Some(variable)) => (variable, Some(PATH)),
        (None, None) if asked => {
            let name = "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned();
            (Variable { name, value: DEFAULT_ENDPOINT.to_owned() }, Some(PATH))
        }
        (None, None) => return Ok(None),
    };
    let expected = "expected a URL such as http://collector.observability.svc:4318";
    // A user name or a password in it is a secret.
    let mut url = Url::parse(&variable.value).map_err(|error| variable.wrong_secret(format!("{error}; {expected}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(variable.wrong_secret("the URL has credentials; put them into OTEL_EXPORTER_OTLP_HEADERS"));
    }
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(variable.wrong_secret(expected));
    }
    if let Some(path) = path {
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
    }
    Ok(Some(url))
}

fn protocol(environment: &Environment<'_>) -> Result<(), SettingError> {
    let Some(variable) = environment.exporter("PROTOCOL") else { return Ok(()) };
    match variable.value.as_str() {
        "http/protobuf" => Ok(()),
        "grpc" => Err(variable.wrong(
            "nodegate sends traces over HTTP; set it to http/protobuf, and the endpoint to the collector's port for HTTP (usually 4318)",
        )),
        _ => Err(variable.wrong("expected http/protobuf")),
    }
}

fn compression(environment: &Environment<'_>) -> Result<Compression, SettingError> {
    let Some(variable) = environment.exporter("COMPRESSION") else { return Ok(Compression::None) };
    match variable.value.as_str() {
        "none" => Ok(Compression::None),
        "gzip" => Ok(Compression::Gzip),
        _ => Err(variable.wrong("expected gzip or none")),
    }
}

fn tls(environment: &Environment<'_>) -> Result<TlsFiles, SettingError> {
    let ca = environment.exporter("CERTIFICATE").map(Variable::file);
    let pair = (environment.exporter("CLIENT_CERTIFICATE"), environment.exporter("CLIENT_KEY"));
    let identity = match pair {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some([certificate.file(), key.file()]),
        (Some(certificate), None) => {
            return Err(certificate.wrong("its key is missing; set OTEL_EXPORTER_OTLP_CLIENT_KEY to the file with it"));
        }
        (None, Some(key)) => {
            let why = "its certificate is missing; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE to the file with it";
            return Err(key.wrong(why));
        }
    };
    Ok(TlsFiles { ca, identity })
}

/// The headers of requests: `name=value,…`, with percent-encoded values.
fn headers(environment: &Environment<'_>) -> Result<HeaderMap, SettingError> {
    let mut headers = HeaderMap::new();
    let Some(variable) = environment.exporter("HEADERS") else { return Ok(headers) };
    for (at, (name, value)) in pairs(&variable)?.into_iter().enumerate() {
        let wrong =
            |what: &str| variable.wrong_secret(format!("the {what} of pair {} is not valid in an HTTP header", at + 1));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("name"))?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| wrong("value"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The pairs of a list `key=value,…` with percent-encoded values.
fn pairs(variable: &Variable) -> Result<Vec<(String, String)>, SettingError> {
    let pieces = variable.value.split(',').map(str::trim).filter(|piece| !piece.is_empty());
    let pair = |(at, piece): (usize, &str)| {
        let wrong = |why: &str| variable.wrong_secret(format!("pair {}: {why}", at + 1));
        let expected = "expected key=value, and a comma between pairs";
        let (key, value) = piece.split_once('=').ok_or_else(|| wrong(expected))?;
        let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8().map(String::from);
        let (Ok(key), Ok(value)) = (decoded(key), decoded(value)) else {
            return Err(wrong("it is not UTF-8 once its %XX are decoded"));
        };
        if key.is_empty() { Err(wrong(expected)) } else { Ok((key, value)) }
    };
    pieces.enumerate().map(pair).collect()
}

fn sampling(environment: &Environment<'_>) -> Result<Sampling, SettingError> {
    let Some(variable) = environment.get("OTEL_TRACES_SAMPLER") else { return Ok(Sampling::ParentBasedAlwaysOn) };
    let ratio = || {
        let Some(argument) = environment.get("OTEL_TRACES_SAMPLER_ARG") else { return Ok(1.0) };
        let ratio = argument.value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| argument.wrong("expected the share of traces to sample, from 0 to 1, such as 0.1"))
    };
    Ok(match variable.value.as_str() {
        "always_on" => Sampling::AlwaysOn,
        "always_off" => Sampling::AlwaysOff,
        "traceidratio" => Sampling::Ratio(ratio()?),
        "parentbased_always_on" => Sampling::ParentBasedAlwaysOn,
        "parentbased_always_off" => Sampling::ParentBasedAlwaysOff,
        "parentbased_traceidratio" => Sampling::ParentBasedRatio(ratio()?),
        _ => {
            return Err(variable.wrong(
                "expected always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio",
            ));
        }
    })
}

/// What sends the spans: what nodegate knows of itself, replaced by what the variables say.
fn resource(environment: &Environment<'_>, instance: Option<&str>) -> Result<BTreeMap<String, String>, SettingError> {
    let known = [
        ("service.name", Some("nodegate")),
        ("service.version", Some(env!("CARGO_PKG_VERSION"))),
        ("service.instance.id", instance),
        ("telemetry.sdk.language", Some("rust")),
        ("telemetry.sdk.name", Some("opentelemetry")),
    ];
    let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    let mut resource: BTreeMap<String, String> = known.collect();
    if let Some(variable) = environment.get("OTEL_RESOURCE_ATTRIBUTES") {
        resource.extend(pairs(&variable)?);
    }
    if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
        resource.insert("service.name".to_owned(), name.value);
    }
    Ok(resource)
}

fn batches(environment: &Environment<'_>) -> Result<Batches, SettingError> {
    let number = |name, default, range| environment.number(environment.get(name), default, range);
    let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1..=65_536)?;
    let size = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", queue.min(512), 1..=queue)?;
    let delay = number("OTEL_BSP_SCHEDULE_DELAY", 5_000, 0..=60_000)?;
    let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Batches { queue: count(queue), size: count(size), delay: Duration::from_millis(delay) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    fn read(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, SettingError> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        TraceSettings::from_environment(find, Some("pod-1"))
    }

    fn with(variables: &[(&str, &str)]) -> TraceSettings {
        read(&[&[ENDPOINT], variables].concat()).unwrap().unwrap()
    }

    #[test]
    fn traces_are_sent_only_if_a_variable_says_where_or_asks_for_them() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap().is_none());
        assert!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "True")]).unwrap().is_none());
        assert!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        // These are for other programs of the pod.
        assert!(read(&[("OTEL_TRACES_EXPORTER", "console"), ("OTEL_TRACES_SAMPLER", "xray")]).unwrap().is_none());
        let default = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().unwrap();
        assert_eq!(default.endpoint.as_str(), "http://localhost:4318/v1/traces");
    }

    #[test]
    fn the_endpoint_of_traces_is_taken_as_it_is_and_that_of_all_signals_gets_a_path() {
        for (name, value, url) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/", "http://collector:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector/otlp", "https://collector/otlp/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other:1/in", "http://other:1/in"),
        ] {
            assert_eq!(
                read(&[ENDPOINT, (name, value)][usize::from(name == ENDPOINT.0)..]).unwrap().unwrap().endpoint.as_str(),
                url
            );
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let settings = with(&[]);
        assert_eq!(settings.sampling, Sampling::ParentBasedAlwaysOn);
        assert_eq!((settings.compression, settings.timeout), (Compression::None, Duration::from_secs(10)));
        assert_eq!(settings.batches, Batches { queue: 2048, size: 512, delay: Duration::from_secs(5) });
        assert_eq!(settings.resource["service.name"], "nodegate");
        assert_eq!(settings.resource["service.instance.id"], "pod-1");
        assert!(settings.headers.is_empty() && settings.tls == TlsFiles::default());
    }

    #[test]
    fn lists_are_percent_decoded_and_variables_of_traces_take_precedence() {
        let settings = with(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-other=no"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20a%3Db, x-tenant = nodes,"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,k8s.cluster.name=a%2Cb"),
            ("OTEL_SERVICE_NAME", "labels"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        assert_eq!(settings.headers["authorization"], "Bearer a=b");
        assert_eq!((&settings.headers["x-tenant"], settings.headers.len()), (&HeaderValue::from_static("nodes"), 2));
        assert!(!format!("{settings:?}").contains("Bearer"), "a secret is not shown");
        assert_eq!(settings.resource["k8s.cluster.name"], "a,b");
        assert_eq!(settings.resource["service.name"], "labels");
        assert_eq!(settings.sampling, Sampling::ParentBasedRatio(0.25));
    }

    #[test]
    fn a_wrong_value_is_an_error_that_names_the_variable_and_no_secret() {
        for (name, value, part) in [
            ("OTEL_TRACES_EXPORTER", "zipkin", "expected otlp or none"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "expected a URL"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "secret", "expected a URL"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "u:secret@collector:4318", "expected a URL"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://u:secret@collector", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret", "pair 2: expected key=value"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret", "the name of pair 1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0a", "the value of pair 1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%ff", "not UTF-8"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "from 1 to 60000"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip or none"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/crt", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "expected always_on"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x", "pair 1"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "from 1 to 2048"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1", "from 0"),
        ] {
            let error = read(&[ENDPOINT, (name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(part) && !error.contains("secret"), "{error}");
        }
        for ratio in ["2", "-0.1", "NaN", "half"] {
            let sampler = [ENDPOINT, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
            let error = read(&sampler).unwrap_err().to_string();
            assert!(error.starts_with(&format!("OTEL_TRACES_SAMPLER_ARG={ratio:?}: expected")), "{error}");
        }
    }
}
