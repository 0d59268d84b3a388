//! Durations and points in time, as Kubernetes' CEL (cel-go) computes with them.

use std::cmp::Ordering;

/// Nanoseconds in a second.
const NANOS: i64 = 1_000_000_000;
/// `0001-01-01T00:00:00Z`, in seconds since 1970.
const FIRST: i64 = -62_135_596_800;
/// `9999-12-31T23:59:59Z`, in seconds since 1970.
const LAST: i64 = 253_402_300_799;
const DAY: i64 = 86_400;

/// A length of time: nanoseconds, so at most 292 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Duration(pub(crate) i64);

/// A point in time between the years 1 and 9999, and the offset from UTC with which it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamp {
    /// Since 1970, without leap seconds.
    seconds: i64,
    nanos: i64,
    /// In seconds. Two points in time with other offsets may be the same.
    offset: i64,
}

/// A point in time as a calendar has it. Everything counts as the calendar does: months and days from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    /// From 0, the first of January.
    pub(crate) day_of_year: i64,
    /// From 0, Sunday.
    pub(crate) weekday: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millisecond: i64,
}

impl Duration {
    /// Reads `1h30m`, `-1.5s`, `300ms`, as Go's `time.ParseDuration` does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Some(Self(0));
        }
        if rest.is_empty() {
            return None;
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, behind) = one_of_duration(rest)?;
            total = total.checked_add(part).filter(|total| *total <= 1 << 63)?;
            rest = behind;
        }
        let total = i128::from(total);
        i64::try_from(if negative { -total } else { total }).ok().map(Self)
    }

    #[allow(clippy::cast_precision_loss)] // As cel-go converts them.
    fn seconds(self) -> f64 {
        (self.0 / NANOS) as f64 + (self.0 % NANOS) as f64 / 1e9
    }
}

/// One number with its unit, in nanoseconds, and what follows it.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // As Go rounds.
fn one_of_duration(text: &str) -> Option<(u64, &str)> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, rest) = rest.split_at(rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len()));
    let unit: u64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut value = whole.checked_mul(unit).filter(|value| *value <= 1 << 63)?;
    // Eighteen digits are all that fits, and more than matter.
    let fraction = fraction.get(..fraction.len().min(18)).unwrap_or_default();
    if let Ok(parts) = fraction.parse::<u64>() {
        let scale = 10_f64.powi(i32::try_from(fraction.len()).ok()?);
        value = value.checked_add((parts as f64 * (unit as f64 / scale)) as u64)?;
    }
    Some((value, rest))
}

impl std::fmt::Display for Duration {
    /// Seconds: `5400s`, `0.3s`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}s", self.seconds())
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl Timestamp {
    /// A point in time in UTC; `None` outside the years 1 to 9999.
    pub(crate) fn new(seconds: i64, nanos: i64) -> Option<Self> {
        Self { seconds: 0, nanos: 0, offset: 0 }.at(seconds, nanos)
    }

    /// The same offset at another time.
    fn at(self, seconds: i64, nanos: i64) -> Option<Self> {
        let within = (FIRST..=LAST).contains(&seconds) && (0..NANOS).contains(&nanos);
        within.then_some(Self { seconds, nanos, ..self })
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(self) -> i64 {
        self.seconds
    }

    /// Reads RFC 3339 (`2026-01-02T03:04:05.678Z`, `…+02:00`), as Go's `time.Parse` does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut text = Scanner(text);
        let year = text.digits(4)?;
        text.literal("-")?;
        let month = text.digits(2)?;
        text.literal("-")?;
        let day = text.digits(2)?;
        text.literal("T")?;
        // Go reads an hour of one digit.
        let hour = text.digits(2).or_else(|| text.digits(1))?;
        text.literal(":")?;
        let minute = text.digits(2)?;
        text.literal(":")?;
        let second = text.digits(2)?;
        let nanos = text.fraction()?;
        let offset = text.offset()?;
        let month_has = days_of_month(year, month)?;
        if !text.0.is_empty() || !(1..=month_has).contains(&day) || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let seconds = days_before(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
        Self { seconds: 0, nanos: 0, offset }.at(seconds, nanos)
    }

    pub(crate) fn checked_add(self, duration: Duration) -> Option<Self> {
        let nanos = self.nanos + duration.0 % NANOS;
        let seconds = self.seconds.checked_add(duration.0 / NANOS)?.checked_add(nanos.div_euclid(NANOS))?;
        self.at(seconds, nanos.rem_euclid(NANOS))
    }

    pub(crate) fn checked_sub(self, duration: Duration) -> Option<Self> {
        // The shortest duration has no negative.
        match duration.0.checked_neg() {
            Some(nanos) => self.checked_add(Duration(nanos)),
            None => self.checked_add(Duration(i64::MAX))?.checked_add(Duration(1)),
        }
    }

    /// How long after `earlier` this is; `None` beyond 292 years.
    pub(crate) fn since(self, earlier: Self) -> Option<Duration> {
        let nanos = i128::from(self.seconds - earlier.seconds) * i128::from(NANOS);
        i64::try_from(nanos + i128::from(self.nanos - earlier.nanos)).ok().map(Duration)
    }

    /// What a calendar shows `offset` seconds east of UTC.
    pub(crate) fn civil(self, offset: i64) -> Civil {
        let local = self.seconds + offset;
        let (days, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let (year, month, day) = date(days);
        Civil {
            year,
            month,
            day,
            day_of_year: days - days_before(year, 1, 1),
            // 1970 began on a Thursday.
            weekday: (days + 4).rem_euclid(7),
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
            millisecond: self.nanos / 1_000_000,
        }
    }
}

impl std::fmt::Display for Timestamp {
    /// RFC 3339 with as many digits of the second as it needs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Civil { year, month, day, hour, minute, second, .. } = self.civil(self.offset);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if self.nanos > 0 {
            let digits = format!("{:09}", self.nanos);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        let minutes = self.offset / 60;
        let sign = match minutes {
            0 => return write!(f, "Z"),
            ..0 => '-',
            _ => '+',
        };
        write!(f, "{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
    }
}

/// The rest of a text that is read from its start.
struct Scanner<'t>(&'t str);

impl Scanner<'_> {
    fn literal(&mut self, literal: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(literal)?;
        Some(())
    }

    /// Exactly `count` digits.
    fn digits(&mut self, count: usize) -> Option<i64> {
        let digits = self.0.get(..count).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        self.0 = self.0.get(count..)?;
        digits.parse().ok()
    }

    /// Nanoseconds behind a point or comma; 0 if there is none.
    fn fraction(&mut self) -> Option<i64> {
        let Some(rest) = self.0.strip_prefix(['.', ',']) else { return Some(0) };
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        if digits.is_empty() {
            return None;
        }
        self.0 = rest;
        format!("{digits:0<9}").get(..9)?.parse().ok()
    }

    /// `Z`, or hours and minutes, in seconds.
    fn offset(&mut self) -> Option<i64> {
        if self.literal("Z").is_some() {
            return Some(0);
        }
        let sign = match self.literal("+") {
            Some(()) => 1,
            None => self.literal("-").map(|()| -1)?,
        };
        let hours = self.digits(2)?;
        self.literal(":")?;
        let minutes = self.digits(2)?;
        (hours <= 24 && minutes <= 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

fn days_of_month(year: i64, month: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 => Some(if leap { 29 } else { 28 }),
        _ => None,
    }
}

/// Days from 1970 to a date of the Gregorian calendar (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a day since 1970; the inverse of [`days_before`].
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}
