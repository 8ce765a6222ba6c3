//! Schedules: which volumes have snapshots made by themselves, how often, and which of these are kept.
//!
//! Time is cut into *slots*, multiples of a schedule's interval since 1970 in UTC: every hour, every day. A volume has one snapshot
//! for each slot, made when somebody first looks within it. So slots that nobody saw are not made up for, and a clock that is
//! set back brings no second snapshot of a slot; one that is dated far ahead, for a clock was wrong once, is of another slot than the
//! present one and keeps none from being made.

use crate::calendar::{Date, week};
use crate::duration::{Limit, exactly};
use crate::ids::{ScheduleId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Snapshots of one volume that a schedule may keep, by all its rules together: as many were measured.
const KEPT_MAX: u32 = 1000;

/// A schedule, without its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its snapshots bear it. A schedule that gets the name of one that was removed has another, so it removes none of that one's.
    pub id: ScheduleId,
    /// Of which volumes, all of them at one moment.
    pub volumes: Vec<VolumeId>,
    /// How often.
    pub every_seconds: Interval,
    /// Which of its snapshots are kept.
    pub keep: Keep,
    /// When it was made, resumed, or given another interval or more volumes, in seconds since 1970, by the clock of whoever did: the
    /// slot in which that was is passed over.
    pub since_unix_seconds: u64,
    /// It makes and removes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

impl Schedule {
    /// When the slot began that a moment lies in. Both in seconds since 1970.
    #[must_use]
    pub fn slot(&self, unix_seconds: u64) -> u64 {
        unix_seconds - unix_seconds % self.every_seconds.seconds()
    }

    /// When the slot begins that follows the one in which a moment lies.
    #[must_use]
    pub fn next_slot(&self, unix_seconds: u64) -> u64 {
        self.slot(unix_seconds).saturating_add(self.every_seconds.seconds())
    }

    /// Whether a volume wants a snapshot at a moment, if those that it has of this schedule were made at these.
    #[must_use]
    pub fn is_due(&self, unix_seconds: u64, mut made: impl Iterator<Item = u64>) -> bool {
        let slot = self.slot(unix_seconds);
        !self.paused && slot != self.slot(self.since_unix_seconds) && !made.any(|at| self.slot(at) == slot)
    }
}

/// How often snapshots are made, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Interval(u64);

impl Interval {
    /// The shortest and the longest.
    const BOUNDS_SECONDS: (u64, u64) = (10, 366 * 86_400);

    /// It, in seconds; never 0.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Interval {
    type Error = String;
    fn try_from(seconds: u64) -> Result<Interval, String> {
        let (least, most) = Interval::BOUNDS_SECONDS;
        match (least..=most).contains(&seconds) {
            true => Ok(Interval(seconds)),
            false => Err(format!(
                "{} is no interval of snapshots; one is from {} to {}, for example 15min, 1h or 1d",
                exactly(seconds),
                exactly(least),
                exactly(most)
            )),
        }
    }
}

impl From<Interval> for u64 {
    fn from(interval: Interval) -> u64 {
        interval.0
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&exactly(self.0))
    }
}

impl FromStr for Interval {
    type Err = String;
    fn from_str(text: &str) -> Result<Interval, String> {
        match text.parse()? {
            Limit::Seconds(seconds) => Interval::try_from(seconds),
            Limit::Never => {
                Err("snapshots that are never made need no schedule; `millpond schedule pause` stops one"
                    .to_owned())
            }
        }
    }
}

/// What a rule keeps one snapshot of each of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Period {
    /// Each snapshot is a period of its own.
    Last,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Period {
    const ALL: [(Period, &str); 6] = [
        (Period::Last, "last"),
        (Period::Hour, "hourly"),
        (Period::Day, "daily"),
        (Period::Week, "weekly"),
        (Period::Month, "monthly"),
        (Period::Year, "yearly"),
    ];

    /// The number of the one that a moment lies in, or, of the last ones, that of the snapshot.
    fn number(self, unix_seconds: u64, index: usize) -> u64 {
        match self {
            Period::Last => index as u64,
            Period::Hour => unix_seconds / 3600,
            Period::Day => unix_seconds / 86_400,
            Period::Week => week(unix_seconds),
            Period::Month => {
                let Date { year, month, .. } = Date::of(unix_seconds);
                year * 12 + month
            }
            Period::Year => Date::of(unix_seconds).year,
        }
    }
}

