//! URLs, read as Go's `net/url` reads them, because Kubernetes does (`k8s.io/apiserver/pkg/cel/library/urls.go`).
//!
//! The `url` crate follows the rules of web browsers instead: it resolves `..`, drops default ports and knows no URL
//! without a scheme.

use std::net::{Ipv4Addr, Ipv6Addr};

/// As much of a text as a message repeats, in bytes. It is escaped there, so it becomes longer.
const TEXT_SHOWN: usize = 1024;

/// What a URL is made of. As in Kubernetes, two are equal if Go writes them the same (`String` in `net/url`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Url {
    /// In lower case; empty for a path alone.
    scheme: String,
    /// What follows the scheme in `mailto:x`, which has neither host nor path.
    opaque: String,
    /// Whether it has a scheme and a path, but no `//`.
    omits_host: bool,
    /// Name and password, as Go writes them.
    user: Option<String>,
    /// With its port.
    host: String,
    /// As it is to be written.
    path: String,
    /// Without the `?`; `None` if there is none.
    query: Option<String>,
    /// As Go writes it.
    fragment: String,
}

/// Go reads no query with more pairs (`urlParamsWithinMax`).
const PAIRS_MAX: usize = 10_000;

/// A part of a URL; each has its own characters that need no escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    User,
    Host,
    Zone,
    Path,
    Query,
    Fragment,
}

impl Url {
    /// Reads an absolute URL or an absolute path, as `url.ParseRequestURI`.
    ///
    /// # Errors
    /// Says what is wrong, with the text.
    pub(crate) fn parse_request(text: &str) -> Result<Self, String> {
        Self::read(text, true).map_err(|fault| format!("parse {:?}: {fault}", begin(text)))
    }

    /// Reads what [`Self::parse_request`] accepts, as `url.Parse`, which knows fragments.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let url =
            Self::read(rest, false).and_then(|url| Ok(Self { fragment: written(fragment, Part::Fragment)?, ..url }));
        url.map_err(|fault| format!("parse {:?}: {fault}", begin(text)))
    }

    fn read(text: &str, request: bool) -> Result<Self, String> {
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() && request {
            return Err("empty url".to_owned());
        }
        if text == "*" {
            return Ok(Self { path: "*".to_owned(), ..Self::default() });
        }
        let (scheme, rest) = scheme(text)?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query.to_owned())));
        let mut url = Self { scheme: scheme.to_ascii_lowercase(), query, ..Self::default() };
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                return Ok(Self { opaque: rest.to_owned(), ..url });
            }
            if request {
                return Err("invalid URI for request".to_owned());
            }
        }
        let has_authority = !scheme.is_empty() || !request && !rest.starts_with("///");
        let path = match rest.strip_prefix("//").filter(|_| has_authority) {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let (user, host) =
                    authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
                url.host = host_of(&url.scheme, host)?;
                url.user = user.map(user_of).transpose()?;
                path
            }
            None => {
                url.omits_host = !scheme.is_empty();
                rest
            }
        };
        url.path = written(path, Part::Path)?;
        Ok(url)
    }

    /// Its bytes.
    pub(crate) fn length(&self) -> usize {
        let optional = [&self.user, &self.query].into_iter().flatten().map(String::len);
        let parts = [&self.scheme, &self.opaque, &self.host, &self.path, &self.fragment];
        parts.map(String::len).into_iter().chain(optional).sum()
    }

    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The host with its port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The path as it is to be written.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The query as it was written, without the `?`.
    pub(crate) fn query(&self) -> &str {
        self.query.as_deref().unwrap_or_default()
    }

    /// The keys and values of the query, unless there are too many. Pairs that are not valid are left out, as Go does, and those that
    /// are not UTF-8.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let query = self.query();
        let query = if query.matches('&').count() >= PAIRS_MAX { "" } else { query };
        let pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        pairs.filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| unescaped(&text.replace('+', " "), Part::Query).ok().and_then(into_text);
            plain(key).zip(plain(value))
        })
    }

    /// The host without its brackets, and the port.
    pub(crate) fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.rfind(':') {
            Some(colon) if is_port(&self.host[colon..]) => (&self.host[..colon], &self.host[colon + 1..]),
            _ => (self.host.as_str(), ""),
        };
        (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
    }
}

