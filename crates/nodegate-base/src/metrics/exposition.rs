//! The two formats of `/metrics`, and which one a scraper gets.

use std::cmp::Reverse;

/// A format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4, which every scraper reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers; text, unless OpenMetrics is asked for by name. A header that accepts neither
    /// gets text as well, as from the client libraries of Prometheus.
    pub fn accepted_by(accept: &str) -> Self {
        let best = accept.split(',').filter_map(offer).min_by_key(|(_, quality)| Reverse(*quality));
        best.map_or(Self::Text, |(format, _)| format)
    }
}

/// One media range of an `Accept` header: its format and its quality in thousandths; `None` if it is not one of nodegate's.
fn offer(range: &str) -> Option<(Format, u16)> {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next()?.to_ascii_lowercase();
    let parameters: Vec<(String, &str)> = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim()))
        .collect();
    let value =
        |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.trim_matches('"'));
    let quality = value("q").map_or(Some(1.0), |text| text.parse::<f64>().ok())?;
    let format = match (kind.as_str(), value("version")) {
        ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => Format::OpenMetrics,
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Format::Text,
        _ => return None,
    };
    // The value is between 0 and 1 by RFC 9110; what is not a number is 0.
    (quality > 0.0).then_some((format, (quality.min(1.0) * 1000.0) as u16))
}

/// Converts OpenMetrics to the text format: names of counters and infos have their suffix in HELP and TYPE too, and there are
/// neither units nor an end mark.
pub(super) fn as_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = ("", "");
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap_or((rest, ""));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            let described = if help.0 == name { help.1 } else { "" };
            text.push_str(&format!("# HELP {name}{suffix} {described}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.1", Format::Text),
            ("text/plain; version=0.0.4", Format::Text),
            ("APPLICATION/OpenMetrics-Text", Format::OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text; version=2.0.0, text/plain;q=0.1", Format::Text),
            ("application/openmetrics-text;q=0, text/plain;q=0.1", Format::Text),
            ("application/openmetrics-text;q=0.1, text/plain;q=0.2", Format::Text),
            ("application/openmetrics-text;q=NaN", Format::Text),
            ("application/openmetrics-text;q=high", Format::Text),
            ("application/json", Format::Text),
            (",;q=,;;=,", Format::Text),
        ] {
            assert_eq!(Format::accepted_by(accept), format, "{accept}");
        }
    }

    #[test]
    fn the_text_format_names_counters_and_infos_by_their_samples() {
        let open_metrics = "# HELP a_b Some.\n# TYPE a_b counter\na_b_total{c=\"# TYPE d\"} 1\n\
                            # HELP e_seconds Other.\n# TYPE e_seconds gauge\n# UNIT e_seconds seconds\ne_seconds 2.5\n\
                            # HELP f Version.\n# TYPE f info\nf_info{version=\"1\"} 1\n# EOF\n";
        let text = "# HELP a_b_total Some.\n# TYPE a_b_total counter\na_b_total{c=\"# TYPE d\"} 1\n\
                    # HELP e_seconds Other.\n# TYPE e_seconds gauge\ne_seconds 2.5\n\
                    # HELP f_info Version.\n# TYPE f_info gauge\nf_info{version=\"1\"} 1\n";
        assert_eq!(as_text(open_metrics), text);
    }
}
