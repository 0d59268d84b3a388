//! Points in time, compared with a calendar that turns its pages one by one.

use crate::tests::ask;
use crate::values::time::Timestamp;

#[test]
fn every_day_has_the_date_that_a_calendar_shows() {
    const DAY: i64 = 86_400;
    let leap = |year: i64| year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    let days_of_month = |year: i64, month: i64| match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    // The first day is a Monday.
    let mut day = Timestamp::parse("0001-01-01T00:00:00Z").unwrap().seconds() / DAY;
    assert_eq!(Timestamp::new(day * DAY - 1, 0), None, "nothing is before the year 1");
    let mut weekday = 1;
    for year in 1..=2500 {
        let mut day_of_year = 0;
        for month in 1..=12 {
            let first = Timestamp::parse(&format!("{year:04}-{month:02}-01T00:00:00Z")).unwrap();
            assert_eq!(first.seconds(), day * DAY, "{year}-{month}");
            for of_month in 1..=days_of_month(year, month) {
                let shown = Timestamp::new(day * DAY + DAY - 1, 0).unwrap().civil(0);
                assert_eq!((shown.year, shown.month, shown.day), (year, month, of_month));
                assert_eq!((shown.weekday, shown.day_of_year), (weekday, day_of_year), "{year}-{month}-{of_month}");
                (day, day_of_year, weekday) = (day + 1, day_of_year + 1, (weekday + 1) % 7);
            }
            let end = Timestamp::parse(&format!("{year:04}-{month:02}-{:02}T00:00:00Z", days_of_month(year, month)));
            assert_eq!(end.map(Timestamp::seconds), Some(day * DAY - DAY), "{year}-{month}");
            let behind = format!("{year:04}-{month:02}-{:02}T00:00:00Z", days_of_month(year, month) + 1);
            assert_eq!(Timestamp::parse(&behind), None, "{behind}");
        }
    }
    let last = Timestamp::parse("9999-12-31T23:59:59Z").unwrap();
    assert_eq!(Timestamp::new(last.seconds() + 1, 0), None, "nothing is behind the year 9999");
    assert_eq!(last.civil(0).year, 9999);
    let (noon, later) = (Timestamp::new(43_200, 0).unwrap(), Timestamp::new(43_200, 1).unwrap());
    assert!(noon < later && later < last);
    assert!(last > noon);
}

#[test]
fn each_part_of_a_point_in_time_is_read_and_written() {
    let sources = [
        "timestamp('2026-01-02T03:04:05.678901234Z').getHours() == 3",
        "timestamp('2026-01-02T03:04:05.678901234Z').getMinutes() == 4",
        "timestamp('2026-01-02T03:04:05.678901234Z').getSeconds() == 5",
        "timestamp('2026-01-02T03:04:05.678901234Z').getMilliseconds() == 678",
        "timestamp('2026-01-02T23:59:59Z').getHours() == 23 && timestamp('2026-01-02T23:59:59Z').getMinutes() == 59",
        "string(timestamp('2026-11-12T13:14:15.000000001-05:45')) == '2026-11-12T13:14:15.000000001-05:45'",
        "string(timestamp('2026-11-12T13:14:15,5Z')) == '2026-11-12T13:14:15.5Z'",
        "string(timestamp('0001-01-01T00:00:00Z')) == '0001-01-01T00:00:00Z'",
        "timestamp('2026-01-02T3:04:05Z') == timestamp('2026-01-02T03:04:05Z')",
        "timestamp('2026-01-02T03:04:05+05:30') == timestamp('2026-01-01T21:34:05Z')",
        "timestamp('2026-01-02T03:04:05-05:30') == timestamp('2026-01-02T08:34:05Z')",
        // Times of day carry into the next and the last second, and day.
        "timestamp('2026-12-31T23:59:59.999999999Z') + duration('1ns') == timestamp('2027-01-01T00:00:00Z')",
        "timestamp('2027-01-01T00:00:00Z') - duration('1ns') == timestamp('2026-12-31T23:59:59.999999999Z')",
        "timestamp('2026-01-01T00:00:00.25Z') - timestamp('2026-01-01T00:00:01.5Z') == duration('-1.25s')",
        "timestamp('2026-01-01T00:00:00.5Z') > timestamp('2026-01-01T00:00:00.25Z')",
        "timestamp(0) - duration('-9223372036854775808ns') > timestamp('2262-01-01T00:00:00Z')",
        // Durations
        "duration('1h1m1s1ms1us1ns') == duration('3661001001001ns') && duration('1µs') == duration('1us') && duration('1μs') == duration('1us')",
        "duration('+1.5h') == duration('90m') && duration('.5s') == duration('500ms') && duration('1.s') == duration('1s')",
        "duration('0') == duration('0s') && duration('-0') == duration('0s') && duration('-2m') + duration('2m') == duration('0s')",
        "duration('0.000000001s') == duration('1ns') && duration('0.1234567890123456789s') == duration('123456789ns')",
        "duration('9223372036854775807ns') > duration('-9223372036854775808ns')",
        "string(duration('-0.5s')) == '-0.5s' && string(duration('61m')) == '3660s'",
    ];
    let wrong: Vec<_> = sources.iter().filter(|source| ask(source) != Ok(true)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for text in [
        "2026-01-02T24:00:00Z",
        "2026-01-02T00:60:00Z",
        "2026-01-02T00:00:60Z",
        "2026-00-02T00:00:00Z",
        "2026-13-02T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-02T00:00:00",
        "2026-01-02T00:00:00.Z",
        "2026-01-02T00:00:00Z ",
        "2026-01-02T00:00:00+25:00",
        "2026-01-02T00:00:00+01:61",
        "2026-01-02T00:00:00+0100",
        "26-01-02T00:00:00Z",
        "2026-1-02T00:00:00Z",
        "2026-01-02 00:00:00Z",
        "0000-12-31T23:59:59Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
    ] {
        assert_eq!(Timestamp::parse(text), None, "{text}");
    }
    let durations = [
        "",
        "-",
        "+",
        "1",
        "s",
        ".s",
        "1x",
        "1s-",
        "--1s",
        "1 s",
        "9223372036854775808ns",
        "9e9s",
        "9223372036.854775808s",
    ];
    for text in durations {
        assert_eq!(crate::values::time::Duration::parse(text), None, "{text}");
    }
}
