//! The bound on what one evaluation may do.

use super::fault::EvaluationError;

/// Steps of one evaluation: about one for every part that is evaluated, every item that is looked
/// at and every 16 bytes of text that are read or written.
///
/// Nothing an expression can do is free of them, so they bound its time and its memory whatever
/// the node holds: labels and annotations are a kubelet's own word, and there may be many.
pub(super) const MAX_STEPS: u64 = 500_000;

/// The steps that are left.
#[derive(Debug)]
pub(super) struct Steps {
    left: u64,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self { left: MAX_STEPS }
    }

    /// Takes `count` steps.
    pub(super) fn take(&mut self, count: usize) -> Result<(), EvaluationError> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(count).ok_or(EvaluationError::TooExpensive)?;
        Ok(())
    }

    /// Takes the steps of reading or writing `bytes` bytes.
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<(), EvaluationError> {
        self.take(1 + bytes / 16)
    }

    /// How many have been taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        MAX_STEPS - self.left
    }
}
