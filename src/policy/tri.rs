//! Conditions that may be unknown.

/// The outcome of a condition. Unknown adds nothing and removes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tri {
    /// It does not hold.
    False,
    /// It cannot be told: an evaluation failed, or the source of a fact has not spoken yet.
    Unknown,
    /// It holds.
    True,
}

impl Tri {
    /// Both: false if either is false, else unknown if either is unknown.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    /// Either: true if either is true, else unknown if either is unknown.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::True, _) | (_, Self::True) => Self::True,
            (Self::False, Self::False) => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl From<bool> for Tri {
    fn from(known: bool) -> Self {
        if known { Self::True } else { Self::False }
    }
}
