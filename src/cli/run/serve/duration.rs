//! Durations in flags.

use std::time::Duration;

/// Parses a duration such as `5s`.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    let fault = || format!("{text:?} is not a valid duration; write a number and a unit, such as 5s");
    let length: jiff::SignedDuration = text.parse().map_err(|_| fault())?;
    Duration::try_from(length).map_err(|_| fault())
}
