//! Durations as people write and read them: `10min`, `90s`, `never`.

use std::fmt;
use std::str::FromStr;

/// Units with their seconds, the largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];

/// How long something may last, in whole seconds, or for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many seconds, at least one.
    Seconds(u64),
    /// For ever.
    Never,
}

impl Limit {
    /// As the settings keep it: 0 for never.
    pub fn setting_seconds(self) -> u64 {
        match self {
            Limit::Seconds(seconds) => seconds,
            Limit::Never => 0,
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let wrong = || format!("{text:?} is not a duration; write for example 90s, 10min, 2h or never");
        let trimmed = text.trim();
        if trimmed == "never" {
            return Ok(Limit::Never);
        }
        let split = trimmed.find(|character: char| !character.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
        let unit_seconds = match unit {
            "" => 1,
            "m" => 60,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        let count: u64 = number.parse().map_err(|_| wrong())?;
        match count.checked_mul(unit_seconds) {
            Some(0) => Err(format!("{text:?} is no time at all; write 1s or more, or never")),
            Some(seconds) => Ok(Limit::Seconds(seconds)),
            None => Err(wrong()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Seconds(seconds) => write!(formatter, "{seconds}s"),
            Limit::Never => formatter.write_str("never"),
        }
    }
}

/// A time that is left or past, in the largest unit of which there are two or more, rounded to the nearest.
pub fn about(seconds: u64) -> String {
    let (name, unit) = UNITS.into_iter().find(|(_, unit)| seconds >= unit * 2).unwrap_or(("s", 1));
    format!("{} {name}", seconds.saturating_add(unit / 2) / unit)
}

/// A duration as it is written, in the largest unit of which it is a whole number.
pub fn exactly(seconds: u64) -> String {
    let (name, unit) = UNITS.into_iter().find(|(_, unit)| seconds.is_multiple_of(*unit)).unwrap_or(("s", 1));
    format!("{}{name}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        let cases =
            [("90s", 90), ("10min", 600), ("10 min", 600), ("5m", 300), ("2h", 7200), ("3d", 259_200)];
        for (text, seconds) in cases {
            assert_eq!(text.parse(), Ok(Limit::Seconds(seconds)), "{text}");
            assert_eq!(Limit::Seconds(seconds).to_string().parse(), Ok(Limit::Seconds(seconds)));
        }
        assert_eq!("20".parse(), Ok(Limit::Seconds(20)));
        assert_eq!("never".parse(), Ok(Limit::Never));
        for wrong in ["", "min", "-1s", "1.5h", "0", "0min", "3 fortnights", "99999999999999999999d"] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_told_exactly_reads_back() {
        let told: Vec<String> = [1, 90, 120, 3600, 5400, 172_800, 86_401].map(exactly).to_vec();
        assert_eq!(told, ["1s", "90s", "2min", "1h", "90min", "2d", "86401s"]);
        for seconds in [1, 90, 120, 3600, 5400, 172_800, 86_401] {
            assert_eq!(exactly(seconds).parse(), Ok(Limit::Seconds(seconds)));
        }
    }

    #[test]
    fn what_is_left_is_told_roughly() {
        let told: Vec<String> = [0, 45, 119, 120, 510, 7300, 7 * 86_400 + 1].map(about).to_vec();
        assert_eq!(told, ["0 s", "45 s", "119 s", "2 min", "9 min", "2 h", "7 d"]);
    }
}
