//! How much of what OSDs do may be recovery.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much of an OSD's work may be bringing others up to date while it serves clients, in percent. One that serves nobody
/// does not go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct RecoveryShare(u8);

impl RecoveryShare {
    /// The least and the most that can be set.
    const BOUNDS: (u8, u8) = (1, 80);

    /// It, in percent.
    #[must_use]
    pub fn percent(self) -> u32 {
        u32::from(self.0)
    }
}

impl Default for RecoveryShare {
    fn default() -> RecoveryShare {
        RecoveryShare(10)
    }
}

impl TryFrom<u8> for RecoveryShare {
    type Error = String;
    fn try_from(percent: u8) -> Result<RecoveryShare, String> {
        let (least, most) = RecoveryShare::BOUNDS;
        match (least..=most).contains(&percent) {
            true => Ok(RecoveryShare(percent)),
            false => Err(format!("{percent}% is no share for recovery; one is from {least}% to {most}%")),
        }
    }
}

impl From<RecoveryShare> for u8 {
    fn from(share: RecoveryShare) -> u8 {
        share.0
    }
}

impl fmt::Display for RecoveryShare {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.0)
    }
}

impl FromStr for RecoveryShare {
    type Err = String;
    fn from_str(text: &str) -> Result<RecoveryShare, String> {
        let percent: u8 = text
            .strip_suffix('%')
            .unwrap_or(text)
            .parse()
            .map_err(|_| format!("{text:?} is no share for recovery; one is like 20%"))?;
        RecoveryShare::try_from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_it_is_shown_and_neither_starves_recovery_nor_clients() {
        assert_eq!("35%".parse::<RecoveryShare>().map(|share| share.to_string()), Ok("35%".to_owned()));
        assert_eq!("35".parse::<RecoveryShare>().map(RecoveryShare::percent), Ok(35));
        for text in ["0%", "81", "256%", "-1", "", "%", "much", "1.5%"] {
            let error = text.parse::<RecoveryShare>().expect_err(text);
            assert!(error.contains("share for recovery; one is"), "{error}");
        }
    }
}
