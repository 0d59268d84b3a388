//! The bounds on what one evaluation, and all that belong together, may do.

use std::cell::Cell;

use crate::fault::EvaluationError;
use crate::limits::{MAX_SHARED_BYTES, MAX_SHARED_STEPS, MAX_STEPS, Unread};

/// The steps, and the bytes of memory, that are left to all evaluations that belong together, such as those of one request.
///
/// It is no clock: the same evaluations have the same answers, however busy the machine is, but for [`Self::until`]. It starts with
/// 4,000,000 steps and 4 MiB.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    bytes_left: Cell<usize>,
    brief: bool,
    spent: Cell<bool>,
    stop: Option<Stop>,
    stopped: Cell<bool>,
}

/// Says whether evaluations have to end.
struct Stop(Box<dyn Fn() -> bool + Send>);

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stop")
    }
}

/// Steps of a [`Budget::brief`] one: some milliseconds at most, more than some hundred ordinary expressions take.
const BRIEF_STEPS: u64 = 50_000;

/// Bytes of text that are looked through in the time of one step.
const SCANNED_IN_A_STEP: usize = 64;

/// Bytes of a [`Budget::brief`] one.
const BRIEF_BYTES: usize = 1 << 20;

/// Steps of a [`Budget::immediate`] one: some hundred microseconds at most, more than some fifty ordinary expressions take.
const IMMEDIATE_STEPS: u64 = 5_000;

/// Bytes of a [`Budget::immediate`] one.
const IMMEDIATE_BYTES: usize = 128 << 10;

impl Default for Budget {
    fn default() -> Self {
        Self {
            left: Cell::new(MAX_SHARED_STEPS),
            bytes_left: Cell::new(MAX_SHARED_BYTES),
            brief: false,
            spent: Cell::new(false),
            stop: None,
            stopped: Cell::new(false),
        }
    }
}

impl Budget {
    /// A small budget for a first try, which tells what is soon done from what may take long.
    #[must_use]
    pub fn brief() -> Self {
        Self::first_try(BRIEF_STEPS, BRIEF_BYTES)
    }

    /// A tenth of the steps of a [`Self::brief`] one, for a first try on a thread that others wait for.
    #[must_use]
    pub fn immediate() -> Self {
        Self::first_try(IMMEDIATE_STEPS, IMMEDIATE_BYTES)
    }

    /// A budget without any steps as soon as `stop` says so, which is asked before each evaluation.
    #[must_use]
    pub fn until(stop: impl Fn() -> bool + Send + 'static) -> Self {
        Self { stop: Some(Stop(Box::new(stop))), ..Self::default() }
    }

    /// Whether [`Self::until`] ended it: what came of it is worth nothing.
    #[must_use]
    pub fn was_stopped(&self) -> bool {
        self.stopped.get()
    }

    fn heed_stop(&self) {
        if let Some(Stop(stop)) = self.stop.as_ref().filter(|_| !self.stopped.get())
            && stop()
        {
            self.stopped.set(true);
            self.left.set(0);
        }
    }

    fn first_try(steps: u64, bytes: usize) -> Self {
        Self { left: Cell::new(steps), bytes_left: Cell::new(bytes), brief: true, ..Self::default() }
    }

    /// Whether this is a first try, for what is soon done.
    #[must_use]
    pub fn is_brief(&self) -> bool {
        self.brief
    }

    /// Whether this was a first try that did not get to an end: what came of it is worth nothing.
    #[must_use]
    pub fn was_too_brief(&self) -> bool {
        self.brief && self.spent.get()
    }

    /// Takes `count` steps.
    ///
    /// # Errors
    /// When there are not so many left; then there are none.
    pub fn take(&self, count: u64) -> Result<(), EvaluationError> {
        self.heed_stop();
        let left = self.left.get().checked_sub(count);
        self.left.set(left.unwrap_or_default());
        self.spent.set(self.spent.get() || left.is_none());
        left.map(|_| ()).ok_or(EvaluationError::Spent)
    }

    /// Takes `count` bytes of memory.
    ///
    /// # Errors
    /// When there are not so many left.
    pub(crate) fn take_bytes(&self, count: usize) -> Result<(), Unread> {
        let left = self.bytes_left.get().checked_sub(count).ok_or(Unread::Large)?;
        self.bytes_left.set(left);
        Ok(())
    }

    /// How many bytes of memory are left.
    #[must_use]
    pub fn bytes_left(&self) -> usize {
        self.bytes_left.get()
    }

    /// Lets `look` use what `read` takes out of a document for it alone: its memory is free again afterwards.
    ///
    /// # Errors
    /// When no steps are left for reading a text of so many bytes.
    pub fn lend<R, T>(
        &self,
        bytes: usize,
        read: impl FnOnce() -> R,
        look: impl FnOnce(R) -> T,
    ) -> Result<T, EvaluationError> {
        self.take(u64::try_from(bytes / SCANNED_IN_A_STEP).unwrap_or(u64::MAX))?;
        let before = self.bytes_left.get();
        let part = read();
        let taken = before.saturating_sub(self.bytes_left.get());
        let seen = look(part);
        self.bytes_left.set(self.bytes_left.get() + taken);
        Ok(seen)
    }

    /// Makes bytes free again whose memory was freed.
    pub(crate) fn set_bytes_left(&self, count: usize) {
        self.bytes_left.set(count);
    }

    /// Takes what an evaluation has taken, and sees how it ended.
    pub(crate) fn settle<T>(&self, steps: &Steps, outcome: &Result<T, EvaluationError>) {
        self.left.set(self.left.get().saturating_sub(steps.taken()));
        self.spent.set(self.spent.get() || matches!(outcome, Err(EvaluationError::Spent | EvaluationError::TooLarge)));
    }
}

/// The steps that are left to one evaluation.
#[derive(Debug)]
pub(crate) struct Steps {
    left: u64,
    /// How many there were.
    limit: u64,
}

impl Steps {
    /// As many as one evaluation may take, or as there are left.
    pub(crate) fn new(budget: Option<&Budget>) -> Self {
        if let Some(budget) = budget {
            budget.heed_stop();
        }
        let limit = budget.map_or(MAX_STEPS, |budget| budget.left.get().min(MAX_STEPS));
        Self { left: limit, limit }
    }

    /// Takes `count` steps.
    pub(crate) fn take(&mut self, count: usize) -> Result<(), EvaluationError> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        match self.left.checked_sub(count) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None if self.limit < MAX_STEPS => {
                self.left = 0;
                Err(EvaluationError::Spent)
            }
            None => Err(EvaluationError::TooExpensive),
        }
    }

    /// Takes the steps of reading or writing `bytes` bytes.
    pub(crate) fn bytes(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.take(1 + bytes / 16)
    }

    /// How many have been taken.
    pub(crate) fn taken(&self) -> u64 {
        self.limit - self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_budget_has_no_steps_once_it_has_to_stop() {
        let stop = Arc::new(AtomicBool::new(false));
        let budget = Budget::until({
            let stop = stop.clone();
            move || stop.load(Ordering::Relaxed)
        });
        assert!(budget.take(1).is_ok() && Steps::new(Some(&budget)).take(1).is_ok() && !budget.was_stopped());
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(Steps::new(Some(&budget)).take(1), Err(EvaluationError::Spent)));
        stop.store(false, Ordering::Relaxed);
        assert!(budget.was_stopped() && budget.take(1).is_err(), "it does not go on");
    }
}
