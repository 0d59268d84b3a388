//! What a test needs that not every machine has: programs of other projects, a browser. Without it the test says so and passes,
//! unless the run promised that it is there.

/// The run that installs something and sets this variable to `1`, so that there its absence is a failure.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// `.ci/run`: `NODEGATE_REQUIRE_CLUSTER`.
    Gate,
    /// `.ci/full`: `NODEGATE_REQUIRE_TOOLS`.
    Full,
}

/// What was found; nothing if it is missing and `run` did not promise it. `missing` says what is missing and how to get it.
pub(crate) fn required<T>(found: Option<T>, run: Run, missing: &str) -> Option<T> {
    let variable = match run {
        Run::Gate => "NODEGATE_REQUIRE_CLUSTER",
        Run::Full => "NODEGATE_REQUIRE_TOOLS",
    };
    if found.is_none() {
        assert!(std::env::var_os(variable).is_none_or(|value| value != "1"), "{missing}");
        eprintln!("not tested: {missing}");
    }
    found
}