/// The scheme, which may be empty, and what follows it.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn user_of(user: &str) -> Result<String, String> {
    if !user.chars().all(|c| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c)) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    let escaped = |text: &str| Ok::<_, String>(escaped(&unescaped(text, Part::User)?, Part::User));
    match user.split_once(':') {
        Some((name, password)) => Ok(format!("{}:{}", escaped(name)?, escaped(password)?)),
        None => escaped(user),
    }
}

fn host_of(scheme: &str, host: &str) -> Result<String, String> {
    let no_port = |port: &str| format!("invalid port {:?} after host", begin(port));
    match host.rfind('[') {
        Some(0) => {
            let end = host.rfind(']').ok_or("missing ']' in host")?;
            let (address, port) = (&host[1..end], &host[end + 1..]);
            if !is_port(port) {
                return Err(no_port(port));
            }
            // The zone of a link-local address (RFC 6874) follows an escaped percent sign.
            let (address, zone) = address.split_at(address.find("%25").unwrap_or(address.len()));
            let address = host_text(unescaped(address, Part::Host)?)?;
            let zone = host_text(unescaped(zone, Part::Zone)?)?;
            if address.parse::<Ipv4Addr>().is_ok() && zone.is_empty() {
                return Err("invalid IP-literal".to_owned());
            }
            if address.parse::<Ipv6Addr>().is_err() || zone == "%" {
                return Err("invalid host".to_owned());
            }
            return Ok(format!("[{address}{zone}]{port}"));
        }
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    if let (Some(first), Some(last)) = (host.find(':'), host.rfind(':')) {
        // Some databases write several hosts, each with its port.
        let port = if matches!(scheme, "http" | "https") { &host[first..] } else { &host[last..] };
        if !is_port(port) {
            return Err(no_port(port));
        }
    }
    host_text(unescaped(host, Part::Host)?)
}

fn host_text(bytes: Vec<u8>) -> Result<String, String> {
    into_text(bytes).ok_or_else(|| "the host is not UTF-8".to_owned())
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A path or a fragment as Go writes it: as it is where it is valid, otherwise escaped anew.
fn written(text: &str, part: Part) -> Result<String, String> {
    let plain = unescaped(text, part)?;
    let is_valid = |byte: u8| needs_no_escape(byte, part) || b"!$&'()*+,;=:@[]%".contains(&byte);
    Ok(if text.bytes().all(is_valid) { text.to_owned() } else { escaped(&plain, part) })
}

fn escaped(plain: &[u8], part: Part) -> String {
    let mut escaped = String::with_capacity(3 * plain.len());
    for byte in plain {
        if needs_no_escape(*byte, part) {
            escaped.push(char::from(*byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn needs_no_escape(byte: u8, part: Part) -> bool {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        return true;
    }
    match part {
        Part::Host | Part::Zone => b"!$&'()*+,;=:[]<>\"".contains(&byte),
        Part::Path => b"$&+,/:;=@".contains(&byte),
        Part::User => b"$&+,;=".contains(&byte),
        Part::Fragment => b"$&+,/:;=?@!()*".contains(&byte),
        Part::Query => false,
    }
}

/// As much of a text as a message repeats.
fn begin(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_SHOWN)]
}

/// The bytes that a part stands for.
fn unescaped(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let invalid = |escape: &[u8]| format!("invalid URL escape {:?}", String::from_utf8_lossy(escape));
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let escape = &rest[..rest.len().min(3)];
            let byte = match after {
                [high, low, ..] => char::from(*high).to_digit(16).zip(char::from(*low).to_digit(16)),
                _ => None,
            };
            let byte =
                byte.and_then(|(high, low)| u8::try_from(16 * high + low).ok()).ok_or_else(|| invalid(escape))?;
            let allowed = match part {
                Part::Host => byte >= 0x80 || byte == b'%',
                Part::Zone => byte == b'%' || byte == b' ' || needs_no_escape(byte, Part::Host),
                Part::User | Part::Path | Part::Query | Part::Fragment => true,
            };
            if !allowed {
                return Err(invalid(escape));
            }
            plain.push(byte);
            rest = &rest[3..];
        } else {
            if matches!(part, Part::Host | Part::Zone) && first.is_ascii() && !needs_no_escape(*first, part) {
                return Err(format!("invalid character {:?} in host name", char::from(*first).to_string()));
            }
            plain.push(*first);
            rest = after;
        }
    }
    Ok(plain)
}

fn into_text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
