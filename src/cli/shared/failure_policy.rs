//! `failurePolicy` as a flag.

use nodegate_policy::native;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(in crate::cli) enum FailurePolicy {
    Ignore,
    Fail,
}

impl From<FailurePolicy> for native::FailurePolicy {
    fn from(flag: FailurePolicy) -> Self {
        match flag {
            FailurePolicy::Ignore => Self::Ignore,
            FailurePolicy::Fail => Self::Fail,
        }
    }
}
