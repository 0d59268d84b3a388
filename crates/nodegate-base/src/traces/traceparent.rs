//! The header `traceparent` of W3C Trace Context: <https://www.w3.org/TR/trace-context/#traceparent-header>.
//!
//! `tracestate` is neither read nor sent: nodegate calls nobody while it answers a review, and others would choose its
//! length and content.

use axum::http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The name of the header.
pub(super) const HEADER: &str = "traceparent";

/// Length of a header of version 00.
const LENGTH: usize = 55;
/// Maximum length of a header of a later version, which may have more fields.
const LENGTH_MAX: usize = 256;

/// The caller's span. `None` if there is no header, if there are several, or if it is malformed.
pub(super) fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(HEADER).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    parse(value.as_bytes())
}

fn parse(value: &[u8]) -> Option<SpanContext> {
    let (fixed, rest) = value.split_at_checked(LENGTH).filter(|_| value.len() <= LENGTH_MAX)?;
    let separated = [2, 35, 52].iter().all(|&at| fixed[at] == b'-');
    let [version, trace, span, flags] = [&fixed[..2], &fixed[3..35], &fixed[36..52], &fixed[53..]].map(hex);
    let (version, flags) = (version?, flags?);
    // ff is invalid; only a later version may have more than four fields.
    let ended = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|&next| next == b'-') };
    if !separated || version == 0xff || !ended {
        return None;
    }
    let trace = TraceId::from(trace?);
    let span = SpanId::from(u64::try_from(span?).ok()?);
    let sampled = TraceFlags::default().with_sampled(flags & 1 == 1);
    let context = SpanContext::new(trace, span, sampled, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// A number in lower-case hexadecimal digits, at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

/// The header for a request that a span makes.
pub(super) fn header(span: &SpanContext) -> String {
    format!(
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        span.trace_flags().to_u8() & TraceFlags::SAMPLED.to_u8()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_callers_span_is_read_as_it_is_written() {
        for (flags, sampled) in [("00", false), ("01", true), ("03", true), ("02", false)] {
            let span = parse(format!("00-{TRACE}-{SPAN}-{flags}").as_bytes()).unwrap();
            assert_eq!((span.trace_id().to_string(), span.span_id().to_string()), (TRACE.to_owned(), SPAN.to_owned()));
            assert_eq!((span.is_sampled(), span.is_remote()), (sampled, true), "{flags}");
            assert_eq!(header(&span), format!("00-{TRACE}-{SPAN}-0{}", u8::from(sampled)));
        }
        assert!(parse(format!("cc-{TRACE}-{SPAN}-01-what-comes").as_bytes()).is_some(), "a later version has more");
    }

    #[test]
    fn what_is_malformed_is_ignored() {
        let zero = "0".repeat(32);
        for wrong in [
            String::new(),
            "-".repeat(55),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("cc-{TRACE}-{SPAN}-01-{}", "x".repeat(LENGTH_MAX)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zero[..16]),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn two_headers_are_as_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(parent(&headers), None);
        let value = HeaderValue::from_str(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        headers.append(HEADER, value.clone());
        assert!(parent(&headers).is_some());
        headers.append(HEADER, value);
        assert_eq!(parent(&headers), None);
    }
}
