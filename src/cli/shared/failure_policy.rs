//! `failurePolicy` as a flag.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use nodegate_policy::native::FailurePolicy;

/// Reads a flag of the name that Kubernetes gives the policy.
pub(in crate::cli) fn parser() -> impl TypedValueParser<Value = FailurePolicy> {
    PossibleValuesParser::new(["Ignore", "Fail"])
        .map(|text| if text == "Fail" { FailurePolicy::Fail } else { FailurePolicy::Ignore })
}
