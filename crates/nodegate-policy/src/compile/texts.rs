//! Texts that documents have in several places: expressions and durations.

use std::sync::Arc;
use std::time::Duration;

use super::Faults;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::cel::{Expression, ExpressionError, Scope, Yields};

/// Compiles one expression over a node.
pub(super) fn node_expression(
    source: &str,
    yields: Yields,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Option<Arc<Expression>> {
    expression(source, Scope::Node, yields, path, faults).map(Arc::new)
}

/// Compiles one expression.
pub(super) fn expression(
    source: &str,
    scope: Scope,
    yields: Yields,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Option<Expression> {
    if !faults.budget.count_expression() {
        return None;
    }
    let compiled = Expression::compile(source, scope, yields);
    let problem = |error: &ExpressionError| Problem::of(error.what(), error.remedy().map(Into::into));
    let report = |error: ExpressionError| {
        let described = |what: &str| format!("{} of the expression: {what}", error.place());
        faults.inside(path, source, error.bytes(), problem(&error), described);
    };
    let compiled = compiled.map_err(report).ok()?;
    faults.check(path, faults.budget.take(compiled.compiled_bytes()))?;
    Some(compiled)
}

/// Parses a duration such as `60s`, `5m` or `720h`.
pub(super) fn duration(text: &str) -> Result<Duration, Problem> {
    let fault = || {
        let is_number = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let remedy =
            if is_number { format!("add a unit: {text}s") } else { "write one such as 60s, 5m or 720h".to_owned() };
        Problem::new(format!("{text:?} is not a duration"), remedy)
    };
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| fault())?;
    Duration::try_from(parsed).map_err(|_| fault())
}
