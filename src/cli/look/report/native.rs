//! What the API server counts about nodegate's native admission policies that it cannot evaluate. A policy of the export is
//! then skipped as a whole, and nobody notices unless these counts are read.

use std::collections::BTreeMap;

use axum::http::Request;
use kube::Client;

use crate::cli::look::report::document::NativeFailure;
use crate::cli::shared::output;
use nodegate_base::kube_error::in_words;

/// The counters, of policies that mutate and that validate (`k8s.io/apiserver`, `pkg/admission/plugin/policy/*/metrics`).
const COUNTERS: [&str; 2] =
    ["apiserver_mutating_admission_policy_check_total{", "apiserver_validating_admission_policy_check_total{"];
/// How the names of nodegate's native policies begin.
const OURS: &str = "nodegate";

/// The native policies that the API server that answers could not evaluate since it was started.
///
/// # Errors
/// Returns why they are unknown, and prints it as a note: the user may not be allowed to read metrics, for example.
pub(super) async fn failures(client: &Client) -> Result<Vec<NativeFailure>, String> {
    let request = Request::get("/metrics").body(Vec::new()).map_err(|error| error.to_string());
    let metrics = match request {
        Ok(request) => client.request_text(request).await.map_err(|error| in_words(&error)),
        Err(error) => Err(error),
    };
    metrics.map(|metrics| counted(&metrics)).map_err(|why| {
        let why = format!("could not read the metrics of the API server, which count native policies that fail: {why}");
        output::note(&format!("note: {why}"));
        why
    })
}

fn counted(metrics: &str) -> Vec<NativeFailure> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in metrics.lines() {
        let Some((labels, count)) = COUNTERS.iter().find_map(|counter| line.strip_prefix(counter)?.rsplit_once('}'))
        else {
            continue;
        };
        // A million is `1e+06`.
        let (Some(policy), Some(error), Ok(count)) =
            (label(labels, "policy"), label(labels, "error_type"), count.trim().parse::<f64>())
        else {
            continue;
        };
        if policy.starts_with(OURS) && is_failure(error, label(labels, "enforcement_action")) {
            *counts.entry((policy.to_owned(), error.to_owned())).or_default() += whole(count);
        }
    }
    let failure = |((policy, error_type), count)| NativeFailure { policy, error_type, count };
    counts.into_iter().map(failure).filter(|failure| failure.count > 0).collect()
}

/// Whether a policy could not be evaluated. Of policies that validate, whatever is denied, warned of or audited is counted as an
/// `invalid_error` (`pkg/admission/plugin/policy/validating/errors.go`); only of what is allowed, it is one.
fn is_failure(error: &str, action: Option<&str>) -> bool {
    match error {
        "no_error" => false,
        "invalid_error" => action.is_none_or(|action| action == "allow"),
        _ => true,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a counter")]
fn whole(count: f64) -> usize {
    count as usize
}

/// The value of a label. Neither the name of a policy nor a type of errors has a quote or a comma.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_our_policies_are_counted_by_policy_and_type() {
        let metrics = "\
# TYPE apiserver_mutating_admission_policy_check_total counter
apiserver_mutating_admission_policy_check_total{error_type=\"invalid_error\",policy=\"nodegate-1\",policy_binding=\"a\"} 33
apiserver_mutating_admission_policy_check_total{error_type=\"invalid_error\",policy=\"nodegate-1\",policy_binding=\"b\"} 1e+06
apiserver_mutating_admission_policy_check_total{error_type=\"no_error\",policy=\"nodegate-1\",policy_binding=\"a\"} 7
apiserver_mutating_admission_policy_check_total{error_type=\"invalid_error\",policy=\"others\",policy_binding=\"a\"} 5
apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"out_of_budget\",policy=\"nodegate-guard\",policy_binding=\"nodegate-guard\"} 1
apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"nodegate-guard\",policy_binding=\"nodegate-guard\"} 12
apiserver_validating_admission_policy_check_total{enforcement_action=\"allow\",error_type=\"invalid_error\",policy=\"nodegate-warn\",policy_binding=\"nodegate-warn\"} 2
apiserver_validating_admission_policy_check_duration_seconds_count{error_type=\"invalid_error\",policy=\"nodegate-2\"} 1
";
        let found: Vec<_> =
            counted(metrics).into_iter().map(|failure| (failure.policy, failure.error_type, failure.count)).collect();
        let expected = [
            ("nodegate-1", "invalid_error", 1_000_033),
            ("nodegate-guard", "out_of_budget", 1),
            ("nodegate-warn", "invalid_error", 2),
        ];
        assert_eq!(found, expected.map(|(policy, error, count)| (policy.to_owned(), error.to_owned(), count)));
    }
}
