//! Three-valued logic (Kleene) for conditions that may be unknown.

/// The result of a condition. Unknown adds nothing and removes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kleene {
    /// It does not hold.
    False,
    /// It is unknown: an evaluation failed, or a fact has not been reported yet.
    Unknown,
    /// It holds.
    True,
}

impl Kleene {
    /// Conjunction: false if either is false, else unknown if either is unknown.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    /// Disjunction: true if either is true, else unknown if either is unknown.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::True, _) | (_, Self::True) => Self::True,
            (Self::False, Self::False) => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl From<bool> for Kleene {
    fn from(known: bool) -> Self {
        if known { Self::True } else { Self::False }
    }
}
