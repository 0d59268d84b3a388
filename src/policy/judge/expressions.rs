//! What expressions over a write say.

use super::demands::Finding;
use super::side::Side;
use crate::policy::cel::{EvaluationError, Excerpt, Expression, RequestVariables, Variables};
use crate::policy::governance::Demanded;
use crate::policy::request::{Operation, Requester, Write};

/// What an expression is asked about.
pub(super) struct Asked<'s, 'a> {
    pub(super) new: &'s Side<'a>,
    pub(super) old: Option<&'s Side<'a>>,
    pub(super) requester: &'s Requester<'a>,
    /// `None` when a node is looked at that nobody writes.
    pub(super) write: Option<&'s Write<'a>>,
}

/// Why an expression has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// It reads what is not there, or the like.
    Unknown(String),
    /// It would take too long or too much memory: whoever makes a node large must not get past what is demanded of it.
    TooCostly(String),
}

impl From<EvaluationError> for Unanswered {
    fn from(error: EvaluationError) -> Self {
        match error {
            EvaluationError::TooExpensive
            | EvaluationError::Spent
            | EvaluationError::TooLarge
            | EvaluationError::TooDeep => Self::TooCostly(error.to_string()),
            EvaluationError::Failed(_) | EvaluationError::Internal(_) => Self::Unknown(error.to_string()),
        }
    }
}

/// What is wrong: one finding when the expression is false.
///
/// # Errors
/// Why it has no answer.
pub(super) fn findings(demanded: &Demanded, asked: &Asked<'_, '_>) -> Result<Vec<Finding>, Unanswered> {
    if with_variables(&demanded.expression, asked, Expression::evaluate_bool)? {
        return Ok(Vec::new());
    }
    let message = demanded.message_expression.as_ref();
    let said = message.and_then(|message| with_variables(message, asked, Expression::evaluate_text).ok());
    let said = said.filter(|text| !text.trim().is_empty()).map(|text| cut(&text));
    let what = said.or_else(|| demanded.message.as_deref().map(str::to_owned));
    let what = what.unwrap_or_else(|| format!("this must hold: {}", demanded.expression.source()));
    Ok(vec![Finding::of_node(what)])
}

/// Whether the answer is no, and not unknown.
pub(super) fn is_false(demanded: &Demanded, asked: &Asked<'_, '_>) -> bool {
    with_variables(&demanded.expression, asked, Expression::evaluate_bool) == Ok(false)
}

/// Longest message that an expression may make, in characters.
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
    asked: &Asked<'_, '_>,
    evaluate: fn(&Expression, &Variables<'_>) -> Result<T, EvaluationError>,
) -> Result<T, Unanswered> {
    let paths = expression.paths();
    let groups: Vec<&str> = asked.requester.groups.iter().map(|group| &**group).collect();
    let request = if paths.request { request(asked, &groups) } else { RequestVariables::default() };
    asked.new.look(&paths.written, |object| {
        let answer = |old: Option<&Excerpt<'_>>| {
            Ok(evaluate(expression, &Variables::write(object, old, &request).within(asked.new.budget()))?)
        };
        match asked.old {
            // What is not mentioned is not read either.
            Some(old) if expression.reads().old_object => old.look(&paths.written, |old| answer(Some(old))),
            _ => answer(None),
        }
    })
}

fn request<'r>(asked: &'r Asked<'_, '_>, groups: &'r [&'r str]) -> RequestVariables<'r> {
    RequestVariables {
        operation: match asked.write.map(|write| write.operation) {
            Some(Operation::Update) => "UPDATE",
            _ => "CREATE",
        },
        name: asked.write.map_or("", |write| &*write.node.name),
        sub_resource: if asked.write.is_some_and(|write| write.status) { "status" } else { "" },
        dry_run: asked.write.is_some_and(|write| write.dry_run),
        username: &asked.requester.username,
        uid: asked.requester.uid.as_deref(),
        groups,
    }
}
