//! Evaluates expressions over a write.

use std::cell::OnceCell;

use super::findings::Finding;
use super::snapshot::NodeSnapshot;
use super::unevaluated::Unevaluated;
use crate::cel::{EvaluationError, Excerpt, Expression, RequestValue, RequestVariables, Variables};
use crate::facts::request::{Operation, Write};
use crate::facts::requester::Requester;
use crate::set::governance::ExpressionConstraint;

/// The input of an expression.
pub(super) struct EvaluationInput<'s, 'a, 'r> {
    pub(super) new: &'s NodeSnapshot<'a>,
    pub(super) old: Option<&'s NodeSnapshot<'a>>,
    pub(super) request: &'s SharedRequest<'r>,
}

/// The variable `request` of all expressions that judge one write, made for the first one that reads it.
pub(super) struct SharedRequest<'r> {
    requester: &'r Requester<'r>,
    /// `None` if a stored node is judged without a write.
    write: Option<&'r Write<'r>>,
    value: OnceCell<RequestValue<'r>>,
}

impl<'r> SharedRequest<'r> {
    /// The request of a write.
    pub(super) fn of(write: &'r Write<'r>) -> Self {
        Self { requester: &write.requester, write: Some(write), value: OnceCell::new() }
    }

    /// The request for a stored node that is judged without a write.
    pub(super) fn by(requester: &'r Requester<'r>) -> Self {
        Self { requester, write: None, value: OnceCell::new() }
    }

    fn value(&self) -> &RequestValue<'r> {
        self.value.get_or_init(|| {
            let write = self.write;
            let request = RequestVariables {
                operation: match write.map(|write| write.operation) {
                    Some(Operation::Update) => "UPDATE",
                    _ => "CREATE",
                },
                name: write.map_or("", |write| &*write.node.name),
                sub_resource: if write.is_some_and(|write| write.status) { "status" } else { "" },
                dry_run: write.is_some_and(|write| write.dry_run),
                username: &self.requester.username,
                uid: self.requester.uid.as_deref(),
                groups: self.requester.groups.iter().map(|group| &**group).collect(),
                extra: self.requester.extra.json(),
            };
            request.value()
        })
    }
}

/// One finding if the expression is false.
///
/// # Errors
/// Returns the reason if it could not be evaluated.
pub(super) fn findings(
    constraint: &ExpressionConstraint,
    input: &EvaluationInput<'_, '_, '_>,
) -> Result<Vec<Finding>, Unevaluated> {
    if with_variables(&constraint.expression, input, Expression::evaluate_bool)? {
        return Ok(Vec::new());
    }
    let message = constraint.message_expression.as_ref();
    let message_text = message.and_then(|message| with_variables(message, input, Expression::evaluate_text).ok());
    let message_text = message_text.filter(|text| !text.trim().is_empty()).map(|text| cut(&text));
    let what = message_text.or_else(|| constraint.message.as_deref().map(str::to_owned));
    let what = what.unwrap_or_else(|| format!("failed expression: {}", constraint.expression.source()));
    Ok(vec![Finding::of_node(what)])
}

/// Whether the expression is false, not unknown.
pub(super) fn is_false(constraint: &ExpressionConstraint, input: &EvaluationInput<'_, '_, '_>) -> bool {
    with_variables(&constraint.expression, input, Expression::evaluate_bool) == Ok(false)
}

/// Maximum length of the message of an expression, in characters.
const MESSAGE_MAX: usize = 500;

fn cut(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= MESSAGE_MAX {
        return text;
    }
    text.chars().take(MESSAGE_MAX - 1).chain(['…']).collect()
}

fn with_variables<T>(
    expression: &Expression,
    input: &EvaluationInput<'_, '_, '_>,
    evaluate: fn(&Expression, &Variables<'_>) -> Result<T, EvaluationError>,
) -> Result<T, Unevaluated> {
    let paths = expression.paths();
    let request = paths.request.then(|| input.request.value());
    input.new.look(&paths.written, |object| {
        let answer = |old: Option<&Excerpt<'_>>| {
            Ok(evaluate(expression, &Variables::write(object, old, request).within(input.new.budget()))?)
        };
        match input.old {
            // The old object is read only if the expression mentions it.
            Some(old) if expression.reads().old_object => old.look(&paths.written, |old| answer(Some(old))),
            _ => answer(None),
        }
    })
}
