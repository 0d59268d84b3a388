//! Kubernetes resource quantities, exact, and comparisons with them.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::api::problem::Problem;

/// A quantity in nano-units (Kubernetes' finest), so `100m`, `1Ki` and `2` compare exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Zero.
    pub(crate) const ZERO: Self = Self(0);

    /// An integer quantity.
    pub(crate) fn whole(n: u64) -> Self {
        Self(i128::from(n) * NANO)
    }

    /// The quantity as a number, for sums and prices. Rounded to the precision of a double.
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / NANO as f64
    }
}

/// A resource quantity as Kubernetes writes it, such as `81559Mi`, as a number, rounded to the precision of a double; `None` if it is
/// none.
pub fn quantity(text: &str) -> Option<f64> {
    text.parse::<Quantity>().ok().map(Quantity::as_f64)
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "n" => (1, NANO),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "" => (1, 1),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

impl FromStr for Quantity {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let fault = || not_a_quantity(text);
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 30 {
            return Err(fault());
        }
        let (multiply, divide) = scale(suffix).ok_or_else(fault)?;
        let parse = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<i128>().map_err(|_| fault()) };
        let fraction: String = fraction.chars().take(9).collect();
        let fraction = parse(&format!("{fraction:0<9}"))?;
        let nanos = parse(whole)?
            .checked_mul(NANO)
            .and_then(|nanos| nanos.checked_add(fraction))
            .and_then(|nanos| nanos.checked_mul(multiply))
            .ok_or_else(fault)?
            / divide;
        Ok(Self(if negative { -nanos } else { nanos }))
    }
}

/// The problem of a text that is not a quantity.
fn not_a_quantity(text: &str) -> Problem {
    let what = format!("{text:?} is not a quantity");
    // Kubernetes' suffixes do not name a unit.
    let meant = text.trim_end_matches(['B', 'b']);
    if meant.len() < text.len() && meant.parse::<Quantity>().is_ok() {
        return Problem::new(what, format!("did you mean {meant:?}?"));
    }
    Problem::new(what, "write a number such as 16, 1.5, 500m or 64Gi")
}

/// A comparison such as `>=16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    operator: ComparisonOperator,
    with: Quantity,
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparisonOperator {
    /// `>=`
    AtLeast,
    /// `>`
    MoreThan,
    /// `<=`
    AtMost,
    /// `<`
    LessThan,
    /// `==`
    Equal,
}

impl ComparisonOperator {
    /// All operators; those of two characters first.
    const ALL: [Self; 5] = [Self::AtLeast, Self::AtMost, Self::Equal, Self::MoreThan, Self::LessThan];

    /// The operator as written.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::MoreThan => ">",
            Self::AtMost => "<=",
            Self::LessThan => "<",
            Self::Equal => "==",
        }
    }

    /// Parses an operator.
    pub(crate) fn parse(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.sign() == sign)
    }

    /// Whether it accepts this order of two values.
    pub(crate) fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::AtLeast => order != Ordering::Less,
            Self::MoreThan => order == Ordering::Greater,
            Self::AtMost => order != Ordering::Greater,
            Self::LessThan => order == Ordering::Less,
            Self::Equal => order == Ordering::Equal,
        }
    }
}

impl Comparison {
    /// The operator as written.
    pub(crate) fn sign(self) -> &'static str {
        self.operator.sign()
    }

    /// The quantity to compare with, exactly, in the format of Kubernetes.
    pub(crate) fn with(self) -> String {
        match self.with.0 % NANO {
            0 => (self.with.0 / NANO).to_string(),
            _ => format!("{}n", self.with.0),
        }
    }

    /// Whether `quantity` satisfies it.
    pub(crate) fn holds(self, quantity: Quantity) -> bool {
        self.operator.accepts(quantity.cmp(&self.with))
    }

    /// Whether no quantity satisfies both.
    pub(crate) fn excludes(self, other: Self) -> bool {
        // If there is such a quantity, one of the two limits or one next to them is one.
        let near = |Quantity(nanos)| [nanos.saturating_sub(1), nanos, nanos.saturating_add(1)].map(Quantity);
        let mut candidates = near(self.with).into_iter().chain(near(other.with));
        !candidates.any(|quantity| self.holds(quantity) && other.holds(quantity))
    }
}

/// As policies write it, with the largest binary suffix that keeps the quantity exact.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let Quantity(nanos) = self.with;
        f.write_str(self.sign())?;
        match (nanos % NANO, nanos % (NANO / 1000)) {
            (0, _) => {
                // Small numbers count things.
                let (mut number, mut suffix) = (nanos / NANO, 0);
                while number != 0 && number % 1024 == 0 && suffix + 1 < SUFFIXES.len() && nanos / NANO >= 1 << 20 {
                    (number, suffix) = (number / 1024, suffix + 1);
                }
                write!(f, "{number}{}", SUFFIXES[suffix])
            }
            (_, 0) => write!(f, "{}m", nanos / (NANO / 1000)),
            _ => write!(f, "{nanos}n"),
        }
    }
}

