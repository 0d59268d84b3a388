//! Feature files of Node Feature Discovery (`source/local/local.go` there).

use std::fmt::Write as _;

use jiff::Timestamp;

use super::document::Probe;

/// A feature file with the labels. Node Feature Discovery ignores the labels after `expires`.
pub fn feature_file(probe: &Probe, expires: Option<Timestamp>) -> String {
    let mut text = "# nodegate probe\n".to_owned();
    if let Some(expires) = expires {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# +expiry-time={}", expires.strftime("%Y-%m-%dT%H:%M:%SZ"));
    }
    for (key, value) in &probe.labels {
        let _ = writeln!(text, "{key}={value}");
    }
    text
}
