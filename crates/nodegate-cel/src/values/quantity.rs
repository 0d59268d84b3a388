//! Quantities as Kubernetes computes with them (`k8s.io/apimachinery/pkg/api/resource`, `quantity.go` and `amount.go`).
//!
//! Kubernetes keeps a short quantity as an int and a power of ten, and others as a decimal of any length, and it shows: only short ones
//! are integers, and the power decides how a quantity is rounded to a double. So both are kept here as well.

use std::cmp::Ordering;

/// A quantity: `number` × 10^`exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    number: i128,
    exponent: i32,
    /// Whether Kubernetes keeps it as an int (`int64Amount`).
    is_short: bool,
}

/// The finest power of ten (`Nano`).
const FINEST: i32 = -9;
/// How many digits an int has for certain (`maxInt64Factors`).
const SHORT_DIGITS: i32 = 18;

/// What follows the number.
#[derive(Clone, Copy)]
enum Suffix {
    /// A power of ten.
    Decimal(i32),
    /// A power of two.
    Binary(u32),
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Decimal(0),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            _ => Self::Decimal(text.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    /// By how many digits a number becomes longer, at most.
    fn digits(self) -> i32 {
        match self {
            Self::Decimal(exponent) => exponent,
            Self::Binary(exponent) => i32::try_from(exponent / 10 * 3 + exponent / 60).unwrap_or(i32::MAX),
        }
    }
}

/// The number of digits.
fn digits(text: &str) -> i32 {
    i32::try_from(text.len()).unwrap_or(i32::MAX)
}

fn power_of_ten(exponent: i32) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent).ok()?)
}

impl Quantity {
    /// Reads a quantity, as `ParseQuantity`. None if it is none, or is out of range here: it has more than 22 digits before the point or
    /// more than 12 behind it, or its power of ten is beyond 30. Within that, sums are exact.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let (is_negative, unsigned) = match text.strip_prefix(['+', '-']) {
            Some(unsigned) => (text.starts_with('-'), unsigned),
            None => (false, text),
        };
        let end_of_digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = unsigned.split_at(end_of_digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(end_of_digits(rest)),
            None => ("", rest),
        };
        let suffix = Suffix::parse(suffix)?;
        let is_in_range = suffix.digits().abs() <= 30
            && digits(whole).saturating_add(suffix.digits()) <= 22
            && digits(fraction).saturating_sub(suffix.digits()) <= 12
            && digits(whole).saturating_add(digits(fraction)) <= 34;
        let number = format!("0{whole}{fraction}").parse::<i128>().ok().filter(|_| is_in_range)?;
        let sign = if is_negative { -1 } else { 1 };
        let has_digits = !whole.is_empty() || !fraction.is_empty();
        let whole = whole.trim_start_matches('0');
        match Self::short(if whole.is_empty() { "0" } else { whole }, fraction, number, suffix) {
            Some(short) => Some(Self { number: sign * short.number, ..short }),
            // Only a short one may be without any digit.
            None if !has_digits => None,
            None => {
                Self::long(digits(fraction), number, suffix).map(|long| Self { number: sign * long.number, ..long })
            }
        }
    }

    /// A quantity that Kubernetes keeps as an int.
    fn short(whole: &str, fraction: &str, number: i128, suffix: Suffix) -> Option<Self> {
        let (factor, exponent, left) = match suffix {
            Suffix::Decimal(exponent) => (1, exponent, SHORT_DIGITS - digits(whole) - digits(fraction)),
            Suffix::Binary(exponent) if fraction.is_empty() => {
                (1_i64 << exponent, 0, 15 - digits(whole) - i32::try_from(exponent * 3 / 10).ok()? - 1)
            }
            Suffix::Binary(_) => return None,
        };
        let exponent = exponent - digits(fraction);
        if left < 0 || exponent < FINEST {
            return None;
        }
        let number = i64::try_from(number).ok()?.checked_mul(factor)?;
        Some(Self { number: number.into(), exponent, is_short: true })
    }

    /// Another one, rounded away from zero to the finest unit. Kubernetes caps those with a binary suffix.
    fn long(fraction: i32, number: i128, suffix: Suffix) -> Option<Self> {
        let (number, exponent) = match suffix {
            Suffix::Decimal(exponent) => (number, exponent - fraction),
            Suffix::Binary(exponent) => (number.checked_mul(1 << exponent)?, -fraction),
        };
        if number == 0 {
            return Some(Self { number, exponent, is_short: false });
        }
        let number = match exponent - FINEST {
            finer @ ..0 => number.div_euclid(power_of_ten(-finer)?) + i128::from(number % power_of_ten(-finer)? != 0),
            coarser => number.checked_mul(power_of_ten(coarser)?)?,
        };
        let most = i128::from(i64::MAX);
        if matches!(suffix, Suffix::Binary(_)) && number > most * power_of_ten(-FINEST)? {
            return Some(Self { number: most, exponent: 0, is_short: false });
        }
        Some(Self { number, exponent: FINEST, is_short: false })
    }

    /// An int.
    pub(crate) fn whole(number: i64) -> Self {
        Self { number: number.into(), exponent: 0, is_short: true }
    }

    /// −1, 0 or 1.
    pub(crate) fn sign(self) -> i64 {
        i64::try_from(self.number.signum()).unwrap_or_default()
    }

    /// The int that it is. None for one that has a power below one or is long, even if its value is whole (`AsInt64`).
    pub(crate) fn as_int(self) -> Option<i64> {
        let number = self.number.checked_mul(power_of_ten(self.exponent)?)?;
        i64::try_from(number).ok().filter(|_| self.is_short)
    }

    /// The double that `AsApproximateFloat64` gives, which is not always the nearest one.
    pub(crate) fn as_double(self) -> f64 {
        let number = self.number as f64;
        if self.exponent == 0 { number } else { number * format!("1e{}", self.exponent).parse().unwrap_or(f64::NAN) }
    }

    /// Both together. None beyond 128 bits.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        if self.is_short
            && other.is_short
            && let Some(sum) = self.add_short(other)
        {
            return Some(sum);
        }
        let exponent = self.exponent.min(other.exponent);
        let number = self.at(exponent)?.checked_add(other.at(exponent)?)?;
        Some(Self { number, exponent, is_short: false })
    }

    fn add_short(self, other: Self) -> Option<Self> {
        match (self.number, other.number) {
            (_, 0) => Some(self),
            (0, _) => Some(other),
            _ => {
                let exponent = self.exponent.min(other.exponent);
                let (one, other) = (i64::try_from(self.at(exponent)?).ok()?, i64::try_from(other.at(exponent)?).ok()?);
                Some(Self { number: one.checked_add(other)?.into(), exponent, is_short: true })
            }
        }
    }

    /// This one less the other. None beyond 128 bits.
    pub(crate) fn subtract(self, other: Self) -> Option<Self> {
        let number = -other.number;
        self.add(Self { number, is_short: other.is_short && i64::try_from(number).is_ok(), ..other })
    }

    /// The number with this exponent, which is not greater than its own.
    fn at(self, exponent: i32) -> Option<i128> {
        self.number.checked_mul(power_of_ten(self.exponent - exponent)?)
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let exponent = self.exponent.min(other.exponent);
        match (self.at(exponent), other.at(exponent)) {
            (Some(one), Some(other)) => one.cmp(&other),
            // Only a sum of very many can be so great.
            _ => self.as_double().total_cmp(&other.as_double()),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}