impl FromStr for Comparison {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        let (operator, rest) = ComparisonOperator::ALL
            .into_iter()
            .find_map(|operator| text.strip_prefix(operator.sign()).map(|rest| (operator, rest)))
            .ok_or_else(|| Problem::new(format!("{text:?} is not a comparison"), Self::remedy(text)))?;
        Ok(Self { operator, with: rest.trim().parse()? })
    }
}

impl Comparison {
    /// What to write instead of a text that is not a comparison.
    fn remedy(text: &str) -> String {
        if text.parse::<Quantity>().is_ok() {
            return format!("write \">={text}\" for at least {text}, or \"=={text}\" for exactly {text}");
        }
        let signs = [("=>", ">="), ("=<", "<="), ("=", "==")];
        let meant = signs.iter().find_map(|(sign, meant)| Some((meant, text.strip_prefix(sign)?.trim())));
        match meant.filter(|(_, quantity)| quantity.parse::<Quantity>().is_ok()) {
            Some((meant, quantity)) => format!("did you mean \"{meant}{quantity}\"?"),
            None => "write >=, >, <=, < or == and a quantity, such as \">=16\"".to_owned(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_exclude_each_other_if_no_quantity_satisfies_both() {
        let comparison = |text: &str| text.parse::<Comparison>().unwrap();
        for (one, other, expected) in [
            (">=16", "<16", true),
            (">=16", "<=16", false),
            (">16", "<=16", true),
            ("==8", "==8000m", false),
            ("==8", "==9", true),
            (">=8", ">=16", false),
            ("<4", ">8", true),
            ("<8", ">4", false),
        ] {
            assert_eq!(comparison(one).excludes(comparison(other)), expected, "{one} and {other}");
            assert_eq!(comparison(other).excludes(comparison(one)), expected, "{other} and {one}");
        }
    }

    #[test]
    fn quantities_compare_across_suffixes() {
        let q = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(q("1"), q("1000m"));
        assert_eq!(q("1Ki"), q("1024"));
        assert_eq!(q("1.5Gi"), q("1536Mi"));
        assert_eq!(q("1e3"), q("1k"));
        assert!(q("3840Mi") < q("4Gi") && q("-1") < Quantity::ZERO && q("1E") == q("1e18"));
        assert_eq!(q("8"), Quantity::whole(8));
    }

    #[test]
    fn every_suffix_scales_a_quantity() {
        let nanos = |text: &str| text.parse::<Quantity>().unwrap().0;
        for (at, suffix) in ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].into_iter().enumerate() {
            assert_eq!(nanos(&format!("3{suffix}")), 3 * 1000_i128.pow(at.try_into().unwrap()), "{suffix:?}");
        }
        for (at, suffix) in ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter().enumerate() {
            assert_eq!(nanos(&format!("3{suffix}")), (3 * NANO) << (10 * at), "{suffix:?}");
        }
        for (text, same) in [("25e2", "2500"), ("25E0", "25"), ("25e-3", "25m"), ("25E-6", "25u")] {
            assert_eq!(nanos(text), nanos(same), "{text}");
        }
    }

    #[test]
    fn the_number_of_a_quantity_has_at_most_thirty_characters() {
        let of = |length: usize| format!("{:0>length$}", 16).parse::<Quantity>();
        assert_eq!(of(30), Ok(Quantity::whole(16)));
        assert!(of(31).is_err());
    }

    #[test]
    fn a_comparison_writes_its_quantity_exactly() {
        for (text, with, shown) in [
            (">=16", "16", ">=16"),
            ("<64Gi", "68719476736", "<64Gi"),
            (">2048", "2048", ">2048"),
            ("==0", "0", "==0"),
            (">500m", "500000000n", ">500m"),
            ("<=-1.5", "-1500000000n", "<=-1500m"),
            ("<1u", "1000n", "<1000n"),
        ] {
            let comparison: Comparison = text.parse().unwrap();
            assert_eq!((comparison.with().as_str(), comparison.to_string().as_str()), (with, shown), "{text}");
            assert_eq!(with.parse(), Ok(comparison.with), "{text}");
        }
    }

    #[test]
    fn nonsense_is_not_a_quantity() {
        for text in ["", "x", "1.2.3", "1Zi", "--1", "1e", "1e99", "9999999999999999999999999999999999Ei", "."] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
        for text in ["16", "=16", ">=", "=>1", "~1"] {
            assert!(text.parse::<Comparison>().is_err(), "{text}");
        }
        assert!(">= 16".parse::<Comparison>().unwrap().holds(Quantity::whole(16)));
    }
}
