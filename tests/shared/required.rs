//! What a test needs that not every machine has: programs of other projects, a browser. Without it the test says so and passes,
//! unless the run promised that it is there.

/// The run that installs something, so that there its absence is a failure.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// `.ci/run`, which sets `NODEGATE_REQUIRE=gate`.
    Gate,
    /// `.ci/full`, which sets `NODEGATE_REQUIRE=full`. It needs what the gate needs, too.
    Full,
}

/// What was found; nothing if it is missing and `run` did not promise it. `missing` says what is missing and how to get it.
pub(crate) fn required<T>(found: Option<T>, run: Run, missing: &str) -> Option<T> {
    let required: &[&str] = match run {
        Run::Gate => &["gate", "full"],
        Run::Full => &["full"],
    };
    if found.is_none() {
        let is_required = std::env::var("NODEGATE_REQUIRE").is_ok_and(|run| required.contains(&&*run));
        assert!(!is_required, "{missing}");
        eprintln!("not tested: {missing}");
    }
    found
}
