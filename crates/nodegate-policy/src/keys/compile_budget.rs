//! What the policies of one set may take when they are compiled.

use std::cell::Cell;

use crate::api::problem::Problem;

/// Maximum size of everything compiled of one set of policies (globs, regular expressions and CEL expressions), in bytes.
/// Whoever may send a review can make nodegate compile a policy, so this limit is what such a review costs at most.
const COMPILED_MAX: usize = 32 << 20;
/// Maximum number of CEL expressions of one set of policies. Each may be evaluated on every write.
pub(crate) const EXPRESSIONS_MAX: usize = 2_000;

/// Counts what is compiled of one set of policies, before it is compiled, so that no policy exhausts memory.
///
/// # Guarantees
/// After the first excess, nothing more is compiled, and the set as a whole is refused: [`Self::is_exceeded`].
#[derive(Debug, Default)]
pub(crate) struct CompileBudget {
    taken: Cell<usize>,
    expressions: Cell<usize>,
}

impl CompileBudget {
    /// Takes an estimate of the bytes that something has when it is compiled.
    ///
    /// # Errors
    /// Returns an error for the one that exceeds the budget.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Problem> {
        let before = self.taken.get();
        self.taken.set(before.saturating_add(bytes));
        if before <= COMPILED_MAX && self.is_exceeded() {
            let what = format!(
                "up to here, the globs, regular expressions and expressions of all policies take more than {} MiB when compiled",
                COMPILED_MAX >> 20
            );
            return Err(Problem::new(what, "use fewer or simpler ones"));
        }
        Ok(())
    }

    /// Counts an expression. Returns whether it may be compiled.
    pub(crate) fn count_expression(&self) -> bool {
        self.expressions.set(self.expressions.get() + 1);
        self.expressions.get() <= EXPRESSIONS_MAX && !self.is_exceeded()
    }

    /// The number of expressions that were counted.
    pub(crate) fn expressions(&self) -> usize {
        self.expressions.get()
    }

    /// Whether more was taken than there is.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.taken.get() > COMPILED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_excess_is_an_error_and_it_stays_exceeded() {
        let budget = CompileBudget::default();
        assert!(budget.take(COMPILED_MAX).is_ok() && !budget.is_exceeded());
        assert!(budget.take(1).is_err_and(|problem| problem.to_string().contains("32 MiB")));
        assert!(budget.take(usize::MAX).is_ok() && budget.is_exceeded() && !budget.count_expression());
    }

    #[test]
    fn no_expression_beyond_the_limit_is_compiled() {
        let budget = CompileBudget::default();
        assert!((0..EXPRESSIONS_MAX).all(|_| budget.count_expression()));
        assert!(!budget.count_expression() && !budget.count_expression());
        assert_eq!(budget.expressions(), EXPRESSIONS_MAX + 2, "all of them are counted");
    }
}