/// Which snapshots of a schedule are kept: `24 hourly, 7 daily`. Each rule keeps the newest one of each of so many periods, of those
/// in which there is one; what any rule keeps is kept. Periods are those of the calendar, in UTC. So do Proxmox Backup Server and restic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Keep(Vec<(u32, Period)>);

impl Keep {
    /// Of the snapshots of one volume, the newest first, each with when it was made in seconds since 1970: whether it is kept. The
    /// newest always is, whatever the clock said: the order is that in which they were made.
    #[must_use]
    pub fn kept(&self, newest_first: &[u64]) -> Vec<bool> {
        let mut kept = vec![false; newest_first.len()];
        for (count, period) in &self.0 {
            let mut seen = BTreeSet::new();
            for (index, at) in newest_first.iter().enumerate() {
                if seen.len() == *count as usize {
                    break;
                }
                kept[index] |= seen.insert(period.number(*at, index));
            }
        }
        kept
    }
}

impl FromStr for Keep {
    type Err = String;
    fn from_str(text: &str) -> Result<Keep, String> {
        let example = "write for example \"24 hourly, 7 daily, 4 weekly\"";
        let words = Period::ALL.map(|(_, word)| word).join(", ");
        if text.trim().is_empty() {
            return Err(format!("nothing would be kept; {example}"));
        }
        let mut rules: Vec<(u32, Period)> = Vec::new();
        for rule in text.split(',') {
            let rule = rule.trim();
            let wrong = || format!("{rule:?} does not say what is kept; {example}, of {words}");
            let (count, word) = rule.split_once(char::is_whitespace).ok_or_else(wrong)?;
            let (period, word) =
                Period::ALL.into_iter().find(|(_, name)| *name == word.trim()).ok_or_else(wrong)?;
            let count: u64 = count.parse().map_err(|_| wrong())?;
            if count == 0 {
                return Err(format!("{rule:?} keeps none; leave it out, or say 1 {word} or more"));
            }
            if rules.iter().any(|(_, other)| *other == period) {
                return Err(format!("{word} is said twice; say it once"));
            }
            rules.push((u32::try_from(count).unwrap_or(u32::MAX), period));
        }
        let all = rules.iter().fold(0u32, |all, (count, _)| all.saturating_add(*count));
        if all > KEPT_MAX {
            return Err(format!(
                "{text:?} may keep more than {KEPT_MAX} snapshots of each volume, which is the most; keep fewer of the short periods"
            ));
        }
        Ok(Keep(rules))
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (count, period)) in self.0.iter().enumerate() {
            let word = Period::ALL.iter().find(|(other, _)| other == period).map_or("", |(_, word)| word);
            write!(formatter, "{}{count} {word}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Keep {
    type Error = String;
    fn try_from(text: String) -> Result<Keep, String> {
        text.parse()
    }
}

impl From<Keep> for String {
    fn from(keep: Keep) -> String {
        keep.to_string()
    }
}

/// What a schedule has not done though it was due: told by the manager, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateSchedule {
    /// When the first slot began for which nothing could be made since, in seconds since 1970, by the manager's clock.
    pub slot_unix_seconds: u64,
    /// The names of the volumes.
    pub volumes: Vec<String>,
    /// Why it failed the last time.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::stamp;

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;
    /// The first moment of 2026, a Thursday.
    const NEW_YEAR: u64 = 1_767_225_600;

    fn keep(text: &str) -> Keep {
        text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    /// Those that are kept of snapshots made at these moments, the oldest first, as whoever lists them sees it.
    fn left(rules: &str, made: &[u64]) -> Vec<u64> {
        let newest_first: Vec<u64> = made.iter().rev().copied().collect();
        let kept = keep(rules).kept(&newest_first);
        let left = newest_first.into_iter().zip(kept).filter(|(_, is_kept)| *is_kept);
        left.map(|(at, _)| at).collect::<Vec<_>>().into_iter().rev().collect()
    }

    fn schedule(every_seconds: u64, since_unix_seconds: u64) -> Schedule {
        Schedule {
            id: ScheduleId(7),
            volumes: vec![VolumeId(1)],
            every_seconds: Interval::try_from(every_seconds).expect("it is within the bounds"),
            keep: keep("1 last"),
            since_unix_seconds,
            paused: false,
        }
    }

    #[test]
    fn what_is_kept_is_told_as_it_is_read() {
        for text in ["24 hourly, 7 daily", "5 last", "12 monthly, 3 yearly, 4 weekly", "1000 last"] {
            assert_eq!(keep(text).to_string(), text);
            let json = serde_json::to_string(&keep(text)).expect("it is text");
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Keep>(&json).expect("it was written so"), keep(text));
        }
        assert_eq!(keep(" 24  hourly ,7 daily ").to_string(), "24 hourly, 7 daily");
        for (text, why) in [
            ("", "nothing would be kept"),
            (" , ", "does not say what is kept"),
            ("24 hourly,", "does not say what is kept"),
            ("hourly", "does not say what is kept"),
            ("24hourly", "does not say what is kept"),
            ("-1 hourly", "does not say what is kept"),
            ("24 fortnightly", "of last, hourly, daily"),
            ("0 daily", "keeps none"),
            ("7 daily, 8 daily", "daily is said twice"),
            ("999 hourly, 2 last", "more than 1000"),
            ("99999999999 last", "more than 1000"),
        ] {
            let error = text.parse::<Keep>().expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(serde_json::from_str::<Keep>(&format!("{text:?}")).is_err());
        }
    }

    #[test]
    fn an_interval_is_read_as_it_is_shown_and_has_bounds() {
        for (text, seconds, shown) in
            [("1h", HOUR, "1h"), ("60min", HOUR, "1h"), ("10s", 10, "10s"), ("366d", 366 * DAY, "366d")]
        {
            let interval: Interval = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((interval.seconds(), interval.to_string()), (seconds, shown.to_owned()));
        }
        for (text, why) in [
            ("0", "no time at all"),
            ("9s", "from 10s to 366d"),
            ("367d", "from 10s to 366d"),
            ("never", "schedule pause"),
            ("hourly", "not a duration"),
        ] {
            let error = text.parse::<Interval>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Interval>("0").is_err(), "nobody divides by it");
    }

    #[test]
    fn of_each_period_the_newest_is_kept_and_what_one_rule_keeps_is_kept() {
        // Three a day, for four days; the last day has one alone.
        let made: Vec<u64> = (0..4)
            .flat_map(|day| [1, 9, 17].map(|hour| NEW_YEAR + day * DAY + hour * HOUR))
            .take(10)
            .collect();
        let [.., newest] = made[..] else { panic!("there are ten") };
        assert_eq!(left("1 last", &made), [newest]);
        assert_eq!(left("2 daily", &made), [NEW_YEAR + 2 * DAY + 17 * HOUR, newest]);
        assert_eq!(left("2 hourly, 1 daily", &made), [NEW_YEAR + 2 * DAY + 17 * HOUR, newest]);
        assert_eq!(left("3 last, 3 daily", &made).len(), 4);
        // Periods without any do not count: the two newest days in which there is one, however long ago.
        let sparse = [NEW_YEAR, NEW_YEAR + 90 * DAY];
        assert_eq!(left("2 daily", &sparse), sparse);
        assert_eq!(left("2 daily", &[]), Vec::<u64>::new());
        assert_eq!(left("1000 last", &made), made);
    }

    #[test]
    fn of_a_year_of_hours_each_rule_leaves_what_it_says_however_often_it_is_looked() {
        for (rules, counts) in [
            ("5 last", 5),
            ("24 hourly", 24),
            ("24 hourly, 7 daily", 24 + 6),
            ("24 hourly, 7 daily, 4 weekly", 24 + 6 + 2),
            ("24 hourly, 7 daily, 4 weekly, 12 monthly", 24 + 6 + 2 + 11),
            ("24 hourly, 7 daily, 4 weekly, 12 monthly, 3 yearly", 24 + 6 + 2 + 11 + 2),
            ("1 yearly", 1),
        ] {
            let mut there: Vec<u64> = Vec::new();
            // The two years before count for the yearly ones. Of the days the 27th of December is the last of its week, too.
            for hour in 0..(731 + 365) * 24 {
                let at = NEW_YEAR - 731 * DAY + hour * HOUR;
                there.push(at);
                there = left(rules, &there);
                assert_eq!(there.last(), Some(&at), "the newest is always kept");
            }
            assert_eq!(
                there.len(),
                counts,
                "{rules}: {:?}",
                there.iter().map(|at| stamp(*at)).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn what_is_left_of_a_year_is_the_last_hour_of_each_period() {
        let made: Vec<u64> = (0..365 * 24).map(|hour| NEW_YEAR + hour * HOUR).collect();
        let told = |rules: &str| left(rules, &made).into_iter().map(stamp).collect::<Vec<_>>();
        assert_eq!(told("3 hourly"), ["20261231T210000Z", "20261231T220000Z", "20261231T230000Z"]);
        assert_eq!(told("3 daily"), ["20261229T230000Z", "20261230T230000Z", "20261231T230000Z"]);
        assert_eq!(told("3 weekly"), ["20261220T230000Z", "20261227T230000Z", "20261231T230000Z"]);
        assert_eq!(told("3 monthly"), ["20261031T230000Z", "20261130T230000Z", "20261231T230000Z"]);
        assert_eq!(told("3 yearly"), ["20261231T230000Z"]);
    }

    #[test]
    fn one_that_is_dated_ahead_neither_takes_the_place_of_the_newest_nor_stays_for_ever() {
        let ahead = NEW_YEAR + 1000 * DAY;
        let mut there = vec![NEW_YEAR, ahead];
        for day in 1..10 {
            there.push(NEW_YEAR + day * DAY);
            there = left("3 daily", &there);
            assert_eq!(there.last(), Some(&(NEW_YEAR + day * DAY)));
        }
        assert_eq!(there, [7, 8, 9].map(|day| NEW_YEAR + day * DAY));
    }

    #[test]
    fn a_slot_is_due_once_whatever_the_clock_does_and_not_the_one_in_which_the_schedule_was_made() {
        let hourly = schedule(HOUR, NEW_YEAR + 5);
        let due = |at: u64, made: &[u64]| hourly.is_due(at, made.iter().copied());
        assert!(!due(NEW_YEAR + 5, &[]) && !due(NEW_YEAR + HOUR - 1, &[]));
        assert!(due(NEW_YEAR + HOUR, &[]));
        let first = NEW_YEAR + HOUR + 2;
        assert!(!due(first, &[first]) && !due(NEW_YEAR + 2 * HOUR - 1, &[first]));
        // Set back, within the slot and into another one that has its own.
        let second = NEW_YEAR + 2 * HOUR;
        assert!(!due(first - 1, &[first, second]) && !due(second, &[first, second]));
        // Slots that nobody saw, and a clock that was wrong once.
        assert!(due(NEW_YEAR + 100 * HOUR, &[first, second]));
        assert!(due(NEW_YEAR + 3 * HOUR, &[first, second, NEW_YEAR + 9000 * HOUR]));
        // Whoever made it has a clock that is days ahead.
        assert!(schedule(HOUR, NEW_YEAR + 90 * DAY).is_due(NEW_YEAR + HOUR, [].into_iter()));
        assert!(!Schedule { paused: true, ..hourly.clone() }.is_due(NEW_YEAR + HOUR, [].into_iter()));
        assert_eq!((hourly.slot(first), hourly.next_slot(first)), (NEW_YEAR + HOUR, NEW_YEAR + 2 * HOUR));
    }

    #[test]
    fn a_schedule_is_written_as_its_format_says() {
        let json = serde_json::to_value(schedule(HOUR, 5)).expect("it has a JSON form");
        let expected = serde_json::json!({
            "id": 7, "volumes": [1], "every_seconds": 3600, "keep": "1 last", "since_unix_seconds": 5
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Schedule>(json).expect("it was written so"), schedule(HOUR, 5));
    }
}
