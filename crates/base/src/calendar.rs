//! Days as people count them, in UTC.

/// Seconds of a day.
pub const DAY_SECONDS: u64 = 86_400;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Its year.
    pub year: u64,
    /// From 1 to 12.
    pub month: u64,
    /// From 1.
    pub day: u64,
}

impl Date {
    /// The day of a moment, in seconds since 1970. By `civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level Date
    /// Algorithms": years begin in March, so that a leap day is the last of its year.
    #[must_use]
    pub fn of(unix_seconds: u64) -> Date {
        const ERA_DAYS: u64 = 146_097;
        // Since the first of March of the year 0.
        let days = unix_seconds / DAY_SECONDS + 719_468;
        let (era, of_era) = (days / ERA_DAYS, days % ERA_DAYS);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Date { year: era * 400 + year + u64::from(month <= 2), month, day }
    }
}

/// The number of the ISO week of a moment, in seconds since 1970: weeks begin on Mondays, and none is cut by the end of a year.
#[must_use]
pub fn week(unix_seconds: u64) -> u64 {
    // 1970 began on a Thursday.
    (unix_seconds / DAY_SECONDS + 3) / 7
}

/// A moment, in seconds since 1970, as it may stand in a name: `20261129T110000Z`, the basic format of ISO 8601.
#[must_use]
pub fn stamp(unix_seconds: u64) -> String {
    let Date { year, month, day } = Date::of(unix_seconds);
    let of_day = unix_seconds % DAY_SECONDS;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_as_calendars_do() {
        for (unix_seconds, told) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_795_950_000, "20261129T110000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (253_402_300_799, "99991231T235959Z"),
        ] {
            assert_eq!(stamp(unix_seconds), told);
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut expected = Date { year: 1970, month: 1, day: 1 };
        for day in 0..146_097 {
            assert_eq!(Date::of(day * DAY_SECONDS + day % DAY_SECONDS), expected);
            let Date { year, month, .. } = expected;
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = lengths[month as usize - 1] + u64::from(is_leap && month == 2);
            expected.day += 1;
            if expected.day > length {
                expected = Date { year: year + month / 12, month: month % 12 + 1, day: 1 };
            }
        }
    }

    #[test]
    fn weeks_begin_on_mondays() {
        // Sunday, the 29th of November 2026, and the Monday behind it.
        let monday = 1_795_996_800;
        assert_eq!(stamp(monday), "20261130T000000Z");
        assert_eq!(week(monday - 1), week(monday - 7 * DAY_SECONDS));
        assert_eq!(week(monday), week(monday - 1) + 1);
    }
}
